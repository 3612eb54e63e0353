"""What is learned on public images, or looked up among them, answers updates of private ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedseal.attacks.learned import library
from fedseal.attacks.learned.kernel import gram
from fedseal.attacks.learned.network import assigned
from fedseal.attacks.learned.sketch import Sketch, unit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, build_setup, make_aware
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.core.trainable import Saved
from fedseal.defences.pipeline import build_defence
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import hungarian
from fedseal.preparation import forget


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    forget()
    return tmp_path


def set_up(**changes) -> Setup:
    values = {"data": "digits", "model": "lenet-relu", "attacker": {"public_images": 300}} | changes
    return build_setup(Scenario.model_validate(values))


def see(setup: Setup, targets: int = 4, defence: str = "none", aware: bool = False):
    model = setup.wrapped_model(build_defence(defence))
    seen = [setup.observe(build_defence(defence), t, model=model, name=defence) for t in range(targets)]
    observations = [
        make_aware(one.observation, build_defence(defence), defence) if aware else one.observation for one in seen
    ]
    return observations, [one.originals.images for one in seen]


def mean_psnr(answers, originals) -> float:
    paired = [(truth, one.images[hungarian(truth, one.images)]) for truth, one in zip(originals, answers, strict=True)]
    return float(torch.cat([psnr(truth, images, data_range=1.0) for truth, images in paired]).mean())


def guess_psnr(setup: Setup, originals) -> float:
    """What the mean public image scores."""
    truth = torch.cat(originals)
    return float(psnr(truth, setup.public.images.mean(0).expand_as(truth), data_range=1.0).mean())


def attack(name: str, observations: list[Observation]):
    return ATTACKS.build(name).run_many(observations, Budget(), list(range(len(observations))))


def with_public(observation: Observation, public: Batch | None) -> Observation:
    return replace(observation, knowledge=replace(observation.knowledge, auxiliary=public))


def test_learned_beats_every_guess_without_a_single_step():
    setup = set_up()
    observations, originals = see(setup)
    answers = attack("learned", observations)
    assert mean_psnr(answers, originals) > guess_psnr(setup, originals) + 3
    assert all(one.objective < 0.2 for one in answers)


def test_one_who_knows_the_defence_learns_what_a_mask_leaves():
    setup = set_up()
    spec = "topk:ratio=0.95"
    naive, originals = see(setup, defence=spec)
    aware, _ = see(setup, defence=spec, aware=True)
    assert mean_psnr(attack("learned", aware), originals) > mean_psnr(attack("learned", naive), originals)


def test_learned_answers_batches_and_weight_changes():
    setup = set_up(client={"batch_size": 2, "local_steps": 2}, attacker={"public_images": 200})
    observations, originals = see(setup, targets=2)
    answers = attack("learned", observations)
    assert all(one.images.shape == (4, 1, 28, 28) for one in answers)
    assert mean_psnr(answers, originals) > guess_psnr(setup, originals)


@pytest.mark.parametrize("name", ["learned", "retrieval"])
def test_alone_and_together_are_the_same_to_the_bit(name: str):
    observations, _ = see(set_up(attacker={"public_images": 64}), targets=3)
    together = attack(name, observations)
    alone = [attack(name, [one])[0] for one in observations]
    assert all(torch.equal(a.images, b.images) for a, b in zip(together, alone, strict=True))
    assert all(bool(((one.images >= 0) & (one.images <= 1)).all()) for one in together)


@pytest.mark.parametrize("name", ["learned", "retrieval"])
def test_what_was_learned_is_found_again_and_answers_alike(name: str, own_cache: Path):
    observations, _ = see(set_up(attacker={"public_images": 64}), targets=1)
    first = attack(name, observations)
    forget()
    assert list((own_cache / "prepared" / name).glob("*.safetensors"))

    class Refusing:
        identity = observations[0].knowledge.rehearse.identity

        def plain(self):
            return self

        def __call__(self, *arguments):
            raise AssertionError("it was learned already")

    quiet = replace(observations[0], knowledge=replace(observations[0].knowledge, rehearse=Refusing()))
    assert torch.equal(attack(name, [quiet])[0].images, first[0].images)


def test_other_public_images_are_another_lesson():
    observations, _ = see(set_up(attacker={"public_images": 64}), targets=1)
    public = observations[0].knowledge.auxiliary
    other = with_public(observations[0], Batch(public.images.flip(3), public.labels))
    assert not torch.equal(attack("learned", observations)[0].images, attack("learned", [other])[0].images)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("defence", ["none", "gaussian:sigma=0.0005"])
def test_retrieval_finds_the_private_images_among_public_ones(batch: int, defence: str):
    setup = set_up(client={"batch_size": batch}, attacker={"public_images": 80})
    (observation,), (truth,) = see(setup, targets=1, defence=defence, aware=defence != "none")
    public = observation.knowledge.auxiliary
    labels = setup.batches(0, setup.shape(build_defence(defence)))[0].labels
    known = Batch(torch.cat([public.images, truth]), torch.cat([public.labels, labels]))
    answer = attack("retrieval", [with_public(observation, known)])[0]
    assert torch.equal(answer.images[hungarian(truth, answer.images)], truth)
    assert sorted(answer.labels.tolist()) == sorted(labels.tolist())


def test_unknown_labels_are_learned_with_the_images():
    setup = set_up(attacker={"public_images": 300, "labels": "unknown"})
    observations, _ = see(setup)
    labels = [setup.batches(t, setup.shape(build_defence("none")))[0].labels for t in range(4)]
    answers = attack("learned", observations)
    assert sum(bool(torch.equal(one.labels, truth)) for one, truth in zip(answers, labels, strict=True)) >= 3


@pytest.mark.parametrize("name", ["learned", "retrieval"])
def test_no_public_images_are_refused_in_a_sentence(name: str):
    (observation,), _ = see(set_up(attacker={"public_data": False}), targets=1)
    with pytest.raises(CapabilityError, match="public images"):
        ATTACKS.build(name).check(observation)


@pytest.mark.parametrize("name", ["learned", "retrieval"])
def test_too_few_public_images_are_counted(name: str):
    (observation,), _ = see(set_up(attacker={"public_images": 7}), targets=1)
    with pytest.raises(CapabilityError, match="at least 32 public images for updates of 1, got 7"):
        ATTACKS.build(name).check(observation)


def test_who_does_not_know_the_local_steps_cannot_rehearse():
    setup = set_up(client={"local_steps": 2}, attacker={"local_steps": False, "learning_rate": False})
    (observation,), _ = see(setup, targets=1)
    assert observation.knowledge.rehearse is None
    assert observation.knowledge.ledger()["rehearsal"] == "none"
    with pytest.raises(CapabilityError, match="how they train"):
        ATTACKS.build("learned").check(observation)


def test_a_handful_of_features_is_refused():
    with pytest.raises(UsageError, match="at least 64"):
        ATTACKS.build("learned:features=2")


def test_sketches_keep_small_tensors_and_the_inner_products_of_large_ones():
    source = generator(0, "sketch-test")
    updates = {"small": torch.randn(6, 10, generator=source), "large": torch.randn(6, 50, 400, generator=source)}
    shifted = {name: value + 1.0 for name, value in updates.items()}
    sketch = Sketch({name: value[0] for name, value in updates.items()}, 4000)
    assert sum(sketch.lengths) <= 4000
    sketched = sketch(shifted)
    assert torch.equal(sketched[:, : sketch.lengths[0]], shifted["small"])
    whole = torch.cat([value.flatten(1) for value in shifted.values()], 1)
    torch.testing.assert_close(unit(sketched) @ unit(sketched).T, unit(whole) @ unit(whole).T, atol=0.08, rtol=0)


def test_a_sketch_is_never_longer_than_asked_and_never_loses_a_tensor():
    like = {str(index): torch.zeros(size) for index, size in enumerate((1, 5, 1000, 7, 3000))}
    assert Sketch(like, 100).lengths[:2] == (1, 5)
    assert sum(Sketch(like, 100).lengths) <= 100
    assert all(length == 1 for length in Sketch(like, 1).lengths)


def test_cosines_in_blocks_are_those_at_once():
    vectors = unit(torch.randn(1500, 40, generator=generator(2))) * 40**0.5
    expected = vectors.half().float() @ vectors.half().float().T / 40
    torch.testing.assert_close(gram(vectors.half()), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_network_learns_too_and_goes_on_where_it_was_killed(batch: int):
    setup = set_up(client={"batch_size": batch}, attacker={"public_images": 160}, model="mlp:width=32")
    observations, originals = see(setup, targets=2)
    spec = "learned:form=network,features=256,epochs=8"
    assert mean_psnr(attack(spec, observations), originals) > guess_psnr(setup, originals)
    (lesson,) = ATTACKS.build(spec).trainables(observations[0].model, observations[0].knowledge)
    kept: list[Saved] = []

    class Killed(Exception):
        pass

    class Held:
        def load(self):
            return kept[-1] if kept else None

        def save(self, state):
            kept.append(state)
            if len(kept) == 3:
                raise Killed

    with pytest.raises(Killed):
        lesson.fit(lambda tick: None, Held())
    resumed = lesson.fit(lambda tick: None, Held())
    uninterrupted = library.learned(lesson)
    for name, value in uninterrupted.network.state_dict().items():
        assert torch.equal(value, resumed.network.state_dict()[name]), name


def test_a_network_gives_every_image_its_own_label_in_any_order():
    setup = set_up(client={"batch_size": 3}, attacker={"public_images": 100, "labels": "true"}, model="mlp:width=32")
    (observation,), _ = see(setup, targets=1)
    (answer,) = attack("learned:form=network,features=64,epochs=1", [observation])
    assert sorted(answer.labels.tolist()) == sorted(observation.knowledge.labels.tolist())


def test_the_loss_of_a_batch_does_not_depend_on_its_order():
    source = generator(5, "order")
    images, truth = torch.rand(2, 3, 8, generator=source), torch.rand(2, 3, 8, generator=source)
    mixed = truth[:, [2, 0, 1]]
    one = torch.take_along_dim(truth, assigned(images, truth)[:, :, None], 1)
    other = torch.take_along_dim(mixed, assigned(images, mixed)[:, :, None], 1)
    assert torch.equal(one, other)


def test_what_is_learned_can_be_prepared_beforehand():
    observations, _ = see(set_up(attacker={"public_images": 64}), targets=1)
    model, knowledge = observations[0].model, observations[0].knowledge
    titles = [
        one.title for name in ("learned", "retrieval") for one in ATTACKS.build(name).trainables(model, knowledge)
    ]
    assert titles == ["inversion by kernel from 64 public images", "updates of 64 public images"]


@pytest.mark.slow
@pytest.mark.shared
def test_the_kernel_reads_cifar_as_the_specification_asks(shared: Path):
    values = {
        "data": "cifar10",
        "model": "lenet-relu",
        "public_fraction": 0.8,
        "targets": 50,
        "attacker": {"public_images": 8000},
    }
    setup = build_setup(Scenario.model_validate(values), data_root=shared / "data")
    observations, originals = see(setup, targets=50)
    answers = attack("learned", observations)
    assert mean_psnr(answers, originals) >= 19.0
    strangers = setup.private.batch(torch.arange(300)).images
    for answer, truth in zip(answers, originals, strict=True):
        others = strangers[(strangers != truth).flatten(1).any(1)][:199]
        ranked = torch.corrcoef(torch.cat([answer.images, truth, others]).flatten(1))[0, 1:]
        assert int(ranked.argmax()) == 0
