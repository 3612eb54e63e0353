"""SEER: its gradients are the clients', its loss and schedule the paper's, and a short training already isolates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedseal.attacks.active.seer import fitting
from fedseal.attacks.active.seer.attack import TAU, SeerAttack, summed_gradient
from fedseal.attacks.active.seer.batches import Auxiliary, Drawn
from fedseal.attacks.active.seer.fitting import Trainee, combinations
from fedseal.attacks.active.seer.plan import SeerPlan, preset
from fedseal.attacks.active.seer.properties import property_scores
from fedseal.attacks.active.seer.signals import EntryReader, HeadReader, choose_entries
from fedseal.audit.preparation import prepare
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import aware_of, build_setup
from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.defence import DEFENCES, Defence
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.watcher import Severity, Task, Tick, Watcher
from fedseal.data.registry import DATASETS
from fedseal.defences.lids.construction import EPOCHS, Recipe
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.models.registry import build_model
from fedseal.preparation import Library, items, library

SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    return tmp_path


def model(seed: int = 0, width: int = 16) -> nn.Module:
    return build_model(f"convbn:width={width}", input_shape=SHAPE, num_classes=10, seed=seed)


def digits() -> Batch:
    """Return the digits in random order."""
    whole = DATASETS.build("digits:size=8")
    return whole.batch(torch.randperm(len(whole), generator=generator(0, "order")))


def trainee(**changes: object) -> Trainee:
    plan = SeerPlan(**{"steps": 4, "accumulate": 4, **changes})  # type: ignore[arg-type]
    data = digits()
    return Trainee(model(), Batch(data.images[:1200], data.labels[:1200]), 10, IDENTITY, plan)


@pytest.mark.parametrize("select", ["head", "entries"])
def test_the_sum_of_all_weights_is_the_clients_gradient(select: str):
    data, normalisation = digits(), Normalisation((0.3,), (0.4,))
    net = model()
    parameters = dict(net.named_parameters())
    batch = Batch(data.images[:6], data.labels[:6])
    reader = (
        HeadReader(net, normalisation, data.images[:2], 10)
        if select == "head"
        else EntryReader(net, normalisation, choose_entries(parameters, 50, 0.5, 0))
    )
    config = RoundConfig(bn_mode="train-nostats", loss_reduction="sum", normalisation=normalisation)
    sent = client_round(set_mode(net, config), [batch], config, Defence(), generator(0)).update.tensors
    sums = reader.sums(parameters, batch.images[None], batch.labels[None], torch.ones(1, 1, 6))[0, 0]
    assert sums.shape == (reader.size,)
    torch.testing.assert_close(sums, reader.read(sent), rtol=1e-4, atol=1e-5)
    alone = torch.eye(6)[None]
    parts = reader.sums(parameters, batch.images[None], batch.labels[None], alone)
    torch.testing.assert_close(parts.sum(1)[0], sums, rtol=1e-4, atol=1e-5)


def test_batches_keep_statistics_of_their_own():
    data, net = digits(), model()
    reader = HeadReader(net, IDENTITY, data.images[:2], 10)
    images, labels = data.images[:12].view(2, 6, *SHAPE), data.labels[:12].view(2, 6)
    both = reader.sums(dict(net.named_parameters()), images, labels, torch.ones(2, 1, 6))
    for place in range(2):
        one = slice(place, place + 1)
        alone = reader.sums(dict(net.named_parameters()), images[one], labels[one], torch.ones(1, 1, 6))
        torch.testing.assert_close(both[one], alone)


def test_head_and_entries_read_the_same_layer():
    data, net = digits(), model()
    parameters = dict(net.named_parameters())
    head = HeadReader(net, IDENTITY, data.images[:2], 10)
    name = list(parameters)[-2]
    entries = EntryReader(net, IDENTITY, {name: torch.arange(parameters[name].numel())})
    weights = torch.randn(1, 3, 6, generator=generator(0))
    arguments = (parameters, data.images[None, :6], data.labels[None, :6], weights)
    torch.testing.assert_close(head.sums(*arguments), entries.sums(*arguments), rtol=1e-4, atol=1e-6)


def test_entries_per_parameter():
    sizes = {
        name: len(i) for name, i in choose_entries({"a": torch.zeros(100), "b": torch.zeros(9)}, 20, 0.5, 0).items()
    }
    assert sizes == {"a": 50, "b": 9}
    chosen = choose_entries({"a": torch.zeros(100)}, 20, 0.0, 0)["a"]
    assert len(chosen.unique()) == 20
    assert torch.equal(chosen, choose_entries({"a": torch.zeros(100)}, 20, 0.0, 0)["a"])


def test_the_three_sums():
    drawn = Drawn(torch.zeros(3, 2, 5, *SHAPE), torch.zeros(3, 2, 5, dtype=torch.long), torch.tensor([0, 4, 2]))
    weights = combinations(drawn, generator(0)).transpose(1, 2).flatten(2)
    assert weights.shape == (3, 3, 10)
    for row, top in enumerate(drawn.top.tolist()):
        assert weights[row, 0].nonzero().flatten().tolist() == [top]
        assert weights[row, 1:, top].tolist() == [0, 0]
        assert float(weights[row, 1].norm()) == pytest.approx(1)
        others = torch.cat([weights[row, 2, :top], weights[row, 2, top + 1 :]])
        torch.testing.assert_close(others, torch.full((9,), 1 / 3))


def test_suppression_rises_over_the_first_half_to_the_number_of_samples():
    plan = SeerPlan(batch_size=16, steps=100)
    assert plan.suppression(0) == pytest.approx(0.25)
    assert plan.suppression(25) == pytest.approx(math.sqrt(0.25 * 16))
    assert plan.suppression(50) == plan.suppression(100) == pytest.approx(16)
    assert SeerPlan(mode="thresh", clients=4, batch_size=16).suppression(10**6) == pytest.approx(64)


def test_the_papers_preset():
    plan = preset("paper", property="red")
    assert (plan.batch_size, plan.steps * plan.accumulate, plan.learning_rate) == (64, 10**6, 1e-4)
    assert (plan.select, plan.least, plan.share, plan.rank) == ("entries", 8400, 0.001, 0)


@pytest.mark.slow
def test_a_short_training_on_digits_isolates_the_brightest():
    data = digits()
    plan = SeerPlan(steps=450, accumulate=8, learning_rate=2e-3, augment=False)
    aux, rest = (Batch(data.images[part], data.labels[part]) for part in (slice(4000), slice(4000, None)))
    attacker = Library(None).get(Trainee(model(width=24), aux, 10, IDENTITY, plan))
    losses = [loss for _, loss in attacker.curve]
    assert losses[-1] < 0.25 * losses[0]
    places = torch.stack([torch.randperm(len(rest), generator=generator(1, i))[:8] for i in range(128)])
    images, labels = rest.images[places], rest.labels[places]
    top = property_scores(images, "bright").argmax(1)
    target = images[torch.arange(128), top]
    shown = attacker.decode_batches(images, labels)

    def decibels(guess: torch.Tensor) -> float:
        return float((-10 * (guess - target).square().mean((1, 2, 3)).log10()).mean())

    hits = (shown[:, None] - images).square().mean((2, 3, 4)).argmin(1) == top
    assert decibels(shown) > decibels(aux.images.mean(0)) + 1.5
    assert float(hits.float().mean()) > 0.4  # chance is 1/8


@pytest.mark.parametrize("changes", [{"select": "entries", "least": 100}, {"rank": 12}, {"property": "hedge"}])
def test_every_way_of_training_runs(changes: dict[str, object]):
    attacker = Library(None).get(trainee(**changes))
    shown = attacker.decode_batches(digits().images[None, :8], digits().labels[None, :8])
    assert shown.shape == (1, *SHAPE)
    assert bool(((shown >= 0) & (shown <= 1)).all())


def test_with_a_threshold_one_image_of_one_client_passes():
    plan = SeerPlan(mode="thresh", clients=3, steps=2, accumulate=4)
    auxiliary = Auxiliary(digits(), plan)
    drawn = auxiliary.draw(32, generator(0))
    assert auxiliary.threshold is not None
    passed = property_scores(drawn.images, "bright") > auxiliary.threshold
    assert passed[:, 0].sum(1).tolist() == [1] * 32
    assert passed[:, 1].sum(1).tolist() == [0] * 32
    assert bool(passed[torch.arange(32), 0, drawn.top].all())
    assert Library(None).get(trainee(mode="thresh", clients=3)).threshold is not None


def test_training_resumes_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fitting, "CURVE_EVERY", 2)
    what = trainee(steps=6)
    whole = Library(None).get(what)

    class Interrupted(Exception):
        pass

    class Stopping(Watcher):
        begun: ClassVar[list[float]] = []

        def started(self, task: Task) -> None:
            self.begun.append(task.begun)

        def advanced(self, task: Task, tick: Tick) -> None:
            if tick.done == 4 and len(self.begun) == 1:
                raise Interrupted

    books = Library(tmp_path, save_seconds=0)
    with pytest.raises(Interrupted):
        books.get(what, Stopping())
    assert [item.state for item in items(tmp_path)] == ["unfinished"]
    assert not books.has(what)
    resumed = books.get(what, Stopping())
    assert Stopping.begun == [0, 2]
    assert [step for step, _ in resumed.curve] == [2, 4, 6]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)
    for name, value in whole.decoder.state_dict().items():
        assert torch.equal(resumed.decoder.state_dict()[name], value)
    assert [item.state for item in items(tmp_path)] == ["ready"]


def test_attackers_are_found_by_what_determined_them():
    what, books = trainee(), library()
    assert books.find(what) is None
    trained = books.get(what)
    found = books.find(what)
    assert found is not None
    images, labels = digits().images[None, :8], digits().labels[None, :8]
    assert torch.equal(found.decode_batches(images, labels), trained.decode_batches(images, labels))
    assert found.curve == trained.curve
    for other in (trainee(seed=1), trainee(property="dark")):
        assert books.find(other) is None
    assert what.identity != Trainee(model(1), what.data, 10, IDENTITY, what.plan).identity


def test_wrong_plans_are_explained():
    with pytest.raises(UsageError, match="defined for bright, dark, red"):
        SeerPlan(property="green", mode="thresh")
    with pytest.raises(UsageError, match="isolates nothing among 3 clients"):
        SeerPlan(clients=3)
    with pytest.raises(UsageError, match="not made of mini-groups of 3"):
        SeerPlan(lids=3)
    with pytest.raises(UsageError, match="no property 'shiny'"):
        SeerPlan(property="shiny")  # type: ignore[arg-type]


def test_wrong_data_and_models_are_explained():
    data = digits()
    with pytest.raises(InputError, match="40 auxiliary images, too little"):
        Auxiliary(Batch(data.images[:40], data.labels[:40]), SeerPlan())
    with pytest.raises(InputError, match="no auxiliary image has the property 'bright'"):
        Auxiliary(Batch(torch.full((100, *SHAPE), 0.5), torch.zeros(100, dtype=torch.long)), SeerPlan())
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(InputError, match="this model has none"):
        Library(None).get(Trainee(plain, data, 10, IDENTITY, SeerPlan()))


def scenario(**client: object) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "seer",
            "data": "digits:size=8",
            "model": "convbn:width=8",
            "attacks": ["seer:steps=3,train=true"],
            "defences": ["none"],
            "targets": 1,
            "client": {"batch_size": 8, "bn_mode": "train-nostats", **client},
            "attacker": {"labels": "true", "public_data": True},
        }
    )


def test_an_audit_sends_the_trained_model_and_decodes_the_sum():
    setup = build_setup(scenario())
    attack = SeerAttack(steps=3, train=True)
    target = setup.observe(build_defence("none"), 0, attack=attack)
    attack.check(target.observation)
    assert "trained to reveal" in target.observation.knowledge.ledger()["model"]
    found = attack.run(target.observation)
    assert found.images.shape == target.originals.images.shape
    trained = target.observation.memory.attacker  # type: ignore[attr-defined]
    fed = target.originals
    expected = trained.decode_batches(fed.images[None], fed.labels[None])[0]
    torch.testing.assert_close(found.images[0], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.images[1], found.images[2])
    total = summed_gradient(target.observation)
    name = next(iter(total))
    torch.testing.assert_close(total[name], 8 * target.observation.update.tensors[name])


def test_an_audit_without_a_trained_attacker_says_how_to_get_one():
    setup = build_setup(scenario())
    with pytest.raises(CapabilityError, match=r"no SEER attacker yet.*fedseal prepare"):
        setup.observe(build_defence("none"), 0, attack=SeerAttack(steps=3))


def test_clients_with_running_statistics_are_out_of_reach():
    setup = build_setup(scenario(bn_mode="eval"))
    with pytest.raises(CapabilityError, match="use running statistics"):
        setup.observe(build_defence("none"), 0, attack=SeerAttack(steps=3, train=True))


def test_an_attack_on_colours_cannot_have_a_threshold():
    with pytest.raises(UsageError, match="defined for bright, dark, red"):
        SeerAttack(property="blue", mode="thresh")


def test_a_scenarios_attackers_are_trained_once_and_found_by_its_audit():
    asked = scenario().model_copy(update={"attacks": ("seer:steps=3", "seer:steps=3,property=dark", "seer:steps=3")})

    class Hearing(Watcher):
        heard: ClassVar[list[float]] = []

        def advanced(self, task: Task, tick: Tick) -> None:
            self.heard.append(tick.done)

    done = prepare(asked, watcher=Hearing())
    assert [(one.wanted_by, one.found) for one in done] == [
        ("seer:steps=3", False),
        ("seer:steps=3,property=dark", False),
    ]
    assert Hearing.heard == [3, 3]
    target = build_setup(asked).observe(build_defence("none"), 0, attack=SeerAttack(steps=3))
    assert target.observation.memory is not None
    assert [one.found for one in prepare(asked, watcher=Hearing())] == [True, True]
    assert len(Hearing.heard) == 2


def test_what_cannot_be_prepared_is_said():
    remarks: list[str] = []

    class Reading(Watcher):
        def remarked(self, severity: Severity, text: str) -> None:
            remarks.append(text)

    with pytest.raises(UsageError, match="nothing in this scenario is prepared beforehand"):
        prepare(scenario().model_copy(update={"attacks": ("ig",)}))
    with pytest.raises(UsageError, match="nothing in this scenario"):
        prepare(scenario(bn_mode="eval"), watcher=Reading())
    assert "use running statistics" in remarks[0]


@pytest.mark.slow
def test_a_refused_audit_succeeds_in_the_same_directory_once_the_attacker_is_prepared(tmp_path: Path):
    asked = scenario().model_copy(update={"attacks": ("seer:steps=3",)})
    out = tmp_path / "run"
    assert {one.status for one in run_audit([asked], out).records} == {"refused"}
    prepare(asked)
    assert {one.status for one in run_audit([asked], out).records} == {"ok"}


OWN = "lids:samples=2,tau=12,augment=false,epochs=3"


@pytest.mark.parametrize("spec", [OWN, f"{OWN}+topk:ratio=0"])
def test_an_aware_attacker_expects_the_groups_of_the_defence_it_knows(spec: str):
    setup = build_setup(scenario())
    naive = setup.granted(build_defence(spec), spec)
    aware = aware_of(naive, build_defence(spec), spec)
    assert SeerAttack().recipe(aware) == Recipe(2, 12.0, False, 3, 0)
    assert SeerAttack().plan(aware).lids == 2
    assert SeerAttack(lids=4, epochs=7).recipe(aware) == Recipe(4, 12.0, False, 7, 0)
    assert SeerAttack(lids=1).plan(aware).lids == 1
    assert SeerAttack().plan(naive).lids == 1
    assert SeerAttack(lids=4).recipe(naive) == Recipe(4, 18.0, True, EPOCHS, 0)  # who only guesses that there is LIDS


def test_what_a_guess_at_lids_takes_is_what_lids_takes_by_default():
    defaults = DEFENCES.resolve("lids")
    assert (defaults["tau"], defaults["augment"], defaults["epochs"]) == (TAU, True, EPOCHS)


def test_an_audits_aware_attacker_sends_a_model_trained_on_such_groups():
    asked = scenario(examples=16).model_copy(update={"defences": (OWN,), "public_fraction": 0.4, "readings": 0})
    asked = asked.model_copy(update={"attacker": asked.attacker.model_copy(update={"aware": "both"})})
    setup = build_setup(asked)
    expected = {}
    for aware in (False, True):
        target = setup.observe(build_defence(OWN), 0, name=OWN, attack=SeerAttack(steps=2, train=True), aware=aware)
        expected[aware] = target.observation.memory.attacker.plan.lids  # type: ignore[attr-defined]
    assert expected == {False: 1, True: 2}


def test_batches_that_are_not_made_of_the_clients_groups_are_refused_by_name():
    setup = build_setup(scenario())
    aware = aware_of(setup.granted(build_defence("none"), "none"), build_defence("lids:samples=3"), "lids:samples=3")
    with pytest.raises(CapabilityError, match="feeds groups of 3"):
        SeerAttack().plan(aware)
