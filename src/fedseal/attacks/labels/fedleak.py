"""FedLeak's counting rule (Sec. 5.1, "Label inference").

With S_j the sum over features of the last weight's gradient for class j: if B <= C, the B classes of smallest S_j. Else
c_j = floor(B (S_j - max) / sum_j (S_j - max)), and what is missing goes to the class of smallest S_j. The paper prints
`max W` without saying over what. `column`, our default, reads the largest S_j, so that a class with the least evidence
gets no label; `element` reads the largest entry of the gradient for every term, which pulls all counts towards B / C.
"""

from __future__ import annotations

from typing import Literal

import torch

from fedseal.attacks.labels.guess import LabelGuess, guess_from_counts
from fedseal.attacks.labels.last_layer import last_layer
from fedseal.attacks.labels.rules import LABEL_RULES
from fedseal.attacks.labels.signs import smallest
from fedseal.core.observation import Observation
from fedseal.core.registry import Info

Reading = Literal["column", "element"]


_PAPER = "Fan et al., USENIX Security 2025"


@LABEL_RULES.register("fedleak-count", Info("counts in proportion to row sums, as FedLeak reads them", paper=_PAPER))
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


@LABEL_RULES.register("fedleak-count-element", Info("the same, its maximum read as the largest entry", paper=_PAPER))
def fedleak_count_element(observation: Observation, seed: int) -> LabelGuess:
    """Apply the rule with the other reading of its maximum."""
    return fedleak_count(observation, seed, "element")
