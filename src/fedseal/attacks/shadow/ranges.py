"""What may be tuned: options of attacks by their names, with the range in which each makes sense.

An attack is tuned in those of its options that are listed here, whoever wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fedseal.core.attack import ATTACKS
from fedseal.core.errors import UsageError
from fedseal.core.registry import parse_spec


@dataclass(frozen=True)
class Span:
    """Numbers between two, tried evenly on a logarithmic scale."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[str, ...]


Range: TypeAlias = Span | Choice

RANGES: dict[str, Range] = {
    "lr": Span(3e-3, 0.5),
    "tv": Span(1e-6, 1.0),
    "schedule": Choice(("steps", "cosine", "constant")),
    "start": Choice(("normal", "uniform", "zeros")),
    "signed": Choice(("true", "false")),
    "l2": Span(1e-8, 1e-3),
    "ratio": Choice(("0.5", "0.8", "1.0")),
    "blend": Choice(("0.0", "0.3", "0.7")),
}


def tunable(spec: str) -> dict[str, Range]:
    """Return the ranges of an attack's options that its spec leaves open."""
    parsed = parse_spec(spec)
    entry = ATTACKS.find(spec)
    open_ones = {name: r for name, r in RANGES.items() if name in entry.parameters and name not in parsed.options}
    if not open_ones:
        raise UsageError(
            f"the attack {spec!r} has no option that can be tuned.",
            hint=f"Tunable options are {', '.join(RANGES)}; those a spec gives are kept.",
        )
    return open_ones


def with_options(spec: str, options: dict[str, str]) -> str:
    """Return a spec with further options."""
    parsed = parse_spec(spec)
    together = {**parsed.options, **options}
    return f"{parsed.name}:" + ",".join(f"{key}={value}" for key, value in together.items())
