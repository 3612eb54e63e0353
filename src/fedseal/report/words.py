"""Numbers, intervals and names as people read them; the filters of the HTML templates."""

from __future__ import annotations

import math
import re

from markupsafe import Markup, escape

from fedseal.audit.cells import Cell, Ideal, Standing
from fedseal.audit.comparison import Change
from fedseal.audit.evidence import Labels
from fedseal.audit.levels import RiskLevel, level_of
from fedseal.metrics.image import PSNR_CAP_DB
from fedseal.metrics.intervals import Interval
from fedseal.metrics.picked import Picked
from fedseal.metrics.scales import PSNR, Scale

_SAME_DB = 45.0
"""From here on eight bits per channel show no difference worth the name."""
ABSENT = "–"
"""Stands where a figure does not apply."""

_TICKED = re.compile(r"`([^`]*)`")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """Return `text` without characters that XML 1.0 and UTF-8 files cannot hold (controls, lone surrogates)."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def number(value: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """Return a fixed-point number with a true minus sign; infinity as its symbol, NaN in words."""
    if value is None:
        return ABSENT
    if math.isnan(value):
        return "undefined"
    text = "∞" if math.isinf(value) else f"{abs(value):.{digits}f}"
    if value < 0 and (math.isinf(value) or float(text) != 0):
        return f"−{text}"
    return f"+{text}" if sign else text


def decibel(value: float) -> str:
    """Return a PSNR; at the cap of the metric, where the images are equal, `≥ 100`."""
    return f"≥ {PSNR_CAP_DB:.0f}" if value >= PSNR_CAP_DB else number(value)


RECOGNISED: dict[RiskLevel, str] = {
    RiskLevel.VERY_HIGH: "clearly recognisable",
    RiskLevel.HIGH: "recognisable",
    RiskLevel.MEDIUM: "partly recognisable",
    RiskLevel.LOW: "not recognisable",
}
"""How well a picture of that level is recognised, for people who think in pictures."""


def recognisable(value: float, scale: Scale = PSNR) -> str:
    """Return how well one rebuilt picture is recognised; up to rounding, `the same picture`. So for other samples."""
    same, noun = (_SAME_DB, "picture") if scale is PSNR else (scale.ceiling, scale.noun)
    return f"the same {noun}" if value >= same else RECOGNISED[level_of(value, scale)]


def span(interval: Interval | None, *, sign: bool = False) -> str:
    """Return an interval's ends as `16.4 to 18.0`, or say that there is none."""
    if interval is None:
        return ABSENT
    if interval.low is None or interval.high is None:
        return "no interval"
    return f"{number(interval.low, sign=sign)} to {number(interval.high, sign=sign)}"


def half_width(interval: Interval) -> str:
    """Return half of an interval's width as ` ±0.8`, or nothing where there is no interval."""
    if interval.low is None or interval.high is None:
        return ""
    return f" ±{number((interval.high - interval.low) / 2)}"


def significant(value: float | None, digits: int = 3) -> str:
    """Return a number of unknown size: three significant digits, a power of ten where that is shorter."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return number(value)
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa} × 10^{int(exponent)}"
    return text.replace("-", "−")


def size(count: float | None) -> str:
    """Return bytes in a unit that keeps the number short."""
    if count is None:
        return ABSENT
    if not math.isfinite(count):
        return number(count)
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.{0 if count >= 100 * factor else 1}f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float | None) -> str:
    """Return a time span in milliseconds, seconds, minutes or hours."""
    if seconds is None:
        return ABSENT
    if not math.isfinite(seconds):
        return number(seconds)
    if 0 < seconds < 5e-5:
        return "< 0.1 ms"
    if 0 < seconds < 0.9995:
        return f"{seconds * 1e3:.{1 if seconds < 0.01 else 0}f} ms"
    if seconds < 120:
        return f"{seconds:.{1 if 0 < seconds < 10 else 0}f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def moment(when: str) -> str:
    """Return an ISO 8601 time as `2026-11-17 18:03 UTC`."""
    return when[:16].replace("T", " ") + (" UTC" if when.endswith("+00:00") else "")


def percentage(share: float | None) -> str:
    """Return a share of one in per cent."""
    if share is None:
        return ABSENT
    return f"{number(100 * share, 0 if share >= 0.1 or share == 0 else 1)} %"


def attacker(aware: bool) -> str:
    """Return what kind of attacker a cell belongs to."""
    return "defence-aware" if aware else "naive"


def cell_name(cell: Cell) -> str:
    """Return which attack by whom a cell is."""
    return f"{cell.attack}, {attacker(cell.aware)} attacker"


def slug(standing: Standing | None) -> str:
    """Return a level or state as options and CSS classes spell it."""
    return "unjudged" if standing is None else standing.words.replace(" ", "-")


def risk(standing: Standing | None) -> str:
    """Return a level as `high risk`, a state as it is; `not judged` where nothing ran."""
    if standing is None:
        return "not judged"
    return f"{standing.words} risk" if isinstance(standing, RiskLevel) else standing.words


def ideal_words(ideal: Ideal | None) -> str:
    """Return an ideal reading as `19.0 dB (prior 12.0)`, or why there is none; `at least` where more may be held."""
    if ideal is None:
        return "not computed"
    if ideal.psnr_db is None:
        return "cannot be computed"
    prior = "" if ideal.prior_db is None else f" (prior {number(ideal.prior_db)})"
    return f"{'at least ' if ideal.at_least else ''}{decibel(ideal.psnr_db)} dB{prior}"


def picked_share(picked: Picked | None) -> str:
    """Return a line-up's reading as `7 of 8 of 200`-style words; a dash where strangers were too few."""
    return ABSENT if picked is None else f"{picked.count} of {picked.n}, N = {picked.size}"


def label_words(labels: Labels | None) -> str:
    """Return a label reading as `100 % (guess 10 %)`; `given` where there was nothing to recover."""
    if labels is None:
        return "given"
    return f"{percentage(labels.accuracy.mean)} (guess {percentage(labels.chance)})"


def change_words(change: Change) -> str:
    """Return a change as `12.1 to 15.3 dB (+3.2, +1.0 to +5.4)`."""
    if change.reading.unit == "share":
        return f"{percentage(change.before)} to {percentage(change.after)}"
    difference = f"{number(change.difference.mean, sign=True)}, {span(change.difference, sign=True)}"
    return f"{number(change.before)} to {number(change.after)} {change.unit} ({difference})"


def plural(count: int, noun: str) -> str:
    """Return `1 trial`, `2 trials`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def code_ticks(text: str) -> Markup:
    """Escape `text` for HTML and set what it writes between backticks as code."""
    return Markup(_TICKED.sub(r"<code>\1</code>", str(escape(text))))


def breakable(text: str) -> Markup:
    """Escape a spec for HTML and let its lines break after `:`, `,` and `+`."""
    return Markup(re.sub(r"([:,+])", r"\1<wbr>", str(escape(text))))


def shell_words(command: str) -> Markup:
    """Escape a command for HTML so that its lines break between words, not inside options."""
    return Markup(" ").join(Markup("<span>{}</span>").format(word) for word in command.split(" "))


def capital(text: str) -> str:
    """Return `text` with a capital first letter and the rest as it is."""
    return text[:1].upper() + text[1:]
