"""Attacks that take their targets one after the other, and still tell a listener of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

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
    found: list[Reconstruction] = []
    shape = (len(observations), image_count(observations[0]), *observations[0].knowledge.input_shape)
    shown = torch.full(shape, 0.5)
    for place, (observation, seed) in enumerate(zip(observations, seeds, strict=True)):
        found.append(attack_one(observation, seed))
        if listener is not None:
            answer = found[-1].images.to(shown)
            room = shown[place][..., : answer.shape[-1]]  # a bag of words may be longer than a text, or shorter
            room.copy_(answer[..., : room.shape[-1]])
            listener((place + 1) / len(observations), shown.clone())
    return found
