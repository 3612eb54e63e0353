"""Strengths of a defence to sweep: `topk:ratio=0.5/0.8/0.95`, or a name alone for the usual ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedseal.core.defence import DEFENCES
from fedseal.core.errors import UsageError
from fedseal.core.registry import near_matches
from fedseal.defences.pipeline import build_defence, split_pipeline

_SEVERAL = re.compile(r"[^,=]+(/[^,=/]+)+")


@dataclass(frozen=True)
class Sweep:
    """One curve: a defence at several strengths.

    Attributes:
        family: what the curve is called.
        defences: full specs, in the order given.
    """

    family: str
    defences: tuple[str, ...]


def parse_sweep(text: str) -> Sweep:
    """Read a sweep; an option with several values separated by `/` spans it.

    A name alone stands for the usual strengths, or for its default where there are none.
    """
    name, options = _parted(text.strip())
    parts = options.split(",") if options else []
    spans = [part for part in parts if _SEVERAL.fullmatch(part.partition("=")[2])]
    if len(spans) > 1:
        raise UsageError(f"{text!r} sweeps several options at once.", hint="Give `/` values to one of them.")
    if spans:
        key, _, values = spans[0].partition("=")
        fixed = [part for part in parts if part is not spans[0]]
        defences = tuple(f"{name}:" + ",".join([f"{key}={value}", *fixed]) for value in values.split("/"))
        family = f"{name}:" + ",".join(fixed) if fixed else name
    elif parts:
        defences, family = (text.strip(),), text.strip()
    else:
        defences = tuple(f"{name}:{strength}" for strength in _usual(name)) or (name,)
        family = name
    for defence in defences:
        build_defence(defence)  # refuses unknown names and options at once
    return Sweep(family, defences)


def _parted(text: str) -> tuple[str, str]:
    """Part a sweep into the defence's name, or `module:attribute`, and its options."""
    name, _, options = text.partition(":")
    if name not in DEFENCES and options and "=" not in options.partition(":")[0]:
        attribute, _, options = options.partition(":")
        name = f"{name}:{attribute}"
    return name, options


def _usual(name: str) -> tuple[str, ...]:
    """Return the strengths a defence declares; a pipeline written without options has none."""
    return DEFENCES.find(name).info.strengths if len(split_pipeline(name)) == 1 else ()


def split_sweeps(text: str) -> list[str]:
    """Split `dgp,topk:ratio=0.5/0.8,gaussian` at the commas that begin a new defence."""
    parts: list[str] = []
    for part in text.split(","):
        if parts and "=" in part and ":" not in part:
            if ":" not in parts[-1]:
                raise UsageError(
                    f"{part!r} is an option of no defence.",
                    hint=near_matches(parts[-1], DEFENCES.names()),
                )
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return [part.strip() for part in parts if part.strip()]
