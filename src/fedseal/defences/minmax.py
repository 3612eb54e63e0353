"""MinMax sampling (Zhao et al., SIGMOD 2022; the gradient sampling that GLAUS attacks): unbiased random sparsification.

Each entry x draws u ~ U(0, 1) and weighs (1/u - 1) x^2; the k heaviest are kept, and with C the (k+1)-th weight each is
sent as x + C/x. Given C it is kept with probability x^2 / (x^2 + C), so the upload's mean is the update. Threat model:
honest-but-curious server; no privacy guarantee. Ratio 0 is the identity. Zeros are never sent.

Cost: one draw and one selection per entry; uploads shrink to the share sent.

Known breaks: an unbiased draw is averaged away by asking again (`glaus`, `use=mean`); a single upload gives true values
at the largest entries.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, Defence, RoundContext
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.core.traits import Traits
from fedseal.defences.pruning import check_ratio, kept_count, match_observed_support

_TAIL = 4.0
"""Exponent of the law (1 + |x| / mean)^-4 an attacker assumes of entries; ReLU networks have heavy tails."""


def minmax_sample(vector: Tensor, kept: int, generator: torch.Generator) -> Tensor:
    """Keep `kept` entries of each vector in [..., N] at random, without bias; everything if there are no more."""
    if kept >= vector.shape[-1]:
        return vector
    wide = vector.double()
    u = torch.rand(vector.shape, generator=generator, dtype=torch.float64, device=vector.device)
    weight = (1 / u.clamp(min=2.0**-54) - 1) * wide.square()
    heaviest = weight.topk(kept + 1, dim=-1)
    threshold = heaviest.values[..., -1:]
    indices = heaviest.indices[..., :-1]
    values = wide.gather(-1, indices)
    sent = torch.where(values == 0, values, values + threshold / torch.where(values == 0, 1.0, values))
    return torch.zeros_like(vector).scatter(-1, indices, sent.to(vector.dtype))


@DEFENCES.register(
    "minmax",
    Info(
        "upload a random sample of entries, large ones likelier",
        paper="Zhao et al., SIGMOD 2022",
        threat="passive",
        strengths=("ratio=0.5", "ratio=0.8", "ratio=0.95"),
    ),
)
class MinMaxSampling(Defence):
    """MinMax sampling.

    Args:
        ratio: share of entries withheld.
        scope: entries compete over the whole update, as in the authors' code, or within their tensor.
    """

    stage = "update"

    def __init__(self, ratio: float = 0.95, scope: Literal["update", "tensor"] = "update") -> None:
        check_ratio(self.name, ratio)
        self.ratio = ratio
        self.scope = scope
        self.traits = Traits(data_dependent_mask=ratio > 0)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Sample entries."""
        if self.ratio == 0:
            return update
        if self.scope == "update":
            sampled = unflatten(self._sample(flatten(update), context.generator), update)
            return {name: t.to(update[name].dtype) for name, t in sampled.items()}  # a mixture was widened to compete
        return {name: self._sample(t.reshape(-1), context.generator).view_as(t) for name, t in update.items()}

    def attacker_view(self) -> AttackerView:
        """Publish the ratio; what was sent gives away the threshold C, and with it the values before sampling.

        Every sent value x + C / x is at least 2 sqrt(C) in size, so the least one shows C.
        """
        parameters = {"ratio": self.ratio, "scope": self.scope}
        if self.ratio == 0:
            return AttackerView(self.name, parameters)
        channel = Channel(self._sampled, remarks=("which of two values was sent is taken as known",))
        return AttackerView(self.name, parameters, match_observed_support, read=self._unsampled, channel=channel)

    def _sampled(self, update: Tensors, observed: Tensors) -> Tensors:
        """Return x + C / x where entries were sent, zero elsewhere."""
        sampled = {}
        for name, (sent, threshold) in self._thresholds(observed).items():
            x = update[name]
            kept = (sent != 0) & (x != 0)
            safe = torch.where(kept, x, torch.ones_like(x))
            sampled[name] = torch.where(kept, x + threshold.to(x) / safe, torch.zeros_like(x))
        return sampled

    def _unsampled(self, observed: Tensors) -> Tensors:
        """Return the mean of x given s = x + C / x: both roots, by chance and a heavy-tailed law.

        As the draw is unbiased, the mean size of what was sent is that of all entries, which is the law's scale.
        """
        scale = flatten(observed).abs().mean()
        read = {}
        for name, (sent, threshold) in self._thresholds(observed).items():
            size = sent.abs()
            larger = (size + (size.square() - 4 * threshold).clamp(min=0).sqrt()) / 2
            larger = torch.maximum(larger, threshold.sqrt()).clamp(min=1e-30)
            smaller = threshold / larger
            weight = torch.sigmoid(_log_density(larger, threshold, scale) - _log_density(smaller, threshold, scale))
            read[name] = sent.sign() * (weight * larger + (1 - weight) * smaller)
        return read

    def _thresholds(self, observed: Tensors) -> dict[str, tuple[Tensor, Tensor]]:
        """Return each tensor with C, the threshold of the draw it took part in."""
        least = {name: sent.abs().where(sent != 0, torch.inf).amin() for name, sent in observed.items()}
        if self.scope == "update":
            least = dict.fromkeys(least, torch.stack(list(least.values())).amin())
        finite = {name: torch.where(torch.isfinite(value), value, 0.0) for name, value in least.items()}
        return {name: (sent, finite[name].square() / 4) for name, sent in observed.items()}

    def _sample(self, vector: Tensor, generator: torch.Generator) -> Tensor:
        return minmax_sample(vector, kept_count(vector.numel(), self.ratio), generator)


def _log_density(x: Tensor, threshold: Tensor, scale: Tensor) -> Tensor:
    """Return log of P(x) P(sent | x) |dx/ds| for entries of size x, up to a constant."""
    squared = x.square()
    steepness = (squared - threshold).abs() + 1e-3 * threshold
    return (
        -_TAIL * torch.log1p(x / scale.clamp(min=1e-30))
        + 2 * squared.clamp(min=1e-30).log()
        - ((squared + threshold).clamp(min=1e-30).log() + steepness.clamp(min=1e-30).log())
    )
