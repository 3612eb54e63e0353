"""fedseal: audit and seal federated learning against gradient leakage.

`dir(fedseal)` is the interface. Names are imported on first use, so that `import fedseal` costs nothing.

    invert           one gradient in, the images behind it out
    audit            attack a federation's updates under every defence; `open_run` reads it back
    train            the accuracy each defence keeps; `open_training` reads it back
    tradeoff         both, over strengths of defences; `open_tradeoff` reads it back
    advise           which defence to take within limits of accuracy, bytes, time and risk
    detect           is the model a client received a weapon?
    register_attack  ..., `register_defence`, `_model`, `_data`, `_metric`, `_label_rule`: put one's own beside ours
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedseal._version import VERSION as __version__

if TYPE_CHECKING:
    from fedseal.advice.front import advise
    from fedseal.attacks.labels.rules import register_label_rule
    from fedseal.audit.front import audit
    from fedseal.audit.run import Run
    from fedseal.audit.runner import open_run, run_audit
    from fedseal.audit.scenario import Scenario, load_scenario
    from fedseal.core.attack import Attack, Budget, register_attack
    from fedseal.core.batch import Batch, Normalisation
    from fedseal.core.defence import Defence, register_defence
    from fedseal.core.errors import FedsealError
    from fedseal.core.knowledge import Knowledge
    from fedseal.core.observation import Observation, Update
    from fedseal.core.reconstruction import Reconstruction
    from fedseal.core.registry import Info
    from fedseal.core.watcher import Watcher
    from fedseal.data.dataset import ImageDataset
    from fedseal.data.registry import register_data
    from fedseal.detection.detector import Detection, detect
    from fedseal.metrics.registry import register_metric
    from fedseal.models.registry import register_model
    from fedseal.report.write import write_reports
    from fedseal.tradeoff.curves import Tradeoff, open_tradeoff
    from fedseal.tradeoff.front import tradeoff
    from fedseal.tradeoff.scenario import TradeoffScenario
    from fedseal.training.front import train
    from fedseal.training.run import TrainingRun, open_training
    from fedseal.training.scenario import TrainingScenario
    from fedseal.updates.inversion import invert

_HOMES = {
    "Attack": "core.attack",
    "Batch": "core.batch",
    "Budget": "core.attack",
    "Defence": "core.defence",
    "Detection": "detection.detector",
    "FedsealError": "core.errors",
    "ImageDataset": "data.dataset",
    "Info": "core.registry",
    "Knowledge": "core.knowledge",
    "Normalisation": "core.batch",
    "Observation": "core.observation",
    "Reconstruction": "core.reconstruction",
    "Run": "audit.run",
    "Scenario": "audit.scenario",
    "Tradeoff": "tradeoff.curves",
    "TradeoffScenario": "tradeoff.scenario",
    "TrainingRun": "training.run",
    "TrainingScenario": "training.scenario",
    "Update": "core.observation",
    "Watcher": "core.watcher",
    "advise": "advice.front",
    "detect": "detection.detector",
    "invert": "updates.inversion",
    "load_scenario": "audit.scenario",
    "open_run": "audit.runner",
    "open_tradeoff": "tradeoff.curves",
    "open_training": "training.run",
    "register_attack": "core.attack",
    "register_data": "data.registry",
    "register_defence": "core.defence",
    "register_label_rule": "attacks.labels.rules",
    "register_metric": "metrics.registry",
    "register_model": "models.registry",
    "run_audit": "audit.runner",
    "train": "training.front",
    "write_reports": "report.write",
}
_CALLABLE_PACKAGES = ("audit", "tradeoff")

__all__ = [
    "Attack",
    "Batch",
    "Budget",
    "Defence",
    "Detection",
    "FedsealError",
    "ImageDataset",
    "Info",
    "Knowledge",
    "Normalisation",
    "Observation",
    "Reconstruction",
    "Run",
    "Scenario",
    "Tradeoff",
    "TradeoffScenario",
    "TrainingRun",
    "TrainingScenario",
    "Update",
    "Watcher",
    "__version__",
    "advise",
    "audit",
    "detect",
    "invert",
    "load_scenario",
    "open_run",
    "open_tradeoff",
    "open_training",
    "register_attack",
    "register_data",
    "register_defence",
    "register_label_rule",
    "register_metric",
    "register_model",
    "run_audit",
    "tradeoff",
    "train",
    "write_reports",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _CALLABLE_PACKAGES:
        return importlib.import_module(f"fedseal.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"fedseal.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedseal' has no attribute {name!r}")
