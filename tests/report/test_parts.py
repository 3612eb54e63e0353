"""The small parts behind the reports: words, commands, charts, ledgers, costs, images and files."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.core.errors import StorageError
from fedseal.metrics.intervals import Interval
from fedseal.report import words
from fedseal.report.charts import AXIS_TOP_DB, Axis, chance_chart, sparkline
from fedseal.report.commands import cell_command
from fedseal.report.costs import cost_table
from fedseal.report.ledger import merge_ledgers
from fedseal.report.matrix import matrices
from fedseal.report.png import LARGEST_SIDE, encode_png
from fedseal.report.write import write_reports


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.number(-0.04), "0.0"),
        (words.number(-1.25, 2), "−1.25"),
        (words.number(3.0, sign=True), "+3.0"),
        (words.number(-math.inf), "−∞"),
        (words.number(math.nan), "undefined"),
        (words.number(None), "–"),
        (words.decibel(100.0), "≥ 100"),
        (words.decibel(26.55), "26.6"),
        (words.span(Interval(1.0, None, None, 1)), "no interval"),
        (words.span(Interval(1.0, -0.5, 2.0, 4), sign=True), "−0.5 to +2.0"),
        (words.significant(0.0000123), "1.23 × 10^−5"),
        (words.significant(math.inf), "∞"),
        (words.size(999), "999 B"),
        (words.size(61_320), "61.3 kB"),
        (words.size(450e6), "450 MB"),
        (words.duration(0), "0 s"),
        (words.duration(1e-6), "< 0.1 ms"),
        (words.duration(0.0042), "4.2 ms"),
        (words.duration(2.5), "2.5 s"),
        (words.duration(360), "6 min"),
        (words.duration(9000), "2 h 30 min"),
        (words.percentage(0.05), "5.0 %"),
        (words.percentage(1.0), "100 %"),
        (words.plural(1, "trial"), "1 trial"),
        (words.plural(1200, "trial"), "1,200 trials"),
        (words.slug(RiskLevel.VERY_HIGH), "very-high"),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert text == expected


def test_marked_up_words_are_escaped() -> None:
    assert words.code_ticks("`<b>` & c") == "<code>&lt;b&gt;</code> &amp; c"
    assert words.breakable("a:<b>") == "a:<wbr>&lt;b&gt;"
    assert words.shell_words("a '<b>'") == "<span>a</span> <span>&#39;&lt;b&gt;&#39;</span>"


def test_breakable_keeps_entities_whole() -> None:
    assert words.breakable("a&b,c") == "a&amp;b,<wbr>c"


def test_a_command_survives_the_shell(make_run: Callable[..., Run]) -> None:
    run = make_run(defences=("none", "topk; rm -rf $HOME"), attacks=("ig",), targets=1)
    cell = run.verdict().rows[1].cells[0]
    expected = [
        "fedseal",
        "audit",
        "faces-lenet.yaml",
        "--defence",
        cell.defence,
        "--attack",
        "ig",
        "--seed",
        "7",
    ]
    assert shlex.split(cell_command(run, cell)) == expected


def test_bands_cover_the_axis() -> None:
    axis = Axis(5.0, 30.0)
    assert sum(band.width for band in axis.bands) == pytest.approx(100)
    assert [band.level for band in axis.bands] == list(RiskLevel)
    assert axis.ticks == ((10, 20.0), (15, 40.0), (20, 60.0))
    assert (axis.place(-3), axis.place(99)) == (0.0, 100.0)


def test_the_chart_holds_every_judged_cell(run: Run) -> None:
    matrix = matrices(run.verdict())[0]
    chart = chance_chart(matrix)
    marks = [mark for group in chart.groups for lane in group.lanes for mark in lane.marks]
    assert len(marks) == sum(cell.psnr is not None for cell in run.verdict().cells)
    assert all(0 <= mark.low <= mark.at <= mark.high <= 100 for mark in marks)
    assert chart.axis.high <= AXIS_TOP_DB
    assert chart.groups[0].baselines[0].name == "class mean"
    assert [guess.oracle for guess in chart.groups[0].baselines] == [False, False, False, True, True]


def test_the_best_guess_is_the_verdicts_baseline(run: Run) -> None:
    for group in chance_chart(matrices(run.verdict())[0]).groups:
        assert group.row.worst is not None
        assert group.baselines[0].psnr == pytest.approx(group.row.worst.baseline_psnr)


def test_sparklines(run: Run) -> None:
    cell = run.verdict().rows[0].cells[0]
    spark = sparkline(cell)
    assert spark is not None
    assert spark.iterations == 595
    assert spark.logarithmic
    assert spark.path.count("L") <= 121
    silent = [record.model_copy(update={"trace": ((0, math.nan),)}) for record in cell.records]
    assert sparkline(type(cell)(cell.scenario, cell.defence, cell.attack, cell.aware, tuple(silent))) is None


def test_the_ledger_tells_attackers_apart_only_where_they_differ(run: Run) -> None:
    ledger = {line.name: line for line in merge_ledgers(run.records)}
    assert [name for name, line in ledger.items() if not line.same] == ["defence"]
    assert [given.words for given in ledger["defence"].naive] == ["not known"]
    assert ledger["defence"].aware[1].defences == ("topk:ratio=0.8",)


def test_costs_leave_out_empty_columns(run: Run) -> None:
    table = cost_table(matrices(run.verdict())[0])
    fields = [column.field for column in table.columns]
    assert "bytes_down" not in fields
    assert "extra_passes" not in fields
    assert dict(zip(fields, table.rows[2].figures, strict=True))["epsilon_accounted"] == "∞"
    assert table.rows[0].remarks == ()


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "L")])
def test_png_of_any_channels(channels: int, mode: str) -> None:
    image = torch.full((channels, 5, 7), 0.5)
    image[:, 0, 0] = math.nan
    image[:, 0, 1] = 9.0
    with Image.open(io.BytesIO(encode_png(image))) as picture:
        assert (picture.mode, picture.size) == (mode, (7, 5))
        corner = [picture.getpixel((x, 0)) for x in (0, 1, 2)]
    assert corner == ([0, 255, 128] if mode == "L" else [(v, v, v) for v in (0, 255, 128)])


def test_large_images_are_shrunk() -> None:
    with Image.open(io.BytesIO(encode_png(torch.rand(3, 224, 448)))) as picture:
        assert picture.size == (LARGEST_SIDE, LARGEST_SIDE // 2)


def test_all_reports_are_written(run: Run, tmp_path: Path) -> None:
    paths = write_reports(run, tmp_path / "new", redact=True, fail_on=RiskLevel.HIGH)
    assert {kind: path.name for kind, path in paths.items()} == {
        "html": "report.html",
        "json": "report.json",
        "junit": "junit.xml",
        "sarif": "report.sarif",
    }
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "junit.xml",
        "report.html",
        "report.json",
        "report.sarif",
    ]
    assert "<failure" in paths["junit"].read_text(encoding="utf-8")
    assert "data:image" not in paths["html"].read_text(encoding="utf-8")


def test_hostile_text_is_written(hostile: Run, tmp_path: Path) -> None:
    assert len(write_reports(hostile, tmp_path, redact=False, fail_on=None)) == 4


def test_a_directory_that_cannot_be_made_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="report"):
        write_reports(run, tmp_path / "file", redact=True, fail_on=None)
