"""What server and clients tell each other beside the arrays: the server's offer, the client's envelope, a refusal.

The client's travel in a config record named `fedseal`, the server's in a key of its strategy's own; who knows nothing
of them leaves them alone. So sealed and unsealed clients, and servers with and without `guard`, work together while a
federation is being upgraded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.observation import UpdateKind

ENVELOPE = "fedseal"
REFUSED = 451
"""Code of the error a refusing client answers with: unavailable for a reason of the client's own."""

Encoding: TypeAlias = Literal["weights", "wire"]
ENCODINGS: tuple[Encoding, ...] = ("weights", "wire")

_ROUND_KEYS = ("server-round", "server_round")
_COST = "cost-"
_ACCEPTS = "fedseal-accepts"


@dataclass(frozen=True)
class Envelope:
    """What a sealed reply says of itself. Nothing in it decides how far the reply moves the global model.

    Attributes:
        round: the server's number of the round it answers, from 1.
        encoding: how the update travels.
        defence: the spec that was applied.
        learning_rate: of the client's steps, None where it is not known.
        unit: whose presence the epsilon among the costs is about; None without one.
        costs: figures by name.
        kind: a weight change; clients of fedseal 0.1 also sent gradients.
    """

    round: int
    encoding: Encoding
    defence: str
    learning_rate: float | None = None
    unit: str | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    kind: UpdateKind = "delta"

    def to_record(self) -> ConfigRecord:
        """Return the envelope as Flower carries it."""
        values: dict[str, Any] = {"round": self.round, "encoding": self.encoding, "defence": self.defence}
        if self.learning_rate is not None:
            values["learning-rate"] = self.learning_rate
        if self.unit is not None:
            values["unit"] = self.unit
        values |= {f"{_COST}{name}": float(value) for name, value in self.costs.items()}
        return ConfigRecord(values)

    @staticmethod
    def from_content(content: RecordDict) -> Envelope | None:
        """Return the envelope of a reply, None if it has none; one that makes no sense is refused."""
        record = content.config_records.get(ENVELOPE)
        if record is None:
            return None
        number, encoding, defence = record.get("round"), record.get("encoding"), record.get("defence")
        rate, unit, kind = record.get("learning-rate"), record.get("unit"), record.get("kind", "delta")
        costs = {name.removeprefix(_COST): value for name, value in record.items() if name.startswith(_COST)}
        if (
            type(number) is not int
            or encoding not in ENCODINGS
            or not isinstance(defence, str)
            or not (rate is None or (isinstance(rate, float) and 0 < rate < math.inf))
            or unit not in (None, "update", "sample")
            or kind not in ("gradient", "delta")
            or not all(isinstance(value, float) and math.isfinite(value) for value in costs.values())
        ):
            raise InputError("the reply's envelope makes no sense.", hint="Run one version on clients and server.")
        return Envelope(
            number,
            encoding,
            defence,
            rate,
            unit,
            cast(dict[str, float], costs),
            cast(UpdateKind, kind),
        )


def offer(content: RecordDict) -> None:
    """Write into a train message which encodings a guarded server reads.

    That goes into the record the strategy sends anyway: Flower's clipping mods refuse messages with a second one.
    """
    if not content.config_records:
        content.config_records[ENVELOPE] = ConfigRecord()
    next(iter(content.config_records.values()))[_ACCEPTS] = " ".join(ENCODINGS)


def chosen_encoding(asked: object, message: Message, *, legacy: bool = False) -> Encoding:
    """Return how an update is to travel: as asked for, or the most compact way the server says it reads.

    Where the server has clients clip, by a mod of Flower's that may come after, that mod needs weights.
    """
    if asked is not None and asked not in ENCODINGS:
        raise UsageError(f"there is no encoding {asked!r}.", hint="Use 'weights' or 'wire'.")
    if legacy:
        if asked == "wire":
            raise UsageError("the older client API cannot carry payloads.", hint="Use encoding='weights'.")
        return "weights"
    if asked is not None:
        return asked
    records = message.content.config_records.values()
    accepted = next((record[_ACCEPTS] for record in records if _ACCEPTS in record), None)
    clips = any(KEY_CLIPPING_NORM in record for record in records)
    return "wire" if isinstance(accepted, str) and "wire" in accepted.split() and not clips else "weights"


def refusal(message: Message, error: FedsealError) -> Message:
    """Return the answer of a client that does not take part, with the reason in one line."""
    return Message(Error(REFUSED, " ".join(str(error).split())), reply_to=message)


def server_round(message: Message, default: int) -> int:
    """Return the server's number of the round a message belongs to, from 1; one that cannot be is refused."""
    for record in message.content.config_records.values():
        for key in _ROUND_KEYS:
            value: Any = record.get(key)
            if type(value) is int:
                if not 0 <= value < 1 << 31:
                    raise InputError(f"the server's round number {value} is impossible.", hint="They count from 1.")
                return value
    return default
