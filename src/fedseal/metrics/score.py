"""All scores of one reconstructed batch, under one pairing that is fixed once and reused for every metric."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.metrics.checks import check_images, check_unit_range
from fedseal.metrics.image import mse, psnr, ssim, ssim_window
from fedseal.metrics.labels import flag_accuracy, label_accuracy
from fedseal.metrics.lpips import Lpips
from fedseal.metrics.matching import IMAGE_RANGE, attacker_best, hungarian


@dataclass(frozen=True)
class Scores:
    """What an attack recovered of a batch; entry i of every tuple belongs to original i.

    Attributes:
        psnr: in dB, under the Hungarian pairing.
        ssim: under the same pairing.
        mse: under the same pairing.
        lpips: under the same pairing; None without weights.
        psnr_best: in dB, of the most similar reconstruction with replacement ("attacker-best"); never below
            `psnr`.
        label_accuracy: share of labels right, as multisets; of flags, image by image; None for values.
        pairing: entry i is the index of the reconstruction paired with original i.
        ssim_side: side of SSIM's window; below 11 scores are not comparable with published ones.
        lpips_net: the network LPIPS used; None without weights.
    """

    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    mse: tuple[float, ...]
    lpips: tuple[float, ...] | None
    psnr_best: tuple[float, ...]
    label_accuracy: float | None
    pairing: tuple[int, ...]
    ssim_side: int
    lpips_net: str | None

    @property
    def mean_psnr(self) -> float:
        """Mean of the decibels, which is at least the decibels of the mean error."""
        return fmean(self.psnr)

    @property
    def mean_ssim(self) -> float:
        """Mean SSIM over images."""
        return fmean(self.ssim)

    @property
    def mean_mse(self) -> float:
        """Mean MSE over images."""
        return fmean(self.mse)

    @property
    def mean_lpips(self) -> float | None:
        """Mean LPIPS over images; None without weights."""
        return None if self.lpips is None else fmean(self.lpips)

    @property
    def mean_psnr_best(self) -> float:
        """Mean of the attacker-best decibels."""
        return fmean(self.psnr_best)

    def as_dict(self) -> dict[str, Any]:
        """Return per-image scores, their means and the variants used as plain data for JSON."""
        return {
            "n": len(self.psnr),
            "psnr": list(self.psnr),
            "ssim": list(self.ssim),
            "mse": list(self.mse),
            "lpips": None if self.lpips is None else list(self.lpips),
            "psnr_best": list(self.psnr_best),
            "label_accuracy": self.label_accuracy,
            "pairing": list(self.pairing),
            "ssim_side": self.ssim_side,
            "lpips_net": self.lpips_net,
            "mean_psnr": self.mean_psnr,
            "mean_ssim": self.mean_ssim,
            "mean_mse": self.mean_mse,
            "mean_lpips": self.mean_lpips,
            "mean_psnr_best": self.mean_psnr_best,
        }


def score(
    originals: Batch, reconstruction_images: Tensor, reconstruction_labels: Tensor, lpips: Lpips | None
) -> Scores:
    """Score the reconstruction of one batch against the truth.

    Args:
        originals: the attacked batch, images [B, C, H, W] in [0, 1]; anything outside is refused.
        reconstruction_images: [B, C, H, W] in any order; finite, clamped to [0, 1] before scoring.
        reconstruction_labels: [B], in any order.
        lpips: the perceptual metric, or None where its weights are absent.
    """
    truth = originals.images.detach()
    check_images(truth, "originals")
    check_unit_range(truth, "originals")
    check_images(reconstruction_images, "reconstruction")
    found = reconstruction_images.detach().to(truth.device).clamp(0, 1)
    pairing = hungarian(truth, found)
    matched = found[pairing]
    best = found[attacker_best(truth, found)]
    return Scores(
        psnr=_tuple(psnr(truth, matched, data_range=IMAGE_RANGE)),
        ssim=_tuple(ssim(truth, matched, data_range=IMAGE_RANGE)),
        mse=_tuple(mse(truth, matched)),
        lpips=None if lpips is None else _tuple(lpips(truth, matched)),
        psnr_best=_tuple(psnr(truth, best, data_range=IMAGE_RANGE)),
        label_accuracy=_labels_right(originals.labels, reconstruction_labels, pairing),
        pairing=tuple(pairing.tolist()),
        ssim_side=ssim_window(truth.shape[-2], truth.shape[-1]),
        lpips_net=None if lpips is None else lpips.net,
    )


def _labels_right(labels: Tensor, guesses: Tensor, pairing: Tensor) -> float | None:
    if not labels.is_floating_point():
        return label_accuracy(labels, guesses)
    return flag_accuracy(labels, guesses.to(labels)[pairing.to(labels.device)])


def _tuple(values: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
