from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError
from fedseal.metrics.image import mse, psnr, ssim
from fedseal.metrics.lpips import Lpips
from fedseal.metrics.score import Scores, score


class FakeLpips(Lpips):
    """A metric one can compute by hand: the mean absolute difference."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.net = "alex"

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a - b).abs().mean(dim=(1, 2, 3))


def _batch(size: int = 4, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.rand(size, 3, 12, 12, generator=generator), torch.arange(size) % 3)


def test_perfect_but_shuffled():
    batch = _batch()
    order = torch.tensor([2, 0, 3, 1])
    scores = score(batch, batch.images[order], batch.labels[order], FakeLpips())
    assert scores.psnr == (100.0,) * 4
    assert scores.ssim == pytest.approx((1.0,) * 4)
    assert scores.mse == (0.0,) * 4
    assert scores.lpips == (0.0,) * 4
    assert scores.label_accuracy == 1
    assert [int(order[p]) for p in scores.pairing] == [0, 1, 2, 3]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 5))
def test_the_order_of_reconstructions_does_not_matter(seed: int, size: int):
    batch = _batch(size, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    found = 0.6 * batch.images + 0.4 * torch.rand(batch.images.shape, generator=generator)
    guesses = torch.randint(0, 3, (size,), generator=generator)
    order = torch.randperm(size, generator=generator)
    first = score(batch, found, guesses, FakeLpips())
    second = score(batch, found[order], guesses[order], FakeLpips())
    assert first.psnr == second.psnr
    assert first.ssim == second.ssim
    assert first.lpips == second.lpips
    assert first.psnr_best == second.psnr_best
    assert first.label_accuracy == second.label_accuracy


def test_one_pairing_for_all_metrics():
    batch = _batch(5)
    found = torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(9))
    scores = score(batch, found, batch.labels, FakeLpips())
    matched = found[list(scores.pairing)]
    assert scores.psnr == pytest.approx(psnr(batch.images, matched, data_range=1).tolist())
    assert scores.ssim == pytest.approx(ssim(batch.images, matched, data_range=1).tolist())
    assert scores.mse == pytest.approx(mse(batch.images, matched).tolist())
    assert scores.lpips == pytest.approx((batch.images - matched).abs().mean((1, 2, 3)).tolist())


def test_attacker_best_is_with_replacement_and_never_lower():
    batch = Batch(torch.tensor([0.4, 0.5]).view(2, 1, 1, 1).expand(2, 1, 3, 3), torch.tensor([0, 1]))
    found = torch.tensor([0.45, 1.0]).view(2, 1, 1, 1).expand(2, 1, 3, 3)
    scores = score(batch, found, torch.tensor([0, 1]), None)
    near = 20 * math.log10(1 / 0.05)
    assert scores.psnr_best == pytest.approx((near, near), abs=1e-3)
    assert scores.psnr == pytest.approx((near, 20 * math.log10(2)), abs=1e-3)
    assert scores.mean_psnr_best > scores.mean_psnr


def test_reconstructions_are_clamped():
    batch = Batch(torch.ones(1, 1, 4, 4), torch.tensor([0]))
    assert score(batch, torch.full((1, 1, 4, 4), 7.0), torch.tensor([0]), None).psnr == (100.0,)


def test_the_mean_is_of_decibels():
    scores = Scores((10.0, 30.0), (0.2, 0.4), (0.1, 0.001), None, (10.0, 30.0), 0.5, (0, 1), 11, None)
    assert scores.mean_psnr == 20
    assert scores.mean_mse == pytest.approx(0.0505)
    assert scores.mean_ssim == pytest.approx(0.3)
    assert scores.mean_lpips is None


def test_as_dict_is_json_and_states_the_variants():
    batch = _batch(2)
    scores = score(batch, batch.images.flip(0), batch.labels, FakeLpips())
    plain = json.loads(json.dumps(scores.as_dict(), allow_nan=False))
    assert plain["n"] == 2
    assert plain["psnr"] == [100.0, 100.0]
    assert plain["pairing"] == [1, 0]
    assert (plain["ssim_side"], plain["lpips_net"]) == (11, "alex")
    assert plain["mean_lpips"] == 0
    without = score(_small(), _small().images, torch.tensor([0]), None).as_dict()
    assert (without["ssim_side"], without["lpips"], without["lpips_net"]) == (7, None, None)


def _small() -> Batch:
    return Batch(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0]))


def test_wrong_inputs_are_refused():
    batch = _batch(2)
    with pytest.raises(InputError, match="1 reconstructions for 2 originals"):
        score(batch, batch.images[:1], batch.labels, None)
    with pytest.raises(InputError, match=r"originals: pixel values"):
        score(Batch(3 * batch.images - 1, batch.labels), batch.images, batch.labels, None)
    broken = batch.images.clone()
    broken[0, 0, 0, 0] = torch.inf  # clamping first would hide it
    with pytest.raises(InputError, match="reconstruction: 1 of"):
        score(batch, broken, batch.labels, None)
    with pytest.raises(InputError, match="label accuracy"):
        score(batch, batch.images, batch.labels[:1], None)
