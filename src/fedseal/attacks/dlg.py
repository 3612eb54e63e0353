"""Improved Deep Leakage from Gradients (Zhao et al. 2020): read the label, then L-BFGS on the squared distance.

Start N(0, 1), no prior, no box (ATTACKS.md 1). Threat model: passive server. Departure: the authors run L-BFGS without
a line search, which diverges on many starts; ours searches along each direction, which changes how fast a minimum is
reached and not which function is minimised.
"""

from __future__ import annotations

from fedseal.attacks.matching.engine import MatchingAttack, MatchingConfig, Start
from fedseal.attacks.matching.optimisers import LBFGS
from fedseal.core.attack import ATTACKS
from fedseal.core.registry import Info


@ATTACKS.register(
    "idlg",
    Info(
        "match the gradient exactly by L-BFGS, label read beforehand",
        paper="Zhao et al., arXiv 2020",
        threat="passive",
        needs=("batch_size",),
    ),
)
def idlg(
    iterations: int = 300, restarts: int = 1, history: int = 50, tv: float = 0.0, start: Start = "normal"
) -> MatchingAttack:
    """Configure the engine as iDLG."""
    return MatchingAttack(
        MatchingConfig(
            objective="l2",
            tv=tv,
            start=start,
            optimiser=LBFGS(history=history),
            iterations=iterations,
            restarts=restarts,
            boxed=False,
        )
    )
