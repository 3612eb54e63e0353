"""Ordinary federations with fedseal in them: what was found to break in production, one test for each."""

from __future__ import annotations

import copy
import logging
import math
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedYogi
from torch import Tensor, nn

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Defence, RoundContext
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.defences.accounting import gaussian_epsilon
from fedseal.defences.lids.construction import AutoencoderFit
from fedseal.federation.client import RoundConfig
from fedseal.federation.update_file import read_updates
from fedseal.flower import defend, detect, guard, record, train_round
from fedseal.flower import statistics as bn
from fedseal.flower.records import to_tensors
from fedseal.ledger import SiteLedger

State = dict[str, Tensor]
BUFFERS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")


def batch_norm_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))


def data_of(node: int, count: int = 16) -> tuple[Tensor, Tensor]:
    source = generator(3, "data", node)
    labels = torch.randint(0, 4, (count,), generator=source)
    images = torch.rand(count, 1, 8, 8, generator=source) * 0.5
    images[torch.arange(count), 0, labels] += 0.5  # a bright row tells the class
    return images, labels


def trained(model: nn.Module, node: int, steps: int = 2, rate: float = 0.1) -> State:
    """An ordinary quickstart's local training."""
    images, labels = data_of(node)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], rate)
    model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return dict(model.state_dict())


