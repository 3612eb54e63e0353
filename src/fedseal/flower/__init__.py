"""Flower: fedseal's defences as client mods, and a server that decodes, checks and records what arrives.

    app = ClientApp(mods=[fedseal.flower.defend("topk:ratio=0.9")])
    strategy = fedseal.flower.guard(FedAvg(...))

Needs the extra `flower`. Written for Flower's message API; `defend` also works below SecAgg+, which Flower offers for
its older client API only.
"""

from __future__ import annotations

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError("fedseal.flower needs Flower: pip install 'fedseal[flower]'") from error

from fedseal.flower.defend import defend
from fedseal.flower.detect import detect
from fedseal.flower.guard import DroppedReply, GuardedStrategy, guard
from fedseal.flower.loops import sealed_loop
from fedseal.flower.record import Recorder, record
from fedseal.flower.rounds import TrainedRound, train_round, wrap_model

__all__ = [
    "DroppedReply",
    "GuardedStrategy",
    "Recorder",
    "TrainedRound",
    "defend",
    "detect",
    "guard",
    "record",
    "sealed_loop",
    "train_round",
    "wrap_model",
]
