"""A site's door in Flower's SuperNode: its own state, object store and loop functions, with hostile apps behind them.

The SuperLink here only keeps what reaches it, byte by byte; everything else is Flower's and fedseal's own.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.posthoc import seal_update
from fedseal.flower import defend
from fedseal.flower.envelope import ENVELOPE, Envelope, offer
from fedseal.flower.records import payload_record, read_reply, to_tensors
from fedseal.flower.supernode import door as door_module
from fedseal.flower.supernode.gate import Gate
from fedseal.ledger import SiteLedger
from fedseal.site.policy import Policy
from fedseal.site.seal import SiteSeal

LOOP = import_module("flwr.supernode.start_client_internal")
SECRET = 0.123456789
MODEL = {
    "conv.weight": torch.linspace(-1, 1, 6 * 27).view(6, 3, 3, 3).sin(),
    "bn.running_mean": torch.zeros(6),
    "bn.num_batches_tracked": torch.tensor(3),
    "head.weight": torch.linspace(-1, 90, 400).view(10, 40).cos(),
    "head.bias": torch.zeros(10),
}
SPEC = "topk:ratio=0.9"


class SuperLink:
    """Keeps whatever reaches it."""

    def __init__(self, run_config: dict[str, Any]) -> None:
        self.config = run_config
        self.inbox: list[Message] = []
        self.objects: dict[str, bytes] = {}
        self.received: list[Message] = []
        self.wire = b""
        self.confirmed: list[str] = []
        self.agent = False

    def ask(self, content: RecordDict, kind: str = "train", run: int = 1) -> Message:
        message = Message(
            content=content,
            metadata=Metadata(run, "", 1, 7, "", "1", time.time(), 3600.0, kind),
        )
        message.metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {key: one.deflate() for key, one in get_all_nested_objects(message).items()}
        self.inbox.append(message)
        return message

    def receive(self) -> Any:
        if not self.inbox:
            return None
        message = self.inbox.pop(0)
        header = Message(content=RecordDict(), metadata=message.metadata)
        return header, get_object_tree(message)

    def send(self, message: Message, tree: Any, runtime: float) -> tuple[set[str], str]:
        self.wire += message.metadata.group_id.encode() + repr((message, runtime)).encode() + tree.SerializeToString()
        self.root, self.parts = tree.object_id, {}
        return {node.object_id for node in door_module.iterate_object_tree(tree)}, "session"

    def push(self, run: int, session: str, key: str, body: bytes) -> None:
        assert session == "session"
        self.wire += body
        self.parts[key] = body
        if self.root in self.parts and self.root == key:
            self.received.append(self.root)  # type: ignore[arg-type]

    @property
    def answer(self) -> Message:
        """The last answer, once whole."""
        assert len(self.received) == 1, "exactly one answer arrives"
        made = inflate_object_from_contents(self.root, dict(self.parts), keep_object_contents=True)
        assert isinstance(made, Message)
        return made

    def connection(self) -> tuple[Any, ...]:
        kind = TaskType.AGENT_APP if self.agent else TaskType.SERVER_APP
        run = SimpleNamespace(run_id=1, fab_hash="fab", primary_task_type=kind, series_id=1)
        fab = SimpleNamespace(content=b"", verifications={}, hash_str="")
        confirm = lambda run_id, key: self.confirmed.append(key)  # noqa: E731
        return (
            7, self.receive, self.send, lambda run_id: run, lambda key, run_id: fab,
            lambda run_id, key: self.objects[key], self.push, confirm,
        )  # fmt: skip


class Site:
    """A SuperNode's state, store and loop, behind the door, with one app."""

    def __init__(self, policy: Policy, ledger: Path, run_config: dict[str, Any] | None = None) -> None:
        self.link = SuperLink(run_config or {})
        seal = SiteSeal(policy, SiteLedger(ledger), lambda: generator(0))
        self.door = door_module.Door(Gate(seal), self.link.connection())
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state, self.store = factory.state(), factory.objectstore_factory.store()
        self.state.set_node_id(7)
        self.app_ran = False

    def turn(
        self, app: Callable[[Message], Message], kind: str = "train", content: RecordDict | None = None
    ) -> Message:
        """Let the server ask, the app answer if it hears of it, and return what arrives."""
        self.link.received.clear()
        request = self.link.ask(content or RecordDict({"arrays": ArrayRecord(MODEL), "config": ConfigRecord()}), kind)
        functions = self.door.functions()
        run = LOOP._pull_and_store_message(
            state=self.state, object_store=self.store, node_config={}, receive=functions[1], get_run=functions[3],
            get_fab=functions[4], pull_object=functions[5], confirm_message_received=functions[7],
            trusted_entities=None,
        )  # fmt: skip
        assert self.link.confirmed == [request.metadata.message_id]
        self.link.confirmed.clear()
        if run is not None:
            self.app_ran = True
            self.state.get_messages_legacy(run_ids=[1], is_reply=False, limit=1)
            self.state.record_message_processing_start(request.metadata.message_id)
            LOOP._insert_message(app(request), self.state, self.store)
            LOOP._push_messages(state=self.state, object_store=self.store, send=functions[2], push_object=functions[6])
        return self.link.answer


