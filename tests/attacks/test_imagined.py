"""Made-up pictures look like pictures to statistics: in range, smooth, coloured, the same for the same seed."""

from __future__ import annotations

import pytest
import torch

from fedseal.attacks.shadow.imagined import imagined


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 7, 9)])
def test_made_up_images_are_images(shape: tuple[int, int, int]):
    made = imagined(shape, 10, 40, 0)
    assert made.images.shape == (40, *shape)
    assert torch.equal(made.images, made.images.clamp(0, 1))
    assert made.labels.unique().numel() > 5
    assert torch.equal(made.images, imagined(shape, 10, 40, 0).images)
    assert not torch.equal(made.images, imagined(shape, 10, 40, 1).images)
    assert 0.1 < float(made.images.std((2, 3)).mean()) < 0.35


def test_their_spectrum_falls_as_that_of_photographs():
    images = imagined((3, 64, 64), 2, 64, 0).images
    power = torch.fft.rfft2(images - images.mean((2, 3), keepdim=True)).abs().square().mean((0, 1))
    near, far = float(power[0, 2:4].mean()), float(power[0, 16:24].mean())
    assert 10 < near / far < 200  # (20 / 3)^2 is 44
    step = (images[..., 1:] - images[..., :-1]).abs().mean()
    assert step < 0.6 * (images - images.roll(1, 0)).abs().mean()
