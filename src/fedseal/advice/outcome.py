"""What advice comes to: every defence that was looked at with what is known of it, and the one to take, if any."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fedseal.advice.limits import Limits
from fedseal.advice.scenario import AdviceScenario
from fedseal.advice.screening import Screened
from fedseal.audit.cells import Row
from fedseal.audit.levels import RiskLevel, State
from fedseal.audit.verdict import cell_fails
from fedseal.core.errors import InputError, StorageError
from fedseal.core.files import PathText, write_atomically
from fedseal.metrics.intervals import Interval

FILE = "advice.json"


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")


class Figure(_Kept):
    """A mean over seeds with its interval, of which there is none below four."""

    mean: float
    low: float | None = None
    high: float | None = None
    n: int = 1

    @classmethod
    def of(cls, interval: Interval, scale: float = 1.0) -> Figure:
        """Return an interval times a factor."""
        ends = [None if end is None else scale * end for end in (interval.low, interval.high)]
        return cls(mean=scale * interval.mean, low=ends[0], high=ends[1], n=interval.n)

    def words(self, unit: str = " %") -> str:
        """Return `97.9 % (96.5 to 99.2, 4 seeds)`."""
        seeds = f"{self.n} seed" + ("" if self.n == 1 else "s")
        ends = "" if self.low is None or self.high is None else f"{self.low:.1f} to {self.high:.1f}, "
        return f"{self.mean:.1f}{unit} ({ends}{seeds})"


class Trained(_Kept):
    """What training under a defence came to.

    Attributes:
        accuracy: in per cent.
        kept: of the undefended twin's, in per cent (PMM).
        upload: bytes per client and round, in those of the plain update.
        time: of a round, in that of an undefended one.
        stopped: why it was not trained to its end; the accuracy is that of its last measurement then.
        learnt: whether the accuracy is more than chance.
    """

    accuracy: Figure | None = None
    kept: Figure | None = None
    upload: float | None = None
    time: float | None = None
    stopped: str = ""
    learnt: bool = False


class Attacked(_Kept):
    """What an audit says of a defence.

    Attributes:
        state: of its worst cell.
        level: of the risk; empty where the state has none.
        decided: the reading that decided.
        attack: of the worst cell.
        found_db, guess_db: mean PSNR of the worst attack, and of the best guess without the update.
        picked, lined_up, strangers: originals picked first, of how many, among how many.
        labels, label_chance: share of labels read, and guessed.
        within: whether the row is within the aim, what is not shown counted as what the update holds.
        batches: attacked.
    """

    state: str
    level: str = ""
    decided: str = ""
    attack: str = ""
    found_db: float | None = None
    guess_db: float | None = None
    picked: int | None = None
    lined_up: int | None = None
    strangers: int | None = None
    labels: float | None = None
    label_chance: float | None = None
    within: bool = False
    batches: int = 0

    @property
    def standing(self) -> str:
        """The level, or the state where it has none."""
        return self.level or self.state


class Candidate(_Kept):
    """A defence that was looked at, as far as it went."""

    screened: Screened
    front: bool = False
    trained: Trained | None = None
    attacked: Attacked | None = None

    @property
    def defence(self) -> str:
        """Its spec."""
        return self.screened.defence

    @property
    def upload(self) -> float:
        """Bytes sent, in those of the plain update: of the training, where there is one."""
        if self.trained is None or self.trained.upload is None:
            return self.screened.upload
        return self.trained.upload

    @property
    def kept(self) -> float | None:
        """Accuracy kept in per cent, of a training that went to its end and learnt something."""
        if self.trained is None or self.trained.kept is None or self.trained.stopped or not self.trained.learnt:
            return None
        return self.trained.kept.mean

    def affordable(self, limits: Limits) -> bool:
        """Return whether it costs no more than it may."""
        time = None if self.trained is None else self.trained.time
        return (
            self.kept is not None
            and self.kept >= limits.kept
            and limits.allows_upload(self.upload)
            and (time is None or limits.allows_time(time))
        )

    def safe(self) -> bool:
        """Return whether an audit holds it to be within the aim."""
        return self.attacked is not None and self.attacked.within


class Advice(_Kept):
    """What came of a search.

    Attributes:
        scenario: what was asked for, its limits included.
        candidates: all that were looked at, the undefended control first.
        recommended: the defence to take; None if none is within the limits.
        nearest: those that come closest then: a safe one that costs too much, and one that costs little and leaks.
        layers: of an undefended update, what each layer alone holds in dB.
        caution: why nothing can be said at all; empty if something can.
        paragraph: the answer.
        command: that asks again.
        cpu_seconds: of this process, of the call that ended the search.
    """

    scenario: AdviceScenario
    candidates: tuple[Candidate, ...]
    recommended: str | None = None
    nearest: tuple[str, ...] = ()
    layers: Mapping[str, float] = {}
    caution: str = ""
    paragraph: str = ""
    command: str = "fedseal advise"
    cpu_seconds: float = 0.0

    @property
    def limits(self) -> Limits:
        """What was asked of a defence."""
        return self.scenario.limits

    def candidate(self, defence: str) -> Candidate:
        """Return what is known of one defence."""
        return next(one for one in self.candidates if one.defence == defence)


def within(row: Row, aim: RiskLevel) -> bool:
    """Return whether an audited defence is within an aim; what is not shown is as bad as what its update holds.

    Low means that it is shown. Above, a cell that is not settled counts by its ideal reading, as `--strict` has it.
    """
    if aim is RiskLevel.LOW:
        return row.state is State.LOW
    if row.state is None or aim is RiskLevel.VERY_HIGH:
        return row.state is not None
    return not any(cell_fails(cell, RiskLevel(aim + 1), strict=True) for cell in row.cells)


def attacked(row: Row, aim: RiskLevel) -> Attacked | None:
    """Return what a row says, as it is kept; None where nothing ran."""
    worst = row.worst
    if worst is None or worst.state is None:
        return None
    picked, labels = row.picked, row.labels
    best = max((cell for cell in row.cells if cell.psnr is not None), key=lambda one: one.psnr.mean if one.psnr else 0)
    return Attacked(
        state=worst.state.words,
        level="" if worst.level is None else worst.level.words,
        decided=worst.decided or "",
        attack=best.attack,
        found_db=None if best.psnr is None else best.psnr.mean,
        guess_db=best.baseline_psnr,
        picked=None if picked is None else picked.count,
        lined_up=None if picked is None else picked.n,
        strangers=None if picked is None else picked.size,
        labels=None if labels is None else labels.accuracy.mean,
        label_chance=None if labels is None else labels.chance,
        within=within(row, aim),
        batches=len(worst.succeeded),
    )


def keep(advice: Advice, directory: Path) -> None:
    """Write the advice beside its runs."""
    write_atomically(directory / FILE, advice.model_dump_json(indent=1) + "\n")


def holds_advice(directory: PathText) -> bool:
    """Return whether a directory holds one."""
    return (Path(directory) / FILE).is_file()


def open_advice(directory: PathText) -> Advice:
    """Read the advice in a directory."""
    path = Path(directory) / FILE
    if not holds_advice(directory):
        raise InputError(f"{directory} holds no advice.", hint="Run `fedseal advise --out` with it first.")
    try:
        return Advice.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} is damaged.", hint="Run `fedseal advise` again; it keeps its readings.") from error
