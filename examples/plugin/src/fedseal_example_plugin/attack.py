"""Answer with public images: of those the attacker holds, the ones whose gradients point most like the update."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedseal import Attack, Budget, Info, Observation, Reconstruction
from fedseal.attacks.labels import infer_labels
from fedseal.attacks.reading import attack_model, attack_parameters, estimated_gradient, input_normalisation
from fedseal.core.tensors import flatten


class PublicPick(Attack):
    """Picks, for every label, the public image whose gradient has the largest cosine with the update.

    Args:
        tries: public images to look at, from the first.
    """

    info = Info("the public images whose gradients look most like it", needs=("batch_size", "auxiliary"))

    def __init__(self, tries: int = 64) -> None:
        self.tries = tries

    def run_many(
        self, observations: Sequence[Observation], budget: Budget, seeds: Sequence[int], listener: object = None
    ) -> list[Reconstruction]:
        """Pick images for each observation by itself."""
        return [self._pick(observation, seed) for observation, seed in zip(observations, seeds, strict=True)]

    def _pick(self, observation: Observation, seed: int) -> Reconstruction:
        self.check(observation)
        started = time.perf_counter()
        guess = infer_labels(observation, seed)
        public = observation.knowledge.auxiliary.images[: self.tries]
        likeness = torch.stack([self._likeness(observation, public, label) for label in guess.labels])
        best = likeness.max(1)
        seconds = time.perf_counter() - started
        return Reconstruction(public[best.indices], guess.labels, -float(best.values.mean()), seconds=seconds)

    def _likeness(self, observation: Observation, images: Tensor, label: Tensor) -> Tensor:
        """Return the cosine [N] between the update and the gradient of each image under one label."""
        model, parameters = attack_model(observation), attack_parameters(observation)
        wanted = flatten(estimated_gradient(observation))

        def loss(weights: dict[str, Tensor], one: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model, weights, (one[None],)), label[None])

        inputs = input_normalisation(observation)(images.to(wanted))
        slopes = vmap(grad(loss), in_dims=(None, 0))(parameters, inputs)
        return F.cosine_similarity(torch.cat([slope.flatten(1) for slope in slopes.values()], 1), wanted, dim=1)
