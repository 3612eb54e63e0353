"""The image prior: what an attacker expects before any update."""

from __future__ import annotations

import pytest
import torch

from fedseal.core.errors import InputError, UsageError
from fedseal.information.prior import RIDGE, fit_prior


def smooth(count: int, seed: int) -> torch.Tensor:
    coarse = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    fine = torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(seed + 100))
    return torch.nn.functional.interpolate(coarse, (12, 12), mode="bilinear") + 0.2 * fine


def test_many_images_give_their_own_covariance():
    images = smooth(400, 0)
    prior = fit_prior(images)
    covariance = torch.cov(images.double().flatten(1).T) + RIDGE * torch.eye(144)
    assert torch.allclose(prior.root(prior.root(torch.eye(144, dtype=torch.float64))), covariance, atol=1e-9)


def test_few_images_keep_the_total_variance_and_do_not_promise_their_span():
    few, others = smooth(40, 0), smooth(400, 1)
    prior = fit_prior(few)
    spread = float((few.double() - prior.mean).square().sum() / 39) / 144 + RIDGE
    assert prior.error == pytest.approx(spread, rel=0.02)
    centred = others.double().flatten(1) - prior.mean.flatten()
    along = centred @ prior.basis
    outside = float((centred.square().sum() - along.square().sum()) / 400) / (144 - len(prior.along))
    assert prior.across == pytest.approx(outside, rel=0.6)


@pytest.mark.parametrize("count", [40, 400])
def test_axes_and_root_are_of_one_covariance(count: int):
    prior = fit_prior(smooth(count, 2))
    axes, variances = prior.axes
    covariance = prior.root(prior.root(torch.eye(144, dtype=torch.float64)))
    assert torch.allclose((axes * variances) @ axes.T, covariance, atol=1e-10)
    assert float(variances.sum()) == pytest.approx(prior.total)


def test_too_few_images_and_no_ridge_are_refused():
    with pytest.raises(InputError, match="at least 4 public images"):
        fit_prior(torch.rand(3, 1, 4, 4))
    with pytest.raises(UsageError, match="ridge > 0"):
        fit_prior(torch.rand(8, 1, 4, 4), ridge=0.0)
