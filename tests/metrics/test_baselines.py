from __future__ import annotations

import math
import time

import pytest
import torch

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError
from fedseal.metrics import baselines
from fedseal.metrics.baselines import (
    ATTAINABLE,
    BASELINE_WORDS,
    ORACLES,
    attainable,
    baseline_images,
    chance_baselines,
    nearest,
    noise,
    public_duplicates,
    winsorised,
)


def _grey(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()


PUBLIC = Batch(_grey(0.0, 0.2, 0.8, 1.0), torch.tensor([0, 0, 1, 1]))


def test_by_hand():
    originals = _grey(0.3, 0.6)
    originals[1, 0, 0] = 0.8  # rows of 0.8 and 0.6, mean 0.7
    found = baseline_images(originals, torch.tensor([0, 1]), PUBLIC, seed=0)
    torch.testing.assert_close(found["mean_image"], _grey(0.5, 0.5))
    torch.testing.assert_close(found["class_mean"], _grey(0.1, 0.9))
    torch.testing.assert_close(found["nearest"], _grey(0.2, 0.8))
    torch.testing.assert_close(found["flat"], _grey(0.3, 0.7))

    decibels = chance_baselines(originals, torch.tensor([0, 1]), PUBLIC, seed=0)
    assert decibels["mean_image"].tolist() == pytest.approx(
        [10 * math.log10(25), 10 * math.log10(1 / ((0.09 + 0.01) / 2))], abs=1e-4
    )
    assert decibels["class_mean"].tolist() == pytest.approx(
        [10 * math.log10(25), 10 * math.log10(1 / ((0.01 + 0.09) / 2))], abs=1e-4
    )
    assert decibels["nearest"].tolist() == pytest.approx([20.0, 10 * math.log10(1 / (0.04 / 2))], abs=1e-4)
    assert decibels["flat"].tolist() == pytest.approx([100.0, 20.0], abs=1e-4)


def test_every_baseline_has_words():
    found = chance_baselines(_grey(0.3), torch.tensor([0]), PUBLIC, seed=0)
    assert list(found) == list(BASELINE_WORDS)
    assert all(len(words) > 20 for words in BASELINE_WORDS.values())
    assert all(values.shape == (1,) for values in found.values())


def test_flat_keeps_the_channels_apart():
    original = torch.stack([torch.full((4, 4), v) for v in (0.1, 0.5, 0.9)])[None]
    torch.testing.assert_close(baselines.flat(original), original)


def test_a_class_nobody_has_falls_back_to_the_mean():
    originals = _grey(0.3, 0.3)
    found = baselines.class_mean(originals, torch.tensor([7, 1]), PUBLIC)
    torch.testing.assert_close(found, _grey(0.5, 0.9))


def test_noise_is_seeded_uniform_and_not_the_same_for_all():
    originals = torch.zeros(3, 3, 32, 32)
    first = noise(originals, seed=1)
    assert torch.equal(first, noise(originals, seed=1))
    assert not torch.equal(first, noise(originals, seed=2))
    assert not torch.equal(first[0], first[1])
    assert 0 <= float(first.min()) < 0.01
    assert 0.99 < float(first.max()) < 1
    # E[(u - 1/2)^2] = 1/12: uniform noise against mid-grey scores 10.79 dB
    decibels = chance_baselines(originals + 0.5, torch.zeros(3), Batch(originals, torch.zeros(3)), 1)["noise"]
    assert decibels.tolist() == pytest.approx([10 * math.log10(12)] * 3, abs=0.3)


def test_nearest_agrees_with_brute_force(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(baselines, "_CHUNK", 16)  # several chunks
    generator = torch.Generator().manual_seed(0)
    originals, public = (torch.rand(n, 3, 6, 6, generator=generator) for n in (9, 100))
    distances = torch.cdist(
        originals.flatten(1).double(), public.flatten(1).double(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    expected = public[distances.argmin(1)]
    assert torch.equal(nearest(originals, Batch(public, torch.zeros(100))), expected)


def test_nearest_tells_near_duplicates_apart():
    """Differences of 1e-5 drown in the rounding of the matrix product: the exact comparison must decide."""
    generator = torch.Generator().manual_seed(0)
    original = torch.rand(1, 3, 32, 32, generator=generator)
    public = torch.cat([original + 3e-5, original + 1e-5, original - 2e-5, torch.rand(50, 3, 32, 32)]).clamp(0, 1)
    torch.testing.assert_close(nearest(original, Batch(public, torch.zeros(53)))[0], public[1], rtol=0, atol=0)


def test_nearest_is_never_below_any_public_image():
    generator = torch.Generator().manual_seed(3)
    public = Batch(torch.rand(30, 1, 4, 4, generator=generator), torch.zeros(30))
    originals = torch.rand(5, 1, 4, 4, generator=generator)
    best = chance_baselines(originals, torch.zeros(5), public, 0)["nearest"]
    for image in public.images:
        assert bool((best >= baselines.psnr(originals, image.expand_as(originals), data_range=1)).all())


def test_ten_thousand_public_images_are_quick():
    public = Batch(torch.rand(10_000, 3, 32, 32), torch.randint(0, 10, (10_000,)))
    start = time.perf_counter()
    chance_baselines(public.images[:64], public.labels[:64], public, 0)
    assert time.perf_counter() - start < 15  # 1 s on two idle cores


@pytest.mark.parametrize(
    ("originals", "labels", "public", "message"),
    [
        (_grey(0.1), torch.tensor([0]), Batch(torch.rand(3, 3, 2, 2), torch.zeros(3)), "public images are"),
        (_grey(0.1), torch.tensor([0]), Batch(torch.rand(0, 1, 2, 2), torch.zeros(0)), "at least one"),
        (_grey(0.1), torch.tensor([0, 1]), PUBLIC, "labels"),
        (_grey(3.0), torch.tensor([0]), PUBLIC, r"\[3, 3\], not in \[0, 1\]"),
        (_grey(0.1), torch.tensor([0]), Batch(255 * PUBLIC.images, PUBLIC.labels), r"not in \[0, 1\]"),
    ],
)
def test_wrong_inputs_are_refused(originals: torch.Tensor, labels: torch.Tensor, public: Batch, message: str):
    with pytest.raises(InputError, match=message):
        chance_baselines(originals, labels, public, 0)


def test_a_baseline_is_attainable_or_an_oracle_and_the_class_mean_needs_labels():
    assert set(ATTAINABLE) | set(ORACLES) == set(BASELINE_WORDS)
    assert not set(ATTAINABLE) & set(ORACLES)
    assert attainable(BASELINE_WORDS, labels_right=True) == ("mean_image", "class_mean", "noise")
    assert attainable(BASELINE_WORDS, labels_right=False) == ("mean_image", "noise")


def test_an_exact_match_does_not_outweigh_the_others():
    assert winsorised([100.0, 12.0, 41.0]) == [40.0, 12.0, 40.0]


def test_private_images_that_are_public_too_are_found():
    private = _grey(0.3, 0.8, 0.2 + 1 / 255)
    assert public_duplicates(private, PUBLIC.images) == [1, 2]
