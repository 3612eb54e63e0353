"""The trade-off: sweeps are read right, both halves are measured and joined, the pictures hold what the table says."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from fedseal.audit.scenario import AttackerConfig
from fedseal.core.defence import DEFENCES
from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.federation.simulation.config import FederationConfig
from fedseal.metrics.intervals import Interval
from fedseal.report.leaderboard import leaderboard, rank_tradeoff
from fedseal.report.tables import run_table
from fedseal.report.tradeoff import render_tradeoff, write_tradeoff_reports
from fedseal.report.tradeoff_chart import tradeoff_chart
from fedseal.report.tradeoff_machine import tradeoff_json
from fedseal.tradeoff.curves import Point, Tradeoff, open_tradeoff, run_tradeoff
from fedseal.tradeoff.scenario import TradeoffScenario
from fedseal.tradeoff.sweeps import parse_sweep, split_sweeps


def test_sweeps_are_read() -> None:
    assert parse_sweep("topk:ratio=0.5/0.8").defences == ("topk:ratio=0.5", "topk:ratio=0.8")
    fixed = parse_sweep("topk:feedback=true,ratio=0.5/0.8")
    assert fixed.defences == ("topk:ratio=0.5,feedback=true", "topk:ratio=0.8,feedback=true")
    assert fixed.family == "topk:feedback=true"
    assert parse_sweep("gaussian").defences == tuple(
        f"gaussian:{strength}" for strength in DEFENCES.entry("gaussian").info.strengths
    )
    assert parse_sweep("mixup").defences == ("mixup",)
    assert split_sweeps("dgp:k1=0.05,k2=0.5/0.7,topk, gaussian:sigma=0.1") == [
        "dgp:k1=0.05,k2=0.5/0.7",
        "topk",
        "gaussian:sigma=0.1",
    ]


@pytest.mark.parametrize("name", [name for name in DEFENCES.names() if DEFENCES.entry(name).info.strengths])
def test_the_usual_strengths_can_be_built(name: str) -> None:
    assert len(parse_sweep(name).defences) > 1


def test_what_is_no_sweep_is_refused() -> None:
    with pytest.raises(UsageError, match="several options"):
        parse_sweep("dgp:k1=0.05/0.1,k2=0.5/0.7")
    with pytest.raises(FedsealError, match="topkk"):
        parse_sweep("topkk:ratio=0.5/0.8")
    with pytest.raises(UsageError, match="option of no defence"):
        split_sweeps("topk,ratio=0.5")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Tradeoff:
    directory = tmp_path_factory.mktemp("tradeoff")
    scenario = TradeoffScenario(
        data="digits",
        model="mlp",
        clients=4,
        federation=FederationConfig(algorithm="fedsgd", rounds=4, batch_size=16, evaluate_every=2),
        defences=("topk:ratio=0.5/0.9", "none", "dp-sgd:sigma=0.1"),
        attacks=("first-layer", "ig:iterations=5"),
        attacker=AttackerConfig(labels="true"),  # to rehearse them under each defence takes half of the time
        targets=2,
    )
    run_tradeoff(scenario, directory)
    return open_tradeoff(directory)


def test_every_point_has_both_sides(measured: Tradeoff) -> None:
    assert [curve.sweep.family for curve in measured.curves] == ["topk", "dp-sgd:sigma=0.1"]
    for point in [measured.undefended, *(p for curve in measured.curves for p in curve.points)]:
        assert point.pmm is not None
        for aware in (False, True):
            cell = point.cell(aware=aware)
            assert cell is not None
            assert cell.psnr is not None
            assert cell.psnr.n == 2
        single = point.cell(aware=False, attack="ig:iterations=5")
        assert single is not None
        assert single.attack == "ig:iterations=5"
    assert measured.undefended.pmm is not None
    assert measured.undefended.pmm.mean == 100.0
    worst = measured.undefended.worst
    assert worst is not None
    assert worst.attack == "first-layer"  # exact on a linear first layer
    assert worst.psnr is not None
    assert worst.psnr.mean > 40


def test_it_resumes_without_running_anything_again(measured: Tradeoff) -> None:
    before = sorted(path.stat().st_mtime_ns for path in (measured.directory / "audit").rglob("*.safetensors"))
    run_tradeoff(measured.scenario, measured.directory)
    after = sorted(path.stat().st_mtime_ns for path in (measured.directory / "audit").rglob("*.safetensors"))
    assert before == after


def test_the_pictures_and_the_table_say_the_same(measured: Tradeoff, tmp_path: Path) -> None:
    paths = write_tradeoff_reports(measured, tmp_path)
    chart = tradeoff_chart(measured)
    assert {(line.family, line.aware) for line in chart.lines} == {
        (curve.sweep.family, aware) for curve in measured.curves for aware in (False, True)
    }
    svg = ElementTree.fromstring(paths["svg"].read_text())
    circles = [node for node in svg.iter() if node.tag.endswith("circle")]
    assert len(circles) == sum(len(line.dots) for line in chart.lines) + 1
    html = paths["html"].read_text()
    assert html.count("<circle") >= len(circles)
    picture = Image.open(io.BytesIO(paths["png"].read_bytes()))
    assert picture.size[0] > 1000
    assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 10
    table = render_tradeoff(measured)
    for spec in measured.scenario.specs:
        assert f"| `{spec}` |" in table


def test_a_directory_without_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no trade-off"):
        open_tradeoff(tmp_path)


def test_what_has_learnt_nothing_recommends_nothing(measured: Tradeoff) -> None:
    weak = dataclasses.replace(measured.training, chance=0.99)
    points = {u.defence: u for u in weak.utilities}
    curves = tuple(
        dataclasses.replace(c, points=tuple(dataclasses.replace(p, utility=points[p.defence]) for p in c.points))
        for c in measured.curves
    )
    undefended = dataclasses.replace(measured.undefended, utility=points["none"])
    poor = dataclasses.replace(measured, training=weak, curves=curves, undefended=undefended)
    assert [curve.best for curve in poor.curves] == [None, None]
    text = render_tradeoff(poor)
    assert "learnt nothing" in text
    assert text.count("none is recommended: the undefended federation has learnt nothing") == 2
    assert "leaks least" not in text
    assert json.loads(tradeoff_json(poor))["recommended"] == {"topk": None, "dp-sgd:sigma=0.1": None}


def test_a_strength_at_chance_is_never_the_best_however_much_accuracy_it_keeps(measured: Tradeoff) -> None:
    curve = measured.curves[0]
    kept = Interval(95.0, None, None, 1)
    points = [
        dataclasses.replace(p, utility=dataclasses.replace(p.utility, pmm=kept, learnt=learnt))
        for p, learnt in zip(curve.points, (False, True), strict=True)
    ]
    assert dataclasses.replace(curve, points=tuple(points)).best == points[1]
    assert dataclasses.replace(curve, points=tuple(points[:1])).best is None


def test_everything_is_there_as_json_and_csv(measured: Tradeoff) -> None:
    data = json.loads(run_table(measured.directory, "json"))
    assert [point["defence"] for point in data["points"]] == [point.defence for point in measured.points]
    rows = list(csv.DictReader(io.StringIO(run_table(measured.directory, "csv"))))
    cells = [cell for point in measured.points if point.row for cell in point.row.cells]
    assert [(row["defence"], row["attack"], row["aware"]) for row in rows] == [
        (cell.defence, cell.attack, str(cell.aware)) for cell in cells
    ]
    assert [float(row["psnr.mean"]) for row in rows] == [cell.psnr.mean for cell in cells if cell.psnr]
    assert run_table(measured.directory, "markdown") == render_tradeoff(measured)


def test_a_leaderboard_ranks_what_learnt_within_its_class_of_utility(measured: Tradeoff) -> None:
    def as_if(point: Point, kept: float, *, learnt: bool = True) -> Point:
        pmm = Interval(kept, kept, kept, 1)
        return dataclasses.replace(point, utility=dataclasses.replace(point.utility, pmm=pmm, learnt=learnt))

    def of(*kept: float, learnt: bool = True) -> Tradeoff:
        curves = [
            dataclasses.replace(
                curve, points=tuple(as_if(p, k, learnt=learnt) for p, k in zip(curve.points, kept, strict=False))
            )
            for curve in measured.curves
        ]
        return dataclasses.replace(measured, undefended=as_if(measured.undefended, 100), curves=tuple(curves))

    boards = list(rank_tradeoff(of(99, 91)))
    assert [board.title for board in boards] == ["keeps 98 % or more", "keeps 90 % or more"]
    assert [[line.name for line in board.lines] for board in boards][1] == [measured.curves[0].points[1].defence]
    assert {line.name for line in boards[0].lines} >= {"none", "dp-sgd:sigma=0.1"}
    assert all(len(line.figures) == len(board.columns) for board in boards for line in board.lines)
    assert [line.name for board in rank_tradeoff(of(99, 91, learnt=False)) for line in board.lines] == ["none"]
    assert leaderboard([measured.directory]).attacks
