"""What the update says about the last layer, scaled to the gradient of the mean loss over all images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.attacks.labels.probes import noise_inputs
from fedseal.attacks.reading import attack_model, attack_parameters, estimated_gradient, image_count
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.core.observation import Observation
from fedseal.models.structure import ExecutedLayer, output_layer

NO_BIAS = "no last bias: row sums of the weight's gradient stand in, which needs non-negative features"
_NOTHING = 1e-3
_UNBALANCED = 0.05


@dataclass(frozen=True)
class LastLayer:
    """The last linear layer and its gradient.

    Attributes:
        model: to run probes through.
        count: images behind the update.
        weight: [C, D].
        bias: [C], zeros if there is none.
        weight_gradient: [C, D], of the mean loss.
        bias_gradient: [C], likewise; None if the layer has no bias, or the update does not hold it.
        notes: what is odd about this gradient, whichever rule reads it.
    """

    model: nn.Module
    count: int
    weight: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor | None
    notes: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.weight)

    def class_signal(self) -> tuple[Tensor, tuple[str, ...]]:
        """Return one number per class [C], more negative the more labels of it there are, and notes on its origin.

        The bias gradient, or without a bias the row sums of the weight's, which have its sign for features >= 0.
        """
        if self.bias_gradient is not None:
            return self.bias_gradient, self.notes
        return self.weight_gradient.sum(1), (*self.notes, NO_BIAS)


def last_layer(observation: Observation, seed: int = 0) -> LastLayer:
    """Find the last layer by running the model on noise, and return it with its gradient, in double precision."""
    model = attack_model(observation)
    knowledge = observation.knowledge
    layer = _found(model, observation, seed)
    gradient = estimated_gradient(observation)
    count = image_count(observation)
    scale = 1.0 if knowledge.loss_reduction == "mean" else 1.0 / _images_per_step(observation, count)
    weight_gradient = gradient[layer.weight_name].double() * scale
    bias_gradient = _optional(gradient.get(layer.bias_name or ""), scale)
    weight = attack_parameters(observation)[layer.weight_name].double()
    return LastLayer(
        model,
        count,
        weight,
        _bias(layer, weight),
        weight_gradient,
        bias_gradient,
        _oddities(weight_gradient, bias_gradient, count) if len(weight) > 1 and knowledge.loss == CROSS_ENTROPY else (),
    )


def output_names(observation: Observation, seed: int = 0) -> tuple[str, str | None]:
    """Return the names of the last layer's weight and bias, the latter if the update holds it."""
    layer = _found(attack_model(observation), observation, seed)
    assert layer.weight_name is not None
    return layer.weight_name, layer.bias_name if layer.bias_name in observation.update.tensors else None


def _found(model: nn.Module, observation: Observation, seed: int) -> ExecutedLayer:
    """Return the last layer, or refuse a model that has none which the update tells of."""
    layer = output_layer(model, noise_inputs(observation, seed, 2), observation.knowledge.num_classes)
    if layer is None or layer.weight_name not in observation.update.tensors:
        raise CapabilityError(
            "labels cannot be inferred: the model does not end in a trained linear layer with one output per class.",
            hint="Set `attacker.labels` to `unknown` or `true` in the scenario.",
        )
    return layer


def _images_per_step(observation: Observation, count: int) -> float:
    """Return how many images a summed loss adds up: an update over T steps is scaled to their mean gradient."""
    if observation.update.kind == "gradient":
        return count
    return count / (observation.knowledge.local_steps or 1)


def _bias(layer: ExecutedLayer, weight: Tensor) -> Tensor:
    bias = getattr(layer.module, "bias", None)
    return weight.new_zeros(len(weight)) if bias is None else bias.detach().to(weight)


def _optional(tensor: Tensor | None, scale: float) -> Tensor | None:
    return None if tensor is None else tensor.double() * scale


def _oddities(weight_gradient: Tensor, bias_gradient: Tensor | None, count: int) -> tuple[str, ...]:
    """Return what no gradient of a mean cross-entropy would show.

    Softmax minus one-hot sums to zero over classes, and each of the two has mass 1.
    """
    rows = weight_gradient if bias_gradient is None else torch.cat([weight_gradient, bias_gradient[:, None]], 1)
    notes = []
    signal = rows if bias_gradient is None else bias_gradient
    if float(signal.abs().max()) < _NOTHING / count:
        notes.append("the last layer's gradient is almost zero: labels are uncertain")
    elif float(rows.sum(0).norm()) > _UNBALANCED * float(rows.norm()):
        notes.append("the last layer's gradient does not sum to zero over classes: noise, pruning or another loss")
    if bias_gradient is not None and float(bias_gradient.abs().sum()) > 2 * (1 + _UNBALANCED):
        notes.append("the last bias' gradient is larger than any mean cross-entropy's: its scale is unknown")
    return tuple(notes)
