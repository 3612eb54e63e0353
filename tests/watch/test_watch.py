"""The watch on updates about to leave: what its rules say, when it reads, what it finds, and whom it tells."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fedseal.audit.levels import RiskLevel
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.watch import export
from fedseal.watch.noise import noisier, raised
from fedseal.watch.readings import Reading, Watched, read
from fedseal.watch.rules import Rule, WatchRules
from fedseal.watch.watch import Pace, Watch


@pytest.mark.parametrize(
    ("condition", "value", "level", "met"),
    [
        ("reading >= high", 15.0, RiskLevel.HIGH, True),
        ("reading > high", 15.0, RiskLevel.HIGH, False),
        ("reading >= very high", 16.0, RiskLevel.HIGH, False),
        ("ideal >= 12.5", 12.5, RiskLevel.MEDIUM, True),
        ("ideal > 12.5", 12.5, RiskLevel.MEDIUM, False),
        ("labels >= 0.5", 0.6, RiskLevel.HIGH, True),
    ],
)
def test_conditions_are_read_as_they_are_written(condition: str, value: float, level: RiskLevel, met: bool):
    assert Rule(condition=condition, then="warn").holds(value, level) is met


@pytest.mark.parametrize(
    "condition", ["reading = high", "reading >= enormous", "loss > 3", "", "ideal >= -3", ">= high"]
)
def test_conditions_that_say_nothing_are_refused(condition: str):
    with pytest.raises(ValidationError):
        WatchRules.model_validate({"rules": [{"if": condition, "then": "refuse"}]})


def test_a_watch_reads_every_k_rounds_and_not_before_rounds_pay_for_it():
    watch = Watch(WatchRules(every=3, overhead=0.1))
    pace, due = Pace(), []
    for _ in range(40):
        pace = pace.worked(1.0)
        due.append(watch.is_due(pace))
        if due[-1]:
            pace = pace.read(0.8)
    read_in = [place for place, one in enumerate(due) if one]
    assert read_in[0] == 0
    assert all(later - earlier >= 3 for earlier, later in pairwise(read_in))
    assert pace.reading <= 0.1 * pace.working + 1e-9
    assert len(read_in) == 5


def test_who_is_read_is_drawn_by_the_client_itself():
    watch = Watch(WatchRules(share=0.25), source=generator(0))
    drawn = sum(watch.is_due(Pace(round=1)) for _ in range(2000))
    assert 400 < drawn < 600


def watched(spec: str, *, size: int = 2) -> Watched:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    private = Batch(torch.rand(size, 1, 8, 8), torch.arange(size) % 10)
    public = Batch(torch.rand(80, 1, 8, 8), torch.arange(80) % 10)
    config = RoundConfig(learning_rate=0.1, upload="delta")
    update = client_round(model, [private], config, build_defence(spec), generator(0)).update
    return Watched(model, update, [private], config, spec, public)


def test_a_bare_update_is_read_whole_and_a_noisy_one_is_not():
    bare, noisy = (
        read(watched(spec, size=1), ("ideal",), images=4)[0] for spec in ("none", "gaussian:sigma=0.5,clip=1.0")
    )
    assert bare.value is not None
    assert noisy.value is not None
    assert bare.level == RiskLevel.VERY_HIGH
    assert noisy.level == RiskLevel.LOW
    assert noisy.value == pytest.approx(noisy.without, abs=0.5)


def test_an_image_is_read_as_if_the_others_of_its_batch_were_known():
    alone = read(watched("gaussian:sigma=0.003,clip=inf", size=1), ("ideal",), images=1)[0]
    among = read(watched("gaussian:sigma=0.003,clip=inf", size=8), ("ideal",), images=1)[0]
    assert alone.value is not None
    assert among.value is not None
    assert alone.value > among.value + 1  # among eight, an image moves the weights an eighth as much


def test_labels_are_read_where_the_update_gives_them_away():
    found = read(watched("none", size=4), ("labels",), images=4)[0]
    assert found.value == pytest.approx(1.0)
    assert found.level == RiskLevel.HIGH
    hidden = read(watched("gaussian:sigma=5.0", size=4), ("labels",), images=4)[0]
    assert hidden.value is not None
    assert hidden.value < 0.7


def test_what_cannot_be_read_says_why():
    many = read(watched("none", size=70), ("labels",), images=4)[0]
    assert many.value is None
    assert "70 images" in many.reason
    few = replace(watched("none"), public=Batch(torch.rand(2, 1, 8, 8), torch.zeros(2, dtype=torch.long)))
    assert "public images" in read(few, ("ideal",), images=1)[0].reason


def test_the_gravest_rule_decides_and_a_reading_that_is_missing_decides_nothing(monkeypatch: pytest.MonkeyPatch):
    rules = [{"if": "reading >= medium", "then": "warn"}, {"if": "ideal >= 15", "then": "refuse"}]
    watch = Watch(WatchRules.model_validate({"rules": rules}))
    readings = [Reading("ideal", 16.0, RiskLevel.HIGH), Reading("labels", None, RiskLevel.LOW)]
    monkeypatch.setattr("fedseal.watch.watch.read", lambda *_, **__: readings)
    assert watch.look(watched("none"), 1).action == "refuse"
    readings[0] = Reading("ideal", 11.0, RiskLevel.MEDIUM)
    assert watch.look(watched("none"), 1).action == "warn"
    readings[0] = Reading("ideal", None, RiskLevel.LOW)
    assert watch.look(watched("none"), 1).action is None


def test_noise_is_raised_by_the_factor_asked_for_and_only_where_something_is_sent():
    update = {"w": torch.tensor([0.0, 3.0, -3.0, 0.0])}
    first = raised("topk", update, 0.0, 2.0)
    assert first == pytest.approx(0.6)  # a tenth of the root mean square, doubled
    assert raised("topk", update, first, 2.0) == pytest.approx(1.2)
    on_top = raised("gaussian:sigma=0.3,clip=1.0", update, 0.0, 2.0)
    assert on_top**2 + 0.3**2 == pytest.approx(0.6**2)
    added = noisier({"w": torch.cat([torch.zeros(10_000), torch.ones(10_000)])}, 0.5, generator(0))["w"]
    assert not added[:10_000].any()
    assert float((added[10_000:] - 1).std()) == pytest.approx(0.5, rel=0.05)


FIGURES = {"fedseal-ideal": 12.5, "fedseal-ideal-level": 1.0}


def test_readings_become_lines_of_json_that_only_their_owner_reads(tmp_path: Path):
    sink = export.JsonLines(tmp_path / "watch" / "readings.jsonl")
    for number in (1, 2):
        sink({**FIGURES, "odd": float("inf")}, round_number=number, federation="f", client="c")
    path = tmp_path / "watch" / "readings.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert lines[0]["fedseal-ideal"] == 12.5
    assert lines[0]["odd"] is None
    assert path.stat().st_mode & 0o777 == 0o600


def test_readings_become_gauges_in_a_file_that_a_nodes_exporter_collects(tmp_path: Path):
    parser = pytest.importorskip("prometheus_client.parser", reason="the extra `metrics` is not installed")
    sink = export.Prometheus(textfile=tmp_path / "fedseal.prom")
    for number in (1, 11):
        sink({**FIGURES, "fedseal-ideal": float(number)}, round_number=number, federation="f", client="site-1")
    families = {
        family.name: family for family in parser.text_string_to_metric_families((tmp_path / "fedseal.prom").read_text())
    }
    assert families["fedseal_ideal"].samples[0].value == 11.0
    assert families["fedseal_ideal"].samples[0].labels == {"federation": "f", "client": "site-1"}
    assert families["fedseal_round"].samples[0].value == 11.0


@pytest.mark.parametrize(("kind", "package"), [("TensorBoard", "tensorboard"), ("MLflow", "mlflow")])
def test_a_library_that_is_absent_is_asked_for_by_name(kind: str, package: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(CapabilityError, match=f"pip install .*{package}"):
        getattr(export, kind)(*(["runs"] if kind == "TensorBoard" else []))


@pytest.mark.slow
def test_the_learned_reading_finds_an_open_update_and_nothing_in_one_under_noise():
    """An attack that learnt on rehearsed updates of public images: digits, as the private one is."""
    data = DATASETS.build("digits:size=14")
    public, private = data.batch(torch.arange(0, 5000, 5)), data.batch(torch.tensor([1]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(196, 32), nn.Tanh(), nn.Linear(32, 10))
    config = RoundConfig(learning_rate=0.1)
    found = {}
    for spec in ("none", "gaussian:sigma=1"):
        done = client_round(model, [private], config, build_defence(spec), generator(0))
        one = Watched(model, done.update, [private], config, spec, public)
        (found[spec],) = read(one, ["learned"], images=1)
        assert found[spec].value is not None, found[spec].reason
    assert found["none"].value > found["none"].without + 2
    assert found["none"].level > RiskLevel.LOW
    assert found["gaussian:sigma=1"].value < found["none"].value - 2


def test_tensorboard_reads_back_what_it_was_told(tmp_path: Path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    sink = export.TensorBoard(tmp_path)
    for number in (1, 11):
        sink({"fedseal-ideal": float(number)}, round_number=number, federation="f", client="site-1")
    kept = events.EventAccumulator(str(tmp_path)).Reload().Scalars("f/site-1/fedseal-ideal")
    assert [(point.step, point.value) for point in kept] == [(1, 1.0), (11, 11.0)]


def test_mlflow_keeps_what_it_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        sink = export.MLflow()
        for number in (1, 11):
            sink({"fedseal-ideal": float(number)}, round_number=number, federation="f", client="site-1")
    kept = mlflow.MlflowClient().get_metric_history(run.info.run_id, "f/site-1/fedseal-ideal")
    assert [(point.step, point.value) for point in kept] == [(1, 1.0), (11, 11.0)]
