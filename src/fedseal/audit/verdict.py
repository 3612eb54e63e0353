"""From trial records to a verdict: what was found, who was singled out, what the update holds, what is proven.

A leak is a leak whatever the other readings say, and its level is the worst of found (FedLeak's 20 / 15 / 10 dB, where
an attack reliably beats the guesses an attacker can make), singled out (medium, high from half of the originals), the
worst victim (the level of the best recovered image that no chance explains) and labels (medium). Without a leak the
level is low only if the update holds nothing: by the ideal reading, within a decibel of the prior alone, or by proof.
All else is no verdict: `not shown`, `no power`, `too few`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, TypeAlias

from fedseal.audit.evidence import (
    Chance,
    Labels,
    Victims,
    against_chance,
    by_seed,
    recovered_labels,
    singled_out,
    worst_victims,
)
from fedseal.audit.levels import RiskLevel, State, level_of
from fedseal.information.proven import ProvenReading
from fedseal.metrics.intervals import FEWEST, Interval
from fedseal.metrics.picked import Picked
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

Decider: TypeAlias = Literal["found", "singled out", "worst victim", "labels", "ideal", "proven"]
"""The reading that decided a cell."""

Standing: TypeAlias = RiskLevel | State
"""What is shown of a cell, a defence or a run: its level, or the state that has none."""

NEAR_PRIOR_DB = 1.0
"""An update that lets an ideal attacker gain no more than this over the prior alone holds nothing to speak of."""

Proofs: TypeAlias = Mapping[tuple[str, str], ProvenReading]
"""What is proven, by scenario and defence."""


@dataclass(frozen=True)
class Ideal:
    """What the uploads of a defence hold, over the targets that were read.

    Attributes:
        psnr_db: mean of the ideal PSNR; None where it could not be computed for every target read.
        best_db: of the target whose upload holds most.
        prior_db: mean of the prior alone.
        gain_db: the most that an upload adds to the prior, its numerical error included.
        reason: why there is no figure; empty if there is one.
        records: the readings themselves.
    """

    psnr_db: float | None
    best_db: float | None
    prior_db: float | None
    gain_db: float | None
    reason: str
    records: tuple[ReadingRecord, ...]

    @property
    def is_low(self) -> bool:
        """Whether no upload holds anything to speak of."""
        return self.gain_db is not None and self.gain_db <= NEAR_PRIOR_DB

    @property
    def level(self) -> RiskLevel | None:
        """The level an ideal attacker would reach; None where nobody can say."""
        if self.is_low:
            return RiskLevel.LOW
        return None if self.best_db is None else level_of(self.best_db)


@dataclass(frozen=True)
class Cell:
    """All trials of one attack, by one kind of attacker, on one defence in one scenario.

    Attributes:
        scenario, defence, attack, aware: which cell.
        records: all its trials, failed and refused ones too.
        psnr: mean over trials with its interval; None if no trial succeeded.
        best_psnr: the same with replacement ("attacker-best").
        ssim: as psnr.
        lpips: as psnr; None without weights.
        chance: the strongest guess an attacker can make, and the excess over it; None where none is known.
        victims: single images recovered.
        picked: how often originals were picked out of strangers; None where these were too few.
        labels: how well labels were recovered; None where they were given.
        ideal: what the uploads hold; None where it was not computed.
        proven: what no attacker exceeds; None where nothing is.
        leaks: the level by each reading of the trials that shows a leak.
        control: whether it is the undefended control of an audit that was not asked for it: it is shown, not judged.
        state: what can be said; None if no trial succeeded.
        level: the risk, where the state has one.
        decided: the reading that decided.
    """

    scenario: str
    defence: str
    attack: str
    aware: bool
    records: tuple[TrialRecord, ...]
    psnr: Interval | None = None
    best_psnr: Interval | None = None
    ssim: Interval | None = None
    lpips: Interval | None = None
    chance: Chance | None = None
    victims: Victims | None = None
    picked: Picked | None = None
    labels: Labels | None = None
    ideal: Ideal | None = None
    proven: ProvenReading | None = None
    leaks: tuple[tuple[Decider, RiskLevel], ...] = ()
    control: bool = False
    state: State | None = None
    level: RiskLevel | None = None
    decided: Decider | None = None

    @property
    def failed(self) -> tuple[TrialRecord, ...]:
        """Trials that ran and broke."""
        return tuple(r for r in self.records if r.status == "failed")

    @property
    def refused(self) -> TrialRecord | None:
        """A trial the set-up does not allow, if any."""
        return next((r for r in self.records if r.status == "refused"), None)

    @property
    def succeeded(self) -> tuple[TrialRecord, ...]:
        """Trials with scores."""
        return tuple(r for r in self.records if r.status == "ok")

    @property
    def baseline(self) -> str | None:
        """Name of the strongest guess an attacker can make."""
        return None if self.chance is None else self.chance.name

    @property
    def baseline_psnr(self) -> float | None:
        """Its mean PSNR."""
        return None if self.chance is None else self.chance.psnr

    @property
    def excess(self) -> Interval | None:
        """Mean paired difference to it."""
        return None if self.chance is None else self.chance.excess

    @property
    def max_psnr(self) -> float | None:
        """PSNR of the best recovered single image."""
        return None if self.victims is None else self.victims.best_psnr

    @property
    def attack_failed(self) -> bool:
        """Whether the attack showed nothing and did far worse than a guess."""
        return not self.leaks and self.chance is not None and self.chance.attack_failed

    @property
    def alarm(self) -> RiskLevel | None:
        """The worst leak seen, also among too few trials: what `--fail-on` judges."""
        return max((level for _, level in self.leaks), default=self.level)

    @property
    def standing(self) -> Standing | None:
        """The level, or the state where it has none; None if nothing ran."""
        return self.level if self.level is not None else self.state

    @property
    def seconds(self) -> float:
        """Processor time of its attacks."""
        return sum(record.seconds for record in self.records)

    @property
    def severity(self) -> tuple[int, int, float]:
        """Order from good to bad news."""
        gravity = -1 if self.state is None else self.state.gravity
        return gravity, int(self.level or 0), self.psnr.mean if self.psnr else float("-inf")


@dataclass(frozen=True)
class Row:
    """A defence in a scenario, judged by its worst cell.

    Attributes:
        scenario, defence: which row.
        cells: one per attack and kind of attacker.
        worst: the cell that counts; None if nothing ran.
    """

    scenario: str
    defence: str
    cells: tuple[Cell, ...]
    worst: Cell | None

    @property
    def level(self) -> RiskLevel | None:
        """The risk of the worst cell, where its state has one."""
        return self.worst.level if self.worst else None

    @property
    def state(self) -> State | None:
        """What can be said of the defence."""
        return self.worst.state if self.worst else None

    @property
    def control(self) -> bool:
        """Whether it is the undefended control of an audit that was not asked for it."""
        return any(cell.control for cell in self.cells)

    @property
    def standing(self) -> Standing | None:
        """The worst cell's."""
        return self.worst.standing if self.worst else None

    @property
    def ideal(self) -> Ideal | None:
        """What its uploads hold."""
        return next((cell.ideal for cell in self.cells if cell.ideal is not None), None)

    @property
    def proven(self) -> ProvenReading | None:
        """What no attacker exceeds."""
        return next((cell.proven for cell in self.cells if cell.proven is not None), None)

    @property
    def seconds(self) -> float:
        """Processor time of all its attacks."""
        return sum(cell.seconds for cell in self.cells)


