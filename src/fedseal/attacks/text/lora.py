"""`lora`: the words behind an update of LoRA adapters, where it has fewer of them than the adapters have ranks.

Equations: with W + B A, dL/dA = B' Σ δ x' has its rows in the span of the inputs x, dL/dB = Σ δ (A x)' in that of A x.
Threat model: honest but curious server; only adapters are sent, the embedding is not.
Departures: none; the law is ours: k adapters of rank r on one input leak the exact words of any update with fewer than
k r distinct tokens, in a first round, where B is zero, with fewer than r.
Cost: one pass of the first layer over the vocabulary.
Known breaks: more distinct tokens than k r in the local batch, or fewer adapted projections; what breaks `dager`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedseal.attacks.reading import image_count
from fedseal.attacks.text.dager import Ground, candidates, ground_of
from fedseal.attacks.text.reading import filled, labels_of
from fedseal.attacks.turns import in_turn
from fedseal.core.attack import Attack, Budget, Listener, register_attack
from fedseal.core.errors import CapabilityError
from fedseal.core.modality import TEXT
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info


@register_attack(
    "lora",
    Info(
        "the exact words behind an update of LoRA adapters, if they are fewer than the adapters' ranks",
        paper="Petrov et al., NeurIPS 2024, Sec. 6.4",
        threat="passive",
        needs=("batch_size",),
    ),
)
class Lora(Attack):
    """Tests every token against the span of the adapters' gradients."""

    takes = (TEXT,)
    any_loss = True

    def check(self, observation: Observation) -> None:
        """Refuse an update without adapters on a layer that is fed single tokens."""
        super().check(observation)
        _adapted(observation)

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Return the words of every update, as the claim for each of its texts."""
        return in_turn(self._read, observations, seeds, listener)

    def _read(self, observation: Observation, seed: int) -> Reconstruction:
        ground, count = _adapted(observation), image_count(observation)
        bag = [] if ground.first.blind else candidates(ground).bag
        words = [token for token in bag if token not in ground.tokeniser.special]
        sure = 0.0 if words else 1.0
        return Reconstruction(filled([words] * count, count), labels_of(observation, seed), sure, notes=(law(ground),))


def law(ground: Ground) -> str:
    """Return what the adapters of an update leak, in words."""
    test = ground.first
    verdict = (
        f"{test.rank} independent tokens are in this one: it says nothing"
        if test.blind
        else f"{test.rank} independent tokens are in this one: its words are read exactly"
    )
    return (
        f"{test.adapters} adapter(s) on one input leak the words of any update with fewer than {test.bound} distinct "
        f"tokens; {verdict}"
    )


def _adapted(observation: Observation) -> Ground:
    ground = ground_of(observation)
    if not ground.first.adapters:
        raise CapabilityError(
            "no LoRA adapter in front of the first attention sends its gradient.",
            hint="`dager` reads full gradients, `words` the embedding's.",
        )
    return ground
