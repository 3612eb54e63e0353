"""The Bayes attack (Balunović et al., ICLR 2022): maximise log p(update | image) + log p(image).

The likelihood is the defence's own noise law, known to a defence-aware attacker; a naive one assumes Gaussian noise of
a small scale. The prior is total variation, summed over pixels. Adam at 0.5 with exponential decay; the likelihood's
weight grows exponentially to 1 (ATTACKS.md 5). Threat model: passive server. Departures: one pass over the nominal
schedule instead of two.
"""

from __future__ import annotations

from functools import partial

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.derivatives import SecondOrder
from fedseal.attacks.matching.engine import LocalSteps, MatchingAttack, MatchingConfig, Start
from fedseal.attacks.matching.objectives import Likelihood
from fedseal.attacks.matching.priors import Priors
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import NoiseLaw
from fedseal.core.registry import Info


def _likelihood(assumed: NoiseLaw, law: NoiseLaw | None) -> Likelihood:
    return Likelihood(law or assumed)


@ATTACKS.register(
    "bayes",
    Info(
        "the most probable image under the defence's own noise law and a smoothness prior",
        paper="Balunović et al., ICLR 2022",
        threat="passive",
        needs=("batch_size",),
    ),
)
def bayes(
    iterations: int = 1000,
    restarts: int = 1,
    lr: float = 0.5,
    tv: float = 1.0,
    assumed_sigma: float = 1e-3,
    anneal: float = 1e-2,
    start: Start = "normal",
    local_steps: LocalSteps = "average",
    second_order: SecondOrder = "auto",
) -> MatchingAttack:
    """Configure the engine as the Bayes attack."""
    return MatchingAttack(
        MatchingConfig(
            objective=partial(_likelihood, NoiseLaw("gaussian", assumed_sigma)),
            priors=Priors(tv=tv, tv_per_pixel=True),
            optimiser=Adam(lr=lr, schedule="exponential", anneal=anneal),
            iterations=iterations,
            restarts=restarts,
            start=start,
            local_steps=local_steps,
            second_order=second_order,
        )
    )
