"""Strengths of a defence to sweep: `topk:ratio=0.5/0.8/0.95`, or a name alone for the usual ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedseal.core.errors import UsageError
from fedseal.core.registry import near_matches
from fedseal.defences.pipeline import build_defence

USUAL: dict[str, tuple[str, ...]] = {
    "gaussian": ("sigma=0.0001", "sigma=0.001", "sigma=0.01", "sigma=0.1"),
    "laplace": ("scale=0.0001", "scale=0.001", "scale=0.01", "scale=0.1"),
    "dp-sgd": ("sigma=0.001", "sigma=0.01", "sigma=0.1", "sigma=1"),
    "quantise": ("bits=1", "bits=2", "bits=4", "bits=8"),
    "topk": ("ratio=0.5", "ratio=0.8", "ratio=0.9", "ratio=0.99"),
    "minmax": ("ratio=0.5", "ratio=0.8", "ratio=0.95"),
    "soteria": ("ratio=0.3", "ratio=0.5", "ratio=0.7", "ratio=0.9"),
    "outpost": ("prune=50", "prune=80", "prune=95"),
    "dgp": ("k1=0.03,k2=0.45", "k1=0.05,k2=0.75", "k1=0.06,k2=0.9", "k1=0.2,k2=0.6"),
    "adgp": ("k=0.4", "k=0.2", "k=0.1"),
    "adadefense": ("dtype=float32", "dtype=bfloat16"),
    "refiner": ("epsilon=0.01", "epsilon=0.1", "epsilon=0.5", "epsilon=0.9"),
}
"""What the papers sweep (DEFENCES.md), thinned out for a CPU."""

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
    name, colon, options = text.strip().partition(":")
    parts = options.split(",") if colon else []
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
        defences = tuple(f"{name}:{strength}" for strength in USUAL.get(name, ())) or (name,)
        family = name
    for defence in defences:
        build_defence(defence)  # refuses unknown names and options at once
    return Sweep(family, defences)


def split_sweeps(text: str) -> list[str]:
    """Split `dgp,topk:ratio=0.5/0.8,gaussian` at the commas that begin a new defence."""
    parts: list[str] = []
    for part in text.split(","):
        if parts and "=" in part and ":" not in part:
            if ":" not in parts[-1]:
                raise UsageError(
                    f"{part!r} is an option of no defence.",
                    hint=near_matches(parts[-1], list(USUAL)) or "Use name:a=b.",
                )
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return [part.strip() for part in parts if part.strip()]
