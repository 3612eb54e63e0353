"""Two runs compared: what got better or worse since, and what is within noise.

Cells are compared that both runs have: same scenario, defence, attack and kind of attacker. Where the batches attacked
are the same (same seed, data and target), decibels are subtracted batch by batch, which removes what is particular to
each (Student); else the two means are compared (Welch), and shares always are (Newcombe). A change counts if its
interval excludes zero at a confidence that holds for all readings of all cells together (Bonferroni), and is no
smaller than what matters: half a decibel, or one per cent of originals or labels. What an upload holds is computed,
not sampled: there, a decibel counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from scipy import stats

from fedseal.audit.cells import NEAR_PRIOR_DB, Cell, Row, Standing
from fedseal.audit.run import Run
from fedseal.core.errors import UsageError
from fedseal.metrics.intervals import FEWEST, Interval
from fedseal.metrics.scales import PSNR
from fedseal.metrics.shares import clustered_share
from fedseal.store.records import TrialRecord

Direction: TypeAlias = Literal["worse", "better", "same"]
Key: TypeAlias = tuple[str, str, str, bool]
"""Scenario, defence, attack, aware."""

CONFIDENCE = 0.95
"""That no change is reported where there is none, over a whole comparison."""


@dataclass(frozen=True)
class Reading:
    """A quantity of which more is worse.

    Attributes:
        name: in words.
        unit: that of the scale (`score`), or `share`.
        matters: the least difference worth reporting.
        of: its value in a trial; None where it has none.
    """

    name: str
    unit: Literal["score", "share"]
    matters: float
    of: Callable[[TrialRecord], float | None]


def _first(record: TrialRecord) -> float | None:
    """Return the share of originals that are first by the first similarity recorded: correlation, or shared words."""
    ranks = next(iter(record.ranks.values()), None)
    return None if not ranks else fmean(float(rank == 1) for rank in ranks)


READINGS: tuple[Reading, ...] = (
    Reading("likeness of what was rebuilt", "score", 0.5, lambda r: fmean(r.psnr) if r.psnr else None),
    Reading("originals picked out of strangers", "share", 0.01, _first),
    Reading("labels read", "share", 0.01, lambda r: None if r.label_chance is None else r.label_accuracy),
)


@dataclass(frozen=True)
class Change:
    """One reading of one cell, then and now.

    Attributes:
        reading: which.
        before, after: its means.
        difference: after minus before, with its interval; without one where batches are too few.
        paired: whether the same batches were attacked.
        direction: what it means.
        unit: of a score.
    """

    reading: Reading
    before: float
    after: float
    difference: Interval
    paired: bool
    direction: Direction
    unit: str = PSNR.unit


@dataclass(frozen=True)
class CellChange:
    """A cell that both runs have."""

    key: Key
    before: Cell
    after: Cell
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class RowChange:
    """A defence that both runs have.

    Attributes:
        scenario, defence: which.
        before, after: its standing then and now.
        cells: its cells.
        held: change of what its uploads hold for an ideal attacker, in dB; None where either is not known.
    """

    scenario: str
    defence: str
    before: Standing | None
    after: Standing | None
    cells: tuple[CellChange, ...]
    held: float | None

    @property
    def direction(self) -> Direction:
        """Worse if anything is; a level that moves while no reading does has crossed a threshold by noise."""
        directions = {change.direction for cell in self.cells for change in cell.changes}
        if self.held is not None and abs(self.held) > NEAR_PRIOR_DB:
            directions.add("worse" if self.held > 0 else "better")
        return "worse" if "worse" in directions else "better" if "better" in directions else "same"

    @property
    def telling(self) -> tuple[tuple[CellChange, Change], ...]:
        """The changes that count, the largest first."""
        found = [(cell, change) for cell in self.cells for change in cell.changes if change.direction != "same"]
        return tuple(sorted(found, key=lambda pair: -abs(pair[1].difference.mean) / pair[1].reading.matters))


@dataclass(frozen=True)
class Comparison:
    """What changed between two runs.

    Attributes:
        before, after: the runs' own words for themselves: command and date.
        rows: defences both have.
        new, gone: cells only one has.
        level: confidence of each single interval.
    """

    before: str
    after: str
    rows: tuple[RowChange, ...]
    new: tuple[Key, ...]
    gone: tuple[Key, ...]
    level: float

    @property
    def worse(self) -> tuple[RowChange, ...]:
        """Defences that got worse."""
        return tuple(row for row in self.rows if row.direction == "worse")

    @property
    def better(self) -> tuple[RowChange, ...]:
        """Defences that got better."""
        return tuple(row for row in self.rows if row.direction == "better")

    def sentence(self) -> str:
        """Return the comparison in a sentence."""
        if not self.worse and not self.better:
            return f"Nothing changed beyond noise in {len(self.rows)} defence(s) compared."
        parts = [f"{word} with {', '.join(row.defence for row in rows)}" for word, rows in
                 (("worse", self.worse), ("better", self.better)) if rows]  # fmt: skip
        return f"Since the baseline the risk is {'; '.join(parts)}."


def compare_runs(before: Run, after: Run) -> Comparison:
    """Compare a run with an earlier one; refuses two that share no cell."""
    old, new = _cells(before), _cells(after)
    shared = [key for key in new if key in old]
    if not shared:
        raise UsageError(
            f"{before.directory} and {after.directory} have no scenario, defence and attack in common.",
            hint="Compare runs of the same scenarios.",
        )
    level = 1 - (1 - CONFIDENCE) / (len(READINGS) * len(shared))
    same = _same_batches(before, after)
    changes: dict[tuple[str, str], list[CellChange]] = {}
    for key in shared:
        found = _changes(old[key], new[key], level, paired=key[0] in same)
        changes.setdefault(key[:2], []).append(CellChange(key, old[key], new[key], tuple(found)))
    rows = {(row.scenario, row.defence): row for row in before.verdict().rows}
    return Comparison(
        _words(before),
        _words(after),
        tuple(
            RowChange(*name, rows[name].standing, row.standing, tuple(changes[name]), _held(rows[name], row))
            for row in after.verdict().rows
            if (name := (row.scenario, row.defence)) in changes
        ),
        tuple(key for key in new if key not in old),
        tuple(key for key in old if key not in new),
        level,
    )


def _cells(run: Run) -> dict[Key, Cell]:
    cells = run.verdict().cells
    return {(c.scenario, c.defence, c.attack, c.aware): c for c in cells if c.succeeded}


def _words(run: Run) -> str:
    return f"{run.directory.name}, {run.ended or run.started}" if run.started else run.directory.name


def _same_batches(before: Run, after: Run) -> frozenset[str]:
    """Return the scenarios whose targets are the same images in both runs."""
    seeds = {scenario.name: (scenario.seed, scenario.client.batch_size) for scenario in before.scenarios}
    found = set()
    for scenario in after.scenarios:
        facts = [f"{scenario.name}: data (SHA-256)"]
        data = [[run.environment.get(fact) for fact in facts] for run in (before, after)]
        if seeds.get(scenario.name) == (scenario.seed, scenario.client.batch_size) and data[0] == data[1] != [None]:
            found.add(scenario.name)
    return frozenset(found)


def _changes(before: Cell, after: Cell, level: float, *, paired: bool) -> Iterable[Change]:
    for reading in READINGS:
        then, now = _values(before.succeeded, reading), _values(after.succeeded, reading)
        if not then or not now:
            continue
        both = sorted(set(then) & set(now))
        by_batch = paired and reading.unit == "score" and len(both) >= min(FEWEST, len(now))
        if reading.unit == "share":
            difference = _newcombe(list(then.values()), list(now.values()), level)
        elif by_batch:
            difference = _student([now[target] - then[target] for target in both], level)
        else:
            difference = _welch(list(then.values()), list(now.values()), level)
        means, direction = (fmean(then.values()), fmean(now.values())), _direction(difference, reading)
        yield Change(reading, *means, difference, by_batch, direction, after.scale.unit)


def _values(records: Sequence[TrialRecord], reading: Reading) -> Mapping[int, float]:
    values = {record.target: reading.of(record) for record in records}
    return {target: value for target, value in values.items() if value is not None and math.isfinite(value)}


def _student(differences: Sequence[float], level: float) -> Interval:
    """Return the mean of paired differences with Student's interval; without a change they are symmetric."""
    mean, n = fmean(differences), len(differences)
    if n < FEWEST:
        return Interval(mean, None, None, n, level)
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * stdev(differences) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, level)