@dataclass(frozen=True)
class Verdict:
    """What an audit says."""

    rows: tuple[Row, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells of all rows."""
        return tuple(cell for row in self.rows for cell in row.cells)

    @property
    def failed(self) -> int:
        """Number of trials that broke."""
        return sum(len(cell.failed) for cell in self.cells)

    @property
    def level(self) -> RiskLevel | None:
        """The worst level over all rows that were asked for."""
        return max((row.level for row in self.rows if row.level is not None and not row.control), default=None)

    @property
    def standing(self) -> Standing | None:
        """The worst row's; a leak is worse than anything that is not known."""
        rows = [row for row in self.judged if not row.control]
        return max(rows, key=row_severity).standing if rows else None

    @property
    def judged(self) -> tuple[Row, ...]:
        """Rows of which something can be said, if only that it is not known."""
        return tuple(row for row in self.rows if row.state is not None)

    @property
    def unsettled(self) -> tuple[Row, ...]:
        """Rows whose state is neither a leak nor low."""
        return tuple(row for row in self.judged if row.state and not row.state.settled and not row.control)

    def fails(self, limit: RiskLevel, *, strict: bool = False) -> bool:
        """Return whether any cell fails a limit, see `cell_fails`."""
        return any(cell_fails(cell, limit, strict=strict) for cell in self.cells)

    def sentence(self) -> str:
        """Return the verdict in plain sentences, the first of which says which reading decided."""
        from fedseal.audit.sentences import verdict_sentence

        return verdict_sentence(self)


def row_severity(row: Row) -> tuple[int, int, float]:
    """Return a row's place from good to bad news."""
    assert row.worst is not None
    return row.worst.severity


def cell_fails(cell: Cell, limit: RiskLevel, *, strict: bool) -> bool:
    """Return whether a cell fails `--fail-on limit`.

    By default leaks at or above the limit fail, found, singled out, victims and labels alike; a limit of `low` also
    fails where nothing is known. `strict` judges the ideal reading too: what is not settled fails unless the update is
    known to hold less than the limit.
    """
    if cell.control:
        return False
    if cell.alarm is not None and cell.alarm >= limit:
        return True
    if cell.state is None or cell.state.settled:
        return False
    if limit is RiskLevel.LOW:
        return True
    held = None if cell.ideal is None else cell.ideal.level
    return strict and (held is None or held >= limit or cell.state is State.TOO_FEW)


def judge(
    records: Iterable[TrialRecord],
    readings: Sequence[ReadingRecord] = (),
    proofs: Proofs | None = None,
    *,
    asked: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
) -> Verdict:
    """Group records into cells and rows, in order of first appearance, and judge them.

    Args:
        records: of one run.
        readings: what the uploads hold, of the same scenarios and defences; without, no cell is ever low.
        proofs: what is proven, by scenario and defence.
        asked: the defences each scenario asked for; an undefended row that was not is a control.
        seed: of the intervals.
    """
    grouped: dict[tuple[str, str, str, bool], list[TrialRecord]] = {}
    for record in records:
        grouped.setdefault((record.scenario, record.defence, record.attack, record.aware), []).append(record)
    ideals = _ideals(readings)
    measured = []
    for (scenario, defence, attack, aware), members in grouped.items():
        cell = _measure(Cell(scenario, defence, attack, aware, tuple(members)), seed)
        key = (scenario, defence)
        control = defence == "none" and "none" not in (asked or {}).get(scenario, ("none",))
        measured.append(replace(cell, ideal=ideals.get(key), proven=(proofs or {}).get(key), control=control))
    broken = {(cell.scenario, cell.attack) for cell in measured if cell.defence == "none" and cell.leaks}
    rows: dict[tuple[str, str], list[Cell]] = {}
    for cell in measured:
        decided = _decide(cell, (cell.scenario, cell.attack) in broken)
        rows.setdefault((cell.scenario, cell.defence), []).append(decided)
    return Verdict(
        tuple(
            Row(*key, tuple(cells), max((c for c in cells if c.psnr), key=lambda c: c.severity, default=None))
            for key, cells in rows.items()
        )
    )


def _measure(cell: Cell, seed: int) -> Cell:
    """Take all readings of a cell's trials."""
    done = cell.succeeded
    if not done:
        return cell
    lpips = [r.lpips for r in done if r.lpips is not None]
    measured = replace(
        cell,
        psnr=by_seed(done, (r.psnr for r in done), seed),
        best_psnr=by_seed(done, (r.psnr_best for r in done), seed),
        ssim=by_seed(done, (r.ssim for r in done), seed),
        lpips=by_seed(done, lpips, seed) if len(lpips) == len(done) else None,
        chance=against_chance(done, seed),
        victims=worst_victims(done),
        picked=singled_out(done),
        labels=recovered_labels(done),
    )
    return replace(measured, leaks=tuple(_leaks(measured)))


def _leaks(cell: Cell) -> Iterable[tuple[Decider, RiskLevel]]:
    """Return what each reading of the trials shows; below four trials only single victims are certain."""
    assert cell.psnr is not None
    enough = len(cell.succeeded) >= FEWEST
    if enough and cell.chance is not None and cell.chance.beaten and level_of(cell.psnr.mean) is not RiskLevel.LOW:
        yield "found", level_of(cell.psnr.mean)
    if enough and cell.picked is not None and cell.picked.significant:
        yield "singled out", RiskLevel.HIGH if cell.picked.first.mean > 0.5 else RiskLevel.MEDIUM
    if cell.victims is not None and cell.victims.level is not None:
        yield "worst victim", cell.victims.level
    if enough and cell.labels is not None and cell.labels.leaked:
        yield "labels", RiskLevel.MEDIUM


def _decide(cell: Cell, control_broken: bool) -> Cell:
    """Put the readings together."""
    if cell.psnr is None:
        return cell
    if len(cell.succeeded) < FEWEST:
        return replace(cell, state=State.TOO_FEW)
    if cell.leaks:
        decided, level = max(cell.leaks, key=lambda leak: leak[1])  # the first of equals, in the order they are read
        return replace(cell, state=State.LEAK, level=level, decided=decided)
    if cell.proven is not None and cell.proven.is_low:
        return replace(cell, state=State.LOW, level=RiskLevel.LOW, decided="proven")
    if cell.ideal is not None and cell.ideal.is_low:
        return replace(cell, state=State.LOW, level=RiskLevel.LOW, decided="ideal")
    return replace(cell, state=State.NOT_SHOWN if control_broken else State.NO_POWER)


def _ideals(readings: Sequence[ReadingRecord]) -> dict[tuple[str, str], Ideal]:
    grouped: dict[tuple[str, str], list[ReadingRecord]] = {}
    for reading in readings:
        grouped.setdefault((reading.scenario, reading.defence), []).append(reading)
    return {key: _ideal(tuple(members)) for key, members in grouped.items()}


def _ideal(records: tuple[ReadingRecord, ...]) -> Ideal:
    known = [r.psnr_db for r in records if r.psnr_db is not None]
    priors = [r.prior_db for r in records if r.prior_db is not None]
    reason = next((r.reason for r in records if r.psnr_db is None), "")
    complete = len(known) == len(records)
    gains = [r.psnr_db + r.error_db - r.prior_db for r in records if r.psnr_db is not None and r.prior_db is not None]
    return Ideal(
        fmean(known) if complete else None,
        max(known) if complete else None,
        fmean(priors) if priors else None,
        max(gains) if len(gains) == len(records) else None,
        reason,
        records,
    )
