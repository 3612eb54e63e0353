"""Metrics of the papers, chosen in a scenario by name (C24)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.core.errors import InputError
from fedseal.defences.refiner.weights import shipped_evaluator
from fedseal.metrics import papers
from fedseal.metrics.image import psnr, ssim
from fedseal.metrics.registry import METRICS, measure
from fedseal.models.checkpoint import save_checkpoint
from fedseal.models.registry import build_model


def _pair() -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    originals = torch.rand(3, 3, 16, 16, generator=source)
    return originals, (originals + 0.1 * torch.randn(originals.shape, generator=source)).clamp(0, 1)


def test_all_of_them_have_names():
    assert {"lpips", "min-lpips", "max-ssim", "rec", "rla", "noise-ratio"} <= set(METRICS.names())


def test_rec_counts_what_is_above_its_threshold():
    a, b = _pair()
    close = psnr(a, b, data_range=1.0)
    middle = float(close.median())
    assert measure(f"rec:above={middle}", a, b) == tuple((close > middle).double().tolist())
    assert measure("rec", a, a) == (1.0, 1.0, 1.0)


def test_the_best_of_all_reconstructions_is_no_worse_than_the_paired_one():
    a, b = _pair()
    shuffled = b[[1, 2, 0]]
    assert measure("max-ssim", a, shuffled) == pytest.approx(ssim(a, b, data_range=1.0).tolist())


def test_the_noise_ratio_is_the_evaluation_networks():
    a, b = _pair()
    with torch.no_grad():
        assert measure("noise-ratio", a, b) == pytest.approx(shipped_evaluator()(b).tolist())


def test_rla_asks_a_judge_of_ones_own(tmp_path: Path):
    judge = build_model("mlp", input_shape=(3, 16, 16), num_classes=4, seed=0)
    save_checkpoint(judge, tmp_path / "judge.safetensors")
    a, b = _pair()
    expected = (judge(a).argmax(1) == judge(1 - b).argmax(1)).double().tolist()
    spec = f"rla:checkpoint={tmp_path / 'judge.safetensors'},model=mlp,classes=4"
    assert list(measure(spec, a, 1 - b)) == expected
    assert measure(spec, a, a) == (1.0, 1.0, 1.0)


def test_lpips_without_its_weights_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    papers._lpips.cache_clear()
    with pytest.raises(InputError, match="needs weights that are not there"):
        measure("lpips:net=vgg", *_pair())


def test_an_audit_keeps_what_its_scenario_asks_for(tmp_path: Path):
    scenario = Scenario(
        data="faces:size=16",
        attacks="ig:iterations=2",
        targets=1,
        readings=0,
        metrics=("rec:above=5", "max-ssim", "noise-ratio"),
    )
    (record,) = run_audit([scenario], tmp_path).records
    assert set(record.metrics) == {"rec:above=5", "max-ssim", "noise-ratio"}
    assert record.metrics["rec:above=5"] == (float(record.psnr[0] > 5),)
    assert record.metrics["max-ssim"] == pytest.approx(record.ssim)
    assert 0 < record.metrics["noise-ratio"][0] < 1
