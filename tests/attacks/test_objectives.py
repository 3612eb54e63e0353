"""Matching distances: zero at the truth, hand-computed values, gradients by finite differences, invariances."""

from __future__ import annotations

import math

import pytest
import torch

from fedseal.attacks.matching.objectives import (
    Cosine,
    GaussianKernel,
    Layout,
    Likelihood,
    Objective,
    PartialMatching,
    SquaredError,
)
from fedseal.core.defence import NoiseLaw

LAYOUT = Layout((4, 3, 5))
ALL: list[Objective] = [
    Cosine(),
    SquaredError(),
    SquaredError(1e-3),
    GaussianKernel(),
    Likelihood(NoiseLaw("gaussian", 0.1)),
    Likelihood(NoiseLaw("laplace", 0.1)),
    PartialMatching(),
    PartialMatching(scope="global", l1="sum"),
    PartialMatching(source="observed", ratio=0.3),
    PartialMatching(ratio=1.0),
]


def vectors(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return (
        torch.randn(12, generator=source, dtype=torch.float64),
        torch.randn(12, generator=source, dtype=torch.float64),
    )


def value(objective: Objective, dummy: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
    return objective.distance(dummy, observed, LAYOUT, objective.select(dummy, observed, LAYOUT))


@pytest.mark.parametrize("objective", ALL, ids=repr)
def test_is_zero_at_the_truth_and_positive_elsewhere(objective: Objective) -> None:
    dummy, observed = vectors()
    assert float(value(objective, observed.clone(), observed)) == pytest.approx(0, abs=1e-12)
    assert float(value(objective, dummy, observed)) > 1e-4


@pytest.mark.parametrize("objective", ALL, ids=repr)
def test_gradient_agrees_with_finite_differences(objective: Objective) -> None:
    dummy, observed = vectors(1)
    selection = objective.select(dummy, observed, LAYOUT)
    torch.autograd.gradcheck(
        lambda d: objective.distance(d, observed, LAYOUT, selection), dummy.requires_grad_(), eps=1e-7, atol=1e-5
    )


def test_hand_computed_values() -> None:
    layout = Layout((2,))
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])
    assert float(Cosine().distance(a, b, layout, None)) == pytest.approx(1 - 24 / 25)
    assert float(SquaredError().distance(a, b, layout, None)) == pytest.approx(2.0)
    assert float(Likelihood(NoiseLaw("gaussian", 0.5)).distance(a, b, layout, None)) == pytest.approx(2 / (2 * 0.25))
    assert float(Likelihood(NoiseLaw("laplace", 0.5)).distance(a, b, layout, None)) == pytest.approx(2 / 0.5)
    # SAPAG: mean squared difference 1, variance of the true (4, 3) is 0.25, first tensor has weight 1
    assert float(GaussianKernel().distance(a, b, layout, None)) == pytest.approx(1 - math.exp(-1 / 0.25))
    # FedLeak at R = 1: mean L1 is 1, plus the cosine distance
    assert float(PartialMatching(ratio=1.0).distance(a, b, layout, None)) == pytest.approx(1 + 1 - 24 / 25)


@pytest.mark.parametrize("objective", [Cosine(), PartialMatching(l1_weight=0)], ids=repr)
def test_cosine_ignores_scale(objective: Objective) -> None:
    dummy, observed = vectors()
    assert float(value(objective, dummy, 10 * observed)) == pytest.approx(float(value(objective, dummy, observed)))


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5, 0.9])
def test_partial_matching_compares_exactly_the_largest_entries(ratio: float) -> None:
    dummy, observed = vectors()
    chosen = PartialMatching(ratio).select(dummy, observed, LAYOUT)
    assert chosen is not None
    for mask, part in zip(LAYOUT.split(chosen), LAYOUT.split(dummy.abs()), strict=True):
        assert int(mask.sum()) == math.ceil(ratio * len(part))
        assert mask.bool().all() or float(part[mask.bool()].min()) >= float(part[~mask.bool()].max())
    everywhere = PartialMatching(ratio, scope="global").select(dummy, observed, LAYOUT)
    assert everywhere is not None
    assert int(everywhere.sum()) == math.ceil(ratio * 12)


def test_full_ratio_is_plain_matching() -> None:
    dummy, observed = vectors()
    plain = sum(
        (a - b).abs().mean() + 1 - torch.cosine_similarity(a, b, dim=0)
        for a, b in zip(LAYOUT.split(dummy), LAYOUT.split(observed), strict=True)
    )
    assert float(value(PartialMatching(ratio=1.0), dummy, observed)) == pytest.approx(float(plain))
