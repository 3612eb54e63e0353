"""Flower's own apps, strategies and messages with fedseal's mod, guard and recorder, in one process."""

from __future__ import annotations

import copy
import json
import math
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from fedseal.cli import main
from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES, Defence, RoundContext
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import flatten
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.posthoc import needs_training
from fedseal.federation.update_file import read_updates
from fedseal.federation.wire import encode
from fedseal.flower import defend, guard, record, train_round, wrap_model
from fedseal.flower.records import PAYLOAD, only_arrays, to_tensors
from fedseal.flower.rounds import Seal, opened
from fedseal.metrics.image import psnr

State = dict[str, Tensor]
SPECS = ("dgp", "adadefense", "refiner:t=2", "topk:ratio=0.9")


def initial() -> State:
    return {"layer.weight": torch.linspace(-1, 1, 40).view(4, 10), "layer.bias": torch.linspace(0, 1, 4)}


def step(node: int, number: int, state: State) -> State:
    """Return what an honest client adds to its weights in a round: some vector of its own."""
    source = generator(7, "step", node, number)
    return {name: torch.randn(tensor.shape, generator=source) for name, tensor in state.items()}


def reply_with(message: Message, state: State, **metrics: float) -> Message:
    content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 10, **metrics})}
    return Message(content=RecordDict(content), reply_to=message)


def received(message: Message) -> State:
    return to_tensors(message.content["arrays"], "message")


def round_of(message: Message) -> int:
    return int(message.content["config"]["server-round"])


def honest_app(*mods: Any) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        state = received(message)
        added = step(context.node_id, round_of(message), state)
        return reply_with(message, {name: state[name] + added[name] for name in state})

    return app


def fit(strategy: Any, grid: Any, rounds: int = 3, state: State | None = None) -> State:
    outcome = strategy.start(grid=grid, initial_arrays=ArrayRecord(state or initial()), num_rounds=rounds)
    return to_tensors(outcome.arrays, "result")


def fedavg(**options: Any) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, **options)


def distance(one: State, other: State) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def simulate(spec: str, nodes: int, rounds: int) -> State:
    """Do by hand what the federation should: one defence per client, its state kept, a plain mean."""
    state = initial()
    defences = {node: build_defence(spec) for node in range(2, nodes + 2)}
    for number in range(1, rounds + 1):
        sent = []
        for node, defence in defences.items():
            context = RoundContext(nn.Module(), lambda model, batch: torch.zeros(()), generator(0), number - 1)
            after = {name: state[name] + value for name, value in step(node, number, state).items()}
            sent.append(defence.on_update({name: after[name] - state[name] for name in state}, context))
        state = {name: state[name] + torch.stack([update[name] for update in sent]).mean(0) for name in state}
    return state


@pytest.mark.parametrize("spec", ["none", "topk:ratio=0.8", "dgc:ratio=0.7", "dgp"])
@pytest.mark.parametrize("encoding", ["weights", "wire"])
def test_the_mod_does_what_the_defence_does_and_keeps_each_clients_state(flower: Any, spec: str, encoding: Any):
    grid = flower.grid(honest_app(defend(spec, encoding=encoding)), 3)
    assert distance(fit(guard(fedavg()), grid), simulate(spec, 3, 3)) < 1e-5


def test_without_state_between_rounds_the_result_would_be_another(flower: Any):
    """The test above can fail: error feedback matters."""
    assert distance(simulate("dgc:ratio=0.7", 3, 3), simulate("topk:ratio=0.7", 3, 3)) > 1e-2


def test_state_lives_in_flowers_context_and_nowhere_else(flower: Any):
    grid = flower.grid(honest_app(defend("dgc:ratio=0.7")), 2)
    fit(guard(fedavg()), grid, rounds=1)
    kept = [to_tensors(context.state.array_records["fedseal.state"], "state") for context in grid.contexts.values()]
    assert all(kept)
    assert distance(kept[0], kept[1]) > 1e-3  # residuals are the clients' own
    for context in grid.contexts.values():
        context.state = RecordDict()
    lost = fit(guard(fedavg()), grid, rounds=1)
    fresh = flower.grid(honest_app(defend("dgc:ratio=0.7")), 2)
    assert distance(lost, fit(guard(fedavg()), fresh, rounds=1)) == 0


