"""Make the README's picture of a report: `fedseal audit && python docs/pictures/report.py fedseal-audit/report.html`.

The picture in the repository is of the default audit of 2026-11-18.
Needs Chromium (`--browser PATH`, or that of `playwright install chromium`) and the development tools.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("report.png")
WIDTH, HEIGHT, COLOURS = 1100, 1000, 96


def main() -> None:
    """Draw the first screen of a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--browser", default=None)
    parser.add_argument("--height", type=int, default=HEIGHT)
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.browser, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": given.height}, color_scheme="light")
        page.goto(given.report.resolve().as_uri())
        shot = page.screenshot()
        browser.close()
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
