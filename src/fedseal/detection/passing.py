"""Linear layers behind which nothing gates, found by how derivatives pass.

Bins sort samples by a gate behind the layer: a unit that is off for a sample must hold its gradient back. The second
layer of an adapter has none behind it, and begins with zeros: its first steps are few directions, so that honest rows
are parallel. Rows without a gate sort nothing, whatever their biases.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.federation.loss import training_loss

_SHIFT = 3.0
"""Ranges of its outputs by which a layer is shifted: all units of a gate are then off, or all on."""
_PASSES = 0.3
"""Without a gate as much passes wherever the units stand. Behind ReLU nothing does on one side, behind a sigmoid that
is steep enough to sort by nothing on either."""


def ungated(model: nn.Module, batch: Batch, normalisation: Normalisation, names: Iterable[str]) -> set[str]:
    """Return which of the named linear layers pass gradients on alike as they are and shifted far down and up."""
    return {name for name in names if _passes(copy.deepcopy(model), batch, normalisation, name)}


def _passes(model: nn.Module, batch: Batch, normalisation: Normalisation, name: str) -> bool:
    sizes = [_slope(model, batch, normalisation, name, shift) for shift in (-_SHIFT, 0.0, _SHIFT)]
    return min(sizes) > _PASSES * max(sizes)


def _slope(model: nn.Module, batch: Batch, normalisation: Normalisation, name: str, shift: float) -> float:
    """Return the mean size of the loss's derivatives at a layer's outputs, all shifted by so many of their ranges."""
    seen: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        moved = (output + shift * (output.max() - output.min())).detach().requires_grad_()
        seen.append(moved)
        return moved

    handle = model.get_submodule(name).register_forward_hook(hook)
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            logits = model(normalisation(batch.inputs))
            if not seen:
                return 0.0
            loss = training_loss(CROSS_ENTROPY)(logits, batch.labels, "mean")
            slopes = torch.autograd.grad(loss, seen, materialize_grads=True) if loss.requires_grad else ()
    finally:
        handle.remove()
    return sum(float(slope.abs().mean()) for slope in slopes)
