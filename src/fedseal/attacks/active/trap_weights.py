"""`cah`, When the Curious Abandon Honesty (Boenisch et al., EuroS&P 2023): trap weights in the first linear layer.

In each row a random half of the weights is negative, -|N(0, sigma)|, the other half holds the same values permuted and
scaled by s < 1: on images the row's sum is negative nearly always, so a neuron fires for few samples, and one that
fires for a single one holds it: x = dW[i] / db[i]. Parameters only, where the model begins with a linear layer on the
image that ReLU follows; else such a layer is put in front of it, which the ledger says. Threat model: active server.
s decides everything and must fit the data: it is chosen so that most public samples are alone in some
neuron among random batches. Departure: biases undo the input's normalisation instead of being zero.

Cost: one round and one division per neuron; choosing s costs forward passes over random public batches.

Known breaks: rows of which several samples fire hold their mixture; noise, sampling and pruning of the first layer
spoil the quotient; secure aggregation mixes clients. `fedseal.flower.detect` sees rows whose sums lean to one side.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.active.server import (
    ReadingAttack,
    altered,
    filled,
    normalisation_of,
    public_inputs,
    put_in_front,
    recall,
)
from fedseal.attacks.labels import inferred_or_none
from fedseal.attacks.reading import attack_parameters, estimated_gradient, image_count
from fedseal.attacks.row_quotients import pick_images
from fedseal.core.attack import ATTACKS, Ask
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.models.structure import ExecutedLayer, input_linear_layer

Place: TypeAlias = Literal["auto", "model", "front"]
"""Where the trap lies: in the model's own first layer, in a layer put in front of it, or in the first that works."""

_CANDIDATES = 48
_BATCHES = 32


