"""`defend`: a Flower client mod that seals what a client uploads.

The mod sees the weights a client was sent and the reply of its train function. It takes the difference as the update,
applies the defence at the state this client left in Flower's context, and lets only the sealed update leave: as
weights, which any strategy averages, or as one wire payload, which `guard` decodes and which is as small as the
defence made it. Buffers of batch normalisation go back as they came. Costs go into the
reply's metrics, except the distance to the true update, which is the client's secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor

from fedseal.core.defence import CostReport, Defence
from fedseal.core.errors import UsageError
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, check_like
from fedseal.defences.pipeline import build_defence
from fedseal.federation.cohort.answers import Measure
from fedseal.federation.posthoc import refuse_joint, seal_update, travelling
from fedseal.federation.update_file import check_update
from fedseal.federation.wire import encode, payload_size
from fedseal.flower.records import (
    ENVELOPE,
    Encoding,
    Envelope,
    only_arrays,
    payload_record,
    server_round,
    to_record,
    to_tensors,
)
from fedseal.flower.rounds import Seal, opened

STATE = "fedseal.state"
PROGRESS = "fedseal.progress"

_FIGURES = ("bytes_up", "seconds", "extra_passes", "state_bytes", "density", "epsilon_nominal", "epsilon_accounted")
_LEGACY_METRICS = "fitres.metrics"


class Mod(Protocol):
    """What Flower calls a mod: it wraps the handling of a message."""

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Handle a message, by `call_next` or around it."""


@dataclass(frozen=True)
class _Sealed:
    update: Update
    cost: CostReport
    learning_rate: float


@dataclass(frozen=True)
class _Defend:
    spec: str | None
    encoding: Encoding | None
    learning_rate: float
    seed: int | None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        spec = self.spec if self.spec is not None else str(_run_setting(context, "defence"))
        encoding = _checked_encoding(self.encoding or context.run_config.get("encoding", "weights"))
        _, sent = only_arrays(message.content, "train message")
        before = to_tensors(sent, "train message")  # now: the app may change the record
        round_number = server_round(message, _rounds_done(context) + 1)
        prepared_by = self._prepared_by(context)
        packed = _Packed() if encoding == "wire" else None
        seal = self._seal(spec, context, round_number, prepared_by, packed or payload_size)
        with opened(seal):
            reply = call_next(message, context)
        if reply.has_error():
            return reply
        key, record = only_arrays(reply.content, "reply")
        legacy = _LEGACY_METRICS in reply.content.config_records
        if legacy:
            if encoding == "wire":
                raise UsageError("the older client API cannot carry payloads.", hint="Use encoding='weights'.")
            # SecAgg+ hands out double precision, whatever the model has
            before = _in_precision_of(to_tensors(record, "reply"), before)
        sealed = self._sealed(seal, before, record)
        _remember(context, seal.defence, round_number, prepared_by)
        envelope = Envelope(round_number, sealed.update.kind, encoding, sealed.learning_rate, spec)
        if packed is not None:
            reply.content.array_records[key] = payload_record(packed.payload)
        else:
            reply.content.array_records[key] = _weights(sealed, before, record)
        if not legacy:
            reply.content.config_records[ENVELOPE] = envelope.to_record()
        _write_cost(reply.content, sealed.cost)
        return reply

    def _prepared_by(self, context: Context) -> int:
        """Return the seed this client prepares its data with in every round: a first one is drawn, then kept."""
        record = context.state.config_records.get(PROGRESS)
        kept = None if record is None else record.get("prepare")
        if isinstance(kept, int):
            return kept
        drawn = generator(None) if self.seed is None else generator(self.seed, "flower", str(context.node_id))
        return drawn.initial_seed()

    def _seal(self, spec: str, context: Context, round_number: int, prepared_by: int, measure: Measure) -> Seal:
        defence = _checked_defence(spec)
        state = context.state.array_records.get(STATE)
        if state:
            defence.load_state_dict(to_tensors(state, "defence state"))
        client = str(context.node_id)
        source = generator(None) if self.seed is None else generator(self.seed, "flower", client, round_number)
        return Seal(defence, source, round_number - 1, client, generator(prepared_by, "prepare"), measure)

    def _sealed(self, seal: Seal, before: Tensors, record: ArrayRecord) -> _Sealed:
        if seal.result is not None:
            update = _renamed(seal.result.done.update, seal.result.names, before)
            check_update(update.tensors, before, "update")
            return _Sealed(update, seal.result.done.cost, seal.result.learning_rate)
        after = to_tensors(record, "reply")
        check_like(after, before, "reply")
        change = Update({name: after[name] - before[name] for name in travelling(before)}, "delta")
        sealed = seal_update(
            change,
            seal.defence,
            seal.generator,
            before=before,
            round_number=seal.round_number,
            client=seal.client,
            learning_rate=self.learning_rate,
            measure=seal.measure,
        )
        return _Sealed(sealed.update, sealed.cost, self.learning_rate)


