"""Models: every registered one builds, is reproducible, and has the size its paper says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedseal.core.errors import InputError, UsageError
from fedseal.models.registry import build_model, check_classifier, complete_models, ramps
from fedseal.models.structure import executed_layers, input_linear_layer, output_layer

SHAPES = [(1, 28, 28), (3, 32, 32)]
USER_MODELS = """
import random
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(12, num_classes))
    def forward(self, x):
        return self.layers(x)

class Outer:
    Inner = Net

def factory(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * 4, num_classes))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))

instance = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))

def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(7), nn.Sigmoid(), nn.LazyLinear(5))

def poisoned():
    model = fixed()
    with torch.no_grad():
        model[1].weight[2, 3] = float("nan")
    return model

def frozen():
    return fixed().requires_grad_(False)

def not_a_model():
    return 3

def needs_more(depth):
    return fixed()

def broken():
    raise KeyError("no such layer")

class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
    def forward(self, x):
        assert x.shape[1] == 99, "99 channels please"

class Talkative(Net):
    def forward(self, x):
        return {"answer": super().forward(x), "doubt": super().forward(x)}

def too_narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))

number = 3
"""


def build(spec: str, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, seed: int = 0) -> nn.Module:
    return build_model(spec, input_shape=shape, num_classes=classes, seed=seed)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A user's module that can be imported, by its name."""
    directory = tmp_path_factory.mktemp("user")
    (directory / "some_users_nets.py").write_text(USER_MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        yield "some_users_nets"


def user(nets: str, attribute: str, seed: int = 0) -> nn.Module:
    return build(f"{nets}:{attribute}", (3, 2, 2), 5, seed)


def refusal(nets: str, attribute: str) -> str:
    with pytest.raises((InputError, UsageError)) as caught:
        user(nets, attribute)
    assert "\n" not in str(caught.value)
    return str(caught.value)


LARGE = {"resnet34", "resnet50", "vgg16"}
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in complete_models()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_model_builds_and_answers(name: str, shape: tuple[int, int, int]):
    model = build(name, shape, 7)
    with torch.no_grad():
        assert model.eval()(torch.rand(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize("name", NAMES)
def test_wide_uniform_weights_fill_their_interval(name: str):
    model = build(f"{name}:init=wide-uniform", (1, 28, 28))
    values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert -0.5 <= float(values.min()) < -0.49
    assert 0.49 < float(values.max()) <= 0.5
    assert float(values.mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_decide_the_weights_and_the_global_generator_is_left_alone(name: str):
    before = torch.get_rng_state()
    one, same, other = (build(name, (1, 28, 28), seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_doors_to_other_libraries_are_named_with_what_is_behind_them():
    assert {"hf", "timm"}.isdisjoint(complete_models())
    with pytest.raises(UsageError, match="needs 'kind'"):
        build("hf")


def test_lenet_has_the_parameters_of_the_paper():
    convolutions = (3 * 12 * 25 + 12) + 2 * (12 * 12 * 25 + 12)
    assert count(build("lenet")) == convolutions + 12 * 8 * 8 * 10 + 10 == 15826
    assert count(build("lenet-relu")) == 15826


def test_the_convnet_ends_in_36_features_per_unit_of_width():
    layer = output_layer(build("convnet:width=8"), torch.rand(2, 3, 32, 32), 10)
    assert layer is not None
    assert layer.inputs.shape == (2, 36 * 8)


def test_resnet18_has_the_parameters_everybody_reports():
    assert count(build("resnet18")) == 11_173_962


def test_layers_of_the_mlp():
    widths = [
        tuple(layer.outputs.shape) for layer in executed_layers(build("mlp:width=8,depth=3"), torch.rand(2, 3, 32, 32))
    ]
    assert widths == [(2, 8), (2, 8), (2, 8), (2, 10)]
    first = input_linear_layer(build("mlp"), torch.rand(2, 3, 32, 32))
    assert first is not None
    assert first.weight_name == "1.weight"
    assert input_linear_layer(build("lenet"), torch.rand(2, 3, 32, 32)) is None


def test_layers_that_give_tuples_are_understood():
    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 1, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sequence = x.flatten(2).transpose(1, 2)
            attended, _ = self.attention(query=sequence, key=sequence, value=sequence)
            logits: torch.Tensor = self.head(attended.mean(1))
            return logits

    layer = output_layer(Attentive().train(), torch.rand(2, 4, 2, 2), 3)
    assert layer is not None
    assert layer.name == "head"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("lenett", ("no model called 'lenett'", "'lenet'", "package.module:attribute")),
        ("lenet:inti=default", ("no option 'inti'", "'init'")),
        ("lenet:init=wide", ("'init'", "'wide'", "wide-uniform")),
        ("mlp:width=-5", ("'width'", "'mlp'", "'-5'", "greater than or equal to 1")),
        ("no_such_package.nets:Net", ("cannot import 'no_such_package.nets'", "PYTHONPATH")),
    ],
)
def test_models_that_cannot_be_are_refused_in_words(spec: str, says: tuple[str, ...]):
    with pytest.raises((UsageError, InputError)) as caught:
        build(spec)
    for part in says:
        assert part in str(caught.value)


def test_images_too_small_for_a_model_are_refused():
    with pytest.raises(InputError, match=r"convnet cannot be built for images of shape \[1, 8, 8\]"):
        build("convnet", (1, 8, 8))


@pytest.mark.parametrize("attribute", ["Net", "factory", "fixed", "instance", "Outer.Inner"])
def test_a_users_class_factory_and_instance_are_models(nets: str, attribute: str):
    model = user(nets, attribute)
    assert count(model) == 12 * 5 + 5


def test_a_users_weights_follow_the_seed(nets: str):
    one, same, other = (user(nets, "Net", seed).state_dict()["layers.1.weight"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_users_model_has_the_options_every_model_has(nets: str):
    wide = build_model(f"{nets}:Net:init=wide-uniform", input_shape=(3, 2, 2), num_classes=5, seed=0)
    assert float(wide.state_dict()["layers.1.weight"].abs().max()) > 1 / 12**0.5
    assert not torch.equal(wide.state_dict()["layers.1.weight"], user(nets, "Net").state_dict()["layers.1.weight"])


def test_lazy_layers_are_built_by_the_seed(nets: str):
    before = torch.get_rng_state()
    one, same = (user(nets, "lazy").state_dict() for _ in range(2))
    assert one["1.weight"].shape == (7, 12)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert torch.equal(before, torch.get_rng_state())


def test_a_users_instance_is_not_changed(nets: str):
    first = user(nets, "instance")
    first.double()
    with torch.no_grad():
        first[1].weight.zero_()
    second = user(nets, "instance")
    assert second[1].weight.dtype == torch.float32
    assert bool(second[1].weight.any())


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("Nett", ("no attribute 'Nett'", "'Net'")),
        ("poisoned", ("'1.weight'", "NaN")),
        ("frozen", ("no trainable parameters",)),
        ("not_a_model", ("returned int", "torch.nn.Module")),
        ("number", ("is int", "torch.nn.Module")),
        ("needs_more", ("needs 'depth'", ":needs_more:depth=VALUE")),
        ("broken", ("KeyError", "no such layer")),
        ("Picky", ("AssertionError", "99 channels please", "[3, 2, 2]")),
        ("Talkative", ("answer [2, 5]", "doubt [2, 5]", "`output`")),
        ("too_narrow", ("[2, 4]", "5 classes")),
    ],
)
def test_what_is_wrong_with_a_users_model_is_said(nets: str, attribute: str, says: tuple[str, ...]):
    message = refusal(nets, attribute)
    for part in says:
        assert part in message


def test_a_users_module_that_breaks_on_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "users_broken_nets.py").write_text("import torch\nlayers = 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="importing 'users_broken_nets' failed: ZeroDivisionError"):
        build("users_broken_nets:Net")


def test_checking_leaves_the_model_in_its_mode():
    model = build("convnet:width=2").train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    check_classifier(model, ramps((3, 32, 32)), 10, "convnet")
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
