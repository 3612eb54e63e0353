"""Entries that each carry the hash of the one before: what is changed or taken out later shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedseal.core.errors import InputError

GENESIS = hashlib.sha256(b"fedseal site ledger").hexdigest()
"""What the first entry carries in place of a hash before it."""


@dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    Attributes:
        number: from 1, without gaps.
        body: what happened, as JSON.
        previous: hash of the entry before.
        hash: of number, body and `previous`.
    """

    number: int
    body: Mapping[str, Any]
    previous: str
    hash: str

    @staticmethod
    def following(last: Entry | None, body: Mapping[str, Any]) -> Entry:
        """Return the entry that comes after `last`."""
        number, previous = (1, GENESIS) if last is None else (last.number + 1, last.hash)
        return Entry(number, body, previous, _hash(number, body, previous))

    @property
    def is_sound(self) -> bool:
        """Whether the hash is that of the contents."""
        return self.hash == _hash(self.number, self.body, self.previous)

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as JSON has it."""
        return {"number": self.number, "body": dict(self.body), "previous": self.previous, "hash": self.hash}


def canonical(body: Mapping[str, Any]) -> str:
    """Return the one way a body is written; infinity and NaN have none."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def check_chain(entries: Iterable[Entry], what: str) -> Entry | None:
    """Refuse a chain of which a link is edited, missing or out of order, and return its last entry."""
    last: Entry | None = None
    for entry in entries:
        expected = 1 if last is None else last.number + 1
        if entry.number != expected:
            raise InputError(f"{what}: entry {expected} is missing; entry {entry.number} follows instead.")
        if entry.previous != (GENESIS if last is None else last.hash) or not entry.is_sound:
            raise InputError(f"{what}: entry {entry.number} was changed after it had been written.")
        last = entry
    return last


def check_extends(entries: Sequence[Entry], number: int, digest: str, what: str) -> None:
    """Refuse a chain that does not hold the entry of that number and hash: its end, or all of it, was replaced."""
    if number == 0:
        return
    if len(entries) < number:
        raise InputError(f"{what}: it ends at entry {len(entries)} and once had {number}: entries were deleted.")
    if entries[number - 1].hash != digest:
        raise InputError(f"{what}: entry {number} is not the one that was written: the ledger was replaced.")


def _hash(number: int, body: Mapping[str, Any], previous: str) -> str:
    return hashlib.sha256(f"{number}|{previous}|{canonical(body)}".encode()).hexdigest()
