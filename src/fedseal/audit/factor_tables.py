"""What a run says of each factor: its levels side by side, under the same values of all others, and one sentence.

Under several draws of weights, the highest and the lowest level are compared draw by draw. With one draw they are told
apart by their intervals alone: where these overlap, no difference is shown, which does not mean that there is none. Two
95 % intervals of equal levels miss each other in about 0.6 % of pairs, differences by draws miss zero in 5 %, and k
levels have k (k - 1) / 2 pairs: of many levels, the highest and the lowest differ by chance more often. Every level
carries the reading of the verdict that decided it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedseal.audit.cells import Cell, Row
from fedseal.audit.run import Run
from fedseal.audit.scenario import Scenario
from fedseal.metrics.intervals import FEWEST, Interval, mean_interval
from fedseal.metrics.scales import PSNR, Scale


@dataclass(frozen=True)
class LevelResult:
    """What came out at one level.

    Attributes:
        level: in words.
        defence: spec.
        scenario: whose trials.
        row: the verdict's; None if nothing has run.
    """

    level: str
    defence: str
    scenario: str
    row: Row | None

    @property
    def cell(self) -> Cell | None:
        """The attack that recovered most."""
        done = [cell for cell in self.row.cells if cell.psnr is not None] if self.row else []
        return max(done, key=lambda cell: cell.psnr.mean if cell.psnr else 0.0, default=None)

    @property
    def psnr(self) -> Interval | None:
        """Mean score of that attack over targets, or over weight seeds, with its interval."""
        return self.cell.psnr if self.cell else None

    @property
    def draws(self) -> dict[int, float]:
        """Mean score of that attack under each draw of weights."""
        groups: dict[int, list[float]] = {}
        for record in self.cell.succeeded if self.cell else ():
            groups.setdefault(record.weight_seed, []).append(fmean(record.psnr))
        return {seed: fmean(values) for seed, values in groups.items()}

    @property
    def scale(self) -> Scale:
        """What it is measured in."""
        return self.cell.scale if self.cell else PSNR

    def above(self, other: LevelResult) -> Interval | None:
        """Return by how much its score is higher, draw by draw; None where too few draws of weights are shared."""
        mine, theirs = self.draws, other.draws
        differences = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
        return mean_interval(differences) if len(differences) >= FEWEST else None

    @property
    def reading(self) -> str:
        """The verdict's standing of the row, and what decided it."""
        if self.row is None or self.row.standing is None or self.row.worst is None:
            return "not judged"
        decided = self.row.worst.decided
        return self.row.standing.words + (f" ({decided})" if decided else "")

    def data(self) -> dict[str, Any]:
        """Return it as plain values."""
        psnr, chance = self.psnr, self.cell.baseline_psnr if self.cell else None
        return {
            "level": self.level,
            "defence": self.defence,
            "scenario": self.scenario,
            "attack": self.cell.attack if self.cell else None,
            "psnr": None if psnr is None else psnr.mean,
            "low": None if psnr is None else psnr.low,
            "high": None if psnr is None else psnr.high,
            "unit": self.scale.unit,
            "n": 0 if psnr is None else psnr.n,
            "chance": chance,
            "reading": self.reading,
        }


@dataclass(frozen=True)
class FactorTable:
    """One factor under one defence, all other factors at fixed levels.

    Attributes:
        factor: its name.
        defence: spec; None where levels have defences of their own.
        beside: levels of the other factors that vary in the run, by name.
        results: one per level, in the plan's order.
    """

    factor: str
    defence: str | None
    beside: dict[str, str]
    results: tuple[LevelResult, ...]

    @property
    def scale(self) -> Scale:
        """What its levels are measured in."""
        return next((result.scale for result in self.results if result.cell), PSNR)

    @property
    def surroundings(self) -> str:
        """Defence and other factors, in words."""
        under = "each level's own defence" if self.defence is None else f"defence {self.defence}"
        return ", ".join([under, *(f"{name} {level}" for name, level in self.beside.items())])

    def sentence(self) -> str:
        """Return what the table says of the factor, with intervals and readings."""
        done = [(result, result.psnr) for result in self.results]
        known = [(result, psnr) for result, psnr in done if psnr is not None]
        if len(known) < 2:
            return f"{self.factor}: too few levels have ended to compare."
        most, high = max(known, key=lambda one: one[1].mean)
        least, low = min(reversed(known), key=lambda one: one[1].mean)
        first, last = _words(most, high), _words(least, low)
        if high.low is None or low.high is None:
            return f"{self.factor}: not decided, too few batches for an interval: {first} and {last}."
        apart = most.above(least)
        if apart is None or apart.low is None:
            matters, by = high.low > low.high, "their intervals overlap"
        else:
            matters, by = apart.low > 0, f"{_signed(apart)} {most.scale.unit} under the same draws of weights"
        if matters:
            told = "" if apart is None else f": {by}"
            return f"{self.factor} matters: most leaks at {first}, least at {last}{told}."
        return f"{self.factor}: no difference is shown between {first} and {last}: {by}."


def factor_tables(run: Run) -> tuple[FactorTable, ...]:
    """Return the tables of a run whose scenarios came of factors; none for any other."""
    rows = {(row.scenario, row.defence): row for row in run.verdict().rows}
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[Scenario]] = {}
    for scenario in run.scenarios:
        for factor in scenario.levels:
            beside = tuple((name, words) for name, words in scenario.levels.items() if name != factor)
            found.setdefault((factor, beside), []).append(scenario)
    tables = []
    for factor in dict.fromkeys(factor for factor, _ in found):
        for (name, beside), scenarios in found.items():
            if name == factor:
                tables += [
                    FactorTable(factor, defence, dict(beside), tuple(results))
                    for defence, results in _levels(factor, scenarios, rows).items()
                ]
    return tuple(table for table in tables if len(table.results) > 1)


def _levels(
    factor: str, scenarios: Sequence[Scenario], rows: Mapping[tuple[str, str], Row]
) -> dict[str | None, list[LevelResult]]:
    """Return the levels' results by defence, or all together where levels differ in their defences."""
    found: dict[str | None, list[LevelResult]] = {}
    varies = len({scenario.defences for scenario in scenarios}) > 1
    for one in scenarios:
        for defence in one.defences if varies else dict.fromkeys(one.with_control):
            level = one.levels[factor] + (f", {defence}" if varies and len(one.defences) > 1 else "")
            result = LevelResult(level, defence, one.name, rows.get((one.name, defence)))
            found.setdefault(None if varies else defence, []).append(result)
    return found


def _signed(interval: Interval) -> str:
    return f"{interval.mean:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]"


def _words(result: LevelResult, psnr: Interval) -> str:
    ends = "" if psnr.low is None else f" [{psnr.low:.1f}, {psnr.high:.1f}]"
    score = f"{result.scale.title} {psnr.mean:.1f} {result.scale.unit}"
    return f"{result.level} ({score}{ends}, n = {psnr.n}, {result.reading})"
