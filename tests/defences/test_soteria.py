"""Soteria: scores against finite differences, what is pruned, what it costs, and how it is broken."""

from __future__ import annotations

import time

import numpy
import pytest
import torch
from torch import Tensor, nn

from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Defence
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
from fedseal.defences.soteria import (
    Soteria,
    defended_layer,
    estimated_row_norms,
    exact_row_norms,
    representation,
)
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import IMAGE_RANGE
from fedseal.models.registry import build_model

SHAPE = (1, 16, 16)


def smooth_images(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    coarse = torch.rand(count, shape[0], 4, 4, generator=generator(seed, "images"))
    return nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic", align_corners=False).clamp(0, 1)


def data(count: int, shape: tuple[int, int, int] = SHAPE, classes: int = 10, seed: int = 0) -> Batch:
    labels = torch.randint(classes, (count,), generator=generator(seed, "labels"))
    return Batch(smooth_images(count, shape, seed), labels)


def upload(model: nn.Module, defence: Defence, batch: Batch, config: RoundConfig | None = None) -> Tensors:
    return client_round(model, [batch], config or RoundConfig(), defence, generator(0)).update.tensors


def zero_columns(gradient: Tensor) -> Tensor:
    return (gradient == 0).all(0)


@pytest.mark.parametrize(
    ("spec", "weight"),
    [
        ("lenet", "7.weight"),
        ("mlp:depth=2,width=20", "3.weight"),
        ("mlp:depth=3,width=20", "3.weight"),
        ("resnet10:width=4", "fc.weight"),
        ("vit-tiny:width=12,depth=1", "head.weight"),
        ("vit-tiny:width=12,depth=1,pool=mean", "head.weight"),
    ],
)
def test_the_layer_is_found_by_what_it_sees(spec: str, weight: str):
    model = build_model(spec, input_shape=SHAPE, num_classes=3, seed=0)
    assert defended_layer(model, data(2).images).weight_name == weight


def test_with_several_linear_layers_behind_convolutions_it_is_the_first():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(98, 9), nn.ReLU(), nn.Linear(9, 3))
    assert defended_layer(model, data(2).images).name == "3"


@pytest.mark.parametrize("model", [nn.Sequential(nn.Flatten(), nn.Linear(256, 3)), nn.Conv2d(1, 3, 16)])
def test_without_a_representation_it_is_refused(model: nn.Module):
    with pytest.raises(CapabilityError, match="soteria"):
        defended_layer(model, data(2).images)


