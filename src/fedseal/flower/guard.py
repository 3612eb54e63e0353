"""`guard`: a strategy behind a door. What clients send is decoded and checked before the strategy sees it.

A reply with values that are no numbers, foreign names, shapes or kinds of number, a corrupted payload, a duplicated or
replayed round, an update or weight beyond its limits, or unusable metrics is dropped for the round and its sender
named; the others go on. What is merely much larger than the others' is scaled down and its sender reported. (Flower's
own strategies would average a NaN and stop at inconsistent metrics.) Without any reply left the model stays as it is;
if every client refuses to take part, the run fails with their reason.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedseal.core.defence import Defence
from fedseal.core.errors import CapabilityError, FedsealError, InputError
from fedseal.core.tensors import Tensors, is_finite
from fedseal.defences.pipeline import build_defence
from fedseal.federation.limits import OUTLIER, Limits, norm_of
from fedseal.federation.replays import UpdateHistory
from fedseal.flower.costs import with_costs, without_costs
from fedseal.flower.envelope import ENVELOPE, REFUSED, offer
from fedseal.flower.record import Recorder
from fedseal.flower.records import Upload, in_types_of, only_arrays, read_reply, to_array, to_tensors
from fedseal.flower.settings import number_of, run_settings

_OPEN = ("max_norm", "max_examples", "outlier", "learning_rate", "defence")
_LOG = logging.getLogger("fedseal.flower")
_MALFORMED = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What reading something that nobody foresaw may raise; its sender is dropped like any other."""


@dataclass(frozen=True)
class DroppedReply:
    """A reply that was left out, or cut down to what is taken.

    Attributes:
        round: the server's number, from 1.
        client: Flower's id of the node.
        reason: in words.
    """

    round: int
    client: int
    reason: str


@dataclass
class _Taken:
    """A reply that is taken."""

    message: Message
    upload: Upload
    size: float
    examples: float

    @property
    def client(self) -> int:
        return self.message.metadata.src_node_id


