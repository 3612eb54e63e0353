"""`seer`, Hiding in Plain Sight (Garov et al., ICLR 2024): read one image out of a batch's gradient.

The server sends the model it trained beforehand, of the clients' own architecture and with ordinary-looking weights,
and feeds the sum of the samples' gradients to its secret decoder, which returns the one image with a property.
Threat model: active server with auxiliary data, batch normalisation on batch statistics. Training takes minutes to
days, so it is done beforehand (`fedseal prepare`); attackers are found in the cache by what determined them.

Cost: hours of training beforehand, a matrix product at the attack.

Known breaks: LIDS, whose groups leave no sample alone with a property, unless SEER is trained on such batches; clients
that normalise by running statistics; noise above the isolated sample's gradient. `fedseal.flower.detect` reads how
unequal gradients of samples are.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fedseal.attacks.active.seer.attacker import SeerAttacker
from fedseal.attacks.active.seer.fitting import Trainee
from fedseal.attacks.active.seer.plan import Mode, Preset, SeerPlan, preset
from fedseal.attacks.active.seer.properties import Property
from fedseal.attacks.active.server import ReadingAttack, altered, filled, normalisation_of, recall
from fedseal.attacks.labels import inferred_or_none
from fedseal.attacks.reading import estimated_gradient, image_count
from fedseal.core.attack import ATTACKS, Ask
from fedseal.core.batch import Batch
from fedseal.core.defence import AttackerView
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.trainable import Trainable
from fedseal.defences.lids.construction import EPOCHS, Recipe, Synthesis, construct
from fedseal.preparation import library

TAU = 18.0
"""PSNR in dB that LIDS asks of synthetic images by default: taken by who expects its groups without knowing them."""


@dataclass(frozen=True)
class SeerMemory:
    """What the server remembers of the model it sent: its secret decoder, with everything else it trained."""

    attacker: SeerAttacker


@ATTACKS.register(
    "seer",
    Info(
        "train the model together with a secret decoder that reads one image out of a batch",
        paper="Garov et al., ICLR 2024",
        threat="active: changes parameters",
        needs=("batch_size", "auxiliary"),
    ),
)
class SeerAttack(ReadingAttack):
    """SEER.

    Args:
        property: which image is isolated.
        mode: `max` for one client, `thresh` for an aggregate.
        preset: of the training.
        steps: of the training; 0 for the preset's.
        lids: size of LIDS's mini-groups for an attacker trained on such batches, 1 for one that is not; 0 takes that of
            the clients', where their defence is known, with their tau and augmentation.
        epochs: of that attacker's own autoencoder; 0 takes those of the clients' as well, else LIDS's own.
        train: whether to train an attacker that is not in the cache, instead of refusing.
        seed: of the training.
    """

    remembers = SeerMemory

    def __init__(
        self,
        property: Property = "bright",
        mode: Mode = "max",
        preset: Preset = "cpu",
        steps: int = 0,
        lids: int = 0,
        epochs: int = 0,
        train: bool = False,
        seed: int = 0,
    ) -> None:
        if lids < 0 or epochs < 0:
            raise UsageError(f"seer needs lids >= 0 and epochs >= 0, got {lids} and {epochs}.")
        self._changes: dict[str, Any] = {"property": property, "mode": mode, "seed": seed}
        if steps:
            self._changes["steps"] = steps
        self._preset: Preset = preset
        self._lids, self._epochs, self._seed = lids, epochs, seed
        self._train = train
        if mode == "thresh" or lids > 1:  # a wrong combination is refused before anything runs
            self.plan(Knowledge((3, 32, 32), 10, batch_size=max(2, lids), clients=1))

    def plan(self, knowledge: Knowledge) -> SeerPlan:
        """Return the plan of the attacker these clients need."""
        size, clients, groups = knowledge.batch_size or 1, knowledge.clients or 1, self.recipe(knowledge).samples
        if not self._lids and size % groups:
            raise CapabilityError(
                f"the clients' LIDS feeds groups of {groups}, of which batches of {size} are not made.",
                hint=f"Choose a batch size that is a multiple of {groups}, or `seer:lids=1` for ordinary batches.",
            )
        return preset(self._preset, **{**self._changes, "lids": groups, "batch_size": size, "clients": clients})

    def recipe(self, knowledge: Knowledge) -> Recipe:
        """Return how the attacker expects mini-groups to be made; of one image, where it expects none."""
        known = known_recipe(knowledge.defence, self._seed)
        return replace(known, samples=self._lids or known.samples, epochs=self._epochs or known.epochs)

    def trainee(self, model: nn.Module, knowledge: Knowledge) -> Trainee:
        """Return what an attacker of these clients is trained on."""
        self.check_knowledge(knowledge)
        if knowledge.bn_mode == "eval":
            raise CapabilityError(
                "SEER compares a sample with its batch, and these clients use running statistics.",
                hint="Set `client.bn_mode: train-nostats`.",
            )
        if (knowledge.local_steps or 1) > 1:
            raise CapabilityError("SEER reads the gradient of one batch.", hint="Set `client.local_steps: 1`.")
        public = knowledge.auxiliary
        assert public is not None
        data = Batch(public.images.float(), public.labels)
        plan = self.plan(knowledge)
        groups = construct(data, self.recipe(knowledge), library()).groups if plan.lids > 1 else None
        single = model if next(model.parameters()).dtype == torch.float32 else copy.deepcopy(model).float()
        return Trainee(single, data, knowledge.num_classes, normalisation_of(knowledge), plan, groups)

    def trainables(self, model: nn.Module, knowledge: Knowledge) -> Iterator[Trainable[Any]]:
        """Yield the mini-groups of the public images, for an attacker who expects them, and the attacker."""
        plan = self.plan(knowledge)
        if plan.lids > 1 and knowledge.auxiliary is not None:
            public = knowledge.auxiliary
            yield Synthesis(Batch(public.images.float(), public.labels), self.recipe(knowledge), library())
        yield self.trainee(model, knowledge)

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Send the model that was trained with the decoder."""
        trainee = self.trainee(model, knowledge)
        attacker = library().get(trainee) if self._train else library().find(trainee)
        if attacker is None:
            raise CapabilityError(
                f"there is no SEER attacker yet for this model, these public images and {trainee.plan.property!r}.",
                hint="Train it first with `fedseal prepare` and the same scenario, or set `train=true` and wait.",
            )
        like = next(model.parameters())
        sent = _trained_like(attacker.model, model).to(like.device, like.dtype)
        words = f"its weights were trained to reveal the {trainee.plan.property!r} image of a batch"
        return altered(ask([sent]), SeerMemory(attacker), words)

    def read(self, observation: Observation, seed: int) -> Reconstruction:
        """Decode the observation's gradient."""
        started = time.perf_counter()
        attacker = recall(observation, SeerMemory, self.name).attacker
        image = attacker.decode(summed_gradient(observation))
        like = next(iter(observation.parameters.values()))
        guess = inferred_or_none(observation, seed)
        return Reconstruction(
            filled(image[None].to(like), image_count(observation), observation.knowledge),
            guess.labels,
            0.0,
            seconds=time.perf_counter() - started,
            notes=(*guess.notes, "one image was decoded; the rest is a guess without the update"),
        )


