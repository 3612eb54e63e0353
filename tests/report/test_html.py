"""The HTML report: what it says, that nothing breaks out of it, and that it needs nothing but itself."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedseal.audit.run import Run
from fedseal.report.html import LEAD_PAIRS, ROW_PAIRS, render_html
from fedseal.report.png import encode_png
from fedseal.report.readings import LINE_UPS
from fedseal.store.records import TrialRecord

SECTIONS = [
    "verdict",
    "readings",
    "filed",
    "images",
    "details",
    "matrix",
    "chance",
    "costs",
    "attacker",
    "doctor",
    "convergence",
    "reproduce",
]


class Page(HTMLParser):
    """A page's start tags with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._style = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._style = tag == "style"

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def html(run: Run) -> str:
    return render_html(run)


def test_the_verdict_comes_first_and_sections_in_order(run: Run, html: str) -> None:
    page = Page(html)
    ids = [attributes["id"] for attributes in page.all("section")]
    assert ids[: len(SECTIONS)] == SECTIONS
    text = page.text
    assert text.index("Who could see what") < text.index("What came back") < text.index(run.verdict().sentence())
    assert text.index(run.verdict().sentence()) < text.index("Appendix")
    assert "very high risk" in text


def test_the_matrix_names_numbers_refusals_and_failures(run: Run, html: str) -> None:
    page = Page(html)
    cells = {(c.defence, c.attack, c.aware): c for c in run.verdict().cells}
    for aware in (False, True):
        cell = cells["topk:ratio=0.8", "ig", aware]
        assert cell.psnr is not None
        assert cell.psnr.low is not None
        assert cell.psnr.high is not None
        assert f"{cell.psnr.mean:.1f} dB {cell.psnr.low:.1f} to {cell.psnr.high:.1f}" in page.text
    reason = "needs the exact batch statistics, which this scenario does not grant."
    assert any(reason in (attributes.get("title") or "") for attributes in page.all("abbr"))
    assert f"fedleak against topk:ratio=0.8: fedleak {reason}" in page.text
    assert "1 trial failed" in page.text
    assert "n = 5 naive, 6 aware" in page.text
    assert "fedleak against none, naive, target 3: the objective became NaN at step 412." in page.text


def test_baselines_costs_knowledge_findings_and_commands_are_told(run: Run, html: str) -> None:
    text = Page(html).text
    for expected in (
        "nearest public image",
        "class mean",
        "mean image",
        "flat colour",
        "noise",
        "61.3 kB",
        "13.2 kB",
        "12 ms",
        "20 %",
        "0.84",
        "12.4",
        "∞",
        "400 images no client holds",
        "topk:ratio=0.8, simulated inside the attack against topk:ratio=0.8",
        "Set client.bn_mode to train-nostats",
        "Restarts agreed to within 0.3 dB.",
        "fedseal audit faces-lenet.yaml --defence topk:ratio=0.8 --attack ig --seed 7",
        "public_fraction: 0.3",
        "weights (SHA-256)",
        run.records[0].key,
        "Low means that no attack got through and that the update holds nothing",
    ):
        assert expected in text, expected
    assert text.index("problemBatch") < text.index("warningTargets") < text.index("noteLabels")


def test_images_are_limited_and_the_best_recovered_first(make_run: Callable[..., Run]) -> None:
    run = make_run(batch=64, targets=1)
    page = Page(render_html(run))
    rows = len(run.verdict().rows)
    alts = [image["alt"] or "" for image in page.all("img")]
    assert sum(alt.startswith(("Original", "Rebuilt by")) for alt in alts) == 2 * (LEAD_PAIRS + ROW_PAIRS * rows)
    assert sum(alt == "The original" for alt in alts) <= LINE_UPS * rows
    best = max(value for record in run.records for value in record.psnr)
    rebuilt = [image["alt"] or "" for image in page.all("img") if "Rebuilt" in (image["alt"] or "")]
    assert "clearly recognisable" in rebuilt[0]
    assert f"{best:.1f} dB" in rebuilt[LEAD_PAIRS]


