"""Rounds on a small network, as the suites play them: always the same weights, images and clients."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundShape
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.federation.client import ClientRound, RoundConfig, client_round
from fedseal.federation.server import mean_update
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


def play(
    defence: Defence,
    *,
    seed: int | None = 0,
    round_number: int = 0,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
) -> list[ClientRound]:
    """Run one round of as many clients as the defence puts behind an update; noise depends on seed and round."""
    shape = defence.reshape(RoundShape(_BATCH, steps, 1))
    federated = wrapped(defence).to(dtype)
    config = RoundConfig(local_steps=shape.local_steps)
    rounds = []
    for client in range(shape.clients):
        first = 100 * round_number + 10 * client
        batches = [batch(first + step, shape.batch_size, dtype) for step in range(shape.local_steps)]
        theirs = defence if client == 0 else copy.deepcopy(defence)
        source = generator(seed, "round", round_number, client)
        name = f"client-0-{client}"
        rounds.append(client_round(federated, batches, config, theirs, source, round_number=round_number, client=name))
    return rounds


def play_on(federated: nn.Module, defence: Defence) -> ClientRound:
    """Run one client's round on a model that is given."""
    return client_round(federated, [batch()], RoundConfig(), defence, generator(0), client="client-0-0")


def upload(
    defence: Defence,
    *,
    seed: int | None = 0,
    round_number: int = 0,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Tensors:
    """Return what the server sees of one round."""
    rounds = play(defence, seed=seed, round_number=round_number, steps=steps, dtype=dtype)
    update = rounds[0].update if len(rounds) == 1 else mean_update([done.update for done in rounds])
    return defence.server_view(update.tensors)


def same_bits(one: Tensors, other: Tensors) -> bool:
    """Tell whether two sets of tensors are the same, negative zeros and all."""
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name].numpy().tobytes() == other[name].numpy().tobytes()
        for name in one
    )
