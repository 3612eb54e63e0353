"""Attackers who know Refiner: the hinge on its ball, App. M's reading, the network as a prior, averages over rounds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import grad

from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.defence import AttackerView
from fedseal.core.errors import InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.data.registry import DATASETS
from fedseal.defences.refiner.adaptive import Adaptive, average_over_rounds, into_the_ball, on_the_sphere
from fedseal.defences.refiner.defence import Refiner
from fedseal.federation.client import RoundConfig, client_round
from fedseal.metrics.image import psnr
from fedseal.models.registry import build_model


def gradients(apart: float) -> tuple[Tensors, Tensors]:
    """Return two gradients a given distance apart."""
    source = generator(0)
    observed = {"a": torch.randn(4, 3, generator=source).double(), "b": torch.randn(5, generator=source).double()}
    direction = {name: torch.randn(t.shape, generator=source).double() for name, t in observed.items()}
    length = flatten(direction).norm()
    return {name: t + apart * direction[name] / length for name, t in observed.items()}, observed


def tenth(observed: Tensors) -> float:
    """A radius that no upload changes."""
    return 0.1


@pytest.mark.parametrize("apart", [0.0, 0.05, 0.0999])
def test_inside_the_ball_nothing_contradicts_the_upload(apart: float):
    gradient, observed = gradients(apart)
    simulated = into_the_ball(tenth)(gradient, observed)
    assert float((flatten(simulated) - flatten(observed)).norm()) == pytest.approx(0, abs=1e-15)

    def objective(dummy: Tensors) -> Tensor:
        return (flatten(into_the_ball(tenth)(dummy, observed)) - flatten(observed)).square().sum()

    assert all(bool((slope == 0).all()) for slope in grad(objective)(gradient).values())


@pytest.mark.parametrize("apart", [0.11, 1.0, 30.0])
def test_outside_the_distance_is_the_hinge(apart: float):
    gradient, observed = gradients(apart)
    simulated = into_the_ball(tenth)(gradient, observed)
    assert float((flatten(simulated) - flatten(observed)).norm()) == pytest.approx(apart - 0.1)


def test_app_m_solves_its_equation_and_stays_where_the_upload_is():
    _, observed = gradients(1.0)
    scale = torch.rand(17, generator=generator(1)).double() + 0.1
    found = flatten(on_the_sphere(scale, tenth)(observed))
    seen = flatten(observed)
    weights = scale * seen.abs()
    weights = weights / weights.mean()
    assert float((weights * (found - seen).square()).sum()) == pytest.approx(0.01, rel=1e-6)
    assert torch.equal(found, flatten(on_the_sphere(scale, tenth)(observed)))


def played(defence: Refiner, batch: Batch, local_steps: int = 1) -> Tensors:
    model = build_model("lenet:init=wide-uniform", input_shape=(1, 32, 32), num_classes=2, seed=0)
    config = RoundConfig(local_steps=local_steps, learning_rate=0.05)
    return client_round(model, [batch] * local_steps, config, defence, generator(0)).update.tensors


def faces(count: int) -> Batch:
    return DATASETS.build("faces").batch(torch.arange(0, 100, 100 // count)[:count])


def reach(view: AttackerView, observed: Tensors) -> float:
    """Return the radius of a view's ball, as the distance it forgives."""
    observed = {name: t.double() for name, t in observed.items()}
    far = {name: t + 1 for name, t in observed.items()}
    before = (flatten(far) - flatten(observed)).norm()
    after = (flatten(view.simulate(far, observed)) - flatten(observed)).norm()
    return float(before - after)


def test_the_ball_is_in_the_units_of_the_update():
    for steps, radius in ((1, 0.1), (3, 0.1 * 3 * 0.05)):
        defence = Refiner(t=1, epsilon=0.1)
        sent = played(defence, faces(1), steps)
        assert reach(defence.attacker_view(), sent) == pytest.approx(radius, rel=1e-3)


def test_a_harmless_refiner_gives_nothing_to_know_and_a_boundless_one_no_ball():
    gradient, observed = gradients(1.0)
    harmless, boundless = (
        Refiner(alpha=0.0, beta=0.0).attacker_view(),
        Refiner(epsilon=math.inf, adaptive="appendix-m").attacker_view(),
    )
    assert harmless.image_prior is None
    assert boundless.image_prior is not None
    for view in (harmless, boundless):
        assert view.simulate(gradient, observed) is gradient
        assert view.read(observed) is observed


def test_the_prior_prefers_what_is_no_noise():
    prior = Refiner(prior=2.0).attacker_view().image_prior
    assert prior is not None
    images = faces(4).images
    noise = torch.rand(images.shape, generator=generator(0))
    assert float(prior(noise)) == pytest.approx(2, abs=0.2)
    assert float(prior(images)) < 0.3
    assert Refiner(prior=0.0).attacker_view().image_prior is None


