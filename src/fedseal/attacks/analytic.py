"""Closed-form inversion of a first linear layer (Phong et al. 2018).

For y = W x + b the gradients obey dW = db x^T, so for one image x = dW[i] / db[i] for every neuron i that fired; over
all neurons the least-squares solution x = db^T dW / |db|^2 is exact and averages noise away. For several images a row
is exact where its neuron fired for a single one; `rows` finds those. A defence-aware attacker leaves withheld entries
out of the sums. Threat model: passive server.

Cost: one division per neuron, nothing is optimised.

Known breaks: needs a first layer that is linear on the whole image; of several images only those come out for which
some neuron fired alone. Noise is averaged over neurons, pruning leaves fewer of them, and a convolution in front stops
it altogether.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedseal.attacks.labels import inferred_or_none
from fedseal.attacks.reading import (
    attack_model,
    attack_parameters,
    estimated_gradient,
    image_count,
    input_normalisation,
)
from fedseal.attacks.row_quotients import pick_images
from fedseal.attacks.turns import in_turn
from fedseal.core.attack import ATTACKS, Attack, Budget, Listener
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.modality import IMAGE, TABLE
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.models.structure import ExecutedLayer, input_linear_layer


@ATTACKS.register(
    "first-layer",
    Info(
        "exact inversion of a linear first layer",
        paper="Phong et al., TIFS 2018",
        threat="passive",
        needs=("batch_size",),
    ),
)
class FirstLayerInversion(Attack):
    """Reads images off the gradient of a linear first layer."""

    any_loss: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = (IMAGE, TABLE)

    def check(self, observation: Observation) -> None:
        """Refuse models whose first layer is not linear on the whole image."""
        super().check(observation)
        self._layer(observation)

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack each observation in closed form."""
        return in_turn(self._invert, observations, seeds, listener)

    def _layer(self, observation: Observation) -> ExecutedLayer:
        like = next(iter(attack_parameters(observation).values()))
        probe = torch.linspace(0, 1, 2 * int(torch.tensor(observation.knowledge.input_shape).prod())).to(like)
        layer = input_linear_layer(attack_model(observation), probe.view(2, *observation.knowledge.input_shape))
        if layer is None:
            raise CapabilityError(
                "first-layer needs a model whose first layer is linear, with a bias, on the whole image.",
                hint="Convolutional models are attacked by the matching attacks, such as `ig`.",
            )
        return layer

    def _invert(self, observation: Observation, seed: int) -> Reconstruction:
        start = time.perf_counter()
        layer = self._layer(observation)
        assert layer.bias_name is not None
        gradient = estimated_gradient(observation)
        rows, bias = gradient[layer.weight_name], gradient[layer.bias_name]
        count = image_count(observation)
        guess = inferred_or_none(observation, seed)
        normalisation = input_normalisation(observation)
        agreed = 0
        if count == 1:
            mask = rows != 0 if observation.knowledge.defence is not None else torch.ones_like(rows, dtype=torch.bool)
            inputs = _least_squares(rows, bias, mask).unsqueeze(0)
        else:
            shape = (1, *observation.knowledge.input_shape)
            low, high = (normalisation(rows.new_full(shape, value)).flatten() for value in (0.0, 1.0))
            sent = attack_parameters(observation)
            fires_where_positive = bool((bias == 0).any())  # as behind ReLU, where silent neurons have no gradient
            known = (sent[layer.weight_name], sent[layer.bias_name]) if fires_where_positive else None
            found, agreed = pick_images(rows, bias, count, low, high, known)
            inputs = torch.cat([found, ((low + high) / 2).expand(count - len(found), -1)])
        if not bool(torch.isfinite(inputs).all()):
            raise InputError(
                "the first layer's update has entries too large to divide.", hint="Check what the client sent."
            )
        images = normalisation.undo(inputs.view(count, *observation.knowledge.input_shape)).clamp(0, 1)
        residual = (rows - torch.outer(bias, inputs[0])).norm() / rows.norm().clamp(min=1e-30)
        certain = f"{agreed} of {count} images were read off by several neurons alike; other rows may be mixtures"
        notes = guess.notes if count == 1 else (*guess.notes, certain)
        return Reconstruction(images, guess.labels, float(residual), seconds=time.perf_counter() - start, notes=notes)


def _least_squares(rows: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Solve rows = bias x^T for x [D] in least squares over the entries in `mask`."""
    weights = bias.unsqueeze(1) * mask
    return (weights * rows).sum(0) / weights.square().sum(0).clamp(min=1e-30)
