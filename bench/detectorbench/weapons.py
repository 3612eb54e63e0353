"""Weakened weapons: the server blurs what it altered by noise, and is detected less, and learns less."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.attacks.active.isolation import Isolated, isolated_observation
from fedseal.audit.scenario import Scenario, validate_scenario
from fedseal.audit.setup import Setup, build_setup
from fedseal.core.attack import ATTACKS, Ask, Attack, Budget, Listener
from fedseal.core.batch import Batch
from fedseal.core.defence import Defence
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import generator
from fedseal.detection.detector import detect
from fedseal.detection.readings import CHECKS, THRESHOLDS
from fedseal.federation.client import plain_update
from fedseal.metrics.image import psnr
from fedseal.metrics.matching import attacker_best

ATTACKS_TRIED = ("imprint", "imprint:sparse=true", "cah", "loki", "fishing", "suppression", "peftleak")
NOISE = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
VICTIMS = ("mlp", "lenet-relu", "resnet10:width=8", "vit-tiny:width=48,depth=2")
ADAPTED = "vit-tiny:width=48,heads=2,depth=2,adapters=1024,pool=mean"
"""The victim of attacks on adapters."""
RECOGNISABLE_DB = 20.0


def victims_of(attack: str) -> tuple[str, ...]:
    """Return the models an attack is tried on."""
    return (ADAPTED,) if attack.startswith("peftleak") else VICTIMS


@dataclass(frozen=True)
class Strike:
    """One attempt of a weakened attack.

    Attributes:
        attack, model: which.
        noise: added to what was altered, relative to its root mean square.
        values: what the client reads, by check.
        leak: share of images recovered to 20 dB, or for attacks that isolate a gradient the squared cosine to it.
    """

    attack: str
    model: str
    noise: float
    values: dict[str, float]
    leak: float

    @property
    def alarms(self) -> tuple[str, ...]:
        """The checks that raise an alarm."""
        return tuple(check for check in CHECKS if self.values.get(check, -math.inf) > THRESHOLDS[check])


def strike(attack_name: str, model_name: str, noise: float, seed: int) -> Strike:
    """Attack one batch of eight digits with a weapon blurred by noise, and let the client look at it first."""
    setup = build_setup(_scenario(attack_name, model_name, seed))
    attack = ATTACKS.build(attack_name)
    watched = _Blurring(setup, noise, seed)
    target = setup.observe(Defence(), 0, attack=_Between(attack, watched), seed=seed)
    batch = Batch(target.originals.images[:8], target.originals.labels[:8])
    suppressed = attack_name == "suppression"
    if suppressed:
        batch = Batch(target.originals.images[8:16], target.originals.labels[8:16])
    found = detect(watched.sent[1 if suppressed else 0], batch, normalisation=setup.config.normalisation)
    return Strike(
        attack_name,
        model_name,
        noise,
        {reading.check: reading.value for reading in found.readings},
        _leak(attack_name, setup, target.observation, target.originals, seed),
    )


def _scenario(attack: str, model: str, seed: int) -> Scenario:
    clients = 2 if attack in {"loki", "suppression"} else 1
    values = {"data": "digits", "model": model, "targets": 1, "seed": seed, "attacker": {"labels": "true"}}
    return validate_scenario(values | {"client": {"batch_size": 8, "aggregate": clients}}, source="bench")


class _Between(Attack):
    """Stands between an attack and the clients, and blurs every model that is sent."""

    def __init__(self, attack: Attack, blurring: _Blurring) -> None:
        self._attack = attack
        self._blurring = blurring

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Let the attack send through the blur."""
        self._blurring.ask = ask
        return self._attack.provoke(model, knowledge, self._blurring, seed)

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Leave the rest to the attack."""
        return self._attack.run_many(observations, budget, seeds, listener)


class _Blurring:
    """Adds noise to what a server altered."""

    def __init__(self, setup: Setup, noise: float, seed: int) -> None:
        self._honest = dict(setup.model.named_parameters())
        self._noise = noise
        self._source = generator(seed, "blur")
        self.ask: Ask | None = None
        self.sent: Sequence[nn.Module] = ()

    def __call__(self, models: Sequence[nn.Module]) -> Observation:
        """Blur and send."""
        self.sent = [self._blurred(model) for model in models]
        assert self.ask is not None
        return self.ask(self.sent)

    @torch.no_grad()
    def _blurred(self, model: nn.Module) -> nn.Module:
        copied = copy.deepcopy(model)
        for name, parameter in copied.named_parameters():
            honest = self._honest.get(name.removeprefix("body."))
            if honest is not None and torch.equal(honest, parameter):
                continue
            size = max(_rms(parameter), 0.0 if honest is None else _rms(honest))
            parameter.add_(self._noise * size * torch.randn(parameter.shape, generator=self._source))
        return copied


def _rms(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def _leak(name: str, setup: Setup, observation: Observation, originals: Batch, seed: int) -> float:
    memory = observation.memory
    if isinstance(memory, Isolated):
        seen = isolated_observation(observation, memory)
        return _squared_cosine(setup, seen, originals)
    images = ATTACKS.build(name).run(observation, seed=seed).images
    best = images[attacker_best(originals.images, images)]
    return float((psnr(originals.images, best, data_range=1.0) >= RECOGNISABLE_DB).double().mean())


def _squared_cosine(setup: Setup, seen: Observation, originals: Batch) -> float:
    """Return the largest squared cosine of the isolated update with that of any one image (or client) alone."""
    size = seen.knowledge.batch_size or 1
    observed = torch.cat([tensor.flatten() for tensor in seen.update.tensors.values()])
    best = 0.0
    for start in range(0, len(originals) - size + 1, size):
        labels = originals.labels[start : start + size]
        if seen.knowledge.labels is not None:
            labels = seen.knowledge.labels[:size]
        batch = Batch(originals.images[start : start + size], labels)
        own = plain_update(seen.model, [batch], setup.config, generator(0, "own")).tensors
        flat = torch.cat([tensor.flatten() for tensor in own.values()])
        cosine = torch.nn.functional.cosine_similarity(flat, observed, dim=0)
        best = max(best, float(cosine) ** 2)
    return best
