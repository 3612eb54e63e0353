"""`defend`: a Flower client mod that seals what a client uploads.

The mod sees the weights a client was sent and the reply of its train function. It takes the difference as the update,
applies the defence at the state this client left behind (`keeping`), records the release, and only then lets the sealed
update leave: as weights, which any strategy averages, or as one wire payload, as small as the defence made it, where
the server says it can read one. What is outside of its scope goes back as it came (`scope`, `statistics`). Costs travel
in the envelope, except the distance to the true update, which is the client's secret.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn

from fedseal.core.defence import CostReport, Defence
from fedseal.core.errors import CapabilityError, FedsealError, UsageError
from fedseal.core.files import PathText
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, check_finite, check_like
from fedseal.defences.pipeline import build_defence
from fedseal.federation.posthoc import members_of, needs_training, refuse_joint, seal_update
from fedseal.federation.wire import encode
from fedseal.flower import statistics
from fedseal.flower.envelope import ENCODINGS, ENVELOPE, Encoding, Envelope, chosen_encoding, refusal, server_round
from fedseal.flower.keeping import say_what_is_lost, site_setting, turn_of
from fedseal.flower.records import in_types_of, only_arrays, payload_record, to_record, to_tensors
from fedseal.flower.rounds import Seal, opened
from fedseal.flower.scope import Scope, differences
from fedseal.flower.statistics import StatisticsPolicy
from fedseal.flower.traffic import traffic_of
from fedseal.ledger import Budget, Turn

Costs: TypeAlias = Literal["record", "metrics"]

_FIGURES = ("bytes_up", "seconds", "extra_passes", "state_bytes", "density", "epsilon_nominal", "epsilon_accounted")
_LEGACY_METRICS = "fitres.metrics"
_ASSUMED_RATE = 0.1
_LOG = logging.getLogger("fedseal.flower")


class Mod(Protocol):
    """What Flower calls a mod: it wraps the handling of a message."""

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Handle a message, by `call_next` or around it."""


@dataclass(frozen=True)
class _Sealed:
    """What may leave: weight changes by name, statistics included where they do."""

    change: dict[str, Tensor]
    cost: CostReport
    learning_rate: float | None


