"""Noise by slopes: the allotment in closed form, its total, and a lower ideal reading than even noise of that total."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.matching.objectives import Layout, Likelihood
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.defence import NoiseLaw, RoundContext
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.defences.optimal_noise import OptimalNoise, allotted
from fedseal.defences.pipeline import build_defence
from fedseal.defences.slopes import row_norms
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.loss import client_loss
from fedseal.information.ideal import Options, ideal_reading
from fedseal.information.prior import fit_prior
from fedseal.information.upload import upload_behind
from fedseal.models.registry import build_model

SHAPE = (1, 8, 8)


class Linear(nn.Module):
    """One logit against zero, linear in the image: by its weights the gradient is c x, c a number."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs))

    def forward(self, x: Tensor) -> Tensor:
        value = x.flatten(1) @ self.weight
        return torch.stack([value, torch.zeros_like(value)], 1)


def of(model: nn.Module, batch: Batch, seed: int = 0) -> RoundContext:
    loss = client_loss(RoundConfig().normalisation, "mean", "cross-entropy")
    return RoundContext(model, loss, generator(seed), batch=batch)


def gradient_of(model: nn.Module, batch: Batch) -> Tensors:
    return client_round(model, [batch], RoundConfig(), build_defence("none"), generator(0)).update.tensors


def small() -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, Batch(torch.rand(2, 1, 2, 3), torch.tensor([0, 2]))


def test_the_allotment_by_hand():
    slopes = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([[0.0], [4.0]])}
    found = allotted(slopes, 0.1)
    torch.testing.assert_close(flatten(found), torch.tensor([0.005, 0.015, 0.0, 0.02], dtype=torch.float64))
    half = allotted(slopes, 0.1, even=0.5)
    torch.testing.assert_close(flatten(half), (flatten(found) + 0.01) / 2)


def test_the_total_is_that_of_even_noise_and_no_other_split_holds_less_information():
    slopes = {"a": torch.rand(40, generator=generator(0), dtype=torch.float64) ** 3}
    best = flatten(allotted(slopes, 0.2))
    assert float(best.sum()) == pytest.approx(40 * 0.04)

    def information(variance: Tensor) -> float:
        return float((flatten(slopes).square() / variance).sum())

    assert information(best) == pytest.approx(float(flatten(slopes).sum()) ** 2 / (40 * 0.04))
    for seed in range(20):
        other = best * torch.exp(0.5 * torch.randn(40, generator=generator(seed), dtype=torch.float64))
        assert information(other * best.sum() / other.sum()) > information(best)


def test_where_nothing_follows_the_inputs_all_entries_get_the_same():
    assert bool((allotted({"a": torch.zeros(5)}, 0.1)["a"] == 0.1**2).all())


def test_slopes_of_a_linear_model_in_closed_form():
    # logits (w.x, 0): the gradient is (p - 1) x with p = 1/2 at w = 0, where the slope of p by x is zero
    model, batch = Linear(6), Batch(torch.rand(1, 1, 2, 3), torch.tensor([0]))
    found = row_norms(batch, of(model, batch), 0, gradient_of(model, batch), "optimal-noise")
    torch.testing.assert_close(found["weight"], torch.full((6,), 0.5))


def test_exact_slopes_are_the_rows_of_the_jacobian_and_probes_come_close():
    model, batch = small()
    like = gradient_of(model, batch)

    def gradients(images: Tensor) -> Tensor:
        loss = F.cross_entropy(model(images), batch.labels)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), create_graph=True)])

    rows = torch.autograd.functional.jacobian(gradients, batch.images).flatten(1).norm(dim=1)
    torch.testing.assert_close(flatten(row_norms(batch, of(model, batch), 0, like, "x")), rows, rtol=1e-4, atol=1e-7)
    estimated = flatten(row_norms(batch, of(model, batch), 400, like, "x"))
    torch.testing.assert_close(estimated, rows, rtol=0.25, atol=1e-6)


def test_noise_has_the_allotted_deviation_in_every_entry():
    model, batch = small()
    plain = gradient_of(model, batch)
    defence = OptimalNoise(sigma=0.5, clip=math.inf, probes=0)
    draws = torch.stack([flatten(defence.on_update(plain, of(model, batch, seed))) for seed in range(100)])
    wanted = flatten(defence.attacker_view().variances or {}).sqrt()
    torch.testing.assert_close((draws - flatten(plain)).double().std(0), wanted, rtol=0.35, atol=1e-4)


def digits_like() -> tuple[Batch, Tensor]:
    coarse = torch.rand(300, 1, 4, 4, generator=generator(0))
    images = F.interpolate(coarse, SHAPE[1:], mode="bilinear")
    return Batch(images[:2], torch.tensor([0, 3])), images[2:]


@pytest.mark.parametrize("sigma", [0.003, 0.03])
def test_the_ideal_reading_is_lower_than_under_even_noise_of_the_same_total(sigma: float):
    private, public = digits_like()
    prior, model = fit_prior(public), build_model("lenet-relu", input_shape=SHAPE, num_classes=4, seed=0)

    def reading(spec: str) -> float:
        defence = build_defence(spec)
        done = client_round(model, [private], RoundConfig(), defence, generator(0))
        observation = Observation(model, done.update, Knowledge(SHAPE, 4))
        upload = upload_behind(observation, defence, RoundConfig(), private, private)
        found = ideal_reading(upload, prior, Options(layers=False))
        assert found.psnr_db is not None
        assert found.prior_db is not None
        return found.psnr_db

    even, slanted = reading(f"gaussian:sigma={sigma}"), reading(f"optimal-noise:sigma={sigma},probes=64")
    assert slanted < even - 0.1


def test_the_likelihood_weighs_entries_by_their_variance():
    law, layout = NoiseLaw("gaussian", 1.0), Layout.of({"a": torch.zeros(3)})
    variances = torch.tensor([0.5, 2.0, 0.0])
    distance = Likelihood(law, variances=variances).distance(
        torch.tensor([1.0, 2.0, 0.01]), torch.zeros(3), layout, None
    )
    assert float(distance) == pytest.approx(1.0 + 1.0 + 0.0001 / (2 * 1e-4))


def test_an_attacker_who_knows_the_variances_attacks_each_client_by_its_own():
    model, batch = small()
    observations = []
    for seed in range(2):
        defence = OptimalNoise(sigma=0.01, probes=4)
        done = client_round(model, [batch], RoundConfig(), defence, generator(seed))
        known = Knowledge((1, 2, 3), 3, batch_size=2, labels=batch.labels, label_rule="true")
        view = defence.attacker_view()
        observations.append(Observation(model, done.update, Knowledge(**{**vars(known), "defence": view})))
    attack = ATTACKS.build("bayes")
    together = attack.run_many(observations, Budget(iterations=5), [0, 1])
    alone = attack.run(observations[1], Budget(iterations=5), 1)
    torch.testing.assert_close(together[1].images, alone.images)


def test_words_and_bad_options_are_refused():
    model, batch = small()
    with pytest.raises(CapabilityError, match="choices"):
        row_norms(Batch(torch.zeros(2, 3, dtype=torch.long), batch.labels, "text"), of(model, batch), 1, {}, "x")
    for bad in ({"sigma": -1.0}, {"clip": 0.0}, {"probes": -1}, {"even": 2.0}):
        with pytest.raises(UsageError, match="optimal-noise needs"):
            OptimalNoise(**bad)
