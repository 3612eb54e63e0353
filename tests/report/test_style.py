"""The palette's contrast, by WCAG 2.1: at least 4.5 to 1 for every pair of text and ground the page uses."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = (files("fedseal.report") / "templates" / "style.css").read_text(encoding="utf-8")
LEVELS = ("low", "medium", "high", "very-high")
PAIRS = [
    *(("ink", ground) for ground in ("paper", "card", "soft")),
    *(("muted", ground) for ground in ("paper", "soft")),
    *(("accent", ground) for ground in ("paper", "soft")),
    *((f"{level}-ink", f"{level}-bg") for level in LEVELS),
    *((f"{level}-ink", "paper") for level in ("medium", "very-high")),
]


def palettes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", CSS, flags=re.DOTALL)[:2]
    colours = {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text)) for name, text in (("l", light), ("d", dark))
    }
    return {"light": colours["l"], "dark": {**colours["l"], **colours["d"]}}


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_contrast(scheme: str, text: str, ground: str) -> None:
    palette = palettes()[scheme]
    high, low = sorted((luminance(palette[text]), luminance(palette[ground])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5
