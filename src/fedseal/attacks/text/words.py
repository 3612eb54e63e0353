"""`words`: the words of a batch, read off the gradient of a trained embedding.

Row v of an untied embedding's gradient is the sum over the places where token v stood, so it is zero for every token
that did not occur and, but for accidents, for no other. That is the exact bag of words of any update, whatever the
batch size, without any search; whoever audits text looks there first.

Equations: the gradient of row v is the sum over places i with token v of dL/dx_i; the bag is {v : row v is not zero}.
Under noise rows do not vanish: those beyond the largest gap of the sorted row norms are taken.
Threat model: honest but curious server; needs the update to hold the embedding's gradient.
Departures: none; stated as a fact by FILM (Gupta et al., NeurIPS 2022) and LAMP (Balunovic et al., NeurIPS 2022).
Cost: one norm per row.
Known breaks: an embedding that is frozen or withheld; noise on every entry; a head tied to the embedding, whose own
gradient fills all rows (used words still stand out, which is said). How often a word occurred, and in which text and
at which place, is not told.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedseal.attacks.reading import attack_model, estimated_gradient, image_count
from fedseal.attacks.spectrum import before_gap
from fedseal.attacks.text.reading import filled, labels_of, tokeniser_of
from fedseal.attacks.turns import in_turn
from fedseal.core.attack import Attack, Budget, Listener, register_attack
from fedseal.core.errors import CapabilityError
from fedseal.core.modality import TEXT
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.models.text.access import word_table


@register_attack(
    "words",
    Info(
        "the exact bag of words of any batch, from the gradient of a trained embedding",
        paper="Gupta et al., NeurIPS 2022",
        threat="passive",
        needs=("batch_size",),
    ),
)
class Words(Attack):
    """Reads the rows that are not zero."""

    takes = (TEXT,)
    any_loss = True

    def check(self, observation: Observation) -> None:
        """Refuse an update without the embedding's gradient."""
        super().check(observation)
        _rows(observation)

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Return the bag of every update, as the claim for each of its texts."""
        return in_turn(self._read, observations, seeds, listener)

    def _read(self, observation: Observation, seed: int) -> Reconstruction:
        count, special = image_count(observation), tokeniser_of(observation).special
        bag, exact = bag_of(_rows(observation))
        words = [token for token in bag if token not in special]
        how = "exactly these words occurred" if exact else "rows do not vanish, or all do; these stand out"
        note = f"{len(words)} words read off the embedding's gradient: {how}, in whatever order and number"
        labels, sure = labels_of(observation, seed), 0.0 if exact else 0.5
        return Reconstruction(filled([words] * count, count), labels, sure, notes=(note,))


def bag_of(rows: Tensor) -> tuple[list[int], bool]:
    """Return the tokens whose gradient rows [V, D] stand out, and whether all others are exactly zero."""
    norms = rows.double().norm(dim=1)
    used = torch.nonzero(norms).flatten()
    if len(used) < len(norms):
        return used.tolist(), len(used) > 0  # without any row nothing was sent
    order = norms.argsort(descending=True)
    count, _ = before_gap(norms[order], 0.0, later=True)
    return sorted(order[:count].tolist()), False


def _rows(observation: Observation) -> Tensor:
    table = word_table(attack_model(observation), tokeniser_of(observation).size)
    if table.name not in observation.update.tensors:
        raise CapabilityError(
            f"words are read off the gradient of {table.name}, which clients do not send.",
            hint="`dager` reads the attention's gradients instead.",
        )
    return estimated_gradient(observation)[table.name]
