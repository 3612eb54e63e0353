"""Networks by their names: sizes everybody reports, others' weights, and doors to other libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario, load_scenario
from fedseal.audit.setup import build_setup
from fedseal.core.batch import Normalisation
from fedseal.core.errors import InputError, UsageError
from fedseal.data.registry import DATASETS
from fedseal.models.registry import build_model

EXAMPLES = Path(__file__).parents[2] / "examples" / "audits"


def build(spec: str, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10) -> nn.Module:
    return build_model(spec, input_shape=shape, num_classes=classes, seed=0)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet20", 269_722),
        ("resnet32", 464_154),
        ("resnet56", 853_018),
        ("resnet34", 21_282_122),
        ("resnet50", 23_520_842),
        ("vgg11", 9_228_362),
    ],
)
def test_networks_for_cifar_have_the_parameters_everybody_reports(name: str, parameters: int) -> None:
    assert count(build(name)) == parameters


def test_the_stem_for_photographs_makes_the_network_of_imagenet() -> None:
    assert count(build("resnet18:stem=imagenet", (3, 64, 64), 1000)) == 11_689_512


def test_wider_networks_are_wider() -> None:
    narrow, wide = build("resnet10"), build("resnet10:width=192")
    assert wide.conv1.out_channels == 3 * narrow.conv1.out_channels  # type: ignore[union-attr, operator]


def test_vgg_takes_grey_images_that_run_out_of_pixels() -> None:
    assert build("vgg16:width=4", (1, 8, 8))(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_weights_with_others_names_and_without_counters_load(tmp_path: Path) -> None:
    model = build("resnet20")
    foreign = {}
    for name, tensor in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            parts = name.split(".")
            renamed = [f"layer{int(parts[1]) + 1}", *parts[2:]] if parts[0] == "stages" else parts
            foreign[".".join(["linear" if part == "fc" else part for part in renamed])] = tensor + 1
    save_file(foreign, tmp_path / "weights.safetensors")
    loaded = build(f"resnet20:checkpoint={tmp_path / 'weights.safetensors'}")
    assert torch.equal(loaded.state_dict()["stages.2.1.conv2.weight"], foreign["layer3.1.conv2.weight"])
    assert torch.equal(loaded.state_dict()["fc.bias"], foreign["linear.bias"])
    del foreign["linear.bias"]
    save_file(foreign, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match=r"fc\.bias"):
        build(f"resnet20:checkpoint={tmp_path / 'weights.safetensors'}")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "published"), [("resnet20", 91.7), pytest.param("resnet56", 93.4, marks=pytest.mark.slow)]
)
def test_published_weights_for_cifar_keep_their_accuracy(name: str, published: float, shared: Path) -> None:
    path = shared / "weights" / f"{name}_cifar10.safetensors"
    model = build(f"{name}:checkpoint={path}").eval()
    drawn = build(name).eval()
    test = DATASETS.build("cifar10:split=test", data_root=shared / "data")
    batch = test.batch(torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:500])
    seen = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))(batch.images)  # ImageNet's, say the authors
    with torch.no_grad():
        right, guessed = (100 * float((net(seen).argmax(1) == batch.labels).float().mean()) for net in (model, drawn))
    assert right == pytest.approx(published, abs=2.5)  # two standard deviations of 500 images
    assert guessed < 25  # without the weights


@pytest.mark.shared
def test_published_weights_are_audited(shared: Path, tmp_path: Path) -> None:
    path = shared / "weights" / "resnet20_cifar10.safetensors"
    values = {"data": "cifar10", "model": f"resnet20:checkpoint={path}", "attacks": "ig:iterations=2", "targets": 1}
    scenario = Scenario.model_validate(values | {"readings": 0, "client": {"normalise": True}})
    run = run_audit([scenario], tmp_path, data_root=shared / "data")
    assert [record.status for record in run.records] == ["ok"], run.records[0].message
    with pytest.raises(InputError, match=r"resnet20_cifar10\.safetensors: tensor .* is missing"):
        build(f"resnet56:checkpoint={path}")


@pytest.fixture
def timm(shared: Path, script: Callable[[Path], ModuleType]) -> None:
    """Makes timm importable beside a torchvision that was built for CUDA; skips where one of the two is missing."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed: pip install --no-deps timm torchvision")
    if script(shared / "snippets" / "torchvision_cpu_shim.py").ensure() == "absent":
        pytest.skip("timm needs torchvision, which is not installed")


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_050", "convnext_atto"])
def test_a_model_of_timm_is_audited_by_its_name(name: str, tmp_path: Path) -> None:
    values = {
        "data": "faces:size=32",  # grey, two classes
        "model": f"timm:{name}",
        "attacks": "ig:iterations=2",
        "targets": 1,
        "client": {"batch_size": 2, "bn_mode": "train-nostats"},
        "readings": 0,
    }
    scenario = Scenario.model_validate(values)
    model = build_setup(scenario).model
    assert type(model).__module__.startswith("timm.")
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 2)
    run = run_audit([scenario], tmp_path)
    assert [record.status for record in run.records] == ["ok"], run.records[0].message


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.usefixtures("timm")
def test_a_model_that_timm_has_not_is_answered_with_near_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"timm has no model 'resnet118'.*resnet18"):
        build("timm:resnet118")
    save_file(build("timm:resnet18", (3, 32, 32)).state_dict(), tmp_path / "own.safetensors")
    loaded = build_model(
        f"timm:resnet18?checkpoint={tmp_path}/own.safetensors", input_shape=(3, 32, 32), num_classes=10, seed=7
    )
    assert torch.equal(loaded.state_dict()["conv1.weight"], build("timm:resnet18").state_dict()["conv1.weight"])


