"""Closed forms of the single defences: kept counts, conservation, noise level, clip norm, nominal epsilon."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedseal.core.defence import RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten
from fedseal.defences.noise import GaussianNoise, clip_to_norm
from fedseal.defences.pipeline import build_defence
from fedseal.defences.pruning import TopK, keep_largest, match_observed_support

MODEL = nn.Linear(1, 1)


def context(seed: int | None = 0) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("these defences need no loss")

    return RoundContext(MODEL, no_loss, generator(seed))


def random_update(seed: int = 0) -> dict[str, Tensor]:
    source = generator(seed, "update")
    shapes = {"weight": (30, 7), "bias": (30,), "scalar": ()}
    return {name: torch.randn(shape, generator=source, dtype=torch.float64) for name, shape in shapes.items()}


@given(st.integers(0, 200), st.floats(0, 0.999), st.integers(0, 5))
def test_exactly_the_share_of_entries_is_kept_even_among_ties(size: int, ratio: float, distinct: int):
    values = torch.arange(size, dtype=torch.float64) % (distinct + 1) + 1  # no zeros, many ties
    kept = keep_largest(values, ratio)
    exact = (1 - ratio) * size
    assert int((kept != 0).sum()) == math.ceil(round(exact, 9))
    smallest = kept[kept != 0].min() if bool(kept.any()) else math.inf
    assert bool((values[kept == 0] <= smallest).all())
    assert torch.equal(kept[kept != 0], values[kept != 0])


@pytest.mark.parametrize(("ratio", "size", "kept"), [(0.9, 10, 1), (0.8, 1000, 200), (0.7, 10, 3), (0.95, 7, 1)])
def test_kept_counts_by_hand(ratio: float, size: int, kept: int):
    assert int((keep_largest(torch.randn(size), ratio) != 0).sum()) == kept


def test_every_tensor_is_pruned_by_itself():
    update = {"large": 1000 * torch.rand(100) + 1, "small": torch.rand(100) + 1}
    sent = TopK(ratio=0.9).on_update(update, context())
    assert {name: int((t != 0).sum()) for name, t in sent.items()} == {"large": 10, "small": 10}


def test_what_feedback_withholds_is_sent_in_the_end():
    defence = TopK(ratio=0.9, feedback=True)
    updates = [random_update(seed) for seed in range(20)]
    sent = [defence.on_update(update, context()) for update in updates]
    residual = defence.state_dict()
    for name in updates[0]:
        total = sum(update[name] for update in updates)
        torch.testing.assert_close(sum(s[name] for s in sent) + residual[name], total, rtol=0, atol=1e-12)
    assert bool(residual["weight"].any())


def test_without_feedback_nothing_is_remembered():
    defence = TopK(ratio=0.9)
    first = defence.on_update(random_update(), context())
    assert defence.state_dict() == {}
    second = defence.on_update(random_update(), context())
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_mask_aware_attacker_compares_only_what_was_sent():
    observed = {"w": torch.tensor([0.0, 2.0, -0.0, -1.0])}
    dummy = {"w": torch.tensor([1.0, 1.0, 1.0, 1.0])}
    assert match_observed_support(dummy, observed)["w"].tolist() == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("sigma", [1e-3, 0.1, 7.0])
def test_the_noise_has_the_declared_deviation(sigma: float):
    update = {"w": torch.zeros(300, 300), "b": torch.zeros(10_000)}
    sent = flatten(GaussianNoise(sigma=sigma).on_update(update, context()))
    assert float(sent.std()) == pytest.approx(sigma, rel=0.01)
    assert float(sent.mean()) == pytest.approx(0, abs=0.01 * sigma)
    assert float((sent.abs() < sigma).double().mean()) == pytest.approx(0.6827, abs=0.005)


@pytest.mark.parametrize("bound", [1e-3, 1.0, 5.0])
def test_long_updates_are_clipped_to_the_bound_in_their_direction(bound: float):
    update = random_update()
    clipped = clip_to_norm(update, bound)
    assert float(flatten(clipped).norm()) == pytest.approx(bound, rel=1e-9)
    assert float(torch.cosine_similarity(flatten(update), flatten(clipped), dim=0)) == pytest.approx(1)


@pytest.mark.parametrize("bound", [1e3, math.inf])
def test_short_updates_are_left_alone(bound: float):
    update = random_update()
    clipped = clip_to_norm(update, bound)
    assert all(torch.equal(update[name], clipped[name]) for name in update)


def test_clipping_zero_is_zero():
    clipped = clip_to_norm({"w": torch.zeros(3)}, 1.0)
    assert clipped["w"].tolist() == [0, 0, 0]


def test_the_noise_comes_after_clipping():
    update = {"w": torch.full((200, 200), 100.0)}
    sent = GaussianNoise(sigma=1.0, clip=1e-6).on_update(update, context())["w"]
    assert float(sent.std()) == pytest.approx(1, rel=0.01)


def test_nominal_epsilon_follows_the_formula():
    report = GaussianNoise(sigma=0.0480, clip=1.0).report()
    assert report.epsilon_nominal == pytest.approx(100, rel=1e-3)  # FedLeak's own setting
    assert report.remarks
    assert GaussianNoise(sigma=0.1, clip=math.inf).report().epsilon_nominal is None
    assert GaussianNoise(sigma=0.0).report().epsilon_nominal is None


@pytest.mark.parametrize(
    "spec",
    [
        "topk:ratio=1",
        "topk:ratio=-0.1",
        "topk:ratio=nan",
        "gaussian:sigma=-1",
        "gaussian:clip=0",
        "gaussian:sigma=nan",
        "gaussian:sigma=inf",
        "gaussian:clip=nan",
    ],
)
def test_nonsense_strengths_are_refused(spec: str):
    with pytest.raises(UsageError, match=spec.split(":")[0]):
        build_defence(spec)
