"""Federated training: against plain PyTorch, against itself, and with clients that misbehave."""

from __future__ import annotations

import copy
import re
import threading
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Defence, RoundContext
from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
from fedseal.federation.checkpoint import load_checkpoint
from fedseal.federation.client import RoundConfig, set_mode
from fedseal.federation.cohort import Assignment, Held
from fedseal.federation.cohort.one_by_one import OneByOne
from fedseal.federation.cohort.vectorised import can_vectorise, clients_at_once, pays, train_together
from fedseal.federation.sampling import drops_out, local_indices, sample_clients, steps_of_epochs
from fedseal.federation.server import RunningMean
from fedseal.federation.simulation import FederationConfig, History, RoundListener, RoundRecord, SeenUpload, simulate
from fedseal.federation.simulation.evaluation import evaluate
from fedseal.federation.wire import encode
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)
CLASSES = 4


def data_of(size: int, seed: int = 0) -> Batch:
    """Images whose class is a bright quarter: learnable in a few steps."""
    source = generator(seed, "images")
    labels = torch.randint(CLASSES, (size,), generator=source)
    images = 0.3 * torch.rand(size, *SHAPE, generator=source)
    for place, label in enumerate(labels.tolist()):
        row, column = divmod(label, 2)
        images[place, :, 6 * row : 6 * row + 6, 6 * column : 6 * column + 6] += 0.6
    return Batch(images, labels)


def clients_of(count: int, size: int = 12) -> list[Held]:
    return [Held(data_of(size, seed)) for seed in range(count)]


TEST = data_of(80, 999)


def normalised_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(300, CLASSES))


def model_of(spec: str = "mlp:width=8", dtype: torch.dtype = torch.float32) -> nn.Module:
    return build_model(spec, input_shape=SHAPE, num_classes=CLASSES, seed=0).to(dtype)


def run(
    model: nn.Module | None = None,
    clients: list[Held] | None = None,
    defence: Defence | str | None = None,
    listener: RoundListener | None = None,
    checkpoint: Path | None = None,
    workers: int | None = None,
    **config: Any,
) -> tuple[History, nn.Module]:
    built = build_defence(defence) if isinstance(defence, str) else defence
    result = simulate(
        FederationConfig(**{"rounds": 3, **config}),
        model or model_of(),
        clients or clients_of(4),
        TEST,
        built,
        listener=listener,
        checkpoint=checkpoint,
        workers=workers,
    )
    return result.history, result.model


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def assert_close(one: nn.Module, other: nn.Module, tolerance: float) -> None:
    for name, value in weights(one).items():
        torch.testing.assert_close(value, weights(other)[name], rtol=0, atol=tolerance)


def without_time(history: History) -> History:
    rounds = tuple(record.model_copy(update={"seconds": 0.0, "hook_seconds": 0.0}) for record in history.rounds)
    return history.model_copy(update={"rounds": rounds})


# Against plain PyTorch


