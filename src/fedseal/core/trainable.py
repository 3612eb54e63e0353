"""What is trained beforehand and used many times: an attacker's networks, a prior, a defence's own preparation.

A `Trainable` says what determines it (`recipe`), trains (`fit`), and turns what it trained into tensors and plain
values and back (`save`, `load`). Everything else is the library's (`fedseal.preparation`): it finds what was trained
before by its identity, keeps it in the cache as one safetensors file, and goes on with a training that was killed.

An attack or a defence that needs something trained returns it from its method `trainables`, and takes it from the
library when it runs; `fedseal prepare SCENARIO` trains everything that a scenario's attacks and defences return there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fedseal.core.identity import classes_in, identity_of
from fedseal.core.sources import code_digest
from fedseal.core.watcher import Report

P = TypeVar("P")


@dataclass(frozen=True)
class Saved:
    """Something trained, or half trained, as it lies in a file.

    Attributes:
        tensors: by name.
        values: what is no tensor, as JSON has it.
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any] = field(default_factory=dict)


class Unfinished(Protocol):
    """Where a training leaves its state on the way. A training that was killed finds there what it left last."""

    def load(self) -> Saved | None:
        """Return what an earlier training of the same identity left, or None."""

    def save(self, state: Saved) -> None:
        """Keep the state between two steps; called as often as its author likes, the library thins it out."""


class Trainable(ABC, Generic[P]):
    """Something to be trained, of which a `P` comes.

    Two trainables with the same recipe and code are one: every draw must come from a seed in the recipe, and training
    must go on from a saved state as if it had never stopped.

    Attributes:
        kind: one word for all of its kind; the directory in the cache.
        private: it is made of a client's private data, so that its files are for their owner's eyes only.
    """

    kind: ClassVar[str]
    private: ClassVar[bool] = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What is trained, in a few words."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How far training goes, in the unit of the ticks it reports."""

    @abstractmethod
    def recipe(self) -> Mapping[str, Any]:
        """Return everything that determines the outcome, but code: plans, models, data, seeds, by name.

        Tensors, models, data sets, paths and dataclasses count by content (`core.identity`).
        """

    @abstractmethod
    def fit(self, report: Report, unfinished: Unfinished) -> P:
        """Train, going on from what `unfinished` holds.

        Args:
            report: told now and then how far it is, with the loss.
            unfinished: where the state is kept on the way.
        """

    @abstractmethod
    def save(self, trained: P) -> Saved:
        """Return what was trained as tensors and values."""

    @abstractmethod
    def load(self, saved: Saved) -> P:
        """Return what was trained, or refuse with `InputError` what does not fit; what it reads may be damaged."""

    @property
    def modules(self) -> list[str]:
        """The modules whose code, with all they import, trains it: its own, and those of what its recipe holds."""
        return sorted({type(self).__module__, *classes_in(self.recipe())})

    @cached_property
    def identity(self) -> str:
        """The hash of recipe and code, by which it is found again."""
        return identity_of(
            kind=[self.kind, type(self).__qualname__],
            recipe=self.recipe(),
            code=code_digest(self.modules),
            torch=torch.__version__,
        )
