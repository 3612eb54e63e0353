"""Metrics by name that compare pixels: of images in [0, 1], so that no range has to be stated."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fedseal.core.registry import Info
from fedseal.metrics.image import mse, psnr, ssim
from fedseal.metrics.registry import METRICS


@METRICS.register("mse", Info("mean squared error"))
def mean_squared_error(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the mean squared error of each pair [B, C, H, W], as [B]."""
    return mse(originals, reconstructions)


@METRICS.register("mae", Info("mean absolute error"))
def mean_absolute_error(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the mean absolute error of each pair [B, C, H, W], as [B]."""
    return (originals - reconstructions).abs().mean(dim=(1, 2, 3))


@METRICS.register("psnr", Info("peak signal-to-noise ratio in dB"))
def peak_signal_to_noise(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the PSNR of each pair [B, C, H, W], as [B]."""
    return psnr(originals, reconstructions, data_range=1.0)


@METRICS.register("ssim", Info("structural similarity", paper="Wang et al., IEEE TIP 2004"))
def structural_similarity(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the SSIM of each pair [B, C, H, W], as [B]."""
    return ssim(originals, reconstructions, data_range=1.0)


@METRICS.register("correlation", Info("Pearson correlation of the pixels, blind to brightness and contrast"))
def correlation(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the correlation of each pair [B, C, H, W], as [B]; 0 where an image is flat."""
    a, b = (images.double().flatten(1) for images in (originals, reconstructions))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return F.cosine_similarity(a, b, eps=1e-12)
