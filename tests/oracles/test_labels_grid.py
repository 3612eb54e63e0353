"""A measured grid: share of labels each rule gets right, on networks at several ages.

FC-128-128 on 64-dimensional inputs. `accuracy_table` measures, `print_table` shows it: run this file to see all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.labels import LABEL_RULES
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.seeds import generator
from fedseal.data.dataset import ImageDataset
from fedseal.data.registry import DATASETS
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.metrics.labels import label_accuracy
from fedseal.models.registry import build_model

SHAPE = (1, 8, 8)
BATCHES = 25


@dataclass(frozen=True)
class Case:
    """One row of the grid: classes, batch, label distribution, and the SGD steps the network has behind it."""

    classes: int = 10
    batch: int = 32
    skewed: bool = False
    steps: int = 0
    learning_rate: float = 0.5


CASES = {
    "init, skewed": Case(skewed=True),
    "init, uniform": Case(),
    "10 steps, uniform": Case(steps=10),
    "10 steps, skewed": Case(steps=10, skewed=True),
    "60 steps, skewed": Case(steps=60, skewed=True),
    "60 steps, uniform": Case(steps=60),
    "C=100, B=128, init": Case(classes=100, batch=128),
}


class Population:
    """Classes as Gaussian clouds around random means in [0, 1]^64."""

    def __init__(self, classes: int, seed: int) -> None:
        self.random = generator(seed, "population")
        self.means = 0.5 + 0.25 * torch.randn(classes, 64, generator=self.random)

    def draw(self, labels: Tensor) -> Batch:
        images = self.means[labels] + 0.2 * torch.randn(len(labels), 64, generator=self.random)
        return Batch(images.clamp(0, 1).reshape(-1, *SHAPE), labels)

    def labels(self, count: int, skewed: bool) -> Tensor:
        weights = torch.ones(len(self.means))
        if skewed:
            weights = torch._standard_gamma(torch.full_like(weights, 0.3), generator=self.random)
        return torch.multinomial(weights + 1e-9, count, replacement=True, generator=self.random)


def network(classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hidden = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, classes))


def train(model: nn.Module, population: Population, case: Case) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=case.learning_rate)
    for _ in range(case.steps):
        batch = population.draw(population.labels(128, skewed=False))
        optimiser.zero_grad()
        F.cross_entropy(model(batch.images), batch.labels).backward()
        optimiser.step()


def observe(case: Case, seed: int) -> tuple[Observation, Tensor]:
    """Return what the server sees of one batch, and the batch's labels."""
    population = Population(case.classes, seed)
    model = network(case.classes, seed)
    train(model, population, case)
    batch = population.draw(population.labels(case.batch, case.skewed))
    loss = F.cross_entropy(model(batch.images), batch.labels)
    names = [name for name, _ in model.named_parameters()]
    gradient = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    knowledge = Knowledge(SHAPE, case.classes, batch_size=case.batch)
    return Observation(model, Update(gradient), knowledge), batch.labels


def with_public_data(observation: Observation, seed: int) -> Observation:
    """Grant 64 fresh images of every class."""
    classes = observation.knowledge.num_classes
    population = Population(classes, seed)
    population.random.manual_seed(10**6 + seed)
    public = population.draw(torch.arange(classes).repeat_interleave(64))
    return replace(observation, knowledge=replace(observation.knowledge, auxiliary=public))


COLUMNS: dict[str, tuple[str, bool]] = {
    **{rule: (rule, False) for rule in LABEL_RULES if rule not in {"idlg", "llg-plus", "identity"}},
    "llg-plus, dummy": ("llg-plus", False),
    "llg-plus, public": ("llg-plus", True),
    "identity, noise": ("identity", False),
    "identity, public": ("identity", True),
}


def accuracy_table(case: Case, columns: list[str], batches: int = BATCHES) -> dict[str, float]:
    """Return the mean share of labels right over `batches` batches, each of a network of its own, per column."""
    sums = dict.fromkeys(columns, 0.0)
    for seed in range(batches):
        observation, labels = observe(case, seed)
        granted = with_public_data(observation, seed)
        for column in columns:
            rule, public = COLUMNS[column]
            guess = LABEL_RULES.build(rule)(granted if public else observation, seed)
            sums[column] += label_accuracy(labels, guess.labels) / batches
    return sums


def print_table(show: Callable[[str], None] = print) -> None:
    """Measure and show the whole grid as a table in Markdown."""
    show("| case | " + " | ".join(COLUMNS) + " |")
    show("|---" * (len(COLUMNS) + 1) + "|")
    for name, case in CASES.items():
        row = accuracy_table(case, list(COLUMNS))
        show(f"| {name} | " + " | ".join(f"{value:.3f}" for value in row.values()) + " |")