def _welch(before: Sequence[float], after: Sequence[float], level: float) -> Interval:
    """Return the difference of two means with Welch's interval; without one below four values on either side."""
    difference, n = fmean(after) - fmean(before), min(len(before), len(after))
    if n < FEWEST:
        return Interval(difference, None, None, n, level)
    interval = stats.ttest_ind(after, before, equal_var=False).confidence_interval(level)
    low, high = float(interval.low), float(interval.high)
    if math.isnan(low) or math.isnan(high):  # both sides are constant
        low = high = difference
    return Interval(difference, low, high, n, level)


def _newcombe(before: Sequence[float], after: Sequence[float], level: float) -> Interval:
    """Return the difference of two shares by Newcombe's square-and-add of their Clopper-Pearson limits (1998).

    Batches count as the independent tries. Paired or not, it is wide where tries are few: four that all turn from no to
    yes are not yet a change among thirty readings.
    """
    then, now = (clustered_share([[value] for value in values], level=level, exact=True) for values in (before, after))
    difference, n = now.mean - then.mean, min(len(before), len(after))
    if n < FEWEST or None in (then.low, then.high, now.low, now.high):
        return Interval(difference, None, None, n, level)
    assert then.low is not None
    assert then.high is not None
    assert now.low is not None
    assert now.high is not None
    below = math.hypot(now.mean - now.low, then.high - then.mean)
    above = math.hypot(now.high - now.mean, then.mean - then.low)
    return Interval(difference, difference - below, difference + above, n, level)


def _direction(difference: Interval, reading: Reading) -> Direction:
    if difference.low is None or difference.high is None or abs(difference.mean) < reading.matters:
        return "same"
    return "worse" if difference.low > 0 else "better" if difference.high < 0 else "same"


def _held(before: Row, after: Row) -> float | None:
    then = None if before.ideal is None else before.ideal.psnr_db
    now = None if after.ideal is None else after.ideal.psnr_db
    return None if then is None or now is None else now - then
