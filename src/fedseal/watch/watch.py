"""A watch at work for one client: when it reads, what follows, and who is told."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedseal.audit.levels import RiskLevel
from fedseal.core.errors import FedsealError
from fedseal.core.seeds import generator
from fedseal.watch.export import Sink
from fedseal.watch.readings import Reading, Watched, read
from fedseal.watch.rules import Action, Rule, WatchRules

_LOG = logging.getLogger("fedseal.watch")


@dataclass(frozen=True)
class Report:
    """What a watch found of one update.

    Attributes:
        readings: in the order asked for.
        action: the gravest that a rule calls for; None for none.
        rule: that called for it.
    """

    readings: tuple[Reading, ...]
    action: Action | None = None
    rule: Rule | None = None

    @property
    def figures(self) -> dict[str, float]:
        """The readings as metrics."""
        found = {f"fedseal-{one.kind}": one.value for one in self.readings if one.value is not None}
        levels = {f"fedseal-{one.kind}-level": float(one.level) for one in self.readings if one.value is not None}
        counts = {f"fedseal-{one.kind}-images": float(one.images) for one in self.readings if one.images is not None}
        return found | levels | counts | {"fedseal-watch-seconds": sum(one.seconds for one in self.readings)}

    @property
    def level(self) -> RiskLevel:
        """The worst of all readings."""
        return max((one.level for one in self.readings), default=RiskLevel.LOW)


@dataclass(frozen=True)
class Pace:
    """What a client keeps of its watch from round to round.

    Attributes:
        round: by its own count, from 1.
        last: round of the last reading; 0 before the first.
        reading: seconds spent on readings.
        latest: seconds the last of them took.
        working: seconds spent on rounds.
        extra: deviation of the noise that is added by a rule.
    """

    round: int = 0
    last: int = 0
    reading: float = 0.0
    latest: float = 0.0
    working: float = 0.0
    extra: float = 0.0

    def worked(self, seconds: float) -> Pace:
        """Return the pace after another round."""
        return replace(self, round=self.round + 1, working=self.working + seconds)

    def read(self, seconds: float) -> Pace:
        """Return the pace after a reading in this round."""
        return replace(self, last=self.round, reading=self.reading + seconds, latest=seconds)


class Watch:
    """Reads updates when it is their turn, and says what follows.

    Args:
        rules: how.
        sinks: who is told.
        federation, client: whose updates, for those who are told.
        source: draws who is read; the operating system's if left out.
    """

    def __init__(
        self,
        rules: WatchRules,
        sinks: Sequence[Sink] = (),
        *,
        federation: str = "default",
        client: str = "client",
        source: torch.Generator | None = None,
    ) -> None:
        self.rules = rules
        self._sinks = sinks
        self._federation = federation
        self._client = client
        self._source = source or generator(None)

    def is_due(self, pace: Pace) -> bool:
        """Return whether the update of this round is read: it is time, rounds pay for another reading, and the draw.

        The first reading is made at once, and paid off later.
        """
        unpaid = pace.reading + pace.latest > self.rules.overhead * pace.working
        if pace.last and (pace.round - pace.last < self.rules.every or unpaid):
            return False
        return self.rules.share >= 1 or float(torch.rand((), generator=self._source)) < self.rules.share

    def look(self, watched: Watched, round_number: int) -> Report:
        """Read an update, tell the sinks, and return what follows from it."""
        found = tuple(read(watched, self.rules.readings, images=self.rules.images, seed=round_number))
        report = Report(found)
        called = [rule for rule in self.rules.rules if _meets(rule, found)]
        if called:
            worst = max(called, key=lambda rule: ("warn", "raise sigma", "refuse").index(rule.then))
            report = Report(found, worst.then, worst)
            _LOG.warning("round %d: %s calls for %s: %s", round_number, worst.condition, worst.then, _words(found))
        for one in found:
            if one.value is None:
                _LOG.info("round %d: %s could not be read: %s", round_number, one.kind, one.reason)
        self.tell(report, round_number)
        return report

    def tell(self, report: Report, round_number: int) -> None:
        """Hand the figures to every sink; one that fails does not stop a round."""
        for sink in self._sinks:
            try:
                sink(report.figures, round_number=round_number, federation=self._federation, client=self._client)
            except FedsealError as error:
                _LOG.warning("readings could not be exported: %s", error)


def _meets(rule: Rule, found: Sequence[Reading]) -> bool:
    return any(
        rule.holds(one.value, one.level)
        for one in found
        if one.value is not None and rule.subject in ("reading", one.kind)
    )


def _words(found: Sequence[Reading]) -> str:
    return ", ".join(f"{one.kind} {one.value:.3g} ({one.level.words})" for one in found if one.value is not None)
