"""Models of other people: options and weights, answers that are no tensor, heads of any size, built whenever."""

from __future__ import annotations

import copy
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.defence import Defence
from fedseal.core.errors import InputError, UsageError
from fedseal.models.registry import MODELS, build_model, output_size

SHAPE = (1, 8, 8)
Pair = namedtuple("Pair", ["scores", "hidden"])

FROZEN = """
import torch
from torch import nn
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
"""


class Net(nn.Module):
    def __init__(self, num_classes=2, width=4, stages=(1,), answer="dict", flag=False):  # type: ignore[no-untyped-def]
        super().__init__()
        assert isinstance(width, int)
        assert isinstance(flag, bool)
        self.stages, self.answer = stages, answer
        self.body, self.head = nn.Linear(64, width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x.flatten(1)).sigmoid()
        logits = self.head(hidden)
        answers = {
            "dict": {"logits": logits, "hidden": hidden},
            "tuple": (logits, hidden[:, None]),
            "named": Pair(logits, hidden),
            "unclear": (logits, hidden),
            "text": "logits",
            "tensor": logits,
        }
        return answers[self.answer]


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1)).softmax(1)


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        x *= 2
        return self.last(x.flatten(1))


def relu() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def named(what: str, options: str = "") -> str:
    return f"{__name__}:{what}" + (f"?{options}" if options else "")


def build(spec: str, classes: int = 2) -> nn.Module:
    return build_model(spec, input_shape=SHAPE, num_classes=classes, seed=0, exact=False)


def test_options_are_read_as_python_would_where_nothing_declares_them() -> None:
    model = build(named("Net", "width=7&stages=[1, 2]&flag=true"))
    assert isinstance(model, Net)
    assert (model.body.out_features, model.stages) == (7, [1, 2])
    assert isinstance(build(f"{__name__}:Net:width=5"), Net)
    with pytest.raises(UsageError, match=r"no option 'widht'.*'width'"):
        build(named("Net", "widht=7"))


def test_weights_come_from_a_checkpoint_whose_path_may_hold_commas(tmp_path: Path) -> None:
    path = tmp_path / "a, b.safetensors"
    save_file({name: torch.ones_like(value) for name, value in Net().state_dict().items()}, path)
    model = build(named("Net", f"checkpoint={path}"))
    assert all(bool((value == 1).all()) for value in model.state_dict().values())
    with pytest.raises(InputError, match="no checkpoint"):
        build(named("Net", "checkpoint=nowhere.safetensors"))


@pytest.mark.parametrize("answer", ["dict", "tuple", "tensor"])
def test_logits_are_found_where_only_one_part_can_be_them(answer: str) -> None:
    model = build(named("Net", f"answer={answer}"))
    assert model(torch.rand(3, *SHAPE)).shape == (3, 2)
    assert list(model.state_dict()) == list(Net().state_dict())  # names in updates and checkpoints stay
    assert copy.deepcopy(model)(torch.rand(3, *SHAPE)).shape == (3, 2)


def test_which_part_is_meant_can_be_said() -> None:
    assert output_size(build(named("Net", "answer=unclear&output=1&width=5")), SHAPE) == 5
    assert output_size(build(named("Net", "answer=named&output=scores")), SHAPE) == 2
    with pytest.raises(UsageError, match=r"0 \[2, 2\], 1 \[2, 4\].*which of these.*Net\?output=0`"):
        build(named("Net", "answer=unclear"))
    with pytest.raises(UsageError, match=r"no output 'score'.*'scores'"):
        build(named("Net", "answer=named&output=score"))
    with pytest.raises(UsageError, match="answers with a tensor"):
        build(named("Net", "answer=tensor&output=logits"))
    with pytest.raises(InputError, match="answers with str"):
        build(named("Net", "answer=text"))


def test_a_model_with_a_dictionary_is_attacked_like_any_other() -> None:
    scenario = Scenario(data="faces:size=8", model=named("Net", "width=16"), targets=1)
    target = build_setup(scenario).observe(Defence(), 0)
    answer = ATTACKS.build("idlg").run(target.observation, Budget(iterations=100), 0)
    assert float((answer.images - target.originals.images).square().mean()) < 1e-2


def test_the_number_of_classes_is_the_models() -> None:
    setup = build_setup(Scenario(data="faces:size=8", model=named("Net", "num_classes=9"), targets=1))
    assert (setup.outputs, len(setup.private.classes)) == (9, 2)
    assert setup.observe(Defence(), 0).observation.knowledge.num_classes == 9


