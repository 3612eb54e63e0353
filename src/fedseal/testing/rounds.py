"""Rounds on small networks, as the suites play them: always the same weights, data and clients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.federation.client import ClientRound, RoundConfig
from fedseal.federation.cohort import Cohort, CohortRound, held_by, play_alone
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)
CLASSES = 4
DTYPES = (torch.float32, torch.float64, torch.float16)
_BATCH = 3


@dataclass(frozen=True)
class Ground:
    """What rounds are played on.

    Attributes:
        name: of what clients hold.
        build: makes the network; nobody may write to it.
        draw: makes a batch of a seed and a size.
        body: makes a first layer that takes such data, and says how many outputs of it a sample has.
    """

    name: str
    build: Callable[[], nn.Module]
    draw: Callable[[int, int], Batch]
    body: Callable[[], tuple[nn.Module, int]]

    def __str__(self) -> str:
        return self.name


@cache
def _network() -> nn.Module:
    return build_model("lenet:init=wide-uniform", input_shape=SHAPE, num_classes=CLASSES, seed=0)


def _images(seed: int, size: int) -> Batch:
    source = generator(seed, "images")
    images = torch.rand(size, *SHAPE, generator=source)
    return Batch(images, torch.randint(CLASSES, (size,), generator=source))


IMAGES = Ground("image", _network, _images, lambda: (nn.Conv2d(1, 1, 3, padding=1), 144))
"""Random images [B, 1, 12, 12] and a LeNet."""


def wrapped(defence: Defence, of: nn.Module | None = None, ground: Ground = IMAGES) -> nn.Module:
    """Return the model the federation trains under a defence, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return defence.wrap_model(copy.deepcopy(ground.build() if of is None else of))


@dataclass(frozen=True)
class _Streams:
    """The randomness of a suite's clients in one round; of the operating system, without a seed."""

    seed: int | None

    def prepare(self, client: int) -> torch.Generator:
        return generator(self.seed, "prepare", client)

    def round(self, client: int, number: int) -> torch.Generator:
        return generator(self.seed, "round", number, client)

    def turns(self, number: int) -> torch.Generator:
        return generator(self.seed, "turns", number)


def play(
    defence: Defence,
    *,
    seed: int | None = 0,
    round_number: int = 0,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
    ground: Ground = IMAGES,
) -> list[ClientRound]:
    """Run one round of as many clients as the defence puts behind an update; noise depends on seed and round."""
    done = _played(defence, seed, round_number, steps, dtype, ground)
    return [
        ClientRound(answer.update, answer.fed, answer.bn_statistics, done.cost(answer))
        for answer in done.answers
        if answer.update is not None
    ]


def _played(
    defence: Defence, seed: int | None, round_number: int, steps: int, dtype: torch.dtype, ground: Ground
) -> CohortRound:
    shape = defence.reshape(RoundShape(_BATCH, steps, 1))
    config = RoundConfig(local_steps=shape.local_steps)
    clients = []
    for client in range(shape.clients):
        first = 100 * round_number + 10 * client
        drawn = [ground.draw(first + step, shape.batch_size) for step in range(shape.local_steps)]
        batches = [batch.to("cpu", dtype) for batch in drawn]
        clients.append(held_by(f"client-0-{client}", batches, config, defence.name))
    cohort = Cohort(clients, defence, _Streams(seed), strict=True, defences={0: defence})
    return cohort.play([wrapped(defence, ground=ground).to(dtype)], round_number, shown=range(len(clients)))


def play_on(federated: nn.Module, defence: Defence, ground: Ground = IMAGES) -> ClientRound:
    """Run one client's round on a model that is given."""
    client = held_by("client-0-0", [ground.draw(0, _BATCH)], RoundConfig(), defence.name)
    return play_alone(client, federated, defence, _Streams(0), round_number=0)


def upload(
    defence: Defence,
    *,
    seed: int | None = 0,
    round_number: int = 0,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
    ground: Ground = IMAGES,
) -> Tensors:
    """Return what the server sees of one round."""
    seen = _played(defence, seed, round_number, steps, dtype, ground).seen
    assert seen is not None  # a strict cohort raises what is wrong with an answer
    return seen.tensors


def same_bits(one: Tensors, other: Tensors) -> bool:
    """Tell whether two sets of tensors are the same, negative zeros and all."""
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name].numpy().tobytes() == other[name].numpy().tobytes()
        for name in one
    )
