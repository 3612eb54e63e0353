"""The two forms of the learned inversion as lessons: a kernel in closed form, and a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from torch import Tensor

from fedseal.attacks.learned.kernel import KernelDecoder, fit_kernel
from fedseal.attacks.learned.library import Lesson
from fedseal.attacks.learned.network import NetworkDecoder, NetworkPlan, fit_network
from fedseal.attacks.learned.pairs import Stage
from fedseal.core.trainable import Saved, Unfinished
from fedseal.core.watcher import Report

Form: TypeAlias = Literal["kernel", "network"]
"""Kernel ridge regression in closed form, or a network trained on the fly."""


class Decoder(Protocol):
    """Answers sketches of updates.

    Attributes:
        held_back_db: PSNR in dB on public images it did not learn from.
        ordered: whether its images are sorted by their labels, as it was taught; else each comes with its own.
    """

    @property
    def held_back_db(self) -> float:
        """PSNR in dB on public images it did not learn from."""

    @property
    def ordered(self) -> bool:
        """Whether images come sorted by label."""

    def describe(self) -> str:
        """Return how it was learned, in a few words."""

    def predict(self, sketches: Tensor) -> Tensor:
        """Return images and shares of labels [K, B C H W + B classes] in [0, 1] for sketches [K, D]."""


class KernelLesson(Lesson[KernelDecoder]):
    """What the kernel learns.

    Args:
        stage: what is rehearsed on.
        classes: number of them.
        options: that determine it.
    """

    kind: ClassVar[str] = "learned"

    def __init__(self, stage: Stage, classes: int, options: Mapping[str, Any]) -> None:
        super().__init__(stage.model, stage.public, stage.rehearse, options)
        self._stage = stage
        self._classes = classes

    @property
    def title(self) -> str:
        """What is learned, in words."""
        return f"inversion by kernel from {len(self.public):,} public images"

    def fit(self, report: Report, unfinished: Unfinished) -> KernelDecoder:
        """Rehearse, choose, solve."""
        learned_from, held_back = self._stage.split()
        learn, held = self._stage.play(learned_from, "learn"), self._stage.play(held_back, "held back")
        return fit_kernel(learn, held, self._stage.sketch.lengths, self._classes)

    def save(self, trained: KernelDecoder) -> Saved:
        """Return it as tensors and values."""
        return Saved(*trained.state())

    def load(self, saved: Saved) -> KernelDecoder:
        """Return it as it was."""
        return KernelDecoder.restore(saved.tensors, saved.values)


class NetworkLesson(Lesson[NetworkDecoder]):
    """What the network learns, epoch by epoch; killed, it goes on.

    Args:
        stage: what is rehearsed on.
        classes: number of them.
        plan: of the training.
        options: that determine it too.
    """

    kind: ClassVar[str] = "learned-network"

    def __init__(self, stage: Stage, classes: int, plan: NetworkPlan, options: Mapping[str, Any]) -> None:
        super().__init__(stage.model, stage.public, stage.rehearse, {**options, "plan": plan})
        self._stage = stage
        self._classes = classes
        self._plan = plan

    @property
    def title(self) -> str:
        """What is learned, in words."""
        return f"inversion by a network from {len(self.public):,} public images"

    @property
    def size(self) -> int:
        """Epochs."""
        return self._plan.epochs

    def fit(self, report: Report, unfinished: Unfinished) -> NetworkDecoder:
        """Train it."""
        return fit_network(self._stage, self._classes, self._plan, report, unfinished)

    def save(self, trained: NetworkDecoder) -> Saved:
        """Return it as tensors and values."""
        return trained.state()

    def load(self, saved: Saved) -> NetworkDecoder:
        """Return it as it was."""
        return NetworkDecoder.restore(saved, self._stage, self._classes, self._plan)
