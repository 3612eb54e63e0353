"""Checkpoints: a round trip, and refusals of everything that is not this model's weights."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedseal.core.errors import InputError
from fedseal.models.checkpoint import load_checkpoint, save_checkpoint
from fedseal.models.registry import build_model


def convnet(spec: str = "convnet:width=2", seed: int = 0) -> nn.Module:
    return build_model(spec, input_shape=(1, 28, 28), num_classes=10, seed=seed)


class Bomb:
    """A pickle that would tell that it was loaded."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.evidence,)


def test_a_checkpoint_brings_back_weights_and_statistics(tmp_path: Path):
    model = convnet(seed=1)
    model.train()(torch.rand(4, 1, 28, 28))  # so that running statistics differ from a fresh model's
    path = tmp_path / "weights.safetensors"
    save_checkpoint(model, path)
    loaded = convnet(f"convnet:width=2,checkpoint={path}", seed=2)
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())


def test_a_checkpoint_may_lie_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(convnet(seed=1), tmp_path / "weights.safetensors")
    monkeypatch.setenv("HOME", str(tmp_path))
    loaded = convnet("convnet:width=2,checkpoint=~/weights.safetensors", seed=2)
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in convnet(seed=1).state_dict().items())


def refused(path: Path) -> str:
    model = convnet()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InputError) as caught:
        load_checkpoint(model, path)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert str(path) in str(caught.value)
    assert caught.value.hint
    return str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path):
    assert "there is no checkpoint" in refused(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state | {"0.weight": torch.zeros(3, 3)}, "'0.weight' has shape [3, 3]"),
        (lambda state: state | {"0.weight": state["0.weight"] * float("nan")}, "'0.weight' holds 18 value(s)"),
        (lambda state: state | {"0.weight": state["0.weight"].half()}, "'0.weight' is torch.float16"),
        (lambda state: state | {"more": torch.zeros(1)}, "'more' is not a parameter"),
        (lambda state: {key: value for key, value in state.items() if key != "0.bias"}, "'0.bias' is missing"),
    ],
)
def test_other_weights_are_refused_by_name(tmp_path: Path, change, says: str):
    save_file(change(dict(convnet().state_dict())), tmp_path / "weights.safetensors")
    assert says in refused(tmp_path / "weights.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int):
    save_checkpoint(convnet(), tmp_path / "whole")
    (tmp_path / "part").write_bytes((tmp_path / "whole").read_bytes()[:keep])
    assert "not a readable safetensors file" in refused(tmp_path / "part")


def test_a_pickle_is_refused_and_not_run(tmp_path: Path):
    path, evidence = tmp_path / "model.pt", tmp_path / "evidence"
    path.write_bytes(pickle.dumps(Bomb(evidence)))
    assert "not a readable safetensors file" in refused(path)
    torch.save(convnet().state_dict(), path)
    assert "safetensors.torch.save_file" in refused(path)
    assert not evidence.exists()


def test_a_directory_is_refused(tmp_path: Path):
    assert "not a readable safetensors file" in refused(tmp_path)