@pytest.mark.parametrize(
    ("case", "floors"),
    [
        # identity: the figures measured on a toy before; others: a little below what was measured here
        (
            "init, skewed",
            {
                "identity, noise": 1.0,
                "identity-noise": 1.0,
                "identity, public": 1.0,
                "ilrg": 0.97,
                "fedleak-count": 0.90,
            }
            | {"llg": 0.77, "llg-plus, dummy": 0.95, "llg-plus, public": 0.95},
        ),
        (
            "init, uniform",
            {
                "identity, noise": 1.0,
                "identity-noise": 1.0,
                "identity, public": 1.0,
                "ilrg": 0.95,
                "fedleak-count": 0.79,
            }
            | {"llg": 0.57, "llg-plus, dummy": 0.97, "llg-plus, public": 0.97, "fedleak-count-element": 0.82},
        ),
        (
            "10 steps, uniform",
            {"identity, noise": 1.0, "identity-noise": 1.0, "identity, public": 1.0, "fedleak-count": 0.79},
        ),
        ("60 steps, skewed", {"identity, public": 0.78, "identity, noise": 0.72, "llg": 0.71, "ilrg": 0.5}),
        ("C=100, B=128, init", {"ilrg": 0.95, "identity, noise": 0.99}),
    ],
)
def test_the_grid(case: str, floors: dict[str, float]):
    measured = accuracy_table(CASES[case], list(floors))
    print(case, {column: round(value, 3) for column, value in measured.items()})
    short = {column: measured[column] for column, floor in floors.items() if measured[column] < floor - 1e-9}
    assert not short


@pytest.mark.slow
def test_public_data_are_what_helps_against_a_trained_network():
    """Near zero loss noise says nothing: the class-conditional identity must beat it by far, and LLG+ too."""
    measured = accuracy_table(CASES["60 steps, skewed"], ["identity-noise", "identity, public", "llg-plus, public"])
    assert measured["identity, public"] > measured["identity-noise"] + 0.25
    assert measured["identity, public"] > measured["llg-plus, public"]


@pytest.mark.parametrize("shrink", [0.5, 0.05])
def test_a_clipped_gradient_gives_its_labels_away(shrink: float):
    """Clipping scales the gradient by an unknown factor, which whole counts reveal in a young network."""
    accuracies = []
    for seed in range(20):
        observation, labels = observe(CASES["init, skewed"], seed)
        tensors = {name: shrink * tensor for name, tensor in observation.update.tensors.items()}
        guess = LABEL_RULES.build("identity")(replace(observation, update=Update(tensors)), seed)
        assert any("clipped" in note for note in guess.notes)
        accuracies.append(label_accuracy(labels, guess.labels))
    assert sum(accuracies) / len(accuracies) > 0.98


def cifar10(shared: Path) -> ImageDataset:
    return DATASETS.build("cifar10", data_root=shared / "data")


def observe_cifar10(dataset: ImageDataset, seed: int, batch: int = 16) -> tuple[Observation, Tensor]:
    model = build_model("lenet-relu", input_shape=dataset.shape, num_classes=10, seed=seed)
    chosen = torch.randperm(len(dataset), generator=generator(seed, "batch"))[:batch]
    images = dataset.batch(chosen)
    config = RoundConfig()
    result = client_round(model, [images], config, Defence(), generator(seed, "defence"))
    knowledge = Knowledge(dataset.shape, 10, batch_size=batch, local_steps=1)
    return Observation(set_mode(model, config), result.update, knowledge), images.labels


@pytest.mark.slow
@pytest.mark.shared
def test_real_images_in_an_untrained_network(shared: Path):
    """CIFAR-10, LeNet with ReLU at its default initialisation, B = 16."""
    dataset = cifar10(shared)
    rules = ["identity", "identity-noise", "ilrg", "llg", "llg-plus", "fedleak-count", "yin", "analytic"]
    sums = dict.fromkeys(rules, 0.0)
    for seed in range(20):
        observation, labels = observe_cifar10(dataset, seed)
        for rule in rules:
            sums[rule] += label_accuracy(labels, LABEL_RULES.build(rule)(observation, seed).labels) / 20
    print({rule: round(value, 3) for rule, value in sums.items()})
    assert sums["identity"] > 0.95
    assert sums["identity"] >= max(sums["llg"], sums["yin"], sums["fedleak-count"])


if __name__ == "__main__":
    print_table()
