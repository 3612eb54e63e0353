"""The protocol: each factor answered in one sentence with interval and reading, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fedseal.audit.factor_tables import factor_tables
from fedseal.audit.factors import scenarios_of
from fedseal.audit.plan import check_names
from fedseal.audit.run import Run
from fedseal.audit.runner import open_run, run_audit
from fedseal.cli.options import preset
from fedseal.cli.protocol import SCALES
from fedseal.core.errors import UsageError
from fedseal.metrics.intervals import FEWEST
from fedseal.report.protocol import protocol_frame, render_protocol_html, small_charts, write_protocol

PLAN = """
data: faces:size=8
attacks: ig:iterations=30
targets: 4
readings: 0
each:
  client.batch_size: [1, 8]
  attacker.public_data: [true, false]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_audit(scenarios_of(PLAN), tmp_path_factory.mktemp("protocol"))


def test_every_factor_has_a_table_of_its_levels(run: Run) -> None:
    tables = factor_tables(run)
    assert [(t.factor, [r.level for r in t.results]) for t in tables] == [
        ("client.batch_size", ["1", "8"]),
        ("attacker.public_data", ["true", "false"]),
    ]
    for table in tables:
        assert all(result.psnr is not None and result.psnr.n == 4 for result in table.results)


def test_levels_apart_matter_and_levels_alike_show_no_difference(run: Run) -> None:
    batch, public = factor_tables(run)
    assert "no difference is shown" in public.sentence()  # plain matching does not look at public data
    assert "between true (" in public.sentence()
    assert " and false (" in public.sentence()
    first = batch.results[0]
    assert first.psnr is not None
    assert f"PSNR {first.psnr.mean:.1f} dB [{first.psnr.low:.1f}, {first.psnr.high:.1f}], n = 4" in batch.sentence()
    assert first.reading in batch.sentence()
    better = replace(run, records=tuple(_raised(r) if r.scenario == first.scenario else r for r in run.records))
    assert factor_tables(better)[0].sentence().startswith("client.batch_size matters: most leaks at 1 ")


def test_draws_of_weights_are_compared_one_by_one(tmp_path: Path) -> None:
    plan = yaml.safe_load(PLAN) | {"targets": 1, "weight_seeds": [0, 1, 2, 3], "each": {"client.batch_size": [1, 8]}}
    run = run_audit(scenarios_of(plan), tmp_path)
    first, second = factor_tables(run)[0].results
    assert len(first.draws) == len(second.draws) == 4

    def played(one: float, other: float) -> str:
        """Scores that vary from draw to draw by 20 dB, and between levels by so much."""
        scores = {first.scenario: (one,) * 4, second.scenario: (0.0, other, 0.0, other)}
        told = []
        for record in run.records:
            score = 20.0 * record.weight_seed + scores[record.scenario][record.weight_seed]
            told.append(record.model_copy(update={"psnr": (score,) * len(record.psnr)}))
        return factor_tables(replace(run, records=tuple(told)))[0].sentence()

    assert "matters: most leaks at 1 " in played(2.0, 0.1)
    assert "+1.9 [+1.6, +2.3] dB under the same draws of weights" in played(2.0, 0.1)
    assert "no difference is shown" in played(0.1, 1.0)


def _raised(record):  # type: ignore[no-untyped-def]
    return record.model_copy(update={"psnr": tuple(90.0 + value / 100 for value in record.psnr)})


def test_factors_of_a_grid_are_told_under_each_level_of_the_others(tmp_path: Path) -> None:
    plan = {
        "data": "faces:size=8",
        "attacks": "ig:iterations=2",
        "targets": 1,
        "readings": 0,
        "grid": {"client.batch_size": [1, 2], "seed": [0, 1]},
    }
    tables = factor_tables(run_audit(scenarios_of(plan), tmp_path))
    assert [(table.factor, table.beside) for table in tables] == [
        ("client.batch_size", {"seed": "0"}),
        ("client.batch_size", {"seed": "1"}),
        ("seed", {"client.batch_size": "1"}),
        ("seed", {"client.batch_size": "2"}),
    ]
    assert all("not decided" in table.sentence() for table in tables)  # one batch has no interval


def test_the_answers_are_written_in_every_form(run: Run, tmp_path: Path) -> None:
    page = write_protocol(run, tmp_path).read_text(encoding="utf-8")
    sentences = [table.sentence() for table in factor_tables(run)]
    machine = json.loads((tmp_path / "protocol.json").read_text())
    assert [one["sentence"] for one in machine["answers"]] == sentences
    assert len(machine["levels"]) == 4
    assert (tmp_path / "protocol.csv").read_text().count("\n") == 5
    assert "| 8 | ig:iterations=30 |" in (tmp_path / "protocol.md").read_text()
    assert page.count("<circle") >= 4
    assert "<script" not in page


def test_frames_have_a_row_for_every_level(run: Run) -> None:
    pytest.importorskip("pandas", reason="the extra `frames` is not installed")
    assert protocol_frame(run)["level"].tolist() == ["1", "8", "true", "false"]


def test_small_charts_share_one_axis(run: Run) -> None:
    charts, ticks = small_charts(factor_tables(run))
    heights = [y for _, y in ticks]
    assert heights == sorted(heights, reverse=True)
    assert all(min(heights) <= dot.y <= max(heights) for chart in charts for dot in chart.dots)


def test_a_name_of_a_level_cannot_bring_markup(run: Run) -> None:
    levels = [one.model_copy(update={"levels": {"<b>x</b>": str(i)}}) for i, one in enumerate(run.scenarios)]
    assert "<b>x</b>" not in render_protocol_html(replace(run, scenarios=tuple(levels)))


def test_a_run_in_which_nothing_varies_has_no_answers(run: Run, tmp_path: Path) -> None:
    alone = replace(run, scenarios=tuple(one.model_copy(update={"levels": {}}) for one in run.scenarios))
    with pytest.raises(UsageError, match="nothing varies"):
        write_protocol(alone, tmp_path)


def test_levels_with_defences_of_their_own_are_compared_by_them(tmp_path: Path) -> None:
    plan = yaml.safe_load(PLAN) | {
        "targets": 1,
        "each": {"defence": {"none": {"defences": "none"}, "others": {"defences": ["minmax", "topk:ratio=0.9"]}}},
    }
    (table,) = factor_tables(run_audit(scenarios_of(plan), tmp_path))
    assert [(one.level, one.defence) for one in table.results] == [
        ("none", "none"),
        ("others, minmax", "minmax"),
        ("others, topk:ratio=0.9", "topk:ratio=0.9"),
    ]
    assert table.surroundings == "each level's own defence"
    assert all(one.row is not None and one.row.defence == one.defence for one in table.results)


def test_an_interrupted_run_says_what_is_missing(run: Run) -> None:
    begun = replace(run, records=run.records[:1])
    assert "too few levels" in factor_tables(begun)[0].sentence()
    assert open_run(run.directory).records == run.records


@pytest.mark.parametrize("scale", SCALES)
def test_shipped_plans_name_what_exists_and_vary_every_factor(scale: str) -> None:
    scenarios = scenarios_of(preset("fedseal.audit.scenario", f"protocol-{scale}"))
    for scenario in scenarios:
        check_names(scenario)
        count = len(scenario.weight_seeds) if len(scenario.weight_seeds) > 1 else scenario.targets
        assert count >= FEWEST, "fewer have no interval, and nothing would be decided"
    factors = {name for scenario in scenarios for name in scenario.levels}
    assert len(factors) == 17
    assert {"client.batch_size", "model", "data", "stage", "initialisation", "client.aggregate", "defence"} <= factors
