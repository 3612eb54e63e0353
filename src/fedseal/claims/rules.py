"""How a claim is decided: what must hold of the values' confidence intervals, and what would contradict it.

A rule is one of `above`, `falls`, `rises`, `flat`, `peak`, `over`, `under` and `near`. Where several intervals must
hold together each keeps its own level (an intersection-union test: all of them are needed); where one of several
suffices (`peak`) they share it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from fedseal.claims.samples import Samples
from fedseal.core.config_file import Texts
from fedseal.metrics.intervals import Interval

LEVEL = 0.95


class Standing(StrEnum):
    """What came of a claim."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Contrast:
    """A quantity that a rule looked at, with its interval and whether it is as claimed (None: cannot be told)."""

    what: str
    interval: Interval
    holds: bool | None

    @property
    def words(self) -> str:
        """The quantity with its interval."""
        found = self.interval
        ends = "no interval" if found.is_degenerate else f"{found.low:.3g} to {found.high:.3g}"
        return f"{self.what}: {found.mean:.3g} ({ends}, n = {found.n})"


@dataclass(frozen=True)
class Decision:
    """What a rule came to, with all it looked at."""

    standing: Standing
    contrasts: tuple[Contrast, ...]


class Rule(BaseModel):
    """What a claim says of an experiment's arms."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def decide(self, samples: Samples) -> Decision:
        """Return whether the values bear it out."""

    @property
    @abstractmethod
    def arms(self) -> tuple[str, ...]:
        """The arms it needs."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What must hold, in words."""


class Above(Rule):
    """One arm has larger values than each of others, by at least `by`."""

    above: str
    than: Texts
    by: float = 0.0

    def decide(self, samples: Samples) -> Decision:
        """Every difference must be above `by`."""
        return _all([_greater(f"{self.above} - {o}", samples.difference(self.above, o), self.by) for o in self.than])

    @property
    def arms(self) -> tuple[str, ...]:
        """See `Rule`."""
        return (self.above, *self.than)

    @property
    def words(self) -> str:
        """See `Rule`."""
        margin = (
            f" by more than {self.by:g}" if self.by > 0 else f", or less than {-self.by:g} below" if self.by else ""
        )
        return f"{self.above} is above {_listed(self.than)}{margin}"


class Falls(Rule):
    """Values fall from arm to arm."""

    falls: Texts = Field(min_length=2)

    def decide(self, samples: Samples) -> Decision:
        """Ask the line through them to fall."""
        slope = samples.slope(self.falls)
        return _all([_less(f"{self.falls[0]} to {self.falls[-1]}", slope, 0.0)])

    @property
    def arms(self) -> tuple[str, ...]:
        """See `Rule`."""
        return self.falls

    @property
    def words(self) -> str:
        """See `Rule`."""
        return f"it falls over {_listed(self.falls)}"


class Rises(Rule):
    """Values rise from arm to arm."""

    rises: Texts = Field(min_length=2)

    def decide(self, samples: Samples) -> Decision:
        """Ask the line through them to rise."""
        slope = samples.slope(self.rises)
        return _all([_greater(f"{self.rises[0]} to {self.rises[-1]}", slope, 0.0)])

    @property
    def arms(self) -> tuple[str, ...]:
        """See `Rule`."""
        return self.rises

    @property
    def words(self) -> str:
        """See `Rule`."""
        return f"it rises over {_listed(self.rises)}"


class Flat(Rule):
    """Arms hardly differ: each from the first by less than `within`."""

    flat: Texts = Field(min_length=2)
    within: float = Field(gt=0)

    def decide(self, samples: Samples) -> Decision:
        """Every difference from the first arm must lie inside, with its interval."""
        first, *others = self.flat
        found = [(f"{o} - {first}", samples.difference(o, first)) for o in others]
        return _all([Contrast(what, interval, _inside(interval, self.within)) for what, interval in found])

    @property
    def arms(self) -> tuple[str, ...]:
        """See `Rule`."""
        return self.flat

    @property
    def words(self) -> str:
        """See `Rule`."""
        return f"{_listed(self.flat)} differ by less than {self.within:g}"


class Peak(Rule):
    """Some arm between the first and the last is above both."""

    peak: Texts = Field(min_length=3)

    def decide(self, samples: Samples) -> Decision:
        """One inner arm must be above both ends, at a level that the inner arms share; an end above all contradicts."""
        first, *inner, last = self.peak
        level = 1 - (1 - LEVEL) / len(inner)
        best = max(inner, key=lambda arm: samples.mean(arm).mean)
        ends = [_greater(f"{best} - {end}", samples.difference(best, end, level=level), 0.0) for end in (first, last)]
        if all(one.holds for one in ends):
            return Decision(Standing.REPRODUCED, tuple(ends))
        for end in (first, last):
            if all(_low(samples.difference(end, arm), 0.0) for arm in inner):
                return Decision(Standing.CONTRADICTED, tuple(ends))
        return Decision(Standing.UNDECIDED, tuple(ends))

    @property
    def arms(self) -> tuple[str, ...]:
        """See `Rule`."""
        return self.peak

    @property
    def words(self) -> str:
        """See `Rule`."""
        return f"over {_listed(self.peak)} it rises and then falls"


