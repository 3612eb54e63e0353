"""Inverting Gradients (Geiping et al., NeurIPS 2020): cosine matching with a total-variation prior.

Signed Adam at learning rate 0.1 that falls tenfold at 3/8, 5/8 and 7/8 of the run, inputs kept in the range of images,
start N(0, 1) in the model's input space; weight changes are matched by unrolling the local steps (ATTACKS.md 2).
Threat model: passive server. Departures: none by default; the weight of total variation differs widely between the
authors' own settings and is an option, as is stopping early.
"""

from __future__ import annotations

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.derivatives import SecondOrder
from fedseal.attacks.matching.engine import LabelMode, LocalSteps, MatchingAttack, MatchingConfig, Start
from fedseal.attacks.matching.objectives import Cosine
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.schedules import Schedule
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
    labels: LabelMode = "fixed",
    relabel_every: int = 0,
    local_steps: LocalSteps = "unroll",
    patience: float = 0.0,
    second_order: SecondOrder = "auto",
) -> MatchingAttack:
    """Configure the engine as Inverting Gradients."""
    return MatchingAttack(
        MatchingConfig(
            objective=Cosine(),
            priors=Priors(tv=tv),
            optimiser=Adam(lr=lr, schedule=schedule, signed=signed, patience=patience),
            iterations=iterations,
            restarts=restarts,
            start=start,
            labels=labels,
            relabel_every=relabel_every,
            local_steps=local_steps,
            second_order=second_order,
        )
    )
