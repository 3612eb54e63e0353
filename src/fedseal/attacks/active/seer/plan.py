"""How a SEER attacker is trained: everything that determines it besides the data and the model."""

from __future__ import annotations

import math
import typing
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from fedseal.attacks.active.seer.properties import PROPERTIES, Property, check_shiftable
from fedseal.attacks.active.seer.signals import Selection
from fedseal.core.errors import UsageError

Mode: TypeAlias = Literal["max", "thresh"]
"""`max`: the one image of a batch with the largest score; `thresh`: the one that passes a threshold, among several
clients whose sum is all the server sees."""

Preset: TypeAlias = Literal["cpu", "paper"]


@dataclass(frozen=True)
class SeerPlan:
    """Training of one attacker; the defaults are the CPU preset.

    Attributes:
        property: which image is isolated.
        mode: see `Mode`.
        batch_size: B, of the clients that will be attacked.
        clients: whose sum the server will see.
        steps: of Adam.
        accumulate: batches per step.
        learning_rate: Adam's, for the model and the decoder.
        select: which gradient entries the decoder reads.
        least, share: entries per parameter, max(least, share of all); for `select=entries`.
        rank: width of a linear disaggregator without bias; 0 fuses it with the reconstructor, as the code does.
        augment: random flips, and small changes of brightness and colour, of the auxiliary images.
        lids: size of LIDS's mini-groups if the attacker expects such batches; 1 for ordinary ones.
        seed: determines everything.
    """

    property: Property = "bright"
    mode: Mode = "max"
    batch_size: int = 8
    clients: int = 1
    steps: int = 3000
    accumulate: int = 16
    learning_rate: float = 1e-3
    select: Selection = "head"
    least: int = 8400
    share: float = 0.001
    rank: int = 0
    augment: bool = True
    lids: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.property not in PROPERTIES:
            raise UsageError(f"SEER knows no property {self.property!r}.", hint=f"Known: {', '.join(PROPERTIES)}.")
        if self.mode not in typing.get_args(Mode):
            raise UsageError(f"SEER knows no mode {self.mode!r}.", hint="Use max or thresh.")
        if self.mode == "thresh":
            check_shiftable(self.property)
        if self.mode == "max" and self.clients > 1:
            raise UsageError(
                f"the largest score of a batch isolates nothing among {self.clients} clients.",
                hint="Use `mode=thresh`.",
            )
        if self.batch_size < 2 or min(self.steps, self.accumulate, self.clients, self.lids) < 1 or self.rank < 0:
            raise UsageError("SEER needs batches of two or more images, and positive steps, accumulate and clients.")
        if self.lids > 1 and self.batch_size % self.lids:
            raise UsageError(
                f"batches of {self.batch_size} are not made of mini-groups of {self.lids}.",
                hint="Choose a batch size that is a multiple of `lids`.",
            )
        if not self.learning_rate > 0 or self.least < 1 or not 0 <= self.share <= 1:
            raise UsageError("SEER needs learning_rate > 0, least >= 1 and 0 <= share <= 1.")

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return asdict(self)

    def suppression(self, step: int) -> float:
        """Return alpha = 2^y, y rising from -2 to log2(clients x B) over the first half of training."""
        last = math.log2(self.clients * self.batch_size)
        return float(2 ** (-2 + (last + 2) * min(1.0, 2 * step / self.steps)))


_PAPER: dict[str, Any] = {
    "batch_size": 64,
    "steps": 100_000,
    "accumulate": 10,
    "learning_rate": 1e-4,
    "select": "entries",
}


def preset(name: Preset, **changes: Any) -> SeerPlan:
    """Return a preset with changes: `cpu` for one core and 16x16 images, `paper` for ResNet-18 on a GPU.

    The authors run a million batches of 64, and take a step of Adam every ten. The model is not part of a plan:
    theirs is `resnet18`, the CPU's `convbn`.
    """
    if name not in typing.get_args(Preset):
        raise UsageError(f"SEER knows no preset {name!r}.", hint="Use cpu or paper.")
    return SeerPlan(**{**(_PAPER if name == "paper" else {}), **changes})