def quickstart(build: Callable[[], nn.Module], *mods: Any) -> ClientApp:
    """What a quickstart does: load, train, reply with the state dict; evaluate."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        state = trained(model, context.node_id)
        content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 16, "loss": 1.0})}
        return Message(content=RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = build()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        images, labels = data_of(context.node_id)
        with torch.no_grad():
            right = float((model.eval()(images).argmax(1) == labels).float().mean())
        mean = (
            float(model.state_dict()["1.running_mean"].abs().sum()) if "1.running_mean" in model.state_dict() else 0.0
        )
        metrics = MetricRecord({"num-examples": 16, "accuracy": right, "mean": mean})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return app


def fit(strategy: Any, grid: Any, model: nn.Module, rounds: int = 3) -> Any:
    return strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds)


def no_errors(grid: Any) -> bool:
    return not any(reply.has_error() for reply in grid.replies)


class TestTypes:
    """P1, P2: strategies average counters to fractions and single precision to double."""

    @pytest.mark.parametrize("guarded", [True, False], ids=["guard", "plain"])
    @pytest.mark.parametrize("strategy", [FedAvg, FedAdam, FedYogi], ids=lambda kind: kind.__name__)
    def test_a_batch_norm_model_trains_beyond_round_two(self, flower: Any, strategy: Any, guarded: bool):
        inner = strategy(fraction_evaluate=0.0)
        grid = flower.grid(quickstart(batch_norm_net, detect(batch_norm_net), defend("topk:ratio=0.5")), 3)
        outcome = fit(guard(inner) if guarded else inner, grid, batch_norm_net())
        assert no_errors(grid), [reply.error.reason for reply in grid.replies if reply.has_error()]
        assert sum(not reply.has_error() for reply in grid.replies) == 9
        if guarded:
            kinds = {name: tensor.dtype for name, tensor in to_tensors(outcome.arrays, "result").items()}
            assert kinds == {name: tensor.dtype for name, tensor in batch_norm_net().state_dict().items()}

    def test_a_client_in_double_precision_is_not_refused(self, flower: Any):
        def double(message: Message, context: Context, call_next: Any) -> Message:
            reply = call_next(message, context)
            wide = {name: tensor.double() for name, tensor in to_tensors(reply.content["arrays"], "reply").items()}
            reply.content.array_records["arrays"] = ArrayRecord(wide)
            return reply

        strategy = guard(FedAvg(fraction_evaluate=0.0))
        fit(strategy, flower.grid(quickstart(batch_norm_net, double), 3), batch_norm_net(), 2)
        assert strategy.dropped == []


class TestBatchNormPolicies:
    """P1: running statistics, with what each way costs said at run time."""

    def outcome(self, flower: Any, policy: Any, spec: str = "none", encoding: Any = None) -> tuple[Any, State]:
        app = quickstart(batch_norm_net, defend(spec, bn=policy, encoding=encoding, seed=1))
        grid = flower.grid(app, 3)
        result = fit(guard(FedAvg()), grid, batch_norm_net(), 4)
        assert no_errors(grid), [reply.error.reason for reply in grid.replies if reply.has_error()]
        return result, to_tensors(result.arrays, "result")

    def test_local_statistics_stay_on_the_client_and_serve_it(self, flower: Any):
        result, state = self.outcome(flower, "local")
        assert torch.equal(state["1.running_mean"], torch.zeros(4))
        assert torch.equal(state["1.running_var"], torch.ones(4))
        assert result.evaluate_metrics_clientapp[4]["mean"] > 0.05  # clients evaluate with their own

    def test_local_statistics_are_in_no_reply_of_any_round(self, flower: Any):
        grid = flower.grid(quickstart(batch_norm_net, defend("none", bn="local")), 3)
        fit(FedAvg(fraction_evaluate=0.0), grid, batch_norm_net(), 4)
        first = {name: tensor for name, tensor in batch_norm_net().state_dict().items() if name in BUFFERS}
        assert len(grid.replies) == 12
        for reply in grid.replies:
            sent = to_tensors(reply.content["arrays"], "reply")
            assert all(torch.equal(sent[name].to(tensor.dtype), tensor) for name, tensor in first.items())

    @pytest.mark.parametrize("encoding", ["weights", "wire"])
    def test_aggregated_statistics_are_those_of_a_federation_without_fedseal(self, flower: Any, encoding: Any):
        _, state = self.outcome(flower, "aggregate", encoding=encoding)
        plain = fit(FedAvg(), flower.grid(quickstart(batch_norm_net), 3), batch_norm_net(), 4)
        expected = to_tensors(plain.arrays, "plain")
        for name in state:
            if "tracked" not in name:
                assert torch.allclose(state[name], expected[name].to(state[name].dtype), atol=1e-5), name

    def test_protected_statistics_pass_the_defence(self, flower: Any):
        _, exact = self.outcome(flower, "aggregate")
        _, noisy = self.outcome(flower, "protect", "gaussian:sigma=0.3,clip=1")
        assert not torch.allclose(exact["1.running_mean"], noisy["1.running_mean"], atol=0.02)
        assert bool((noisy["1.running_var"] > 0).all())

    def test_each_policy_says_what_it_costs(self, flower: Any, caplog: pytest.LogCaptureFixture):
        bn._SAID.clear()
        with caplog.at_level(logging.INFO, "fedseal.flower"):
            for policy in ("local", "aggregate", "protect"):
                self.outcome(flower, policy)
        said = [message for message in caplog.messages if message.startswith("bn=")]
        assert len(said) == 3
        assert "evaluate on clients" in said[0]
        assert "leave in clear" in said[1]
        assert "costs accuracy" in said[2]

    def test_nonsense_is_refused(self):
        with pytest.raises(UsageError, match="no policy 'freeze'"):
            defend("topk", bn="freeze")  # type: ignore[arg-type]


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


class TestHostileReplies:
    """P3, and a header that nobody foresaw: one client cannot move the model beyond the guard's bound."""

    def run(self, flower: Any, spoil: Callable[[Message, Message, State], None], **limits: Any) -> tuple[Any, State]:
        def vandal(message: Message, context: Context, call_next: Any) -> Message:
            reply = call_next(message, context)
            if context.node_id == 3:
                spoil(reply, message, to_tensors(reply.content["arrays"], "reply"))
            return reply

        strategy = guard(FedAvg(fraction_evaluate=0.0), **limits)
        grid = flower.grid(quickstart(linear, vandal), 5)
        outcome = fit(strategy, grid, linear(), 2)
        return strategy, to_tensors(outcome.arrays, "result")

    def named(self, strategy: Any) -> set[int]:
        return {one.client for one in (*strategy.dropped, *strategy.outliers)}

    @pytest.mark.parametrize("rate", [1e30, 1e38, 1e308])
    def test_a_rate_of_the_clients_own_moves_nothing(self, flower: Any, rate: float):
        def spoil(reply: Message, message: Message, state: State) -> None:
            from fedseal.federation.wire import encode
            from fedseal.flower.records import payload_record

            reply.content.array_records["arrays"] = payload_record(encode({n: t * 0 + 1 for n, t in state.items()}))
            reply.content.config_records["fedseal"] = ConfigRecord(
                {"round": 1, "kind": "gradient", "encoding": "wire", "learning-rate": rate, "defence": "none"}
            )

        strategy, state = self.run(flower, spoil)
        assert self.named(strategy) == {3}
        assert all(float(tensor.abs().max()) < 10 for tensor in state.values())

    @pytest.mark.parametrize("factor", [1e30, 100.0, -10.0, 6.0])
    def test_an_update_out_of_proportion_is_cut_down_and_its_sender_named(self, flower: Any, factor: float):
        def spoil(reply: Message, message: Message, state: State) -> None:
            sent = to_tensors(message.content["arrays"], "message")
            big = {name: sent[name] + factor * (state[name] - sent[name]) for name in state}
            reply.content.array_records["arrays"] = ArrayRecord(big)

        strategy, state = self.run(flower, spoil)
        honest, expected = self.run(flower, lambda reply, message, state: None)
        assert self.named(strategy) == {3}
        assert self.named(honest) == set()
        moved = max(float((expected[name] - linear().state_dict()[name]).abs().max()) for name in expected)
        assert max(float((state[name] - expected[name]).abs().max()) for name in state) < 4 * moved

    def test_a_bound_of_the_servers_own_drops_what_is_beyond(self, flower: Any):
        def spoil(reply: Message, message: Message, state: State) -> None:
            reply.content.array_records["arrays"] = ArrayRecord({n: t + 1 for n, t in state.items()})

        strategy, _ = self.run(flower, spoil, max_norm=2.0, outlier=None)
        assert [drop.client for drop in strategy.dropped] == [3, 3]
        assert "at most 2 is taken" in strategy.dropped[0].reason

    @pytest.mark.parametrize(("limits", "dropped"), [({}, False), ({"max_examples": 1000}, True)])
    def test_a_client_is_not_weighted_by_whatever_it_claims(self, flower: Any, limits: Any, dropped: bool):
        def spoil(reply: Message, message: Message, state: State) -> None:
            reply.content["metrics"]["num-examples"] = 10**11

        strategy, state = self.run(flower, spoil, **limits)
        _, expected = self.run(flower, lambda reply, message, state: None)
        assert self.named(strategy) == {3}
        assert bool(strategy.dropped) == dropped
        assert all(torch.allclose(state[name], expected[name], atol=0.1) for name in state)

    @pytest.mark.parametrize("old", ["weights", "change"])
    def test_old_answers_without_an_envelope_are_replays(self, flower: Any, old: str):
        kept: list[tuple[State, State]] = []

        def spoil(reply: Message, message: Message, state: State) -> None:
            sent = to_tensors(message.content["arrays"], "message")
            if kept:
                before, after = kept[0]
                again = after if old == "weights" else {n: sent[n] + (after[n] - before[n]) for n in after}
                reply.content.array_records["arrays"] = ArrayRecord(again)
            kept.append((sent, state))

        strategy, _ = self.run(flower, spoil)
        assert [(drop.round, drop.client) for drop in strategy.dropped] == [(2, 3)]
        assert "replayed the update of round 1" in strategy.dropped[0].reason

    @pytest.mark.parametrize(
        "shape", ["(" + "1, " * 99 + "1)", "(0, 100000000000000000, 100000000000000000)"], ids=["100 sides", "huge"]
    )
    def test_a_header_that_reads_and_cannot_be_is_refused(self, flower: Any, shape: str):
        def spoil(reply: Message, message: Message, state: State) -> None:
            head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
            head += b" " * (64 - (10 + len(head) + 1) % 64) + b"\n"
            data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
            data += b"" if shape.startswith("(0") else b"\x00" * 4
            lie = Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=data)
            reply.content.array_records["arrays"] = ArrayRecord(dict.fromkeys(state, lie))

        strategy, _ = self.run(flower, spoil)
        assert {drop.client for drop in strategy.dropped} == {3}
        assert "impossible shape" in strategy.dropped[0].reason

    def test_whatever_else_a_reply_makes_python_raise_drops_its_sender(
        self, flower: Any, monkeypatch: pytest.MonkeyPatch
    ):
        import sys

        module = sys.modules["fedseal.flower.guard"]
        read = module.read_reply

        def surprised(content: RecordDict, before: State, **options: Any) -> Any:
            if "trap" in content["metrics"]:
                raise OverflowError("int too large")
            return read(content, before, **options)

        def spoil(reply: Message, message: Message, state: State) -> None:
            reply.content["metrics"]["trap"] = 1

        monkeypatch.setattr(module, "read_reply", surprised)
        strategy, _ = self.run(flower, spoil)
        assert {drop.client for drop in strategy.dropped} == {3}
        assert "OverflowError" in strategy.dropped[0].reason


