"""The record of one trial, as it is stored and read back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class TrialRecord(BaseModel):
    """Everything an audit keeps of one reconstruction attempt.

    Attributes:
        key: content hash of everything that determines the trial.
        scenario: name of the set-up.
        defence: spec of the defence pipeline.
        attack: spec of the attack.
        aware: whether the attacker knew the defence and simulated it.
        target: index of the attacked batch.
        status: `ok`, `failed` (it ran and broke) or `refused` (the set-up does not allow this attack).
        message: why, unless `ok`.
        scale: what `psnr`, `psnr_best`, `stranger_psnr` and `baselines` are measured in (`metrics.scales`): decibels of
            PSNR for images; per cent for text and tables.
        psnr, ssim, mse, lpips: per original image under the one fixed Hungarian matching; no lpips without weights.
        psnr_best: per original, the most similar reconstruction with replacement ("attacker-best").
        psnr_fed: PSNR against what the model was fed, where a defence changes the data; None otherwise.
        label_accuracy: share of labels right, as multisets.
        label_chance: accuracy expected of a guess by public class frequencies; None where the labels were given.
        baselines: per-image PSNR of every chance baseline, by name.
        ranks: per image, its place among strangers from 1, by similarity; empty where strangers were too few.
        line_up: per image, the size of that line-up, the original included.
        twins: per image, near-duplicates taken out of its line-up.
        stranger_psnr: per image, the PSNR that the reconstructions reach on their closest stranger.
        top: per image, the most correlated candidates: indices of strangers, -1 for the original.
        weight_seed: of the model's weights, where a scenario is run with several.
        objective: the attacker's own objective at the end.
        trace: the objective over iterations.
        seconds: time of the attack.
        cost: the defence's cost report as plain data, with the cosine between the sent and the true update
            (`gradient_cosine`; not in records of 0.1).
        knowledge: the ledger of what the attacker was given, in words.
        artefact: file with `originals` and `reconstructions`, relative to the run's directory.
        notes: what the attack wants said.
        isolated: images the attack isolated of those in the batch, which alone are scored; None if it went for all.
        metrics: per original image, what each further metric the scenario asks for says, by spec.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    key: str
    scenario: str
    defence: str
    attack: str
    aware: bool
    target: int
    status: Literal["ok", "failed", "refused"] = "ok"
    message: str = ""
    scale: str = "psnr"
    psnr: tuple[float, ...] = ()
    ssim: tuple[float, ...] = ()
    mse: tuple[float, ...] = ()
    lpips: tuple[float, ...] | None = None
    psnr_best: tuple[float, ...] = ()
    psnr_fed: tuple[float, ...] | None = None
    label_accuracy: float | None = None
    label_chance: float | None = None
    baselines: dict[str, tuple[float, ...]] = {}
    ranks: dict[str, tuple[int, ...]] = {}
    line_up: tuple[int, ...] = ()
    twins: tuple[int, ...] = ()
    stranger_psnr: tuple[float, ...] = ()
    top: tuple[tuple[int, ...], ...] = ()
    weight_seed: int = 0
    objective: float | None = None
    trace: tuple[tuple[int, float], ...] = ()
    seconds: float = 0.0
    cost: dict[str, Any] = {}
    knowledge: dict[str, str] = {}
    artefact: str | None = None
    notes: tuple[str, ...] = ()
    isolated: int | None = None
    metrics: dict[str, tuple[float, ...]] = {}


def check_record(record: TrialRecord) -> None:
    """Refuse a record whose parts are not of one trial, or whose figures are none; raises `ValueError`."""
    images = len(record.psnr)
    per_image: list[Sequence[float] | None] = [record.ssim, record.mse, record.lpips, record.psnr_best]
    per_image += [record.line_up, *record.ranks.values()]
    per_image += [*record.baselines.values(), *record.metrics.values()]
    lengths = {len(values) for values in per_image if values}
    figures = [*record.psnr, *record.ssim, *record.mse, *(v for values in record.baselines.values() for v in values)]
    if record.status == "ok" and (not images or lengths - {images} or any(math.isnan(value) for value in figures)):
        raise ValueError(f"trial {record.key} is inconsistent")
