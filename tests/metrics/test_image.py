from __future__ import annotations

import math

import pytest
import torch

from fedseal.core.errors import InputError
from fedseal.metrics.image import PSNR_CAP_DB, mse, psnr, psnr_of_mse, ssim, ssim_window


def test_psnr_by_hand():
    a = torch.zeros(2, 3, 4, 4)
    b = a.clone()
    b[0] = 0.1  # MSE 0.01
    b[1, 0] = 0.5  # one channel of three: MSE 0.25 / 3
    assert mse(a, b).tolist() == pytest.approx([0.01, 0.25 / 3])
    assert psnr(a, b, data_range=1).tolist() == pytest.approx([20.0, 10 * math.log10(12)])


def test_psnr_knows_its_range():
    """[-1, 1] images scored with peak 1 are 6 dB low; 0..255 images give what the same [0, 1] images give."""
    a, b = torch.rand(3, 1, 5, 5), torch.rand(3, 1, 5, 5)
    unit = psnr(a, b, data_range=1)
    torch.testing.assert_close(psnr(255 * a, 255 * b, data_range=255), unit, rtol=0, atol=1e-4)
    low = psnr(2 * a - 1, 2 * b - 1, data_range=1)
    torch.testing.assert_close(unit - low, torch.full_like(unit, 20 * math.log10(2)), rtol=0, atol=1e-4)


def test_psnr_is_of_the_mean_square_not_of_its_root():
    """AdaDefense's formula 10 log10(255^2 / RMSE) turns 3.35 dB into 25.74."""
    rmse = torch.tensor(173.44)
    assert float(psnr_of_mse(rmse**2, data_range=255)) == pytest.approx(3.35, abs=0.01)


def test_psnr_of_an_exact_match_is_the_cap():
    a = torch.rand(1, 3, 4, 4)
    assert psnr(a, a, data_range=1).tolist() == [PSNR_CAP_DB]
    assert float(psnr_of_mse(torch.tensor(1e-12), data_range=1)) == PSNR_CAP_DB
    assert float(psnr_of_mse(torch.tensor(1e-9), data_range=1)) == pytest.approx(90)


def test_half_precision_is_not_computed_in_half_precision():
    a = torch.zeros(1, 3, 64, 64, dtype=torch.float16)
    b = torch.full_like(a, 1e-4)
    assert float(psnr(a, b, data_range=1)) == pytest.approx(80, abs=0.01)  # 1e-8 underflows in float16


def test_data_range_has_no_default():
    a = torch.rand(1, 3, 16, 16)
    with pytest.raises(TypeError, match="data_range"):
        psnr(a, a)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="data_range"):
        ssim(a, a)  # type: ignore[call-arg]


@pytest.mark.parametrize("data_range", [0, -1, math.inf, math.nan])
def test_nonsense_ranges_are_refused(data_range: float):
    a = torch.rand(1, 3, 16, 16)
    for metric in (psnr, ssim):
        with pytest.raises(InputError, match="positive"):
            metric(a, a, data_range=data_range)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.rand(2, 3, 16, 16), torch.rand(1, 3, 16, 16), "cannot be compared"),
        (torch.rand(1, 3, 16, 16), torch.rand(1, 1, 16, 16), "cannot be compared"),
        (torch.rand(3, 16, 16), torch.rand(3, 16, 16), r"\[B, C, H, W\]"),
        (torch.rand(0, 3, 16, 16), torch.rand(0, 3, 16, 16), "at least one"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), torch.zeros(1, 3, 16, 16), "uint8"),
        (torch.full((1, 3, 16, 16), torch.nan), torch.zeros(1, 3, 16, 16), "768 of 768 pixel values are NaN"),
        (torch.zeros(1, 3, 16, 16), torch.full((1, 3, 16, 16), torch.inf), "NaN or infinite"),
    ],
)
def test_wrong_images_are_refused(a: torch.Tensor, b: torch.Tensor, message: str):
    for metric in (mse, lambda x, y: psnr(x, y, data_range=1), lambda x, y: ssim(x, y, data_range=1)):
        with pytest.raises(InputError, match=message):
            metric(a, b)


@pytest.mark.parametrize(
    ("height", "width", "side"), [(32, 32, 11), (11, 40, 11), (10, 40, 9), (8, 8, 7), (3, 3, 3), (4, 9, 3)]
)
def test_ssim_window_shrinks_for_small_images(height: int, width: int, side: int):
    assert ssim_window(height, width) == side


def test_ssim_of_tiny_images_is_refused():
    a = torch.rand(1, 1, 2, 20)
    with pytest.raises(InputError, match="too small"):
        ssim(a, a, data_range=1)


def test_ssim_of_a_small_image_by_brute_force():
    """8x8 digits have no room for 11 pixels: 7x7 windows at 2x2 positions, computed here by the definition."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(1, 1, 8, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    offsets = torch.arange(-3, 4, dtype=torch.float64)
    weights = torch.exp(-(offsets[:, None] ** 2 + offsets[None] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    values = []
    for i in range(2):
        for j in range(2):
            x, y = a[0, 0, i : i + 7, j : j + 7], b[0, 0, i : i + 7, j : j + 7]
            mx, my = (weights * x).sum(), (weights * y).sum()
            vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
            cov = (weights * (x - mx) * (y - my)).sum()
            values.append((2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)))
    assert float(ssim(a, b, data_range=1)) == pytest.approx(float(torch.stack(values).mean()), abs=1e-9)


def test_ssim_of_flat_images_by_hand():
    """Without variance only the luminance term is left: (2xy + C1) / (x^2 + y^2 + C1)."""
    a, b = torch.full((1, 3, 16, 16), 0.2), torch.full((1, 3, 16, 16), 0.6)
    expected = (2 * 0.12 + 1e-4) / (0.04 + 0.36 + 1e-4)
    assert float(ssim(a, b, data_range=1)) == pytest.approx(expected, abs=1e-6)


def test_images_are_scored_one_by_one():
    a, b = torch.rand(4, 3, 16, 16), torch.rand(4, 3, 16, 16)
    for metric in (psnr, ssim):
        together = metric(a, b, data_range=1)
        alone = torch.cat([metric(a[i : i + 1], b[i : i + 1], data_range=1) for i in range(4)])
        assert together.shape == (4,)
        torch.testing.assert_close(together, alone)
        assert len(set(together.tolist())) == 4