class TestOwnCounting:
    """P4, P5: what was released is counted by the client, kept at the site, and reported as the worst."""

    SPEC = "gaussian:sigma=1,clip=1"

    def test_a_server_that_always_says_one_does_not_keep_epsilon_down(self, flower: Any):
        class Stuck(FedAvg):
            def configure_train(self, server_round: int, *rest: Any) -> Any:
                return super().configure_train(1, *rest)

        grid = flower.grid(quickstart(linear, defend(self.SPEC)), 2)
        outcome = fit(Stuck(fraction_evaluate=0.0), grid, linear(), 3)
        assert outcome is not None
        stated = [reply.content["fedseal"]["cost-epsilon-accounted"] for reply in grid.replies]
        assert sorted(stated) == pytest.approx([gaussian_epsilon(math.sqrt(n), 1e-5) for n in (1, 1, 2, 2, 3, 3)])

    def test_an_impossible_round_is_refused_in_one_line(self, flower: Any):
        class Backwards(FedAvg):
            def configure_train(self, server_round: int, *rest: Any) -> Any:
                return super().configure_train(-5, *rest)

        grid = flower.grid(quickstart(linear, defend(self.SPEC)), 2)
        fit(Backwards(fraction_evaluate=0.0), grid, linear(), 1)
        assert all(reply.error.reason.startswith("the server's round number -5") for reply in grid.replies)

    def test_a_restarted_node_and_a_new_run_go_on_where_the_last_ended(
        self, flower: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("FEDSEAL_LEDGER", str(tmp_path / "ledger.sqlite"))
        for run in (1, 2):  # a new grid has new contexts, as a restarted node or another run has
            grid = flower.grid(quickstart(linear, defend(self.SPEC + "+dgc:ratio=0.5")), 2)
            outcome = fit(guard(FedAvg(fraction_evaluate=0.0)), grid, linear(), 2)
            assert no_errors(grid)
            metrics = outcome.train_metrics_clientapp[2]
            expected = gaussian_epsilon(math.sqrt(2 * run), 1e-5)
            assert metrics["fedseal-epsilon-accounted"] == pytest.approx(expected)
            assert metrics["fedseal-epsilon-per-update"] == pytest.approx(expected)
            assert metrics["fedseal-releases"] == 2 * run
        accounts = SiteLedger(tmp_path / "ledger.sqlite").accounts()
        assert [(str(one.account), one.page.number) for one in accounts] == [
            ("default/partition-0/default", 4),
            ("default/partition-1/default", 4),
        ]

    def test_residuals_survive_a_restart(self, flower: Any, tmp_path: Path):
        def result(parts: tuple[int, ...], ledger: Path | None) -> State:
            model = linear()
            for rounds in parts:
                app = quickstart(linear, defend("dgc:ratio=0.9", ledger=ledger))
                outcome = fit(guard(FedAvg(fraction_evaluate=0.0)), flower.grid(app, 2), model, rounds)
                model.load_state_dict(to_tensors(outcome.arrays, "result"))
            return dict(model.state_dict())

        whole, restarted, forgetful = result((4,), None), result((2, 2), tmp_path / "one"), result((2, 2), None)
        assert all(torch.allclose(whole[name], restarted[name], atol=1e-6) for name in whole)
        assert any(not torch.allclose(whole[name], forgetful[name], atol=1e-4) for name in whole)

    def test_the_budget_halts_a_client_before_the_round_that_would_pass_it_and_after_a_restart(
        self, flower: Any, tmp_path: Path
    ):
        limit, trainings = gaussian_epsilon(math.sqrt(2), 1e-5) + 1e-6, []

        def counting(message: Message, context: Context, call_next: Any) -> Message:
            trainings.append(context.node_id)
            return call_next(message, context)

        for expected in (4, 4):
            mods = (defend(self.SPEC, budget=limit, ledger=tmp_path / "ledger"), counting)
            grid = flower.grid(quickstart(linear, *mods), 2)
            with pytest.raises(
                CapabilityError, match=r"every client refused in round .: the privacy budget of .* is spent"
            ):
                fit(guard(FedAvg(fraction_evaluate=0.0)), grid, linear(), 3)
            assert len(trainings) == expected  # nobody trained for the refused round
        assert all(one.epsilon.value <= limit for one in SiteLedger(tmp_path / "ledger").accounts())

    def test_epsilon_is_the_worst_clients_not_the_mean(self, flower: Any):
        mods = {2: defend("gaussian:sigma=2,clip=1"), 3: defend("gaussian:sigma=0.5,clip=1")}

        def own(message: Message, context: Context, call_next: Any) -> Message:
            return mods[context.node_id](message, context, call_next)

        outcome = fit(guard(FedAvg(fraction_evaluate=0.0)), flower.grid(quickstart(linear, own), 2), linear(), 1)
        metrics = outcome.train_metrics_clientapp[1]
        assert metrics["fedseal-epsilon-accounted"] == pytest.approx(gaussian_epsilon(2.0, 1e-5))


class Preparing(Defence):
    """Draws once from what it prepares its data with, as `lids` does; what it drew is its whole state."""

    info = Info("draw", name="drawing")
    drawn: ClassVar[list[tuple[str, float]]] = []

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        self.draw = float(torch.rand((), generator=generator))
        return dataset

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        self.drawn.append((context.client, self.draw))
        return batch


def test_what_is_prepared_of_the_same_data_is_the_same_in_every_run(
    flower: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """P6: lids built its autoencoder anew in every run, for hours."""
    draws = []
    for cache in ("one", "one", "two"):
        monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / cache))
        Preparing.drawn.clear()
        app = ClientApp(mods=[defend(f"{__name__}:Preparing", inside=True)])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            model = linear()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            done = train_round(model, [Batch(*data_of(context.node_id))], RoundConfig())
            content = {"arrays": ArrayRecord(done.weights), "metrics": MetricRecord({"num-examples": 16})}
            return Message(content=RecordDict(content), reply_to=message)

        grid = flower.grid(app, 2)
        fit(guard(FedAvg(fraction_evaluate=0.0)), grid, linear(), 2)
        assert no_errors(grid), [reply.error.reason for reply in grid.replies if reply.has_error()]
        draws.append(sorted(set(Preparing.drawn)))
    assert [len(one) for one in draws] == [2, 2, 2]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert stat.S_IMODE((tmp_path / "one" / "site-secret").stat().st_mode) == 0o600


