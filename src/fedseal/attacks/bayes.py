"""The Bayes attack (Balunović et al., ICLR 2022): maximise log p(update | image) + log p(image).

The likelihood is the defence's own noise law, known to a defence-aware attacker; a naive one assumes Gaussian noise of
a small scale. Quantisers have the law of their rounding, tensor by tensor; where entries were withheld by their size,
magnitudes that would have been sent contradict that. The prior is total variation, summed over pixels. Adam at 0.5
with exponential decay; the likelihood's weight grows exponentially to 1, from a start proportional to the noise's
variance as in the authors' code. Threat model: passive server. Departures: one pass over the nominal schedule instead
of two.

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
from fedseal.core.defence import AttackerView, NoiseLaw
from fedseal.core.ranges import Rate, Weight
from fedseal.core.registry import Info
from fedseal.core.tensors import flatten


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
        anneal: first weight of the likelihood, per variance of the noise: the search begins with the same weights on
            update and prior however much noise there is; at most 1.
        start: of the dummy inputs.
    """

    lr: Rate = 0.5
    tv: Weight = 1.0
    assumed_sigma: float = 1e-3
    anneal: float = 1e4
    start: Start = "normal"

    def recipe(self) -> Recipe:
        """Maximise likelihood times prior by Adam, the likelihood's weight growing."""
        return Recipe(
            self._likelihood,
            Descent(Adam(), lr=self.lr, schedule="exponential"),
            anneal=lambda view: min(1.0, self.anneal * self._law(view).variance),
            priors=Priors(tv=self.tv, tv_per_pixel=True),
            start=self.start,
        )

    def _law(self, view: AttackerView | None) -> NoiseLaw:
        known = None if view is None else view.noise
        return known or NoiseLaw("gaussian", self.assumed_sigma)

    def _likelihood(self, view: AttackerView | None) -> Likelihood:
        if view is None:
            return Likelihood(self._law(view))
        variances = None if view.variances is None else flatten(view.variances)
        return Likelihood(self._law(view), view.rounding, view.mask, variances)
