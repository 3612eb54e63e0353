"""A denoiser in the loop: images are pulled towards what is left of them without noise.

Half quadratic splitting as in plug-and-play restoration (Venkatakrishnan et al. 2013; Zhang et al., TPAMI 2022): with
t = D(x, s) the denoised images, renewed every few steps, the objective gets weight x mean (x - t)^2 / s^2. The
deviation s falls over the run: at first only coarse structure is believed in, at the end the finest too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.attacks.matching.evaluation import Evaluate, Evaluation
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.priors.prior import Prior

FIRST, LAST = 0.5, 0.08
"""Deviations of the noise that is taken away at the beginning and at the end."""
EVERY = 10
"""Steps between two looks of the denoiser."""


class Pull:
    """An evaluation with the pull added, and what renews its goals.

    Args:
        evaluate: what is added to.
        problem: what lanes stand for; its variables begin with pixels.
        prior: that denoises.
        weight: of the pull.
        lanes: how many there are.
    """

    def __init__(self, evaluate: Evaluate, problem: MatchingProblem, prior: Prior, weight: float, lanes: int) -> None:
        shape = problem.parameterisation.shape
        if not prior.fits(shape[1:]):
            raise prior.misfit(shape[1:])
        self._evaluate, self._problem, self._prior, self._weight = evaluate, problem, prior, weight
        like = next(iter(problem.parameters.values()))
        unit = like.new_ones(shape[1], 1, 1)
        undo = problem.normalisation.undo
        self._slope = undo(unit) - undo(torch.zeros_like(unit))
        self._goals = like.new_full((lanes, *shape), 0.5)
        self._sigma = FIRST

    def __call__(self, z: Tensor, lanes: Lanes, weight: float = 1.0, selections: Tensor | None = None) -> Evaluation:
        """Evaluate all lanes."""
        plain = self._evaluate(z, lanes, weight, selections)
        away = self._images(z) - self._goals[lanes.numbers]
        pixels = away[0].numel()
        strength = self._weight / self._sigma**2
        gradients = plain.gradients.clone()
        gradients[:, :pixels] += (2 * strength / pixels * away * self._slope).flatten(1)
        return Evaluation(plain.values + strength * away.square().flatten(1).mean(1), gradients, plain.selections)

    def look(self, progress: float, z: Tensor, lanes: Lanes) -> None:
        """Renew the goals of lanes at z, `progress` of the way; each alone, whatever runs beside it."""
        self._sigma = FIRST * (LAST / FIRST) ** progress
        for number, images in zip(lanes.numbers.tolist(), self._images(z), strict=True):
            self._goals[number] = self._prior.denoise(images.clone(), self._sigma)

    def _images(self, z: Tensor) -> Tensor:
        shape = self._problem.parameterisation.shape
        return self._problem.normalisation.undo(z[:, : torch.Size(shape).numel()].detach().reshape(-1, *shape))
