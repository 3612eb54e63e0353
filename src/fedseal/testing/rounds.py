"""Rounds on a small network, as the suites play them: always the same weights, images and clients."""

from __future__ import annotations

import copy
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


@cache
def model() -> nn.Module:
    """Return the network; nobody may write to it."""
    return build_model("lenet:init=wide-uniform", input_shape=SHAPE, num_classes=CLASSES, seed=0)


def wrapped(defence: Defence, of: nn.Module | None = None) -> nn.Module:
    """Return the model the federation trains under a defence, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return defence.wrap_model(copy.deepcopy(model() if of is None else of))


def batch(seed: int = 0, size: int = _BATCH, dtype: torch.dtype = torch.float32) -> Batch:
    """Return random images [size, 1, 12, 12] and labels."""
    source = generator(seed, "images")
    images = torch.rand(size, *SHAPE, generator=source).to(dtype)
    return Batch(images, torch.randint(CLASSES, (size,), generator=source))


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
) -> list[ClientRound]:
    """Run one round of as many clients as the defence puts behind an update; noise depends on seed and round."""
    done = _played(defence, seed, round_number, steps, dtype)
    return [
        ClientRound(answer.update, answer.fed, answer.bn_statistics, done.cost(answer))
        for answer in done.answers
        if answer.update is not None
    ]


def _played(defence: Defence, seed: int | None, round_number: int, steps: int, dtype: torch.dtype) -> CohortRound:
    shape = defence.reshape(RoundShape(_BATCH, steps, 1))
    config = RoundConfig(local_steps=shape.local_steps)
    clients = []
    for client in range(shape.clients):
        first = 100 * round_number + 10 * client
        batches = [batch(first + step, shape.batch_size, dtype) for step in range(shape.local_steps)]
        clients.append(held_by(f"client-0-{client}", batches, config, defence.name))
    cohort = Cohort(clients, defence, _Streams(seed), strict=True, defences={0: defence})
    return cohort.play([wrapped(defence).to(dtype)], round_number, shown=range(len(clients)))


def play_on(federated: nn.Module, defence: Defence) -> ClientRound:
    """Run one client's round on a model that is given."""
    client = held_by("client-0-0", [batch()], RoundConfig(), defence.name)
    return play_alone(client, federated, defence, _Streams(0), round_number=0)


def upload(
    defence: Defence,
    *,
    seed: int | None = 0,
    round_number: int = 0,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Tensors:
    """Return what the server sees of one round."""
    seen = _played(defence, seed, round_number, steps, dtype).seen
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
