"""How well what a model was fed gives away the private images it was made from.

A defence that trains on other images than the private ones is safe by their distance only if nobody can go back. Pixels
in another order, in other colours or under a fixed pad are far from the original and hide nothing. The server can play
the defence on public images, so the auditor does: what predicts private images from those fed, learned on most of them
and measured on the rest, is the least an attacker could do.
"""

from __future__ import annotations

import torch
from torch import Tensor

FEWEST = 16
_HELD_BACK = 4
"""One in so many pairs is measured on."""
_RIDGES = (1e-6, 1e-4, 1e-2, 1.0)


def undone_error(fed: Tensor, private: Tensor) -> float | None:
    """Return the mean squared error per pixel of predicting private images from fed ones; None for too few pairs.

    The best of a linear map of pixels, one of their angles (for what was added modulo one), and a regression with a
    Gaussian kernel, all of them ridge regressions in closed form.

    Args:
        fed: what models were fed, [N, C, H, W].
        private: the images these were made from, alike.
    """
    if len(fed) < FEWEST:
        return None
    inputs, truth = fed.double().flatten(1), private.double().flatten(1)
    held = torch.arange(len(fed)) % _HELD_BACK == 0
    mean = truth[~held].mean(0)
    wanted, answer = truth[~held] - mean, truth[held] - mean
    turned = torch.cat([torch.cos(2 * torch.pi * inputs), torch.sin(2 * torch.pi * inputs)], 1)
    kernels = [_linear(inputs, held), _linear(turned, held), _gaussian(inputs, held)]
    errors = [float(answer.square().mean())]
    for own, cross in kernels:
        values, vectors = torch.linalg.eigh(own)
        along = vectors.T @ wanted
        for ridge in _RIDGES:
            guess = cross @ (vectors @ (along / (values.clamp(min=0) + ridge * len(own))[:, None]))
            errors.append(float((guess - answer).square().mean()))
    return min(errors)


def _linear(inputs: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Return inner products [K, K] among the pairs learned from, and [H, K] of those held back with them."""
    centred = inputs - inputs[~held].mean(0)
    known, asked = centred[~held], centred[held]
    scale = known.square().sum(1).mean().clamp(min=1e-12)
    return known @ known.T / scale, asked @ known.T / scale


def _gaussian(inputs: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same with a Gaussian kernel as wide as pairs are apart."""
    apart = torch.cdist(inputs, inputs[~held]).square()
    own = apart[~held]
    width = own[own > 0].median() if bool((own > 0).any()) else own.new_ones(())
    return torch.exp(-own / width), torch.exp(-apart[held] / width)
