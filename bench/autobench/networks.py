"""The rows and columns of the comparison: networks with their budgets, and single attacks."""

from __future__ import annotations

from dataclasses import dataclass, field

CLOSED = ("retrieval", "learned", "rgap")
SEARCHES = ("ig", "ig:tv=0.05,schedule=cosine")
SINGLE = (*CLOSED, *SEARCHES)


@dataclass(frozen=True)
class Network:
    """A row's network and what it can be given.

    Attributes:
        model: spec.
        iterations: of `auto`, per target, by batch size.
        public: images the attacker has.
        steps: of Adam at batch 64 that make it `trained`.
        rate: its learning rate.
        targets: attacked, by batch size.
    """

    model: str
    iterations: dict[int, int]
    public: int
    steps: int
    rate: float = 1e-3
    targets: dict[int, int] = field(default_factory=lambda: {1: 8, 4: 8})


NETWORKS = {
    "lenet-relu": Network("lenet-relu", {1: 240, 4: 240}, 500, 1000),
    "lenet": Network("lenet:init=wide-uniform", {1: 240, 4: 240}, 500, 1000),
    "vit-tiny": Network("vit-tiny", {1: 40, 4: 60}, 200, 60),
    "resnet10": Network("resnet10:width=64", {1: 60, 4: 200}, 100, 40, targets={1: 4, 4: 8}),
    "convnet": Network("convnet:width=16", {1: 120, 4: 60}, 200, 100),
}
"""Cut so that all rows take about an hour and a half of one core; single images of every network come first."""
CONTROL = Network("resnet10:width=16", {1: 1}, 3000, 0, targets={1: 40})
CONTROL_ROW = "control"
