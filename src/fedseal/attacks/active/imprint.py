"""`imprint`, Robbing the Fed (Fowl et al., ICLR 2022): a block in front of the model sorts samples into bins.

All rows of a linear layer measure one statistic of the image; their biases are its quantiles, so row i fires for the
samples above edge i. As the block's second layer is constant, every row weighs a sample alike, and the difference of
neighbouring rows' gradients holds the samples of one bin; divided by that of the biases it is the image, exactly, if
the bin holds one. `sparse` replaces ReLU by a step that fires inside the bin alone and needs no difference; it survives
local steps better. The gain divides what the first layer measures and multiplies what the second makes of it: the
block stays what it is, its gradient grows, and noise of a given size hides less. Threat model: active server that
changes the architecture and has public data. Departures: the block's output is scaled to the inputs'
own range, so that any network behind it still gives gradients; with several local steps the default gain is 1, as a
grown gradient would move the bins.

Cost: one round and one difference per bin; `bins` rows of the size of an image travel both ways.

Known breaks: images that share a bin come out mixed (with K bins and B images about B (1 - 1/K)^(B - 1) are alone);
pruning of the block's small differences, and noise of the size of one sample's gradient. The block shows:
`fedseal.flower.detect` finds parallel rows.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.active.bins import bin_edges, bin_widths
from fedseal.attacks.active.certificate import certify
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
from fedseal.attacks.reading import estimated_gradient, image_count
from fedseal.core.attack import ATTACKS, Ask
from fedseal.core.errors import InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.ranges import Width
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.seeds import generator

Statistic: TypeAlias = Literal["mean", "random", "fourier"]
"""What the rows measure: mean brightness, a random direction, or one frequency of the discrete cosine transform."""

Rank: TypeAlias = Literal["bias", "weight"]
"""Which bins count as hit: those whose bias moved most, or whose weights did (the better one under noise)."""


_GAIN = 1e-6


class ImprintBlock(nn.Module):
    """Measures a statistic of each image by bins and writes their sum over a blank image.

    Args:
        shape: C, H, W.
        bins: rows that measure.
        sparse: fire inside the bin alone.
        gain: factor of what is measured, undone behind.
    """

    def __init__(self, shape: tuple[int, int, int], bins: int, *, sparse: bool, gain: float) -> None:
        super().__init__()
        self.sparse = sparse
        self.gain = gain
        with torch.random.fork_rng(devices=[]):  # all weights are set afterwards
            self.measure = nn.Linear(math.prod(shape), bins)
            self.spread = nn.Linear(bins, math.prod(shape))

    def hidden(self, x: Tensor) -> Tensor:
        """Return what the bins answer to inputs [B, C, H, W], as [B, bins]."""
        measured: Tensor = self.measure(x.flatten(1))
        return F.hardtanh(measured, 0.0, self.gain) if self.sparse else F.relu(measured)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs [B, C, H, W] to blank images of the same shape."""
        blank: Tensor = self.spread(self.hidden(x))
        return blank.view_as(x)

    @torch.no_grad()
    def calibrate(self, inputs: Tensor, direction: Tensor, edges: Tensor) -> None:
        """Set all weights, in double precision.

        Args:
            inputs: public ones [N, C, H, W].
            direction: what to measure, [C H W].
            edges: left edges of the bins in deviations of the statistic.
        """
        self.double()
        values = inputs.flatten(1) @ direction
        mean, deviation = values.mean(), values.std().clamp(min=1e-12)
        widths = (bin_widths(edges) if self.sparse else torch.ones_like(edges)) / self.gain
        self.measure.weight.copy_((direction / deviation).expand(len(edges), -1) / widths.unsqueeze(1))
        self.measure.bias.copy_((-mean / deviation - edges) / widths)
        spread_evenly(self.spread, self.hidden(inputs), inputs)


@torch.no_grad()
def spread_evenly(layer: nn.Linear, hidden: Tensor, inputs: Tensor, gain: float = 1.0) -> None:
    """Make every output the same multiple of the sum of `hidden` [N, K], with the mean of `inputs`.

    Its deviation is `gain` times theirs.
    """
    total = hidden.sum(1)
    scale = gain * inputs.std() / total.std().clamp(min=1e-12)
    layer.weight.fill_(float(scale))
    layer.bias.fill_(float(inputs.mean() - scale * total.mean()))


