"""Inverting Gradients (Geiping et al., NeurIPS 2020): cosine matching with a total-variation prior.

Signed Adam at learning rate 0.1 that falls tenfold at 3/8, 5/8 and 7/8 of the run, inputs kept in the range of images,
start N(0, 1) in the model's input space; weight changes are matched by unrolling the local steps.
Threat model: passive server. Departures: none by default; the weight of total variation differs widely between the
authors' own settings and is an option, as is stopping early.

Equations: minimise 1 - <g(z), u> / (|g(z)| |u|) + tv TV(z), one cosine over all tensors together.

Cost: one second-order pass per step and restart; unrolling local steps costs as many passes as there are steps, and
their memory.

Known breaks: the angle is blind to scale, so clipping costs the attacker nothing; noise that turns the direction, large
batches and aggregation over clients do. Pruning is no answer: an aware attacker compares sent entries only.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.descent import Descent
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.objectives import Cosine
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.recipe import LabelMode, LocalSteps, Recipe, Start
from fedseal.attacks.matching.schedules import Schedule
from fedseal.core.attack import ATTACKS
from fedseal.core.ranges import Rate, Weight
from fedseal.core.registry import Info


@ATTACKS.register(
    "ig",
    Info(
        "match the gradient's direction, prefer smooth images",
        paper="Geiping et al., NeurIPS 2020",
        threat="passive",
        needs=("batch_size",),
    ),
)
@dataclass(frozen=True)
class InvertingGradients(MatchingAttack):
    """Inverting Gradients.

    Attributes:
        lr: learning rate.
        tv: weight of total variation.
        signed: whether Adam sees the gradient's sign only.
        schedule: of the learning rate.
        start: of the dummy inputs.
        labels: fixed, or optimised with the images.
        relabel_every: steps between re-estimates of inferred labels; 0 never.
        patience: see `Descent`; 0 never stops early.
    """

    iterations: int = 4800
    lr: Rate = 0.1
    tv: Weight = 1e-4
    signed: bool = True
    schedule: Schedule = "steps"
    start: Start = "normal"
    labels: LabelMode = "fixed"
    relabel_every: int = 0
    local_steps: LocalSteps = "unroll"
    patience: float = 0.0

    def recipe(self) -> Recipe:
        """Minimise the angle between gradients, by signed Adam with steps in its rate."""
        return Recipe(
            Cosine(),
            Descent(Adam(signed=self.signed), lr=self.lr, schedule=self.schedule, patience=self.patience),
            Priors(tv=self.tv),
            start=self.start,
            labels=self.labels,
            relabel_every=self.relabel_every,
        )