def test_an_incomplete_run_says_so_at_the_top(make_run: Callable[..., Run]) -> None:
    text = Page(render_html(make_run(missing=5, targets=2))).text
    assert "This run is not complete. 19 of 24 planned trials have ended" in text
    assert text.index("not complete") < text.index("Verdict")


def test_nothing_breaks_out_of_the_page(hostile: Run) -> None:
    html = render_html(hostile)
    assert "<script" not in html
    assert "\x00" not in html
    html.encode("utf-8")
    page = Page(html)
    assert not page.all("script")
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count("alert(1)") > 20


@pytest.mark.parametrize("redact", [False, True])
def test_the_page_needs_nothing_but_itself(run: Run, redact: bool) -> None:
    html = render_html(run, redact=redact)
    page = Page(html)
    for tag in ("script", "iframe", "object", "embed", "audio", "video", "base", "form"):
        assert not page.all(tag)
    sources = ("src", "href", "xlink:href", "srcset", "poster", "data", "action", "background")
    references = [a[name] or "" for _, a in page.tags for name in sources if name in a]
    assert references
    assert all(reference.startswith(("data:", "#")) for reference in references)
    assert not re.search(r"https?://|url\(|@import|@font-face", html)
    assert "default-src 'none'" in html
    assert str(run.directory) not in html


def test_the_page_is_accessible_by_structure(run: Run, html: str) -> None:
    page = Page(html)
    assert all(image.get("alt") for image in page.all("img"))
    assert all(heading.get("scope") for heading in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(svg.get("aria-hidden") or svg.get("aria-label") for svg in page.all("svg"))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    anchors = {(a["href"] or "")[1:] for a in page.all("a")}
    assert anchors <= set(ids)
    assert page.all("html")[0]["lang"] == "en"


def test_redaction_leaves_no_pixel_and_opens_no_artefact(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [image for r in run.records if (pair := run.images(r)) for tensors in pair for image in tensors]

    def refuse(self: Run, record: TrialRecord) -> None:
        raise AssertionError("a redacted report opened an artefact")

    plain = render_html(run)
    monkeypatch.setattr(Run, "images", refuse)
    html = render_html(run, redact=True)
    encoded = [base64.b64encode(encode_png(image)).decode() for image in images]
    assert any(text in plain for text in encoded)
    assert not any(text in html for text in encoded)
    assert "data:image" not in html
    assert not Page(html).all("img")
    text = Page(html).text
    assert "Images are withheld." in text
    assert text.count("withheld") > 2 * LEAD_PAIRS


def test_missing_artefacts_are_said_to_be_missing(run: Run, tmp_path: Path) -> None:
    elsewhere = replace(run, directory=tmp_path)
    text = Page(render_html(elsewhere)).text
    assert "not where the run left them" in text
    (tmp_path / "artefacts").mkdir()
    for record in run.records:
        if record.artefact:
            (tmp_path / record.artefact).write_bytes(b"not safetensors")
    assert "not where the run left them" in Page(render_html(elsewhere)).text


def test_a_run_without_records_renders(run: Run) -> None:
    text = Page(render_html(replace(run, records=(), findings={}))).text
    assert "Nothing could be judged" in text
    assert "not judged" in text
    assert "0 of 72 planned trials have ended" in text


def test_a_run_in_which_everything_failed_renders(run: Run) -> None:
    broken = tuple(
        TrialRecord(
            **r.model_dump(include={"key", "scenario", "defence", "attack", "aware", "target"}),
            status="failed",
            message="out of memory",
        )
        for r in run.records
    )
    text = Page(render_html(replace(run, records=broken))).text
    assert "72 trials failed" in text
    assert "12 trials failed, none succeeded" in text


def test_a_single_image_has_no_interval(make_run: Callable[..., Run]) -> None:
    text = Page(render_html(make_run(targets=1, batch=1, defences=("none",), attacks=("ig",)))).text
    assert "no interval" in text
    assert "Here is the one image of the worst case" in text


def test_several_scenarios_are_told_apart(make_run: Callable[..., Run]) -> None:
    html = render_html(make_run(scenarios=("first", "second"), targets=1))
    page = Page(html)
    assert page.text.count("Scenario second") >= 5
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_it_is_deterministic(run: Run, html: str) -> None:
    assert render_html(run) == html
