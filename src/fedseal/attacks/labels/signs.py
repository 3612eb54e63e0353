"""Rules that read which rows of the last layer's gradient are negative: iDLG, the analytic rule and Yin's.

They name classes and cannot count: exact for one image, or for distinct labels. Zhao et al. 2020 (iDLG); Yin et al.,
CVPR 2021, Eq. 5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.attacks.labels.counts import spread
from fedseal.attacks.labels.guess import LabelGuess, guess_from_counts
from fedseal.attacks.labels.last_layer import last_layer
from fedseal.attacks.labels.rules import LABEL_RULES
from fedseal.attacks.reading import image_count
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation
from fedseal.core.registry import Info

REPEATED = "more images than classes: the rule assumes distinct labels, repeats are guessed from gradient sizes"


@LABEL_RULES.register(
    "idlg", Info("the one class with a negative gradient; a single image only", paper="Zhao et al., arXiv 2020")
)
def idlg(observation: Observation, seed: int) -> LabelGuess:
    """Return the one class whose gradient is negative, the label of a single image; exact with a bias."""
    if image_count(observation) != 1:
        raise CapabilityError(
            f"iDLG's rule reads one label, the update holds {image_count(observation)}.",
            hint="Use the rule `identity`.",
        )
    signal, notes = last_layer(observation, seed).class_signal()
    return LabelGuess(signal.argmin().reshape(1), notes)


@LABEL_RULES.register("analytic", Info("the classes with a negative bias gradient, as many as images"))
def analytic(observation: Observation, seed: int) -> LabelGuess:
    """Return the classes with a negative bias gradient; if they are not B, the B most negative ones."""
    layer = last_layer(observation, seed)
    signal, notes = layer.class_signal()
    negative = int((signal < 0).sum())
    if negative != layer.count and layer.count <= layer.num_classes:
        verb = "filled" if negative < layer.count else "cut"
        notes = (*notes, f"{negative} classes have a negative gradient, {verb} to {layer.count} by the most negative")
    return smallest(signal, layer.count, notes)


@LABEL_RULES.register(
    "yin", Info("the classes whose weight rows have the smallest minima", paper="Yin et al., CVPR 2021")
)
def yin(observation: Observation, seed: int) -> LabelGuess:
    """Return the B classes whose rows of the last weight's gradient have the smallest minima (features >= 0)."""
    layer = last_layer(observation, seed)
    return smallest(layer.weight_gradient.amin(1), layer.count, layer.notes)


def smallest(signal: Tensor, count: int, notes: tuple[str, ...]) -> LabelGuess:
    """Return the `count` classes with the smallest `signal` [C]; with more images than classes, repeats by size."""
    if count > len(signal):
        return guess_from_counts(spread(signal, count), (*notes, REPEATED))
    chosen = torch.zeros(len(signal), dtype=torch.long, device=signal.device)
    chosen[signal.argsort(stable=True)[:count]] = 1
    return guess_from_counts(chosen, notes)