def test_lids_builds_its_autoencoder_once_over_rounds_and_runs_and_says_how_far_it_is(
    flower: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """P6, with the defence itself: what two clients build in the first round serves every later one."""
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    built = []

    def counted(self: AutoencoderFit, *rest: Any) -> Any:
        built.append(self.identity)
        return original(self, *rest)

    original = AutoencoderFit.fit
    monkeypatch.setattr(AutoencoderFit, "fit", counted)
    for _ in range(2):
        app = ClientApp(mods=[defend("lids:samples=2,epochs=2", inside=True)])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            model, own = linear(), Batch(*data_of(context.node_id))
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            done = train_round(model, [own.pick(slice(4))], RoundConfig(), dataset=own)
            content = {"arrays": ArrayRecord(done.weights), "metrics": MetricRecord({"num-examples": 16})}
            return Message(content=RecordDict(content), reply_to=message)

        grid = flower.grid(app, 2)
        with caplog.at_level(logging.INFO, "fedseal.prepare"):
            fit(guard(FedAvg(fraction_evaluate=0.0)), grid, linear(), 2)
        assert no_errors(grid), [reply.error.reason for reply in grid.replies if reply.has_error()]
    assert len(built) == len(set(built)) == 2
    assert "s left" in caplog.text


class TestWhatLeaves:
    def test_the_compact_encoding_is_taken_where_the_server_reads_it(self, flower: Any):
        """P7: by default what leaves is as small as the defence made it, and is what is reported."""
        sizes: dict[str, int] = {}

        def wide() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 4000, bias=False), nn.Linear(4000, 4))

        def run(name: str, strategy: Any) -> None:
            def spy(message: Message, context: Context, call_next: Any) -> Message:
                reply = call_next(message, context)
                sizes[name] = sum(len(array.data) for array in reply.content["arrays"].values())
                assert reply.content["fedseal"]["cost-bytes-payload"] == sizes[name]
                return reply

            grid = flower.grid(quickstart(wide, spy, defend("topk:ratio=0.99")), 2)
            fit(strategy, grid, wide(), 1)
            assert no_errors(grid)

        run("guard", guard(FedAvg(fraction_evaluate=0.0)))
        run("plain", FedAvg(fraction_evaluate=0.0))
        assert sizes["plain"] > 1_000_000
        assert sizes["guard"] < 40_000

    def test_what_is_unknown_is_recorded_as_unknown(self, flower: Any, tmp_path: Path):
        """P8: the learning rate of a loop that is not fedseal's."""
        grid = flower.grid(quickstart(linear, defend("none")), 2)
        fit(guard(FedAvg(fraction_evaluate=0.0), recorder=record(tmp_path / "a")), grid, linear(), 1)
        assert {one.facts.learning_rate for one in read_updates(tmp_path / "a")} == {None}
        grid = flower.grid(quickstart(linear, defend("none", learning_rate=0.1)), 2)
        fit(guard(FedAvg(fraction_evaluate=0.0), recorder=record(tmp_path / "b")), grid, linear(), 1)
        assert {one.facts.learning_rate for one in read_updates(tmp_path / "b")} == {0.1}

    @pytest.mark.parametrize("guarded", [True, False], ids=["guard", "plain"])
    @pytest.mark.parametrize("sealed", [1, 2, 4])
    def test_sealed_and_unsealed_clients_work_together(self, flower: Any, guarded: bool, sealed: int):
        """P10: a rolling upgrade."""
        seal = defend("topk:ratio=0.5")

        def some(message: Message, context: Context, call_next: Any) -> Message:
            return seal(message, context, call_next) if context.node_id < 2 + sealed else call_next(message, context)

        inner = FedAvg(fraction_evaluate=0.0)
        strategy = guard(inner) if guarded else inner
        outcome = fit(strategy, flower.grid(quickstart(batch_norm_net, some), 5), batch_norm_net(), 3)
        assert set(outcome.train_metrics_clientapp) == {1, 2, 3}
        if guarded:
            assert strategy.dropped == []
            assert outcome.train_metrics_clientapp[3]["fedseal-clients-unsealed"] == 5 - sealed

    @pytest.mark.parametrize("way", ["exclude", "include", "model"])
    def test_frozen_weights_get_no_noise(self, flower: Any, way: str):
        """P11: trainable tensors only, by patterns or by the model itself."""

        def build() -> nn.Module:
            torch.manual_seed(2)
            net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 4))
            net[1].requires_grad_(False)
            return net

        options: dict[str, Any] = {
            "exclude": {"exclude": ["1.*"]},
            "include": {"include": ["2.*"]},
            "model": {"model": build},
        }[way]
        grid = flower.grid(quickstart(build, defend("gaussian:sigma=0.1,clip=1", **options)), 2)
        state = to_tensors(fit(guard(FedAvg(fraction_evaluate=0.0)), grid, build(), 2).arrays, "result")
        assert torch.equal(state["1.weight"], build().state_dict()["1.weight"])
        assert not torch.equal(state["2.weight"], build().state_dict()["2.weight"])

    def test_frozen_weights_under_the_defence_are_pointed_out(self, flower: Any, caplog: pytest.LogCaptureFixture):
        def build() -> nn.Module:
            net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 4))
            net[1].requires_grad_(False)
            return net

        fit(FedAvg(fraction_evaluate=0.0), flower.grid(quickstart(build, defend("gaussian")), 2), build(), 1)
        assert any("2 of 4 sealed tensors did not change in training" in message for message in caplog.messages)

    def test_lora_adapters_travel_alone(self, flower: Any):
        """P11: an app that exchanges adapters only needs nothing else."""

        class Adapted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(2)
                self.base = nn.Linear(64, 4).requires_grad_(False)
                self.lora_a, self.lora_b = nn.Linear(64, 2, bias=False), nn.Linear(2, 4, bias=False)

            def forward(self, images: Tensor) -> Tensor:
                flat = images.flatten(1)
                output: Tensor = self.base(flat) + self.lora_b(self.lora_a(flat))
                return output

        def adapters(model: nn.Module) -> State:
            return {name: tensor for name, tensor in model.state_dict().items() if "lora" in name}

        app = ClientApp(mods=[defend("gaussian:sigma=0.01,clip=1")])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            model = Adapted()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
            trained(model, context.node_id)
            content = {"arrays": ArrayRecord(adapters(model)), "metrics": MetricRecord({"num-examples": 16})}
            return Message(content=RecordDict(content), reply_to=message)

        grid = flower.grid(app, 2)
        strategy = guard(FedAvg(fraction_evaluate=0.0))
        outcome = strategy.start(grid=grid, initial_arrays=ArrayRecord(adapters(Adapted())), num_rounds=2)
        assert no_errors(grid)
        assert strategy.dropped == []
        assert set(outcome.arrays) == {"lora_a.weight", "lora_b.weight"}


