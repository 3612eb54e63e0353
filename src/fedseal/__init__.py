"""fedseal: audit and seal federated learning against gradient leakage.

Names are imported on first use, so that `import fedseal` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedseal._version import VERSION as __version__

if TYPE_CHECKING:
    from fedseal.audit.run import Run
    from fedseal.audit.runner import open_run, run_audit
    from fedseal.audit.scenario import Scenario, load_scenario
    from fedseal.detection.detector import Detection, detect

_HOMES = {
    "Detection": "fedseal.detection.detector",
    "Run": "fedseal.audit.run",
    "Scenario": "fedseal.audit.scenario",
    "detect": "fedseal.detection.detector",
    "load_scenario": "fedseal.audit.scenario",
    "open_run": "fedseal.audit.runner",
    "run_audit": "fedseal.audit.runner",
}

__all__ = ["Detection", "Run", "Scenario", "__version__", "detect", "load_scenario", "open_run", "run_audit"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedseal' has no attribute {name!r}")
