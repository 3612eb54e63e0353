"""What every attacker of text does first: the tokeniser, the labels, and answers of one form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedseal.attacks.labels import infer_labels
from fedseal.attacks.reading import image_count
from fedseal.core.errors import CapabilityError, FedsealError
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.core.observation import Observation
from fedseal.core.tokeniser import FILLER, Tokeniser


def tokeniser_of(observation: Observation) -> Tokeniser:
    """Return the tokeniser, which is public with the model."""
    found = observation.knowledge.encoding
    if not isinstance(found, Tokeniser):
        raise CapabilityError("text is attacked with its tokeniser, and none is known.", hint="Attack data of text.")
    return found


def labels_of(observation: Observation, seed: int) -> Tensor:
    """Return the labels, given or inferred; zeros where the loss has none or nobody can tell."""
    knowledge, count = observation.knowledge, image_count(observation)
    if knowledge.labels is not None:
        return knowledge.labels.cpu()
    if knowledge.loss != CROSS_ENTROPY:
        return torch.zeros(count, dtype=torch.long)
    try:
        return infer_labels(observation, seed).labels.cpu()
    except FedsealError:
        return torch.zeros(count, dtype=torch.long)


def filled(texts: Sequence[Sequence[int]], count: int) -> Tensor:
    """Return `count` texts as ids [count, longest], the filler behind short ones and for missing ones."""
    longest = max([1, *(len(text) for text in texts)])
    ids = torch.full((count, longest), FILLER)
    for place, text in enumerate(texts[:count]):
        ids[place, : len(text)] = torch.tensor(list(text), dtype=torch.long)
    return ids
