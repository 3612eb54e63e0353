"""`detect`: a Flower client mod that looks at the model it was sent before the client answers.

A model that looks like a weapon, or that is not the architecture the client knows, is refused with an error the server
sees as a failed client, or answered with a warning in the log. What was found, and the fingerprint of what was
received, stay in the client's own context, where clients can take them to compare past the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable
from torch import nn

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.tensors import Tensors, check_like
from fedseal.detection.detector import detect as detect_model
from fedseal.detection.fingerprints import fingerprint
from fedseal.flower.defend import Mod
from fedseal.flower.envelope import refusal
from fedseal.flower.records import in_types_of, only_arrays, to_tensors
from fedseal.flower.settings import run_settings

FINDINGS = "fedseal.detect"
OnAlarm: TypeAlias = Literal["refuse", "warn"]
"""What happens on an alarm: the client does not answer, or it does and logs why it should not have."""

_OPEN = ("on_alarm",)
_SET_BACK = "adapters that were trained are zero again, as when all clients but one are suppressed"
_LOG = logging.getLogger("fedseal.flower")


@dataclass(frozen=True)
class _Detect:
    model: Callable[[], nn.Module]
    batch: Batch | Callable[[Context], Batch] | None
    on_alarm: OnAlarm | None
    normalisation: Normalisation

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        try:
            on_alarm = self.on_alarm or _checked(run_settings(context.run_config, "detect", _OPEN).get("on_alarm"))
        except UsageError as error:
            return refusal(message, error)
        reason = self._look(message, context)
        if reason is None:
            return call_next(message, context)
        _LOG.warning("client %d received a suspicious model: %s", context.node_id, reason)
        if on_alarm == "warn":
            return call_next(message, context)
        return refusal(message, InputError("the model was refused as suspicious."))

    def _look(self, message: Message, context: Context) -> str | None:
        """Return why the model is suspicious, or None; leave what was found in the context."""
        _, record = only_arrays(message.content, "train message")
        model = self.model()
        trained = bool(context.state.config_records.get(FINDINGS, ConfigRecord()).get("trained"))
        try:
            _load(model, to_tensors(record, "train message"))
            batch = self.batch(context) if callable(self.batch) else self.batch
            found = detect_model(model, batch, normalisation=self.normalisation)
        except FedsealError as error:
            context.state.config_records[FINDINGS] = ConfigRecord(
                {"suspicious": True, "alarms": [error.message], "trained": trained}
            )
            return error.message
        alarms = [str(reading) for reading in found.alarms]
        if trained and found.fresh:
            alarms.append(_SET_BACK)
        context.state.config_records[FINDINGS] = ConfigRecord(
            {
                "suspicious": bool(alarms),
                "alarms": alarms,
                "fingerprint": fingerprint(model),
                "trained": trained or not found.fresh,
            }
        )
        return "; ".join(alarms) if alarms else None


def detect(
    model: Callable[[], nn.Module],
    *,
    batch: Batch | Callable[[Context], Batch] | None = None,
    on_alarm: OnAlarm | None = None,
    normalisation: Normalisation = IDENTITY,
) -> Mod:
    """Return a client mod that checks every model the client is asked to train.

    Put it first among the mods, so that nothing is computed on a weapon.

    Args:
        model: builds the architecture the client agreed to, in the mode it trains in; received weights must fit it.
        batch: samples the client would train on, or a function of Flower's context that returns them; without it only
            the weights are looked at.
        on_alarm: `refuse` answers with an error, `warn` logs and goes on; None takes the run config's
            `detect-on-alarm`, else refuses.
        normalisation: between images and model inputs.
    """
    if on_alarm is not None:
        _checked(on_alarm)
    return _Detect(model, batch, on_alarm, normalisation)


def _checked(reaction: object) -> OnAlarm:
    """Return what happens on an alarm: `refuse`, where nobody says."""
    if reaction not in (None, "refuse", "warn"):
        raise UsageError(f"there is no reaction {reaction!r}.", hint="Use 'refuse' or 'warn'.")
    return "warn" if reaction == "warn" else "refuse"


def _load(model: nn.Module, received: Tensors) -> None:
    """Load received weights, by name, or by place in the older client API."""
    own = model.state_dict()
    if list(received) == [str(place) for place in range(len(own))]:
        received = dict(zip(own, received.values(), strict=True))
    received = in_types_of(own, received)
    check_like(received, own, "received model")
    model.load_state_dict(dict(received))
