"""Which reconstruction belongs to which original: an attacker recovers a batch as a set, in no order.

The primary score pairs them one to one by the assignment with the greatest sum of PSNR (Kuhn 1955, the
"Hungarian" method). FedLeak lets every original take its most similar reconstruction *with replacement*,
which is never lower: `attacker_best`, reported beside it. Pair once, then reuse the pairing for every metric;
pairing anew for each picks the luckiest pairing of each.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.metrics.checks import check_images, precise
from fedseal.metrics.image import psnr_of_mse

IMAGE_RANGE = 1.0
"""Images lie in [0, 1] throughout fedseal."""

_NOWHERE = -1e6


def pairwise_psnr(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the PSNR in dB of every original [B, C, H, W] with every reconstruction [K, C, H, W], as [B, K].

    Squared differences are taken directly, row by row: the expansion |a|^2 + |b|^2 - 2ab loses all digits
        exactly
    where it matters, at near perfect reconstructions.
    """
    check_images(originals, "matching, originals")
    check_images(reconstructions, "matching, reconstructions")
    if originals.shape[1:] != reconstructions.shape[1:]:
        raise InputError(
            f"matching: originals are {list(originals.shape[1:])}, reconstructions "
            f"{list(reconstructions.shape[1:])} (C, H, W).",
            hint="Both need the same channels, height and width.",
        )
    candidates = precise(reconstructions).flatten(1)
    rows = [(candidates - original).square().mean(dim=1) for original in precise(originals).flatten(1)]
    return psnr_of_mse(torch.stack(rows), data_range=IMAGE_RANGE)


def hungarian(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the one-to-one pairing with the greatest sum of PSNR.

    Args:
        originals: [B, C, H, W] in [0, 1].
        reconstructions: [B, C, H, W] in [0, 1]. As many as originals, else an error: leaving originals out of
            the mean would flatter an attack that returns only what it is sure of, and a penalty for them
            would be invented.

    Returns:
        Permutation p [B], int64: `reconstructions[p[i]]` is the partner of `originals[i]`.
    """
    if len(originals) != len(reconstructions):
        raise InputError(
            f"matching: {len(reconstructions)} reconstructions for {len(originals)} originals.",
            hint="An attack returns one image per original; fill up with a best guess.",
        )
    gain = pairwise_psnr(originals, reconstructions)
    _, columns = linear_sum_assignment(gain.detach().cpu().numpy(), maximize=True)
    return torch.as_tensor(columns, dtype=torch.int64, device=reconstructions.device)


def belonging(originals: Tensor, reconstructions: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return which original each of fewer reconstructions shows, one to one, with the greatest sum of PSNR.

    For attacks that isolate some images of a batch and answer for no other.

    Args:
        originals: [B, C, H, W] in [0, 1].
        reconstructions: [K, C, H, W] in [0, 1], K at most B.
        allowed: [B, K], where a reconstruction may belong; anywhere, if it would leave one without a place.

    Returns:
        Places [K], int64, in 0..B-1.
    """
    gain = pairwise_psnr(originals, reconstructions).detach().cpu()
    if allowed is not None:
        bounded = torch.where(allowed.cpu(), gain, gain.new_full((), _NOWHERE))
        if bool((bounded.amax(0) > _NOWHERE).all()):
            gain = bounded
    columns, rows = linear_sum_assignment(gain.T.numpy(), maximize=True)
    assert len(columns) == len(reconstructions)
    return torch.as_tensor(rows, dtype=torch.int64, device=originals.device)


def attacker_best(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Return for each original the index of its most similar reconstruction, with replacement.

    FedLeak's rule: optimistic for the attacker, an upper bound of every one-to-one pairing.

    Args:
        originals: [B, C, H, W] in [0, 1].
        reconstructions: [K, C, H, W] in [0, 1]; K may differ from B.

    Returns:
        Indices [B], int64, each in 0..K-1; the first of equals.
    """
    best = pairwise_psnr(originals, reconstructions).detach().cpu().numpy().argmax(axis=1)
    return torch.as_tensor(best, dtype=torch.int64, device=reconstructions.device)
