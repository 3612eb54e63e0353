"""Small victims whose gradients attacks are tried on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.federation.client import RoundConfig, client_round, set_mode

Observe = Callable[..., tuple[Observation, Batch]]


def smooth_images(count: int, shape: tuple[int, int, int], seed: int) -> torch.Tensor:
    """Random images with the spatial correlation of pictures, in [0, 1]."""
    coarse = torch.rand(count, shape[0], 4, 4, generator=generator(seed, "images"))
    return nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic", align_corners=False).clamp(0, 1)


@pytest.fixture
def observe() -> Observe:
    """Return a function that runs a client's round on smooth random images and returns what the server sees."""

    def run(
        model: nn.Module,
        *,
        shape: tuple[int, int, int] = (1, 16, 16),
        classes: int = 10,
        batch_size: int = 1,
        seed: int = 0,
        config: RoundConfig | None = None,
        defence: Defence | None = None,
        aware: bool = False,
        labels: str = "true",
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Observation, Batch]:
        config = config or RoundConfig()
        model = set_mode(model.to(dtype), config)
        count = batch_size * config.local_steps
        images = smooth_images(count, shape, seed).to(dtype)
        truth = torch.randint(classes, (count,), generator=generator(seed, "labels"))
        steps = [Batch(x, y) for x, y in zip(images.split(batch_size), truth.split(batch_size), strict=True)]
        result = client_round(model, steps, config, defence or Defence(), generator(seed, "noise"))
        knowledge = Knowledge(
            shape,
            classes,
            bn_mode=config.bn_mode,
            loss_reduction=config.loss_reduction,
            label_rule=labels,
            batch_size=batch_size,
            labels=truth if labels == "true" else None,
            bn_statistics=result.bn_statistics or None,
            local_steps=config.local_steps,
            learning_rate=config.learning_rate,
            normalisation=config.normalisation,
            defence=(defence or Defence()).attacker_view() if aware else None,
        )
        return Observation(model, result.update, knowledge), Batch(images, truth)

    return run


@pytest.fixture
def toy_net() -> Callable[[int], nn.Module]:
    """Return a maker of DLG's toy: two sigmoid convolutions of six channels, everything U(-0.5, 0.5)."""

    def make(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = nn.Sequential(
                nn.Conv2d(1, 6, 5, 2, 2),
                nn.Sigmoid(),
                nn.Conv2d(6, 6, 5, 2, 2),
                nn.Sigmoid(),
                nn.Flatten(),
                nn.Linear(6 * 16, 10),
            )
            for parameter in net.parameters():
                nn.init.uniform_(parameter, -0.5, 0.5)
        return net

    return make
