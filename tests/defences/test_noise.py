"""Additive noise: its law, its epsilon, and the attack that knows it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

from fedseal.core.attack import ATTACKS
from fedseal.core.defence import NoiseLaw, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten
from fedseal.defences.noise import GaussianNoise, LaplaceNoise, clip_to_norm, with_noise
from fedseal.defences.pipeline import build_defence
from fedseal.metrics.image import psnr

FALSE_ALARM = 1e-3


def context(round_number: int = 0, seed: int = 0) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("noise needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(seed), round_number)


def zeros() -> dict[str, Tensor]:
    return {"weight": torch.zeros(400, 400), "bias": torch.zeros(40_000)}


@pytest.mark.parametrize("scale", [1e-4, 0.3, 20.0])
@pytest.mark.parametrize(("family", "law", "std"), [("gaussian", "norm", 1.0), ("laplace", "laplace", math.sqrt(2))])
def test_the_noise_follows_its_law(family: str, law: str, std: float, scale: float):
    option = "sigma" if family == "gaussian" else "scale"
    sent = flatten(build_defence(f"{family}:{option}={scale}").on_update(zeros(), context()))
    assert float(sent.std()) == pytest.approx(std * scale, rel=0.01)
    assert kstest(sent.double().numpy() / scale, law).pvalue > FALSE_ALARM


def test_the_laws_can_be_told_apart():
    noise = flatten(with_noise(zeros(), NoiseLaw("laplace", 1 / math.sqrt(2)), generator(0)))
    assert kstest(noise.double().numpy(), "norm").pvalue < FALSE_ALARM


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_draw_is_finite_in_every_precision(dtype: torch.dtype):
    noise = with_noise({"w": torch.zeros(1_000_000, dtype=dtype)}, NoiseLaw("laplace", 1.0), generator(0))["w"]
    assert noise.dtype == dtype
    assert bool(torch.isfinite(noise).all())


@pytest.mark.parametrize(("norm", "order"), [("l1", 1.0), ("l2", 2.0)])
def test_laplace_clips_by_the_norm_it_names(norm: str, order: float):
    update = {"w": torch.randn(50, 4, generator=generator(0)), "b": torch.randn(7, generator=generator(1))}
    defence = build_defence(f"laplace:scale=0,clip=0.5,norm={norm}")
    sent = defence.on_update(update, context())
    assert float(flatten(sent).norm(order)) == pytest.approx(0.5, rel=1e-5)
    simulated = defence.attacker_view().simulate(update, sent)
    assert all(torch.equal(simulated[name], sent[name]) for name in sent)


def test_without_strength_laplace_is_the_identity():
    update = {"w": torch.tensor([-0.0, 1.0, -3.0])}
    sent = LaplaceNoise(scale=0, clip=math.inf).on_update(update, context())
    assert sent["w"] is update["w"]
    assert LaplaceNoise(scale=0, clip=math.inf).attacker_view().noise is None


def test_gaussian_epsilon_is_exact_and_composed_over_rounds():
    defence = GaussianNoise(sigma=0.048, clip=1.0)
    assert defence.report().epsilon_accounted is None
    defence.on_update(zeros(), context())
    first = defence.report().epsilon_accounted
    assert first == pytest.approx(305, abs=1)  # a nominal epsilon of 100 is really 305
    defence.on_update(zeros(), context(round_number=3))
    assert defence.report().epsilon_accounted == pytest.approx(4 / (2 * 0.048**2), rel=0.25)
    assert defence.traits.accounts_epsilon
    assert not GaussianNoise(sigma=0.1, clip=math.inf).traits.accounts_epsilon


def test_laplace_epsilon_knows_the_norm():
    update = {"w": torch.zeros(100)}
    reports = {}
    for norm in ("l1", "l2"):
        defence = build_defence(f"laplace:scale=0.5,clip=2,norm={norm}")
        defence.on_update(update, context(round_number=1))
        reports[norm] = defence.report()
    assert reports["l1"].epsilon_nominal == reports["l2"].epsilon_nominal == 4
    assert reports["l1"].epsilon_accounted == pytest.approx(2 * 4)
    assert reports["l2"].epsilon_accounted == pytest.approx(2 * 4 * 10)
    assert any("sqrt(N)" in remark for remark in reports["l2"].remarks)


@pytest.mark.parametrize("spec", ["laplace:scale=-1", "laplace:scale=nan", "laplace:clip=0", "laplace:scale=inf"])
def test_nonsense_is_refused(spec: str):
    with pytest.raises(UsageError, match="laplace"):
        build_defence(spec)


def test_clipping_by_one_norm_leaves_shorter_updates_alone():
    update = {"w": torch.tensor([0.3, -0.3])}
    assert torch.equal(clip_to_norm(update, 0.7, 1.0)["w"], update["w"])
    assert float(clip_to_norm(update, 0.3, 1.0)["w"].abs().sum()) == pytest.approx(0.3)


def victims() -> tuple[Callable, Callable]:
    """The victims of the attacks' own tests."""
    path = Path(__file__).parents[1] / "attacks" / "conftest.py"
    spec = importlib.util.spec_from_file_location("attack_victims", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.observe.__wrapped__(), module.toy_net.__wrapped__()


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "margin"), [("gaussian:sigma=0.003", 2), ("laplace:scale=0.002", 2)])
def test_known_break_an_attacker_who_knows_the_law_beats_one_who_does_not(spec: str, margin: float):
    observe, toy_net = victims()
    observation, truth = observe(toy_net(0), defence=build_defence(spec), aware=True)

    def quality(attack: str) -> float:
        found = ATTACKS.build(attack).run(observation)
        return float(psnr(truth.images, found.images, data_range=1.0).mean())

    assert quality("bayes:iterations=500,tv=0.3") > quality("idlg:iterations=300") + margin
