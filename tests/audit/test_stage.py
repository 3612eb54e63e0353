"""Attacks on a round of a training that really ran: the very updates, the very state, trained once, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedseal.audit.plan import plan_jobs
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
from fedseal.federation.simulation import Federation, RoundListener, RoundRecord, SeenUpload, simulate
from fedseal.models.registry import build_model
from fedseal.store.database import Store
from fedseal.training.run import open_training
from fedseal.training.runner import run_training
from fedseal.training.scenario import TrainingScenario
from fedseal.training.setup import build_federation

ROUND = 3


def scenario(**values: Any) -> Scenario:
    client = {"batch_size": 2, "learning_rate": 0.3, **values.pop("client", {})}
    base = {"data": "faces:size=8", "model": "mlp:depth=1,width=8", "attacks": ["first-layer"], "targets": 2}
    stage = {"round": ROUND, "clients": 4, **values.pop("stage", {})}
    return Scenario.model_validate({**base, "client": client, "stage": stage, **values})


class Keeping(RoundListener):
    """Keeps what the server sees of one round."""

    def __init__(self, number: int = ROUND) -> None:
        self.number = number
        self.uploads: dict[str, SeenUpload] = {}
        self.model: Tensors = {}

    def inspects(self, round_number: int) -> bool:
        return round_number == self.number

    def uploaded(self, model: nn.Module, upload: SeenUpload) -> None:
        self.uploads[upload.client] = upload
        self.model = {name: tensor.clone() for name, tensor in model.state_dict().items()}


def trained(asked: Scenario, spec: str) -> Keeping:
    """Return what the simulation shows of the attacked round, by its own way through all rounds up to it."""
    staging = build_setup(asked).staging
    assert staging is not None
    ground, keeping = staging.ground, Keeping()
    config = ground.configure(build_defence(spec)).model_copy(update={"rounds": ROUND + 1})
    simulate(
        config,
        ground.model,
        ground.clients,
        ground.test,
        build_defence(spec),
        normalisation=ground.normalisation,
        listener=keeping,
    )
    return keeping


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "spec", ["none", "dgp", "gaussian:sigma=0.01", "adgp:k=0.2", "adadefense", "mixup", "precode:k=4"]
)
def test_what_is_attacked_is_what_the_training_would_have_sent_bit_for_bit(spec: str, steps: int) -> None:
    asked = scenario(defences=[spec], client={"local_steps": steps})
    expected, setup = trained(asked, spec), build_setup(asked)
    for target in range(2):
        seen = setup.observe(build_defence(spec), target, name=spec)
        upload = expected.uploads[f"client-{target}"]
        assert equal(seen.observation.model.state_dict(), expected.model)
        assert equal(seen.observation.update.tensors, upload.update.tensors)
        assert torch.equal(seen.originals.images, torch.cat([batch.images for batch in upload.batches]))
        assert torch.equal(seen.fed.images, torch.cat([batch.images for batch in upload.fed]))
        assert seen.observation.update.kind == ("gradient" if steps == 1 else "delta")


def test_the_attacked_state_is_that_of_the_round_and_not_of_a_first_one() -> None:
    late, early = (build_setup(scenario(stage={"round": number})) for number in (ROUND, 0))
    spec = "topk:ratio=0.9,feedback=true"
    assert late.observe(build_defence(spec), 0, name=spec).defence.state_dict()
    moved = late.observe(build_defence("none"), 0).observation.model.state_dict()
    assert not equal(moved, early.observe(build_defence("none"), 0).observation.model.state_dict())
    initial = build_model("mlp:depth=1,width=8", input_shape=(1, 8, 8), num_classes=len(late.private.classes), seed=0)
    assert equal(early.observe(build_defence("none"), 0).observation.model.state_dict(), initial.state_dict())


def test_targets_do_not_disturb_each_other_and_aggregates_are_means() -> None:
    spec = "dgp"
    setup = build_setup(scenario(defences=[spec]))
    alone = setup.observe(build_defence(spec), 1, name=spec).observation.update.tensors
    setup.observe(build_defence(spec), 0, name=spec)
    assert equal(setup.observe(build_defence(spec), 1, name=spec).observation.update.tensors, alone)
    first = setup.observe(build_defence(spec), 0, name=spec).observation.update.tensors
    pair = build_setup(scenario(defences=[spec], client={"aggregate": 2})).observe(build_defence(spec), 0, name=spec)
    for name, tensor in pair.observation.update.tensors.items():
        torch.testing.assert_close(tensor, (first[name] + alone[name]) / 2)
    assert pair.observation.knowledge.clients == 2
    assert len(pair.originals) == 4


def test_strangers_are_nobodys_target() -> None:
    setup = build_setup(scenario(targets=4))
    attacked = torch.cat([setup.observe(build_defence("none"), target).originals.images for target in range(4)])
    assert len(setup.strangers)
    assert not any(torch.equal(one, other) for one in attacked for other in setup.strangers.images)


class Dying(RoundListener):
    def finished(self, record: RoundRecord, rounds: int) -> None:
        if record.round == 1:
            raise KeyboardInterrupt


def test_killed_in_between_it_goes_on_where_it_was_and_trains_once_per_defence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = "topk:ratio=0.9,feedback=true"
    whole = build_setup(scenario(defences=[spec])).observe(build_defence(spec), 0, name=spec).observation
    killed = build_setup(scenario(defences=[spec]), stages=tmp_path).staging
    assert killed is not None
    with pytest.raises(KeyboardInterrupt):
        killed.federation(build_defence(spec), spec, listener=Dying())
    played: list[int] = []
    play = Federation.play

    def counting(self: Federation, number: int, listener: RoundListener) -> RoundRecord:
        played.append(number)
        return play(self, number, listener)

    monkeypatch.setattr(Federation, "play", counting)
    for _ in range(2):
        setup = build_setup(scenario(defences=[spec]), stages=tmp_path)
        again = setup.observe(build_defence(spec), 0, name=spec).observation
        assert equal(again.update.tensors, whole.update.tensors)
        assert equal(again.model.state_dict(), whole.model.state_dict())
    assert played == [2]


def test_an_audit_attacks_the_round_and_resumes(tmp_path: Path) -> None:
    asked = scenario(defences=["none", "dgp"], targets=2)
    run = run_audit([asked], tmp_path)
    assert {record.status for record in run.records} == {"ok"}, [record.message for record in run.records]
    assert run.environment["audit: attacked round"].startswith("3, from 0, of a training")
    assert len(list((tmp_path / "stages").glob("*.safetensors"))) == 2
    assert run_audit([asked], tmp_path).records == run.records


def test_an_active_server_asks_the_same_clients_for_the_same_images_again() -> None:
    setup = build_setup(scenario(client={"aggregate": 2}, model="mlp"))
    first = setup.observe(build_defence("none"), 0)
    played = setup._round(build_defence("none"), 0, "none")
    for number in (ROUND, ROUND + 1):
        done = played.cohort.play([first.observation.model], number, among=played.clients, shown=played.clients)
        fed = torch.cat([batch.images for answer in done.answers for batch in answer.fed])
        assert torch.equal(fed, first.originals.images)


def keys(asked: Scenario) -> set[str]:
    return {trial.key for job in plan_jobs(build_setup(asked)) for trial in job.trials}


def test_another_stage_is_another_trial() -> None:
    base = keys(scenario())
    assert keys(scenario()) == base
    for change in ({"round": 4}, {"clients": 5}, {"partition": "dirichlet:alpha=5"}, {"server_momentum": 0.5}):
        assert not keys(scenario(stage=change)) & base, change


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"targets": 5}, "round 3 has 4 clients, too few for target 4 of 1"),
        ({"stage": {"clients_per_round": 1}}, "round 3 has 1 clients, too few"),
        ({"client": {"batch_size": 40}}, "has a batch of 18 images in round 3, not of 40"),
        ({"client": {"batch_size": 20, "local_steps": 2}}, "has a batch of 18 images in round 3, not of 20"),
    ],
)
def test_what_the_round_cannot_give_is_said(values: dict[str, Any], says: str) -> None:
    asked = scenario(**values)
    with pytest.raises(InputError, match=says):
        build_setup(asked).observe(build_defence("none"), asked.targets - 1)


def test_a_stage_needs_a_round_or_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give the round that is attacked, or a checkpoint"):
        Scenario.model_validate({"stage": {"clients": 3}})
    with pytest.raises(ValueError, match="clients is as in the training"):
        Scenario.model_validate({"stage": {"clients": 3, "checkpoint": str(tmp_path)}})


TRAINING = {
    "data": "faces:size=8",
    "model": "mlp:depth=1,width=8",
    "clients": 4,
    "normalise": False,
    "defences": ["dgp"],
    "federation": {
        "algorithm": "fedsgd",
        "rounds": ROUND,
        "batch_size": 2,
        "learning_rate": 0.3,
        "bn_mode": "eval",
        "train_mode": False,
        "vectorise": "never",
    },
}


@pytest.fixture(scope="module")
def train_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    run_training(TrainingScenario.model_validate(TRAINING), directory)
    return directory


def on_training(directory: Path, **values: Any) -> Scenario:
    return scenario(stage={"round": None, "clients": 10, "checkpoint": str(directory)}, **values)


@pytest.mark.parametrize("spec", ["none", "dgp"])
def test_a_training_is_attacked_where_it_left_off(train_run: Path, spec: str) -> None:
    seen = build_setup(on_training(train_run, defences=[spec])).observe(build_defence(spec), 1, name=spec)
    longer = {**TRAINING, "federation": {**TRAINING["federation"], "rounds": ROUND + 1}}  # type: ignore[dict-item]
    federation, keeping = build_federation(TrainingScenario.model_validate(longer), 0), Keeping()
    simulate(
        federation.config,
        federation.model,
        federation.clients,
        federation.test,
        build_defence(spec),
        normalisation=federation.normalisation,
        listener=keeping,
    )
    assert equal(seen.observation.update.tensors, keeping.uploads["client-1"].update.tensors)
    assert torch.equal(seen.originals.images, keeping.uploads["client-1"].batches[0].images)


def test_a_training_is_trained_on_and_its_own_files_stay_as_they_are(train_run: Path, tmp_path: Path) -> None:
    files = {path: path.read_bytes() for path in (train_run / "checkpoints").iterdir()}
    asked = on_training(train_run, defences=["none", "dgp"])
    later = asked.model_copy(update={"stage": asked.stage.model_copy(update={"round": ROUND + 2})})  # type: ignore[union-attr]
    run = run_audit([later], tmp_path)
    assert {record.status for record in run.records} == {"ok"}, [record.message for record in run.records]
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"client": {"batch_size": 3}}, "trained with client.batch_size: 2, the scenario says 3"),
        ({"model": "mlp"}, "trained with model: mlp:depth=1,width=8, the scenario says mlp"),
        ({"seed": 5}, "not trained with seed 5"),
        ({"defences": ["topk"]}, "no checkpoint of a training under 'topk'"),
    ],
)
def test_a_scenario_that_contradicts_the_training_is_refused(
    train_run: Path, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(FedsealError, match=says):
        build_setup(on_training(train_run, **values))


def test_rounds_that_are_over_cannot_be_attacked(train_run: Path) -> None:
    asked = on_training(train_run)
    early = asked.model_copy(update={"stage": asked.stage.model_copy(update={"round": 1})})  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="round 1 cannot be attacked: the checkpoint has 3 rounds behind it"):
        build_setup(early)


def test_a_trainings_checkpoint_is_a_models_checkpoint(train_run: Path) -> None:
    run = open_training(train_run)
    with Store(train_run, writable=False) as store:
        key = next(key for defence, _, key in store.meta()["trainings"] if defence == "none")
    path = train_run / "checkpoints" / f"{key}.safetensors"
    spec = f"mlp:depth=1,width=8,checkpoint={path}"
    loaded = build_model(spec, input_shape=(1, 8, 8), num_classes=len(run.classes), seed=9)
    expected = build_setup(on_training(train_run)).observe(build_defence("none"), 0).observation.model
    assert equal(loaded.state_dict(), expected.state_dict())
    with pytest.raises(InputError, match="has shape"):
        build_model(f"mlp:depth=1,width=9,checkpoint={path}", input_shape=(1, 8, 8), num_classes=2, seed=0)
