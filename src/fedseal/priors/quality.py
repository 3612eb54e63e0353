"""How good a prior is: what it makes of held-out images, and how its samples differ from them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from scipy.linalg import sqrtm
from torch import Tensor

from fedseal.core.seeds import generator
from fedseal.priors.networks import AutoEncoder
from fedseal.priors.prior import Prior, Quality

_SIGMA = 0.1
_COMPONENTS = 16
_SAMPLES = 64
_SEARCH_STEPS = 150
_SAMPLER_STEPS = 16
_FEW = 16


def measured(prior: Prior, trained_on: Tensor, held_out: Tensor, seed: int = 0) -> Quality:
    """Return the quality of a prior on images [N, C, H, W] it was not trained on."""
    some = held_out[:_SAMPLES]
    drawn = samples(prior, min(_SAMPLES, max(_FEW, len(some))), seed)
    basis = _components(held_out)
    reconstructed = _reconstructed(prior, some[:_FEW] if prior.kind == "gan" else some, seed)
    errors = (reconstructed - some[: len(reconstructed)]).square().flatten(1).mean(1)
    return Quality(
        float(-10 * errors.clamp(min=1e-10).log10().mean()),
        frechet(drawn.flatten(1) @ basis, held_out.flatten(1) @ basis),
        frechet(trained_on[:_SAMPLES].flatten(1) @ basis, held_out.flatten(1) @ basis),
        len(held_out),
    )


@torch.no_grad()
def samples(prior: Prior, count: int, seed: int = 0) -> Tensor:
    """Draw images [count, C, H, W] in [0, 1]: from latents, or from noise that is removed little by little.

    Denoisers draw by the deterministic sampler of Karras et al. (NeurIPS 2022) with Euler's steps.
    """
    source = generator(seed, "prior", "samples")
    if prior.generates:
        return prior.decode(torch.randn(count, prior.latent, generator=source), prior.shape).clamp(0, 1)
    sigmas = [*torch.logspace(0, -2, _SAMPLER_STEPS).tolist(), 0.0]
    x = 0.5 + sigmas[0] * torch.randn(count, *prior.shape, generator=source)
    for sigma, lower in itertools.pairwise(sigmas):
        clean = prior.denoise(x, sigma)
        x = clean + (x - clean) * (lower / sigma)
    return torch.clamp(x, 0, 1)


def frechet(one: Tensor, other: Tensor) -> float:
    """Return the Frechet distance between Gaussians fitted to rows [N, D] and [M, D]."""
    a, b = one.double().numpy(), other.double().numpy()
    between = np.square(a.mean(0) - b.mean(0)).sum()
    first, second = np.atleast_2d(np.cov(a, rowvar=False)), np.atleast_2d(np.cov(b, rowvar=False))
    mixed = np.real(sqrtm(first @ second))
    return math.sqrt(max(0.0, float(between + np.trace(first + second - 2 * mixed))))


def _components(images: Tensor) -> Tensor:
    """Return the first principal directions [pixels, D] of images."""
    rows = images.flatten(1)
    directions: Tensor = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)[2]
    return directions[: min(_COMPONENTS, max(1, len(rows) - 1))].t()


def _reconstructed(prior: Prior, images: Tensor, seed: int) -> Tensor:
    if isinstance(prior.engine, AutoEncoder):
        with torch.no_grad():
            return torch.clamp(prior.engine.denoise(images, 0.0), 0, 1)
    source = generator(seed, "prior", "quality")
    if not prior.generates:
        return prior.denoise(images + _SIGMA * torch.randn(images.shape, generator=source), _SIGMA)
    latents = torch.zeros(len(images), prior.latent).requires_grad_()
    search = torch.optim.Adam([latents], 0.05)
    for _ in range(_SEARCH_STEPS):
        search.zero_grad()
        torch.autograd.backward((prior.decode(latents, prior.shape) - images).square().sum())
        search.step()
    return torch.clamp(prior.decode(latents.detach(), prior.shape), 0, 1)
