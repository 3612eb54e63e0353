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

    The better of a linear map and a regression with a Gaussian kernel, both ridge regressions in closed form.

    Args:
        fed: what models were fed, [N, C, H, W].
        private: the images these were made from, alike.
    """
    if len(fed) < FEWEST:
        return None
    inputs, truth = fed.double().flatten(1), private.double().flatten(1)
    held = torch.arange(len(fed)) % _HELD_BACK == 0
    centre, mean = inputs[~held].mean(0), truth[~held].mean(0)
    known, asked = inputs[~held] - centre, inputs[held] - centre
    wanted, answer = truth[~held] - mean, truth[held] - mean
    scale = float(known.square().sum(1).mean().clamp(min=1e-12))
    apart = torch.cdist(known, known).square()
    width = float(apart[apart > 0].median()) if bool((apart > 0).any()) else 1.0
    kernels = (
        (known @ known.T / scale, asked @ known.T / scale),
        (torch.exp(-apart / width), torch.exp(-torch.cdist(asked, known).square() / width)),
    )
    errors = [float(answer.square().mean())]
    for own, cross in kernels:
        values, vectors = torch.linalg.eigh(own)
        turned = vectors.T @ wanted
        for ridge in _RIDGES:
            guess = cross @ (vectors @ (turned / (values.clamp(min=0) + ridge * len(known))[:, None]))
            errors.append(float((guess - answer).square().mean()))
    return min(errors)