@pytest.fixture(autouse=True)
def _config(monkeypatch: pytest.MonkeyPatch):
    """Flower reads a run's config from the app's file, which these runs have none of."""
    for module in (LOOP, door_module):
        monkeypatch.setattr(module, "get_fused_config_from_fab", lambda content, run: CONFIG)
    CONFIG.clear()


CONFIG: dict[str, Any] = {}


def policy(**changes: Any) -> Policy:
    leave = {"metrics": {"num-examples": {"min": 1, "max": 1000, "step": 1}, "loss": {"min": 0, "max": 9, "step": 0.1}}}
    return Policy.model_validate({"seal": {"default": SPEC}, "leave": leave, "detector": {"on_alarm": "off"}} | changes)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(policy(), tmp_path / "ledger.sqlite")


def trained() -> dict[str, torch.Tensor]:
    """The model after an app's training: every weight tells something, and so do statistics and counters."""
    moved = {name: tensor + SECRET * (1 + torch.arange(tensor.numel()).view(tensor.shape) / 50) for name, tensor in
             MODEL.items() if tensor.is_floating_point()}  # fmt: skip
    return MODEL | moved | {"bn.num_batches_tracked": torch.tensor(99)}


def reply(request: Message, *, state: dict[str, torch.Tensor] | None = None, **records: Any) -> Message:
    content = {
        "arrays": ArrayRecord(trained() if state is None else state),
        "metrics": MetricRecord({"num-examples": 8}),
    }
    return Message(RecordDict(content | records), reply_to=request)


def sealed_state() -> dict[str, torch.Tensor]:
    names = ("conv.weight", "head.weight", "head.bias")
    after = trained()
    from fedseal.core.observation import Update

    change = {name: after[name] - MODEL[name] for name in names}
    done = seal_update(Update(change, "delta"), build_defence(SPEC), generator(0), before={n: MODEL[n] for n in names},
                       round_number=0, client="default", learning_rate=1.0)  # fmt: skip
    return MODEL | {name: MODEL[name] + tensor for name, tensor in done.update.tensors.items()}


def arrived(message: Message) -> dict[str, torch.Tensor]:
    assert not message.has_error(), message.error.reason
    return to_tensors(message.content.array_records["arrays"], "answer")


def test_what_leaves_is_sealed_though_the_app_seals_nothing(site: Site):
    got = arrived(site.turn(reply))
    expected = sealed_state()
    assert list(got) == list(MODEL)
    assert all(torch.equal(got[name], expected[name]) for name in MODEL)
    assert torch.equal(got["bn.running_mean"], MODEL["bn.running_mean"])
    assert int(got["bn.num_batches_tracked"]) == 3
    assert site.link.answer.content.config_records[ENVELOPE]["defence"] == SPEC


def test_a_server_that_reads_payloads_gets_one_and_it_is_sealed(site: Site):
    content = RecordDict({"arrays": ArrayRecord(MODEL)})
    offer(content)
    answer = site.turn(reply, content=content)
    got = read_reply(answer.content, MODEL)
    expected = sealed_state()
    assert list(answer.content.array_records["arrays"]) == ["fedseal.payload"]
    assert all(torch.allclose(got.weights[name], expected[name]) for name in MODEL)


def raw(state: dict[str, torch.Tensor]) -> bytes:
    return state["conv.weight"].numpy().tobytes()


