"""What each layer gives away before any gradient is seen: the rank of its equations on a random image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.rgap.convolution import gradient_system
from fedseal.models.chains.stages import Link, read_chain


@dataclass(frozen=True)
class LayerRank:
    """How much of a layer's input its equations determine.

    Attributes:
        name: of the layer.
        unknowns: entries of its input.
        rank: of the gradient rows and known weight rows together.
    """

    name: str
    unknowns: int
    rank: int

    @property
    def deficit(self) -> int:
        """Entries that stay undetermined whatever the attack; 0 if the layer can be inverted exactly."""
        return self.unknowns - self.rank


def rank_analysis(
    model: nn.Module, input_shape: tuple[int, int, int], *, seed: int = 0, cutoff: float = 1e-9
) -> list[LayerRank]:
    """Return each layer's rank on a random image and label, from the image on (R-GAP, Sec. 4).

    The gradient rows depend on the image through the slopes of the loss; for a random one their rank is that of almost
    all. Costs a factorisation of each layer's equations: seconds for images of 32 x 32.
    """
    stages = read_chain(model, input_shape)
    outputs, slopes = _passes(stages, input_shape, seed)
    return [_rank(stage, y, k, cutoff) for stage, y, k in zip(stages, outputs, slopes, strict=True)]


def _passes(stages: list[Link], input_shape: tuple[int, int, int], seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return every stage's output and dL/dz on a random image."""
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(1, *input_shape, dtype=torch.float64, generator=source)
    before: list[Tensor] = []
    outputs: list[Tensor] = []
    for stage in stages:
        z = stage.biased(stage.apply(x.view(1, *stage.input_shape))).requires_grad_()
        before.append(z)
        x = stage.activation.forward(z)
        outputs.append(x[0].detach())
    loss = F.softplus(x.sum()) if x.shape[1] == 1 else F.cross_entropy(x, torch.zeros(1, dtype=torch.long))
    return outputs, [slope[0] for slope in torch.autograd.grad(loss, before)]


def _rank(stage: Link, output: Tensor, slope: Tensor, cutoff: float) -> LayerRank:
    unknowns = int(torch.tensor(stage.input_shape).prod())
    if len(stage.output_shape) == 1:
        return LayerRank(stage.name, unknowns, unknowns if bool(slope.any()) else 0)
    channels = stage.input_shape[0]
    system = gradient_system(stage, slope)
    own = system.T @ system / system.norm(dim=1).mean().square().clamp(min=1e-300)
    gram = torch.kron(torch.eye(channels, dtype=own.dtype), own)
    every = torch.eye(unknowns, dtype=own.dtype).view(unknowns, *stage.input_shape)
    rows = stage.apply(every).flatten(1)[:, stage.activation.known(output).reshape(-1)]
    gram = gram + rows @ rows.T / stage.weight.flatten(1).norm(dim=1).mean().square().clamp(min=1e-300)
    values = torch.linalg.eigvalsh(gram)
    return LayerRank(stage.name, unknowns, int((values > cutoff * values[-1]).sum()))
