"""The HTML report in headless Chromium: it loads fast, asks for nothing, fits the window and is not blank."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedseal.audit.run import Run
from fedseal.report.html import render_html

pytestmark = pytest.mark.browser

OVERFLOW = "[document.documentElement.scrollWidth, window.innerWidth]"


@pytest.fixture(scope="module")
def pages(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("pages")
    paths = {}
    for name, redact in (("plain", False), ("redacted", True)):
        paths[name] = directory / f"{name}.html"
        paths[name].write_text(render_html(run, redact=redact), encoding="utf-8")
    return paths


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("plain", 1280, "light"),
        ("plain", 390, "dark"),
        pytest.param("plain", 1280, "dark", marks=pytest.mark.slow),
        pytest.param("plain", 768, "light", marks=pytest.mark.slow),
        pytest.param("plain", 768, "dark", marks=pytest.mark.slow),
        pytest.param("plain", 390, "light", marks=pytest.mark.slow),
        pytest.param("redacted", 1280, "light", marks=pytest.mark.slow),
        ("redacted", 390, "dark"),
    ],
)
def test_the_page_renders_and_axe_finds_nothing_serious(
    browser: Any, pages: dict[str, Path], look: Any, axe: str, name: str, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    problems: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.on("request", lambda request: requests.append(request.url))
    start = time.perf_counter()
    page.goto(pages[name].as_uri(), wait_until="load")
    elapsed = time.perf_counter() - start
    scroll, inner = page.evaluate(OVERFLOW)
    picture = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"), dtype=float)
    broken = page.evaluate("[...document.images].filter(i => !i.naturalWidth).length")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    serious, clipped = look.serious(page, axe), look.clipped(page)
    page.close()
    assert serious == []
    assert clipped == []
    assert problems == []
    assert [url for url in requests if not url.startswith("data:")] == [pages[name].as_uri()]
    assert elapsed < 60  # 0.1 s on a quiet machine; a page that waits for a network never ends
    assert scroll <= inner
    assert picture.std() > 5
    assert broken == 0
    assert (background == "rgb(20, 23, 26)") == (scheme == "dark")


def test_hostile_names_run_nothing(browser: Any, hostile: Run, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(render_html(hostile), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 900})
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    scroll, inner = page.evaluate(OVERFLOW)
    page.close()
    assert dialogs == []
    assert scroll <= inner


def test_it_prints(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(pages["plain"].as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('.badge')).printColorAdjust") == "exact"
    assert not page.locator("nav").is_visible()
    document = page.pdf(format="A4")
    page.close()
    assert document.startswith(b"%PDF")
    assert len(document) > 20_000


@pytest.fixture(scope="module")
def wide(wide_run: Run) -> Path:
    """A page of eight attacks on eight defences."""
    path = wide_run.directory / "report.html"
    path.write_text(render_html(wide_run), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_nothing_is_clipped_with_eight_attacks(browser: Any, wide: Path, look: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(wide.as_uri())
    clipped = look.clipped(page)
    page.close()
    assert clipped == []


@pytest.mark.parametrize("which", ["plain", "wide"])
def test_at_most_four_pages_are_printed_before_the_appendix(
    browser: Any, pages: dict[str, Path], wide: Path, which: str
) -> None:
    page = browser.new_page()
    page.goto((pages | {"wide": wide})[which].as_uri())
    page.add_style_tag(content="#appendix, #appendix ~ section { display: none !important }")
    document = page.pdf(format="A4")
    page.close()
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", document)) <= 4


def test_the_report_is_walked_by_keyboard_alone(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(pages["plain"].as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('href')"))
    page.close()
    assert {"#readings", "#matrix", "#settings"} <= reached
