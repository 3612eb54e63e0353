"""Whether a received model's adapters are as new, which blocks gradients without malice.

Fresh adapters end in zeros, so that they change nothing at first, and no gradient reaches what is in front of the
zeros. A server could plant such zeros to suppress a client's gradient (Pasquini et al., CCS 2022), so little is excused
by them: every pair must be new at once, and the frozen body must carry the gradient past them to its own first layer.
What is left to a server is to set all adapters back; a client that saw them trained knows (`flower.detect`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch, Normalisation
from fedseal.detection.gradients import SampleNorms, sample_norms
from fedseal.models.structure import ExecutedLayer


def body_of_fresh(
    model: nn.Module, layers: Sequence[ExecutedLayer], trained: Sequence[ExecutedLayer]
) -> ExecutedLayer | None:
    """Return the layer at which the body of a model with fresh adapters begins, or None if it has none such.

    Adapters are fresh where all that is trained, but for the model's last layer, are pairs that end in zeros. The body
    begins with a frozen layer, in front of the first of them or beside it.

    Args:
        model: as received.
        layers: that were executed.
        trained: those of them with trained weights.
    """
    pairs = [layer for layer in trained if layer is not layers[-1]]
    empty = [not bool(model.get_parameter(layer.weight_name).any()) for layer in pairs]
    if not pairs or empty != [False, True] * (len(pairs) // 2):
        return None
    learning = {layer.name for layer in trained}
    frozen = [layer for layer in layers if layer.name not in learning and _has_matrix(layer.module)]
    start = [layer.name for layer in layers].index(pairs[0].name)
    before = {layer.name for layer in layers[:start]}
    return next((layer for layer in frozen if layer.name in before or _fed_alike(layer, pairs[0])), None)


def body_norms(model: nn.Module, batch: Batch, normalisation: Normalisation) -> SampleNorms:
    """Return the norms of samples' gradients in every weight, were the frozen ones trained too."""
    return sample_norms(copy.deepcopy(model).requires_grad_(), batch, normalisation)


def _has_matrix(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim > 1


def _fed_alike(layer: ExecutedLayer, other: ExecutedLayer) -> bool:
    return layer.inputs.shape == other.inputs.shape and torch.equal(layer.inputs, other.inputs)