@pytest.mark.parametrize("encoding", ["weights", "wire"])
def test_costs_are_in_the_replies_metrics_and_the_clients_secrets_are_not(flower: Any, encoding: Any):
    grid = flower.grid(honest_app(defend("gaussian:sigma=0.1+topk:ratio=0.75", encoding=encoding)), 2)
    strategy = guard(fedavg())
    outcome = strategy.start(grid=grid, initial_arrays=ArrayRecord(initial()), num_rounds=2)
    for metrics in outcome.train_metrics_clientapp.values():
        assert metrics["fedseal-density"] == pytest.approx(0.25, abs=0.03)
        assert metrics["fedseal-bytes-up"] > 0
        assert metrics["fedseal-seconds"] > 0
        assert metrics["fedseal-epsilon-nominal"] > 0
        assert not any("distance" in name for name in metrics)


def test_a_payload_is_as_small_as_the_defence_made_it(flower: Any):
    big = {"w": torch.zeros(100_000)}
    sizes = {}
    for encoding in ("weights", "wire"):
        grid = flower.grid(honest_app(defend("topk:ratio=0.99", encoding=encoding)), 2)
        guarded = guard(fedavg())
        seen: list[int] = []
        inner = guarded.aggregate_train

        def spy(number: int, replies: Any, inner: Any = inner, seen: list[int] = seen) -> Any:
            replies = list(replies)
            seen += [sum(len(a.data) for a in reply.content["arrays"].values()) for reply in replies]
            return inner(number, replies)

        guarded.aggregate_train = spy  # type: ignore[method-assign]
        fit(guarded, grid, rounds=1, state=big)
        sizes[encoding] = max(seen)
    assert sizes["weights"] > 400_000
    assert sizes["wire"] < 6_000  # 1,000 values of 4 bytes and where they are


def test_evaluation_passes_the_mod_untouched(flower: Any):
    app = honest_app(defend("topk"))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 2.0})}), reply_to=message)

    outcome = guard(FedAvg()).start(grid=flower.grid(app, 2), initial_arrays=ArrayRecord(initial()), num_rounds=1)
    assert dict(outcome.evaluate_metrics_clientapp[1]) == {"loss": 2.0}


def test_a_clients_own_failure_stays_a_failure(flower: Any):
    app = ClientApp(mods=[defend("topk")])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise RuntimeError("out of memory")

    grid = flower.grid(app, 2)
    strategy = guard(fedavg())
    outcome = strategy.start(grid=grid, initial_arrays=ArrayRecord(initial()), num_rounds=1)
    assert outcome.arrays is None or len(outcome.arrays) == 0
    assert all("out of memory" in reply.error.reason for reply in grid.replies)
    assert strategy.dropped == []


class TestBatchNorm:
    """Buffers say what the private data looks like; no defence covers them, so they never leave."""

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))

    @pytest.mark.parametrize("mine", [True, False], ids=["train_round", "own loop"])
    @pytest.mark.parametrize("encoding", ["weights", "wire"])
    def test_buffers_are_not_uploaded(self, flower: Any, mine: bool, encoding: Any):
        app = ClientApp(mods=[defend("none", encoding=encoding)])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            model = self.model()
            model.load_state_dict(received(message))
            batch = Batch(torch.rand(4, 1, 8, 8), torch.arange(4))
            if mine:
                trained = train_round(model, [batch], RoundConfig(bn_mode="train-nostats"))
                return reply_with(message, {**trained.weights, "1.running_mean": torch.full((2,), 9.0)})
            optimiser = torch.optim.SGD(model.parameters(), 0.1)
            nn.functional.cross_entropy(model.train()(batch.images), batch.labels).backward()
            optimiser.step()
            return reply_with(message, dict(model.state_dict()))

        before = {name: tensor.clone() for name, tensor in self.model().state_dict().items()}
        grid = flower.grid(app, 2)
        strategy = guard(fedavg())
        after = fit(strategy, grid, rounds=1, state=before)
        assert strategy.dropped == []
        for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            assert torch.equal(after[name].to(before[name].dtype), before[name])
        for name in ("0.weight", "1.weight", "3.bias"):
            assert not torch.equal(after[name], before[name])


