"""`guard`: a strategy behind a door. What clients send is decoded and checked before the strategy sees it.

A reply with values that are no numbers, foreign names, shapes or dtypes, a corrupted payload, a duplicated or replayed
round, or unusable metrics is dropped for the round and its sender named; the others go on. (Flower's own strategies
would average a NaN and stop at inconsistent metrics.) Without any reply left the global model stays as it is.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedseal.core.defence import Defence
from fedseal.core.errors import FedsealError, InputError
from fedseal.defences.pipeline import build_defence
from fedseal.federation.update_file import UpdateHistory
from fedseal.flower.record import Recorder
from fedseal.flower.records import ENVELOPE, Upload, only_arrays, read_reply, to_tensors

_LOG = logging.getLogger("fedseal.flower")


@dataclass(frozen=True)
class DroppedReply:
    """A reply that was left out.

    Attributes:
        round: the server's number, from 1.
        client: Flower's id of the node.
        reason: in words.
    """

    round: int
    client: int
    reason: str


class GuardedStrategy(Strategy):
    """A strategy that sees only replies which were decoded and found sound.

    Args:
        inner: the strategy that samples and aggregates.
        recorder: keeps accepted updates, or None.
        defence: whose server side is applied to the aggregate.

    Attributes:
        dropped: all replies left out so far.
    """

    def __init__(self, inner: Strategy, recorder: Recorder | None, defence: Defence) -> None:
        self.inner = inner
        self.dropped: list[DroppedReply] = []
        self._recorder = recorder
        self._defence = defence
        self._history = UpdateHistory()
        self._sent: dict[int, dict[str, Tensor]] = {}
        self._answered: set[int] = set()

    def summary(self) -> None:
        """Log the inner strategy's summary."""
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose clients, and remember what each is sent."""
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        states: dict[int, dict[str, Tensor]] = {}
        self._sent, self._answered = {}, set()
        for message in messages:
            _, record = only_arrays(message.content, "train message")
            if id(record) not in states:  # clients share one record
                states[id(record)] = to_tensors(record, "train message")
            self._sent[message.metadata.dst_node_id] = states[id(record)]
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode and check every reply, drop what is unsound, and let the strategy aggregate the rest."""
        sound: list[tuple[Message, Upload]] = []
        passed: list[Message] = []
        for reply in replies:
            if reply.has_error():
                passed.append(reply)  # the strategy counts and logs failures itself
                continue
            upload = self._admitted(server_round, reply)
            if upload is not None:
                sound.append((reply, upload))
        kept = self._with_common_metrics(server_round, sound)
        for reply, upload in kept:
            self._open(server_round, reply, upload)
        arrays, metrics = self.inner.aggregate_train(server_round, passed + [reply for reply, _ in kept])
        if arrays is not None and kept:
            arrays = self._finished(arrays, kept)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the strategy."""
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Leave evaluation to the strategy."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def _admitted(self, server_round: int, reply: Message) -> Upload | None:
        client = reply.metadata.src_node_id
        try:
            before = self._sent.get(client)
            if before is None:
                raise InputError("it was not asked in this round.")
            if client in self._answered:
                raise InputError("it answered twice in this round.")
            upload = read_reply(reply.content, before)
            if upload.envelope is not None and upload.envelope.round != server_round:
                raise InputError(f"it replayed an answer to round {upload.envelope.round}.")
            self._check_weight(reply.content)
            self._history.admit(str(client), server_round, upload.update.tensors)
        except FedsealError as error:
            self._drop(server_round, client, error.message)
            return None
        self._answered.add(client)
        return upload

    def _check_weight(self, content: RecordDict) -> None:
        """Refuse metrics that the strategy could not average."""
        if len(content.metric_records) != 1:
            raise InputError(f"it sent {len(content.metric_records)} metric records, there must be one.")
        metrics = next(iter(content.metric_records.values()))
        key = getattr(self.inner, "weighted_by_key", None)
        weight = metrics.get(key) if key is not None else 1.0
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise InputError(f"its metric {key!r} is {weight!r}, not a positive number.")
        for name, value in metrics.items():
            if not all(math.isfinite(item) for item in (value if isinstance(value, list) else [value])):
                raise InputError(f"its metric {name!r} is not finite.")

    def _with_common_metrics(
        self, server_round: int, sound: list[tuple[Message, Upload]]
    ) -> list[tuple[Message, Upload]]:
        """Keep the replies whose metrics have the names that most have; a strategy stops at a mixture."""
        if not sound:
            return []
        names = [frozenset(next(iter(reply.content.metric_records.values()))) for reply, _ in sound]
        common = Counter(names).most_common(1)[0][0]
        kept = []
        for entry, own in zip(sound, names, strict=True):
            if own == common:
                kept.append(entry)
            else:
                strange = ", ".join(map(repr, sorted(own ^ common)))
                self._drop(
                    server_round, entry[0].metadata.src_node_id, f"its metrics differ from the others' in {strange}."
                )
        return kept

    def _drop(self, server_round: int, client: int, reason: str) -> None:
        self.dropped.append(DroppedReply(server_round, client, reason))
        _LOG.warning("round %d: client %d is dropped for this round: %s", server_round, client, reason)

    def _open(self, server_round: int, reply: Message, upload: Upload) -> None:
        """Replace what travelled by plain weights, and keep a record if one is asked for."""
        client = reply.metadata.src_node_id
        before = self._sent[client]
        if self._recorder is not None:
            self._recorder.save(upload, before, round_number=server_round, client=str(client))
        key, _ = only_arrays(reply.content, "reply")
        reply.content.array_records[key] = ArrayRecord({n: Array(t) for n, t in upload.weights.items()})
        reply.content.config_records.pop(ENVELOPE, None)

    def _finished(self, arrays: ArrayRecord, kept: list[tuple[Message, Upload]]) -> ArrayRecord:
        """Apply the defence's server side to the aggregate, in the units its clients sent."""
        if not self._defence.uses("on_aggregate"):
            return arrays
        reply, upload = kept[0]
        before = self._sent[reply.metadata.src_node_id]
        after = to_tensors(arrays, "aggregate")
        envelope = upload.envelope
        scale = -envelope.learning_rate if envelope is not None and envelope.kind == "gradient" else 1.0
        change = {name: (after[name] - before[name]) / scale for name in upload.update.tensors}
        final = {name: before[name] + scale * tensor for name, tensor in self._defence.on_aggregate(change).items()}
        return ArrayRecord({name: Array(final.get(name, tensor)) for name, tensor in after.items()})


def guard(strategy: Strategy, *, recorder: Recorder | None = None, defence: str = "none") -> GuardedStrategy:
    """Return a strategy that decodes and checks replies before `strategy` aggregates them.

    Args:
        strategy: any of Flower's that aggregates weights, such as FedAvg or FedAdam.
        recorder: from `record`, to keep the updates that arrive.
        defence: the clients' spec, if it has a server side that works on the aggregate.
    """
    return GuardedStrategy(strategy, recorder, build_defence(defence))
