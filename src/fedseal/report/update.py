"""The report on one real update: HTML, JSON and terminal, in the style of the audit's own."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedseal._version import VERSION
from fedseal.core.files import OPEN, PRIVATE, write_atomically
from fedseal.report.charts import baseline_name
from fedseal.report.html import template_environment
from fedseal.report.png import data_uri, encode_png
from fedseal.report.redaction import redacted_command
from fedseal.report.terminal import STYLES
from fedseal.report.words import decibel, number, plural, printable, significant, slug
from fedseal.updates.audit import AGREE_DB, EXPLAINED, Attempt, UpdateAudit

SCHEMA = "fedseal/update-report"
SCHEMA_VERSION = 1
SHOWN = 16
"""Images shown of each attack."""

_CONFIDENCE_STYLES = {"high": "bold red", "medium": "yellow", "low": "green"}


@dataclass(frozen=True)
class Picture:
    """A rebuilt image, and the original beside it where there is one.

    Attributes:
        reconstruction, original: data URIs; None where withheld or not known.
        label: the attacker worked with; None where withheld.
        psnr, ssim: None without original.
    """

    reconstruction: str | None
    original: str | None
    label: int | None
    psnr: float | None
    ssim: float | None


@dataclass(frozen=True)
class Guess:
    """What guessing without the update would score."""

    name: str
    psnr: float


@dataclass(frozen=True)
class Section:
    """One attack in the report."""

    attempt: Attempt
    pictures: tuple[Picture, ...]
    hidden: int
    guesses: tuple[Guess, ...]


def render_update_html(audit: UpdateAudit, *, redact: bool = False) -> str:
    """Return the report as one self-contained HTML file; with `redact`, no image or label is in it."""
    worst = audit.worst
    order = [worst, *(attempt for attempt in audit.attempts if attempt is not worst)]
    text = (
        template_environment()
        .get_template("update.html")
        .render(
            audit=audit,
            worst=worst,
            redact=redact,
            command=redacted_command(audit.command) if redact else audit.command,
            version=VERSION,
            ledger=audit.case.observation.knowledge.ledger(),
            sections=[_section(audit, attempt, redact) for attempt in order],
            agree=AGREE_DB,
            explained=EXPLAINED,
        )
    )
    return printable(text)


def render_update_json(audit: UpdateAudit, *, redact: bool = False) -> str:
    """Return the result as JSON text, without images; with `redact`, without labels and notes too."""
    data = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "fedseal": VERSION,
        "command": redacted_command(audit.command) if redact else audit.command,
        "redacted": redact,
        "update": audit.case.title,
        "kind": audit.case.observation.update.kind,
        "seed": audit.seed,
        "sentence": audit.sentence(),
        "level": None if audit.level is None else audit.level.words.replace(" ", "-"),
        "state": slug(audit.standing),
        "attempts": [_attempt(attempt, redact) for attempt in audit.attempts],
        "knowledge": audit.case.observation.knowledge.ledger(),
        "findings": [finding.model_dump(mode="json") for finding in audit.case.findings],
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def render_update_terminal(audit: UpdateAudit) -> RenderableType:
    """Return a compact summary for Rich to print."""
    scored = audit.case.originals is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Attack", overflow="fold", max_width=26)
    for heading in ("PSNR, dB", "Best guess", "Risk") if scored else ("Confidence",):
        table.add_column(heading)
    table.add_column("Residual")
    table.add_column("of noise")
    table.add_column("Agreement, dB")
    for attempt in audit.attempts:
        table.add_row(
            Text(printable(attempt.attack)),
            *(_scored_cells(attempt) if scored else [_confidence(attempt)]),
            significant(attempt.residual),
            significant(attempt.noise_residual),
            number(attempt.agreement),
        )
    parts: list[RenderableType] = [Text(printable(audit.sentence()), style="bold"), table]
    parts.append(Text(f"Update: {printable(audit.case.title)}. {plural(audit.worst.starts, 'start')} per attack."))
    parts += [Text(printable(f"{f.severity}: {f.text} {f.advice}"), style="yellow") for f in audit.case.findings]
    return Group(*parts)


def write_update_reports(audit: UpdateAudit, directory: Path, *, redact: bool = False) -> dict[str, Path]:
    """Write `update.html`, `update.json` and, unless `redact`, every rebuilt image; each whole or not at all.

    What holds images or labels can be read by its owner only; with `redact`, images of an earlier call are removed.
    """
    paths = {"html": directory / "update.html", "json": directory / "update.json"}
    contents: dict[Path, str | bytes] = {
        paths["html"]: render_update_html(audit, redact=redact),
        paths["json"]: render_update_json(audit, redact=redact),
    }
    pictures = {} if redact else {directory / _picture(i): encode_png(x) for i, x in enumerate(audit.worst.best.images)}
    for stale in set(directory.glob(_picture("*"))) - set(pictures):
        stale.unlink()
    for path, content in (contents | pictures).items():
        write_atomically(path, content, mode=OPEN if redact else PRIVATE)
    return paths


def _picture(place: int | str) -> str:
    return f"reconstruction-{place:03d}.png" if isinstance(place, int) else f"reconstruction-{place}.png"


def _section(audit: UpdateAudit, attempt: Attempt, redact: bool) -> Section:
    images = attempt.best.images.detach().cpu()
    labels = attempt.best.labels.tolist()
    originals: Tensor | None = None
    order = list(range(len(images)))
    if attempt.scores is not None and audit.case.originals is not None:
        originals, order = audit.case.originals.images, list(attempt.scores.pairing)
    pictures = tuple(
        Picture(
            None if redact else data_uri(images[found]),
            None if redact or originals is None else data_uri(originals[place]),
            None if redact else int(labels[found]),
            None if attempt.scores is None else attempt.scores.psnr[place],
            None if attempt.scores is None else attempt.scores.ssim[place],
        )
        for place, found in enumerate(order[:SHOWN])
    )
    guesses = [Guess(baseline_name(name), fmean(values)) for name, values in (attempt.baselines or {}).items()]
    guesses.sort(key=lambda guess: -guess.psnr)
    return Section(attempt, pictures, max(0, len(images) - SHOWN), tuple(guesses))


def _attempt(attempt: Attempt, redact: bool) -> dict[str, Any]:
    return {
        "attack": attempt.attack,
        "starts": attempt.starts,
        "objective": _finite(attempt.best.objective),
        "residual": attempt.residual,
        "noise_residual": attempt.noise_residual,
        "agreement_db": attempt.agreement,
        "confidence": attempt.confidence,
        "labels": None if redact else attempt.best.labels.tolist(),
        "seconds": attempt.best.seconds,
        "notes": [] if redact else list(attempt.best.notes),
        "scores": None if attempt.scores is None else attempt.scores.as_dict(),
        "baselines": None if attempt.baselines is None else {n: list(v) for n, v in attempt.baselines.items()},
        "level": None if attempt.level is None else attempt.level.words.replace(" ", "-"),
    }


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _scored_cells(attempt: Attempt) -> list[Text]:
    assert attempt.scores is not None
    assert attempt.baselines is not None
    name, guess = max(((n, fmean(v)) for n, v in attempt.baselines.items()), key=lambda pair: pair[1])
    standing = attempt.standing
    return [
        Text(decibel(attempt.scores.mean_psnr), style=STYLES[standing]),
        Text(f"{number(guess)} ({baseline_name(name)})"),
        Text("not judged" if standing is None else standing.words, style=STYLES[standing]),
    ]


def _confidence(attempt: Attempt) -> Text:
    return Text(attempt.confidence, style=_CONFIDENCE_STYLES[attempt.confidence])
