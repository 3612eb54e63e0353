"""MixUp and InstaHide: coefficients, partners, labels, and that the gradient leaks what was fed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.defences.mixing import InstaHide, MixUp, mixing_weights, partners
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.models.registry import build_model

SHAPE = (1, 8, 8)
MODEL = build_model("mlp:width=64", input_shape=SHAPE, num_classes=5, seed=0)


def data(count: int = 6, seed: int = 0) -> Batch:
    source = generator(seed, "images")
    return Batch(torch.rand(count, *SHAPE, generator=source), torch.randint(5, (count,), generator=source))


def context(seed: int = 0) -> RoundContext:
    return RoundContext(MODEL, None, generator(seed, "mixing"))  # type: ignore[arg-type]


@given(st.integers(1, 40), st.integers(2, 6), st.floats(0.51, 1), st.integers(0, 5))
@settings(deadline=None)
def test_coefficients_sum_to_one_and_keep_the_bound(count: int, k: int, largest: float, seed: int):
    weights = mixing_weights(count, k, largest, generator(seed))
    assert weights.shape == (count, k)
    torch.testing.assert_close(weights.sum(1), torch.ones(count, dtype=torch.float64))
    assert float(weights.min()) >= 0
    assert float(weights.max()) <= largest


def test_without_a_bound_coefficients_are_dirichlet():
    weights = mixing_weights(40_000, 4, 1.0, generator(0))
    law = torch.distributions.Dirichlet(torch.tensor([3.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(weights.mean(0), law.mean, atol=0.005, rtol=0)
    torch.testing.assert_close(weights.var(0), law.variance, atol=0.002, rtol=0)


@given(st.integers(1, 20), st.integers(0, 30), st.integers(2, 5), st.integers(0, 5))
def test_no_image_is_mixed_in_twice(count: int, more: int, k: int, seed: int):
    pool = count + more + k
    own = torch.arange(count)
    own[::3] = -1
    chosen = partners(own, pool, k, generator(seed))
    assert chosen.shape == (count, k - 1)
    for index, row in zip(own.tolist(), chosen.tolist(), strict=True):
        assert len({*row, index}) == k
        assert all(0 <= other < pool for other in row)


def test_labels_are_mixed_as_images_are():
    batch = data(6)
    batch = Batch(batch.labels.view(-1, 1, 1, 1).expand(-1, *SHAPE).float() / 5, batch.labels)
    fed = MixUp().on_batch(batch, context())
    assert fed.labels.shape == (6, 5)
    torch.testing.assert_close(fed.labels.sum(1), torch.ones(6))
    expected = (fed.labels * torch.arange(5)).sum(1) / 5
    torch.testing.assert_close(fed.images[:, 0, 0, 0], expected)


def test_partners_come_from_the_clients_data_if_it_is_known():
    defence, pool = MixUp(), data(50, seed=4)
    assert defence.prepare(pool, generator(0)) is pool
    alone = Batch(pool.images[7:8], pool.labels[7:8])
    fed = defence.on_batch(alone, context())
    assert not torch.equal(fed.images, alone.images)
    assert defence.report().remarks == ()


def test_a_single_image_without_partners_stays_as_it_is_and_that_is_said():
    defence, batch = MixUp(), data(1)
    assert defence.on_batch(batch, context()) is batch
    assert "1 instead of 4" in defence.report().remarks[0]


def test_two_images_are_mixed_below_the_bound():
    defence = MixUp()
    fed = defence.on_batch(data(2), context())
    assert float(fed.images.max()) <= 1
    assert defence.report().remarks == ("mixup mixed 2 instead of 4 images: there were no more",)


def test_mixtures_are_fresh_in_every_step():
    shared = context()
    first, second = (InstaHide().on_batch(data(), shared) for _ in range(2))
    assert not torch.equal(first.images, second.images)


def test_instahide_flips_about_half_of_the_pixels_about_grey():
    mixed, hidden = (defence.on_batch(data(), context()) for defence in (MixUp(), InstaHide()))
    flipped = hidden.images != mixed.images
    assert float(flipped.double().mean()) == pytest.approx(0.5, abs=0.1)
    assert torch.equal(hidden.images[flipped], (1 - mixed.images)[flipped])
    assert torch.equal(hidden.labels, mixed.labels)


@pytest.mark.parametrize("spec", ["mixup:k=1", "instahide:k=1,flip=false"])
def test_a_mixture_of_one_is_the_image(spec: str):
    batch = data()
    assert build_defence(spec).on_batch(batch, context()) is batch


def test_mixtures_can_be_mixed_again():
    fed = build_defence("mixup+instahide").on_batch(data(), context())
    torch.testing.assert_close(fed.labels.sum(1), torch.ones(6))


@pytest.mark.parametrize("spec", ["mixup", "instahide"])
def test_the_gradient_leaks_the_mixture_exactly(spec: str):
    defence, pool = build_defence(spec), data(20, seed=2)
    defence.prepare(pool, generator(0))
    batch = Batch(pool.images[:1], pool.labels[:1])
    done = client_round(MODEL, [batch], RoundConfig(), defence, generator(0))
    known = Knowledge(SHAPE, 5, label_rule="true", batch_size=1, labels=batch.labels, local_steps=1)
    found = ATTACKS.build("first-layer").run_many([Observation(MODEL, done.update, known)], Budget(), [0])[0]
    assert float((found.images - done.fed[0].images).abs().max()) < 1e-4
    assert float((found.images - batch.images).abs().max()) > 0.1


def test_per_sample_defences_take_soft_labels():
    class PerSample(Defence):
        needs_sample_grads = True

    batch = MixUp().on_batch(data(), context())
    one, other = (client_round(MODEL, [batch], RoundConfig(), d, generator(0)) for d in (PerSample(), Defence()))
    for name, tensor in other.update.tensors.items():
        torch.testing.assert_close(one.update.tensors[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spec", ["mixup:k=0", "mixup:largest=0.2", "instahide:largest=1.5", "mixup:largest=nan"])
def test_nonsense_is_refused(spec: str):
    with pytest.raises(UsageError, match=spec.split(":")[0]):
        build_defence(spec)
