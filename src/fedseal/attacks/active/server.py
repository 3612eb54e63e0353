"""What malicious servers share: altered copies of the model, public data to calibrate on, and honest bookkeeping."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from fedseal.attacks.turns import in_turn
from fedseal.core.attack import Attack, Budget, Listener
from fedseal.core.batch import IDENTITY, Normalisation
from fedseal.core.errors import CapabilityError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction

M = TypeVar("M")


class ActiveAttack(Attack):
    """An attack whose server alters the model.

    Attributes:
        remembers: what `provoke` keeps of what it sent.
    """

    remembers: ClassVar[type]

    def check(self, observation: Observation) -> None:
        """Refuse what the threat model does not grant, and updates of models nobody altered."""
        super().check(observation)
        recall(observation, self.remembers, self.name)


class ReadingAttack(ActiveAttack):
    """An active attack that reads each answer by itself, without optimising anything."""

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Read the observations one after the other."""
        return in_turn(self.read, observations, seeds, listener)

    @abstractmethod
    def read(self, observation: Observation, seed: int) -> Reconstruction:
        """Read one observation."""


def recall(observation: Observation, kind: type[M], name: str) -> M:
    """Return what an attack's `provoke` remembered, or refuse an update of a model it never altered."""
    if not isinstance(observation.memory, kind):
        raise CapabilityError(
            f"{name} needs an update of the model it altered; this one is of another model.",
            hint="Run it in an audit, where it sends the model; a recorded update can only be attacked passively.",
        )
    return observation.memory


class Fronted(nn.Module):
    """A classifier behind a block of the server's that maps images to images of the same shape."""

    def __init__(self, front: nn.Module, body: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs [B, C, H, W] to logits."""
        logits: Tensor = self.body(self.front(x))
        return logits


def put_in_front(front: nn.Module, model: nn.Module) -> Fronted:
    """Return a copy of the model behind `front`, in the model's precision and mode."""
    like = next(model.parameters())
    return Fronted(front.to(like.device, like.dtype), copy.deepcopy(model)).train(model.training)


def altered(observation: Observation, memory: object, words: str) -> Observation:
    """Return the observation with what the server remembers, and what the ledger says of it."""
    return replace(observation, memory=memory, knowledge=replace(observation.knowledge, altered=words))


def public_inputs(name: str, knowledge: Knowledge) -> Tensor:
    """Return the public images as inputs [N, C, H, W] in double precision on the CPU, or say that they are missing."""
    images = knowledge.auxiliary.images if knowledge.auxiliary is not None else None
    if images is None or len(images) < 2:
        raise CapabilityError(
            f"{name} calibrates the altered model on public images, and there are none.",
            hint="Set `attacker.public_data: true` in the scenario.",
        )
    return normalisation_of(knowledge)(images.double().cpu())


def normalisation_of(knowledge: Knowledge) -> Normalisation:
    """Return the normalisation the server believes in."""
    return knowledge.normalisation or IDENTITY


def best_guess(knowledge: Knowledge, like: Tensor) -> Tensor:
    """Return the image [C, H, W] an attacker gives where it found none: the mean public one, else grey."""
    if knowledge.auxiliary is None or len(knowledge.auxiliary) == 0:
        return like.new_full(knowledge.input_shape, 0.5)
    return knowledge.auxiliary.images.mean(0).to(like)


def filled(found: Tensor, count: int, knowledge: Knowledge) -> Tensor:
    """Return exactly `count` images [count, C, H, W] in [0, 1]: those found, and the best guess for the rest."""
    found = found[:count].clamp(0, 1)
    rest = best_guess(knowledge, found).expand(count - len(found), *knowledge.input_shape)
    return torch.cat([found, rest])
