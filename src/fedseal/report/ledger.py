"""What the attacker knew: the trials' ledgers of a scenario merged into one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedseal.store.records import TrialRecord


@dataclass(frozen=True)
class Given:
    """What was given, and against which defences where that is not the same for all."""

    words: str
    defences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Capability:
    """A line of the ledger.

    Attributes:
        name: of the capability.
        naive, aware: what each kind of attacker was given; empty where there was no such attacker.
    """

    name: str
    naive: tuple[Given, ...]
    aware: tuple[Given, ...]

    @property
    def same(self) -> bool:
        """Whether both kinds of attacker were given the same, or there was only one kind."""
        return self.naive == self.aware or not self.naive or not self.aware

    @property
    def given(self) -> tuple[Given, ...]:
        """What was given where both are the same."""
        return self.naive or self.aware


def merge_ledgers(records: Sequence[TrialRecord]) -> tuple[Capability, ...]:
    """Return the capabilities of a scenario's trials, in ledger order."""
    known = [record for record in records if record.knowledge]
    names = dict.fromkeys(name for record in known for name in record.knowledge)
    naive, aware = ([r for r in known if r.aware is kind] for kind in (False, True))
    return tuple(Capability(name, _given(name, naive), _given(name, aware)) for name in names)


def _given(name: str, records: Sequence[TrialRecord]) -> tuple[Given, ...]:
    grouped: dict[str, dict[str, None]] = {}
    for record in records:
        grouped.setdefault(record.knowledge.get(name, "not stated"), {})[record.defence] = None
    if len(grouped) == 1:
        return (Given(next(iter(grouped))),)
    return tuple(Given(words, tuple(defences)) for words, defences in grouped.items())
