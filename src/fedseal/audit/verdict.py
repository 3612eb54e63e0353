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
from typing import TypeAlias

from fedseal.audit.cells import Cell, Decider, Ideal, Row, Standing, row_severity
from fedseal.audit.evidence import against_chance, by_seed, recovered_labels, singled_out, worst_victims
from fedseal.audit.levels import RiskLevel, State, level_of
from fedseal.audit.sentences import verdict_sentence
from fedseal.information.proven import ProvenReading
from fedseal.metrics.intervals import FEWEST
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

CONTRADICTION_DB = 3.0
"""Gain over the prior that no upload has of which it is proven that it holds nothing."""

Proofs: TypeAlias = Mapping[tuple[str, str], ProvenReading]
"""What is proven, by scenario and defence."""


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
        return verdict_sentence(self.judged)


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
    ideals = ideals_of(readings)
    measured = []
    for (scenario, defence, attack, aware), members in grouped.items():
        key = (scenario, defence)
        together = sum(other[:2] == key for other in grouped)
        cell = _measure(Cell(scenario, defence, attack, aware, tuple(members)), together, seed)
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


def _measure(cell: Cell, together: int, seed: int) -> Cell:
    """Take all readings of a cell's trials, one of `together` on the same defence."""
    done = cell.succeeded
    if not done:
        return cell
    lpips = [r.lpips for r in done if r.lpips is not None]
    measured = replace(
        cell,
        psnr=by_seed(done, (r.psnr for r in done), seed),
        best_psnr=by_seed(done, (r.psnr_best for r in done), seed),
        ssim=by_seed(done, (r.ssim for r in done), seed) if all(r.ssim for r in done) else None,
        lpips=by_seed(done, lpips, seed) if len(lpips) == len(done) else None,
        chance=against_chance(done, seed),
        victims=worst_victims(done),
        picked=singled_out(done, together),
        labels=recovered_labels(done, together),
    )
    return replace(measured, leaks=tuple(_leaks(measured)))


def _leaks(cell: Cell) -> Iterable[tuple[Decider, RiskLevel]]:
    """Return what each reading of the trials shows; below four trials only single victims are certain."""
    assert cell.psnr is not None
    enough, found = len(cell.succeeded) >= FEWEST, level_of(cell.psnr.mean, cell.scale)
    if enough and cell.chance is not None and cell.chance.beaten and found is not RiskLevel.LOW:
        yield "found", found
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
    if cell.proven is not None and cell.proven.is_low and not _contradicts(cell.ideal):
        return replace(cell, state=State.LOW, level=RiskLevel.LOW, decided="proven")
    if cell.ideal is not None and cell.ideal.is_low:
        return replace(cell, state=State.LOW, level=RiskLevel.LOW, decided="ideal")
    return replace(cell, state=State.NOT_SHOWN if control_broken else State.NO_POWER)


def _contradicts(ideal: Ideal | None) -> bool:
    """Return whether uploads are not what a proof rests on: other than declared, or holding far more than it leaves."""
    if ideal is None:
        return False
    return any(r.refuted for r in ideal.records) or (ideal.gain_db is not None and ideal.gain_db > CONTRADICTION_DB)


def ideals_of(readings: Sequence[ReadingRecord]) -> dict[tuple[str, str], Ideal]:
    """Return what uploads hold, by scenario and defence, over the targets that were read."""
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
