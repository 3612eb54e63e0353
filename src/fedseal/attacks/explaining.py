"""How well images explain an update: the one objective by which candidates of different attacks are compared."""

from __future__ import annotations

import torch
from torch import Tensor

from fedseal.attacks.matching.objectives import Cosine
from fedseal.attacks.matching.parameterisation import Pixels
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.problem import MatchingProblem, Unroll
from fedseal.attacks.reading import (
    attack_model,
    attack_parameters,
    estimated_gradient,
    image_count,
    input_normalisation,
    update_scale,
)
from fedseal.core.observation import Observation
from fedseal.core.tensors import flatten


class Mismatch:
    """1 - cos between an update and what images would have sent, as far as the attacker can tell.

    Local steps are simulated where they are known, the defence where its view is. 0 is a full explanation.

    Args:
        observation: what the attacker sees.
    """

    def __init__(self, observation: Observation) -> None:
        knowledge = observation.knowledge
        steps, rate = knowledge.local_steps, knowledge.learning_rate
        known = observation.update.kind == "delta" and (knowledge.clients or 1) == 1
        shape = (image_count(observation), *knowledge.input_shape)
        self._normalisation = input_normalisation(observation)
        self._observed = flatten(estimated_gradient(observation))
        self._problem = MatchingProblem(
            attack_model(observation),
            attack_parameters(observation),
            parameterisation=Pixels(shape, _drawn),  # type: ignore[arg-type]  # of records: B, D
            num_classes=knowledge.num_classes,
            objective=Cosine(),
            priors=Priors(),
            loss=knowledge.loss,
            reduction=knowledge.loss_reduction,
            view=knowledge.defence,
            scale=update_scale(observation),
            clients=knowledge.clients or 1,
            normalisation=self._normalisation,
            unroll=Unroll(steps, rate) if known and steps is not None and rate is not None else None,
        )

    def __call__(self, images: Tensor, labels: Tensor) -> float:
        """Return the mismatch of images [B, C, H, W] in [0, 1] with labels [B]."""
        z = self._normalisation(images.to(self._observed)).reshape(-1)
        dummy, _, _ = self._problem.update(z, labels.to(self._observed.device))
        return float(self._problem.distance(dummy, self._observed)[0].detach())


def _drawn(size: torch.Size, source: torch.Generator) -> Tensor:
    return torch.zeros(size)
