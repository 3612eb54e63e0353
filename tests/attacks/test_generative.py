"""Attacks with a generator, a denoiser or a low resolution, each on its home ground; priors as parts of matching."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedseal
from fedseal.attacks.matching.latents import scalar_divergence
from fedseal.attacks.matching.objectives import Layout, SquarePlusRoot
from fedseal.attacks.matching.rmsprop import RMSprop
from fedseal.attacks.matching.schedules import learning_rate_at
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError, FedsealError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.data.registry import DATASETS
from fedseal.metrics.image import psnr
from fedseal.models.registry import build_model
from fedseal.preparation import Library, forget
from fedseal.priors.files import save_prior
from fedseal.priors.fitting import PriorFit
from fedseal.priors.networks import DCGAN, AutoEncoder
from fedseal.priors.plan import Plan, plan_for
from fedseal.priors.prior import Origin, Prior


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path
    forget()


def seen(model: nn.Module, images: Tensor, own: Tensor, classes: int = 10, **known: object) -> Observation:
    """What a server sees of one gradient of a batch."""
    model.zero_grad()
    nn.functional.cross_entropy(model(images), own).backward()
    update = Update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    model.zero_grad(set_to_none=True)
    given = {"labels": own, "label_rule": "true", "batch_size": len(images), **known}
    return Observation(model, update, Knowledge(tuple(images.shape[1:]), classes, **given))  # type: ignore[arg-type]


def linear_prior(path: Path, shape: tuple[int, int, int] = (1, 8, 8), latent: int = 6) -> Prior:
    """An auto-encoder that is a linear generator, as its refinement begins with zeros; saved where attacks find it."""
    engine = AutoEncoder(shape, latent, 4)
    source = torch.Generator().manual_seed(5)
    engine.mean.fill_(0.5)
    directions = torch.linalg.qr(torch.randn(engine.basis.shape[1], latent, generator=source)).Q.t()
    engine.basis.copy_(0.4 * directions)
    prior = Prior("ae", shape, engine.requires_grad_(False), Origin("nothing"))
    save_prior(prior, Plan("ae", 1, 1, 1.0, 4, latent), path)
    return prior


@pytest.mark.parametrize(("solver", "iterations"), [("adam", 400), ("cma", 120)])
def test_ggl_finds_the_latent_of_an_image_a_linear_generator_drew(tmp_path: Path, solver: str, iterations: int) -> None:
    path = tmp_path / "linear.safetensors"
    prior = linear_prior(path)
    latent = torch.randn(1, prior.latent, generator=torch.Generator().manual_seed(2))
    image = prior.decode(latent, prior.shape)
    model = build_model("mlp:width=32,activation=sigmoid", input_shape=(1, 8, 8), num_classes=10, seed=1)
    observation = seen(model, image, torch.tensor([3]))
    attack = ATTACKS.build(f"ggl:prior={path},kl=0,solver={solver},lr=0.1")
    found = attack.run(observation, Budget(iterations), seed=1)
    assert isinstance(prior.engine, AutoEncoder)
    assert float((prior.engine.encode(found.images) - latent).abs().max()) < 1e-4
    assert float((found.images - image).abs().max()) < 1e-4


@pytest.mark.slow
def test_ggl_finds_an_image_a_dcgan_drew(tmp_path: Path) -> None:
    path = tmp_path / "gan.safetensors"
    torch.manual_seed(0)
    engine = DCGAN(16, 8, 1, 16).eval().requires_grad_(False)
    prior = Prior("gan", (1, 16, 16), engine, Origin("nothing"))
    save_prior(prior, Plan("gan", 1, 1, 1.0, 8, 16), path)
    image = prior.decode(torch.randn(1, 16), (1, 16, 16))
    model = build_model("lenet:init=wide-uniform", input_shape=(1, 16, 16), num_classes=10, seed=1)
    observation = seen(model, image, torch.tensor([3]))
    found = ATTACKS.build(f"ggl:prior={path},kl=0").run(observation, Budget(600, 2), seed=1)
    assert float(psnr(image, found.images, data_range=1.0)) > 40


def test_the_divergence_of_a_latent_is_zero_for_mean_0_and_deviation_1() -> None:
    assert float(scalar_divergence(torch.tensor([1.0, -1.0, 1.0, -1.0]))) == pytest.approx(0)
    assert float(scalar_divergence(torch.tensor([3.0, 1.0]))) == pytest.approx((1 + 4 - 1) / 2)


def test_moving_the_generators_weights_goes_beyond_what_it_can_draw(tmp_path: Path) -> None:
    path = tmp_path / "linear.safetensors"
    linear_prior(path)
    image = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
    model = build_model("lenet:init=wide-uniform", input_shape=(1, 8, 8), num_classes=10, seed=1)
    observation = seen(model, image, torch.tensor([3]))
    spec = f"gias:prior={path},tv=0,weights_lr=0.01,weights_share="
    latent, moved = (ATTACKS.build(spec + share).run(observation, Budget(60), seed=1) for share in ("0", "3"))
    assert moved.objective < latent.objective / 2
    assert any("moving the generator's weights" in note for note in moved.notes)


def test_grnns_loss_is_the_squared_distance_and_the_distance() -> None:
    one, other = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 5.0, 7.0])
    found = SquarePlusRoot().distance(one, other, Layout((3,)), None)
    assert float(found) == pytest.approx(25 + 5)


def test_rmsprop_steps_as_pytorchs_does() -> None:
    from fedseal.attacks.matching.evaluation import Evaluation
    from fedseal.attacks.matching.steps import Ground

    theirs = torch.tensor([1.0, -2.0], requires_grad=True)
    optimiser = torch.optim.RMSprop([theirs], 1e-2, momentum=0.9)
    ours = theirs.detach().clone()[None]
    walk = RMSprop(0.9).begin(ours)
    for _ in range(5):
        optimiser.zero_grad()
        (theirs**3).sum().backward()
        optimiser.step()
        here = Evaluation(torch.zeros(1), 3 * ours.square(), torch.zeros(1, 0))
        ours = walk.move(ours, here, 1e-2, Ground(None, None)).z  # type: ignore[arg-type]
    assert torch.allclose(ours[0], theirs.detach(), atol=1e-6)


@pytest.mark.slow
def test_grnn_finds_a_face_and_its_label_behind_lenets_update() -> None:
    data = DATASETS.build("faces")
    batch = data.batch(torch.tensor([7]))
    model = build_model("lenet:init=wide-uniform", input_shape=(1, 32, 32), num_classes=2, seed=0)
    observation = seen(model, batch.images, batch.labels, 2, labels=None, label_rule="unknown")
    found = ATTACKS.build("grnn").run(observation, seed=0)
    assert found.labels.tolist() == batch.labels.tolist()
    assert float(psnr(batch.images, found.images, data_range=1.0)) > 25


@pytest.mark.slow
def test_rog_beats_the_mean_image_under_quantisation() -> None:
    from fedseal.testing import AttackCase, Home

    case = AttackCase("rog:prior=patch,factor=4", Home("lenet-relu", data="faces:size=32"))
    gains = []
    for target in range(3):
        observation, _, truth = case.defended(target, "quantise:bits=4")
        found = case.attack().run(observation, Budget(100), seed=target)
        small = nn.functional.interpolate(case.public.images.mean(0, keepdim=True), scale_factor=0.5, mode="area")
        guess = nn.functional.interpolate(small, size=(32, 32), mode="bicubic", align_corners=False).clamp(0, 1)
        gains += (psnr(truth.images, found.images, data_range=1.0) - psnr(truth.images, guess, data_range=1.0)).tolist()
    assert min(gains) > 0
    assert sum(gains) / len(gains) > 2


def test_schedules_rise_and_fall_as_the_papers_have_them() -> None:
    assert learning_rate_at("ramps", 0, 1000) == pytest.approx(0.02)
    assert learning_rate_at("ramps", 400, 1000) == pytest.approx(1)
    assert learning_rate_at("ramps", 875, 1000) == pytest.approx(0.5)
    assert learning_rate_at("tenth", 0, 100) == pytest.approx(1)
    assert learning_rate_at("tenth", 100, 100) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ggl:prior=patch", "a patch prior is none"),
        ("gias:prior=tv", "a tv prior is none"),
        ("rog:prior=gan", "a GAN does not"),
        ("grnn:prior=ae", "takes no other prior"),
        ("ig:prior=nowhere.safetensors", "no prior called 'nowhere.safetensors'"),
        ("ig:prior=dcgan-faces", "fedseal data get dcgan-faces"),
    ],
)
def test_a_prior_that_is_not_there_or_of_no_use_is_refused_in_words(spec: str, words: str) -> None:
    image = torch.rand(1, 1, 8, 8)
    model = build_model("mlp:width=8", input_shape=(1, 8, 8), num_classes=10, seed=1)
    with pytest.raises(FedsealError, match=words):
        ATTACKS.build(spec).run(seen(model, image, torch.tensor([1])), Budget(1))


def test_images_of_another_kind_than_the_priors_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "linear.safetensors"
    linear_prior(path)
    model = build_model("mlp:width=8", input_shape=(3, 8, 8), num_classes=10, seed=1)
    with pytest.raises(CapabilityError, match="prior is of 1x8x8 images, the data are 3x8x8"):
        ATTACKS.build(f"ig:prior={path}").run(seen(model, torch.rand(1, 3, 8, 8), torch.tensor([1])), Budget(1))


@pytest.mark.parametrize("attack", ["ggl", "gias", "rog", "grnn", "denoised"])
@pytest.mark.parametrize("kind", ["text", "table"])
def test_texts_and_tables_are_refused_in_words(attack: str, kind: str) -> None:
    with pytest.raises(CapabilityError, match=f"{attack} rebuilds data of the kind image, and the clients hold {kind}"):
        ATTACKS.build(attack).check_modality(kind)


def test_presets_are_the_papers_settings() -> None:
    ggl, gias, rog = (ATTACKS.build(f"{name}:preset=paper") for name in ("ggl", "gias", "rog"))
    assert (ggl.iterations, ggl.population, ggl.lr, ggl.kl) == (2500, 50, 0.1, 0.1)  # type: ignore[attr-defined]
    assert ATTACKS.build("ggl:preset=paper,solver=cma").iterations == 500  # type: ignore[attr-defined]
    assert (gias.iterations, gias.restarts) == (1500, 4)  # type: ignore[attr-defined]
    assert (rog.iterations, rog.factor, rog.lr) == (100, 4, 0.05)  # type: ignore[attr-defined]
    step = ATTACKS.build("grnn:preset=paper").recipe().descent  # type: ignore[attr-defined]
    assert (step.lr, step.step.momentum) == (1e-4, 0.99)


def planted(path: Path, images: Tensor) -> str:
    fit = PriorFit(images, plan_for("ae", 1), "a set that holds a target")
    save_prior(Library(None).get(fit), fit.plan, path)
    return f"ig:prior={path},iterations=2"


def test_a_prior_that_was_trained_on_a_target_is_refused_and_one_that_was_not_is_named(tmp_path: Path) -> None:
    data = DATASETS.build("faces:size=8").batch()
    common = {"data": "faces:size=8", "targets": 2, "readings": 0, "model": "mlp:width=8"}
    own = planted(tmp_path / "own.safetensors", data.images)
    run = fedseal.audit(**common, attacks=own, out=tmp_path / "refused")
    assert {record.status for record in run.records} == {"refused"}
    assert "trained on a set that holds a target, and 2 of the attacked images are among these" in (
        run.records[0].message or ""
    )
    other = planted(tmp_path / "other.safetensors", 1 - data.images)
    run = fedseal.audit(**common, attacks=other, out=tmp_path / "allowed")
    assert {record.status for record in run.records} == {"ok"}
    assert "trained on a set that holds a target" in run.records[0].knowledge["brought along"]


def test_a_prior_fitted_to_public_images_needs_them_and_needs_no_file() -> None:
    assert "auxiliary" in ATTACKS.build("ig:prior=patch").needs
    assert "auxiliary" not in ATTACKS.build("ig").needs
    assert "auxiliary" not in ATTACKS.build("ggl:prior=embedded").needs


@pytest.mark.parametrize("attack", ["ig", "sapag", "gradinversion", "fedleak", "idlg"])
@pytest.mark.parametrize("prior", ["patch", "ae"])
def test_every_matching_attack_takes_a_prior(attack: str, prior: str) -> None:
    from fedseal.attacks.shadow.imagined import imagined

    public = imagined((1, 8, 8), 10, 20, 0)
    model = build_model("mlp:width=8,activation=sigmoid", input_shape=(1, 8, 8), num_classes=10, seed=1)
    images = imagined((1, 8, 8), 10, 1, 9).images
    observation = seen(model, images, torch.tensor([1]), auxiliary=public)
    found = ATTACKS.build(f"{attack}:prior={prior},prior_steps=1").run(observation, Budget(12, 2), seed=0)
    plain = ATTACKS.build(attack).run(observation, Budget(12, 2), seed=0)
    assert f"a {prior} prior from 20 public images" in " ".join(found.notes)
    assert not torch.equal(found.images, plain.images)


def test_a_denoiser_pulls_images_towards_those_it_believes_in() -> None:
    from fedseal.attacks.shadow.imagined import imagined

    public = imagined((1, 8, 8), 10, 40, 0)
    model = build_model("mlp:width=8,activation=sigmoid", input_shape=(1, 8, 8), num_classes=10, seed=1)
    observation = seen(model, public.images[:1], torch.tensor([1]), auxiliary=Batch(public.images, public.labels))
    weak, strong = (
        ATTACKS.build(f"ig:prior=patch,prior_steps=3,tv=0,prior_weight={weight},schedule=cosine").run(
            observation, Budget(80), seed=0
        )
        for weight in ("0", "100")
    )
    assert rough(strong.images) < rough(weak.images) / 2


def rough(images: Tensor) -> float:
    return float(images.diff(dim=-1).abs().mean())


def test_what_a_wrapper_brings_is_what_the_attack_in_it_brings(tmp_path: Path) -> None:
    path = tmp_path / "linear.safetensors"
    linear_prior(path)
    brought = ATTACKS.build(f"denoised?inversion=ig:prior={path},tv=0").brings()
    assert brought is not None
    assert "trained on nothing" in brought.words
    assert ATTACKS.build("denoised").brings() is None


def test_usage_of_options_that_mean_nothing_is_refused() -> None:
    with pytest.raises(UsageError):
        ATTACKS.build("ggl:solver=newton")
    assert replace(ATTACKS.build("ig"), prior="patch").prior == "patch"  # type: ignore[type-var]
