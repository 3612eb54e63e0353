"""What a score is measured in: decibels of images, percentages of words or cells; and where on it risk begins.

The verdict is the same for every kind of data: scores against guesses, single victims, line-ups. What differs is one
record per scale: its unit, its levels, and the margins beyond which a score is no chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fedseal.core.errors import UsageError
from fedseal.metrics.baselines import ATTAINABLE, BASELINE_WORDS, WINSOR_DB


@dataclass(frozen=True)
class Scale:
    """A score that grows with what was recovered.

    Attributes:
        name: as records have it.
        title: of the score, for tables.
        unit: behind its figures.
        noun: what one sample is called.
        limits: where medium, high and very high begin.
        ceiling: from here on a sample is as good as its original; differences are taken below.
        victim_margin: how far above every stranger a sample must lie to be a victim. Without a leak an original is as
            likely as a stranger to be the closest of all, so that any of n originals beats all n (N - 1) strangers has
            probability 1/N at most.
        oracle_margin: how far above every guess, where strangers are too few.
        failed: an attack this far below a guess, all of its interval, has failed: that is no sign of safety.
        attainable: guesses an attacker can make.
        fallback: the guess of one who does not know the labels, where another needs them.
        guesses: every guess in plain words.
        meaning: what the score is, in a sentence.
    """

    name: str
    title: str
    unit: str
    noun: str
    limits: tuple[float, float, float]
    ceiling: float
    victim_margin: float
    oracle_margin: float
    failed: float
    attainable: tuple[str, ...]
    fallback: str
    guesses: Mapping[str, str] = field(default_factory=dict)
    meaning: str = ""

    def capped(self, scores: tuple[float, ...]) -> list[float]:
        """Return scores, none above the ceiling."""
        return [min(value, self.ceiling) for value in scores]

    def said(self, value: float) -> str:
        """Return a score as a sentence has it."""
        return f"{value:.1f} {self.unit}{' PSNR' if self.name == PSNR.name else ''}"


PSNR = Scale(
    name="psnr",
    title="PSNR",
    unit="dB",
    noun="image",
    limits=(10.0, 15.0, 20.0),
    ceiling=WINSOR_DB,
    victim_margin=1.0,
    oracle_margin=3.0,
    failed=3.0,
    attainable=ATTAINABLE,
    fallback="mean_image",
    guesses=BASELINE_WORDS,
    meaning="PSNR measures, in decibels, how close a rebuilt image is to the private original (10 dB more is a tenth "
    "of the squared error); SSIM judges the same by structure, from 0 for nothing alike to 1 for identical.",
)
"""Images: FedLeak's levels (Sec. 5.3)."""

TOKENS = Scale(
    name="tokens",
    title="words recovered",
    unit="%",
    noun="text",
    limits=(30.0, 60.0, 90.0),
    ceiling=100.0,
    victim_margin=5.0,
    oracle_margin=15.0,
    failed=10.0,
    attainable=("frequent", "class_frequent"),
    fallback="frequent",
    guesses=MappingProxyType(
        {
            "frequent": "the most frequent public words, as many as the text has: the same for every text",
            "class_frequent": "the most frequent words of public texts with the same label",
            "nearest": "the public text that shares most words with the original, chosen by looking at it",
        }
    ),
    meaning="The score is the F1 of the words recovered, in per cent: how many of a text's tokens came back, and how "
    "many of those claimed were there, whatever their order; ROUGE-2 judges their order.",
)
"""Text: levels of our own, set before anything was measured, as no paper has any."""

CELLS = Scale(
    name="cells",
    title="cells recovered",
    unit="%",
    noun="record",
    limits=(60.0, 75.0, 90.0),
    ceiling=100.0,
    victim_margin=8.0,
    oracle_margin=20.0,
    failed=15.0,
    attainable=("typical", "class_typical", "drawn"),
    fallback="typical",
    guesses=MappingProxyType(
        {
            "typical": "the most frequent category and the mean of every public column: one record for all",
            "class_typical": "the same of the public records with the same label: what the labels alone give",
            "drawn": "every cell drawn from its public column by itself, as TabLeak guesses",
            "nearest": "the public record that shares most cells with the original, chosen by looking at it",
        }
    ),
    meaning="The score is the share of a record's cells that came back, in per cent: a category that is the right one, "
    "or a number within 0.319 standard deviations of its column.",
)
"""Tables: TabLeak's score (Sec. 4); levels of our own, set before anything was measured. Guesses reach 50 to 60 %."""

_SCALES = {scale.name: scale for scale in (PSNR, TOKENS, CELLS)}


def register_scale(scale: Scale) -> Scale:
    """Add the scale of a kind of data; a clash is an error."""
    if _SCALES.setdefault(scale.name, scale) != scale:
        raise UsageError(f"the scale {scale.name!r} is registered already.", hint="Choose another name.")
    return scale


def scale_called(name: str) -> Scale:
    """Return the scale records name."""
    if name not in _SCALES:
        raise UsageError(f"there is no scale called {name!r}.", hint=f"Known: {', '.join(sorted(_SCALES))}.")
    return _SCALES[name]
