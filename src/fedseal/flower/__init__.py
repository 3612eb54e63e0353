"""Flower: fedseal's defences as client mods, and a server that decodes, checks and records what arrives.

    app = ClientApp(mods=[fedseal.flower.defend("topk:ratio=0.9")])
    strategy = fedseal.flower.guard(FedAvg(...))

Needs the extra `flower`. Written for Flower's message API; `defend` also works below SecAgg+, which Flower offers for
its older client API only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError("fedseal.flower needs Flower: pip install 'fedseal[flower]'") from error

from fedseal.core.logs import configure_logs
from fedseal.flower.defend import defend
from fedseal.flower.detect import detect
from fedseal.flower.guard import DroppedReply, GuardedStrategy, guard
from fedseal.flower.loops import sealed_loop
from fedseal.flower.record import Recorder, record
from fedseal.flower.rounds import TrainedRound, train_round, wrap_model

if TYPE_CHECKING:
    from fedseal.flower.monitoring import monitor

configure_logs()  # as the environment says; apps have no command line of ours

__all__ = [
    "DroppedReply",
    "GuardedStrategy",
    "Recorder",
    "TrainedRound",
    "defend",
    "detect",
    "guard",
    "monitor",
    "record",
    "sealed_loop",
    "train_round",
    "wrap_model",
]


def __getattr__(name: str) -> Any:
    """Import what only some clients need when it is first asked for: every message starts a process of its own."""
    if name == "monitor":
        from fedseal.flower.monitoring import monitor

        return monitor
    raise AttributeError(f"module 'fedseal.flower' has no attribute {name!r}")
