"""The function an attack minimises, and its gradient, for many lanes at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn import functional as F

from fedseal.attacks.matching.objectives import OBJECTIVES, ObjectiveName
from fedseal.attacks.matching.priors import total_variation
from fedseal.core.defence import AttackerView
from fedseal.core.tensors import Tensors, flatten, unflatten


@dataclass(frozen=True)
class Lanes:
    """The constants of each lane.

    Attributes:
        observed: observed updates in gradient units, [L, N].
        labels: labels [L, B] the dummy images carry; None when they are optimised with the images.
    """

    observed: Tensor
    labels: Tensor | None

    def pick(self, indices: Tensor) -> Lanes:
        """Return some of the lanes."""
        return Lanes(self.observed[indices], None if self.labels is None else self.labels[indices])


class MatchingProblem:
    """Maps a lane's variable z [D] to objective(simulate(gradient(z)), observed) + priors.

    z holds the dummy inputs [B, C, H, W] of the model and, if labels are not known, label logits [B, classes].

    Args:
        model: the attacker's copy of the model.
        parameters: its trainable parameters.
        input_shape: B, C, H, W of a lane's dummy inputs.
        num_classes: number of logits.
        objective: name of the matching term.
        tv: weight of total variation.
        reduction: of the client's loss.
        soft_labels: whether z holds label logits.
        view: what a defence-aware attacker simulates; None for a naive one.
        scale: the update is `scale` times a gradient; views simulate on updates.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Tensors,
        *,
        input_shape: tuple[int, int, int, int],
        num_classes: int,
        objective: ObjectiveName,
        tv: float,
        reduction: Literal["mean", "sum"] = "mean",
        soft_labels: bool = False,
        view: AttackerView | None = None,
        scale: float = 1.0,
    ) -> None:
        self._model = model
        self._parameters = dict(parameters)
        self._shape = torch.Size(input_shape)
        self._num_classes = num_classes
        self._objective = OBJECTIVES[objective]
        self._tv = tv
        self._reduction = reduction
        self.soft_labels = soft_labels
        self._view = view
        self._scale = scale
        self._single = grad_and_value(self.value)
        self._many = vmap(self._single, in_dims=(0, 0, None if soft_labels else 0))

    @property
    def inputs_size(self) -> int:
        """Number of entries of z that are pixels."""
        return self._shape.numel()

    @property
    def size(self) -> int:
        """Number of entries of z."""
        return self.inputs_size + (self._shape[0] * self._num_classes if self.soft_labels else 0)

    def inputs(self, z: Tensor) -> Tensor:
        """Return the dummy inputs [..., B, C, H, W] in z [..., D]."""
        return z[..., : self.inputs_size].reshape(*z.shape[:-1], *self._shape)

    def labels(self, z: Tensor) -> Tensor:
        """Return the most likely labels [..., B] of the logits in z [..., D]."""
        return z[..., self.inputs_size :].reshape(*z.shape[:-1], self._shape[0], self._num_classes).argmax(-1)

    def gradient(self, z: Tensor, labels: Tensor | None) -> Tensors:
        """Return the model's gradient on one lane's dummy data; differentiable in z."""
        target: Tensor | None = labels
        if target is None:
            target = z[self.inputs_size :].view(self._shape[0], self._num_classes).softmax(1)

        def loss(parameters: Tensors, inputs: Tensor) -> Tensor:
            logits = functional_call(self._model, dict(parameters), (inputs,))
            return F.cross_entropy(logits, target, reduction=self._reduction)

        result: Tensors = grad(loss)(self._parameters, self.inputs(z))
        return result

    def value(self, z: Tensor, observed: Tensor, labels: Tensor | None) -> Tensor:
        """Return the objective of one lane."""
        dummy = self._simulate(self.gradient(z, labels), observed)
        total = self._objective(dummy, observed)
        if self._tv:
            total = total + self._tv * total_variation(self.inputs(z))
        return total

    def evaluate(self, z: Tensor, lanes: Lanes) -> tuple[Tensor, Tensor]:
        """Return the objectives [L] and their gradients [L, D] at z [L, D]."""
        if len(z) == 1:
            labels = None if lanes.labels is None else lanes.labels[0]
            gradient, value = self._single(z[0], lanes.observed[0], labels)
            return value.unsqueeze(0), gradient.unsqueeze(0)
        gradients, values = self._many(z, lanes.observed, lanes.labels)
        return values, gradients

    def _simulate(self, gradient: Tensors, observed: Tensor) -> Tensor:
        if self._view is None:
            return flatten(gradient)
        seen = unflatten(observed * self._scale, self._parameters)
        update = {name: tensor * self._scale for name, tensor in gradient.items()}
        return flatten(self._view.simulate(update, seen)) / self._scale


Evaluate = Callable[[Tensor, Lanes], tuple[Tensor, Tensor]]
