"""Targets one after the other, or those that are alike at once; a listener is told of all of them either way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedseal.attacks.matching.companions import companions
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.reading import image_count
from fedseal.core.attack import Listener
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction


def in_turn(
    attack_one: Callable[[Observation, int], Reconstruction],
    observations: Sequence[Observation],
    seeds: Sequence[int],
    listener: Listener | None,
) -> list[Reconstruction]:
    """Attack each observation by itself; the listener sees grey where nothing is found yet."""
    alone = [[place] for place in range(len(observations))]
    return _one_by_one(lambda seen, own: [attack_one(seen[0], own[0])], alone, observations, seeds, listener)


def in_groups(
    attack_all: Callable[[Sequence[Observation], Sequence[int]], list[Reconstruction]],
    observations: Sequence[Observation],
    seeds: Sequence[int],
    listener: Listener | None,
) -> list[Reconstruction]:
    """Attack observations that share all but their updates and labels together; the listener as of `in_turn`."""
    return _one_by_one(attack_all, companions(observations, Priors()), observations, seeds, listener)


def _one_by_one(
    attack_all: Callable[[Sequence[Observation], Sequence[int]], list[Reconstruction]],
    groups: Sequence[Sequence[int]],
    observations: Sequence[Observation],
    seeds: Sequence[int],
    listener: Listener | None,
) -> list[Reconstruction]:
    found: dict[int, Reconstruction] = {}
    shape = (len(observations), image_count(observations[0]), *observations[0].knowledge.input_shape)
    shown = torch.full(shape, 0.5)
    for places in groups:
        answers = attack_all([observations[place] for place in places], [seeds[place] for place in places])
        found.update(zip(places, answers, strict=True))
        if listener is None:
            continue
        for place, answer in zip(places, answers, strict=True):
            room = shown[place][..., : answer.images.shape[-1]]  # a bag of words may be longer than a text, or shorter
            room.copy_(answer.images.to(shown)[..., : room.shape[-1]])
        listener(len(found) / len(observations), shown.clone())
    return [found[place] for place in range(len(observations))]
