"""Refiner's evaluation network: its two architectures, its files, and the command that trains one."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedseal import cli
from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.watcher import Task, Tick, Watcher
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.defences.refiner import fitting
from fedseal.defences.refiner.evaluator import Architecture, EvaluationNetwork
from fedseal.defences.refiner.fitting import (
    RATIOS,
    EvaluatorFit,
    TrainingPlan,
    measure_evaluator,
    mix_with_noise,
)
from fedseal.defences.refiner.production import produce_evaluator
from fedseal.defences.refiner.structured import structured_images
from fedseal.defences.refiner.weights import (
    SHIPPED,
    load_evaluator,
    parse_shipped,
    save_evaluator,
    shipped_evaluator,
)
from fedseal.preparation import Library


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))


def shipped_bytes() -> bytes:
    return (files("fedseal.defences") / "weights" / SHIPPED).read_bytes()


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def multiply_adds(network: EvaluationNetwork) -> int:
    total = 0

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal total
        assert isinstance(module.weight, torch.Tensor)
        total += output.numel() * module.weight[0].numel()

    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    network(torch.rand(1, 3, 32, 32))
    return total


def test_the_papers_network_has_its_size():
    assert parameters(EvaluationNetwork("paper")) == pytest.approx(1.487e6, rel=1e-3)


def test_the_small_network_is_small():
    network = EvaluationNetwork("small")
    assert 0.7e6 <= multiply_adds(network) <= 1.5e6
    assert 100_000 <= len(shipped_bytes()) <= 200_000


@pytest.mark.parametrize("architecture", ["small", "paper"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 25, 40), (1, 64, 64), (3, 12, 12), (3, 224, 224)])
def test_any_size_and_grey_images(architecture: Architecture, shape: tuple[int, int, int]):
    network = EvaluationNetwork(architecture)
    images = torch.rand(2, *shape, generator=generator(0))
    with torch.no_grad():
        ratios = network(images)
        assert ratios.shape == (2,)
        assert bool(((ratios > 0) & (ratios < 1)).all())
        if shape[0] == 1:
            assert torch.equal(ratios, network(images.repeat(1, 3, 1, 1)))


def test_images_of_other_channels_are_refused():
    with pytest.raises(InputError, match="grey or colour"):
        EvaluationNetwork()(torch.rand(1, 2, 8, 8))


def test_mixing_with_noise_is_linear_and_uniform():
    images = torch.full((200, 1, 16, 16), 0.25)
    mixed = mix_with_noise(images, torch.tensor(0.4), generator(0))
    noise = (mixed - 0.6 * 0.25) / 0.4
    assert float(noise.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(noise.var()) == pytest.approx(1 / 12, rel=0.02)
    assert float(noise.min()) > -1e-6
    assert float(noise.max()) < 1 + 1e-6
    assert torch.equal(mix_with_noise(images, torch.tensor(0.0), generator(0)), images)


def test_drawn_images_lie_in_range_and_are_no_noise():
    images = structured_images(60, 32, generator(0))
    assert images.shape == (60, 3, 32, 32)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    with torch.no_grad():
        assert float(shipped_evaluator()(images).mean()) < 0.15


@pytest.mark.slow
def test_training_learns_the_ratio_and_repeats_by_seed():
    data = [DATASETS.build("faces")]
    plan = TrainingPlan(steps=60, batch_size=32, structured=0, learning_rate=5e-3, seed=3)
    network, again = (Library(None).get(EvaluatorFit(tuple(data), plan)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    measured = measure_evaluator(network, data[0], images=40)
    assert measured.predicted[-1] - measured.predicted[0] > 0.4
    untrained = measure_evaluator(EvaluationNetwork(), data[0], images=40)
    assert measured.error < 0.6 * untrained.error


@pytest.mark.slow
def test_training_goes_on_as_if_it_had_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fitting, "_EVERY", 2)
    plan = TrainingPlan(steps=6, batch_size=8, structured=0.5, seed=3)
    what = EvaluatorFit((DATASETS.build("faces:size=16"),), plan)
    whole = Library(None).get(what)

    class Stopping(Watcher):
        def advanced(self, task: Task, tick: Tick) -> None:
            if tick.done == 4:
                raise KeyboardInterrupt

    books = Library(tmp_path / "books", save_seconds=0)
    with pytest.raises(KeyboardInterrupt):
        books.get(what, Stopping())
    resumed = books.get(what)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_measuring_reports_each_ratio():
    measured = measure_evaluator(shipped_evaluator(), DATASETS.build("faces"), images=30)
    assert measured.images == 30
    assert len(measured.predicted) == len(measured.errors) == len(RATIOS)
    assert measured.error == pytest.approx(sum(measured.errors) / len(RATIOS))


@pytest.mark.parametrize(
    ("options", "says"),
    [({"steps": 0}, "steps >= 1"), ({"batch_size": 2}, "batch size"), ({"structured": 1.0}, "structured < 1")],
)
def test_a_plan_that_makes_no_sense_is_refused(options: dict[str, float], says: str):
    with pytest.raises(UsageError, match=says):
        TrainingPlan(**options)  # type: ignore[arg-type]


def test_training_needs_data():
    with pytest.raises(UsageError, match="needs data"):
        EvaluatorFit((), TrainingPlan())


@pytest.mark.parametrize("where", [0, 100, -1])
def test_a_corrupted_shipped_network_is_refused(where: int):
    content = bytearray(shipped_bytes())
    content[where] ^= 1
    with pytest.raises(InputError, match=r"damaged.*Install fedseal again"):
        parse_shipped(bytes(content))


def test_a_truncated_shipped_network_is_refused():
    with pytest.raises(InputError, match="damaged"):
        parse_shipped(shipped_bytes()[:-10])


@pytest.mark.parametrize("architecture", ["small", "paper"])
def test_a_network_comes_back_from_its_file(architecture: Architecture, tmp_path: Path):
    network = EvaluationNetwork(architecture)
    save_evaluator(network, tmp_path / "mine.safetensors", {"data": "faces"})
    images = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(load_evaluator(tmp_path / "mine.safetensors")(images), network(images))


def test_ones_own_damaged_or_foreign_file_is_refused(tmp_path: Path):
    path = tmp_path / "mine.safetensors"
    with pytest.raises(InputError, match=r"no evaluation network at.*train-evaluator"):
        load_evaluator(path)
    save_evaluator(EvaluationNetwork(), path, {})
    content = bytearray(path.read_bytes())
    content[-3] ^= 16
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="damaged"):
        load_evaluator(path)
    path.write_bytes(bytes(content[:50]))
    with pytest.raises(InputError, match="cannot be read"):
        load_evaluator(path)
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(InputError, match="does not hold an evaluation network"):
        load_evaluator(path)


def fedseal(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedseal", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def test_the_command_trains_measures_and_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    path = tmp_path / "own.safetensors"
    options = ["--data", "faces", "--check", "photos", "--steps", "3", "--batch-size", "8", "--structured", "0"]
    assert fedseal(monkeypatch, "train-evaluator", *options, "--out", str(path)) == 0
    said = capsys.readouterr().out
    assert "| photos | 280 |" in said
    assert str(path) in said
    assert build_defence(f"refiner:evaluator={path}").name == "refiner"


def test_the_command_refuses_an_unknown_architecture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert fedseal(monkeypatch, "train-evaluator", "--data", "faces", "--architecture", "huge") == 2
    assert "no evaluation network called 'huge'" in capsys.readouterr().err


def test_the_file_does_not_say_where_data_lay(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(8))
    spec = f"npz:path={tmp_path / 'mine.npz'},size=16"
    made = produce_evaluator([spec], [], TrainingPlan(steps=1, batch_size=4), tmp_path / "network.safetensors")
    content = made.path.read_bytes()
    assert b"npz:path=mine.npz,size=16" in content
    assert str(tmp_path).encode() not in content


def test_the_shipped_file_names_no_directory():
    assert b"/" not in shipped_bytes()[:600].split(b"}", 1)[0]
