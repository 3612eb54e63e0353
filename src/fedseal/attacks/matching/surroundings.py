"""What surrounds a descent: the box images live in, labels read anew, the record of progress, and finished images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedseal.attacks.labels import refine_labels
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.core.attack import Listener
from fedseal.core.observation import Observation


def to_images(problem: MatchingProblem, z: Tensor) -> Tensor:
    """Return the images [B, C, H, W] in [0, 1] that one lane's variables z [D] stand for."""
    return problem.normalisation.undo(problem.inputs(z)).detach().clamp(0, 1)


def median_filter(images: Tensor, side: int) -> Tensor:
    """Replace each pixel of [B, C, H, W] by the median of the side x side square around it, edges reflected."""
    margin = side // 2
    padded = F.pad(images, (margin, margin, margin, margin), mode="reflect")
    return padded.unfold(2, side, 1).unfold(3, side, 1).flatten(-2).median(-1).values


class Box:
    """Clamps inputs to what images in [0, 1] can become, a surrogate point to its way; label logits are left alone.

    Args:
        problem: whose variables are clamped.
    """

    def __init__(self, problem: MatchingProblem) -> None:
        like = next(iter(problem.parameters.values()))
        black = problem.normalisation(like.new_zeros(problem.parameterisation.shape)).reshape(-1)
        white = problem.normalisation(like.new_ones(problem.parameterisation.shape)).reshape(-1)
        free = like.new_full((problem.size - len(black),), float("inf"))
        self._low, self._high = torch.cat([black, -free]), torch.cat([white, free])
        if problem.surrogate is not None:
            self._low[problem.place_of_surrogate], self._high[problem.place_of_surrogate] = problem.surrogate.bounds

    def __call__(self, z: Tensor) -> Tensor:
        """Clamp z [L, D]."""
        return torch.clamp(z, self._low, self._high)


class Relabel:
    """Re-estimates each lane's labels from its current images and its own target's update.

    Args:
        problem: what lanes stand for.
        observations: of each lane.
    """

    def __init__(self, problem: MatchingProblem, observations: Sequence[Observation]) -> None:
        self._problem = problem
        self._observations = observations

    def __call__(self, z: Tensor, lanes: Lanes) -> Lanes:
        """Return the lanes of z [L, D] with new labels."""
        assert lanes.labels is not None
        labels = [
            refine_labels(self._observations[lane], self._problem.inputs(variables), current)
            for lane, variables, current in zip(lanes.numbers.tolist(), z, lanes.labels, strict=True)
        ]
        return Lanes(lanes.observed, torch.stack(labels), lanes.numbers)


class Trace:
    """Keeps the objectives over time and tells the listener how the images look.

    Args:
        problem: what lanes stand for.
        listener: told of progress; None for nobody.
        iterations: in all.
        restarts: consecutive lanes of one target, of which the first is shown.
    """

    def __init__(self, problem: MatchingProblem, listener: Listener | None, iterations: int, restarts: int) -> None:
        self._problem = problem
        self._listener = listener
        self._iterations = iterations
        self._restarts = restarts
        self._steps: list[int] = []
        self._values: list[Tensor] = []

    def __call__(self, step: int, values: Tensor, z: Tensor) -> None:
        """Take all lanes' values [L] and variables z [L, D]."""
        self._steps.append(step)
        self._values.append(values.detach().clone())
        if self._listener is not None:
            shown = [to_images(self._problem, lane) for lane in z[:: self._restarts]]
            self._listener(step / self._iterations, torch.stack(shown))

    def of_lane(self, lane: int) -> tuple[tuple[int, float], ...]:
        """Return one lane's (step, value) pairs."""
        return tuple((step, float(values[lane])) for step, values in zip(self._steps, self._values, strict=True))
