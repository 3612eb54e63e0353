"""Where the search for one target ended: the start that is chosen among its restarts, and the answer it stands for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.attacks.labels import LabelGuess
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.attacks.matching.recipe import LocalSteps
from fedseal.attacks.matching.roster import Solution
from fedseal.attacks.matching.surroundings import Trace, median_filter, to_images
from fedseal.attacks.matching.threat import remarks
from fedseal.core.errors import TrialError
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction


@dataclass(frozen=True)
class Outcome:
    """The best start of one target.

    Attributes:
        problem: what its variables stand for.
        observation: what was attacked.
        guess: the labels it began with; None where they began from nothing.
        z: its final variables [D].
        lane: its constants, as the one lane of a batch.
        value: its objective.
        trace: (step, objective) on the way.
        starts: how many there were.
        diverged: how many of them were discarded.
    """

    problem: MatchingProblem
    observation: Observation
    guess: LabelGuess | None
    z: Tensor
    lane: Lanes
    value: float
    trace: tuple[tuple[int, float], ...]
    starts: int
    diverged: int

    @classmethod
    def choose(
        cls,
        problem: MatchingProblem,
        observation: Observation,
        guess: LabelGuess | None,
        solution: Solution,
        trace: Trace,
        places: range,
    ) -> Outcome:
        """Choose among the lanes at `places` the one with the least objective, which is all the attacker can go by."""
        own = solution.values[places.start : places.stop]
        finite = torch.isfinite(own)
        if not bool(finite.any()):
            raise TrialError(
                f"all {len(places)} start(s) of the attack diverged.",
                hint="Lower its learning rate, or add restarts.",
            )
        best = places[int(own.where(finite, own.new_full((), float("inf"))).argmin())]
        return cls(
            problem,
            observation,
            guess,
            solution.z[best].detach(),
            solution.lanes.pick(torch.tensor([best], device=own.device)),
            float(solution.values[best]),
            trace.of_lane(best),
            len(places),
            len(places) - int(finite.sum()),
        )

    def answer(self, local_steps: LocalSteps, median: int, seconds: float) -> Reconstruction:
        """Return the images and labels, through a median filter of that side (0 for none), and what is to be said."""
        images, labels = to_images(self.problem, self.z), self.lane.labels
        return Reconstruction(
            median_filter(images, median) if median else images,
            self.problem.training_loss.read(self.problem.label_logits(self.z)) if labels is None else labels[0],
            self.value,
            self.trace,
            seconds,
            self._notes(local_steps),
        )

    def _notes(self, local_steps: LocalSteps) -> tuple[str, ...]:
        notes = [*(() if self.guess is None else self.guess.notes), *remarks(self.observation, local_steps)]
        if self.diverged:
            notes.append(f"{self.diverged} of {self.starts} starts diverged and were discarded")
        if (alpha := self.problem.alpha(self.z)) is not None:
            notes.append(
                f"the gradient is matched {float(alpha):.2f} of the way from the model sent to the one returned"
            )
        if self.problem.priors.activation and not self.problem.passes_activations(self.z):
            notes.append("the model has no activations we know: the penalty on them is left out")
        return tuple(notes)
