"""A finished or interrupted run as its readers (verdict, report, terminal) see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file
from torch import Tensor

from fedseal.audit.cells import Cell, Row
from fedseal.audit.levels import RiskLevel, State
from fedseal.audit.scenario import Scenario
from fedseal.audit.verdict import Verdict, cell_fails, judge
from fedseal.information.proven import ProvenReading
from fedseal.modalities.passages import unpack_words
from fedseal.store.findings import Finding
from fedseal.store.frames import Per, trial_frame
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Run:
    """A run's directory, what was planned, and what came out.

    Example:
        >>> import fedseal, tempfile
        >>> run = fedseal.audit(data="faces:size=8", attacks="ig:iterations=2", targets=1, out=tempfile.mkdtemp())
        >>> originals, stolen = run.images(run.records[0])
        >>> originals.shape == stolen.shape
        True

    Attributes:
        directory: where store, artefacts and reports lie.
        scenarios: what was planned.
        planned: number of trials in the plan.
        records: trials of the plan that have ended, in plan order.
        findings: the doctor's, by scenario name.
        environment: versions, hashes and machine, as name -> value.
        command: what reproduces the run.
        readings: what the uploads hold, by the ideal attacker, one per scenario, defence and target read.
        proofs: what no attacker exceeds, by scenario and defence, of those that release privately.
        started: when the first trial of the store was begun, in UTC by ISO 8601; empty where nobody noted it.
        ended: when the last one ended; empty while they run.
    """

    directory: Path
    scenarios: tuple[Scenario, ...]
    planned: int
    records: tuple[TrialRecord, ...]
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    command: str = "fedseal audit"
    readings: tuple[ReadingRecord, ...] = ()
    proofs: dict[str, dict[str, ProvenReading]] = field(default_factory=dict)
    started: str = ""
    ended: str = ""

    def verdict(self) -> Verdict:
        """Judge the records there are."""
        asked = {scenario.name: scenario.defences for scenario in self.scenarios}
        proofs = {(name, defence): p for name, found in self.proofs.items() for defence, p in found.items()}
        return judge(self.records, self.readings, proofs, asked=asked)

    def fails(self, limit: RiskLevel, *, strict: bool = False) -> bool:
        """Return whether any cell fails a limit, see `cell_fails`; the control's row never does."""
        return any(self.cell_fails(cell, limit, strict=strict) for cell in self.verdict().cells)

    def cell_fails(self, cell: Cell, limit: RiskLevel, *, strict: bool = False) -> bool:
        """Return whether a cell fails a limit and is none of the control."""
        return not self.is_control(cell) and cell_fails(cell, limit, strict=strict)

    def is_control(self, part: Cell | Row) -> bool:
        """Return whether a cell or a row is the control, which others are compared with."""
        return part.control or self._exempt.get(part.scenario) == part.defence

    def powerless(self) -> tuple[Row, ...]:
        """Return the rows, controls aside, of which too little was tried to say anything: such a run is no pass."""
        weak = (State.TOO_FEW, State.NO_POWER, None)
        return tuple(row for row in self.verdict().rows if row.state in weak and not self.is_control(row))

    @property
    def scale(self) -> str:
        """What its scores are measured in, by name; one run holds data of one kind."""
        return next((record.scale for record in self.records if record.status == "ok"), "psnr")

    @property
    def _exempt(self) -> dict[str, str | None]:
        return {scenario.name: scenario.exempt for scenario in self.scenarios}

    def frame(self, per: Per = "image") -> DataFrame:
        """Return the trials as a pandas frame (extra `frames`).

        Args:
            per: `image` for one row per original image, `trial` for one per trial with the means of its images. A trial
                without a result is one row either way. Mappings are spread (`baselines.nearest`, `cost.bytes_up`); what
                the upload holds by an ideal reader stands in `reading.psnr_db` and its sisters, where it was computed;
                keys in which the run's scenarios differ in columns like `scenario.client.batch_size`.

        Example:
            >>> import fedseal, tempfile
            >>> run = fedseal.audit(
            ...     data="faces:size=8", attacks="ig:iterations=2", targets=1, client={"batch_size": 2},
            ...     out=tempfile.mkdtemp(),
            ... )
            >>> run.frame()[["defence", "target", "image", "status"]].values.tolist()
            [['none', 0, 0, 'ok'], ['none', 0, 1, 'ok']]
        """
        settings = {one.name: one.model_dump(exclude={"name", "levels", "about"}) for one in self.scenarios}
        return trial_frame(self.records, self.readings, per, settings)

    def texts(self, record: TrialRecord) -> tuple[list[list[str]], list[list[str]]] | None:
        """Return a trial's (originals, reconstructions) as words, paired by the fixed matching; None of images."""
        if record.artefact is None:
            return None
        return unpack_words(load_file(self.directory / record.artefact))

    def images(self, record: TrialRecord) -> tuple[Tensor, Tensor] | None:
        """Return a trial's (originals, reconstructions), each [B, C, H, W], paired by the fixed matching."""
        if record.artefact is None:
            return None
        tensors = load_file(self.directory / record.artefact)
        return tensors["originals"], tensors["reconstructions"]

    def likenesses(self, record: TrialRecord) -> Tensor | None:
        """Return what the attacker held beside the line-ups, [B, C, H, W]: its reconstructions, or others it chose."""
        if record.artefact is None:
            return None
        tensors = load_file(self.directory / record.artefact)
        return tensors.get("likenesses", tensors["reconstructions"])

    def line_up(self, record: TrialRecord, index: int) -> Tensor | None:
        """Return the pictures at the front of an image's line-up, [K, C, H, W], in the order of `record.top[index]`."""
        if record.artefact is None:
            return None
        return load_file(self.directory / record.artefact).get(f"line_up.{index}")
