"""What nobody said of an update is searched, or warned about: P9 of what production found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedseal.audit.levels import RiskLevel
from fedseal.cli import main
from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, write_update
from fedseal.models.registry import build_model
from fedseal.updates.audit import audit_update
from fedseal.updates.case import build_case, build_cases
from fedseal.updates.source import UpdateSource
from fedseal.updates.unknowns import looks_like_signs, resolved, suppositions

SHAPE = (1, 16, 16)


def image(place: int = 3) -> Batch:
    return DATASETS.build("faces:size=16").batch(torch.tensor([place]))


def sent(
    directory: Path,
    config: RoundConfig,
    *,
    model: str = "lenet",
    facts: dict[str, Any] | None = None,
    change: Any = None,
    client: str = "7",
    place: int = 3,
    steps: int = 1,
) -> Path:
    net = build_model(model, input_shape=SHAPE, num_classes=2, seed=0)
    update = client_round(net, [image(place)] * steps, config, build_defence("none"), generator(1)).update
    if change is not None:
        update = Update(change(net, update.tensors), "delta")
    known = {"local_steps": steps, "batch_size": 1, "input_shape": SHAPE, "num_classes": 2} | (facts or {})
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    return write_update(
        directory, RecordedUpdate(update, before, UpdateFacts(kind="delta", round=1, client=client, **known))
    )


def step(**options: Any) -> RoundConfig:
    return RoundConfig(learning_rate=0.1, upload="delta", **options)


def case_of(path: Path, model: str = "lenet", **facts: Any) -> Any:
    return build_case(UpdateSource(model=model, update=path, facts=facts))


@pytest.mark.slow
@pytest.mark.parametrize("true", [IDENTITY, Normalisation((0.1307,), (0.3081,))], ids=["none", "MNIST's"])
def test_an_unknown_normalisation_is_the_one_that_explains_the_update(tmp_path: Path, true: Normalisation):
    """8.8 dB were called low where the right one gives 17.4 dB."""
    case = case_of(sent(tmp_path, step(normalisation=true), facts={"learning_rate": 0.1}))
    assert case.unknown == {"normalisation", "optimiser"}
    assert len(suppositions(case)) == 3
    found = resolved(case, 0)
    assert found.config.normalisation == true
    assert found.observation.knowledge.normalisation == true
    assert any(finding.topic == "unknowns" and "of 3 suppositions" in finding.text for finding in found.findings)


def test_what_is_stated_is_not_searched(tmp_path: Path):
    facts = {"learning_rate": 0.1, "mean": (0.0,), "std": (1.0,), "optimiser": "sgd"}
    case = case_of(sent(tmp_path, step(), facts=facts))
    assert case.unknown == frozenset()
    assert resolved(case, 0) is case


def test_an_unknown_learning_rate_is_fitted(tmp_path: Path):
    config = RoundConfig(learning_rate=0.03, upload="delta")
    case = resolved(case_of(sent(tmp_path, config), mean=(0.0,), std=(1.0,)), 0)
    assert case.config.learning_rate == pytest.approx(0.03, rel=0.35)
    assert any("fits the size of the change" in finding.text for finding in case.findings)


def test_the_mode_of_batch_normalisation_is_searched(tmp_path: Path):
    model = "convnet:width=2"
    path = sent(
        tmp_path, step(bn_mode="eval"), model=model, facts={"learning_rate": 0.1, "mean": (0.0,), "std": (1.0,)}
    )
    case = case_of(path, model=model)
    assert case.unknown == {"bn_mode", "optimiser"}
    assert {option.bn_mode for option in suppositions(case)} == {"eval", "train-nostats"}
    assert resolved(case, 0).config.bn_mode == "eval"


def test_a_step_of_adam_is_recognised_and_read_as_signs(tmp_path: Path):
    def adam(net: nn.Module, change: Any) -> Any:
        return {name: -0.001 * (-tensor).sign() * -1 for name, tensor in change.items()}

    path = sent(tmp_path, step(), change=adam, facts={"mean": (0.0,), "std": (1.0,)})
    case = resolved(case_of(path), 0)
    assert case.config.learning_rate == pytest.approx(0.001)
    assert case.observation.knowledge.defence is not None
    assert case.observation.knowledge.defence.name == "adam"
    assert any("one size" in finding.text for finding in case.findings)
    assert not looks_like_signs({"w": torch.randn(1000)})


def test_weight_decay_is_taken_out_of_the_change(tmp_path: Path):
    plain = case_of(sent(tmp_path / "a", step(), facts={"learning_rate": 0.1}))

    def decayed(net: nn.Module, change: Any) -> Any:
        weights = dict(net.named_parameters())
        return {name: tensor - 0.1 * 0.05 * weights[name].detach() for name, tensor in change.items()}

    facts = {"learning_rate": 0.1, "weight_decay": 0.05}
    case = case_of(sent(tmp_path / "b", step(), change=decayed, facts=facts))
    for name, tensor in plain.observation.update.tensors.items():
        assert torch.allclose(case.observation.update.tensors[name], tensor, atol=1e-6)


def test_momentum_over_several_steps_is_warned_about(tmp_path: Path):
    case = case_of(
        sent(tmp_path, step(local_steps=2, momentum=0.9), steps=2, facts={"momentum": 0.9, "learning_rate": 0.1})
    )
    assert case.config.momentum == 0.9
    assert any("2 local steps with momentum" in finding.text for finding in case.findings)


def test_without_originals_the_attackers_confidence_is_judged(tmp_path: Path):
    facts = {"learning_rate": 0.1, "mean": (0.0,), "std": (1.0,), "optimiser": "sgd"}
    case = build_case(UpdateSource(model="mlp", update=sent(tmp_path, step(), model="mlp", facts=facts)))
    audit = audit_update(case, ["first-layer"], restarts=2)
    assert audit.worst.confidence == "high"
    assert audit.reaches(RiskLevel.VERY_HIGH)
    weak = audit_update(case, ["ig"], iterations=1, restarts=2)
    assert weak.worst.confidence == "low"
    assert not weak.reaches(RiskLevel.MEDIUM)
    assert "no proof" in weak.sentence()


def test_all_updates_of_a_directory_are_audited_and_fail_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    facts = {"learning_rate": 0.1, "mean": (0.0,), "std": (1.0,), "optimiser": "sgd"}
    for client, place in (("7", 3), ("8", 5)):
        sent(tmp_path / "u", step(), model="mlp", facts=facts, client=client, place=place)
    assert len(build_cases(UpdateSource(model="mlp", update=tmp_path / "u"))) == 2
    words = ["--model", "mlp", "--update", tmp_path / "u", "--all", "--attack", "first-layer", "--fail-on", "high"]
    monkeypatch.setattr(sys, "argv", ["fedseal", "audit-update", *map(str, words), "-o", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as end:
        main()
    printed = "".join(capsys.readouterr())
    assert end.value.code == 1
    assert "2 update(s), about" in printed
    for client in ("7", "8"):
        report = json.loads((tmp_path / "out" / f"round-1-of-client-{client}" / "update.json").read_text())
        assert report["attempts"][0]["confidence"] == "high"
