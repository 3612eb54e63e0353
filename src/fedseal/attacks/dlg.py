"""Deep Leakage from Gradients and two descendants: match the gradient itself, without a prior (ATTACKS.md 1).

`dlg` (Zhu et al. 2019) optimises images and label logits together by L-BFGS on the squared distance; `idlg` (Zhao et
al. 2020) reads the label first; `sapag` (Wang et al. 2020) replaces the distance by a Gaussian kernel that also works
on networks with kinks. Threat model: passive server. Departures: the authors run L-BFGS without a line search, which
diverges on many starts; ours searches along each direction, which changes how fast a minimum is reached, not which
function is minimised. SAPAG's optimiser is not documented; Adam is ours.
"""

from __future__ import annotations

from collections.abc import Callable

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.derivatives import SecondOrder
from fedseal.attacks.matching.engine import LabelMode, LocalSteps, MatchingAttack, MatchingConfig, Start
from fedseal.attacks.matching.lbfgs import LBFGS
from fedseal.attacks.matching.objectives import GaussianKernel, SquaredError
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.schedules import Schedule
from fedseal.core.attack import ATTACKS
from fedseal.core.registry import Info


def _deep_leakage(labels: LabelMode) -> Callable[..., MatchingAttack]:
    """Return what configures the engine as DLG (`free` labels) or iDLG (`fixed`); they differ in nothing else."""

    def configure(
        iterations: int = 300,
        restarts: int = 1,
        history: int = 50,
        start: Start = "normal",
        local_steps: LocalSteps = "average",
        second_order: SecondOrder = "exact",
    ) -> MatchingAttack:
        return MatchingAttack(
            MatchingConfig(
                objective=SquaredError(),
                priors=Priors(),
                optimiser=LBFGS(history=history),
                iterations=iterations,
                restarts=restarts,
                start=start,
                boxed=False,
                labels=labels,
                local_steps=local_steps,
                second_order=second_order,
            )
        )

    return configure


dlg = ATTACKS.register(
    "dlg",
    Info(
        "match the gradient exactly by L-BFGS, images and labels together",
        paper="Zhu et al., NeurIPS 2019",
        threat="passive",
        needs=("batch_size",),
    ),
)(_deep_leakage("free"))
idlg = ATTACKS.register(
    "idlg",
    Info(
        "match the gradient exactly by L-BFGS, label read beforehand",
        paper="Zhao et al., arXiv 2020",
        threat="passive",
        needs=("batch_size",),
    ),
)(_deep_leakage("fixed"))


@ATTACKS.register(
    "sapag",
    Info(
        "match the gradient through a Gaussian kernel per layer",
        paper="Wang et al., arXiv 2020",
        threat="passive",
        needs=("batch_size",),
    ),
)
def sapag(
    iterations: int = 1000,
    restarts: int = 1,
    lr: float = 0.05,
    tv: float = 0.0,
    schedule: Schedule = "cosine",
    start: Start = "normal",
    labels: LabelMode = "fixed",
    local_steps: LocalSteps = "average",
    second_order: SecondOrder = "auto",
) -> MatchingAttack:
    """Configure the engine with SAPAG's objective."""
    return MatchingAttack(
        MatchingConfig(
            objective=GaussianKernel(),
            priors=Priors(tv=tv),
            optimiser=Adam(lr=lr, schedule=schedule),
            iterations=iterations,
            restarts=restarts,
            start=start,
            labels=labels,
            local_steps=local_steps,
            second_order=second_order,
        )
    )
