"""What SEER's decoder reads: fixed entries of weighted sums of per-sample gradients, differentiable in the weights.

A batch of B losses has B gradients; training needs three sums of them (the isolated sample alone, and two of the
others). `EntryReader` gets each sum by one backward pass through the losses, for many batches at once, each with batch
statistics of its own. `HeadReader` reads the last layer's weight only, whose per-sample gradient is
(softmax - label) x features in closed form: no second derivative is needed, and training is ten times faster.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, replace_all_batch_norm_modules_, vjp, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import Normalisation
from fedseal.core.errors import CapabilityError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.models.structure import output_layer

Selection: TypeAlias = Literal["entries", "head"]
"""`entries`: a random subset of every parameter, as in the authors' code; `head`: the last linear layer's weight."""


class GradientReader(ABC):
    """Reads sums of per-sample gradients of a model with given parameters.

    Args:
        model: its architecture; a copy is kept, in which batch normalisation uses batch statistics and keeps none.
        normalisation: between images and model.
    """

    def __init__(self, model: nn.Module, normalisation: Normalisation) -> None:
        self._model = copy.deepcopy(model).eval()
        for module in self._model.modules():
            if isinstance(module, _BatchNorm):
                module.train()
        replace_all_batch_norm_modules_(self._model)
        self._normalisation = normalisation

    @property
    @abstractmethod
    def size(self) -> int:
        """How many entries are read."""

    @abstractmethod
    def sums(self, parameters: Tensors, images: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return weighted sums of the gradients of each sample's loss.

        Args:
            parameters: the model's.
            images: M batches [M, B, C, H, W].
            labels: [M, B].
            weights: K sums per batch, [M, K, B].

        Returns:
            [M, K, size].
        """

    @abstractmethod
    def read(self, gradient: Tensors) -> Tensor:
        """Return the entries [size] of a whole gradient."""

    def _logits(self, parameters: Tensors, images: Tensor) -> Tensor:
        output: Tensor = functional_call(self._model, dict(parameters), (self._normalisation(images),))
        return output


class EntryReader(GradientReader):
    """A fixed random subset of every parameter's entries.

    Args:
        model, normalisation: as for `GradientReader`.
        indices: entries of each flattened parameter, by name.
    """

    def __init__(self, model: nn.Module, normalisation: Normalisation, indices: Mapping[str, Tensor]) -> None:
        super().__init__(model, normalisation)
        self._indices = dict(indices)

    @property
    def size(self) -> int:
        """How many entries are read."""
        return sum(len(chosen) for chosen in self._indices.values())

    def sums(self, parameters: Tensors, images: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the sums by one backward pass each, which can be differentiated again."""

        def one(x: Tensor, y: Tensor, combination: Tensor) -> Tensor:
            def losses(values: dict[str, Tensor]) -> Tensor:
                return F.cross_entropy(self._logits(values, x), y, reduction="none")

            pull = vjp(losses, dict(parameters))[1]
            (gradients,) = vmap(pull)(combination)
            parts = [gradients[name].flatten(1)[:, chosen] for name, chosen in self._indices.items()]
            return torch.cat(parts, 1)

        result: Tensor = vmap(one)(images, labels, weights)
        return result

    def read(self, gradient: Tensors) -> Tensor:
        """Return the entries [size] of a whole gradient."""
        return torch.cat([gradient[name].flatten()[chosen] for name, chosen in self._indices.items()])


class HeadReader(GradientReader):
    """The weight of the last linear layer, in closed form."""

    def __init__(self, model: nn.Module, normalisation: Normalisation, probe: Tensor, num_classes: int) -> None:
        super().__init__(model, normalisation)
        layer = output_layer(self._model, normalisation(probe), num_classes)
        if layer is None:
            raise CapabilityError(
                "SEER with `select=head` reads the last linear layer, and this model does not end in one.",
                hint="Use `select=entries`.",
            )
        assert isinstance(layer.module, nn.Linear)
        self._layer = layer.module
        self._name = layer.weight_name
        self._size = self._layer.weight.numel()

    @property
    def size(self) -> int:
        """How many entries are read."""
        return self._size

    def sums(self, parameters: Tensors, images: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the sums of (softmax - label) x features, for all batches at once."""

        def one(x: Tensor) -> tuple[Tensor, Tensor]:
            seen: list[Tensor] = []

            def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
                seen.append(inputs[0])

            handle = self._layer.register_forward_pre_hook(keep)
            try:
                return self._logits(parameters, x), seen[0]
            finally:
                handle.remove()

        logits, features = vmap(one)(images)
        slopes = logits.softmax(-1) - F.one_hot(labels, logits.shape[-1])
        return torch.einsum("mkb,mbc,mbf->mkcf", weights, slopes, features).flatten(2)

    def read(self, gradient: Tensors) -> Tensor:
        """Return the entries [size] of a whole gradient."""
        return gradient[self._name].flatten()


def choose_entries(parameters: Tensors, least: int, share: float, seed: int) -> dict[str, Tensor]:
    """Draw max(least, share of all) entries of every parameter, all of it if there are no more, by name."""
    chosen = {}
    for name, parameter in parameters.items():
        count = min(parameter.numel(), max(least, round(share * parameter.numel())))
        order = torch.randperm(parameter.numel(), generator=generator(seed, "seer-entries", name))
        chosen[name] = order[:count].sort().values.to(parameter.device)
    return chosen
