"""What one member of the matching family is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from fedseal.attacks.matching.descent import Descent
from fedseal.attacks.matching.evolution import Evolution
from fedseal.attacks.matching.groups import Consensus
from fedseal.attacks.matching.objectives import Objective, ObjectiveFactory
from fedseal.attacks.matching.priors import Priors
from fedseal.core.defence import AttackerView

Start: TypeAlias = Literal["normal", "uniform", "zeros"]
"""How dummy inputs begin: N(0, 1) or zeros in the model's input space, or images uniform in [0, 1]."""

LabelMode: TypeAlias = Literal["fixed", "joint", "free"]
"""Labels during matching: as given or inferred; optimised from there; or optimised from random logits (DLG)."""

LocalSteps: TypeAlias = Literal["average", "unroll", "surrogate"]
"""A weight change is read as a mean gradient at the weights that were sent, or at a point on the way from there to
those that came back, which is sought with the images; or its local steps are simulated one by one."""


@dataclass(frozen=True)
class Recipe:
    """One point of the matching family.

    Attributes:
        objective: matching distance, or what makes it of what is known of the defence.
        descent: how it is minimised.
        priors: added to it.
        start: initialisation of the dummy inputs.
        boxed: whether inputs are kept in the range of images at every step.
        labels: see `LabelMode`.
        relabel_every: re-estimate inferred labels from the current images every so many steps; 0 never.
        consensus, group_weight: group consistency between restarts.
        generator_channels: optimise an untrained generator of this width instead of pixels; 0 for pixels.
        median: side of a median filter on the result; 0 for none.
        anneal: first weight of the matching distance, given what is known of the defence; None as the descent says.
        surrogate_rate: how fast a surrogate point moves, relative to the inputs (`Surrogate`).
    """

    objective: Objective | ObjectiveFactory
    descent: Descent | Evolution
    priors: Priors = field(default_factory=Priors)
    start: Start = "normal"
    boxed: bool = True
    labels: LabelMode = "fixed"
    relabel_every: int = 0
    consensus: Consensus = "none"
    group_weight: float = 0.0
    generator_channels: int = 0
    median: int = 0
    anneal: Callable[[AttackerView | None], float] | None = None
    surrogate_rate: float = 1e-3

    def under(self, view: AttackerView | None) -> Recipe:
        """Return the recipe of who knows that much of the defence: nothing in it is left open."""
        objective = self.objective(view) if callable(self.objective) else self.objective
        descent = self.descent
        if self.anneal is not None and isinstance(descent, Descent):
            descent = replace(descent, anneal=self.anneal(view))
        return replace(self, objective=objective, descent=descent, anneal=None)
