"""Make the pictures of how-it-works.md from an audit: `python docs/pictures/make.py`, about a minute.

The faces are those that come with scikit-image's test data, as in `fedseal audit --data faces`.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from statistics import fmean

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

import fedseal
from fedseal.audit.cells import Row
from fedseal.report.png import encode_png
from fedseal.store.records import TrialRecord

HERE = Path(__file__).parent
NAMES = {"none": "undefended", "topk:ratio=0.9": "90 % withheld", "gaussian:sigma=0.01": "noise"}
SIDE, GAP, CAPTION = 128, 12, 40
INK, PAPER = (25, 28, 33), (255, 255, 255)
WIDTH, LEFT, BAR, LEADING = 640, 130, 12, 76
HUES = {"best guess": "#9aa1ac", "found": "#c4542c", "the update holds": "#2c6fc4"}


def main() -> None:
    """Audit, and draw what came back."""
    with tempfile.TemporaryDirectory() as directory:
        run = fedseal.audit(
            data="faces:size=32",
            model="lenet:init=wide-uniform",
            defences=list(NAMES),
            attacks=["ig:iterations=400,tv=0.01"],
            targets=4,
            readings=2,
            out=directory,
        )
        best = max((r for r in run.records if r.defence == "none"), key=lambda r: r.psnr[0])
        trials = {d: next(r for r in run.records if r.defence == d and r.target == best.target) for d in NAMES}
        _strip(_found(run, trials), HERE / "found.png")
        _strip(_line_up(run, best), HERE / "lineup.png")
        rows = {row.defence: row for row in run.verdict().rows}
        (HERE / "readings.svg").write_text(_bars(rows), encoding="utf-8")


def _found(run: fedseal.Run, trials: dict[str, TrialRecord]) -> list[tuple[Tensor, str]]:
    shown = []
    for defence, record in trials.items():
        images = run.images(record)
        assert images is not None
        if not shown:
            shown.append((images[0][0], "private"))
        shown.append((images[1][0], f"{NAMES[defence]}\n{record.psnr[0]:.1f} dB"))
    return shown


def _line_up(run: fedseal.Run, record: TrialRecord) -> list[tuple[Tensor, str]]:
    images, candidates = run.images(record), run.line_up(record, 0)
    assert images is not None
    assert candidates is not None
    places = [f"{place}: the original" if index < 0 else f"{place}" for place, index in enumerate(record.top[0], 1)]
    return [(images[1][0], "rebuilt"), *zip(candidates, places, strict=True)][:6]


def _strip(shown: list[tuple[Tensor, str]], path: Path) -> None:
    """Write pictures side by side with a caption below each."""
    font = ImageFont.load_default(size=14)
    size = (len(shown) * (SIDE + GAP) + GAP, SIDE + GAP + CAPTION)
    sheet = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(sheet)
    for place, (image, caption) in enumerate(shown):
        left = GAP + place * (SIDE + GAP)
        picture = Image.open(io.BytesIO(encode_png(image))).resize((SIDE, SIDE), Image.Resampling.NEAREST)
        sheet.paste(picture.convert("RGB"), (left, GAP))
        pen.multiline_text((left + SIDE / 2, SIDE + GAP + 4), caption, INK, font, "ma", align="center")
    sheet.quantize(128).save(path, optimize=True)


def _bars(rows: dict[str, Row]) -> str:
    """Return guess, found and ideal for each defence as bars on one scale of decibels."""
    lines = []
    for place, (defence, name) in enumerate(NAMES.items()):
        row, top = rows[defence], LEADING * place + 20
        cells = [cell for cell in row.cells if cell.psnr is not None]
        guess = fmean(cell.baseline_psnr for cell in cells if cell.baseline_psnr is not None)
        found = max(cell.psnr.mean for cell in cells if cell.psnr is not None)
        figures = {"best guess": guess, "found": found}
        if row.ideal is not None and row.ideal.psnr_db is not None:
            figures["the update holds"] = min(row.ideal.psnr_db, 60.0)
        lines.append(f'<text x="{LEFT - 10}" y="{top + 24}" text-anchor="end">{name}</text>')
        for number, (what, value) in enumerate(figures.items()):
            y, width = top + number * (BAR + 4), (WIDTH - LEFT - 130) * value / 60
            more = " or more" if value >= 60 else ""
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{HUES[what]}"/>')
            lines.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 10}">{what}: {value:.0f} dB{more}</text>')
    height = LEADING * len(NAMES) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" '
        f'font-size="12" fill="#777">\n' + "\n".join(lines) + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
