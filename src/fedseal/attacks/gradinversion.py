"""GradInversion (Yin et al., CVPR 2021): squared distance with image priors and several agreeing restarts.

Priors: total variation, L2 norm, batch normalisation statistics (of the client's batch if the server received them,
the running ones, or none), and group consistency between restarts by the plain mean or after registration. Adam with
warm-up and cosine decay, noise on the pixels after each step. Threat model: passive server; `bn=batch` needs the batch
statistics. Departures: weights not printed in the paper are those two independent ports agree on; registration is by
translation only.

Equations: sum_l |g_l - u_l|^2 + tv TV(z) + l2 |z|^2 + bn sum_l (|mean_l(z) - mean_l| + |var_l(z) - var_l|) + group |z -
mean of restarts|^2.

Cost: one second-order pass per step and restart, all restarts at once; registration of restarts is cheap beside it.

Known breaks: without the batch's own normalisation statistics its strongest prior is gone; repeated labels break the
label rule it was published with; clipping and noise as for every squared distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.descent import Descent
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.groups import Consensus
from fedseal.attacks.matching.objectives import SquaredError
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.recipe import Recipe
from fedseal.core.attack import ATTACKS
from fedseal.core.ranges import Rate, Weight
from fedseal.core.registry import Info


@ATTACKS.register(
    "gradinversion",
    Info(
        "match the gradient with image priors, normalisation statistics and agreeing restarts",
        paper="Yin et al., CVPR 2021",
        threat="passive",
        needs=("batch_size",),
    ),
)
@dataclass(frozen=True)
class GradInversion(MatchingAttack):
    """GradInversion.

    Attributes:
        lr: learning rate, with cosine decay.
        match: alpha_G, weight of the squared distance.
        tv: weight of total variation.
        l2: weight of the inputs' squared norm.
        bn: whose statistics the prior on batch normalisation compares with.
        bn_weight: of that prior.
        group: how restarts agree.
        group_weight: of their agreement.
        pixel_noise: after each step, as a multiple of the learning rate.
        warmup: steps of it.
    """

    iterations: int = 20000
    restarts: int = 8
    lr: Rate = 0.1
    match: float = 1e-3
    tv: Weight = 1e-4
    l2: Weight = 1e-6
    bn: Literal["batch", "running", "none"] = "none"
    bn_weight: float = 0.1
    group: Consensus = "mean"
    group_weight: float = 0.01
    pixel_noise: float = 0.2
    warmup: int = 50

    def recipe(self) -> Recipe:
        """Minimise the squared distance with all priors, by Adam with noise."""
        descent = Descent(Adam(), lr=self.lr, schedule="cosine", warmup=self.warmup, pixel_noise=self.pixel_noise)
        return Recipe(
            SquaredError(weight=self.match),
            descent,
            Priors(tv=self.tv, l2=self.l2, bn=self.bn_weight, bn_source=self.bn),
            consensus=self.group,
            group_weight=self.group_weight,
        )
