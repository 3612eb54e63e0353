"""What passes between a cohort and whoever trains its clients: assignments in, answers out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.defence import CostReport, Defence
from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.core.tensors import Tensors
from fedseal.federation.client import BNStatistics, RoundConfig, round_cost
from fedseal.federation.server import check_upload
from fedseal.federation.wire import payload_size

Measure = Callable[[Tensors], int]
"""Returns the bytes tensors take on the wire."""


@dataclass(frozen=True)
class Assignment:
    """What one client does in a round.

    Attributes:
        index, name: which client.
        model: the one it is sent, wrapped by the defence; not changed.
        batches: one per local step.
        config: how it trains.
        defence: its own instance.
        generator: its randomness in this round.
    """

    index: int
    name: str
    model: nn.Module
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
        error: why.
        fed: the batches the model really saw.
        bn_statistics: of the first step.
        buffers: the trained model's that clients share.
        bytes_up: what the upload takes on the wire.
        hook_seconds: time spent in hooks.
    """

    assignment: Assignment
    update: Update | None
    error: InputError | None = None
    fed: tuple[Batch, ...] = ()
    bn_statistics: BNStatistics = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    bytes_up: int = 0
    hook_seconds: float = 0.0

    @property
    def failure(self) -> str:
        """Why there is no update; empty if there is one."""
        return "" if self.error is None else self.error.message

    def cost(self) -> CostReport:
        """Return what the client's defence cost; to be asked before its next round, as the defence reports its last."""
        tensors = {} if self.update is None else self.update.tensors
        return round_cost(self.assignment.defence, tensors, self.bytes_up, self.hook_seconds)


class Strategy(Protocol):
    """A way to train a round's clients."""

    def __call__(
        self, assignments: Iterable[Assignment], round_number: int, *, statistics: bool = True
    ) -> Iterator[Answer]:
        """Yield the answers; assignments are taken one by one, so that memory is bounded by what is in work.

        Args:
            assignments: who trains on what.
            round_number: for the defences.
            statistics: whether anyone asks for those of batch normalisation.
        """


def answered(
    one: Assignment,
    update: Update,
    hook_seconds: float,
    *,
    fed: tuple[Batch, ...],
    bn_statistics: BNStatistics | None = None,
    buffers: Tensors | None = None,
    measure: Measure = payload_size,
) -> Answer:
    """Return an upload as the server takes it: checked against the model it sent, and measured."""
    try:
        check_upload(update.tensors, one.model)
    except InputError as error:
        return Answer(one, None, error)
    size = measure({**update.tensors, **(buffers or {})})
    return Answer(one, update, None, fed, bn_statistics or {}, buffers or {}, size, hook_seconds)
