from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseal.core.errors import InputError
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import attacker_best, belonging, hungarian, pairwise_psnr


def _stacks(seed: int, size: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    originals = torch.rand(size, 1, 3, 3, generator=generator)
    order = torch.randperm(size, generator=generator)
    blur = torch.rand(size, 1, 3, 3, generator=generator)
    return originals, (1 - noise) * originals[order] + noise * blur


def _total(originals: torch.Tensor, reconstructions: torch.Tensor, order: torch.Tensor) -> float:
    return float(psnr(originals, reconstructions[order], data_range=1).sum())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 5), noise=st.floats(0, 1))
def test_hungarian_is_the_best_of_all_permutations(seed: int, size: int, noise: float):
    originals, reconstructions = _stacks(seed, size, noise)
    order = hungarian(originals, reconstructions)
    assert sorted(order.tolist()) == list(range(size))
    best = max(_total(originals, reconstructions, torch.tensor(candidate)) for candidate in permutations(range(size)))
    assert _total(originals, reconstructions, order) == pytest.approx(best)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 5), found=st.integers(1, 6), noise=st.floats(0.01, 1))
def test_attacker_best_is_the_maximum_per_original(seed: int, size: int, found: int, noise: float):
    originals, _ = _stacks(seed, size, noise)
    _, reconstructions = _stacks(seed + 1, found, noise)
    chosen = psnr(originals, reconstructions[attacker_best(originals, reconstructions)], data_range=1)
    for k in range(found):
        single = psnr(originals, reconstructions[k : k + 1].expand_as(originals), data_range=1)
        assert bool((chosen >= single - 1e-9).all())


def test_hungarian_undoes_a_shuffle():
    originals = torch.rand(6, 3, 8, 8)
    order = torch.randperm(6)
    assert torch.equal(order[hungarian(originals, originals[order])], torch.arange(6))


def test_the_sum_of_psnr_counts_not_the_sum_of_errors():
    """One perfect pair is worth two mediocre ones in dB; the least total error pairs the other way."""
    originals = torch.tensor([0.0, 0.5]).view(2, 1, 1, 1)
    reconstructions = torch.tensor([0.5, 0.95]).view(2, 1, 1, 1)
    # errors: identity 0.25 + 0.2025 = 0.4525 against 0.9025 + 0 = 0.9025; dB: 12.96 against 100.4
    assert hungarian(originals, reconstructions).tolist() == [1, 0]


def test_attacker_best_uses_a_reconstruction_twice():
    originals = torch.tensor([0.0, 0.1, 0.9]).view(3, 1, 1, 1)
    reconstructions = torch.tensor([0.5, 0.05, 0.55]).view(3, 1, 1, 1)
    assert attacker_best(originals, reconstructions).tolist() == [1, 1, 2]
    assert sorted(hungarian(originals, reconstructions).tolist()) == [0, 1, 2]


def test_pairwise_psnr_keeps_its_digits_at_near_perfect_reconstructions():
    originals = torch.full((1, 3, 32, 32), 0.9)
    found = originals + 1e-4
    assert float(pairwise_psnr(originals, found)) == pytest.approx(80, abs=0.01)
    assert pairwise_psnr(originals.expand(2, -1, -1, -1), found.expand(5, -1, -1, -1)).shape == (2, 5)


@pytest.mark.parametrize("found", [2, 4])
def test_counts_must_agree(found: int):
    with pytest.raises(InputError, match=f"{found} reconstructions for 3 originals"):
        hungarian(torch.rand(3, 1, 4, 4), torch.rand(found, 1, 4, 4))


def test_shapes_must_agree_and_values_be_finite():
    with pytest.raises(InputError, match=r"\[1, 4, 4\].*\[3, 4, 4\]"):
        hungarian(torch.rand(3, 1, 4, 4), torch.rand(3, 3, 4, 4))
    bad = torch.rand(3, 1, 4, 4)
    bad[0, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="reconstructions: 1 of 48"):
        attacker_best(torch.rand(3, 1, 4, 4), bad)


def test_fewer_reconstructions_belong_to_different_originals_and_stay_where_they_may():
    originals = torch.stack([torch.full((1, 4, 4), value) for value in (0.1, 0.5, 0.9)])
    claims = torch.stack([torch.full((1, 4, 4), value) for value in (0.85, 0.95)])
    assert sorted(belonging(originals, claims).tolist()) == [1, 2]
    allowed = torch.tensor([[True, False], [False, True], [False, True]])
    assert belonging(originals, claims, allowed).tolist() == [0, 2]
    nowhere = torch.tensor([[False, True]] * 3)
    assert sorted(belonging(originals, claims, nowhere).tolist()) == [1, 2]  # a claim without a place may be anywhere
