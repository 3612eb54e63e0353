"""Inverting Gradients (Geiping et al., NeurIPS 2020): cosine matching with a total-variation prior.

Signed Adam at learning rate 0.1 that falls tenfold at 3/8, 5/8 and 7/8 of the run, inputs kept in the range of images,
start N(0, 1) in the model's input space (ATTACKS.md 2). Threat model: passive server. Departure: none; the total
variation weight differs widely between the authors' own settings and is an option.
"""

from __future__ import annotations

from fedseal.attacks.matching.engine import MatchingAttack, MatchingConfig, Start
from fedseal.attacks.matching.optimisers import Adam, Schedule
from fedseal.core.attack import ATTACKS
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
def inverting_gradients(
    iterations: int = 4800,
    restarts: int = 1,
    lr: float = 0.1,
    tv: float = 1e-4,
    signed: bool = True,
    schedule: Schedule = "steps",
    start: Start = "normal",
) -> MatchingAttack:
    """Configure the engine as Inverting Gradients."""
    return MatchingAttack(
        MatchingConfig(
            objective="cosine",
            tv=tv,
            start=start,
            optimiser=Adam(lr=lr, schedule=schedule, signed=signed),
            iterations=iterations,
            restarts=restarts,
            boxed=True,
        )
    )
