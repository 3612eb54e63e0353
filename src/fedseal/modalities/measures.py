"""What an audit asks of a modality once an attack has answered; one module here per kind of input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.encoding import Encoding
from fedseal.core.reconstruction import Reconstruction


@dataclass(frozen=True)
class Case:
    """One attacked target, with all that its scores depend on beside the answer.

    Attributes:
        originals: what was private.
        fed: what the model was fed instead, by a defence that changes data; the originals otherwise.
        public: data of the same kind that nobody keeps secret.
        strangers: further data nobody has seen, to single the original out of.
        by_class: whether only strangers of the original's class stand in the line-up, as its label is known anyway.
        metrics: specs of further metrics.
        seed: of what baselines draw.
        encoding: how inputs are made, where that is not plain.
    """

    originals: Batch
    fed: Batch
    public: Batch
    strangers: Batch
    by_class: bool = False
    metrics: Sequence[str] = ()
    seed: int = 0
    encoding: Encoding | None = None


@dataclass(frozen=True)
class Measured:
    """What came of it.

    Attributes:
        fields: of the trial's record, by name.
        kept: tensors that show the case to a person, `originals` and `reconstructions` among them.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)


class Measures(ABC):
    """How answers of one kind are measured."""

    @abstractmethod
    def progress(self, originals: Sequence[Batch], guesses: Tensor) -> dict[str, float]:
        """Return figures that show how far running attacks are; guesses [K, B, ...] belong to the K originals."""

    @abstractmethod
    def measure(self, case: Case, answer: Reconstruction) -> Measured:
        """Score an answer, set it beside what anybody could guess, and rank the originals among strangers."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Return what a reader must know of the measures, for the report's environment."""
