"""Messages at a site's door: requests are looked at before an app sees them, answers before they leave.

An answer that leaves is made anew from the request and the sealed numbers. Nothing else of the app's is in it: no
names, order, types or texts of its choosing, no further records, no reasons of errors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from torch import Tensor

from fedseal.core.errors import FedsealError
from fedseal.federation.wire import encode
from fedseal.flower.envelope import ENVELOPE, REFUSED, Envelope, chosen_encoding, server_round
from fedseal.flower.records import payload_record, read_reply, to_record, to_tensors
from fedseal.flower.traffic import traffic_of
from fedseal.site.leaving import refuse_surplus
from fedseal.site.refusal import RefusedError
from fedseal.site.seal import SiteSeal

METRICS = "metrics"

_LOG = logging.getLogger("fedseal.site")
_APP_FAILED = "the app failed at the site; the site's log says why."
_SEAL_FAILED = "the site could not seal this answer; the site's log says why."
_ERRORS = (
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.INVALID_FAB,
    ErrorCode.CLIENT_APP_CRASHED,
)


@dataclass(frozen=True)
class Admitted:
    """A request that an app may answer.

    Attributes:
        message: as the server sent it.
        kind: what it asks for.
        spec: of the defence that seals the answer.
        key: name of the record with the model; "" if it brings none.
        record: that record; empty if it brings none.
        before: the model in it.
    """

    message: Message
    kind: str
    spec: str
    key: str
    record: ArrayRecord
    before: dict[str, Tensor]


class Gate:
    """A site's seal for Flower's messages.

    Args:
        seal: the site's.
    """

    def __init__(self, seal: SiteSeal) -> None:
        self._seal = seal

    def admit(self, message: Message, run_config: Mapping[str, object]) -> Admitted:
        """Return a request that an app may answer, or raise why none may.

        Args:
            message: with its content.
            run_config: of the run; its `defence` is what the run asks for.
        """
        kind = message.metadata.message_type.partition(".")[0]
        spec = self._seal.defence_for(run_config.get("defence"))
        key, record, before = "", ArrayRecord(), {}
        records = message.content.array_records
        if kind == "train" and len(records) != 1:
            raise RefusedError(f"a request to train brings one record of arrays, this one {len(records)}.")
        for key, record in records.items():  # noqa: B007 - evaluation may bring none, or several
            try:
                before = to_tensors(record, "request")
            except FedsealError as error:
                raise RefusedError("the model in the request cannot be read.", detail=str(error)) from error
            self._seal.admit(kind, before, spec)
        if not records:
            self._seal.admit(kind, None, spec)
        return Admitted(message, kind, spec, key, record, before)

    def answer(self, admitted: Admitted, reply: Message) -> Message:
        """Return what leaves in the place of an app's answer: sealed, or an error in the site's words."""
        try:
            self._seal.count(admitted.kind)
            if reply.has_error():
                _LOG.error("the app failed: %s", reply.error.reason)
                code = reply.error.code if reply.error.code in _ERRORS else ErrorCode.UNKNOWN
                return Message(Error(code, _APP_FAILED), reply_to=admitted.message)
            content = (
                self._sealed(admitted, reply.content) if admitted.kind == "train" else self._numbers(reply.content)
            )
            return Message(content, reply_to=admitted.message)
        except RefusedError as error:
            return self.refusal(admitted.message, error)
        except Exception:  # noqa: BLE001 - an app may answer anything; what is not understood does not leave
            _LOG.exception("an answer could not be sealed")
            return Message(Error(REFUSED, _SEAL_FAILED), reply_to=admitted.message)

    def refusal(self, message: Message, error: RefusedError) -> Message:
        """Return the error a server gets instead of an answer."""
        _LOG.warning("refused: %s", error)
        return Message(Error(REFUSED, f"refused by the site's policy: {error.public}"), reply_to=message)

    def _sealed(self, admitted: Admitted, content: RecordDict) -> RecordDict:
        after = self._answered(admitted, content)
        answer = self._seal.update(admitted.before, after, self._metrics(content), admitted.spec)
        encoding = chosen_encoding(None, admitted.message)
        if encoding == "wire":
            arrays = payload_record(encode(answer.change))
        else:
            state = dict(admitted.before)
            for name, change in answer.change.items():
                state[name] = state[name] + change
            arrays = to_record(state, admitted.record)
        sealed = RecordDict({admitted.key: arrays, METRICS: MetricRecord({**answer.metrics})})
        traffic = traffic_of(sealed)
        costs = {"bytes-up": float(traffic.bytes), "bytes-payload": float(traffic.payload), **answer.costs}
        number = server_round(admitted.message, answer.number)
        envelope = Envelope(number, encoding, admitted.spec, unit=answer.unit, costs=costs)
        sealed.config_records[ENVELOPE] = envelope.to_record()
        return sealed

    def _answered(self, admitted: Admitted, content: RecordDict) -> Mapping[str, Tensor]:
        """Return the state an app answers with."""
        records = content.array_records
        key = admitted.key if admitted.key in records else next(iter(records), "")
        if not records or (len(records) > 1 and key != admitted.key):
            raise RefusedError("the answer brings no model, or several of which none is named as the request's.")
        if len(records) > 1:
            refuse_surplus(self._seal.policy.leave, f"It brings the array records {_names(records)}.")
        strange = [name for name in content.config_records if name != ENVELOPE]
        if strange:
            refuse_surplus(self._seal.policy.leave, f"It brings the config records {_names(strange)}.")
        try:
            envelope = Envelope.from_content(content)
            if envelope is None or envelope.encoding == "weights":
                return to_tensors(records[key], "answer")
            alone = RecordDict({key: records[key], ENVELOPE: content.config_records[ENVELOPE]})
            return read_reply(alone, admitted.before).weights
        except FedsealError as error:
            raise RefusedError("the model in the answer cannot be read.", detail=str(error)) from error

    def _numbers(self, content: RecordDict) -> RecordDict:
        strange = [*content.array_records, *content.config_records]
        if strange:
            refuse_surplus(self._seal.policy.leave, f"It brings the records {_names(strange)}.")
        return RecordDict({METRICS: MetricRecord({**self._seal.numbers(self._metrics(content))})})

    def _metrics(self, content: RecordDict) -> dict[str, object]:
        records = content.metric_records
        if len(records) > 1:
            refuse_surplus(self._seal.policy.leave, f"It brings the metric records {_names(records)}.")
        chosen = records.get(METRICS) or next(iter(records.values()), None)
        return {} if chosen is None else dict(chosen)


def _names(names: object) -> str:
    return ", ".join(repr(str(name)[:40]) for name in list(names)[:5])  # type: ignore[call-overload]
