"""What attacks have in common that answer from what was prepared: every target is checked first, all share the time."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from fedseal.core.attack import Attack, Budget, Listener
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction


class PreparedAttack(Attack):
    """Prepares once for a model, a defence and public images, and answers all targets by it; subclasses say how."""

    prepares: ClassVar[bool] = True

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Check all observations, then answer them; preparing counts for each alike."""
        started = time.perf_counter()
        for observation in observations:
            self.check(observation)
        answers = self.answers(observations, budget, seeds, listener)
        seconds = (time.perf_counter() - started) / len(observations)
        return [replace(answer, seconds=seconds) for answer in answers]

    @abstractmethod
    def answers(
        self, observations: Sequence[Observation], budget: Budget, seeds: Sequence[int], listener: Listener | None
    ) -> list[Reconstruction]:
        """Return an answer to each observation; what is prepared is taken from the library, or made."""