def known_recipe(view: AttackerView | None, seed: int) -> Recipe:
    """Return LIDS's recipe as an attacker knows it of the clients' defence; of one image, where that has no LIDS.

    Args:
        view: of the defence, or of a pipeline with it; None for who does not know it.
        seed: of the attacker's own construction: the clients' is theirs.
    """
    parameters = {} if view is None else view.parameters
    said = {key.removeprefix("lids."): value for key, value in parameters.items() if key.startswith("lids.")}
    if view is not None and view.name == "lids":
        said = dict(parameters)
    return Recipe(
        said.get("samples", 1), said.get("tau", TAU), said.get("augment", True), said.get("epochs", EPOCHS), seed
    )


def summed_gradient(observation: Observation) -> Tensors:
    """Return the sum of all samples' gradients, which the decoder was trained on."""
    gradient = estimated_gradient(observation)
    clients = observation.knowledge.clients or 1
    factor = clients if observation.knowledge.loss_reduction == "sum" else image_count(observation)
    return {name: tensor * factor for name, tensor in gradient.items()}


def _trained_like(trained: nn.Module, model: nn.Module) -> nn.Module:
    """Return the trained model in the mode of the one it replaces, module by module."""
    for own, like in zip(trained.modules(), model.modules(), strict=True):
        own.training = like.training
    return trained