def test_a_model_built_when_its_module_is_imported_is_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frozen_nets.py").write_text(FROZEN)
    monkeypatch.syspath_prepend(tmp_path)
    weights = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        before = torch.random.get_rng_state()
        weights.append(build("frozen_nets:net").state_dict()["1.weight"])
        assert torch.equal(before, torch.random.get_rng_state())
        sys.modules.pop("frozen_nets")
    assert torch.equal(*weights)


def test_operations_in_place_are_undone_or_told() -> None:
    model = build(named("relu"))
    assert not any(getattr(module, "inplace", False) for module in model.modules())
    with pytest.raises(InputError, match=r"writes into the images.*in place"):
        build(named("Writing"))


def test_a_softmax_inside_is_noticed() -> None:
    from fedseal.audit.doctor import examine

    findings = examine(build_setup(Scenario(data="faces:size=8", model=named("Inside"), targets=1)))
    found = {finding.topic: finding for finding in findings}
    assert found["softmax inside"].severity == "problem"
    assert "logits" in found["softmax inside"].advice
    sound = examine(build_setup(Scenario(data="faces:size=8", model=named("Net"), targets=1)))
    assert "softmax inside" not in {finding.topic for finding in sound}


class Grouped(nn.Module):
    """Two convolutions with group normalisation, as trained under differential privacy."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.GroupNorm(4, 8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(1, 16),
            nn.ReLU(),
        )
        self.head = nn.Linear(256, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).flatten(1))
        return logits


class Layered(nn.Module):
    """Patches of four pixels each, mixed in blocks with layer normalisation and a residual, then averaged."""

    def __init__(self, num_classes: int = 10, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix, self.channels = nn.Linear(16, 16), nn.Linear(width, width)
        self.last, self.head = nn.LayerNorm([16, width]), nn.Linear(16 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)  # [B, 16, width]
        tokens = tokens + self.mix(self.norms[0](tokens).transpose(1, 2)).transpose(1, 2)
        tokens = tokens + nn.functional.gelu(self.channels(self.norms[1](tokens)))
        logits: Tensor = self.head(self.last(tokens).flatten(1))
        return logits


@pytest.mark.parametrize("model", ["Grouped", "Layered"])
def test_matching_descends_on_networks_that_normalise_groups_or_layers(model: str) -> None:
    scenario = Scenario(data="digits:size=8", model=named(model), targets=1)
    target = build_setup(scenario).observe(Defence(), 0)
    for attack, most in (("ig", 0.2), ("dlg", 0.01)):
        first, last = (ATTACKS.build(attack).run(target.observation, Budget(iterations=n), 0) for n in (1, 60))
        assert last.objective < most * first.objective
        if attack == "ig":
            assert float((last.images - target.originals.images).square().mean()) < 0.1


@pytest.mark.parametrize("model", ["Grouped", "Layered"])
def test_networks_that_normalise_groups_or_layers_are_audited(model: str, tmp_path: Path) -> None:
    values = {"data": "digits:size=8", "model": named(model), "attacks": "ig:iterations=3", "targets": 1}
    defences = ["topk:ratio=0.5"]
    run = run_audit([Scenario.model_validate(values | {"defences": defences, "client": {"batch_size": 2}})], tmp_path)
    assert {record.status for record in run.records} == {"ok"}, [record.message for record in run.records]
    assert {reading.defence for reading in run.readings} == {"none", *defences}


def residual(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes: Any = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(num_channels=input_shape[0], num_labels=num_classes, **sizes))


def attention(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes: Any = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    where: Any = {"image_size": input_shape[1], "patch_size": 4, "num_channels": input_shape[0]}
    return ViTForImageClassification(ViTConfig(num_labels=num_classes, **sizes, **where))


@pytest.mark.parametrize("model", ["residual", "attention"])
def test_hugging_face_classifiers_are_attacked_as_they_are(model: str) -> None:
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    scenario = Scenario(
        data="faces:size=16",
        model=named(model),
        client={"batch_size": 2, "bn_mode": "train-nostats"},
        targets=1,  # type: ignore[arg-type]
    )
    setup = build_setup(scenario)
    target = setup.observe(Defence(), 0)
    answer = ATTACKS.build("ig").run(target.observation, Budget(iterations=3), 0)
    assert answer.images.shape == target.originals.images.shape
    assert list(target.observation.update.tensors) == [name for name, _ in setup.model.named_parameters()]


def test_every_model_of_ours_takes_the_options_all_have() -> None:
    for name in MODELS.names():
        assert {"init", "checkpoint", "output"} <= set(MODELS.entry(name).parameters)