def two_layers() -> tuple[nn.Module, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, model[3]


def test_exact_norms_are_those_of_a_finite_difference_jacobian():
    model, layer = two_layers()
    images = torch.rand(4, 1, 3, 4, dtype=torch.float64, generator=generator(0))
    features = representation(model, layer)
    r, norms = exact_row_norms(features, images)
    step = 1e-6
    squares = torch.zeros(4, 5, dtype=torch.float64)
    with torch.no_grad():
        for pixel in range(12):
            shift = torch.zeros(12, dtype=torch.float64)
            shift[pixel] = step
            shift = shift.view(1, 1, 3, 4)
            squares += ((features(images + shift) - features(images - shift)) / (2 * step)).square()
        torch.testing.assert_close(r, model[:3](images))
    torch.testing.assert_close(norms, squares.sqrt(), rtol=1e-6, atol=0)


def test_estimated_norms_converge_to_the_exact_ones():
    model, layer = two_layers()
    images = torch.rand(4, 1, 3, 4, dtype=torch.float64, generator=generator(0))
    features = representation(model, layer)
    r, norms = exact_row_norms(features, images)
    errors = []
    for probes in (100, 10_000):
        same, estimates = estimated_row_norms(features, images, probes, generator(1))
        torch.testing.assert_close(same, r)
        errors.append(float((estimates / norms - 1).abs().max().detach()))
    assert errors[1] < min(0.05, errors[0])


def test_the_score_is_taken_at_the_models_own_inputs():
    model, _ = two_layers()
    batch = Batch(torch.rand(3, 1, 3, 4, dtype=torch.float64, generator=generator(0)), torch.tensor([0, 1, 2]))
    normalisation = Normalisation((0.4,), (0.05,))
    config = RoundConfig(normalisation=normalisation)
    sent = upload(model, Soteria(ratio=0.4, method="exact"), batch, config)["3.weight"]
    r, norms = exact_row_norms(representation(model, model[3]), normalisation(batch.images))
    expected = (r.abs() / norms).mean(0).topk(2).indices
    assert sorted(zero_columns(sent).nonzero().flatten().tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize("spec", ["lenet:init=wide-uniform", "resnet10:width=4,activation=tanh"])  # no dead features
@pytest.mark.parametrize("ratio", [0.1, 0.35, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("method", ["probes", "exact"])
def test_exactly_the_share_of_columns_is_zeroed_and_nothing_else_is_touched(spec: str, ratio: float, method: str):
    model = set_mode(build_model(spec, input_shape=SHAPE, num_classes=3, seed=0), RoundConfig())
    batch = data(2, classes=3)
    plain = upload(model, Defence(), batch)
    sent = upload(model, build_defence(f"soteria:ratio={ratio},method={method}"), batch)
    weight = defended_layer(model, batch.images).weight_name
    pruned = zero_columns(sent[weight])
    assert not bool(zero_columns(plain[weight]).any())
    assert int(pruned.sum()) == round(ratio * len(pruned))
    assert torch.equal(sent[weight][:, ~pruned], plain[weight][:, ~pruned])
    assert all(torch.equal(sent[name], plain[name]) for name in plain if name != weight)


def test_ratio_zero_returns_the_gradient_itself():
    gradient = {"w": torch.ones(2)}
    assert Soteria(ratio=0).on_gradient(gradient, None) is gradient  # type: ignore[arg-type]


def test_the_official_score_prunes_as_the_released_code_does():
    r = torch.rand(3, 40, generator=generator(0)) - 0.3
    norms = torch.rand(3, 40, generator=generator(1))
    summed = (norms / (r + 0.1)).sum(0).numpy()
    expected = numpy.abs(summed) < numpy.percentile(summed.flatten(), 60)
    pruned = Soteria(ratio=0.6, official_score=True).pruned(r, norms)
    assert pruned.tolist() == expected.tolist()


def test_dead_features_do_not_eat_the_budget():
    r, norms = torch.tensor([[0.0, 1.0, 2.0, 0.0]]), torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    assert Soteria(ratio=0.5).pruned(r, norms).tolist() == [False, True, True, False]


def test_running_statistics_are_left_alone():
    config = RoundConfig(bn_mode="train-nostats")
    model = set_mode(build_model("resnet10:width=4", input_shape=SHAPE, num_classes=3, seed=0), config)
    defended, plain = Soteria(), Defence()
    sent, expected = (upload(model, d, data(4, classes=3), config) for d in (defended, plain))
    assert torch.equal(sent["conv1.weight"], expected["conv1.weight"])
    assert defended.report().extra_passes == 64


def overlap(spec: str, shape: tuple[int, int, int], count: int) -> float:
    model = build_model(spec, input_shape=shape, num_classes=10, seed=0)
    features = representation(model, defended_layer(model, data(2, shape).images).module)
    inputs = data(count, shape).images
    with torch.no_grad():
        exact = Soteria().pruned(*exact_row_norms(features, inputs))
        probed = Soteria().pruned(*estimated_row_norms(features, inputs, max(12, 256 // count), generator(0)))
    return float((exact & probed).sum() / exact.sum())


@pytest.mark.parametrize("count", [1, 8, 32])
@pytest.mark.parametrize("spec", ["lenet", "lenet-relu"])
def test_probes_prune_almost_the_same_columns(spec: str, count: int):
    assert overlap(spec, (3, 16, 16), count) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["lenet", "lenet-relu"])
def test_probes_agree_and_are_cheap_at_batch_128(spec: str):
    shape = (3, 32, 32)
    model, batch = build_model(spec, input_shape=shape, num_classes=10, seed=0), data(128, shape)

    def seconds(defence: Defence) -> float:
        start = time.process_time()
        upload(model, defence, batch)
        return time.process_time() - start

    plain = min(seconds(Defence()) for _ in range(5)) / 2  # a round also measures its undefended self
    defended = min(seconds(Soteria()) for _ in range(3)) - plain
    assert defended <= 20 * plain  # about 8 on an idle machine; the exact way costs hundreds
    assert overlap(spec, shape, 128) >= 0.9


def toy_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Conv2d(1, 6, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(6, 6, 5, 2, 2), nn.Sigmoid())
        net = nn.Sequential(*net, nn.Flatten(), nn.Linear(6 * 9, 10))
        for parameter in net.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return set_mode(net, RoundConfig())


def reconstruct(spec: str, *, aware: bool) -> float:
    shape, model, defence = (1, 12, 12), toy_net(), build_defence(spec)
    batch = data(1, shape)
    update = client_round(model, [batch], RoundConfig(), defence, generator(0, "noise")).update
    view = defence.attacker_view() if aware else None
    known = Knowledge(shape, 10, label_rule="true", batch_size=1, labels=batch.labels, local_steps=1, defence=view)
    found = ATTACKS.build("ig").run_many([Observation(model, update, known)], Budget(250, 1), [0])[0]
    return float(psnr(batch.images, found.images, data_range=IMAGE_RANGE))


def test_leaving_the_layer_out_breaks_it():
    undefended = reconstruct("none", aware=False)
    assert undefended > 20
    assert reconstruct("soteria", aware=False) < 12
    assert reconstruct("soteria:attacker=mute", aware=True) > undefended - 0.5
    assert reconstruct("soteria:attacker=mask", aware=True) > undefended - 0.5


@pytest.mark.parametrize("spec", ["soteria:ratio=1.1", "soteria:ratio=-0.1", "soteria:ratio=nan", "soteria:probes=0"])
def test_nonsense_is_refused(spec: str):
    with pytest.raises(UsageError, match="soteria"):
        build_defence(spec)
