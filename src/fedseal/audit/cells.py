"""What an audit knows of one attack on one defence, and of a defence: records, readings and what they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fedseal.audit.evidence import Chance, Labels, Victims, scale_of
from fedseal.audit.levels import RiskLevel, State, level_of
from fedseal.information.proven import ProvenReading
from fedseal.metrics.intervals import Interval
from fedseal.metrics.picked import Picked
from fedseal.metrics.scales import Scale
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

Decider: TypeAlias = Literal["found", "singled out", "worst victim", "labels", "ideal", "proven"]
"""The reading that decided a cell."""

Standing: TypeAlias = RiskLevel | State
"""What is shown of a cell, a defence or a run: its level, or the state that has none."""

NEAR_PRIOR_DB = 1.0
"""An update that lets an ideal attacker gain no more than this over the prior alone holds nothing to speak of."""


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
    def at_least(self) -> bool:
        """Whether uploads may hold a good deal more than the figures say: unfinished solves, or rounding too fine."""
        return any(record.error_db > NEAR_PRIOR_DB for record in self.records)

    @property
    def level(self) -> RiskLevel | None:
        """The level an ideal attacker would reach; None where nobody can say, as where it is this one or a higher."""
        if self.is_low:
            return RiskLevel.LOW
        if self.best_db is None:
            return None
        level = level_of(self.best_db)
        return None if self.at_least and level is not RiskLevel.VERY_HIGH else level


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
    def scale(self) -> Scale:
        """What its scores are measured in."""
        return scale_of(self.succeeded)

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
    def picked(self) -> Picked | None:
        """The best line-up of all its attackers."""
        return best_picked(self.cells)

    @property
    def labels(self) -> Labels | None:
        """The best reading of labels of all its attackers."""
        return best_read(self.cells)

    @property
    def seconds(self) -> float:
        """Processor time of all its attacks."""
        return sum(cell.seconds for cell in self.cells)


def best_picked(cells: Sequence[Cell]) -> Picked | None:
    """Return the line-up that shows most, over cells; None where strangers were too few in all of them."""
    known = [cell.picked for cell in cells if cell.picked is not None]
    return min(known, key=lambda one: (not one.significant, -one.first.mean), default=None)


def best_read(cells: Sequence[Cell]) -> Labels | None:
    """Return the labels read best, over cells; None where the attacker was given them."""
    known = [cell.labels for cell in cells if cell.labels is not None]
    return max(known, key=lambda one: (one.leaked, one.accuracy.mean), default=None)


def row_severity(row: Row) -> tuple[int, int, float]:
    """Return a row's place from good to bad news."""
    assert row.worst is not None
    return row.worst.severity
