"""FedLeak's counting rule (Sec. 5.1, "Label inference").

With S_j the sum over features of the last weight's gradient for class j: if B <= C, the B classes of smallest S_j. Else
c_j = floor(B (S_j - max) / sum_j (S_j - max)), and what is missing goes to the class of smallest S_j. The paper prints
`max W` without saying over what. `column`, our default, reads the largest S_j, so that a class with the least evidence
gets no label; `element` reads the largest entry of the gradient for every term, which pulls all counts towards B / C.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch

from fedseal.attacks.labels.guess import LabelGuess, guess_from_counts
from fedseal.attacks.labels.last_layer import last_layer
from fedseal.attacks.labels.signs import smallest
from fedseal.core.observation import Observation

Reading = Literal["column", "element"]


def fedleak_count(observation: Observation, seed: int, reading: Reading = "column") -> LabelGuess:
    """Apply the rule with one of the two readings of its maximum."""
    layer = last_layer(observation, seed)
    sums = layer.weight_gradient.sum(1)
    if layer.count <= layer.num_classes:
        return smallest(sums, layer.count, layer.notes)
    features = layer.weight_gradient.shape[1]
    top = sums.max() if reading == "column" else layer.weight_gradient.max() * features
    strength = sums - top
    total = float(strength.sum())
    notes = (*layer.notes, f"FedLeak's rule only approximates counts; its maximum is read as the largest {reading}")
    share = strength / total if total < 0 else torch.full_like(strength, 1 / len(strength))
    counts = (layer.count * share).floor().long()
    counts[sums.argmin()] += layer.count - int(counts.sum())
    return guess_from_counts(counts, notes)


fedleak_count_element = partial(fedleak_count, reading="element")
