"""`loki` (Zhao et al., S&P 2024): kernels of one's own for every client, so that an aggregate falls apart again.

In front of the model stand a convolution with C kernels for each client, a linear layer that bins images by their mean
brightness, and one back to the input's shape. Client z receives identity kernels, scaled by `csf`, at its own channels
and zeros elsewhere, so its gradient of the binning layer lives in its own block of columns and survives secure
aggregation. The bias does not fall apart: images are read from the weights up to scale. The large `csf` keeps the
linear weights small, so that local steps hardly move what fires. Threat model: active server, a model
for each client. The last linear layer stretches the input's range a thousandfold, as the released code does: that
makes the gradient of the bins as much larger, and noise as much smaller beside it. Departures: kernels undo the
input's normalisation; `rescale=bin` uses that the bin gives the mean brightness, the default is min-max as published.

Cost: one round; the block grows with clients, channels and bins, and so does every download.

Known breaks: what hides whole columns of the binning layer: pruning by magnitude, noise of its size. Clients who
compare the hashes of what they received see that models differ, and identity kernels beside zeros are conspicuous.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.active.bins import bin_edges
from fedseal.attacks.active.certificate import Certificate, certify
from fedseal.attacks.active.imprint import spread_evenly
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
from fedseal.core.batch import Normalisation
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.ranges import Width
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info

Rescale: TypeAlias = Literal["minmax", "bin"]
"""How an image known up to scale is brought to [0, 1]: its darkest and brightest pixel, or its bin's brightness."""


