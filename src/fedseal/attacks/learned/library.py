"""Lessons: what is learned from rehearsals with public images, found again by what determined it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

from fedseal.core.batch import Batch
from fedseal.core.knowledge import Rehearse
from fedseal.core.trainable import Trainable
from fedseal.preparation import library, remembered

P = TypeVar("P")

_IN_MEMORY = 4


class Lesson(Trainable[P]):
    """Something learned from updates of public images.

    Args:
        model: as the server sent it.
        public: the attacker's images.
        rehearse: plays clients.
        options: plain values that determine the outcome too.
    """

    def __init__(self, model: nn.Module, public: Batch, rehearse: Rehearse, options: Mapping[str, Any]) -> None:
        self.model = model
        self.public = public
        self.rehearse = rehearse
        self.options = dict(options)

    @property
    def size(self) -> int:
        """One step, unless a lesson says otherwise."""
        return 1

    def recipe(self) -> Mapping[str, Any]:
        """Return model, public images, how clients are played, and the options."""
        return {
            "model": self.model,
            "public": {"images": self.public.inputs, "labels": self.public.labels},
            "rehearsal": self.rehearse.identity,
            "options": self.options,
            "device": self.public.inputs.device.type,
        }


def learned(lesson: Trainable[P]) -> P:
    """Return what a lesson teaches: from memory, from the library, or by learning it now."""
    return remembered("lesson", lesson.identity, lambda: library().get(lesson), most=_IN_MEMORY)
