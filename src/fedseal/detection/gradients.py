"""Signs of tampering in what a client would send: one sample that outweighs the rest, or a network that is blocked.

The disaggregation signal-to-noise ratio of a layer (Garov et al., ICLR 2024) is the largest norm of a sample's gradient
over the sum of the others': a sample that dominates can be read from the sum. Honest training reaches high ratios too,
once all samples but one are learnt; then the same sample dominates the loss. The relative ratio divides by that.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.knowledge import CROSS_ENTROPY
from fedseal.federation.loss import training_loss


@dataclass(frozen=True)
class SampleNorms:
    """Norms of single samples' gradients.

    Attributes:
        layers: by parameter name, [B].
        logits: of the gradient in the logits, [B].
    """

    layers: dict[str, Tensor]
    logits: Tensor

    def dsnr(self) -> dict[str, float]:
        """Return the signal-to-noise ratio of each layer."""
        return {name: ratio(norms) for name, norms in self.layers.items()}

    def relative_dsnr(self) -> dict[str, float]:
        """Return how much the sample that dominates a layer exceeds its own share of the loss."""
        relative = {}
        for name, norms in self.layers.items():
            top = int(norms.argmax())
            own = ratio(self.logits, top)
            relative[name] = ratio(norms) / max(own, 1 / max(len(norms) - 1, 1))
        return relative

    def blocked(self, first: str) -> float:
        """Return by how many decades the gradient of the `first` weight is smaller than that of the logits."""
        reached, sent = float(self.layers[first].sum()), float(self.logits.sum())
        if sent == 0:
            return 0.0
        return math.inf if reached == 0 else max(0.0, math.log10(sent / reached))


def ratio(norms: Tensor, top: int | None = None) -> float:
    """Return the norm of the largest (or the given) sample over the sum of all others."""
    index = int(norms.argmax()) if top is None else top
    others = float(norms.sum() - norms[index])
    own = float(norms[index])
    if own == 0:
        return 0.0
    return math.inf if others <= 1e-12 * own else own / others


def sample_norms(model: nn.Module, batch: Batch, normalisation: Normalisation) -> SampleNorms:
    """Return the norms of all samples' gradients in every weight matrix, from one pass over the whole batch.

    Batch normalisation sees the batch as it is; what it moves is moved in a copy.
    """
    local = copy.deepcopy(model)
    weights = {name: p for name, p in local.named_parameters() if p.requires_grad and p.ndim > 1}
    found: dict[str, list[Tensor]] = {name: [] for name in weights}
    sent: list[Tensor] = []
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        logits = local(normalisation(batch.inputs))
        for index in range(len(batch)):
            loss = training_loss(CROSS_ENTROPY)(logits[index : index + 1], batch.labels[index : index + 1], "mean")
            values = torch.autograd.grad(loss, [logits, *weights.values()], retain_graph=True, allow_unused=True)
            sent.append(_norm(values[0], logits))
            for name, value in zip(weights, values[1:], strict=True):
                found[name].append(_norm(value, logits))
    return SampleNorms({name: torch.stack(norms) for name, norms in found.items()}, torch.stack(sent))


def _norm(value: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.float64) if value is None else value.detach().double().norm().cpu()