@dataclass(frozen=True)
class _Defend:
    spec: str | None
    inside: bool
    allow_none: bool
    encoding: Encoding | None
    bn: StatisticsPolicy | None
    scope: Scope
    ledger: PathText | None
    budget: Budget | None
    costs: Costs
    learning_rate: float | None
    seed: int | None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type
        try:
            policy = statistics.checked_policy(self.bn or context.run_config.get("bn", "local"))
            if kind.startswith(MessageType.TRAIN):
                return self._train(message, context, call_next, policy)
            if policy == "local" and kind.startswith(MessageType.EVALUATE):
                statistics.put_back(message, context)
        except FedsealError as error:
            _LOG.error("client %d does not take part: %s", context.node_id, error)
            return refusal(message, error)
        return call_next(message, context)

    def _train(
        self, message: Message, context: Context, call_next: ClientAppCallable, policy: StatisticsPolicy
    ) -> Message:
        spec, defence = self._defence(context)
        _, sent = only_arrays(message.content, "train message")
        before = to_tensors(sent, "train message")  # now: the app may change the record
        if policy == "local":  # after that: what goes back as it came is the server's, not this client's own
            statistics.put_back(message, context)
        check_finite({name: tensor for name, tensor in before.items() if tensor.is_floating_point()}, "train message")
        statistics.say_cost(policy, before)
        say_what_is_lost(context, defence, ledger=self.ledger)
        with turn_of(context, spec, before, ledger=self.ledger, budget=self.budget, seed=self.seed) as turn:
            defence.load_state_dict(turn.state)
            turn.check(defence.releases())
            seal = self._seal(defence, context, turn)
            with opened(seal):
                reply = call_next(message, context)
            if reply.has_error():
                return reply
            key, record = only_arrays(reply.content, "reply")
            legacy = _LEGACY_METRICS in reply.content.config_records
            encoding = chosen_encoding(self.encoding or context.run_config.get("encoding"), message, legacy=legacy)
            # strategies average to double precision, counters too; the client's own types are the model's
            after = to_tensors(record, "reply")
            before = in_types_of(after, before)
            sealed = self._sealed(seal, before, after, policy)
            number = server_round(message, turn.number + 1)
            turn.commit(
                defence.releases(),
                defence.state_dict(),
                facts={"defence": spec, "round": number, "run": str(context.run_id), "encoding": encoding},
            )
        if policy == "local":
            statistics.keep(context, record)
        reply.content.array_records[key] = (
            payload_record(encode(sealed.change)) if encoding == "wire" else _weights(sealed, before, record)
        )
        self._write_envelope(
            reply.content, Envelope(number, encoding, spec, sealed.learning_rate), sealed, turn, legacy
        )
        return reply

    def _defence(self, context: Context) -> tuple[str, Defence]:
        spec = self.spec if self.spec is not None else str(_run_setting(context, "defence"))
        defence = checked_defence(spec, inside=self.inside)
        allowed = self.allow_none or site_setting(context, "allow-none") == "1"
        if self.spec is None and not allowed and all(member.name == "none" for member in members_of(defence)):
            raise CapabilityError(
                "the run config asks for no defence, which whoever submits a run cannot decide for this site.",
                hint="Name one, or let the site allow it: FEDSEAL_ALLOW_NONE=1 or node config fedseal-allow-none=1.",
            )
        return spec, defence

    def _seal(self, defence: Defence, context: Context, turn: Turn) -> Seal:
        client = str(context.node_id)
        source = generator(None) if self.seed is None else generator(self.seed, "flower", client, turn.number + 1)
        return Seal(defence, source, turn.number, client, generator(turn.seed, "prepare"), lambda tensors: 0)

    def _sealed(self, seal: Seal, before: Tensors, after: Tensors, policy: StatisticsPolicy) -> _Sealed:
        check_like(after, before, "reply")
        changed = differences(after, before)
        names, own = self.scope.sealed(before), statistics.statistics_of(before)
        clear = {name: changed[name] for name in own} if policy == "aggregate" else {}
        if seal.result is not None:
            if policy == "protect" and own:
                raise CapabilityError(
                    "bn='protect' seals statistics with the update, and train_round has sealed that already.",
                    hint="Use bn='local', or group normalisation.",
                )
            change = _renamed(seal.result.change(), seal.result.names, before)
            check_like(change, {name: before[name] for name in change if name in before}, "update")
            inside = {name: tensor for name, tensor in change.items() if name in names}
            return _Sealed(inside | clear, seal.result.done.cost, seal.result.learning_rate)
        sealing = {name: changed[name] for name in (*names, *(own if policy == "protect" else ()))}
        self.scope.say_what_stands_still(sealing, changed)
        sealed = seal_update(
            Update(sealing, "delta"),
            seal.defence,
            seal.generator,
            before=before,
            round_number=seal.round_number,
            client=seal.client,
            learning_rate=self.learning_rate or _ASSUMED_RATE,
            measure=seal.measure,
        )
        return _Sealed({**sealed.update.tensors, **clear}, sealed.cost, self.learning_rate)

    def _write_envelope(
        self, content: RecordDict, envelope: Envelope, sealed: _Sealed, turn: Turn, legacy: bool
    ) -> None:
        """Say what was done and what it cost."""
        epsilon = turn.epsilon()
        known = bool(turn.page.spent) and math.isfinite(epsilon.value)
        traffic = traffic_of(content)
        values = {name: getattr(sealed.cost, name) for name in _FIGURES} | {
            "bytes_up": traffic.bytes,
            "bytes_payload": traffic.payload,
            "epsilon_accounted": epsilon.value if known else None,
            "releases": turn.number,
        }
        figures = {name.replace("_", "-"): float(value) for name, value in values.items() if value is not None}
        named: dict[str, Any] = {f"fedseal-{name}": value for name, value in figures.items()}
        if legacy:
            content.config_records[_LEGACY_METRICS].update(named)
            return
        whole = replace(envelope, unit=epsilon.unit if known else None, costs=figures)
        content.config_records[ENVELOPE] = whole.to_record()
        if self.costs == "metrics":
            _metrics_of(content).update(named)


