"""Make found.png of how-it-works.md from the outputs of a notebook: `python docs/pictures/make.py`.

readings.svg is drawn by hand; report.png is made by report.py.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path

import nbformat
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
NOTEBOOK = HERE.parent / "notebooks" / "first-audit.ipynb"
SIDE, GAP, CAPTION = 160, 12, 28
INK, PAPER = (25, 28, 33), (255, 255, 255)


def main() -> None:
    """Set the private face beside what the notebook's attacker rebuilt of it, undefended and defended."""
    undefended, defended = strips(NOTEBOOK)
    halves = [undefended[0], undefended[1], defended[1]]
    captions = ["private", "rebuilt, undefended", "rebuilt, 99 % withheld"]
    sheet = Image.new("RGB", (len(halves) * (SIDE + GAP) + GAP, SIDE + GAP + CAPTION), PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=14)
    for place, (half, caption) in enumerate(zip(halves, captions, strict=True)):
        left = GAP + place * (SIDE + GAP)
        sheet.paste(half.resize((SIDE, SIDE), Image.Resampling.NEAREST).convert("RGB"), (left, GAP))
        pen.text((left + SIDE / 2, SIDE + GAP + 6), caption, INK, font, "ma")
    sheet.quantize(64).save(HERE / "found.png", optimize=True)


def strips(path: Path) -> list[tuple[Image.Image, Image.Image]]:
    """Return the notebook's pictures, each cut into its left and right half."""
    found = []
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                strip = Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"])))
                middle = strip.width // 2
                halves = [strip.crop((at, 0, at + middle, strip.height)) for at in (0, middle)]
                found.append((halves[0], halves[1]))
    return found


if __name__ == "__main__":
    main()
