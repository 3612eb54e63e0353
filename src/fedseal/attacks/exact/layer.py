"""The way from an update to inputs of one linear layer, and from these to images: what exact attacks share."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedseal.attacks.exact.features import invert_features
from fedseal.attacks.exact.separation import Separated
from fedseal.attacks.labels import inferred_or_none
from fedseal.attacks.reading import (
    attack_model,
    attack_parameters,
    estimated_gradient,
    image_count,
    input_normalisation,
)
from fedseal.attacks.row_quotients import pick_images
from fedseal.attacks.spectrum import Spectrum, spectrum
from fedseal.attacks.turns import in_turn
from fedseal.core.attack import Attack, Budget, Listener
from fedseal.core.errors import InputError
from fedseal.core.modality import IMAGE, TABLE
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.models.gates import LinearGate, linear_gates


@dataclass(frozen=True)
class LayerUpdate:
    """What an update says of one linear layer.

    Attributes:
        gate: the layer.
        rows: gradient of its weight, [m, n].
        bias: gradient of its bias, [m].
        weight: as it was sent, [m, n].
        shift: its bias as it was sent, [m].
    """

    gate: LinearGate
    rows: Tensor
    bias: Tensor
    weight: Tensor
    shift: Tensor


class LayerSeparation(Attack):
    """Takes the gradient of one linear layer apart into the samples behind it.

    Args:
        steps: of the inversion of features, where the layer does not see the images themselves.
    """

    any_loss: ClassVar[bool] = True
    takes: ClassVar[tuple[str, ...]] = (IMAGE, TABLE)

    def __init__(self, steps: int = 300) -> None:
        self.steps = steps

    @abstractmethod
    def choose(self, gates: Sequence[LinearGate]) -> LinearGate:
        """Return the layer to take apart; refuse models that have none."""

    @abstractmethod
    def separate(self, layer: LayerUpdate, found: Spectrum, budget: Budget, seed: int) -> tuple[Separated | None, str]:
        """Return the samples, or None, and in words how sure that is."""

    def check(self, observation: Observation) -> None:
        """Refuse models without a layer to take apart."""
        super().check(observation)
        self._layer(observation)

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Take each observation apart by itself."""
        return in_turn(lambda seen, seed: self._attack(seen, budget, seed), observations, seeds, listener)

    def _layer(self, observation: Observation) -> LayerUpdate:
        gate = self.choose(linear_gates(attack_model(observation), observation.knowledge.input_shape))
        gradient, sent = estimated_gradient(observation), attack_parameters(observation)
        assert gate.bias_name is not None  # what `choose` sees to
        names = gate.weight_name, gate.bias_name
        return LayerUpdate(gate, *(gradient[name] for name in names), *(sent[name] for name in names))

    def _attack(self, observation: Observation, budget: Budget, seed: int) -> Reconstruction:
        start = time.perf_counter()
        layer, count = self._layer(observation), image_count(observation)
        found = spectrum(layer.rows)
        evidence = f"rank {found.rank} of the gradient of {layer.gate.weight_name}, by a gap of {found.gap:.1e}"
        result, sure = self.separate(layer, found, budget, seed) if found.rank else (None, "nothing is there")
        guess = inferred_or_none(observation, seed)
        normalisation = input_normalisation(observation)
        if result is None:
            inputs = self._quotients(observation, layer, count)
        else:
            inputs = result.inputs.to(layer.rows)
            inputs = inputs[torch.arange(count) % len(inputs)]
        if not bool(torch.isfinite(inputs).all()):
            raise InputError("the update has entries too large to divide.", hint="Check what the client sent.")
        if layer.gate.on_input:
            images = normalisation.undo(inputs.view(count, *observation.knowledge.input_shape)).clamp(0, 1)
        else:
            images = invert_features(
                attack_model(observation),
                layer.gate.name,
                inputs,
                observation.knowledge.input_shape,
                normalisation,
                self.steps if budget.iterations is None else min(self.steps, budget.iterations),
                seed,
            )
            sure += f"; it saw features, of which images were rebuilt in {self.steps} steps"
        objective = 1.0 if result is None else 1 - result.agreement
        notes = (*guess.notes, evidence, sure)
        return Reconstruction(images, guess.labels, objective, seconds=time.perf_counter() - start, notes=notes)

    def _quotients(self, observation: Observation, layer: LayerUpdate, count: int) -> Tensor:
        """Return what single rows give away, as `first-layer` does, where the whole cannot be taken apart."""
        if layer.gate.on_input:
            shape = (1, *observation.knowledge.input_shape)
            undone = input_normalisation(observation)
            low, high = (undone(layer.rows.new_full(shape, value)).flatten() for value in (0.0, 1.0))
        else:
            low, high = (layer.rows.new_full((layer.rows.shape[1],), value) for value in (0.0, 1.0))
        known = (layer.weight, layer.shift) if layer.gate.gated else None
        rows, _ = pick_images(layer.rows, layer.bias, count, low, high, known)
        return torch.cat([rows, ((low + high) / 2).expand(count - len(rows), -1)])