class Over(Rule):
    """Arms have values above a number."""

    over: float
    of: Texts = Field(min_length=1)

    def decide(self, samples: Samples) -> Decision:
        """Every mean must be above it."""
        return _all([_greater(arm, samples.mean(arm), self.over) for arm in self.of])

    @property
    def arms(self) -> tuple[str, ...]:
        """See `Rule`."""
        return self.of

    @property
    def words(self) -> str:
        """See `Rule`."""
        return f"{_listed(self.of)}: above {self.over:g}"


class Under(Rule):
    """Arms have values below a number."""

    under: float
    of: Texts = Field(min_length=1)

    def decide(self, samples: Samples) -> Decision:
        """Every mean must be below it."""
        return _all([_less(arm, samples.mean(arm), self.under) for arm in self.of])

    @property
    def arms(self) -> tuple[str, ...]:
        """See `Rule`."""
        return self.of

    @property
    def words(self) -> str:
        """See `Rule`."""
        return f"{_listed(self.of)}: below {self.under:g}"


class Near(Rule):
    """Arms have published values, give or take."""

    near: dict[str, float] = Field(min_length=1)
    within: float = Field(gt=0)

    def decide(self, samples: Samples) -> Decision:
        """Every mean must lie inside of the tolerance, with its interval; one that lies outside contradicts."""
        return _all([Contrast(arm, samples.mean(arm), self._is_near(arm, samples.mean(arm))) for arm in self.near])

    def _is_near(self, arm: str, found: Interval) -> bool | None:
        return _inside(
            Interval(
                found.mean - self.near[arm],
                None if found.low is None else found.low - self.near[arm],
                None if found.high is None else found.high - self.near[arm],
                found.n,
            ),
            self.within,
        )

    @property
    def arms(self) -> tuple[str, ...]:
        """See `Rule`."""
        return tuple(self.near)

    @property
    def words(self) -> str:
        """See `Rule`."""
        said = ", ".join(f"{arm} {value:g}" for arm, value in self.near.items())
        return f"within {self.within:g} of {said}"


_RULES: tuple[type[Rule], ...] = (Above, Falls, Rises, Flat, Peak, Over, Under, Near)


def _which(value: Any) -> str | None:
    if isinstance(value, Rule):
        return type(value).__name__
    keys = set(value) if isinstance(value, dict) else set()
    return next((rule.__name__ for rule in _RULES if rule.__name__.lower() in keys), None)


AnyRule = Annotated[
    Annotated[Above, Tag("Above")]
    | Annotated[Falls, Tag("Falls")]
    | Annotated[Rises, Tag("Rises")]
    | Annotated[Flat, Tag("Flat")]
    | Annotated[Peak, Tag("Peak")]
    | Annotated[Over, Tag("Over")]
    | Annotated[Under, Tag("Under")]
    | Annotated[Near, Tag("Near")],
    Discriminator(_which),
]
"""A rule, told by the key that only it has."""


def combine(decisions: Sequence[Standing]) -> Standing:
    """Return what several rules that must hold together come to."""
    if Standing.CONTRADICTED in decisions:
        return Standing.CONTRADICTED
    every = bool(decisions) and all(one is Standing.REPRODUCED for one in decisions)
    return Standing.REPRODUCED if every else Standing.UNDECIDED


def _all(contrasts: Sequence[Contrast]) -> Decision:
    if any(one.holds is False for one in contrasts):
        return Decision(Standing.CONTRADICTED, tuple(contrasts))
    held = all(one.holds for one in contrasts)
    return Decision(Standing.REPRODUCED if held else Standing.UNDECIDED, tuple(contrasts))


def _greater(what: str, found: Interval, number: float) -> Contrast:
    return Contrast(what, found, True if _low(found, number) else False if _high(found, number) else None)


def _less(what: str, found: Interval, number: float) -> Contrast:
    return Contrast(what, found, True if _high(found, number) else False if _low(found, number) else None)


def _low(found: Interval, number: float) -> bool:
    """Return whether all of an interval is above a number."""
    return found.low is not None and found.low > number


def _high(found: Interval, number: float) -> bool:
    return found.high is not None and found.high < number


def _inside(found: Interval, reach: float) -> bool | None:
    if found.low is None or found.high is None:
        return None
    if -reach < found.low and found.high < reach:
        return True
    return False if found.low > reach or found.high < -reach else None


def _listed(arms: Sequence[str]) -> str:
    return ", ".join(arms)