def test_app_m_is_a_reading_and_nothing_else():
    defence = Refiner(t=1, epsilon=0.1, adaptive="appendix-m")
    sent = played(defence, faces(1))
    view = defence.attacker_view()
    assert view.parameters["attack"] == "appendix-m"
    assert view.image_prior is None
    read = view.read(sent)
    assert list(read) == list(sent)
    assert 0 < float((flatten(read) - flatten(sent)).norm()) < 10


def test_averages_over_rounds_come_nearer_than_any_round():
    images = faces(3).images
    rounds = []
    for number in range(6):
        noisy = (images + 0.2 * torch.randn(images.shape, generator=generator(number))).clamp(0, 1)
        rounds.append(noisy[torch.randperm(3, generator=generator(number))])
    rounds[0] = rounds[0][psnr_order(images, rounds[0])]
    together = float(psnr(average_over_rounds(rounds), images, data_range=1.0).mean())
    alone = float(psnr(rounds[0], images, data_range=1.0).mean())
    assert together > alone + 4
    with pytest.raises(InputError, match="at least one round"):
        average_over_rounds([])


def averaged(warm: int, clients: int = 3, rounds: int = 4) -> tuple[float, float]:
    """Return the mean PSNR of single rounds and of their average: clients who train on one face each, all attacked."""
    batch = faces(clients)
    model = build_model("lenet-relu", input_shape=(1, 32, 32), num_classes=2, seed=0)
    knowledge = Knowledge(
        input_shape=(1, 32, 32), num_classes=2, label_rule="identity", batch_size=1, local_steps=1, learning_rate=0.1
    )
    defences = [Refiner(epsilon=0.2, warm=warm) for _ in range(clients)]
    found = []
    for number in range(rounds):
        updates = [
            client_round(
                model, [Batch(image[None], label[None])], RoundConfig(), defence, generator(number, place)
            ).update
            for place, (image, label, defence) in enumerate(zip(batch.images, batch.labels, defences, strict=True))
        ]
        seen = [Observation(model, update, knowledge) for update in updates]
        results = ATTACKS.build("ig:iterations=100,tv=0.02").run_many(seen, Budget(), list(range(clients)))
        found.append(torch.cat([one.images for one in results]).clamp(0, 1))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.1 * torch.stack([update.tensors[name] for update in updates]).mean(0)
    single = torch.stack([psnr(images, batch.images, data_range=1.0) for images in found])
    mean = torch.cat([average_over_rounds([images[i : i + 1] for images in found]) for i in range(clients)])
    return float(single.mean()), float(psnr(mean, batch.images, data_range=1.0).mean())


@pytest.mark.slow
def test_averages_over_real_rounds_come_nearer_and_less_so_under_a_warm_start():
    """What fresh noise hides in one round it shows over many; a remembered x* shows the same again (refiner.md)."""
    fresh, warm = averaged(0), averaged(10)
    assert fresh[1] > fresh[0] + 1
    assert warm[1] > warm[0] + 0.5
    assert warm[1] - warm[0] < fresh[1] - fresh[0]


def psnr_order(images: Tensor, found: Tensor) -> Tensor:
    return torch.stack([(found - image).square().mean((1, 2, 3)).argmin() for image in images])


def attacked(attack: str, adaptive: Adaptive, count: int = 4) -> dict[str, float]:
    """Return the mean PSNR of an attack on faces under Refiner, by one who does not know it and one who does."""
    batch = faces(count)
    model = build_model("lenet-relu", input_shape=(1, 32, 32), num_classes=2, seed=0)
    knowledge = Knowledge(
        input_shape=(1, 32, 32), num_classes=2, label_rule="identity", batch_size=1, local_steps=1, learning_rate=0.1
    )
    observations, views = [], []
    for index in range(count):
        own = Batch(batch.images[index : index + 1], batch.labels[index : index + 1])
        defence = Refiner(epsilon=0.2, adaptive=adaptive)
        update = client_round(model, [own], RoundConfig(), defence, generator(0, index)).update
        observations.append(Observation(model, update, knowledge))
        views.append(defence.attacker_view())
    aware = [replace(one, knowledge=replace(knowledge, defence=views[0])) for one in observations]
    scores = {}
    for name, seen in (("naive", observations), ("aware", aware)):
        found = ATTACKS.build(attack).run_many(seen, Budget(), list(range(count)))
        images = torch.cat([one.images for one in found]).clamp(0, 1)
        scores[name] = float(psnr(images, batch.images, data_range=1.0).mean())
    return scores


@pytest.mark.slow
def test_who_knows_refiner_is_not_worse_off():
    scores = attacked("ig:iterations=200,tv=0.02", "ball")
    assert scores["aware"] >= scores["naive"]


@pytest.mark.slow
def test_app_m_gains_nothing():
    scores = attacked("ig:iterations=200,tv=0.02", "appendix-m")
    assert scores["aware"] < scores["naive"] + 0.5
