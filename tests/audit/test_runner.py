"""Audits from Python: seeds, resuming, failures beside successes, several scenarios, and what a run leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.audit.runner import open_run, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.core.errors import InputError, UsageError
from fedseal.core.watcher import Severity, Task, Tick, Watcher

NETS = """
import random
import torch
from torch import nn

class Squeamish(nn.Module):
    # works on pictures and breaks on what an optimiser starts from
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 2)
    def forward(self, x):
        if ((x < 0) | (x > 1)).any():
            raise LookupError("this is no picture")
        return self.last(self.first(x.flatten(1)).sigmoid())

def unseeded():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    with torch.no_grad():
        model[1].weight.fill_(random.SystemRandom().random())
    return model

class Moody(nn.Module):
    broken = True
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    def forward(self, x):
        if Moody.broken and torch.is_grad_enabled():
            raise LookupError("in a mood")
        return self.layers(x)
"""


@pytest.fixture(autouse=True, scope="module")
def _nets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("nets")
    (directory / "runner_test_nets.py").write_text(NETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        yield


def scenario(**values: Any) -> Scenario:
    small = {"data": "faces:size=8", "attacks": ["ig:iterations=3"], "targets": 2, "readings": 0}
    return Scenario.model_validate(small | values)


def numbers(run: Run) -> list[dict[str, Any]]:
    """Return all that a run measured but the time it took."""
    records = [record.model_dump(exclude={"seconds"}) for record in run.records]
    for record in records:
        record["cost"].pop("seconds", None)
    return records


class Recording(Watcher):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.remarks: list[str] = []
        self.stored: list[tuple[int, int]] = []

    def planned(self, what: str, total: int, done: int) -> None:
        assert what == "trials"
        self.stored.append((total, done))

    def remarked(self, severity: Severity, text: str) -> None:
        self.remarks.append(f"{severity}: {text}")

    def started(self, task: Task) -> None:
        self.told.append(f"started {task.title}")

    def advanced(self, task: Task, tick: Tick) -> None:
        assert 0 <= tick.done <= task.size
        assert set(tick.readings) == {"psnr_db"}
        self.told.append(f"advanced {task.title}")

    def finished(self, task: Task, count: int) -> None:
        assert count == 2
        self.told.append(f"finished {task.title}")


def test_a_run_says_what_it_found_and_is_read_back_the_same(tmp_path: Path):
    run = run_audit([scenario(defences=["none", "topk"])], tmp_path, command="the command")
    assert run.planned == len(run.records) == 6
    assert {record.status for record in run.records} == {"ok"}
    assert open_run(tmp_path) == run
    assert run.command == "the command"
    assert run.environment["audit: seed"] == "0"
    first = run.records[0]
    assert set(first.baselines) == {"mean_image", "class_mean", "nearest", "noise", "flat"}
    assert first.knowledge["batch size"] == "1"
    assert first.cost["bytes_up"] > 0
    assert first.trace[0][0] == 0
    images = run.images(first)
    assert images is not None
    originals, reconstructions = images
    assert originals.shape == reconstructions.shape == (1, 1, 8, 8)
    assert 0 <= float(reconstructions.min()) <= float(reconstructions.max()) <= 1
    assert first.artefact is not None
    assert set(load_file(tmp_path / first.artefact)) >= {"originals", "reconstructions", "line_up.0"}
    pictures = run.line_up(first, 0)
    assert pictures is not None
    assert pictures.shape == (len(first.top[0]), 1, 8, 8)
    assert set(first.ranks) == {"correlation", "mse", "ssim"}
    assert first.line_up == (54,)  # 70 private images, a quarter kept for targets, the others strangers; and itself
    assert first.label_chance is not None
    assert 0.5 <= first.label_chance <= 0.8


def test_the_same_seed_gives_the_same_numbers_and_another_does_not(tmp_path: Path):
    def run(seed: int, place: str) -> list[dict[str, Any]]:
        return numbers(run_audit([scenario(seed=seed, defences=["none", "gaussian:sigma=0.1"])], tmp_path / place))

    one, same, other = run(1, "one"), run(1, "same"), run(2, "other")
    assert one == same
    assert [record["psnr"] for record in one] != [record["psnr"] for record in other]
    assert not {record["key"] for record in one} & {record["key"] for record in other}


def test_numbers_do_not_depend_on_threads_or_the_global_generator(tmp_path: Path):
    values: dict[str, Any] = {"data": "faces:size=32", "model": "convnet:width=4", "targets": 1}
    expected = numbers(run_audit([scenario(**values)], tmp_path / "one"))
    torch.manual_seed(123)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        got = numbers(run_audit([scenario(**values)], tmp_path / "two"))
    finally:
        torch.set_num_threads(before)
    assert got == expected


def test_targets_share_no_image(tmp_path: Path):
    run = run_audit([scenario(targets=6, client={"batch_size": 2})], tmp_path)
    pictures = []
    for record in run.records:
        images = run.images(record)
        assert images is not None
        pictures += [picture.numpy().tobytes() for picture in images[0]]
    assert len(set(pictures)) == 12


def test_a_finished_run_is_not_run_again(tmp_path: Path):
    first = run_audit([scenario()], tmp_path)
    watcher = Recording()
    again = run_audit([scenario()], tmp_path, watcher=watcher)
    assert watcher.stored == [(2, 2)]
    assert watcher.told == []
    assert again == first


def test_a_larger_plan_runs_only_what_is_new(tmp_path: Path):
    first = run_audit([scenario()], tmp_path)
    watcher = Recording()
    more = run_audit([scenario(defences=["topk", "none"])], tmp_path, watcher=watcher)
    assert watcher.stored == [(6, 2)]
    title = "ig:iterations=3 on topk"
    assert {text for text in watcher.told if text.startswith("started")} == {
        f"started {title}",
        f"started {title}, known",
    }
    assert [record for record in more.records if record.defence == "none"] == list(first.records)


def test_more_targets_run_only_those_that_are_new_and_find_what_one_run_of_all_finds(tmp_path: Path):
    options: dict[str, Any] = {"attacks": ["gradinversion:iterations=3,restarts=2", "idlg:iterations=3"]}
    run_audit([scenario(targets=1, **options)], tmp_path / "grown")
    watcher = Recording()
    grown = run_audit([scenario(targets=3, **options)], tmp_path / "grown", watcher=watcher)
    assert watcher.stored == [(6, 2)]
    assert sum(text.startswith("finished") for text in watcher.told) == 2  # `finished` counts the two new targets
    assert numbers(grown) == numbers(run_audit([scenario(targets=3, **options)], tmp_path / "at-once"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_watcher_is_told_in_order_while_it_happens(tmp_path: Path, workers: int):
    watcher = Recording()
    run_audit([scenario(client={"normalise": True, "batch_size": 2})], tmp_path, watcher=watcher, workers=workers)
    title = "ig:iterations=3 on none"
    assert watcher.told[:2] == [f"started {title}", f"advanced {title}"]
    assert watcher.told[-1] == f"finished {title}"


def test_a_watcher_hears_the_doctor(tmp_path: Path):
    watcher = Recording()
    run = run_audit([scenario(client={"dtype": "float16"})], tmp_path, watcher=watcher)
    expected = [f"{found.severity}: {found.topic}: {found.text}" for found in run.findings["audit"]]
    estimate, *remarks = watcher.remarks
    assert remarks == expected != []
    assert estimate.startswith("note: estimate: about ")


def test_a_renamed_scenario_keeps_its_results_under_its_new_name(tmp_path: Path):
    first = run_audit([scenario(name="before")], tmp_path)
    watcher = Recording()
    renamed = run_audit([scenario(name="after")], tmp_path, watcher=watcher)
    assert watcher.stored == [(2, 2)]
    assert {record.scenario for record in renamed.records} == {"after"}
    assert [record.psnr for record in renamed.records] == [record.psnr for record in first.records]


def test_several_scenarios_are_kept_apart(tmp_path: Path):
    run = run_audit([scenario(name="one"), scenario(name="two", seed=5), scenario(name="same-as-one")], tmp_path)
    assert run.planned == len(run.records) == 6
    by_name = {name: [r.psnr for r in run.records if r.scenario == name] for name in ("one", "two", "same-as-one")}
    assert by_name["one"] == by_name["same-as-one"] != by_name["two"]
    assert [row.scenario for row in run.verdict().rows] == ["one", "two", "same-as-one"]
    assert set(run.findings) == {"one", "two", "same-as-one"}


def test_scenarios_need_different_names(tmp_path: Path):
    with pytest.raises(UsageError, match="names must differ"):
        run_audit([scenario(), scenario(seed=1)], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_breaks_is_failed_and_what_is_not_allowed_refused_beside_what_works(tmp_path: Path):
    run = run_audit(
        [scenario(model="runner_test_nets:Squeamish", attacks=["idlg:iterations=3", "first-layer"], targets=1)],
        tmp_path,
    )
    by_attack = {record.attack: record for record in run.records}
    assert by_attack["idlg:iterations=3"].status == "failed"
    assert by_attack["idlg:iterations=3"].message == "LookupError: this is no picture"
    assert by_attack["first-layer"].status == "ok"
    verdict = run.verdict()
    assert verdict.failed == 1
    assert verdict.judged
    convolutional = run_audit([scenario(attacks=["ig:iterations=3", "first-layer"])], tmp_path)
    assert [record.status for record in convolutional.records] == ["ok", "ok", "refused", "refused"]
    assert convolutional.verdict().failed == 0


def test_a_failed_trial_is_tried_again_and_a_finished_one_is_not(tmp_path: Path):
    broken = run_audit([scenario(model="runner_test_nets:Moody")], tmp_path)
    assert {record.message for record in broken.records} == {"LookupError: in a mood"}
    nets = sys.modules["runner_test_nets"]
    nets.Moody.broken = False
    try:
        watcher = Recording()
        mended = run_audit([scenario(model="runner_test_nets:Moody")], tmp_path, watcher=watcher)
    finally:
        nets.Moody.broken = True
    assert watcher.stored == [(2, 0)]
    assert {record.status for record in mended.records} == {"ok"}
    assert open_run(tmp_path).verdict().failed == 0


def test_a_model_that_is_never_the_same_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="other weights each time it is built"):
        run_audit([scenario(model="runner_test_nets:unseeded")], tmp_path)


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_precision_runs(tmp_path: Path, dtype: str, steps: int):
    client = {"dtype": dtype, "local_steps": steps, "batch_size": 2, "normalise": True}
    run = run_audit([scenario(client=client, defences=["gaussian:sigma=0.01+topk"], targets=1)], tmp_path)
    assert [record.status for record in run.records] == ["ok", "ok", "ok"], run.records[0].message
    assert run.records[0].defence == "none"  # the control comes by itself
    assert len(run.records[0].psnr) == 2 * steps


@pytest.mark.parametrize("mode", ["eval", "train-nostats", "train-exact-stats"])
def test_every_mode_of_batch_normalisation_runs(tmp_path: Path, mode: str):
    values: dict[str, Any] = {"model": "convnet:width=1", "data": "faces:size=16", "targets": 1}
    run = run_audit([scenario(**values, client={"bn_mode": mode, "batch_size": 2})], tmp_path)
    assert [record.status for record in run.records] == ["ok"], run.records[0].message


def test_dropout_does_not_spoil_reproducibility(tmp_path: Path):
    code = "import torch.nn as nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 2))\n"
    (Path(sys.path[0]) / "runner_test_dropout.py").write_text(code)
    values: dict[str, Any] = {"model": "runner_test_dropout:net", "client": {"train_mode": True}}
    one, same = (numbers(run_audit([scenario(**values)], tmp_path / place)) for place in ("one", "same"))
    assert one == same


def test_private_releases_are_proven_and_read_back(tmp_path: Path):
    strong, weak = "gaussian:sigma=50,clip=1", "gaussian:sigma=0.01,clip=1"
    defences = ["none", strong, weak, "topk"]
    run = run_audit([scenario(model="mlp", attacks=["first-layer"], defences=defences, targets=4)], tmp_path)
    assert set(run.proofs["audit"]) == {strong, weak}
    assert run.proofs["audit"][strong].is_low
    assert not run.proofs["audit"][weak].is_low
    assert open_run(tmp_path) == run
    rows = {row.defence: row for row in run.verdict().rows}
    assert (rows[strong].level, rows[strong].worst and rows[strong].worst.decided) in ((RiskLevel.LOW, "proven"),)
    assert rows["topk"].proven is None


def test_every_seed_of_the_weights_is_attacked_on_the_same_batches(tmp_path: Path):
    scenario = Scenario(
        data="faces:size=8", attacks="ig:iterations=2", targets=2, readings=1, weight_seeds=(3, 4, 5), name="several"
    )
    run = run_audit([scenario], tmp_path / "all")
    assert [(r.weight_seed, r.target) for r in run.records] == [(s, t) for s in (3, 4, 5) for t in (0, 1)]
    assert len({r.psnr for r in run.records}) == 6
    assert [r.weight_seed for r in run.readings] == [3, 4, 5]
    firsts = [run.images(r)[0] for r in run.records if r.target == 0]
    assert all(torch.equal(firsts[0], other) for other in firsts)
    (cell,) = run.verdict().cells
    assert cell.psnr is not None
    assert (cell.psnr.n, cell.psnr.is_degenerate) == (3, False)
    alone = run_audit([scenario.model_copy(update={"weight_seeds": (4,)})], tmp_path / "alone")
    assert [r.key for r in alone.records] == [r.key for r in run.records if r.weight_seed == 4]
    assert "several: weights of seed 5 (SHA-256)" in run.environment


def test_seeds_that_give_the_same_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "fixed_weights.py").write_text(
        "import torch\n"
        "def net():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    scenario = Scenario(data="faces:size=8", model="fixed_weights:net", weight_seeds=(0, 1), targets=1)
    with pytest.raises(UsageError, match="weight seeds 0 and 1 give fixed_weights:net the same weights"):
        run_audit([scenario], tmp_path / "run")
    with pytest.raises(ValueError, match="weight_seeds must differ"):
        Scenario(weight_seeds=(1, 1))
    with pytest.raises(ValueError, match="a checkpoint has the weights"):
        Scenario(weight_seeds=(1, 2), stage={"checkpoint": "there"})