def smuggled() -> dict[str, Callable[[Message], Message]]:
    """Apps that try to get their weights out past the seal, by every record and field there is."""
    weights = trained()["conv.weight"].flatten()
    data = raw(trained())
    payload = payload_record(data)
    wire = Envelope(1, "wire", "none", 1e30).to_record()

    def renamed(request: Message) -> Message:
        message = reply(request)
        message.metadata.__dict__["_group_id"] = data.hex()
        message.metadata.__dict__["_ttl"] = SECRET
        return message

    odd = dict(reversed(trained().items()))
    strange = ArrayRecord({**{n: Array(t) for n, t in trained().items()}, "extra": Array(weights.numpy())})
    wide = ArrayRecord(
        {n: Array(t.numpy().astype("<f8") if t.is_floating_point() else t.numpy()) for n, t in odd.items()}
    )
    return {
        "metrics as a list": lambda m: reply(m, metrics=MetricRecord({"num-examples": 8, "w": weights.tolist()})),
        "an allowed metric as a list": lambda m: reply(m, metrics=MetricRecord({"num-examples": weights.tolist()})),
        "the names of metrics": lambda m: reply(m, metrics=MetricRecord({"num-examples": 8, data.hex(): 1.0})),
        "a metric of many digits": lambda m: reply(m, metrics=MetricRecord({"num-examples": 8, "loss": SECRET})),
        "a second metric record": lambda m: reply(m, more=MetricRecord({"w": weights.tolist()})),
        "a config record": lambda m: reply(m, config=ConfigRecord({"w": data})),
        "the envelope": lambda m: reply(m, fedseal=ConfigRecord({"w": data})),
        "an envelope that lies": lambda m: reply(m, fedseal=wire),
        "a payload without a seal": lambda m: reply(m, arrays=payload, fedseal=wire),
        "a second array record": lambda m: reply(m, more=ArrayRecord({"w": Array(weights.numpy())})),
        "another key": lambda m: Message(RecordDict({"stolen": ArrayRecord(trained())}), reply_to=m),
        "an extra tensor": lambda m: reply(m, arrays=strange),
        "another order and type": lambda m: reply(m, arrays=wide),
        "a tensor of another kind": lambda m: reply(m, arrays=ArrayRecord({"a": Array("x", (1,), data.hex(), data)})),
        "statistics and counters": lambda m: reply(m, state=trained()),
        "the reason of an error": lambda m: Message(Error(2, data.hex()), reply_to=m),
        "the code of an error": lambda m: Message(Error(123456789, "x"), reply_to=m),
        "the metadata": renamed,
        "an answer from a mod": lambda m: defend("none")(m, _context(), lambda *_: reply(m)),
        "a mod's payload": lambda m: defend("none", encoding="wire")(m, _context(), lambda *_: reply(m)),
        "a name in the array": lambda m: reply(m, arrays=ArrayRecord({data.hex(): Array(np.zeros(1))})),
        "nothing at all": lambda m: Message(RecordDict(), reply_to=m),
    }


def _context() -> Any:
    from flwr.app import Context

    return Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={})


def assert_clean(link: SuperLink) -> None:
    """Nothing that left holds the app's weights, as bytes, as hex, as digits, or in the model that arrived."""
    honest = raw(trained())
    assert honest not in link.wire
    assert honest.hex().encode() not in link.wire
    assert str(SECRET).encode() not in link.wire
    assert np.float64(SECRET).tobytes() not in link.wire
    assert b"123456789" not in link.wire
    answer = link.answer
    if answer.has_error():
        assert answer.error.code in (0, 1, 2, 7, 8, 451)
        return
    assert len(answer.content.metric_records) == 1
    assert set(next(iter(answer.content.metric_records.values()))) <= {"num-examples", "loss"}
    assert set(answer.content.config_records) <= {ENVELOPE}
    for record in answer.content.array_records.values():
        upload = read_reply(answer.content, MODEL)
        moved = sum(int((upload.weights[name] != MODEL[name]).sum()) for name in MODEL)
        assert 0 < moved <= 60  # a tenth of 572 entries
        assert list(record) in (list(MODEL), ["fedseal.payload"])


@pytest.mark.parametrize("surplus", ["refuse", "remove"])
@pytest.mark.parametrize("way", list(smuggled()))
def test_a_hostile_app_gets_nothing_unsealed_out(way: str, surplus: str, tmp_path: Path):
    rules = policy().leave.model_dump() | {"surplus": surplus}
    site = Site(policy(leave=rules), tmp_path / "ledger.sqlite")
    site.turn(smuggled()[way])
    assert site.app_ran
    assert_clean(site.link)


@pytest.mark.parametrize("kind", ["evaluate", "evaluate.weights", "query", "train.twice", "system"])
def test_no_other_message_is_a_way_out(kind: str, site: Site):
    answer = site.turn(lambda m: reply(m, metrics=MetricRecord({"num-examples": 8, "loss": 0.5})), kind)
    assert_clean(site.link)
    if kind.startswith("train"):
        assert not answer.has_error()
    else:
        assert answer.has_error()
        assert site.app_ran == kind.startswith("evaluate")  # what is not answered at all is not even run


def test_an_evaluation_may_bring_its_numbers_home(site: Site):
    record = MetricRecord({"num-examples": 8, "loss": 0.5})
    answer = site.turn(lambda m: Message(RecordDict({"metrics": record}), reply_to=m), "evaluate")
    assert dict(answer.content.metric_records["metrics"]) == {"num-examples": 8, "loss": 0.5}