def defend(
    defence: str | None = None,
    *,
    inside: bool = False,
    encoding: Encoding | None = None,
    bn: StatisticsPolicy | None = None,
    include: Sequence[str] = ("*",),
    exclude: Sequence[str] = (),
    model: Callable[[], nn.Module] | None = None,
    ledger: PathText | None = None,
    budget: float | Budget | None = None,
    allow_none: bool = False,
    costs: Costs = "record",
    learning_rate: float | None = None,
    seed: int | None = None,
) -> Mod:
    """Return a client mod that applies a defence to every update the client uploads.

    Args:
        defence: a spec such as `topk:ratio=0.9` or `gaussian:sigma=0.01+topk`; None takes the run config's `defence`.
        inside: the train function trains under the defence, by `train_round`: for what acts before there is an update
            (on data, model, samples, step gradients), which is refused at once without.
        encoding: `weights` uploads new weights, for any strategy; `wire` uploads the update as one compact payload,
            for a strategy under `guard`; None takes the run config's `encoding`, else what the server says it reads.
        bn: what happens to running statistics of batch normalisation: `local` (default, or the run config's `bn`) keeps
            them here, `aggregate` lets them leave in clear, `protect` seals them with the update.
        include: patterns of tensor names (`*lora_*`) to seal; all others go back as they came.
        exclude: patterns of tensor names that are not sealed and do not leave.
        model: builds the client's model; only parameters of it that require gradients are sealed.
        ledger: file to keep state and releases in, where the site names none (FEDSEAL_LEDGER, or `fedseal-ledger` in
            the node config); without any they live in Flower's context, as long as node and run.
        budget: largest epsilon, at delta 1e-5 unless a `Budget` says another: no round passes it.
        allow_none: let the run config ask for no defence at all.
        costs: `record` sends what it cost in the envelope, for `guard`; `metrics` also in the reply's metrics, which
            all clients must then have and Flower averages.
        learning_rate: of the client's steps, if it is known; `train_round` knows its own.
        seed: makes the defence's noise reproducible, for experiments only; by default the operating system seeds it.
    """
    if defence is not None:
        checked_defence(defence, inside=inside)
    if encoding is not None and encoding not in ENCODINGS:
        raise UsageError(f"there is no encoding {encoding!r}.", hint="Use 'weights' or 'wire'.")
    if bn is not None:
        statistics.checked_policy(bn)
    if costs not in ("record", "metrics"):
        raise UsageError(f"costs cannot go to {costs!r}.", hint="Use 'record' or 'metrics'.")
    granted = Budget(float(budget)) if isinstance(budget, int | float) else budget
    scope = Scope(tuple(include), tuple(exclude), model)
    return _Defend(defence, inside, allow_none, encoding, bn, scope, ledger, granted, costs, learning_rate, seed)


def checked_defence(spec: str, *, inside: bool) -> Defence:
    """Build a defence that a client can apply by itself, or refuse it with what to do instead."""
    if not spec.strip():
        raise UsageError("the defence has no name.", hint="See `fedseal list defences`; none at all is called none.")
    defence = build_defence(spec)
    refuse_joint(defence, "Flower's SecAgg+ mod in front of this one")
    early = needs_training(defence)
    if early and not inside:
        raise CapabilityError(
            f"{', '.join(early)} acts while the client trains and cannot be applied to a finished update.",
            hint="Train with fedseal.flower.train_round and say so: defend(..., inside=True).",
        )
    return defence


def _run_setting(context: Context, name: str) -> object:
    if name not in context.run_config:
        raise UsageError(
            f"the run config has no {name!r}.", hint=f"Add it under [tool.flwr.app.config], or call defend({name}=...)."
        )
    return context.run_config[name]


def _renamed(change: Tensors, names: tuple[str, ...], before: Tensors) -> dict[str, Tensor]:
    """Return an update under the names the server uses: places in the list, in the older API."""
    if list(before) != [str(place) for place in range(len(names))]:
        return dict(change)
    places = {name: str(place) for place, name in enumerate(names)}
    return {places[name]: tensor for name, tensor in change.items()}


def _weights(sealed: _Sealed, before: Tensors, like: ArrayRecord) -> ArrayRecord:
    """Return new weights: as received, plus what may leave."""
    state = dict(before) | {name: before[name] + tensor for name, tensor in sealed.change.items()}
    own = statistics.statistics_of(before)
    return to_record(state | statistics.as_statistics({name: state[name] for name in own}), like)


def _metrics_of(content: RecordDict) -> MetricRecord:
    """Return a reply's metrics, made if there are none."""
    if not content.metric_records:
        content.metric_records["metrics"] = MetricRecord()
    return next(iter(content.metric_records.values()))
