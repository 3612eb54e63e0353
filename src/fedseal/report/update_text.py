"""The report on one real update of text: Markdown, JSON and terminal."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedseal._version import VERSION
from fedseal.core.files import OPEN, PRIVATE, write_atomically
from fedseal.report.redaction import redacted_command
from fedseal.report.update import SCHEMA, SCHEMA_VERSION
from fedseal.report.words import printable
from fedseal.updates.texts import TextAudit, TextReading

SHOWN = 16
"""Texts shown of each attack."""


def render_text_update_terminal(audit: TextAudit, *, redact: bool = False) -> RenderableType:
    """Return a compact summary for Rich to print."""
    scored = bool(audit.originals)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("Attack", *(("Words, %", "Guess, %") if scored else ()), "Certain", "Risk", "What it says"):
        table.add_column(heading, overflow="fold")
    for one in audit.readings:
        table.add_row(*(Text(printable(cell)) for cell in _cells(one, scored=scored)))
    parts: list[RenderableType] = [Text(printable(audit.sentence()), style="bold"), table]
    if not redact and audit.worst.level is not None:
        parts += [Text(printable(f"read: {text}")) for text in audit.worst.texts[:SHOWN]]
    return Group(*parts)


def render_text_update_markdown(audit: TextAudit, *, redact: bool = False) -> str:
    """Return the report as Markdown; with `redact`, no text is in it."""
    scored = bool(audit.originals)
    heads = ("attack", *(("words in %", "guess in %") if scored else ()), "certain", "risk", "what it says")
    lines = [
        f"# {audit.title}",
        "",
        audit.sentence(),
        "",
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
        *("| " + " | ".join(_escaped(cell) for cell in _cells(one, scored=scored)) + " |" for one in audit.readings),
        "",
    ]
    if not redact:
        lines += [line for one in audit.readings if one.level is not None for line in _shown(one, audit)]
    command = redacted_command(audit.command) if redact else audit.command
    known = [f"- {name}: {_escaped(str(value))}" for name, value in audit.ledger.items()]
    return printable(
        "\n".join([*lines, "## What the attacker is taken to know", "", *known, "", f"    {command}"]) + "\n"
    )


def render_text_update_json(audit: TextAudit, *, redact: bool = False) -> str:
    """Return the result as JSON text; with `redact`, without texts and notes."""
    data = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "fedseal": VERSION,
        "modality": "text",
        "command": redacted_command(audit.command) if redact else audit.command,
        "redacted": redact,
        "update": audit.title,
        "sentence": audit.sentence(),
        "level": None if audit.level is None else audit.level.words.replace(" ", "-"),
        "attempts": [_attempt(one, redact=redact) for one in audit.readings],
        "knowledge": audit.ledger,
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_text_update_reports(audit: TextAudit, directory: Path, *, redact: bool = False) -> dict[str, Path]:
    """Write `update.md` and `update.json`, whole or not at all; what holds texts can be read by its owner only."""
    paths = {"markdown": directory / "update.md", "json": directory / "update.json"}
    mode = OPEN if redact else PRIVATE
    write_atomically(paths["markdown"], render_text_update_markdown(audit, redact=redact), mode=mode)
    write_atomically(paths["json"], render_text_update_json(audit, redact=redact), mode=mode)
    return paths


def _cells(one: TextReading, *, scored: bool) -> list[str]:
    figures = []
    if scored:
        known = one.scores is not None and one.guesses is not None
        figures = [f"{fmean(values):.1f}" if known and values else "" for values in (one.scores, one.guesses)]
    said = one.refused or "; ".join(one.notes)
    risk = "not tried" if one.refused else "not shown" if one.level is None else one.level.words
    return [one.attack, *figures, "yes" if one.certain else "no", risk, said]


def _shown(one: TextReading, audit: TextAudit) -> list[str]:
    pairs = [("original", text) for text in audit.originals[:SHOWN]] + [("read", text) for text in one.texts[:SHOWN]]
    return [f"## {one.attack}", "", *(f"- {what}: {_escaped(text)}" for what, text in pairs), ""]


def _attempt(one: TextReading, *, redact: bool) -> dict[str, Any]:
    return {
        "attack": one.attack,
        "certain": one.certain,
        "refused": one.refused,
        "texts": None if redact else list(one.texts),
        "notes": [] if redact else list(one.notes),
        "words_percent": None if one.scores is None else list(one.scores),
        "guess_percent": None if one.guesses is None else list(one.guesses),
        "level": None if one.level is None else one.level.words.replace(" ", "-"),
    }


def _escaped(text: str) -> str:
    """Return text that is no markup in Markdown."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
