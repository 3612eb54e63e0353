"""Dataset construction of LIDS (Algorithm 1): neighbours of the same class, mixed in the autoencoder's latent space.

For each image its S - 1 nearest of the class by pixel MSE; z = alpha z_i + (1 - alpha) z_j, alpha from 0.5 by 0.025 to
0.9 until the decoded image is within tau = 18 dB of x_i. Where no alpha reaches it the paper adds nothing; as the
authors' code does, the last one is kept, so that every group is whole. A class with too few images re-uses the
neighbours it has; an image alone in its class is paired with itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.defences.lids.augmentation import augment
from fedseal.defences.lids.autoencoder import Autoencoder
from fedseal.defences.lids.groups import Groups

ALPHAS: tuple[float, ...] = tuple(0.5 + 0.025 * step for step in range(17))
"""Shares of the image itself that are tried, in this order."""

_CAP_DB = 100.0


def nearest_of_class(data: Batch, count: int) -> Tensor:
    """Return the places [N, count] of each image's nearest others of its class, nearest first, re-used if too few."""
    flat = data.images.flatten(1)
    chosen = torch.empty(len(data), count, dtype=torch.long, device=flat.device)
    for label in torch.unique(data.labels):
        members = (data.labels == label).nonzero().flatten()
        distances = torch.cdist(flat[members], flat[members])
        distances.fill_diagonal_(torch.inf)
        others = max(1, min(count, len(members) - 1))  # alone, it is its own neighbour
        nearest = distances.topk(others, dim=1, largest=False).indices
        chosen[members] = members[nearest][:, torch.arange(count, device=flat.device) % others]
    return chosen


@torch.no_grad()
def interpolate(network: Autoencoder, data: Batch, neighbours: Tensor, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return synthetic images [N, C, H, W] in [0, 1] with one neighbour each, their alphas [N] and PSNRs [N] in dB."""
    latents = network.encode(data.images)
    partners = latents[neighbours]
    made = torch.empty_like(data.images)
    alphas, quality = data.images.new_empty(len(data)), data.images.new_empty(len(data))
    open_ones = torch.arange(len(data), device=data.images.device)
    for alpha in ALPHAS:
        mixed = torch.lerp(partners[open_ones], latents[open_ones], alpha)
        decoded = network.decode(mixed).clamp(0, 1)
        error = (decoded - data.images[open_ones]).square().mean((1, 2, 3))
        made[open_ones], alphas[open_ones] = decoded, alpha
        quality[open_ones] = (-10 * error.log10()).clamp(max=_CAP_DB)
        open_ones = open_ones[quality[open_ones] <= tau]
        if len(open_ones) == 0:
            break
    return made, alphas, quality


def synthesise(
    network: Autoencoder, data: Batch, size: int, tau: float, augmented: bool, source: torch.Generator
) -> Groups:
    """Return the mini-groups of `size` images of a data set.

    Args:
        network: trained on the images.
        data: the client's.
        size: S.
        tau: PSNR in dB that a synthetic image must have to its base.
        augmented: whether synthetic images are edited (LIDS) or left as they are (LIDS-A).
        source: of the edits' factors.
    """
    neighbours = nearest_of_class(data, size - 1)
    images, alphas, quality = [], [], []
    for place in range(size - 1):
        made, alpha, psnr = interpolate(network, data, neighbours[:, place], tau)
        images.append(augment(made, place, source) if augmented else made)
        alphas.append(alpha)
        quality.append(psnr)
    return Groups(data, torch.stack(images, 1), torch.stack(alphas, 1), torch.stack(quality, 1))