class TrapBlock(nn.Module):
    """A linear layer with ReLU and one back to the input's shape, whose weights differ so that mixtures do too."""

    def __init__(self, shape: tuple[int, int, int], rows: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # all weights are set afterwards
            self.trap = nn.Linear(math.prod(shape), rows)
            self.spread = nn.Linear(rows, math.prod(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs [B, C, H, W] to images of the same shape."""
        made: Tensor = self.spread(F.relu(self.trap(x.flatten(1))))
        return made.view_as(x)


@dataclass(frozen=True)
class Trap:
    """Trap weights on images: row i is `scale` x `positive[i]` - `negative[i]`, both [N, D] and nowhere negative."""

    positive: Tensor
    negative: Tensor

    @classmethod
    def draw(cls, rows: int, size: int, sigma: float, source: torch.Generator) -> Trap:
        """Draw `rows` rows for images of `size` pixels; an odd pixel's weight is zero."""
        half = size // 2
        order = torch.rand(rows, size, generator=source).argsort(1)
        values = sigma * torch.randn(rows, half, generator=source, dtype=torch.float64).abs()
        permuted = values.gather(1, torch.rand(rows, half, generator=source).argsort(1))
        zeros = torch.zeros(rows, size, dtype=torch.float64)
        return cls(zeros.scatter(1, order[:, half : 2 * half], permuted), zeros.scatter(1, order[:, :half], values))

    def weights(self, scale: float) -> Tensor:
        """Return the rows [N, D]."""
        return scale * self.positive - self.negative

    def thresholds(self, images: Tensor) -> Tensor:
        """Return the scale above which each image [B, D] makes each row fire, as [B, N]."""
        return (images @ self.negative.T) / (images @ self.positive.T).clamp(min=1e-12)


def caught(fires: Tensor) -> Tensor:
    """Return how many samples have a neuron to themselves, [...], given who makes which fire, [..., B, N]."""
    alone = fires & (fires.sum(-2, keepdim=True) == 1)
    return alone.any(-1).sum(-1)


def calibrated_scale(trap: Trap, images: Tensor, batch: int, source: torch.Generator) -> float:
    """Return the scale that catches most samples in random batches of public images [N, D]."""
    thresholds = trap.thresholds(images)
    size = min(batch, len(images))
    groups = torch.stack([torch.randperm(len(images), generator=source)[:size] for _ in range(_BATCHES)])
    shares = torch.logspace(-4, math.log10(0.5), _CANDIDATES, dtype=torch.float64)
    candidates = torch.quantile(thresholds.flatten()[:: max(1, thresholds.numel() // 1_000_000)], shares)
    counts = torch.stack([caught(thresholds[groups] < scale).double().mean() for scale in candidates])
    return float(candidates[counts.argmax()])


@dataclass(frozen=True)
class TrapMemory:
    """What the server remembers: names of the trap's parameters."""

    weight: str
    bias: str


@ATTACKS.register(
    "cah",
    Info(
        "set the first linear layer so that its neurons fire for single samples",
        paper="Boenisch et al., EuroS&P 2023",
        threat="active: changes parameters",
        needs=("batch_size", "auxiliary"),
    ),
)
class TrapWeights(ReadingAttack):
    """Curious Abandon Honesty.

    Args:
        rows: of a layer put in front; the model's own layer is used as wide as it is.
        sigma: deviation of the weights before taking absolute values.
        scale: s; 0 calibrates it on public data.
        place: where the trap lies.
    """

    remembers = TrapMemory

    any_loss: ClassVar[bool] = True

    def __init__(self, rows: int = 512, sigma: float = 0.5, scale: float = 0.0, place: Place = "auto") -> None:
        if rows < 1 or sigma <= 0 or scale < 0:
            raise InputError("cah needs rows >= 1, sigma > 0 and scale >= 0.")
        self._rows = rows
        self._sigma = sigma
        self._scale = scale
        self._place = place

    @property
    def needs(self) -> frozenset[str]:
        """Public images to calibrate on, unless the scale is given and the trap lies in the model's own layer."""
        calibrated = self._scale > 0 and self._place == "model"
        return super().needs - {"auxiliary"} if calibrated else super().needs

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Send a copy of the model with the trap set."""
        self.check_knowledge(knowledge)
        layer = None if self._place == "front" else self._own_layer(model, knowledge)
        source = generator(seed, "trap")
        rows = self._rows if layer is None else layer.outputs.shape[1]
        trap = Trap.draw(rows, math.prod(knowledge.image_shape), self._sigma, source)
        scale = self._scale or self._calibrate(trap, knowledge, source)
        weight, bias = _on_inputs(trap.weights(scale), knowledge)
        if layer is None:
            sent, memory = self._in_front(model, knowledge, weight, bias, source)
            words = f"a layer of {rows} trap neurons in front of it (scale {scale:.4f})"
        else:
            assert layer.bias_name is not None
            memory = TrapMemory(layer.weight_name, layer.bias_name)
            sent = copy.deepcopy(model)
            _set(sent, {memory.weight: weight, memory.bias: bias})
            words = f"trap weights in its first layer (scale {scale:.4f})"
        return altered(ask([sent]), memory, words)

    def _own_layer(self, model: nn.Module, knowledge: Knowledge) -> ExecutedLayer | None:
        """Return the model's first layer if the trap works there."""
        like = next(model.parameters())
        source = generator(0, "probe")
        probe = torch.rand(4, *knowledge.image_shape, generator=source).to(like.device, like.dtype)
        copied = copy.deepcopy(model).eval()
        layer = input_linear_layer(copied, probe)
        if layer is not None and not _relu_follows(copied, layer.module, probe):
            layer = None
        if layer is None and self._place == "model":
            raise CapabilityError(
                "cah finds no place in this model: it needs a first layer that is linear, with a bias, on the whole "
                "image, and ReLU behind it.",
                hint="Let it put a layer in front: place=front or place=auto.",
            )
        return layer

    def _calibrate(self, trap: Trap, knowledge: Knowledge, source: torch.Generator) -> float:
        images = normalisation_of(knowledge).undo(public_inputs(self.name, knowledge)).flatten(1)
        batch = (knowledge.batch_size or 1) * (knowledge.local_steps or 1) * (knowledge.clients or 1)
        return calibrated_scale(trap, images, batch, source)

    def _in_front(
        self, model: nn.Module, knowledge: Knowledge, weight: Tensor, bias: Tensor, source: torch.Generator
    ) -> tuple[nn.Module, TrapMemory]:
        block = TrapBlock(knowledge.image_shape, len(weight)).double()
        inputs = public_inputs(self.name, knowledge)
        with torch.no_grad():
            block.trap.weight.copy_(weight)
            block.trap.bias.copy_(bias)
            uneven = 0.5 + torch.rand(block.spread.weight.shape, generator=source, dtype=torch.float64)
            made = F.relu(block.trap(inputs.flatten(1))) @ uneven.T
            block.spread.weight.copy_(uneven * (inputs.std() / made.std().clamp(min=1e-12)))
            block.spread.bias.fill_(float(inputs.mean()))
        return put_in_front(block, model), TrapMemory("front.trap.weight", "front.trap.bias")

    def read(self, observation: Observation, seed: int) -> Reconstruction:
        """Read the trap of one observation."""
        started = time.perf_counter()
        memory, knowledge = recall(observation, TrapMemory, self.name), observation.knowledge
        gradient = estimated_gradient(observation)
        rows, bias = gradient[memory.weight], gradient[memory.bias]
        count = image_count(observation)
        normalisation = normalisation_of(knowledge)
        shape = (1, *knowledge.image_shape)
        low, high = (normalisation(rows.new_full(shape, value)).flatten() for value in (0.0, 1.0))
        sent = attack_parameters(observation)
        inputs, agreed = pick_images(rows, bias, count, low, high, (sent[memory.weight], sent[memory.bias]))
        found = normalisation.undo(inputs.view(-1, *knowledge.image_shape))
        guess = inferred_or_none(observation, seed)
        fired = int((bias != 0).sum())
        return Reconstruction(
            filled(found, count, knowledge),
            guess.labels,
            float(count - len(inputs)),
            seconds=time.perf_counter() - started,
            notes=(
                *guess.notes,
                f"{fired} of {len(bias)} neurons fired; several agree on {agreed} of {count} images",
                f"certified: {agreed} of {len(inputs)} quotients are of a single record, as rows of several neurons "
                "have rank one there",
            ),
        )


def _on_inputs(weights: Tensor, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Return weight and bias that do to model inputs what `weights` [N, D] do to images."""
    normalisation = normalisation_of(knowledge)
    shape = (1, *knowledge.image_shape)
    black = normalisation(torch.zeros(shape, dtype=torch.float64)).flatten()
    white = normalisation(torch.ones(shape, dtype=torch.float64)).flatten()
    per_input = weights / (white - black)
    return per_input, -(per_input @ black)


@torch.no_grad()
def _set(model: nn.Module, values: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for name, value in values.items():
        parameters[name].copy_(value)


def _relu_follows(model: nn.Module, layer: nn.Module, probe: Tensor) -> bool:
    """Tell whether the model ignores how far a neuron of `layer` is below zero, and not how far above."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append(output.detach().requires_grad_(True))
        return seen[-1] + 0.0  # an activation in place must not change what is kept

    handle = layer.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            total = model(probe).square().sum()
            (slope,) = torch.autograd.grad(total, seen[:1])
    finally:
        handle.remove()
    return bool((slope[seen[0] < 0] == 0).all()) and bool((slope[seen[0] > 0] != 0).any())
