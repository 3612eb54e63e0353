"""Blur and pixelate: what they do to images, and that the gradient leaks the processed ones."""

from __future__ import annotations

import pytest
import torch
from scipy.ndimage import gaussian_filter

from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.errors import UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.defences.anonymise import block_means, gaussian_blur
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.metrics.image import psnr
from fedseal.models.registry import build_model

SHAPE = (3, 10, 13)


def images(count: int = 2) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=generator(0))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 6.0])
def test_blur_is_scipys(sigma: float):
    wide = images().double()
    radius = -int(-3 * sigma // 1)
    expected = gaussian_filter(wide.numpy(), (0, 0, sigma, sigma), mode="nearest", radius=(0, 0, radius, radius))
    torch.testing.assert_close(gaussian_blur(wide, sigma), torch.from_numpy(expected))


def test_blocks_become_their_means_also_at_ragged_edges():
    shown = block_means(images(), 4)
    assert shown.shape == images().shape
    for top in range(0, 10, 4):
        for left in range(0, 13, 4):
            block = images()[:, :, top : top + 4, left : left + 4]
            expected = block.mean((2, 3), keepdim=True).expand_as(block)
            torch.testing.assert_close(shown[:, :, top : top + 4, left : left + 4], expected)


@pytest.mark.parametrize("spec", ["blur:sigma=0", "pixelate:block=1"])
def test_at_zero_strength_the_batch_is_returned(spec: str):
    batch = Batch(images(), torch.tensor([0, 1]))
    assert build_defence(spec).on_batch(batch, None) is batch  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["blur", "pixelate", "blur:sigma=3", "pixelate:block=5"])
def test_the_gradient_leaks_the_processed_image_exactly(spec: str):
    model = build_model("mlp:width=64", input_shape=SHAPE, num_classes=4, seed=0)
    batch, defence = Batch(images(1), torch.tensor([2])), build_defence(spec)
    done = client_round(model, [batch], RoundConfig(), defence, generator(0))
    known = Knowledge(SHAPE, 4, label_rule="true", batch_size=1, labels=batch.labels, local_steps=1)
    found = ATTACKS.build("first-layer").run_many([Observation(model, done.update, known)], Budget(), [0])[0]
    assert float((found.images - done.fed[0].images).abs().max()) < 1e-4
    assert float(psnr(batch.images, found.images, data_range=1.0)) < 15


@pytest.mark.parametrize("spec", ["blur:sigma=-1", "blur:sigma=inf", "blur:sigma=nan", "pixelate:block=0"])
def test_nonsense_is_refused(spec: str):
    with pytest.raises(UsageError, match=spec.split(":")[0]):
        build_defence(spec)