def direction_of(statistic: Statistic, size: int, mode: int, seed: int) -> Tensor:
    """Return the direction [size] a statistic measures along."""
    if statistic == "mean":
        return torch.full((size,), 1 / size, dtype=torch.float64)
    if statistic == "random":
        drawn = torch.randn(size, generator=generator(seed, "direction"), dtype=torch.float64)
        return F.normalize(drawn, dim=0)
    places = torch.arange(size, dtype=torch.float64) + 0.5
    return torch.cos(places * (math.pi * mode / size)) / size


@dataclass(frozen=True)
class ImprintMemory:
    """What the server remembers: names of the measuring layer's parameters, and how they are read."""

    weight: str
    bias: str
    sparse: bool


@ATTACKS.register(
    "imprint",
    Info(
        "sort samples into bins by a block in front of the model, and read the bins",
        paper="Fowl et al., ICLR 2022",
        threat="active: changes the architecture",
        needs=("batch_size", "auxiliary"),
    ),
)
class ImprintAttack(ReadingAttack):
    """Robbing the Fed.

    Args:
        bins: rows of the block.
        statistic: what they measure.
        mode: frequency of the `fourier` statistic.
        sparse: fire inside the bin alone, without differences.
        rank: how hit bins are told from empty ones.
        gain: of the block; 0 for 1e-6 with one local step and 1 with more.
    """

    remembers = ImprintMemory

    any_loss: ClassVar[bool] = True

    def __init__(
        self,
        bins: Width = 256,
        statistic: Statistic = "mean",
        mode: int = 32,
        sparse: bool = False,
        rank: Rank = "bias",
        gain: float = 0.0,
    ) -> None:
        if mode < 1 or gain < 0:
            raise InputError(f"imprint needs mode >= 1 and gain >= 0, got {mode} and {gain}.")
        self._edges = bin_edges(bins, "laplace" if statistic == "fourier" else "normal")
        self._statistic = statistic
        self._mode = mode
        self._sparse = sparse
        self._rank = rank
        self._gain = gain

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Send the model behind a calibrated block."""
        inputs = public_inputs(self.name, knowledge)
        self.check_knowledge(knowledge)
        gain = self._gain or (_GAIN if (knowledge.local_steps or 1) == 1 else 1.0)
        block = ImprintBlock(knowledge.image_shape, len(self._edges), sparse=self._sparse, gain=gain)
        direction = direction_of(self._statistic, inputs[0].numel(), self._mode, seed)
        block.calibrate(inputs, direction, self._edges)
        words = f"a block of {len(self._edges)} bins of the {self._statistic} statistic in front of it"
        memory = ImprintMemory("front.measure.weight", "front.measure.bias", self._sparse)
        return altered(ask([put_in_front(block, model)]), memory, words)

    def read(self, observation: Observation, seed: int) -> Reconstruction:
        """Read the bins of one observation."""
        started = time.perf_counter()
        memory, knowledge = recall(observation, ImprintMemory, self.name), observation.knowledge
        gradient = estimated_gradient(observation)
        rows, bias = gradient[memory.weight], gradient[memory.bias]
        apart = _as_it_is if memory.sparse else between_edges
        rows, bias = apart(rows), apart(bias)
        count = image_count(observation)
        hits = self._hits(rows, bias, count)
        quotients = (rows[hits] / bias[hits].unsqueeze(1)).view(-1, *knowledge.image_shape)
        certificate = certify(observation, memory.bias, hits, quotients, bias[hits], apart)
        found = normalisation_of(knowledge).undo(quotients)
        guess = inferred_or_none(observation, seed)
        return Reconstruction(
            filled(found, count, knowledge),
            guess.labels,
            float(count - len(hits)),
            seconds=time.perf_counter() - started,
            notes=(
                *guess.notes,
                f"{len(hits)} bins were hit by {count} images; the rest is the mean public image",
                certificate.words,
            ),
        )

    def _hits(self, rows: Tensor, bias: Tensor, count: int) -> Tensor:
        """Return the bins that answered, strongest first, at most `count`."""
        strength = bias.abs() if self._rank == "bias" else rows.abs().mean(1)
        floor = 64 * torch.finfo(rows.dtype).eps * strength.max()
        order = strength.argsort(descending=True)[:count]
        return order[(strength[order] > floor) & (bias[order] != 0)]


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def between_edges(cumulative: Tensor) -> Tensor:
    """Return what lies in each bin, from rows that hold everything above their edge; the last row is its own bin."""
    return cumulative - torch.cat([cumulative[1:], torch.zeros_like(cumulative[:1])])
