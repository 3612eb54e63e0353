"""From a layer's inputs back to images: descent on the difference between features, one first-order pass a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedseal.core.batch import Normalisation
from fedseal.core.seeds import generator

_TV = 1e-3


def invert_features(
    model: nn.Module,
    layer: str,
    features: Tensor,
    shape: tuple[int, ...],
    normalisation: Normalisation,
    steps: int,
    seed: int,
) -> Tensor:
    """Return images [B, *shape] in [0, 1] for which `layer` of `model` sees `features` [B, n].

    Each image is pulled towards its own features by 1 - cosine and the relative squared distance, with a little total
    variation; Adam on logits of pixels. Images do not disturb one another but through the model's own statistics.
    """
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        caught.append(inputs[0])

    logits = 0.1 * torch.randn(len(features), *shape, generator=generator(seed, "features")).to(features)
    logits.requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=0.1)
    handle = model.get_submodule(layer).register_forward_pre_hook(catch)
    try:
        with torch.enable_grad():
            for _ in range(steps):
                caught.clear()
                images = logits.sigmoid()
                model(normalisation(images))
                loss = _distance(caught[0].flatten(1), features) + _TV * _variation(images)
                (logits.grad,) = torch.autograd.grad(loss, [logits])
                optimiser.step()
    finally:
        handle.remove()
    return logits.detach().sigmoid()


def _distance(got: Tensor, wanted: Tensor) -> Tensor:
    apart = (got - wanted).square().sum(1) / wanted.square().sum(1).clamp(min=1e-30)
    return (apart + 1 - torch.cosine_similarity(got, wanted)).sum()


def _variation(images: Tensor) -> Tensor:
    if images.ndim != 4:
        return images.new_zeros(())  # no picture: neighbours mean nothing
    down = (images[..., 1:, :] - images[..., :-1, :]).abs()
    right = (images[..., 1:] - images[..., :-1]).abs()
    return down.mean((1, 2, 3)).sum() + right.mean((1, 2, 3)).sum()
