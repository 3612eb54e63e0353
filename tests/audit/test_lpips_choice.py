"""A scenario says by which network perceptual distance is measured, or that it is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedseal.audit.plan import plan_jobs
from fedseal.audit.run import Run
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario, load_scenario
from fedseal.audit.setup import build_setup
from fedseal.core.errors import UsageError
from fedseal.metrics import lpips, papers
from fedseal.metrics.lpips_weights import Net

SCENARIO: dict[str, Any] = {"data": "faces:size=32", "attacks": ["ig:iterations=2"], "targets": 1, "readings": 0}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    papers._lpips.cache_clear()  # which holds what other tests found in theirs
    yield tmp_path / "cache"
    papers._lpips.cache_clear()


def _drawn(cache: Path, net: Net) -> None:
    """Keep weights of a network that were drawn: enough to see which are used."""
    torch.manual_seed(0)
    features, read = (lpips._alexnet if net == "alex" else lpips._vgg16)()
    state = {f"features.{name}": torch.rand(tensor.shape) * 0.05 for name, tensor in features.state_dict().items()}
    for place, index in enumerate(read):
        width = next(m.out_channels for m in reversed(features[: index + 1]) if isinstance(m, nn.Conv2d))
        state[f"lin{place}.model.1.weight"] = torch.rand(1, width, 1, 1)
    save_file(state, cache / f"lpips_{net}.safetensors")


@pytest.fixture
def random_alex(cache: Path) -> Path:
    _drawn(cache, "alex")
    return cache


def _run(out: Path, **values: Any) -> Run:
    return run_audit([Scenario.model_validate(SCENARIO | values)], out)


def _keys(**values: Any) -> list[str]:
    setup = build_setup(Scenario.model_validate(SCENARIO | values))
    return [trial.key for job in plan_jobs(setup) for trial in job.trials]


def test_by_default_it_is_measured_where_weights_are_and_off_leaves_it_out(random_alex: Path, tmp_path: Path):
    by_default, without = _run(tmp_path / "a"), _run(tmp_path / "b", lpips="off")
    assert by_default.records[0].lpips is not None
    assert by_default.environment["LPIPS"] == "AlexNet v0.1"
    assert without.records[0].lpips is None
    assert without.environment["audit: LPIPS"] == "not reported: the scenario says off"
    assert without.records[0].psnr == by_default.records[0].psnr


def test_a_network_chosen_by_name_is_the_one_or_the_audit_is_refused(random_alex: Path, tmp_path: Path):
    assert _run(tmp_path / "a", lpips="alex").records[0].lpips is not None
    with pytest.raises(UsageError, match="LPIPS by vgg"):
        _run(tmp_path / "b", lpips="vgg")
    (random_alex / "lpips_alex.safetensors").unlink()
    with pytest.raises(UsageError, match="LPIPS by alex"):
        _run(tmp_path / "c", lpips="alex")
    assert _run(tmp_path / "d").records[0].lpips is None


def test_trials_are_named_by_what_they_are_measured_with(random_alex: Path):
    assert _keys() == _keys(lpips="auto") == _keys(lpips="alex")
    without = _keys(lpips="off")
    assert without != _keys()
    (random_alex / "lpips_alex.safetensors").unlink()
    assert _keys() == without  # there is nothing to measure with


def test_a_bare_off_of_yaml_is_meant(tmp_path: Path):
    file = tmp_path / "scenario.yaml"
    file.write_text("lpips: off\n")
    assert load_scenario(file).lpips == "off"


@pytest.mark.parametrize("net", ["alex", "vgg"])
def test_lpips_by_either_network_and_its_least_run_in_an_audit(net: Net, cache: Path, tmp_path: Path):
    _drawn(cache, net)
    _check_audit(tmp_path / "run", net)


@pytest.mark.shared
def test_lpips_with_its_real_weights_runs_in_an_audit(shared: Path, cache: Path, tmp_path: Path):
    for name in ("alexnet_features.safetensors", "lpips_v0.1_heads.safetensors"):
        shutil.copy(shared / "weights" / name, cache)
    assert 0 < _check_audit(tmp_path / "run", "alex") < 2


def _check_audit(out: Path, net: Net) -> float:
    """Run an audit that measures by a network, as the usual and as a further metric; return the mean distance."""
    specs = [f"lpips:net={net}", f"min-lpips:net={net}"]
    run = _run(out, lpips=net, metrics=specs, client={"batch_size": 2})
    (record,), metric = run.records, lpips.load_lpips(net=net)
    pair = run.images(record)
    assert pair is not None
    assert metric is not None
    assert record.lpips is not None
    expected = metric(*pair).tolist()
    assert list(record.metrics[specs[0]]) == pytest.approx(expected, rel=1e-3)
    assert list(record.lpips) == pytest.approx(expected, rel=1e-3)
    assert fmean(record.metrics[specs[1]]) <= fmean(expected) * (1 + 1e-6)
    return fmean(expected)