class TestRefusals:
    """What one client's mod cannot do is refused, not left out in silence."""

    @pytest.mark.parametrize("spec", ["dp-sgd", "outpost", "blur", "precode", "local-steps:steps=4", "topk+secagg"])
    def test_what_acts_elsewhere_is_refused(self, flower: Any, spec: str):
        if "secagg" in spec:
            with pytest.raises(CapabilityError, match="secagg is a protocol between several parties"):
                defend(spec)
            return
        with pytest.raises(CapabilityError, match=r"acts while the client trains.*train_round.*inside=True"):
            defend(spec)
        grid = flower.grid(honest_app(defend(spec, inside=True)), 2)  # it says so, and does not
        with pytest.raises(CapabilityError, match=r"every client refused in round 1: .* acts while the client trains"):
            fit(guard(fedavg()), grid)

    def test_every_registered_defence_has_its_way(self):
        """Each acts on the update alone, or inside of training, or jointly; none falls between."""
        for name in DEFENCES.names():
            entry = DEFENCES.entry(name)
            if any(p.default is p.empty for p in entry.parameters.values()):
                continue
            defence = DEFENCES.build(name)
            if defence.uses("on_update") and defence.stage == "update" and not defence.traits.reads_batch:
                assert needs_training(defence) in ((), (name,))

    def test_nonsense_is_refused_at_once(self):
        with pytest.raises(UsageError, match="no defence called 'topc'"):
            defend("topc")
        with pytest.raises(UsageError, match="no encoding 'zip'"):
            defend("topk", encoding="zip")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="cannot be recorded"):
            record("somewhere", batch_size=0)

    def test_a_run_config_without_a_defence_is_named(self, flower: Any):
        grid = flower.grid(honest_app(defend()), 2)
        with pytest.raises(CapabilityError, match="every client refused in round 1: the run config has no 'defence'"):
            fit(guard(fedavg()), grid)


def spoiled(kind: str, message: Message, earlier: list[Message], honest: Message) -> Message:
    """Turn an honest sealed reply into garbage of one kind."""
    arrays = honest.content["arrays"]
    data = bytearray(arrays[PAYLOAD].data)
    state = initial()
    if kind == "nan":
        state["layer.bias"][1] = math.nan
    elif kind == "inf":
        state["layer.bias"][1] = math.inf
    elif kind == "name":
        state["layer.extra"] = state.pop("layer.bias")
    elif kind == "shape":
        state["layer.bias"] = torch.zeros(3)
    elif kind == "dtype":
        state["layer.bias"] = state["layer.bias"].long()
        honest.content.array_records["arrays"] = ArrayRecord(state)
        honest.content.config_records["fedseal"]["encoding"] = "weights"
    if kind in ("nan", "inf", "name", "shape"):
        honest.content.array_records["arrays"] = ArrayRecord({PAYLOAD: Array(np.frombuffer(encode(state), np.uint8))})
    elif kind == "corrupted":
        data[-20] ^= 0xFF
        honest.content.array_records["arrays"] = ArrayRecord(
            {PAYLOAD: Array(dtype="uint8", shape=arrays[PAYLOAD].shape, stype="numpy.ndarray", data=bytes(data))}
        )
    elif kind == "lying array":
        lie = re.sub(rb"'shape': \(1", b"'shape': (9", bytes(data))
        honest.content.array_records["arrays"] = ArrayRecord(
            {PAYLOAD: Array(dtype="uint8", shape=(1,), stype="numpy.ndarray", data=lie)}
        )
    elif kind == "pickled array":
        honest.content.array_records["arrays"] = ArrayRecord(
            {PAYLOAD: Array(dtype="object", shape=(1,), stype="pickle", data=b"cos\nsystem\n")}
        )
    elif kind == "weight":
        honest.content["metrics"]["num-examples"] = -5
    elif kind == "metric":
        honest.content["metrics"]["loss"] = math.nan
    elif kind == "metric names":
        honest.content["metrics"]["surprise"] = 1.0
    elif kind == "envelope":
        honest.content.config_records["fedseal"] = ConfigRecord({"round": "now"})
    elif kind == "round" and earlier:
        return Message(content=earlier[0].content, reply_to=message)
    elif kind == "content" and earlier:
        honest.content.array_records["arrays"] = earlier[0].content["arrays"]
    return honest


