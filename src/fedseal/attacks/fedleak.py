"""FedLeak (Fan et al., USENIX Security 2025): partial matching and gradient regularisation.

`fedleak` is the paper's Algorithm 1: L1 + cosine over the largest half of the gradient, gradients blended with those a
step ahead, total variation, an activation penalty, Adam. The paper leaves twelve points open (ATTACKS.md 14); each is
an option here, with the resolution found there as its default. `fedleak-artifact` is what the authors released, a
different attack: an untrained generator's weights are optimised by signed AdamW. Threat model: passive server.
"""

from __future__ import annotations

from typing import Literal

from fedseal.attacks.matching.adam import Adam, LookAhead
from fedseal.attacks.matching.derivatives import SecondOrder
from fedseal.attacks.matching.engine import LabelMode, LocalSteps, MatchingAttack, MatchingConfig, Start
from fedseal.attacks.matching.objectives import PartialMatching
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.schedules import Schedule
from fedseal.core.attack import ATTACKS
from fedseal.core.registry import Info

_PAPER = "Fan et al., USENIX Security 2025"


@ATTACKS.register(
    "fedleak",
    Info(
        "match the largest gradient entries, with gradients regularised by looking a step ahead",
        paper=_PAPER,
        threat="passive",
        needs=("batch_size",),
    ),
)
def fedleak(
    iterations: int = 10000,
    restarts: int = 1,
    lr: float = 1e-4,
    schedule: Schedule = "cosine",
    ratio: float = 0.5,
    scope: Literal["tensor", "global"] = "tensor",
    source: Literal["dummy", "observed"] = "dummy",
    l1: Literal["mean", "sum"] = "mean",
    l1_weight: float = 1.0,
    cosine_weight: float = 1.0,
    blend: float = 0.7,
    ahead: Literal["descent", "ascent"] = "descent",
    ahead_length: float = 1.0,
    ahead_selection: Literal["same", "anew"] = "same",
    tv: float = 1e-5,
    activation: float = 1e-4,
    start: Start = "uniform",
    labels: LabelMode = "fixed",
    local_steps: LocalSteps = "average",
    second_order: SecondOrder = "auto",
) -> MatchingAttack:
    """Configure the engine as Algorithm 1.

    Args:
        iterations: I; 10,000 in the paper.
        restarts: random starts.
        lr: eta; 1e-4 in the paper, too small for fewer iterations.
        schedule: the paper is silent, the artifact uses cosine.
        ratio: R, share of entries compared.
        scope: choose them per tensor (artifact) or over the whole gradient.
        source: by the dummy gradient's magnitude (artifact) or the observed one's.
        l1: mean per tensor (Eq. 8, artifact) or sum (Eq. 15).
        l1_weight: 0 for the ablation without L1.
        cosine_weight: 0 for the ablation without cosine.
        blend: lambda', weight of the gradient ahead.
        ahead: descent (App. D, artifact) or ascent (Eq. 13).
        ahead_length: k as a multiple of one Adam step, eta sqrt(numel).
        ahead_selection: compare the same entries ahead (Algorithm 1) or choose anew (artifact).
        tv: alpha.
        activation: beta, on the mean magnitude of every activation's output.
        start: U[0, 1].
        labels: fixed as inferred; `joint` optimises logits from there.
        local_steps: read a weight change as a mean gradient (Sec. 4.1) or unroll it.
        second_order: how second-order products are computed.
    """
    return MatchingAttack(
        MatchingConfig(
            objective=PartialMatching(ratio, scope, source, l1, l1_weight, cosine_weight),
            priors=Priors(tv=tv, activation=activation),
            optimiser=Adam(
                lr=lr,
                schedule=schedule,
                look_ahead=LookAhead(blend, ahead, ahead_length, fixed_selection=ahead_selection == "same")
                if blend > 0
                else None,
            ),
            iterations=iterations,
            restarts=restarts,
            start=start,
            labels=labels,
            local_steps=local_steps,
            second_order=second_order,
        )
    )


@ATTACKS.register(
    "fedleak-artifact",
    Info(
        "the released FedLeak: an untrained generator's weights fitted to the gradient by signed AdamW",
        paper=_PAPER,
        threat="passive",
        needs=("batch_size",),
    ),
)
def fedleak_artifact(
    iterations: int = 10000,
    restarts: int = 1,
    lr: float = 1e-2,
    channels: int = 256,
    ratio: float = 0.5,
    blend: float = 0.3,
    tv: float = 1e-5,
    weight_decay: float = 0.01,
    median: int = 5,
    local_steps: LocalSteps = "average",
    second_order: SecondOrder = "auto",
) -> MatchingAttack:
    """Configure the engine as the authors' released code."""
    return MatchingAttack(
        MatchingConfig(
            objective=PartialMatching(ratio),
            priors=Priors(tv=tv),
            optimiser=Adam(
                lr=lr,
                schedule="cosine",
                signed=True,
                weight_decay=weight_decay,
                look_ahead=LookAhead(blend, by_optimiser=True, fixed_selection=False),
            ),
            iterations=iterations,
            restarts=restarts,
            generator_channels=channels,
            median=median,
            local_steps=local_steps,
            second_order=second_order,
        )
    )
