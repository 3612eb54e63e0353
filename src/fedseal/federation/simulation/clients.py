"""A round's clients, trained one after the other; `vectorised` does the same for all at once where that pays."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.core.tensors import Tensors
from fedseal.federation.client import BNStatistics, RoundConfig, train


@dataclass(frozen=True)
class Assignment:
    """What one client does in a round.

    Attributes:
        index, name: which client.
        batches: one per local step.
        config: how it trains.
        defence: its own instance.
        generator: its randomness in this round.
    """

    index: int
    name: str
    batches: tuple[Batch, ...]
    config: RoundConfig
    defence: Defence
    generator: torch.Generator


@dataclass(frozen=True)
class Answer:
    """What came of an assignment: an update, or the reason why there is none.

    Attributes:
        assignment: whose.
        update: after every hook of the client's defence; None if it failed.
        failure: why.
        fed: the batches the model really saw.
        bn_statistics: of the first step.
        buffers: the trained model's, where they may have moved; good until the next answer.
        hook_seconds: time spent in hooks.
    """

    assignment: Assignment
    update: Update | None
    failure: str = ""
    fed: tuple[Batch, ...] = ()
    bn_statistics: BNStatistics = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    hook_seconds: float = 0.0


def train_in_turn(model: nn.Module, assignments: Iterable[Assignment], round_number: int) -> Iterator[Answer]:
    """Train clients one after the other, holding one client's model at a time."""
    workspace = copy.deepcopy(model)
    for one in assignments:
        try:
            done = train(
                model,
                one.batches,
                one.config,
                one.defence,
                one.generator,
                round_number=round_number,
                client=one.name,
                workspace=workspace,
            )
        except InputError as error:
            yield Answer(one, None, error.message)
            continue
        yield Answer(one, done.update, "", done.fed, done.bn_statistics, done.buffers, hook_seconds=done.hook_seconds)
