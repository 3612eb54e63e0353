"""The rows and columns of the comparison: networks, defences, data, priors, and the time they get."""

from __future__ import annotations

from dataclasses import dataclass

NETWORKS = {"lenet": "lenet:init=wide-uniform", "lenet-relu": "lenet-relu"}
"""A narrow ResNet-10 was there once: in this time nothing broke it undefended, so its rows said nothing."""
SECONDS = {"lenet": 0.35, "lenet-relu": 0.35}
"""Processor time for each target, by network; times the root of the batch size."""
DEFENCES = ("gaussian:sigma=0.01", "none", "topk", "dgp", "refiner", "adadefense", "soteria")
FIRST = "lenet/gaussian:sigma=0.01/1/cifar10"
MANY, FEW = 16, 8
"""Targets of the first row, and of others."""
STRANGERS = 199
PAIRS = {"lenet": 24, "lenet-relu": 24}
"""Shadow targets `denoised` learns from."""
TRIED = {"lenet": (4, 34), "lenet-relu": (4, 34)}
"""Iterations of the short runs that tell how many fit into the time."""
PUBLIC = 3000
SHADOWS = {"lenet": 4, "lenet-relu": 4}
"""Clients that are played to choose weights."""
STEPS = {"ae": 200, "diffusion": 250, "patch": 10, "gan": 4000}
"""Of the priors' trainings."""
COLUMNS: dict[str, tuple[str, tuple[float, ...]]] = {
    "tv": ("ig:schedule=cosine,tv={weight:g}", (0.05, 0.5, 2.0)),
    "ae": ("ig?schedule=cosine&tv=0&prior={file}&prior_weight={weight:g}", (0.01, 0.03, 0.1)),
    "patch": ("ig?schedule=cosine&tv=0.05&prior={file}&prior_weight={weight:g}", (0.003, 0.03, 0.1)),
    "diffusion": ("ig?schedule=cosine&tv=0.05&prior={file}&prior_weight={weight:g}", (0.003, 0.03, 0.1)),
    "gan": ("ig?schedule=cosine&tv=0&prior={file}&prior_weight={weight:g}", (0.01, 0.1)),
}


@dataclass(frozen=True)
class Row:
    """One row: network, defence, batch size and data."""

    network: str
    defence: str
    batch: int
    data: str

    @classmethod
    def parse(cls, text: str) -> Row:
        """Read network/defence/batch[/data]."""
        network, defence, batch, *data = text.split("/")
        return cls(network, defence, int(batch), data[0] if data else "cifar10")

    def __str__(self) -> str:
        return f"{self.network}/{self.defence}/{self.batch}/{self.data}"

    @property
    def targets(self) -> int:
        """How many are attacked."""
        return MANY if str(self) == FIRST else FEW


def every_row() -> list[Row]:
    """Return all rows in the order they are worth running: the first, other data, single images, batches."""
    rows = [Row.parse(FIRST), *(Row("lenet", defence, 1, "svhn") for defence in DEFENCES)]
    rows += [
        Row(network, defence, batch, "cifar10") for batch in (1, 4) for network in NETWORKS for defence in DEFENCES
    ]
    return list(dict.fromkeys(rows))
