"""The Bayes attack (Balunović et al., ICLR 2022): maximise log p(update | image) + log p(image).

The likelihood is the defence's own noise law, known to a defence-aware attacker; a naive one assumes Gaussian noise of
a small scale. The prior is total variation, summed over pixels. Adam at 0.5 with exponential decay; the likelihood's
weight grows exponentially to 1. Threat model: passive server. Departures: one pass over the nominal
schedule instead of two.

Equations: with z the dummy image and s the noise's scale, minimise w(i) |g(z) - u|^2 / (2 s^2) + tv TV(z) under
Gaussian noise, and w(i) |g(z) - u|_1 / s under Laplace's; w(i) grows to 1.

Cost: one second-order pass per step and restart, as every matching attack.

Known breaks: where the law of the noise is unknown or wrong it is an ordinary squared distance; noise that swamps the
gradient leaves the prior alone. It is no better than cosine matching where nothing was added.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.descent import Descent
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.objectives import Likelihood
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.recipe import Recipe, Start
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import NoiseLaw
from fedseal.core.registry import Info


@ATTACKS.register(
    "bayes",
    Info(
        "the most probable image under the defence's own noise law and a smoothness prior",
        paper="Balunović et al., ICLR 2022",
        threat="passive",
        needs=("batch_size",),
    ),
)
@dataclass(frozen=True)
class Bayes(MatchingAttack):
    """The Bayes attack.

    Attributes:
        lr: learning rate, with exponential decay.
        tv: weight of total variation, summed over pixels.
        assumed_sigma: of the Gaussian noise a naive attacker assumes.
        anneal: first weight of the likelihood.
        start: of the dummy inputs.
    """

    lr: float = 0.5
    tv: float = 1.0
    assumed_sigma: float = 1e-3
    anneal: float = 1e-2
    start: Start = "normal"

    def recipe(self) -> Recipe:
        """Maximise likelihood times prior by Adam, the likelihood's weight growing."""
        descent = Descent(Adam(), lr=self.lr, schedule="exponential", anneal=self.anneal)
        return Recipe(self._likelihood, descent, Priors(tv=self.tv, tv_per_pixel=True), start=self.start)

    def _likelihood(self, law: NoiseLaw | None) -> Likelihood:
        return Likelihood(law or NoiseLaw("gaussian", self.assumed_sigma))
