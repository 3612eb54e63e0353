"""How strongly gradients follow the inputs: what defences of the most telling parameters measure first."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.defence import RoundContext
from fedseal.core.errors import CapabilityError
from fedseal.core.tensors import Tensors, unflatten


@contextmanager
def differentiated_twice(name: str) -> Iterator[None]:
    """Turn what torch says of a model without second derivatives into a sentence about the defence of that name."""
    try:
        yield
    except RuntimeError as error:
        raise CapabilityError(
            f"{name} needs a model that can be differentiated twice: {str(error).strip().splitlines()[0]}",
            hint="Use a model of differentiable operations (no fused attention).",
        ) from error


def row_norms(batch: Batch, context: RoundContext, probes: int, like: Tensors, name: str) -> Tensors:
    """Return |dg_i / dx| of every entry g_i of a batch's gradient, over all its inputs x, by parameter name.

    Args:
        batch: whose gradient it is.
        context: of the round, with the model and the loss.
        probes: random directions v of which the root mean square of (J v)_i is taken; 0 for all inputs one by one,
            which is exact.
        like: the update, whose names and shapes the result has.
        name: of the defence, for messages.
    """
    model = copy.deepcopy(context.model).float()
    inputs = batch.numbers.detach().float().requires_grad_()
    trained = dict(model.named_parameters())
    with differentiated_twice(name):
        loss = context.loss(model, replace(batch, inputs=inputs))
        found = torch.autograd.grad(
            loss, [trained[key] for key in like], create_graph=True, allow_unused=True, materialize_grads=True
        )
        gradient = torch.cat([part.reshape(-1) for part in found])
        weights = torch.zeros_like(gradient, requires_grad=True)
        (pulled,) = torch.autograd.grad(gradient, inputs, weights, create_graph=True, materialize_grads=True)
        if not pulled.requires_grad:
            return unflatten(torch.zeros_like(gradient).detach(), like)
        squares = torch.zeros_like(gradient).detach()
        for direction in _directions(inputs, probes, context.generator):
            (slope,) = torch.autograd.grad(pulled, weights, direction, retain_graph=True, materialize_grads=True)
            squares += slope.detach().square()
    return unflatten((squares / max(1, probes)).sqrt(), like)


def _directions(inputs: Tensor, probes: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield random directions of unit variance, or every single input."""
    if probes:
        for _ in range(probes):
            yield torch.randn(inputs.shape, generator=generator, device=generator.device).to(inputs)
        return
    for place in range(inputs.numel()):
        single = torch.zeros(inputs.numel(), dtype=inputs.dtype, device=inputs.device)
        single[place] = 1.0
        yield single.view(inputs.shape)