def test_a_run_that_asks_for_less_is_refused_before_the_app_runs(site: Site):
    CONFIG["defence"] = "none"
    answer = site.turn(reply)
    assert answer.error.code == 451
    assert "does not allow the defence 'none'" in str(answer.error.reason)
    assert not site.app_ran


def test_rounds_and_answers_are_counted_by_the_site_and_survive_its_restart(tmp_path: Path):
    rules = policy(budget={"rounds": 2, "replies": 4})
    for _ in range(2):
        assert not Site(rules, tmp_path / "ledger.sqlite").turn(reply).has_error()
    third = Site(rules, tmp_path / "ledger.sqlite")
    assert "budget of 2 rounds is spent" in str(third.turn(reply).error.reason)
    assert not third.app_ran
    number = lambda m: Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=m)  # noqa: E731
    for _ in range(2):
        assert not Site(rules, tmp_path / "ledger.sqlite").turn(number, "evaluate").has_error()
    last = Site(rules, tmp_path / "ledger.sqlite").turn(number, "evaluate")
    assert "budget of 4 answers is spent" in str(last.error.reason)


def test_epsilon_is_counted_and_halts_before_the_round_that_would_pass_it(tmp_path: Path):
    rules = policy(seal={"default": "gaussian:clip=1.0,sigma=1.0"}, budget={"epsilon": 7.0})
    site = Site(rules, tmp_path / "ledger.sqlite")
    first = site.turn(reply).content.config_records[ENVELOPE]["cost-epsilon-accounted"]
    assert first == pytest.approx(4.377, abs=1e-3)
    second = site.turn(reply).content.config_records[ENVELOPE]["cost-epsilon-accounted"]
    assert 4.377 < float(second) < 7.0  # type: ignore[arg-type]
    site.app_ran = False
    assert "privacy budget" in str(site.turn(reply).error.reason)
    assert not site.app_ran


def test_the_defences_state_is_the_sites_own(tmp_path: Path):
    rules = policy(seal={"default": "dgp"})
    first = Site(rules, tmp_path / "ledger.sqlite")
    first.turn(reply)
    still = Site(rules, tmp_path / "ledger.sqlite").turn(lambda m: reply(m, state=MODEL))
    got = arrived(still)
    assert any(not torch.equal(got[name], MODEL[name]) for name in MODEL)  # the residual of the round before


def test_a_weapon_is_refused_before_the_app_sees_it(tmp_path: Path):
    site = Site(policy(detector={"on_alarm": "refuse"}), tmp_path / "ledger.sqlite")
    bins = MODEL | {"head.weight": MODEL["head.weight"][:1].repeat(10, 1), "head.bias": torch.linspace(-1, 1, 10)}
    answer = site.turn(reply, content=RecordDict({"arrays": ArrayRecord(bins), "config": ConfigRecord()}))
    assert "suspicious" in str(answer.error.reason)
    assert not site.app_ran
    assert not site.turn(reply).has_error()


def test_an_agent_run_is_not_the_sites_business(tmp_path: Path):
    site = Site(policy(), tmp_path / "ledger.sqlite")
    site.link.agent = True
    site.door = door_module.Door(site.door._gate, site.link.connection())
    assert "agents" in str(site.turn(reply).error.reason)


def test_an_answer_comes_once_and_only_to_what_was_asked(site: Site):
    kept: list[Message] = []

    def app(request: Message) -> Message:
        kept.append(request)
        return reply(request)

    site.turn(app)
    before = site.link.wire
    LOOP._insert_message(reply(kept[0], state=MODEL), site.state, site.store)
    functions = site.door.functions()
    LOOP._push_messages(state=site.state, object_store=site.store, send=functions[2], push_object=functions[6])
    assert site.link.wire == before


def test_an_answer_far_larger_than_its_request_is_not_kept(site: Site):
    huge = ArrayRecord({"w": Array(np.zeros(1 << 20))})
    assert "far larger" in str(site.turn(lambda m: reply(m, more=huge)).error.reason)


def test_a_seal_that_fails_lets_nothing_out(site: Site, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(raw(trained()).hex())

    monkeypatch.setattr("fedseal.site.seal.change_of", broken)
    answer = site.turn(reply)
    assert "could not seal" in str(answer.error.reason)
    assert_clean(site.link)


def test_refusals_say_what_is_wrong_in_words_that_hold_nothing_of_the_apps(site: Site):
    digest = hashlib.sha256(b"x").hexdigest()
    answer = site.turn(lambda m: reply(m, config=ConfigRecord({digest: 1})))
    assert str(answer.error.reason) == "refused by the site's policy: the answer holds more than the site lets out."