class LokiBlock(nn.Module):
    """One client's kernels, the bins, and a way back to the input's shape.

    Args:
        shape: C, H, W.
        clients: whose kernels it has room for.
        bins: rows that measure.
    """

    def __init__(self, shape: tuple[int, int, int], clients: int, bins: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # all weights are set afterwards
            self.kernels = nn.Conv2d(shape[0], clients * shape[0], 3, padding=1)
            self.measure = nn.Linear(clients * math.prod(shape), bins)
            self.spread = nn.Linear(bins, math.prod(shape))

    def hidden(self, x: Tensor) -> Tensor:
        """Return what the bins answer to inputs [B, C, H, W], as [B, bins]."""
        return F.hardtanh(self.measure(self.kernels(x).flatten(1)), 0.0, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs [B, C, H, W] to blank images of the same shape."""
        blank: Tensor = self.spread(self.hidden(x))
        return blank.view_as(x)

    @torch.no_grad()
    def calibrate(
        self, client: int, inputs: Tensor, normalisation: Normalisation, csf: float, edges: Tensor, gain: float = 1.0
    ) -> None:
        """Set all weights, in double precision, for one client.

        Args:
            client: whose kernels are not zero.
            inputs: public ones [N, C, H, W].
            normalisation: which the kernels undo.
            csf: factor of the kernels.
            edges: left edges [bins] of the mean brightness; the last bin is as wide as the one before.
            gain: how many times wider than the inputs' range what is handed on spreads.
        """
        self.double()
        channels, size = self.kernels.in_channels, inputs[0].numel()
        unit = torch.eye(channels, dtype=torch.float64).view(channels, channels, 1, 1)
        bias = normalisation.undo(torch.zeros_like(unit[:1, :, :1, :1]))[0, :, 0, 0]
        slope = normalisation.undo(torch.ones_like(unit[:1, :, :1, :1]))[0, :, 0, 0] - bias
        own = slice(client * channels, (client + 1) * channels)
        kernels, offsets = self.kernels.weight, self.kernels.bias
        assert offsets is not None
        kernels.zero_()
        offsets.zero_()
        kernels[own, :, 1:2, 1:2] = csf * unit * slope.view(1, -1, 1, 1)
        offsets[own] = csf * bias
        widths = torch.diff(edges)
        widths = torch.cat([widths, widths[-1:]])
        self.measure.weight.copy_((1 / (csf * size * widths)).unsqueeze(1).expand_as(self.measure.weight))
        self.measure.bias.copy_(-edges / widths)
        spread_evenly(self.spread, self.hidden(inputs), inputs, gain)


@dataclass(frozen=True)
class LokiMemory:
    """What the server remembers: the binning layer's weight and bias, the clients, and each bin's brightness."""

    weight: str
    bias: str
    clients: int
    brightness: Tensor


@ATTACKS.register(
    "loki",
    Info(
        "give every client kernels of its own, so that even an aggregate can be read client by client",
        paper="Zhao et al., S&P 2024",
        threat="active: changes the architecture, a model per client",
        needs=("batch_size", "auxiliary", "clients"),
    ),
)
class LokiAttack(ReadingAttack):
    """LOKI.

    Args:
        bins: rows of the block.
        csf: convolutional scaling factor.
        rescale: how images known up to scale are shown.
        gain: how far the last linear layer stretches the input's range; 1, as half precision needs, leaves it alone.
    """

    remembers = LokiMemory

    any_loss: ClassVar[bool] = True

    def __init__(
        self, bins: Width = 256, csf: float = 500.0, rescale: Rescale = "minmax", gain: float = 1000.0
    ) -> None:
        if not (0 < csf < math.inf and 0 < gain < math.inf):
            raise InputError(f"csf and gain must be positive, got {csf:g} and {gain:g}.")
        self._edges = bin_edges(bins, "normal")
        self._csf = csf
        self._rescale = rescale
        self._gain = gain

    def provoke(self, model: nn.Module, knowledge: Knowledge, ask: Ask, seed: int) -> Observation:
        """Send each client the model behind a block with kernels of its own."""
        inputs = public_inputs(self.name, knowledge)
        self.check_knowledge(knowledge)
        clients = knowledge.clients or 1
        normalisation = normalisation_of(knowledge)
        brightness = normalisation.undo(inputs).flatten(1).mean(1)
        if float(brightness.std()) == 0:
            raise CapabilityError("loki bins images by brightness, and all public images are equally bright.")
        edges = brightness.mean() + brightness.std() * self._edges
        edges[0] = min(0.0, float(edges[1]) - 1e-3)  # nothing is darker than black
        half = next(model.parameters()).dtype == torch.float16  # where anything stretched overflows
        gain = 1.0 if half else self._gain
        models: list[nn.Module] = []
        for client in range(clients):
            block = LokiBlock(knowledge.image_shape, clients, len(edges))
            block.calibrate(client, inputs, normalisation, self._csf, edges, gain)
            models.append(put_in_front(block, model))
        ends = torch.cat([edges[1:], torch.tensor([1.0], dtype=torch.float64).clamp(min=float(edges[-1]))])
        memory = LokiMemory("front.measure.weight", "front.measure.bias", clients, (edges + ends) / 2)
        words = f"a block of {len(edges)} brightness bins in front of it, with kernels of its own for each client"
        return altered(ask(models), memory, words)

    def read(self, observation: Observation, seed: int) -> Reconstruction:
        """Read every client's block of one observation."""
        started = time.perf_counter()
        memory, knowledge = recall(observation, LokiMemory, self.name), observation.knowledge
        gradient = estimated_gradient(observation)
        blocks = client_blocks(gradient[memory.weight], memory.clients)
        count = image_count(observation)
        each = count // memory.clients
        hit = [_hits(block, each) for block in blocks]
        found = [self._images(block, memory, order) for block, order in zip(blocks, hit, strict=True)]
        images = [filled(part.view(-1, *knowledge.image_shape), each, knowledge) for part in found]
        hits = sum(map(len, found))
        guess = inferred_or_none(observation, seed)
        return Reconstruction(
            torch.cat(images),
            guess.labels,
            float(count - hits),
            seconds=time.perf_counter() - started,
            notes=(
                *guess.notes,
                f"{hits} bins of {memory.clients} client(s) were hit by {count} images",
                self._certificate(observation, memory, blocks, hit, gradient[memory.bias]).words,
            ),
        )

    def _certificate(
        self, observation: Observation, memory: LokiMemory, blocks: list[Tensor], hit: list[Tensor], bias: Tensor
    ) -> Certificate:
        """Certify the bins that one client alone has hit: the bias, which clients share, is its own there."""
        times = torch.bincount(torch.cat(hit), minlength=len(bias))
        normalisation, shape = normalisation_of(observation.knowledge), observation.knowledge.image_shape
        parts = []
        for block, order in zip(blocks, hit, strict=True):
            own = order[times[order] == 1]
            images = block[own] / memory.clients / (self._csf * bias[own].unsqueeze(1))
            inputs = normalisation(images.view(-1, *shape))
            part = certify(observation, memory.bias, own, inputs, bias[own])
            shared = torch.zeros(len(order) - len(own), dtype=torch.bool)
            parts.append(part if part.why_not else Certificate(torch.cat([part.alone.cpu(), shared])))
        return Certificate.joined(parts)

    def _images(self, rows: Tensor, memory: LokiMemory, order: Tensor) -> Tensor:
        """Return what one client's bins hold, [hit, D] in [0, 1]."""
        signed = rows[order] * rows[order].sum(1, keepdim=True).sign()
        if self._rescale == "bin":
            brightness = memory.brightness.to(rows)[order].unsqueeze(1)
            return signed * brightness / signed.mean(1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        low, high = signed.amin(1, keepdim=True), signed.amax(1, keepdim=True)
        return (signed - low) / (high - low).clamp(min=torch.finfo(rows.dtype).tiny)


def _hits(rows: Tensor, count: int) -> Tensor:
    """Return the bins [at most count] that rows [bins, D] of one client say were hit, most strongly hit first."""
    strength = rows.norm(dim=1)
    order = strength.argsort(descending=True)[:count]
    hit: Tensor = order[strength[order] > 64 * torch.finfo(rows.dtype).eps * strength.max()]
    return hit


def client_blocks(weight: Tensor, clients: int) -> list[Tensor]:
    """Split the mean of the clients' gradients [bins, clients x D] into each client's own, [bins, D]."""
    return [block * clients for block in weight.chunk(clients, dim=1)]
