"""Pixel metrics per image: MSE, PSNR and SSIM (Wang, Bovik, Sheikh and Simoncelli, IEEE TIP 2004).

All take two stacks [B, C, H, W] and return [B], so that a report averages decibels over images and not errors
before the logarithm. The range of the pixel values is always stated by the caller: published scores of this
field are off by constants because it was not (peak 1 on [-1, 1] images, RMSE in the place of the MSE, ...).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedseal.core.errors import InputError
from fedseal.metrics.checks import check_pair, precise

PSNR_CAP_DB = 100.0
"""An exact match has an infinite PSNR, which no mean survives: anything above is reported as this value.

At a range of 1 the cap means an MSE of 1e-10, far below the 1.3e-6 of rounding to 8 bits (59 dB)."""

SSIM_WINDOW = 11
"""Side of SSIM's Gaussian window; see `ssim_window` for smaller images."""

SSIM_SIGMA = 1.5
SSIM_K1 = 0.01
SSIM_K2 = 0.03


def mse(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean squared error over C, H and W of each pair of images [B, C, H, W], as [B]."""
    check_pair(a, b, "mse")
    return (precise(a) - precise(b)).square().mean(dim=(1, 2, 3))


def psnr_of_mse(errors: Tensor, *, data_range: float) -> Tensor:
    """Return 10 log10(data_range^2 / MSE) in dB for errors of any shape, at most `PSNR_CAP_DB`."""
    _check_range(data_range)
    return (10 * torch.log10(data_range**2 / errors)).clamp(max=PSNR_CAP_DB)


def psnr(a: Tensor, b: Tensor, *, data_range: float) -> Tensor:
    """Return the peak signal-to-noise ratio in dB of each pair of images [B, C, H, W], as [B].

    Args:
        a: images.
        b: images to compare with, of the same shape.
        data_range: distance between the least and the greatest possible pixel value (1 for images in [0, 1]).

    Returns:
        10 log10(data_range^2 / MSE) with the MSE over C, H and W; at most `PSNR_CAP_DB`.
    """
    return psnr_of_mse(mse(a, b), data_range=data_range)


def ssim_window(height: int, width: int) -> int:
    """Return the side of the window `ssim` uses: 11, or the largest odd number that fits a smaller image.

    Scores with different windows are not comparable, so a report states the side beside the score.
    """
    side = min(height, width, SSIM_WINDOW)
    side -= 1 - side % 2
    if side < 3:
        raise InputError(
            f"ssim: images of {height}x{width} pixels are too small to have structure.",
            hint="SSIM needs at least 3 pixels each way; use PSNR.",
        )
    return side


def ssim(a: Tensor, b: Tensor, *, data_range: float) -> Tensor:
    """Return the structural similarity of each pair of images [B, C, H, W], as [B].

    Wang et al. 2004: an 11x11 Gaussian window of deviation 1.5, K1 = 0.01, K2 = 0.03, population covariance.
    The mean is over positions where the window lies inside the image, and over channels: what scikit-image
    computes with `gaussian_weights=True, use_sample_covariance=False`. Below 11 pixels the window shrinks
    (`ssim_window`).

    Args:
        a: images.
        b: images to compare with, of the same shape.
        data_range: distance between the least and the greatest possible pixel value (1 for images in [0, 1]).
    """
    check_pair(a, b, "ssim")
    _check_range(data_range)
    size = ssim_window(a.shape[-2], a.shape[-1])
    x, y = precise(a), precise(b)
    offsets = torch.arange(size, dtype=x.dtype, device=x.device) - size // 2
    window = torch.exp(-0.5 * (offsets / SSIM_SIGMA) ** 2)
    window = window / window.sum()

    mean_x, mean_y = _blur(x, window), _blur(y, window)
    var_x = _blur(x * x, window) - mean_x**2
    var_y = _blur(y * y, window) - mean_y**2
    cov = _blur(x * y, window) - mean_x * mean_y
    c1, c2 = (SSIM_K1 * data_range) ** 2, (SSIM_K2 * data_range) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * cov + c2) / (var_x + var_y + c2)
    return (luminance * structure).mean(dim=(1, 2, 3))


def _blur(images: Tensor, window: Tensor) -> Tensor:
    """Convolve with the separable window at all positions where it lies inside the image."""
    batch, channels, height, width = images.shape
    planes = images.reshape(batch * channels, 1, height, width)
    rows = F.conv2d(planes, window.view(1, 1, -1, 1))
    both = F.conv2d(rows, window.view(1, 1, 1, -1))
    return both.view(batch, channels, *both.shape[-2:])


def _check_range(data_range: float) -> None:
    if not 0 < data_range < float("inf"):
        raise InputError(f"data_range must be a positive number, got {data_range}.", hint="Use 1 for images in [0, 1].")