REASONS = {
    "nan": "NaN or infinite",
    "inf": "NaN or infinite",
    "name": "'layer.extra' is not a parameter",
    "shape": r"has shape \[3\]",
    "dtype": "torch.int64",
    "corrupted": "checksum",
    "lying array": "does not fit its",
    "pickled array": "stored as 'pickle'",
    "weight": "not a positive number",
    "metric": "is not finite",
    "metric names": "differ from the others' in 'surprise'",
    "envelope": "makes no sense",
    "round": "replayed an answer to round 1",
    "content": "replayed the update of round 1",
}


@pytest.mark.parametrize("kind", list(REASONS))
def test_a_client_that_sends_garbage_is_dropped_and_named_and_training_goes_on(flower: Any, kind: str):
    sealed = defend("topk:ratio=0.5", encoding="wire")
    earlier: list[Message] = []

    def vandal(message: Message, context: Context, call_next: Any) -> Message:
        reply = sealed(message, context, call_next)
        if context.node_id != 3:
            return reply
        bad = spoiled(kind, message, earlier, reply)
        earlier.append(copy.deepcopy(bad))  # the guard unpacks replies in place
        return bad

    strategy = guard(fedavg())
    grid = flower.grid(honest_app(vandal), 4)
    result = fit(strategy, grid, rounds=2)
    late = kind in ("round", "content")
    assert [(drop.round, drop.client) for drop in strategy.dropped] == ([(2, 3)] if late else [(1, 3), (2, 3)])
    assert all(re.search(REASONS[kind], drop.reason) for drop in strategy.dropped)
    assert all(torch.isfinite(tensor).all() for tensor in result.values())
    honest = without(flower, 3, rounds=2, from_round=2 if late else 1)
    assert distance(result, honest) < 1e-6


def without(flower: Any, node: int, rounds: int, from_round: int) -> State:
    """Return the result of a federation in which one client fails from some round on."""
    sealed = defend("topk:ratio=0.5", encoding="wire")

    def absent(message: Message, context: Context, call_next: Any) -> Message:
        if context.node_id == node and round_of(message) >= from_round:
            raise RuntimeError("absent")
        return sealed(message, context, call_next)

    return fit(guard(fedavg()), flower.grid(honest_app(absent), 4), rounds=rounds)


def test_an_answer_that_comes_twice_or_unasked_is_dropped(flower: Any):
    strategy = guard(fedavg())
    grid = flower.grid(honest_app(defend("topk", encoding="wire")), 3)
    messages = strategy.configure_train(1, ArrayRecord(initial()), ConfigRecord(), grid)
    replies = grid.send_and_receive(messages)
    other = flower.grid(honest_app(defend("topk", encoding="wire")), 9)
    unasked = next(
        reply
        for reply in other.send_and_receive(
            guard(fedavg()).configure_train(1, ArrayRecord(initial()), ConfigRecord(), other)
        )
        if reply.metadata.src_node_id == 9
    )
    arrays, _ = strategy.aggregate_train(1, [*replies, copy.deepcopy(replies[0]), unasked])
    assert arrays is not None
    assert [drop.reason for drop in strategy.dropped] == [
        "it answered twice in this round.",
        "it was not asked in this round.",
    ]
    assert strategy.dropped[0].client == replies[0].metadata.src_node_id


