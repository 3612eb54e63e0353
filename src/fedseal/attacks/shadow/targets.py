"""Shadow targets: observations like the real ones, whose images are public and known.

They are taken out of the public images first: what an attack learns or looks up is never a shadow, so that its score
on shadows is what it will score on targets.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor, nn

from fedseal.attacks.reading import image_count
from fedseal.core.batch import Batch
from fedseal.core.observation import Observation, Update
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import derive_seed, generator
from fedseal.federation.client import BNStatistics, record_bn_statistics
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import IMAGE_RANGE, hungarian
from fedseal.metrics.singling import STRANGERS, pointed

FEWEST = 2
_SHARE = 0.25
"""Of the public images that may become shadows, at most."""


@dataclass(frozen=True)
class Shadows:
    """What the attacker plays with itself.

    Attributes:
        observations: as the attacker would see them.
        originals: the images behind each, [B, C, H, W].
    """

    observations: tuple[Observation, ...]
    originals: tuple[Tensor, ...]

    def first(self, count: int) -> Shadows:
        """Return the first `count` of them."""
        return Shadows(self.observations[:count], self.originals[:count])

    def scores(self, answers: Sequence[Reconstruction]) -> list[float]:
        """Return the mean PSNR in dB of each shadow's answer, images matched as in any audit."""
        return [
            fmean(psnr(truth, one.images[hungarian(truth, one.images)], data_range=IMAGE_RANGE).tolist())
            for truth, one in zip(self.originals, answers, strict=True)
        ]

    def pointed(self, answers: Sequence[Reconstruction]) -> list[float]:
        """Return by how much each answer points at its originals and not at other public images, on average."""
        return [
            float(pointed(truth, one.images, _others(observation)).mean())
            for truth, one, observation in zip(self.originals, answers, self.observations, strict=True)
        ]


def _others(observation: Observation) -> Tensor:
    public = observation.knowledge.auxiliary
    assert public is not None  # shadows are made of public images, and leave some
    return public.images[:STRANGERS]


def split_public(observation: Observation, count: int, seed: int) -> tuple[Batch, Batch] | None:
    """Return (shadows' images, the rest) of the public images; None if there are too few to spare any."""
    public, each = observation.knowledge.auxiliary, image_count(observation)
    if public is None or observation.knowledge.rehearse is None:
        return None
    count = min(count, int(_SHARE * len(public)) // each)
    if count < FEWEST:
        return None
    order = torch.randperm(len(public), generator=generator(seed, "shadows")).to(public.labels.device)
    taken, rest = order[: count * each], order[count * each :].sort().values
    return Batch(public.images[taken], public.labels[taken]), Batch(public.images[rest], public.labels[rest])


def play_shadows(observation: Observation, images: Batch, rest: Batch, seed: int) -> Shadows:
    """Play clients with the shadows' images; the attacker knows of them what it knows of `observation`, but the truth.

    Args:
        observation: a real one, for its model and knowledge.
        images: of all shadows, one after the other.
        rest: the public images that remain.
        seed: of the rehearsal.
    """
    knowledge, each = observation.knowledge, image_count(observation)
    rehearse = knowledge.rehearse
    assert rehearse is not None  # `split_public` has asked
    fed, labels = (
        images.images.reshape(-1, each, *images.images.shape[1:]),
        images.labels.reshape(-1, each, *images.labels.shape[1:]),
    )
    chunks = list(rehearse(observation.model, fed, labels, derive_seed(seed, "shadow")))
    updates = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
    observations = []
    for number, own in enumerate(labels):
        told = replace(
            knowledge,
            auxiliary=rest,
            labels=None if knowledge.labels is None else own,
            bn_statistics=None if knowledge.bn_statistics is None else _statistics(observation, fed[number]),
        )
        update = Update({name: value[number] for name, value in updates.items()}, observation.update.kind)
        observations.append(Observation(observation.model, update, told))
    return Shadows(tuple(observations), tuple(fed))


def _statistics(observation: Observation, images: Tensor) -> BNStatistics:
    """Return what the server would receive of a batch's normalisation."""
    model: nn.Module = copy.deepcopy(observation.model)
    normalisation = observation.knowledge.normalisation
    with record_bn_statistics(model) as recorded, torch.no_grad():
        model(images if normalisation is None else normalisation(images))
    return recorded
