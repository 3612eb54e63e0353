"""The utility metric UM(x*, x): the weighted squared distance of two gradients (Sec. 3.2, Eq. 3 and 4).

w = |g theta| tau^i for the parameters of the i-th module that has any, counted from the input. Eq. 4 adds layers of
unequal shape inside one norm; as its text has it, UM = sum w (g* - g)^2 here, and `inside` squares the weights too.

Its gradient by x* is d/dx <grad_w L, v> with v = 2 w (g* - g), a second-order product. By finite differences of
first-order gradients it costs two passes, (grad_x L(w + h v) - grad_x L(w)) / h with kinks frozen; exactly, three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import grad, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.errors import CapabilityError
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.defences.refiner.passes import ClientPasses
from fedseal.models.kinks import FrozenKinks

SecondOrder: TypeAlias = Literal["finite-difference", "exact"]

_STEP = 1e-4
"""h |v| / |w|; at this step one side agrees with the exact derivative to half a percent, in single precision too."""

_CHUNK = 32


@dataclass(frozen=True)
class Judged:
    """UM at one point.

    Attributes:
        value: of UM; its mean over samples where each is judged by itself.
        slope: of the sum that a step of each image descends, [B, C, H, W]: independent of how many images there are.
        gap: |g* - g|, of the batch gradients.
    """

    value: Tensor
    slope: Tensor
    gap: Tensor


def layer_factors(names: Iterable[str], tau: float) -> dict[str, float]:
    """Return tau^i for each parameter, i the number of its module among those with parameters, from the input side."""
    order: dict[str, int] = {}
    return {name: tau ** order.setdefault(name.rpartition(".")[0], len(order) + 1) for name in names}


def public_scale(parameters: Tensors, factors: Mapping[str, float], *, elements: bool = True) -> Tensor:
    """Return |theta| tau^i as a vector [N], or tau^i alone without `elements`: what a server knows of the weights."""
    return torch.cat(
        [(p.abs() if elements else torch.ones_like(p)).flatten() * factors[n] for n, p in parameters.items()]
    )


@dataclass(frozen=True)
class Weighting:
    """The weights w of the squared differences.

    Attributes:
        scale: the public part, [N]; see `public_scale`.
        elements: weigh each element by |g theta|; without, only the layers' weights are left (Table 10).
        inside: square the weights, as they stand inside the norm of Eq. 4.
    """

    scale: Tensor
    elements: bool = True
    inside: bool = False

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return w for a gradient [N]."""
        weights = self.scale * gradient.abs() if self.elements else self.scale
        return weights.square() if self.inside else weights


class BatchUtility:
    """UM of a whole batch, refined jointly.

    Args:
        passes: of the client's loss.
        true: g, the gradient on the private images.
        weighting: gives the weights.
        second_order: how its gradient is computed.
    """

    def __init__(self, passes: ClientPasses, true: Tensors, weighting: Weighting, second_order: SecondOrder) -> None:
        self._passes = passes
        self._true = flatten(true)
        self._weights = weighting(self._true)
        self._exact = second_order == "exact"
        self._norm = flatten(passes.parameters).norm()

    def __call__(self, images: Tensor) -> Judged:
        """PrivacyJudge images [B, C, H, W]; the slope is B times that of UM, whose share of one image falls with B."""
        return self._by_double_backward(images) if self._exact else self._by_difference(images)

    def _by_double_backward(self, images: Tensor) -> Judged:
        x = images.detach().requires_grad_()
        variables = self._passes.variables()
        loss = self._passes.loss(variables, x)
        values = torch.autograd.grad(loss, list(variables.values()), create_graph=True, materialize_grads=True)
        difference = torch.cat([value.reshape(-1) for value in values]) - self._true
        value = (self._weights * difference.square()).sum()
        (slope,) = torch.autograd.grad(value, x)
        return Judged(value.detach(), slope * len(images), difference.detach().norm())

    def _by_difference(self, images: Tensor) -> Judged:
        x = images.detach().requires_grad_()
        variables = self._passes.variables()
        kinks = FrozenKinks()
        with kinks:
            loss = self._passes.loss(variables, x)
        *values, here = torch.autograd.grad(loss, [*variables.values(), x], materialize_grads=True)
        difference = torch.cat([value.reshape(-1) for value in values]) - self._true
        weighted = self._weights * difference
        h = _STEP * self._norm / (2 * weighted).norm().clamp(min=1e-30)
        along = unflatten(weighted * (2 * h), self._passes.parameters)
        kinks.rewind()
        with kinks:
            ahead = self._passes.loss({name: p + along[name] for name, p in self._passes.parameters.items()}, x)
        (there,) = torch.autograd.grad(ahead, x)
        return Judged(torch.dot(weighted, difference), (there - here) * (len(images) / h), difference.norm())


class SampleUtility:
    """UM of each image against its own gradient, vectorised; the upload is still the mean.

    Args:
        passes: of the client's loss.
        images: the private ones, [B, C, H, W].
        labels: theirs, [B].
        weighting: gives the weights.
        model: the client's, which must not use statistics of the batch.
    """

    def __init__(
        self, passes: ClientPasses, images: Tensor, labels: Tensor, weighting: Weighting, model: nn.Module
    ) -> None:
        if any(isinstance(module, _BatchNorm) and module.training for module in model.modules()):
            raise CapabilityError(
                "refiner:scope=sample needs per-sample gradients, which batch statistics do not have.",
                hint="Use scope=batch, or batch normalisation in eval mode.",
            )
        self._passes = passes
        self._labels = labels

        def gradient(image: Tensor, label: Tensor) -> Tensor:
            return flatten(grad(self._loss)(passes.parameters, image, label))

        def judge(image: Tensor, label: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
            difference = gradient(image, label) - true
            return (weighting(true) * difference.square()).sum(), difference

        self._judge = vmap(grad_and_value(judge, has_aux=True), chunk_size=_CHUNK, randomness="same")
        self._true: Tensor = vmap(gradient, chunk_size=_CHUNK, randomness="same")(images, labels)

    def __call__(self, images: Tensor) -> Judged:
        """PrivacyJudge images [B, C, H, W], each by itself."""
        slopes, (values, differences) = self._judge(images, self._labels, self._true)
        return Judged(values.mean().detach(), slopes.detach(), differences.mean(0).norm().detach())

    def _loss(self, parameters: Tensors, image: Tensor, label: Tensor) -> Tensor:
        return self._passes.loss(parameters, image[None], label[None])