def test_timm_that_cannot_be_imported_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as where it is not installed
    with pytest.raises(UsageError, match=r"timm:resnet18 needs timm.*Install timm and torchvision"):
        build("timm:resnet18")


SMALL_HF = {
    "resnet": {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8, "layer_type": "basic"},
    "mobilenet_v2": {"depth_multiplier": 0.35},
    "vit": {
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "patch_size": 16,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SMALL_HF))
def test_a_model_of_hugging_face_is_audited_from_one_file(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    scenario: dict[str, Any] = {
        "data": "photos:size=64",
        "model": {"name": f"hf:{kind}", **SMALL_HF[kind]},
        "attacks": "ig:iterations=2",
        "targets": 1,
        "readings": 0,
    }
    run = run_audit([Scenario.model_validate(scenario)], tmp_path)
    assert [record.status for record in run.records] == ["ok"], run.records[0].message


def few_steps(example: str, **changes: Any) -> Scenario:
    """An example's audit as it is, but for how long it searches."""
    scenario = load_scenario(EXAMPLES / f"{example}.yaml")
    return scenario.model_copy(update={"attacks": ("ig:iterations=2",), **changes})


@pytest.mark.slow
@pytest.mark.parametrize("example", ["hf-resnet", "hf-mobilenet"])
def test_an_example_audits_a_model_of_hugging_face_at_64_pixels(example: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    run = run_audit([few_steps(example)], tmp_path)
    assert {record.status for record in run.records} == {"ok"}, run.records[0].message
    assert {record.defence for record in run.records} == {"none", "topk:ratio=0.9"}


def test_an_example_audits_one_logit_on_grey_pictures_of_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    patients = np.repeat(np.arange(60), 3)
    pictures = draw.integers(0, 256, (180, 72, 72), dtype=np.uint8)
    np.savez(tmp_path / "chest.npz", images=pictures, labels=patients % 2, patient=patients)
    monkeypatch.chdir(tmp_path)
    run = run_audit([few_steps("x-ray", targets=1)], tmp_path / "run")
    assert {record.status for record in run.records} == {"ok"}, run.records[0].message
    assert build_setup(few_steps("x-ray")).model(torch.zeros(1, 1, 64, 64)).shape == (1, 1)


@pytest.mark.slow
def test_an_option_of_another_kind_is_refused_by_name() -> None:
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    with pytest.raises(UsageError, match="hf:resnet has no option patch_size"):
        build("hf:resnet?patch_size=4", (3, 64, 64))


@pytest.mark.slow
def test_a_binary_model_with_one_logit_on_grey_pictures_is_audited(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    scenario = {
        "data": "faces:size=16",
        "model": {"name": "hf:resnet", **SMALL_HF["resnet"]},
        "loss": "bce",
        "attacks": "ig:iterations=2",
        "targets": 1,
        "readings": 0,
    }
    run = run_audit([Scenario.model_validate(scenario)], tmp_path)
    assert [record.status for record in run.records] == ["ok"], run.records[0].message
