"""SME, the surrogate model extension (Zhu, Yao and Blaschko, ICML 2023): many local steps as one gradient.

After many local steps no gradient at the weights that were sent points where the client went. There is one nearer to
that at some point on the straight way between the two models, and where it lies is sought together with the images.
All images are one batch, labels are given or inferred. Threat model: passive server that sees one client's weight
change. A gradient is matched as it is.

Equations: w_alpha = (1 - alpha) w_0 + alpha w_1, alpha in [0, 1]; minimise
1 - cos(w_0 - w_1, dL(w_alpha; z)/dw) + tv TV(z) over z and alpha. The slope by alpha is <dD/dw_alpha, w_1 - w_0>.

Departures: none by default from the authors' code in alpha (from 0.5, Adam at 1e-3), rate, schedule and weight of total
variation; inputs are kept in the range of images.

Cost: one second-order pass on all images per step and restart, whatever the number of local steps; unrolling them
(`ig`) takes as many passes as there are steps, and their memory.

Known breaks: the client's way is not straight where learning rates are large, and Adam's steps are not sums of
gradients at all; what is found then is what one direction tells. Defences of the upload move w_1 too. On small grounds
it was no better than averaging as often as it was (0.3 dB, one image a batch); it won by more than 1 dB where images
are few pixels and the way is smooth, a ground chosen for that (tests/attacks/test_surrogate.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.descent import Descent
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.objectives import Cosine
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.recipe import LocalSteps, Recipe, Start
from fedseal.attacks.matching.schedules import Schedule
from fedseal.core.attack import ATTACKS
from fedseal.core.ranges import Rate, Weight
from fedseal.core.registry import Info


@ATTACKS.register(
    "sme",
    Info(
        "match one gradient at a point between the model sent and the one returned, for many local steps",
        paper="Zhu, Yao and Blaschko, ICML 2023",
        threat="passive",
        needs=("batch_size",),
    ),
)
@dataclass(frozen=True)
class SurrogateModelExtension(MatchingAttack):
    """The surrogate model extension.

    Attributes:
        lr: learning rate of the inputs.
        alpha_lr: learning rate of alpha.
        tv: weight of total variation.
        signed: whether Adam sees the gradient's sign only.
        schedule: of the learning rates.
        start: of the dummy inputs.
    """

    lr: Rate = 1.0
    alpha_lr: Rate = 1e-3
    tv: Weight = 0.01
    signed: bool = False
    schedule: Schedule = "steps"
    start: Start = "normal"
    local_steps: LocalSteps = "surrogate"

    def recipe(self) -> Recipe:
        """Minimise the angle between the weight change and a gradient on its way, by Adam."""
        return Recipe(
            Cosine(),
            Descent(Adam(signed=self.signed), lr=self.lr, schedule=self.schedule),
            Priors(tv=self.tv),
            start=self.start,
            surrogate_rate=self.alpha_lr / self.lr,
        )
