"""Passes of the client's own loss on other inputs and at other weights, which leave no trace in the model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from fedseal.core.batch import Batch
from fedseal.core.defence import RoundContext
from fedseal.core.tensors import Tensors, check_finite
from fedseal.federation.client import client_randomness


class ClientPasses:
    """The loss of one local step as a function of weights and images.

    Dropout draws as it will in the client's own pass, running statistics stay as they are, and half precision is raised
    to single.

    Args:
        context: of the step.
        batch: of the step.
    """

    bounds: tuple[float, float] = (0.0, 1.0)
    """Between which what is refined stays."""

    def __init__(self, context: RoundContext, batch: Batch) -> None:
        self._context = context
        self._batch = batch
        self.parameters = {
            name: _precise(p.detach()) for name, p in context.model.named_parameters() if p.requires_grad
        }
        self._rest = {
            name: _precise(value.detach())
            for name, value in (*context.model.named_parameters(), *context.model.named_buffers())
            if name not in self.parameters
        }

    @property
    def private(self) -> Tensor:
        """The private images [B, C, H, W] in the precision of the passes."""
        return _precise(self._batch.images.detach())

    def blended(self, alpha: float, source: torch.Generator) -> Tensor:
        """Return where a refinement starts: private images with a share of noise."""
        return blend(self.private, alpha, source)

    def loss(self, parameters: Tensors, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the client's loss at `parameters` on images [B, C, H, W], with other labels if given."""
        state = dict(parameters) | {name: value.clone() for name, value in self._rest.items()}

        def bound(inputs: Tensor) -> Tensor:
            output: Tensor = functional_call(self._context.model, state, (inputs,))
            return output

        with client_randomness(self._context):
            return self._context.loss(bound, Batch(images, self._batch.labels if labels is None else labels))

    def gradient(self, images: Tensor) -> dict[str, Tensor]:
        """Return the gradient on images by name, zero where a parameter has no part in the loss."""
        parameters = self.variables()
        values = torch.autograd.grad(self.loss(parameters, images), list(parameters.values()), allow_unused=True)
        gradient = {
            name: torch.zeros_like(p) if value is None else value
            for (name, p), value in zip(parameters.items(), values, strict=True)
        }
        check_finite(gradient, "client gradient")
        return gradient

    def variables(self) -> dict[str, Tensor]:
        """Return the parameters as leaves to differentiate by."""
        return {name: p.detach().requires_grad_() for name, p in self.parameters.items()}


def blend(images: Tensor, alpha: float, source: torch.Generator) -> Tensor:
    """Return the noise-blended start (1 - alpha) x + alpha v, v uniform in [0, 1] (Sec. 3.4)."""
    if alpha == 0:
        return images
    noise = torch.rand(images.shape, generator=source, device=source.device).to(images)
    return torch.lerp(images, noise, alpha)


def _precise(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