class GuardedStrategy(Strategy):
    """A strategy that sees only replies which were decoded and found sound.

    Args:
        inner: the strategy that samples and aggregates.
        recorder: keeps accepted updates, or None.
        defence: whose server side is applied to the aggregate.
        limits: of single replies.
        learning_rate: the clients', if the server knows it.

    Attributes:
        dropped: all replies left out so far.
        outliers: all replies scaled down so far.
    """

    def __init__(
        self,
        inner: Strategy,
        recorder: Recorder | None = None,
        defence: Defence | None = None,
        limits: Limits | None = None,
        learning_rate: float | None = None,
    ) -> None:
        self.inner = inner
        self.dropped: list[DroppedReply] = []
        self.outliers: list[DroppedReply] = []
        self._recorder = recorder
        self._defence = defence or Defence()
        self._limits = limits or Limits()
        self._learning_rate = learning_rate
        self._history = UpdateHistory()
        self._types: dict[str, Tensor] = {}
        self._sent: dict[int, dict[str, Tensor]] = {}
        self._bounds: dict[int, float] = {}
        self._answered: set[int] = set()

    def summary(self) -> None:
        """Log the inner strategy's summary."""
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose clients, remember what each is sent, and say how they may answer."""
        received = _read(arrays)
        if not self._types:  # the model's own, before any strategy has averaged counters to fractions
            self._types = {name: torch.empty(0, dtype=tensor.dtype) for name, tensor in received.items()}
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        states: dict[int, tuple[dict[str, Tensor], float]] = {}
        self._sent, self._bounds, self._answered = {}, {}, set()
        for message in messages:
            _, record = only_arrays(message.content, "train message")
            if id(record) not in states:  # clients share one record
                state = in_types_of(self._types, received if record is arrays else _read(record))
                states[id(record)] = state, self._limits.bound(state)
            node = message.metadata.dst_node_id
            self._sent[node], self._bounds[node] = states[id(record)]
            offer(message.content)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode and check every reply, drop what is unsound, and let the strategy aggregate the rest."""
        sound: list[_Taken] = []
        failed: list[Message] = []
        for reply in replies:
            if reply.has_error():
                failed.append(reply)  # the strategy counts and logs failures itself
            elif (taken := self._admitted(server_round, reply)) is not None:
                sound.append(taken)
        kept = self._with_common_metrics(server_round, sound)
        self._refuse_if_all_refuse(server_round, failed, sound)
        self._cut_down(server_round, kept)
        for taken in kept:
            self._open(server_round, taken)
        arrays, metrics = self.inner.aggregate_train(server_round, failed + [taken.message for taken in kept])
        if arrays is not None and kept:
            arrays = self._finished(server_round, arrays, kept)
        return arrays, with_costs(metrics, [taken.upload.envelope for taken in kept])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the strategy."""
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave evaluation to the strategy."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def _admitted(self, server_round: int, reply: Message) -> _Taken | None:
        client = reply.metadata.src_node_id
        try:
            before = self._sent.get(client)
            if before is None:
                raise InputError("it was not asked in this round.")
            if client in self._answered:
                raise InputError("it answered twice in this round.")
            upload = read_reply(reply.content, before, learning_rate=self._learning_rate)
            if upload.envelope is not None and upload.envelope.round != server_round:
                raise InputError(f"it replayed an answer to round {upload.envelope.round}.")
            without_costs(reply.content)
            examples = self._examples(reply.content)
            size = norm_of(_changes(upload, before))
            self._limits.check(size, self._bounds[client], examples)
            self._history.admit(str(client), server_round, upload.update.tensors, before)
        except FedsealError as error:
            self._drop(server_round, client, error.message)
            return None
        except _MALFORMED as error:
            self._drop(server_round, client, f"its reply cannot be read ({type(error).__name__}).")
            return None
        self._answered.add(client)
        return _Taken(reply, upload, size, examples)

    def _examples(self, content: RecordDict) -> float:
        """Return a reply's weight; refuse metrics that the strategy could not average."""
        if len(content.metric_records) != 1:
            raise InputError(f"it sent {len(content.metric_records)} metric records, there must be one.")
        metrics = next(iter(content.metric_records.values()))
        key = _weighted_by(self.inner)
        weight = metrics.get(key) if key is not None else 1.0
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise InputError(f"its metric {key!r} is {weight!r}, not a positive number.")
        for name, value in metrics.items():
            if not all(math.isfinite(item) for item in (value if isinstance(value, list) else [value])):
                raise InputError(f"its metric {name!r} is not finite.")
        return float(weight)

    def _with_common_metrics(self, server_round: int, sound: list[_Taken]) -> list[_Taken]:
        """Keep the replies whose metrics have the names that most have; a strategy stops at a mixture."""
        if not sound:
            return []
        names = [_metric_names(taken.message.content) for taken in sound]
        common = Counter(names).most_common(1)[0][0]
        kept = []
        for taken, own in zip(sound, names, strict=True):
            if own == common:
                kept.append(taken)
            else:
                strange = ", ".join(sorted({repr(name) for name, _ in own ^ common}))
                self._drop(server_round, taken.client, f"its metrics differ from the others' in {strange}.")
        return kept

    def _cut_down(self, server_round: int, kept: list[_Taken]) -> None:
        """Scale down what is much larger than the others', and report who sent it."""
        norms = self._limits.norm_cap([taken.size for taken in kept])
        weights = self._limits.weight_cap([taken.examples for taken in kept])
        for taken in kept:
            if taken.size > norms:
                self._report(
                    server_round, taken.client, f"its update of norm {taken.size:.4g} is scaled down to {norms:.4g}."
                )
                taken.upload = _scaled(taken.upload, self._sent[taken.client], norms / taken.size)
            if taken.examples > weights:
                self._report(
                    server_round, taken.client, f"it claims {taken.examples:.4g} examples, {weights:.4g} are counted."
                )
                metrics, key = next(iter(taken.message.content.metric_records.values())), _weighted_by(self.inner)
                assert key is not None, "a weight is what the strategy asks for"
                metrics[key] = weights

    def _refuse_if_all_refuse(self, server_round: int, failed: list[Message], sound: list[_Taken]) -> None:
        refused = [reply for reply in failed if reply.error.code == REFUSED]
        if refused and len(refused) == len(failed) and not sound and len(refused) == len(self._sent):
            raise CapabilityError(f"every client refused in round {server_round}: {refused[0].error.reason}")

    def _drop(self, server_round: int, client: int, reason: str) -> None:
        self.dropped.append(DroppedReply(server_round, client, reason))
        _LOG.warning("round %d: client %d is dropped for this round: %s", server_round, client, reason)

    def _report(self, server_round: int, client: int, reason: str) -> None:
        self.outliers.append(DroppedReply(server_round, client, reason))
        _LOG.warning("round %d: client %d stands out: %s", server_round, client, reason)

    def _open(self, server_round: int, taken: _Taken) -> None:
        """Replace what travelled by plain weights, and keep a record if one is asked for."""
        before, content = self._sent[taken.client], taken.message.content
        if self._recorder is not None:
            self._recorder.save(taken.upload, before, round_number=server_round, client=str(taken.client))
        key, _ = only_arrays(content, "reply")
        content.array_records[key] = ArrayRecord({n: to_array(t) for n, t in taken.upload.weights.items()})
        content.config_records.pop(ENVELOPE, None)

    def _finished(self, server_round: int, arrays: ArrayRecord, kept: list[_Taken]) -> ArrayRecord | None:
        """Return the aggregate in the model's own types, after the defence's server side; None if it is not finite."""
        before = self._sent[kept[0].client]
        found = _read(arrays)
        final = in_types_of(before, found)
        if self._defence.uses("on_aggregate"):
            final |= self._served(final, before, kept)
        if not all(is_finite(tensor) for tensor in final.values() if tensor.is_floating_point()):
            _LOG.error("round %d: the strategy's aggregate is not finite; the model stays as it is.", server_round)
            return None
        return ArrayRecord(
            {name: arrays[name] if tensor is found[name] else to_array(tensor) for name, tensor in final.items()}
        )

    def _served(self, after: Tensors, before: Tensors, kept: list[_Taken]) -> dict[str, Tensor]:
        """Apply the defence's server side to the aggregate, in the units its clients worked in."""
        scale = -self._common_rate(kept)
        change = {name: (after[name] - before[name]) / scale for name in kept[0].upload.update.tensors}
        return {name: before[name] + scale * tensor for name, tensor in self._defence.on_aggregate(change).items()}

    def _common_rate(self, kept: list[_Taken]) -> float:
        """Return the clients' learning rate where they took single steps: the server's, or the median of theirs.

        -1, where none says: then the change itself is the unit.
        """
        if self._learning_rate is not None:
            return self._learning_rate
        stated = [taken.upload.envelope.learning_rate for taken in kept if taken.upload.envelope is not None]
        known = sorted(rate for rate in stated if rate is not None)
        return known[len(known) // 2] if len(known) * 2 > len(kept) else -1.0


def guard(
    strategy: Strategy,
    *,
    recorder: Recorder | None = None,
    defence: str = "none",
    learning_rate: float | None = None,
    max_norm: float | None = None,
    max_examples: float | None = None,
    outlier: float | None = OUTLIER,
    run_config: Mapping[str, object] | None = None,
) -> GuardedStrategy:
    """Return a strategy that decodes and checks replies before `strategy` aggregates them.

    Args:
        strategy: any of Flower's that aggregates weights, such as FedAvg or FedAdam.
        recorder: from `record`, to keep the updates that arrive.
        defence: the clients' spec, if it has a server side that works on the aggregate.
        learning_rate: the clients', if the server knows it; nothing a client says of it moves the model.
        max_norm: largest L2 norm of a client's weight change; by default ten times the model's own.
        max_examples: most examples a client may be weighted by; by default 25 times the round's median.
        outlier: a change this many times the round's median norm is scaled down to that, and its sender reported in
            `outliers`; None leaves it alone.
        run_config: of the ServerApp's context. What is left at its default is then what the run says: `guard-max-norm`,
            `guard-max-examples`, `guard-outlier` (0 for none), `guard-learning-rate`, `guard-defence`, and `record`.
    """
    run = run_config or {}
    told = run_settings(run, "guard", _OPEN)
    spread = number_of(told, "outlier", "guard")
    if outlier == OUTLIER and spread is not None:
        outlier = spread or None
    limits = Limits(
        number_of(told, "max_norm", "guard") if max_norm is None else max_norm,
        number_of(told, "max_examples", "guard") if max_examples is None else max_examples,
        outlier,
    )
    rate = number_of(told, "learning_rate", "guard") if learning_rate is None else learning_rate
    spec = str(told.get("defence", defence)) if defence == "none" else defence
    return GuardedStrategy(
        strategy, recorder.under(run) if recorder is not None else None, build_defence(spec), limits, rate
    )


def _read(record: ArrayRecord) -> dict[str, Tensor]:
    return to_tensors(record, "aggregate")


def _changes(upload: Upload, before: Tensors) -> dict[str, Tensor]:
    """Return everything by which a reply moves the model, statistics too."""
    change = upload.update.tensors
    moved = {n: t for n, t in upload.weights.items() if t is not before[n] and t.is_floating_point()}
    return {name: change[name] if name in change else tensor - before[name] for name, tensor in moved.items()}


def _scaled(upload: Upload, before: Tensors, factor: float) -> Upload:
    update = {name: tensor * factor for name, tensor in upload.update.tensors.items()}
    weights = {
        name: tensor if tensor is before[name] else before[name] + (tensor - before[name]) * factor
        for name, tensor in upload.weights.items()
    }
    return Upload(type(upload.update)(update, upload.update.kind), weights, upload.envelope)


def _metric_names(content: RecordDict) -> frozenset[tuple[str, int]]:
    """Return the names of a reply's metrics, each with the length a strategy adds up by."""
    metrics = next(iter(content.metric_records.values()))
    return frozenset((name, len(value) if isinstance(value, list) else 0) for name, value in metrics.items())


def _weighted_by(strategy: Strategy) -> str | None:
    """Return the metric a strategy weights replies by; wrappers are asked for what they wrap."""
    inner: object = strategy
    while not hasattr(inner, "weighted_by_key") and hasattr(inner, "strategy"):
        inner = inner.strategy
    key: str | None = getattr(inner, "weighted_by_key", None)
    return key
