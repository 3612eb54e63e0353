"""Whether a network that lets no gradient pass died in training, or was killed.

Units of a ReLU network die when a step of training pushes them below zero on every input. Training moves weights and
biases together, so a layer that died keeps weights of ordinary size. A layer that was killed to suppress gradients
(Pasquini et al., CCS 2022) has none, or such as its biases outweigh: it is silent whatever comes in. A server that
forges the weights of a layer that died is not told from one that trains badly.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedseal.models.structure import ExecutedLayer

OUTWEIGHED = 1.0
"""Biases of a killed layer exceed the norms of its units' weights by this factor, in the median.

Of `lenet-relu` trained on digits and faces at learning rates of 0.05 to 0.5, layers that died had 0.19 at most; layers
that `suppression` killed have no weights, and 4.7 or more with noise of 0.3.
"""


def died_at(layers: Sequence[ExecutedLayer]) -> str | None:
    """Return the layer a network died at: the first that is silent, unless it was killed.

    Args:
        layers: of a network that blocks its gradient, as executed on the client's batch.
    """
    silent = next((layer for layer in layers[:-1] if bool((layer.outputs <= 0).all())), None)
    if silent is None or not isinstance(silent.module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return None
    return silent.name if outweighed(silent.module.weight, silent.module.bias) <= OUTWEIGHED else None


def outweighed(weight: Tensor, bias: Tensor | None) -> float:
    """Return the median over units of the bias's size over the norm of the unit's weights; infinite without weights."""
    norms = weight.detach().flatten(1).double().norm(dim=1)
    if not bool(norms.any()):
        return float("inf")
    if bias is None:
        return 0.0
    return float((bias.detach().double().abs() / norms.clamp(min=1e-300)).median())
