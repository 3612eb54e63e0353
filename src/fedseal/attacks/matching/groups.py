"""Group consistency (GradInversion, Sec. 3.4): restarts of one target pull each other towards their consensus.

The consensus is the plain mean of the restarts' images, or the mean after each image was shifted onto it: registration
by the peak of the cross-correlation, a translation-only stand-in for the paper's RANSAC-Flow.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluate, Evaluation
from fedseal.attacks.matching.problem import Lanes

Consensus: TypeAlias = Literal["none", "mean", "registration"]


class GroupConsistency:
    """An evaluation with weight x |x - consensus|^2 added to every lane.

    Args:
        evaluate: what is added to.
        weight: of the term.
        consensus: how it is formed.
        restarts: consecutive lanes that belong to one target.
        shape: B, C, H, W of a lane's images, which are the first entries of z.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        weight: float,
        consensus: Consensus,
        restarts: int,
        shape: tuple[int, int, int, int],
    ) -> None:
        self._evaluate = evaluate
        self._weight = weight
        self._consensus = consensus
        self._restarts = restarts
        self._shape = shape

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate all lanes; they must all be running, as optimisers without early stopping keep them."""
        plain = self._evaluate(z, lanes, weight, selections)
        pixels = torch.Size(self._shape).numel()
        images = z[:, :pixels].reshape(-1, self._restarts, *self._shape)
        away = (images - consensus_of(images, self._consensus)).reshape(len(z), pixels)
        gradients = plain.gradients.clone()
        gradients[:, :pixels] += 2 * self._weight * away
        return Evaluation(plain.values + self._weight * away.square().sum(1), gradients, plain.selections)


def consensus_of(images: Tensor, consensus: Consensus) -> Tensor:
    """Return the consensus of restarts [K, R, B, C, H, W], to be compared with each of them: same shape, detached."""
    images = images.detach()
    mean = images.mean(1, keepdim=True)
    if consensus == "registration":
        shifts = best_shifts(images, mean.expand_as(images))
        mean = _shifted(images, shifts).mean(1, keepdim=True)
        return _shifted(mean.expand_as(images).contiguous(), -shifts)
    return mean.expand_as(images)


def best_shifts(images: Tensor, reference: Tensor) -> Tensor:
    """Return the cyclic shift (dy, dx) of each image [..., C, H, W] that best correlates with the reference.

    Shifts are limited to a quarter of the image.
    """
    height, width = images.shape[-2:]
    spectrum = torch.fft.rfft2(reference) * torch.fft.rfft2(images).conj()
    correlation = torch.fft.irfft2(spectrum, s=(height, width)).sum(-3)
    rows = torch.fft.fftfreq(height, 1 / height).to(images.device)
    columns = torch.fft.fftfreq(width, 1 / width).to(images.device)
    near = (rows.abs()[:, None] <= height // 4) & (columns.abs()[None, :] <= width // 4)
    best = correlation.masked_fill(~near, float("-inf")).flatten(-2).argmax(-1)
    return torch.stack([rows[best // width], columns[best % width]], -1).long()


def _shifted(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift each image [..., C, H, W] cyclically by its own (dy, dx) [..., 2]."""
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) - shifts[..., :1]) % height
    columns = (torch.arange(width, device=images.device) - shifts[..., 1:]) % width
    by_row = images.gather(-2, rows[..., None, :, None].expand_as(images))
    return by_row.gather(-1, columns[..., None, None, :].expand_as(images))
