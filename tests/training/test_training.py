"""Training under defences: twins, refusals, resuming, the store, and what the report says of it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from sklearn.metrics import roc_auc_score

from fedseal.core.errors import InputError, UsageError
from fedseal.core.watcher import Task, Tick, Watcher
from fedseal.federation.simulation import FederationConfig, History
from fedseal.metrics.classification import class_accuracies, macro_auc
from fedseal.metrics.utility import has_learnt
from fedseal.report.curves import HEIGHT, WIDTH, curve_chart, partition_chart
from fedseal.report.tables import run_table
from fedseal.report.training_page import render_training_html, write_training_report
from fedseal.report.training_table import render_training
from fedseal.report.utility import render_utility
from fedseal.store.database import Store
from fedseal.training.run import Training, TrainingRun, open_training
from fedseal.training.runner import run_training
from fedseal.training.scenario import TrainingScenario, load_training, validate_training
from fedseal.training.setup import build_federation

BASE: dict[str, Any] = {
    "data": "digits",
    "images": 400,
    "model": "mlp:width=16",
    "clients": 4,
    "federation": {"rounds": 4, "local_steps": 4, "batch_size": 16, "learning_rate": 0.1, "evaluate_every": 2},
    "defences": ["topk:ratio=0.95", "secagg:clients=9"],
    "seeds": [0, 1],
}


def scenario_of(**changes: Any) -> TrainingScenario:
    return validate_training({**BASE, **changes}, source="test")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return run_training(scenario_of(), tmp_path_factory.mktemp("run"), command="fedseal train <a & b>")


def test_every_defence_has_an_undefended_twin_of_each_seed(run: TrainingRun) -> None:
    assert [(t.defence, t.seed, t.history is not None) for t in run.trainings] == [
        ("none", 0, True),
        ("topk:ratio=0.95", 0, True),
        ("secagg:clients=9", 0, False),
        ("none", 1, True),
        ("topk:ratio=0.95", 1, True),
        ("secagg:clients=9", 1, False),
    ]
    plain, pruned, refused = run.utilities
    assert plain.pmm is not None
    assert (plain.pmm.mean, plain.pmm.low, plain.pmm.n) == (100, None, 2)  # two seeds have no interval
    assert pruned.pmm is not None
    pairs = [[t.history.accuracy for t in run.trainings if t.history and t.seed == seed] for seed in (0, 1)]
    assert pruned.pmm.mean == pytest.approx(50 * sum(b / a for a, b in pairs))
    assert pruned.pmm.n == 2
    assert pruned.bytes_up is not None
    assert plain.bytes_up is not None
    assert pruned.bytes_up < 0.2 * plain.bytes_up
    assert "averages 9 clients, a round has 4" in refused.refused
    assert not any(t.failed for t in run.trainings)
    starts = [t.history.initial_loss for t in run.trainings if t.history]
    assert starts[0] == starts[1] != starts[2] == starts[3]


def test_the_target_is_a_share_of_the_undefended_accuracy_unless_it_is_given(run: TrainingRun, tmp_path: Path) -> None:
    plain = run.utilities[0]
    assert plain.accuracy is not None
    assert run.target == pytest.approx(0.9 * plain.accuracy.mean)
    given = run_training(scenario_of(target_accuracy=0.99, seeds=0, defences="none"), tmp_path)
    assert given.target == 0.99
    assert given.utilities[0].rounds is None
    assert given.utilities[0].reached == 0


def test_a_run_is_read_back_as_it_was_and_every_round_is_in_the_store(run: TrainingRun) -> None:
    again = open_training(run.directory)
    assert again == run
    with Store(run.directory, writable=False) as store:
        key = store.meta()["trainings"][0][2]
        history = run.trainings[0].history
        assert history is not None
        assert store.load_rounds(key) == history.rounds


class Watching(Watcher):
    def __init__(self, stop: int | None = None) -> None:
        self.rounds: list[float] = []
        self.done: list[float] = []
        self.stop = stop

    def started(self, task: Task) -> None:
        self.done.append(task.begun)

    def advanced(self, task: Task, tick: Tick) -> None:
        self.rounds.append(tick.done)
        if len(self.rounds) == self.stop:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_and_what_has_ended_is_not_trained_again(run: TrainingRun, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_training(scenario_of(), tmp_path, watcher=Watching(stop=6))
    assert open_training(tmp_path).utilities[1].refused == "not finished"
    watching = Watching()
    resumed = run_training(scenario_of(), tmp_path, watcher=watching)
    assert watching.done[:2] == [4, 2]
    assert len(watching.rounds) == 16 - 6
    curves = [[t.history.curve for t in each.trainings if t.history] for each in (run, resumed)]
    assert curves[0] == curves[1]
    idle = Watching()
    run_training(scenario_of(), tmp_path, watcher=idle)
    assert idle.rounds == []


def test_other_settings_are_other_trainings(tmp_path: Path) -> None:
    first = run_training(scenario_of(seeds=0, defences="none"), tmp_path)
    second = run_training(scenario_of(seeds=0, defences="none", partition="classes:per_client=3"), tmp_path)
    assert first.trainings != second.trainings
    assert len(open_training(tmp_path).trainings) == 1


def test_data_without_a_test_part_is_split_and_nothing_is_in_both() -> None:
    federation = build_federation(scenario_of(images=None, test_fraction=0.25), 0)
    assert len(federation.test) == len(federation.train) // 3
    assert len(torch.cat(federation.partition.indices)) == len(federation.train)
    seen = {image.numpy().tobytes() for image in federation.train.images}
    held_out = {image.mul(255).round().to(torch.uint8).numpy().tobytes() for image in federation.test.images}
    assert len(seen & held_out) <= 2  # the same digit may occur twice in the set itself
    assert 0.08 < federation.chance < 0.2


@pytest.mark.shared
def test_data_with_a_test_part_is_measured_on_it(shared: Path) -> None:
    federation = build_federation(scenario_of(data="cifar10", images=500), 0, data_root=shared / "data")
    assert len(federation.test) == 2000
    assert len(federation.train) == 500


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"defences": ["topkk"]}, UsageError, "'topkk'"),
        ({"partition": "nonsense"}, UsageError, "'nonsense'"),
        ({"images": 10**9}, InputError, "more than the"),
        ({"test": "faces"}, InputError, "must be of one kind"),
        ({"clients": 401}, InputError, "cannot deal"),
    ],
)
def test_what_cannot_be_trained_is_said(change: dict[str, Any], kind: type, said: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=said):
        run_training(scenario_of(**change), tmp_path)


def test_a_file_with_a_wrong_key_is_answered_with_line_and_near_match(tmp_path: Path) -> None:
    path = tmp_path / "training.yaml"
    path.write_text("data: digits\nfederation:\n  round: 3\n")
    with pytest.raises(UsageError, match=r"line 3: there is no key 'federation\.round'.*'rounds'"):
        load_training(path)
    path.write_text("federation:\n  local_steps: 2\n  local_epochs: 2\n")
    with pytest.raises(UsageError, match="give local_steps or local_epochs, not both"):
        load_training(path)
    with Store(tmp_path / "empty", writable=True):
        pass
    with pytest.raises(UsageError, match="holds no training"):
        open_training(tmp_path / "empty")


# The report


def test_curves_lie_in_their_box_and_rise_with_accuracy(run: TrainingRun) -> None:
    chart = curve_chart(run)
    assert [line.utility.defence for line in chart.lines] == ["none", "topk:ratio=0.95"]
    for line in chart.lines:
        points = [tuple(map(float, point.split())) for point in line.path.removeprefix("M").split(" L")]
        assert [x for x, _ in points] == [0, WIDTH / 2, WIDTH]
        heights = [HEIGHT * (1 - accuracy / chart.top) for _, accuracy in line.utility.curve]
        assert [y for _, y in points] == pytest.approx(heights, abs=0.06)
    assert len({(line.hue, line.dash) for line in chart.lines}) == 2
    assert chart.chance == pytest.approx(HEIGHT * (1 - run.chance / chart.top), abs=0.06)


def test_bars_are_as_wide_as_clients_hold_images(run: TrainingRun) -> None:
    chart = partition_chart(run)
    assert [bar.images for bar in chart.bars] == [100] * 4
    for bar in chart.bars:
        assert sum(segment.images for segment in bar.segments) == bar.images
        assert sum(segment.width for segment in bar.segments) == pytest.approx(100, abs=0.1)
        for segment, following in zip(bar.segments, bar.segments[1:], strict=False):
            assert following.start == pytest.approx(segment.start + segment.width, abs=0.01)


def test_the_page_holds_everything_and_nothing_from_outside(run: TrainingRun, tmp_path: Path) -> None:
    page = render_training_html(run)
    for text in ("topk:ratio=0.95", "averages 9 clients", "Who holds what", "client-3", "&lt;a", "b&gt;"):
        assert text in re.sub("<wbr>", "", page)
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(drawing)
    assert write_training_report(run, tmp_path).read_text() == page


def test_the_document_states_setting_chance_and_every_row(run: TrainingRun) -> None:
    text = render_utility(run)
    rows = [line for line in text.splitlines() if line.startswith("| `topk")]
    assert len(rows) == 3  # costs, curve, classes
    assert {line.count("|") for line in text.splitlines() if line.startswith("|") and "PMM" in line} == {10}
    assert "not trained: secagg averages 9 clients" in text
    assert f"Chance: {run.chance:.1%}" in text
    assert "seeds 0, 1" in text
    assert "[" not in rows[0]  # two seeds have no interval


def test_what_clients_defences_say_is_reported_with_who_says_it(tmp_path: Path) -> None:
    defences = ["lids:samples=2,epochs=1,cache=false", "minmax"]
    done = run_training(
        scenario_of(data="digits:size=8", defences=defences, seeds=[0], images=80, model="lenet-relu"), tmp_path
    )
    _, lids, plain = done.utilities
    assert sum("of the synthetic images reach tau = 18 dB" in remark for remark in lids.remarks) >= 1
    built = [remark for remark in lids.remarks if "built once in" in remark]  # in seconds, alike for all or not
    assert len(built) == 1 or all(remark.startswith("client-") for remark in built)
    assert plain.remarks == ()
    text = render_utility(done)
    assert "What the clients' defences say (seed 0)" in text
    assert all(f"- `{lids.defence}`: {remark}." in text for remark in lids.remarks)
    assert "reach tau" in render_training_html(done)
    write_training_report(done, tmp_path)
    assert json.loads((tmp_path / "training.json").read_text())["defences"][1]["remarks"] == list(lids.remarks)


def test_a_run_in_which_nothing_ended_is_reported_too(run: TrainingRun) -> None:
    none = TrainingRun(
        run.directory, scenario_of(), (Training("none", 0, None, "x"),), run.counts, run.classes, "", 9, 0.1,
        run.environment,
    )  # fmt: skip
    assert "Nothing was trained" in render_utility(none)
    assert "No training has ended yet" in render_training_html(none)


def test_every_documented_key_exists_and_every_key_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1].split(",") for line in text.splitlines() if line.startswith("| `")]
    documented = set()
    for cell in cells:
        keys = [key.strip().strip("`") for key in cell]
        documented |= {f"federation{key}" if key.startswith(".") else key for key in keys}
    nested = {f"federation.{key}" for key in FederationConfig.model_fields if key != "seed"}
    assert documented == (set(TrainingScenario.model_fields) - {"federation"}) | nested


# Chance: what has learnt nothing recommends nothing


AT_CHANCE: dict[str, Any] = {"defences": "none", "seeds": 0, "federation": {"rounds": 1, "learning_rate": 1e-9}}


def test_a_federation_at_chance_is_said_to_have_learnt_nothing(tmp_path: Path) -> None:
    run = run_training(scenario_of(**AT_CHANCE), tmp_path)
    plain = run.utilities[0]
    assert "learnt nothing" in run.caution
    assert (plain.learnt, plain.pmm) == (False, None)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_training(run))
    for text in (render_training_html(run), render_utility(run), console.export_text()):
        assert "learnt nothing" in " ".join(text.split())
        assert "(chance)" in text


def test_a_federation_that_learns_has_no_caution(run: TrainingRun) -> None:
    assert run.caution == ""
    assert [one.learnt for one in run.utilities] == [True, run.utilities[1].learnt, False]


@pytest.mark.parametrize(
    ("accuracy", "chance", "n", "learnt"),
    [
        (0.5, 0.5, 10_000, False),
        (0.52, 0.5, 10_000, False),  # significant, but nothing
        (0.60, 0.5, 10, False),  # six of ten is luck
        (0.60, 0.5, 400, True),
        (0.13, 0.1, 200, False),
        (0.20, 0.1, 1000, True),
        (1.0, 1.0, 1000, False),
    ],
)
def test_more_than_chance_is_more_than_luck_and_more_than_a_trifle(
    accuracy: float, chance: float, n: int, learnt: bool
) -> None:
    assert has_learnt(accuracy, chance, n) == learnt


def test_a_target_that_chance_reaches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"5\.0% is no more than chance.*scores 1\d\.\d%"):
        run_training(scenario_of(target_accuracy=0.05), tmp_path)


def test_a_target_derived_from_a_model_near_chance_is_none(run: TrainingRun) -> None:
    low = dataclasses.replace(run, chance=0.95)
    assert low.target is None
    assert "| – |" in render_utility(low)


# For programs


def test_everything_is_there_as_json_and_csv(run: TrainingRun, tmp_path: Path) -> None:
    write_training_report(run, tmp_path)
    data = json.loads((tmp_path / "training.json").read_text())
    assert [one["defence"] for one in data["defences"]] == ["none", "topk:ratio=0.95", "secagg:clients=9"]
    assert (data["chance"], data["target"], data["learnt"]) == (run.chance, run.target, True)
    first = run.trainings[0].history
    assert first is not None
    assert History.model_validate(data["trainings"][0]["history"]) == first
    plain, pruned, refused = csv.DictReader(io.StringIO((tmp_path / "training.csv").read_text()))
    assert run.utilities[1].pmm is not None
    assert float(pruned["pmm.mean"]) == run.utilities[1].pmm.mean
    assert float(plain["class_accuracy.0"]) == run.utilities[0].class_accuracy[0]
    assert "averages 9 clients" in refused["refused"]
    rounds = list(csv.DictReader(io.StringIO((tmp_path / "rounds.csv").read_text())))
    assert len(rounds) == 4 * 4 + 2  # four trainings of four rounds, two that were refused
    assert rounds[0]["accuracy"] == ""  # not measured in that round
    assert float(rounds[1]["auc"]) == first.rounds[1].auc


def test_the_table_command_reads_a_training(run: TrainingRun) -> None:
    assert run_table(run.directory, "markdown") == render_utility(run)
    assert json.loads(run_table(run.directory, "json"))["schema"] == "fedseal-training"
    assert run_table(run.directory, "csv").startswith("defence,refused,learnt,accuracy.mean,")


def test_accuracy_is_the_mean_of_the_classes_by_their_images(run: TrainingRun) -> None:
    federation = build_federation(scenario_of(), 0)
    history = run.trainings[0].history
    assert history is not None
    counts = torch.bincount(federation.test.labels, minlength=10).tolist()
    right = sum(share * count for share, count in zip(history.class_accuracy, counts, strict=True) if share is not None)
    assert right == pytest.approx(history.accuracy * len(federation.test))


# AUC, against scikit-learn


def test_auc_is_scikit_learns() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (200,), generator=draw)
    logits = torch.randn(200, 4, generator=draw).round(decimals=1)  # with ties
    logits[torch.arange(200), labels] += 0.7
    expected = roc_auc_score(labels.numpy(), logits.double().softmax(1).numpy(), multi_class="ovr")
    assert macro_auc(logits, labels) == pytest.approx(expected, abs=1e-12)
    two = (labels > 1).long()
    expected = roc_auc_score(two.numpy(), logits[:, 0].numpy())
    assert macro_auc(logits[:, 0], two) == pytest.approx(expected, abs=1e-12)
    assert macro_auc(logits[:, :1], two) == macro_auc(logits[:, 0], two)


def test_auc_and_class_accuracies_say_where_they_are_not_defined() -> None:
    labels = torch.tensor([0, 0, 2])
    assert macro_auc(torch.zeros(3, 3), torch.zeros(3, dtype=torch.long)) is None
    assert macro_auc(torch.full((3, 3), float("nan")), labels) is None
    assert macro_auc(torch.zeros(3, 3), labels) == 0.5
    assert class_accuracies(torch.tensor([True, False, True]), labels, 3) == (0.5, None, 1.0)
