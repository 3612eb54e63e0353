"""GradInversion (Yin et al., CVPR 2021): squared distance with image priors and several agreeing restarts.

Priors: total variation, L2 norm, batch normalisation statistics (of the client's batch if the server received them,
the running ones, or none), and group consistency between restarts by the plain mean or after registration (ATTACKS.md
3). Adam with warm-up and cosine decay, noise on the pixels after each step. Threat model: passive server; `bn=batch`
needs the batch statistics. Departures: weights not printed in the paper are those two independent ports agree on;
registration is by translation only.
"""

from __future__ import annotations

from typing import Literal

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.derivatives import SecondOrder
from fedseal.attacks.matching.engine import LocalSteps, MatchingAttack, MatchingConfig
from fedseal.attacks.matching.groups import Consensus
from fedseal.attacks.matching.objectives import SquaredError
from fedseal.attacks.matching.priors import Priors
from fedseal.core.attack import ATTACKS
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
def gradinversion(
    iterations: int = 20000,
    restarts: int = 8,
    lr: float = 0.1,
    match: float = 1e-3,
    tv: float = 1e-4,
    l2: float = 1e-6,
    bn: Literal["batch", "running", "none"] = "none",
    bn_weight: float = 0.1,
    group: Consensus = "mean",
    group_weight: float = 0.01,
    pixel_noise: float = 0.2,
    warmup: int = 50,
    local_steps: LocalSteps = "average",
    second_order: SecondOrder = "auto",
) -> MatchingAttack:
    """Configure the engine as GradInversion."""
    return MatchingAttack(
        MatchingConfig(
            objective=SquaredError(weight=match),
            priors=Priors(tv=tv, l2=l2, bn=bn_weight, bn_source=bn),
            optimiser=Adam(lr=lr, schedule="cosine", warmup=warmup, pixel_noise=pixel_noise),
            iterations=iterations,
            restarts=restarts,
            local_steps=local_steps,
            consensus=group,
            group_weight=group_weight,
            second_order=second_order,
        )
    )