def test_a_round_of_garbage_alone_leaves_the_model_as_it_was(flower: Any):
    def vandal(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        reply.content.array_records["arrays"] = ArrayRecord({n: t * math.nan for n, t in initial().items()})
        return reply

    strategy = guard(fedavg())
    outcome = strategy.start(
        grid=flower.grid(honest_app(vandal), 3), initial_arrays=ArrayRecord(initial()), num_rounds=2
    )
    assert not outcome.arrays
    assert len(strategy.dropped) == 6


def test_the_servers_side_of_a_defence_is_applied_to_the_aggregate(flower: Any):
    plain = fit(guard(fedavg()), flower.grid(honest_app(defend("none")), 3), rounds=1)
    final = fit(guard(fedavg(), defence="graddefense:scale=1.0"), flower.grid(honest_app(defend("none")), 3), rounds=1)
    before = initial()
    cleaned = build_defence("graddefense:scale=1.0").on_aggregate({name: plain[name] - before[name] for name in before})
    assert distance(final, {name: before[name] + tensor for name, tensor in cleaned.items()}) < 1e-5
    assert distance(final, plain) > 1e-3


def test_a_gradient_reaches_the_servers_side_of_a_defence_as_a_gradient(flower: Any):
    """With one local step the wire carries the gradient, and what works on the aggregate sees gradients too."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    config = RoundConfig(learning_rate=0.5)

    def own_batch(node: int) -> Batch:
        return Batch(torch.rand(3, 1, 4, 4, generator=generator(node)), torch.tensor([1, 2, node]))

    app = ClientApp(mods=[defend("none", encoding="wire")])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = copy.deepcopy(net)
        model.load_state_dict(received(message))
        return reply_with(message, train_round(model, [own_batch(context.node_id)], config).weights)

    rounds = [client_round(net, [own_batch(node)], config, Defence(), generator(0)) for node in (2, 3, 4)]
    mean = {name: torch.stack([done.update.tensors[name] for done in rounds]).mean(0) for name in before}
    spec = f"graddefense:scale={float(flatten(mean).std()):.4f}"
    final = fit(guard(fedavg(), defence=spec), flower.grid(app, 3), rounds=1, state=before)
    cleaned = build_defence(spec).on_aggregate(mean)
    assert distance(final, {name: before[name] - 0.5 * cleaned[name] for name in before}) < 1e-5
    assert distance(final, {name: before[name] - 0.5 * mean[name] for name in before}) > 1e-4


@pytest.mark.parametrize("strategy", [FedAdam, FedAvgM, FedMedian, FedProx], ids=lambda kind: kind.__name__)
def test_any_strategy_that_averages_weights_can_be_guarded(flower: Any, strategy: Any):
    options: dict[str, Any] = {"fraction_evaluate": 0.0} | ({"proximal_mu": 0.1} if strategy is FedProx else {})
    plain = fit(strategy(**options), flower.grid(honest_app(), 3), rounds=2)
    guarded = fit(guard(strategy(**options)), flower.grid(honest_app(defend("none", encoding="wire")), 3), rounds=2)
    assert distance(plain, guarded) < 1e-5


def test_undefended_clients_are_guarded_too(flower: Any):
    strategy = guard(fedavg())
    plain = fit(fedavg(), flower.grid(honest_app(), 3))
    assert distance(fit(strategy, flower.grid(honest_app(), 3)), plain) < 1e-6
    assert strategy.dropped == []


class TestRecording:
    def test_client_and_server_record_the_same(self, flower: Any, tmp_path: Path):
        facts: dict[str, Any] = {"learning_rate": 0.1, "local_steps": 1, "batch_size": 1, "input_shape": (1, 2, 5)}
        at_client = record(tmp_path / "client", **facts)
        at_server = record(tmp_path / "server", **facts)
        grid = flower.grid(honest_app(at_client, defend("topk:ratio=0.5", encoding="wire")), 2)
        fit(guard(fedavg(), recorder=at_server), grid, rounds=2)
        files = sorted(path.name for path in (tmp_path / "server").iterdir())
        assert files == [f"round-000{n}-client-{c}.update.safetensors" for n in (1, 2) for c in (2, 3)]
        for name in files:
            assert (tmp_path / "server" / name).read_bytes() == (tmp_path / "client" / name).read_bytes()
        first = read_updates(tmp_path / "server")[0]
        assert first.facts.defence == "topk:ratio=0.5"
        assert first.facts.learning_rate == 0.1
        assert distance(dict(first.before), initial()) == 0
        added = step(2, 1, initial())
        kept = first.update.tensors["layer.weight"]
        assert torch.allclose(kept[kept != 0], added["layer.weight"][kept != 0], atol=1e-6)

    def test_garbage_is_not_recorded(self, flower: Any, tmp_path: Path):
        def vandal(message: Message, context: Context, call_next: Any) -> Message:
            reply = call_next(message, context)
            if context.node_id == 2:
                reply.content.array_records["arrays"] = ArrayRecord({n: t * math.inf for n, t in initial().items()})
            return reply

        fit(guard(fedavg(), recorder=record(tmp_path)), flower.grid(honest_app(vandal), 2), rounds=1)
        assert [path.name for path in tmp_path.iterdir()] == ["round-0001-client-3.update.safetensors"]


class TestExample:
    def config(self, tmp_path: Path, **changes: Any) -> dict[str, Any]:
        defaults = {
            "defence": "none",
            "encoding": "wire",
            "num-server-rounds": 3,
            "min-clients": 2,
            "round-timeout": 60.0,
            "local-steps": 5,
            "batch-size": 16,
            "learning-rate": 0.1,
            "record": "",
            "result": str(tmp_path / "result.json"),
        }
        return defaults | changes

    def run(self, flower: Any, example: Callable[[str, str], Any], config: dict[str, Any], nodes: int = 10) -> Any:
        client = example("flower", "sealed_app.client_app").app
        server = example("flower", "sealed_app.server_app").app
        grid = flower.grid(client, nodes, config)
        flower.run(server, grid)
        assert not any(reply.has_error() for reply in grid.replies)
        return json.loads(Path(config["result"]).read_text())

    @pytest.mark.parametrize("spec", SPECS)
    def test_ten_clients_train_three_rounds(self, flower: Any, example: Any, tmp_path: Path, spec: str):
        few = {"local-steps": 1, "batch-size": 4} if spec.startswith("refiner") else {}
        result = self.run(flower, example, self.config(tmp_path, defence=spec, **few))
        assert result["dropped"] == []
        assert list(result["accuracy"]) == ["0", "1", "2", "3"]
        assert all(math.isfinite(value) for value in result["accuracy"].values())
        assert all(costs["fedseal-bytes-up"] > 0 for costs in result["costs"].values())

    def test_it_learns(self, flower: Any, example: Any, tmp_path: Path):
        result = self.run(
            flower, example, self.config(tmp_path, **{"num-server-rounds": 5, "local-steps": 20}), nodes=4
        )
        assert result["accuracy"]["5"] > 0.6

    @pytest.mark.parametrize("spec", ["dp-sgd", "outpost", "mixup", "soteria"])
    def test_defences_inside_of_training_work_by_train_round(
        self, flower: Any, example: Any, tmp_path: Path, spec: str
    ):
        changes = {"defence": spec, "num-server-rounds": 1, "local-steps": 1, "batch-size": 4}
        result = self.run(flower, example, self.config(tmp_path, **changes), nodes=2)
        assert result["dropped"] == []
        assert result["costs"]["1"]["fedseal-bytes-up"] > 0

    @pytest.mark.slow
    def test_an_undefended_update_is_audited_by_the_documented_command(
        self, flower: Any, example: Any, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """LeNet, one image per client: the server's record alone gives a recognisable digit back."""
        single = {"num-server-rounds": 1, "local-steps": 1, "batch-size": 1, "record": str(tmp_path / "updates")}
        self.run(flower, example, self.config(tmp_path, **single))
        task = example("flower", "sealed_app.task")
        documented = (examples.parent / "docs" / "flower.md").read_text()
        command = next(line.split() for line in documented.splitlines() if line.startswith("fedseal audit-update"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        report = json.loads((tmp_path / "fedseal-update" / "update.json").read_text())
        place = int(re.search(r"client (\d+)", report["update"])[1]) - 2  # type: ignore[index]
        (batch,) = task.client_batches(task.client_data(place, 10), place, 1, 1, 1)
        picture = Image.open(tmp_path / "fedseal-update" / "reconstruction-000.png")
        rebuilt = torch.from_numpy(np.asarray(picture)).float().div(255).view(1, 1, 28, 28)
        assert float(psnr(batch.images, rebuilt, data_range=1.0)) > 25
        assert report["attempts"][0]["labels"] == batch.labels.tolist()
        assert report["attempts"][0]["confidence"] == "high"

    def test_the_two_examples_share_their_task(self, examples: Path):
        one, other = (examples / path / "task.py" for path in ("flower/sealed_app", "flower-secagg/secagg_app"))
        assert one.read_text() == other.read_text()

    def test_the_configuration_is_the_one_the_project_ships(self, examples: Path, tmp_path: Path):
        shipped = tomllib.loads((examples / "flower" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        assert shipped.keys() == self.config(tmp_path).keys()
        build_defence(shipped["defence"])


def test_a_model_is_wrapped_alike_on_server_and_client():
    def net() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 10))

    one, other = (wrap_model(net(), "precode").state_dict() for _ in range(2))
    assert one.keys() == other.keys()
    assert one.keys() != net().state_dict().keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_train_round_checks_the_shape_a_defence_asks_for():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    batch = Batch(torch.rand(2, 1, 4, 4), torch.tensor([1, 2]))
    seal = Seal(build_defence("local-steps:steps=4"), generator(0), 0, "7")
    with opened(seal), pytest.raises(UsageError, match="needs 4 local step"):
        train_round(model, [batch], RoundConfig())
    assert seal.result is None


class Negative(Defence):
    """Feeds the negatives of the client's images, made once from all it holds."""

    name = "negative"

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        return Batch(1 - dataset.images, dataset.labels)


def test_train_round_trains_on_what_a_defence_prepared_of_the_whole_data():
    """Correction C12: what `prepare` returned was dropped where the whole data set was given."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    data = Batch(torch.rand(6, 1, 4, 4), torch.arange(6))
    batch = Batch(data.images[[4, 1]], data.labels[[4, 1]])
    expected = client_round(model, [Batch(1 - batch.images, batch.labels)], RoundConfig(), Defence(), generator(0))
    for dataset in (data, None):
        with opened(Seal(Negative(), generator(0), 0, "7")):
            trained = train_round(model, [batch], RoundConfig(), dataset=dataset)
        assert torch.equal(trained.round.fed[0].images, 1 - batch.images)
        for name, tensor in expected.update.tensors.items():
            assert torch.equal(trained.round.update.tensors[name], tensor)


def test_a_client_prepares_its_data_by_the_same_draw_in_every_round(flower: Any, monkeypatch: pytest.MonkeyPatch):
    drawn: dict[str, list[float]] = {}

    class Drawing(Defence):
        def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
            self.noise = float(torch.rand((), generator=generator))
            return dataset

        def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
            drawn.setdefault(context.client, []).append(self.noise)
            return batch

    module = sys.modules["fedseal.flower.defend"]  # the package exports a function of that name
    monkeypatch.setattr(module, "build_defence", lambda spec: Drawing())
    app = ClientApp(mods=[defend("none", inside=True)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
        model.load_state_dict(received(message))
        batch = Batch(torch.rand(3, 1, 4, 4), torch.arange(3))
        return reply_with(message, train_round(model, [batch], RoundConfig()).weights)

    start = dict(nn.Sequential(nn.Flatten(), nn.Linear(16, 10)).state_dict())
    fit(guard(fedavg()), flower.grid(app, 2), rounds=3, state=start)
    assert [len(set(values)) for values in drawn.values()] == [1, 1]
    assert [len(values) for values in drawn.values()] == [3, 3]
    assert len({values[0] for values in drawn.values()}) == 2


class TestSecAgg:
    """SecAgg+ of Flower around a defence: the sum is the plain one, within SecAgg+'s own quantisation."""

    CLIP, TARGET = 8.0, 1 << 22

    def one_round(self, flower: Any, example: Any, *, secure: bool, spec: str) -> list[np.ndarray]:
        from flwr.client import ClientApp as OldClientApp
        from flwr.client.mod import secaggplus_mod
        from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
        from flwr.server import LegacyContext, ServerApp, ServerConfig
        from flwr.server.strategy import FedAvg as OldFedAvg
        from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

        client = example("flower-secagg", "secagg_app.client_app")
        task = example("flower-secagg", "secagg_app.task")
        seal = defend(spec, inside=True, seed=5)
        app = OldClientApp(client.client_fn, mods=[secaggplus_mod, seal] if secure else [seal])
        config = {"local-steps": 2, "batch-size": 8, "learning-rate": 0.3}
        kept: list[np.ndarray] = []

        class Keeping(OldFedAvg):
            def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
                assert not failures
                parameters, metrics = super().aggregate_fit(server_round, results, failures)
                kept.extend(parameters_to_ndarrays(parameters))
                return parameters, metrics

        server = ServerApp()

        @server.main()
        def main(grid: Any, context: Any) -> None:
            start = [value.numpy() for value in task.load_model().state_dict().values()]
            strategy = Keeping(
                fraction_evaluate=0.0,
                on_fit_config_fn=lambda number: {"server-round": number},
                initial_parameters=ndarrays_to_parameters(start),
            )
            legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=1), strategy=strategy)
            workflow = SecAggPlusWorkflow(
                num_shares=3,
                reconstruction_threshold=2,
                clipping_range=self.CLIP,
                quantization_range=self.TARGET,
                max_weight=10_000,
            )
            DefaultWorkflow(**({"fit_workflow": workflow} if secure else {}))(grid, legacy)

        flower.run(server, flower.grid(app, 5, config))
        return kept

    @pytest.mark.parametrize("spec", ["topk:ratio=0.95", "gaussian:sigma=0.05", "dp-sgd"])
    def test_the_secure_sum_is_the_plain_sum(self, flower: Any, example: Any, spec: str):
        plain = self.one_round(flower, example, secure=False, spec=spec)
        secure = self.one_round(flower, example, secure=True, spec=spec)
        bare = self.one_round(flower, example, secure=False, spec="none")
        assert len(plain) == len(secure) == 8
        error = max(float(np.abs(a - b).max()) for a, b in zip(plain, secure, strict=True))
        effect = max(float(np.abs(a - b).max()) for a, b in zip(plain, bare, strict=True))
        assert effect > 1e-2  # the defence is in there
        assert error < 1e-4  # SecAgg+ rounds weights and counts to its grid
        assert error < effect / 50

    def test_the_old_apis_arrays_have_no_names_and_are_sealed_all_the_same(self, flower: Any, example: Any):
        before = example("flower-secagg", "secagg_app.task").load_model().state_dict()
        after = self.one_round(flower, example, secure=False, spec="topk:ratio=0.999999")
        changed = [int((np.abs(b.numpy() - a) > 1e-6).sum()) for b, a in zip(before.values(), after, strict=True)]
        assert all(0 < count <= 5 for count in changed)  # one entry of each of five clients


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 200), value=st.integers(0, 255), kept=st.integers(0, 220))
def test_a_changed_or_cut_array_is_refused_or_read_within_its_bytes(place: int, value: int, kept: int):
    """Whatever arrives in the place of an array: a refusal in words, never more memory than was sent."""
    whole = Array(torch.arange(20.0))
    data = bytearray(whole.data)
    data[place % len(data)] = value
    sent = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=bytes(data[: kept or len(data)]))
    try:
        tensor = to_tensors({"x": sent}, "reply")["x"]
    except InputError:
        return
    assert tensor.numel() * tensor.element_size() <= len(sent.data)


def test_a_message_without_arrays_is_named():
    with pytest.raises(InputError, match="reply holds 0 array records"):
        only_arrays(RecordDict(), "reply")
