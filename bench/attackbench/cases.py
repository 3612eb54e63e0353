"""What is attacked: victims, their targets, and the files that hand a target to breaching's process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedseal.audit.scenario import AttackerConfig, ClientConfig, Scenario
from fedseal.audit.setup import Setup, build_setup
from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.defence import Defence
from fedseal.core.errors import InputError
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator

STARTS = 20
"""Random starts a target comes with; only an attack that ends without success uses more than the first."""


@dataclass(frozen=True)
class Victim:
    """A model with a batch size and the iteration counts its speed is measured with.

    Attributes:
        name: as given to `--cases`.
        model: spec of the model.
        batch_size: images behind the gradient.
        iterations: the two counts whose difference gives the rate, the second also the count PSNRs are compared at.
        quick: the same for `--quick`.
    """

    name: str
    model: str
    batch_size: int
    iterations: tuple[int, int]
    quick: tuple[int, int]


VICTIMS = (
    Victim("lenet-b1", "lenet:init=wide-uniform", 1, (80, 480), (40, 160)),
    Victim("convnet-b1", "convnet", 1, (8, 40), (1, 4)),
    Victim("convnet-b8", "convnet", 8, (2, 10), (1, 2)),
    Victim("resnet18-b1", "resnet18", 1, (8, 40), (1, 4)),
)


@dataclass(frozen=True)
class Case:
    """One target, ready to be attacked by either side.

    Attributes:
        name: unique within a run.
        setup: of the scenario it belongs to.
        originals: the private batch.
        observation: what the server sees of it; cases of one set-up share the model.
        seeds: of the starts, in order of use.
    """

    name: str
    setup: Setup
    originals: Batch
    observation: Observation
    seeds: tuple[int, ...]

    @property
    def images(self) -> Tensor:
        """The true images [B, C, H, W]."""
        return self.originals.images

    @property
    def normalisation(self) -> Normalisation:
        """Between images and model inputs."""
        return self.observation.knowledge.normalisation or IDENTITY

    def starts(self) -> Tensor:
        """Return the inputs [R, B, C, H, W] that fedseal's attacks start from with `seeds`."""
        draws = [torch.randn(self.images.numel(), generator=generator(seed, "start", 0)) for seed in self.seeds]
        return torch.stack(draws).view(len(self.seeds), *self.images.shape)

    def save(self, directory: Path) -> Path:
        """Write the case for the other process and return where."""
        place = directory / self.name
        place.mkdir(parents=True, exist_ok=True)
        model = self.observation.model
        tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
        tensors |= {f"gradient/{name}": tensor for name, tensor in self.observation.update.tensors.items()}
        tensors |= {"images": self.images, "labels": self.originals.labels, "starts": self.starts()}
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, place / "case.st")
        channels = self.images.shape[1]
        about = {
            "model": self.setup.scenario.model,
            "num_classes": self.observation.knowledge.num_classes,
            "mean": _per_channel(self.normalisation.mean, channels),
            "std": _per_channel(self.normalisation.std, channels),
        }
        (place / "case.json").write_text(json.dumps(about), encoding="utf-8")
        return place


def _per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values) * channels if len(values) == 1 else list(values)


def make_setup(
    model: str,
    data: str,
    *,
    batch_size: int,
    targets: int,
    normalise: bool,
    seed: int,
    data_root: Path | None,
    public_images: int = 2000,
) -> Setup:
    """Return a federation whose server is given the labels, as both attackers are."""
    scenario = Scenario(
        data=data,
        model=model,
        client=ClientConfig(batch_size=batch_size, normalise=normalise, bn_mode="eval"),
        attacker=AttackerConfig(labels="true", public_images=public_images),
        targets=targets,
        seed=seed,
    )
    return build_setup(scenario, data_root=data_root)


def make_case(name: str, setup: Setup, index: int) -> Case:
    """Return target number `index` of a set-up, observed without any defence."""
    seeds = tuple(1000 * setup.scenario.seed + STARTS * index + start for start in range(STARTS))
    target = setup.observe(Defence(), index)
    observation = Observation(setup.model, target.observation.update, target.observation.knowledge)
    return Case(name, setup, target.originals, observation, seeds)


def colour_data(data_root: Path | None) -> str:
    """Return `cifar10` if it is on this machine, else the colour photographs that come with scikit-image."""
    from fedseal.data.registry import DATASETS

    try:
        DATASETS.build("cifar10", data_root=data_root)
    except InputError:
        return "photos"
    return "cifar10"