class TestTrainRound:
    def app(self, spec: str, batches: list[Batch], dataset: Batch | None, **options: Any) -> ClientApp:
        app = ClientApp(mods=[defend(spec, inside=True)])

        @app.train()
        def train(message: Message, context: Context) -> Message:
            model = linear()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            config = RoundConfig(local_steps=len(batches), **options)
            done = train_round(model, batches, config, dataset=dataset)
            content = {"arrays": ArrayRecord(done.weights), "metrics": MetricRecord({"num-examples": 16})}
            return Message(content=RecordDict(content), reply_to=message)

        return app

    def refusal(self, flower: Any, app: ClientApp) -> str:
        with pytest.raises(CapabilityError) as caught:
            fit(guard(FedAvg(fraction_evaluate=0.0)), flower.grid(app, 2), linear(), 1)
        return str(caught.value)

    @pytest.mark.parametrize("given", [True, False], ids=["data given", "data unknown"])
    def test_a_sampling_rate_is_measured_or_refused(self, flower: Any, given: bool):
        """P12: 1e-5 was believed for batches of 16 of 160."""
        images, labels = data_of(2, 160)
        batch = Batch(images[:16], labels[:16])
        spec = "dp-sgd:sample_rate=1e-5,batch_size=16"
        said = self.refusal(flower, self.app(spec, [batch], Batch(images, labels) if given else None))
        assert ("got 16" in said and "sample_rate=0.1" in said) if given else "dataset=" in said
        honest = self.app("dp-sgd:sample_rate=0.1,batch_size=16", [batch], Batch(images, labels))
        grid = flower.grid(honest, 2)
        fit(guard(FedAvg(fraction_evaluate=0.0)), grid, linear(), 1)
        assert no_errors(grid)

    def test_images_beyond_their_range_are_refused_by_what_works_on_images(self, flower: Any):
        """P14: [-1, 1] passed in silence."""
        images, labels = data_of(2)
        batch = Batch(images * 2 - 1, labels)
        assert "not in [0, 1]" in self.refusal(flower, self.app("blur", [batch], None))
        right = self.app("blur", [Batch(images, labels)], None, normalisation=Normalisation((0.5,), (0.5,)))
        grid = flower.grid(right, 2)
        fit(guard(FedAvg(fraction_evaluate=0.0)), grid, linear(), 1)
        assert no_errors(grid)


