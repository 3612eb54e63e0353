"""Advice for people: a page with the answer, the front as a chart and a table; and the same for a terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.table import Table
from rich.text import Text

from fedseal._version import VERSION
from fedseal.advice.outcome import Advice, Candidate
from fedseal.advice.screening import UNKNOWN_DB
from fedseal.advice.sentences import costs, readings
from fedseal.audit.cells import NEAR_PRIOR_DB
from fedseal.core.files import write_atomically
from fedseal.report import words
from fedseal.report.html import template_environment

WIDTH, HEIGHT = 720.0, 320.0
_TOP_DB = 40.0
"""Gains above are drawn at the edge."""
PAGE = "advice.html"


@dataclass(frozen=True)
class Spot:
    """A defence in the chart: how far it distorts updates to the right, what its update holds upwards."""

    name: str
    x: float
    y: float
    kind: str


@dataclass(frozen=True)
class FrontChart:
    """All defences that were screened.

    Attributes:
        spots: `recommended`, `front` or `other`.
        path: through the front, by rising distortion.
        low: height below which an update holds nothing to speak of.
        x_ticks, y_ticks: (label, position).
    """

    spots: tuple[Spot, ...]
    path: str
    low: float
    x_ticks: tuple[tuple[str, float], ...]
    y_ticks: tuple[tuple[str, float], ...]


def front_chart(advice: Advice) -> FrontChart:
    """Place every defence by distortion, on a logarithmic scale, and exposure."""
    shown = [one for one in advice.candidates if one.screened.distance is not None]
    sizes = [math.log10(max(one.screened.distance or 0.0, 1e-3)) for one in shown]
    left, right = math.floor(min(sizes, default=-3)), max(math.ceil(max(sizes, default=1)), -2)

    def x(size: float) -> float:
        return round(WIDTH * (size - left) / (right - left), 1)

    def y(gain: float) -> float:
        return round(HEIGHT * (1 - min(gain, _TOP_DB) / _TOP_DB), 1)

    spots = [Spot(one.defence, x(size), y(one.screened.exposure), _kind(advice, one)) for one, size in
             zip(shown, sizes, strict=True)]  # fmt: skip
    best: list[Spot] = []
    for spot in sorted(spots, key=lambda one: (one.x, -one.y)):
        if not best or spot.y > best[-1].y:
            best.append(spot)
    return FrontChart(
        tuple(spots),
        "M" + " L".join(f"{spot.x} {spot.y}" for spot in best) if best else "",
        y(NEAR_PRIOR_DB),
        tuple((f"{10.0**size:g}", x(size)) for size in range(left, right + 1)),
        tuple((f"{gain:g} dB", y(gain)) for gain in range(0, int(_TOP_DB) + 1, 10)),
    )


def _kind(advice: Advice, one: Candidate) -> str:
    if one.defence == advice.recommended:
        return "recommended"
    return "near" if one.defence in advice.nearest else "front" if one.front else "other"


def ordered(advice: Advice) -> tuple[Candidate, ...]:
    """Return the candidates as a reader wants them: recommended, near, attacked, trained, front, the rest."""

    def place(one: Candidate) -> tuple[bool, bool, bool, bool, bool, float]:
        named = one.defence == advice.recommended, one.defence in advice.nearest
        far = one.attacked is not None, one.trained is not None, one.front
        return (*(not yes for yes in (*named, *far)), one.screened.exposure)  # type: ignore[return-value]

    return tuple(sorted(advice.candidates, key=place))


def held(one: Candidate) -> str:
    """Return what an update holds over a guess, in words."""
    cheap = one.screened
    if cheap.proven_low:
        return "nothing, proven"
    if cheap.gain_db is None:
        return "unknown"
    return f"≥ {UNKNOWN_DB:.0f} dB" if cheap.gain_db >= UNKNOWN_DB else f"{words.number(cheap.gain_db, sign=True)} dB"


def accuracy(one: Candidate) -> str:
    """Return the accuracy of a training in words."""
    if one.trained is None or one.trained.accuracy is None:
        return words.ABSENT
    if one.trained.stopped:
        return f"stopped at {one.trained.accuracy.mean:.1f} %"
    kept = "" if one.trained.kept is None else f", keeps {one.trained.kept.mean:.1f} %"
    return one.trained.accuracy.words() + kept


def layer_advice(advice: Advice) -> tuple[tuple[str, float, str], ...]:
    """Return each layer with what it holds alone, most first, and what to do about it."""
    plain = advice.candidate("none").screened
    prior = plain.prior_db or 0.0
    told = []
    for name, decibel in sorted(advice.layers.items(), key=lambda item: -item[1]):
        leaks = decibel - prior > NEAR_PRIOR_DB
        told.append((name, decibel, "encrypt, freeze or noise it" if leaks else "may be sent as it is"))
    return tuple(told)


def render_advice_html(advice: Advice) -> str:
    """Return the page."""
    one = None if advice.recommended is None else advice.candidate(advice.recommended)
    page = template_environment().get_template("advice.html")
    text = page.render(
        advice=advice,
        chart=front_chart(advice),
        width=WIDTH,
        height=HEIGHT,
        candidates=ordered(advice),
        held=held,
        accuracy=accuracy,
        layers=layer_advice(advice),
        readings=None if one is None else readings(one),
        costs=None if one is None else costs(one),
        version=VERSION,
        settings=yaml.safe_dump(advice.scenario.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
    )
    return words.printable(text)


def write_advice(advice: Advice, directory: Path) -> Path:
    """Write the page beside the advice; return its path."""
    write_atomically(directory / PAGE, render_advice_html(advice))
    return directory / PAGE


def advice_table(advice: Advice, most: int = 12) -> Table:
    """Return the candidates for a terminal, the most telling first."""
    table = Table("defence", "risk", "update holds", "accuracy", "upload", title_justify="left")
    for one in ordered(advice)[:most]:
        risk = words.ABSENT if one.attacked is None else one.attacked.standing
        mark = "* " if one.defence == advice.recommended else ""
        cells = [mark + one.defence, risk, held(one), accuracy(one), f"{one.upload:.2f}x"]
        table.add_row(*(Text(cell) for cell in cells))
    return table
