"""MSE, PSNR and SSIM against scikit-image, on random, real and degenerate images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage import data
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

from fedseal.metrics.image import mse, psnr, ssim


def _picture(name: str, top: int, left: int, size: int) -> torch.Tensor:
    pixels = getattr(data, name)()
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels[..., :3]
    return torch.tensor(pixels).permute(2, 0, 1)[:, top : top + size, left : left + size].float() / 255


def _pairs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    astronaut, coffee = _picture("astronaut", 0, 150, 96), _picture("coffee", 100, 100, 96)
    camera = _picture("camera", 50, 200, 64)
    return {
        "random": (uniform(3, 32, 32), uniform(3, 32, 32)),
        "random grey, oblong": (uniform(1, 28, 41), uniform(1, 28, 41)),
        "exactly one window": (uniform(3, 11, 11), uniform(3, 11, 11)),
        "two pictures": (astronaut, coffee),
        "noisy": (astronaut, (0.7 * astronaut + 0.3 * uniform(3, 96, 96))),
        "faint noise": (camera, (camera + 0.01 * (uniform(1, 64, 64) - 0.5)).clamp(0, 1)),
        "shifted": (_picture("chelsea", 80, 120, 64), _picture("chelsea", 82, 121, 64)),
        "blurred": (camera, torch.nn.functional.avg_pool2d(camera[None], 5, 1, 2)[0]),
        "inverted": (camera, 1 - camera),
        "flat and flat": (torch.full((3, 16, 16), 0.2), torch.full((3, 16, 16), 0.7)),
        "flat and picture": (torch.full((1, 64, 64), 0.5), camera),
        "black and white": (torch.zeros(1, 16, 16), torch.ones(1, 16, 16)),
    }


PAIRS = _pairs()


@pytest.mark.parametrize("name", PAIRS)
def test_against_scikit_image(name: str):
    a, b = PAIRS[name]
    x, y = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
    expected = structural_similarity(
        x,
        y,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1,
        channel_axis=0,
    )
    assert float(ssim(a[None], b[None], data_range=1)) == pytest.approx(expected, abs=1e-6)
    assert float(mse(a[None], b[None])) == pytest.approx(mean_squared_error(x, y), rel=1e-9)
    decibels = peak_signal_noise_ratio(x, y, data_range=1)
    assert float(psnr(a[None], b[None], data_range=1)) == pytest.approx(decibels, abs=1e-6)


def test_equal_images():
    a, _ = PAIRS["two pictures"]
    assert float(ssim(a[None], a[None], data_range=1)) == pytest.approx(1, abs=1e-12)
