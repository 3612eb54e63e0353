"""Labels behind logistic outputs: the identity g_b[k] = mean sigmoid(z_k) - mean y_k, for each output by itself.

Of one image a flag is 1 exactly where its gradient is negative. Of several images with one logit the identity gives
how many are positive; with class means p_1, p_0 of the sigmoid on public images, g = s p_1 + (1 - s) p_0 - s gives the
share s = (p_0 - g) / (1 + p_0 - p_1). Which image has which flag no such equation tells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.attacks.labels.guess import LabelGuess
from fedseal.attacks.labels.last_layer import LastLayer, last_layer
from fedseal.attacks.labels.probes import model_inputs, noise_inputs
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation

_PUBLIC = 512


def logistic_labels(observation: Observation, seed: int) -> LabelGuess:
    """Return flags [1, K] of one image, or classes [B] of several images with one logit."""
    layer = last_layer(observation, seed)
    outputs = layer.num_classes
    signal, notes = layer.class_signal()
    if observation.knowledge.loss_reduction == "mean":
        signal = signal * outputs  # a mean over images and outputs
    if layer.count == 1:
        flags = (signal < 0).float()[None]
        return LabelGuess(flags[:, 0].long() if outputs == 1 else flags, notes)
    if outputs > 1:
        raise CapabilityError(
            f"the gradient tells how many of {layer.count} images have each of {outputs} flags, not which.",
            hint="Set `attacker.labels` to `true` or `unknown`.",
        )
    if layer.bias_gradient is None:
        raise CapabilityError(
            "without a last bias, one logit does not tell how many labels are positive.",
            hint="Set `attacker.labels` to `true` or `unknown`.",
        )
    share = _share(observation, layer, float(signal), seed)
    positive = min(max(round(share * layer.count), 0), layer.count)
    return LabelGuess(torch.tensor([0] * (layer.count - positive) + [1] * positive), layer.notes)


def _share(observation: Observation, layer: LastLayer, gradient: float, seed: int) -> float:
    """Return the share of positive labels, by public images of both classes, or by noise."""
    public = observation.knowledge.auxiliary
    if public is not None and len(public):
        found = _sigmoid(layer, model_inputs(observation, public.inputs[:_PUBLIC]))
        positive = public.labels[:_PUBLIC].to(found.device).reshape(-1) > 0
        if bool(positive.any()) and not bool(positive.all()):
            on, off = float(found[positive].mean()), float(found[~positive].mean())
            return (off - gradient) / max(1 + off - on, 1e-6)
    return float(_sigmoid(layer, noise_inputs(observation, seed)).mean()) - gradient


def _sigmoid(layer: LastLayer, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([layer.model(part).double().sigmoid()[:, 0] for part in torch.split(inputs, 128)])