@pytest.mark.parametrize("vectorise", ["never", "always"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equal_shards_train_as_their_union_does(vectorise: str, momentum: float) -> None:
    """n clients, all their data in one step, against gradient descent on all images with momentum."""
    clients = clients_of(5)
    central = copy.deepcopy(model_of())
    optimiser = torch.optim.SGD(central.parameters(), lr=0.3, momentum=momentum)
    images = torch.cat([client.data.images for client in clients])
    labels = torch.cat([client.data.labels for client in clients])
    for _ in range(4):
        optimiser.zero_grad()
        F.cross_entropy(central(images), labels).backward()
        optimiser.step()
    _, federated = run(
        clients=clients,
        algorithm="fedsgd",
        batch_size=None,
        learning_rate=0.3,
        server_momentum=momentum,
        rounds=4,
        vectorise=vectorise,
    )
    assert_close(federated, central, 1e-5)


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_an_upload_that_is_a_step_is_applied_as_published(algorithm: str) -> None:
    """One client under AdaDefense against torch's Adam at the defence's scale: no learning rate, no momentum on top."""
    client = Held(data_of(20, 1))
    central = model_of(dtype=torch.float64)
    optimiser = torch.optim.Adam(central.parameters(), lr=1e-2, eps=1e-12)
    for _ in range(20):
        optimiser.zero_grad()
        F.cross_entropy(central(client.data.images.double()), client.data.labels).backward()
        optimiser.step()
    _, federated = run(
        model_of(dtype=torch.float64),
        clients=[client],
        defence="adadefense:scale=1e-2,eps=1e-12",
        algorithm=algorithm,
        local_steps=1,
        batch_size=None,
        learning_rate=0.3,
        server_momentum=0.9,
        rounds=20,
    )
    assert_close(federated, central, 1e-6)


@pytest.mark.parametrize("spec", ["mlp:width=8", "lenet"])
def test_fedavg_of_one_step_is_fedsgd(spec: str) -> None:
    common = {"learning_rate": 0.2, "server_learning_rate": 0.7, "server_momentum": 0.5, "batch_size": 5}
    _, sgd = run(model_of(spec), algorithm="fedsgd", **common)
    _, average = run(model_of(spec), algorithm="fedavg", local_steps=1, **common)
    assert_close(sgd, average, 1e-6)


def test_fedavg_weighs_clients_by_their_examples() -> None:
    """One round against McMahan's Algorithm 1 written out."""
    clients = [Held(data_of(size, size)) for size in (4, 12)]
    expected = {name: torch.zeros_like(value) for name, value in weights(model_of()).items()}
    for client, share in zip(clients, (4 / 16, 12 / 16), strict=True):
        local = model_of()
        optimiser = torch.optim.SGD(local.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimiser.zero_grad()
            F.cross_entropy(local(client.data.images), client.data.labels).backward()
            optimiser.step()
        for name, value in weights(local).items():
            expected[name] += share * value
    common = {"rounds": 1, "local_steps": 3, "batch_size": None, "momentum": 0.9}
    _, federated = run(clients=clients, **common)
    for name, value in weights(federated).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
    _, uniform = run(clients=clients, weighting="uniform", **common)
    assert any(not torch.allclose(value, expected[name]) for name, value in weights(uniform).items())


def test_training_learns_and_the_curve_is_that_of_the_model() -> None:
    history, model = run(rounds=12, learning_rate=0.3, local_epochs=2, batch_size=6, evaluate_every=5)
    assert [number for number, _ in history.curve] == [0, 5, 10, 12]
    assert history.initial_accuracy < 0.6
    assert history.accuracy > 0.95
    with torch.no_grad():
        right = (model(TEST.images).argmax(1) == TEST.labels).float().mean()
        loss = F.cross_entropy(model(TEST.images), TEST.labels)
    assert history.accuracy == pytest.approx(float(right))
    assert history.rounds[-1].loss == pytest.approx(float(loss), rel=1e-5)


# Against itself


@pytest.mark.parametrize(
    "defence", ["none", "gaussian:sigma=0.01", "topk:ratio=0.9,feedback=true", "mixup", "graddefense:scale=0.01"]
)
def test_the_same_seed_gives_the_same_curve_and_another_one_another(defence: str) -> None:
    config = {"clients_per_round": 2, "dropout": 0.3, "batch_size": 4, "local_steps": 2}
    before = torch.get_rng_state()
    one, same, other = (run(defence=defence, seed=seed, **config)[0] for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert without_time(one) == without_time(same)
    assert [record.loss for record in one.rounds] != [record.loss for record in other.rounds]


@pytest.mark.parametrize("defence", ["none", "topk:ratio=0.9,feedback=true", "gaussian:sigma=0.01+topk:ratio=0.5"])
@pytest.mark.parametrize(
    ("spec", "config"),
    [
        ("mlp:width=8", {"algorithm": "fedsgd"}),
        ("mlp:width=8", {"local_steps": 3, "momentum": 0.5}),
        ("lenet", {"local_steps": 2, "rounds": 1}),
    ],
)
def test_clients_trained_together_are_those_trained_in_turn(spec: str, defence: str, config: dict[str, Any]) -> None:
    clients = [Held(data_of(size, size)) for size in (4, 9, 9, 6)]  # batches of several sizes
    common = {"clients": clients, "defence": defence, "batch_size": 4, **config}
    (alone, one), (together, other) = (
        run(model_of(spec, torch.float64), vectorise=how, **common) for how in ("never", "always")
    )
    assert (alone.vectorised, together.vectorised) == (False, True)
    assert_close(one, other, 1e-12)
    assert sorted(alone.rounds[0].clients) == sorted(together.rounds[0].clients)


def test_a_chunk_of_clients_is_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, model = clients_of(7), model_of(dtype=torch.float64)
    _, whole = run(model, clients, vectorise="always", algorithm="fedsgd")
    batches = [clients[0].data]
    share = clients_at_once(model_of(), batches)
    monkeypatch.setattr("fedseal.federation.cohort.vectorised.MEMORY", 3 * (256 << 20) // share)
    assert clients_at_once(model_of(), batches) == 3
    _, parts = run(model, clients, vectorise="always", algorithm="fedsgd")
    assert_close(whole, parts, 1e-12)


def test_vectorising_is_refused_where_it_is_not_the_same() -> None:
    gradient, delta = RoundConfig(), RoundConfig(local_steps=2)
    example = data_of(1)
    assert can_vectorise(model_of(), Defence(), gradient, example)
    assert not can_vectorise(model_of(), build_defence("mixup"), gradient, example)
    assert not can_vectorise(model_of(), build_defence("dp-sgd"), gradient, example)
    assert not can_vectorise(model_of(), build_defence("soteria"), gradient, example)

    class PerStep(Defence):
        def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
            return gradient

    assert can_vectorise(model_of(), PerStep(), gradient, example)
    assert not can_vectorise(model_of(), PerStep(), delta, example)
    normalised = build_model("convnet:width=2", input_shape=(1, 28, 28), num_classes=4, seed=0)
    assert not can_vectorise(set_mode(normalised, RoundConfig(bn_mode="train-nostats")), Defence(), gradient, example)
    with pytest.raises(UsageError, match="cannot be trained as one"):
        run(defence="mixup", vectorise="always")


def test_a_model_that_cannot_be_vectorised_is_trained_in_turn() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(144, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(x.flatten(1))
            return output if bool(output.sum() > 0) else output * 2  # a decision on data has no batching rule

    history, _ = run(Branching())
    assert not history.vectorised
    assert len(history.rounds[0].clients) == 4


def test_vectorising_pays_for_small_models_and_batches_only() -> None:
    small, large = model_of("lenet"), build_model("resnet18", input_shape=(3, 32, 32), num_classes=10, seed=0)
    assert pays(small, 1)
    assert not pays(small, 64)
    assert not pays(large, 1)


# Clients


class Marking(Defence):
    """Adds nothing, and remembers whom it served."""

    name = "marking"

    def __init__(self) -> None:
        self.served: list[tuple[str, int]] = []
        self.prepared = 0

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        self.prepared += 1
        return Batch(1 - dataset.images, dataset.labels)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        self.served.append((context.client, context.round))
        _SERVED.setdefault(context.client, []).append(self)
        return update

    def state_dict(self) -> dict[str, Tensor]:
        return {"rounds": torch.tensor([number for _, number in self.served])}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.served = [("restored", int(number)) for number in state["rounds"]]


_SERVED: dict[str, list[Marking]] = {}


def test_every_client_keeps_a_defence_of_its_own_over_the_rounds_it_misses() -> None:
    _SERVED.clear()
    history, _ = run(defence=Marking(), clients_per_round=2, rounds=8)
    for name, instances in _SERVED.items():
        assert len({id(instance) for instance in instances}) == 1
        rounds = [record.round for record in history.rounds if name in record.clients]
        assert instances[0].served == [(name, number) for number in rounds]
        assert instances[0].prepared == 1
    assert len(_SERVED) == 4
    assert any(len(instances) < 8 for instances in _SERVED.values())
    assert len({id(instances[0]) for instances in _SERVED.values()}) == 4


def test_what_a_defence_prepares_is_what_clients_train_on() -> None:
    class Watching(RoundListener):
        seen: tuple[Tensor, ...] = ()

        def inspects(self, round_number: int) -> bool:
            return round_number == 1

        def uploaded(self, model: nn.Module, upload: SeenUpload) -> None:
            self.seen += (upload.batches[0].images,)

    watching = Watching()
    clients = clients_of(2, 3)
    run(clients=list(clients), defence=Marking(), listener=watching, batch_size=None)
    for images, client in zip(watching.seen, clients, strict=True):
        assert torch.allclose(images.sum(), (1 - client.data.images).sum())


class Sabotage(Defence):
    """Sends garbage from one client in one round."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        if context.client != "client-2" or context.round != 1:
            return update
        name = next(iter(update))
        value = update[name]
        garbage: dict[str, dict[str, Tensor]] = {
            "nan": {name: value * float("nan")},
            "infinite": {name: value / 0},
            "shape": {name: value[:1]},
            "dtype": {name: value.double()},
            "stranger": {"stranger": value},
        }
        return {**update, **garbage[self.what]}


@pytest.mark.parametrize("vectorise", ["never", "always"])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nan", "NaN or infinite"),
        ("infinite", "NaN or infinite"),
        ("shape", "has shape"),
        ("dtype", r"is torch\.float64"),
        ("stranger", "'stranger' is not a parameter"),
    ],
)
def test_a_client_that_sends_garbage_is_dropped_for_the_round_and_named(what: str, said: str, vectorise: str) -> None:
    history, model = run(defence=Sabotage(what), vectorise=vectorise, algorithm="fedsgd")
    ((number, dropped),) = history.dropped
    assert (number, dropped.client) == (1, "client-2")
    assert re.search(said, dropped.reason)
    assert [len(record.clients) for record in history.rounds] == [4, 3, 4]
    assert all(bool(torch.isfinite(value).all()) for value in weights(model).values())


def test_a_round_without_any_answer_leaves_the_model_alone() -> None:
    class AllBroken(Defence):
        def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
            return {name: value * float("nan") for name, value in update.items()}

    history, model = run(defence=AllBroken())
    assert [record.clients for record in history.rounds] == [()] * 3
    assert_close(model, model_of(), 0)
    assert history.rounds[-1].bytes_up == 0


def test_dropouts_are_named_and_as_frequent_as_asked_for() -> None:
    history, _ = run(dropout=0.4, rounds=30, evaluate_every=30)
    missing = [dropped for _, dropped in history.dropped]
    assert {dropped.reason for dropped in missing} == {"did not answer"}
    assert 0.25 < len(missing) / 120 < 0.55
    for record in history.rounds:
        assert len(record.clients) + len(record.dropped) == 4


def test_bytes_are_those_of_the_coded_uploads_and_of_the_model() -> None:
    dense = len(encode({name: torch.rand_like(p) + 1 for name, p in model_of().named_parameters()}))
    history, _ = run(clients_per_round=3, dropout=0.3)
    for record in history.rounds:
        assert record.bytes_down == 3 * dense
        assert record.bytes_up <= len(record.clients) * dense
    pruned, _ = run(defence="topk:ratio=0.9")
    assert pruned.bytes_up < 0.3 * run()[0].bytes_up
    assert pruned.bytes_down == run()[0].bytes_down


# What an attack is shown


def test_a_listener_sees_the_uploads_of_the_rounds_it_inspects_and_the_model_they_belong_to() -> None:
    class Attacking(RoundListener):
        def __init__(self) -> None:
            self.uploads: list[SeenUpload] = []
            self.records: list[RoundRecord] = []

        def inspects(self, round_number: int) -> bool:
            return round_number == 1

        def uploaded(self, model: nn.Module, upload: SeenUpload) -> None:
            self.uploads.append(upload)
            loss = F.cross_entropy(model(upload.batches[0].images), upload.batches[0].labels)
            values = torch.autograd.grad(loss, list(model.parameters()))
            for own, seen in zip(values, upload.update.tensors.values(), strict=True):
                torch.testing.assert_close(own, seen, rtol=0, atol=1e-6)

        def finished(self, record: RoundRecord, rounds: int) -> None:
            self.records.append(record)
            assert rounds == 3

    watching = Attacking()
    history, _ = run(algorithm="fedsgd", listener=watching, batch_size=4)
    assert [(upload.round, upload.client) for upload in watching.uploads] == [(1, f"client-{i}") for i in range(4)]
    assert tuple(watching.records) == history.rounds


def test_a_listener_sees_only_what_the_server_can_read() -> None:
    class Reading(RoundListener):
        hidden = 0

        def inspects(self, round_number: int) -> bool:
            return True

        def uploaded(self, model: nn.Module, upload: SeenUpload) -> None:
            self.hidden += sum(int(((t == 0) & torch.signbit(t)).sum()) for t in upload.update.tensors.values())

    reading = Reading()
    _, encrypted = run(defence="selective-encryption:ratio=0.5", listener=reading)
    assert reading.hidden > 0
    assert_close(encrypted, run()[1], 0)


# Checkpoints


class Interrupting(RoundListener):
    def __init__(self, at: int) -> None:
        self.at = at

    def finished(self, record: RoundRecord, rounds: int) -> None:
        if record.round == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "defence", ["none", "topk:ratio=0.9,feedback=true", "selective-encryption:common=true", "mixup", "fedkl:key=8"]
)
def test_a_run_that_was_interrupted_ends_with_the_same_curve(defence: str, tmp_path: Path) -> None:
    config = {
        "clients_per_round": 2,
        "rounds": 6,
        "server_momentum": 0.5,
        "local_steps": 2,
        "batch_size": 4,
        "dropout": 0.2,
    }
    initial = normalised_model() if "fedkl" in defence else model_of()
    whole, expected = run(initial, defence=defence, **config)
    path = tmp_path / "run.safetensors"
    for at in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            run(initial, defence=defence, checkpoint=path, listener=Interrupting(at), **config)
    resumed, model = run(initial, defence=defence, checkpoint=path, **config)
    assert without_time(resumed) == without_time(whole)
    assert_close(model, expected, 0)
    again, _ = run(initial, defence=defence, checkpoint=path, **config)
    assert again == resumed  # nothing was run twice, not even a clock
    longer, _ = run(initial, defence=defence, checkpoint=path, **{**config, "rounds": 7})
    assert longer.rounds[:6] == resumed.rounds


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    run(checkpoint=path)
    for change in ({"seed": 1}, {"learning_rate": 0.2}, {"defence": "topk"}, {"clients": clients_of(3)}):
        with pytest.raises(UsageError, match="belongs to another run"):
            run(checkpoint=path, **change)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="is not a checkpoint"):
        run(checkpoint=path)
    path.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(InputError, match="is not a checkpoint"):
        load_checkpoint(path, "x")


# Batch normalisation


@pytest.mark.parametrize("mode", ["eval", "train-nostats", "train-exact-stats"])
def test_running_statistics_reach_the_server_only_where_the_mode_says_so(mode: str) -> None:
    model = normalised_model()
    assert isinstance(model, nn.Sequential)
    clients = clients_of(2)
    history, trained = run(model, clients, bn_mode=mode, rounds=1, local_steps=1, batch_size=None)
    moved = not torch.equal(trained[1].running_mean, model[1].running_mean)
    assert moved == (mode == "train-exact-stats")
    if moved:
        means = [0.1 * model[0](client.data.images).mean((0, 2, 3)) for client in clients]
        torch.testing.assert_close(trained[1].running_mean, torch.stack(means).mean(0), rtol=0, atol=1e-6)
    expected = evaluate(trained, TEST, Normalisation(), batch_statistics=mode == "train-nostats")
    assert (history.accuracy, history.rounds[-1].loss) == pytest.approx((expected.accuracy, expected.loss))
    if mode == "train-nostats":
        by_running = evaluate(trained, TEST, Normalisation())
        assert by_running.loss != pytest.approx(expected.loss)


def test_measuring_changes_neither_mode_nor_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(144, CLASSES)).train()
    before = copy.deepcopy(model.state_dict())
    for by_batch in (False, True):
        evaluate(model, TEST, Normalisation(), batch_statistics=by_batch)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


# Configuration


@pytest.mark.parametrize(
    "values",
    [
        {"local_steps": 2, "local_epochs": 1},
        {"algorithm": "fedsgd", "local_steps": 2},
        {"algorithm": "fedsgd", "local_epochs": 1},
        {"rounds": 0},
        {"dropout": 1.0},
        {"unknown": 1},
    ],
)
def test_contradictions_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FederationConfig(**values)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UsageError, match="5 clients per round are more than the 4"):
        run(clients_per_round=5)
    with pytest.raises(UsageError, match="averages 3 clients, a round has 2"):
        run(defence="secagg:clients=3", clients_per_round=2)
    with pytest.raises(UsageError, match="several local steps, fedsgd one"):
        run(defence="local-steps:steps=3", algorithm="fedsgd")
    uneven = [Held(data_of(size)) for size in (4, 5)]
    with pytest.raises(UsageError, match="only a plain mean unmasks"):
        run(clients=uneven, defence="cancelling-noise")
    with pytest.raises(InputError, match="client-1 holds no data"):
        run(clients=[Held(data_of(3)), Held(Batch(torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.int64)))])


def test_noise_that_partners_cancel_leaves_the_training_as_it_was() -> None:
    _, plain = run(model_of(dtype=torch.float64))
    _, masked = run(model_of(dtype=torch.float64), defence="cancelling-noise:clients=4")
    assert_close(plain, masked, 1e-9)


# Sampling


def test_sampling_is_seeded_fair_and_without_replacement() -> None:
    rounds = [sample_clients(10, 3, 0, number) for number in range(300)]
    assert rounds == [sample_clients(10, 3, 0, number) for number in range(300)]
    assert all(len(set(chosen)) == 3 and chosen == sorted(chosen) for chosen in rounds)
    counts = torch.bincount(torch.tensor(rounds).flatten(), minlength=10)
    assert 60 < int(counts.min()) <= int(counts.max()) < 125
    assert sample_clients(4, 4, 0, 0) == [0, 1, 2, 3]
    with pytest.raises(InputError, match="cannot sample 5 of 4"):
        sample_clients(4, 5, 0, 0)
    assert not any(drops_out(0.0, 0, number, 0) for number in range(50))


def test_batches_pass_through_the_data_before_any_image_comes_again() -> None:
    batches = local_indices(10, 4, 5, 0, 0, 0)
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4]
    assert sorted(torch.cat(batches[:3]).tolist()) == list(range(10))
    assert [b.tolist() for b in batches] == [b.tolist() for b in local_indices(10, 4, 5, 0, 0, 0)]
    assert batches[0].tolist() != local_indices(10, 4, 5, 0, 1, 0)[0].tolist()
    assert len(local_indices(3, 8, 1, 0, 0, 0)[0]) == 3
    assert steps_of_epochs(10, 4, 2) == 6
    with pytest.raises(InputError, match="holds no data"):
        local_indices(0, 4, 1, 0, 0, 0)


# Memory


def test_an_aggregate_of_many_needs_the_memory_of_one() -> None:
    mean = RunningMean()
    values = torch.rand(50, 7, dtype=torch.float64)
    for index, row in enumerate(values):
        mean.add({"w": row}, index + 1.0)
    weight = torch.arange(1.0, 51.0, dtype=torch.float64)
    torch.testing.assert_close(mean.value()["w"], (values * weight[:, None]).sum(0) / weight.sum())
    with pytest.raises(InputError, match="no updates"):
        RunningMean().value()


@pytest.mark.parametrize("workers", [1, 3, None])
def test_uploads_are_made_as_they_are_taken(workers: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a chunk of clients is ever asked for ahead of the uploads taken."""
    monkeypatch.setattr("fedseal.federation.cohort.vectorised.MEMORY", 200_000)
    model, data = model_of(), data_of(4)
    train = train_together if workers is None else OneByOne(model, workers, data.images, ())
    most = clients_at_once(model, [data]) if workers is None else workers + 1
    assert most < 20
    asked = taken = 0

    def assignments() -> Any:
        nonlocal asked
        for index in range(100):
            asked += 1
            yield Assignment(index, f"client-{index}", model, (data,), RoundConfig(), Defence(), generator(0))

    for _ in train(assignments(), 0):
        taken += 1
        assert asked - taken <= most
    assert taken == 100


@pytest.mark.parametrize("spec", ["none", "dgp", "gaussian:sigma=0.01", "dp-sgd", "adgp"])
def test_the_curve_does_not_depend_on_how_many_clients_train_at_once(spec: str) -> None:
    runs = [run(defence=spec, rounds=3, local_steps=2, vectorise="never", workers=workers) for workers in (1, 3)]
    for (name, one), other in zip(runs[0][1].state_dict().items(), runs[1][1].state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert [r.bytes_up for r in runs[0][0].rounds] == [r.bytes_up for r in runs[1][0].rounds]
    assert [r.clients for r in runs[0][0].rounds] == [r.clients for r in runs[1][0].rounds]


class Meeting(Defence):
    """A client that waits until another trains beside it."""

    barrier = threading.Barrier(2)

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        self.barrier.wait(timeout=20)
        return batch


def assignments_of(model: nn.Module, data: Batch, count: int, defence: Defence) -> list[Assignment]:
    config = RoundConfig(train_mode=True)
    return [Assignment(i, f"client-{i}", model, (data,), config, defence, generator(i)) for i in range(count)]


def test_clients_really_train_at_once() -> None:
    model, data = model_of(), data_of(4)
    train, assignments = OneByOne(model, 2, data.images, ()), assignments_of(model, data, 4, Meeting())
    assert [answer.failure for answer in train(assignments, 0)] == [""] * 4


def test_clients_whose_model_draws_train_one_after_the_other_and_alike() -> None:
    model, data = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, CLASSES)).train(), data_of(4)
    state = torch.get_rng_state()
    train = OneByOne(model, 3, data.images, ())
    answers = [list(train(assignments_of(model, data, 6, Defence()), 0)) for _ in range(2)]
    for one, other in zip(*answers, strict=True):
        assert one.update is not None
        assert other.update is not None
        for name, tensor in one.update.tensors.items():
            assert torch.equal(tensor, other.update.tensors[name])
    assert torch.equal(torch.get_rng_state(), state)


def test_memory_is_flat_in_the_number_of_clients() -> None:
    """Python's side of it; the tensors' is bounded by the chunk above."""
    peaks = []
    for count in (50, 400):
        clients = [Held(data_of(2, 0))] * count
        tracemalloc.start()
        run(clients=clients, algorithm="fedsgd", rounds=1, batch_size=2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 3 * peaks[0] + 2_000_000
