"""Unfolded convolutions and gradients in factors equal PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedseal.core.seeds import generator
from fedseal.core.threads import one_thread
from fedseal.models import unfolded
from fedseal.models.unfolded import Convolution, Factors, places

CASES = [  # batch, in, out, size, kernel, stride, padding
    (1, 64, 64, 8, 3, 1, 1),
    (2, 32, 128, 4, 3, 1, 1),
    (1, 64, 128, 8, 3, 2, 1),
    (3, 128, 256, 5, 1, 2, 0),
    (1, 16, 100, 9, 5, 2, 0),
]


def _random(*shape: int, name: str) -> Tensor:
    return torch.randn(*shape, generator=generator(0, name))


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch):
    monkeypatch.setattr(unfolded, "_has_products", lambda: True)
    with one_thread():
        yield


def _convolution(x: Tensor, weight: Tensor, stride: int, padding: int) -> Convolution:
    found = Convolution.of(torch.conv2d, (x, weight, None, (stride, stride), (padding, padding), (1, 1), 1), {})
    assert found is not None
    return found


@pytest.mark.parametrize(("batch", "into", "out", "size", "kernel", "stride", "padding"), CASES)
def test_values_and_gradients_are_those_of_a_convolution(batch, into, out, size, kernel, stride, padding):
    x = _random(batch, into, size, size, name="x").requires_grad_()
    weight = _random(out, into, kernel, kernel, name="w").requires_grad_()
    expected = F.conv2d(x, weight, stride=stride, padding=padding)
    slopes = _random(*expected.shape, name="slopes")
    truth = torch.autograd.grad(expected, (x, weight), slopes)
    convolution = _convolution(x, weight, stride, padding)
    patches = convolution.patches()
    found = convolution.output(patches)
    assert torch.allclose(found, expected, atol=1e-3)
    for ours, theirs in zip(torch.autograd.grad(found, (x, weight), slopes), truth, strict=True):
        assert torch.allclose(ours, theirs, atol=2e-3)
    factors = Factors(places(slopes), patches)
    formed = truth[1].flatten(1)
    assert torch.allclose(factors.dense(), formed, atol=2e-3)
    assert float(factors.square()) == pytest.approx(float(formed.square().sum()), rel=1e-4)
    other = _random(*formed.shape, name="other")
    assert float(factors.dot(other)) == pytest.approx(float((formed * other).sum()), rel=1e-3, abs=0.1)


@pytest.mark.parametrize(("batch", "into", "out", "size", "kernel", "stride", "padding"), CASES)
def test_a_step_along_factors_is_a_step_of_the_weights(batch, into, out, size, kernel, stride, padding):
    x = _random(batch, into, size, size, name="x").requires_grad_()
    weight = _random(out, into, kernel, kernel, name="w")
    before = Factors(_random(out, 7, name="left"), _random(7, into * kernel**2, name="right"))
    along = Factors.together([before, Factors(_random(out, 2, name="more"), _random(2, into * kernel**2, name="yet"))])
    moved = weight + 0.1 * along.dense().view_as(weight)
    expected = F.conv2d(x, moved, stride=stride, padding=padding)
    convolution = _convolution(x, weight, stride, padding)
    found = convolution.output(convolution.patches(), along, torch.tensor(0.1))
    assert torch.allclose(found, expected, atol=2e-3)
    slopes = _random(*expected.shape, name="slopes")
    ours, theirs = (torch.autograd.grad(value, x, slopes)[0] for value in (found, expected))
    assert torch.allclose(ours, theirs, atol=3e-3)


def test_it_cannot_be_differentiated_twice():
    x = _random(1, 64, 8, 8, name="x").requires_grad_()
    convolution = _convolution(x, _random(64, 64, 3, 3, name="w"), 1, 1)
    (slope,) = torch.autograd.grad(convolution.output(convolution.patches()).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(slope.sum(), x)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"bias": torch.zeros(64)}, "a bias"),
        ({"groups": 2, "weight": torch.zeros(64, 32, 5, 5)}, "groups"),
        ({"dilation": (2, 2)}, "dilation"),
        ({"padding": "same"}, "padding by a word"),
        ({"x": torch.zeros(1, 64, 32, 32)}, "an input oneDNN convolves as fast"),
        ({"x": torch.zeros(64, 8, 8)}, "no batch"),
        ({"x": torch.zeros(1, 64, 8, 8).double(), "weight": torch.zeros(64, 64, 3, 3).double()}, "double precision"),
        ({"weight": torch.zeros(8, 64, 3, 3)}, "few weights"),
    ],
)
def test_other_convolutions_are_left_to_pytorch(change: dict, why: str):
    usual = {"x": torch.zeros(1, 64, 8, 8), "weight": torch.zeros(64, 64, 3, 3), "bias": None, "stride": (1, 1)}
    usual |= {"padding": (1, 1), "dilation": (1, 1), "groups": 1}
    assert Convolution.of(torch.conv2d, tuple(usual.values()), {}) is not None
    assert Convolution.of(torch.conv2d, tuple((usual | change).values()), {}) is None, why
    assert Convolution.of(torch.conv1d, tuple(usual.values()), {}) is None
