"""MinMax sampling (Zhao et al., SIGMOD 2022; the gradient sampling that GLAUS attacks): unbiased random sparsification.

Each entry x draws u ~ U(0, 1) and weighs (1/u - 1) x^2; the k heaviest are kept, and with C the (k+1)-th weight each is
sent as x + C/x. Given C it is kept with probability x^2 / (x^2 + C), so the upload's mean is the update. Threat model:
honest-but-curious server; no privacy guarantee. Ratio 0 is the identity. Zeros are never sent.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedseal.core.defence import DEFENCES, AttackerView, Defence, RoundContext
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors, flatten, unflatten
from fedseal.defences.pruning import check_ratio, kept_count, match_observed_support


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
    Info("upload a random sample of entries, large ones likelier", paper="Zhao et al., SIGMOD 2022", threat="passive"),
)
class MinMaxSampling(Defence):
    """MinMax sampling.

    Args:
        ratio: share of entries withheld.
        scope: entries compete over the whole update, as in the authors' code, or within their tensor.
    """

    name = "minmax"
    stage = "update"

    def __init__(self, ratio: float = 0.95, scope: Literal["update", "tensor"] = "update") -> None:
        check_ratio(self.name, ratio)
        self.ratio = ratio
        self.scope = scope
        self.data_dependent_mask = ratio > 0

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Sample entries."""
        if self.ratio == 0:
            return update
        if self.scope == "update":
            return unflatten(self._sample(flatten(update), context.generator), update)
        return {name: self._sample(t.reshape(-1), context.generator).view_as(t) for name, t in update.items()}

    def attacker_view(self) -> AttackerView:
        """Publish the ratio; the positions are visible in the upload itself."""
        return AttackerView(self.name, {"ratio": self.ratio, "scope": self.scope}, match_observed_support)

    def _sample(self, vector: Tensor, generator: torch.Generator) -> Tensor:
        return minmax_sample(vector, kept_count(vector.numel(), self.ratio), generator)