class TestStart:
    """P13: what cannot work is refused at the start, in one line, and the run fails visibly."""

    def test_a_defence_inside_of_training_is_refused_where_it_is_written(self):
        with pytest.raises(CapabilityError, match="dp-sgd acts while the client trains"):
            defend("dp-sgd")
        with pytest.raises(UsageError, match="has no name"):
            defend("")

    @pytest.mark.parametrize("spec", ["dp-sgd", "", "nonsense"])
    def test_from_the_run_config_it_is_refused_before_the_epoch_and_ends_the_run(self, flower: Any, spec: str):
        trainings = []

        def counting(message: Message, context: Context, call_next: Any) -> Message:
            trainings.append(1)
            return call_next(message, context)

        grid = flower.grid(quickstart(linear, defend(), counting), 2, {"defence": spec})
        with pytest.raises(CapabilityError, match="every client refused in round 1"):
            fit(guard(FedAvg(fraction_evaluate=0.0)), grid, linear(), 1)
        assert trainings == []
        assert all("\n" not in reply.error.reason for reply in grid.replies)

    def test_whoever_submits_a_run_cannot_choose_none_for_a_site(self, flower: Any, monkeypatch: pytest.MonkeyPatch):
        """Reliability 11."""
        config = {"defence": "none"}
        with pytest.raises(CapabilityError, match="whoever submits a run cannot decide"):
            fit(guard(FedAvg(fraction_evaluate=0.0)), flower.grid(quickstart(linear, defend()), 2, config), linear(), 1)
        monkeypatch.setenv("FEDSEAL_ALLOW_NONE", "1")
        grid = flower.grid(quickstart(linear, defend()), 2, config)
        fit(guard(FedAvg(fraction_evaluate=0.0)), grid, linear(), 1)
        assert no_errors(grid)

    def test_detect_takes_a_batch_or_a_function(self, flower: Any):
        """P14."""
        images, labels = data_of(2)
        for batch in (Batch(images, labels), lambda context: Batch(*data_of(context.node_id))):
            grid = flower.grid(quickstart(linear, detect(linear, batch=batch)), 2)
            fit(FedAvg(fraction_evaluate=0.0), grid, linear(), 1)
            assert no_errors(grid)


def test_an_old_clients_gradient_needs_the_servers_rate():
    from fedseal.federation.wire import encode
    from fedseal.flower.records import payload_record, read_reply

    before = dict(linear().state_dict())
    gradient = {name: torch.ones_like(tensor) for name, tensor in before.items()}
    content = RecordDict({"arrays": payload_record(encode(gradient))})
    content.config_records["fedseal"] = ConfigRecord(
        {"round": 1, "kind": "gradient", "encoding": "wire", "learning-rate": 0.5, "defence": "none"}
    )
    with pytest.raises(InputError, match="does not know the clients' learning rate"):
        read_reply(copy.copy(content), before)
    read = read_reply(content, before, learning_rate=0.1)
    assert torch.allclose(read.weights["1.bias"], before["1.bias"] - 0.1)