class _Packed:
    """Encodes an update once: for its length, and for the way."""

    def __init__(self) -> None:
        self.payload = b""

    def __call__(self, tensors: Tensors) -> int:
        self.payload = encode(tensors)
        return len(self.payload)


def defend(
    defence: str | None = None,
    *,
    encoding: Encoding | None = None,
    learning_rate: float = 0.1,
    seed: int | None = None,
) -> Mod:
    """Return a client mod that applies a defence to every update the client uploads.

    Args:
        defence: a spec such as `topk:ratio=0.9` or `gaussian:sigma=0.01+topk`; None takes the run config's `defence`.
            What acts before there is an update (on data, model, samples, step gradients) needs `train_round` in the
            client's train function, and is refused without.
        encoding: `weights` uploads new weights, for any strategy; `wire` uploads the update as one compact payload,
            for a strategy under `guard`; None takes the run config's `encoding`, else `weights`.
        learning_rate: of the client's steps, for defences that ask; `train_round` knows its own.
        seed: makes the defence's noise reproducible, for experiments only; by default the operating system seeds it.
    """
    if defence is not None:
        _checked_defence(defence)
    if encoding is not None:
        _checked_encoding(encoding)
    return _Defend(defence, encoding, learning_rate, seed)


def _checked_defence(spec: str) -> Defence:
    defence = build_defence(spec)
    refuse_joint(defence, "Flower's SecAgg+ mod in front of this one")
    return defence


def _checked_encoding(value: object) -> Encoding:
    if value == "weights" or value == "wire":
        return "weights" if value == "weights" else "wire"
    raise UsageError(f"there is no encoding {value!r}.", hint="Use 'weights' or 'wire'.")


def _run_setting(context: Context, name: str) -> object:
    if name not in context.run_config:
        raise UsageError(
            f"the run config has no {name!r}.", hint=f"Add it under [tool.flwr.app.config], or call defend({name}=...)."
        )
    return context.run_config[name]


def _renamed(update: Update, names: tuple[str, ...], before: Tensors) -> Update:
    """Return an update under the names the server uses: places in the list, in the older API."""
    if list(before) != [str(place) for place in range(len(names))]:
        return update
    places = {name: str(place) for place, name in enumerate(names)}
    return Update({places[name]: tensor for name, tensor in update.tensors.items()}, update.kind)


def _in_precision_of(like: Tensors, tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.to(like[name].dtype) if name in like else tensor for name, tensor in tensors.items()}


def _rounds_done(context: Context) -> int:
    record = context.state.config_records.get(PROGRESS)
    done = None if record is None else record.get("round")
    return done if isinstance(done, int) else 0


def _remember(context: Context, defence: Defence, round_number: int, prepared_by: int) -> None:
    """Leave the client's state in Flower's context, for its next round."""
    state = {name: tensor.detach().cpu() for name, tensor in defence.state_dict().items()}
    context.state.array_records[STATE] = ArrayRecord(state)
    context.state.config_records[PROGRESS] = ConfigRecord({"round": round_number, "prepare": prepared_by})


def _weights(sealed: _Sealed, before: dict[str, Tensor], like: ArrayRecord) -> ArrayRecord:
    scale = 1.0 if sealed.update.kind == "delta" else -sealed.learning_rate
    state = dict(before)
    for name, tensor in sealed.update.tensors.items():
        state[name] = before[name] + scale * tensor
    return to_record(state, like)


def _write_cost(content: RecordDict, cost: CostReport) -> None:
    figures: dict[str, Any] = {
        f"fedseal-{name.replace('_', '-')}": float(value)
        for name in _FIGURES
        if (value := getattr(cost, name)) is not None
    }
    if _LEGACY_METRICS in content.config_records:
        content.config_records[_LEGACY_METRICS].update(figures)
        return
    if not content.metric_records:
        content.metric_records["metrics"] = MetricRecord()
    next(iter(content.metric_records.values())).update(figures)
