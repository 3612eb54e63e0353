"""Distances between a dummy gradient and the observed one, over flat vectors [N].

Each is 0 at the truth, differentiable in the dummy gradient, and safe under `torch.func.vmap`. A layout tells where one
parameter tensor ends and the next begins, for distances that are sums over tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from fedseal.core.defence import AttackerView, NoiseLaw
from fedseal.core.tensors import Tensors


@dataclass(frozen=True)
class Layout:
    """How a flat vector [N] divides into parameter tensors, in the model's order."""

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Tensors) -> Layout:
        """Return the layout of `flatten(tensors)`."""
        return cls(tuple(tensor.numel() for tensor in tensors.values()))

    def split(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Cut a vector [N] into its tensors, each flat."""
        return torch.split(vector, list(self.sizes))

    @property
    def spans(self) -> tuple[slice, ...]:
        """Where each tensor lies in a vector."""
        ends = list(itertools.accumulate(self.sizes))
        return tuple(slice(end - size, end) for size, end in zip(self.sizes, ends, strict=True))

    @property
    def total(self) -> int:
        """N."""
        return sum(self.sizes)


class Objective(Protocol):
    """A matching term. `selection` is None, or a 0/1 vector [N] of the coordinates to compare."""

    def select(self, dummy: Tensor, observed: Tensor, layout: Layout) -> Tensor | None:
        """Return which coordinates to compare; None for all."""

    def distance(self, dummy: Tensor, observed: Tensor, layout: Layout, selection: Tensor | None) -> Tensor:
        """Return the distance over the selected coordinates."""


@runtime_checkable
class ProductObjective(Protocol):
    """A distance that is a function of inner products only; then its gradient is a combination of the two vectors."""

    def of_products(self, dummy_dummy: Tensor, dummy_observed: Tensor, observed_observed: Tensor) -> Tensor:
        """Return the distance, given <dummy, dummy>, <dummy, observed> and <observed, observed>."""

    def with_direction(self, dummy: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distances [L] of lanes [L, N] and their gradients in the dummy update [L, N]."""


def cosine_distance(dummy: Tensor, observed: Tensor) -> Tensor:
    """Return 1 - cos(dummy, observed)."""
    norms = (dummy.square().sum() * observed.square().sum()).clamp(min=1e-30).sqrt()
    return 1 - (dummy * observed).sum() / norms


@dataclass(frozen=True)
class Cosine:
    """1 - cos, one global cosine over all parameters (Inverting Gradients, Eq. 4); ignores the update's scale."""

    def select(self, dummy: Tensor, observed: Tensor, layout: Layout) -> None:
        """Compare everything."""

    def distance(self, dummy: Tensor, observed: Tensor, layout: Layout, selection: Tensor | None) -> Tensor:
        """Return 1 - cos over all parameters."""
        return cosine_distance(dummy, observed)

    def of_products(self, dummy_dummy: Tensor, dummy_observed: Tensor, observed_observed: Tensor) -> Tensor:
        """Return 1 - cos from inner products."""
        return 1 - dummy_observed / (dummy_dummy * observed_observed).clamp(min=1e-30).sqrt()

    def with_direction(self, dummy: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 - cos and (cos dummy / |dummy| - observed / |observed|) / |dummy|."""
        own = torch.linalg.vector_norm(dummy, dim=1).clamp(min=1e-15)
        norms = (own * torch.linalg.vector_norm(observed, dim=1)).clamp(min=1e-15)
        cosine = torch.linalg.vecdot(dummy, observed) / norms
        direction = dummy * (cosine / own.square())[:, None]
        return 1 - cosine, direction.addcmul_(observed, norms.reciprocal()[:, None], value=-1)


@dataclass(frozen=True)
class LayerMean:
    """Mean over tensors of the squared distances (GGL, Eq. 4)."""

    def select(self, dummy: Tensor, observed: Tensor, layout: Layout) -> None:
        """Compare everything."""

    def distance(self, dummy: Tensor, observed: Tensor, layout: Layout, selection: Tensor | None) -> Tensor:
        """Return the squared distance over the number of tensors."""
        return (dummy - observed).square().sum() / len(layout.sizes)


@dataclass(frozen=True)
class SquarePlusRoot:
    """d^2 + d with d the distance: what GRNN minimises.

    Its second term is called a Wasserstein distance there; the function in the authors' code returns the plain norm.
    """

    def select(self, dummy: Tensor, observed: Tensor, layout: Layout) -> None:
        """Compare everything."""

    def distance(self, dummy: Tensor, observed: Tensor, layout: Layout, selection: Tensor | None) -> Tensor:
        """Return d^2 + d over all parameters."""
        square = (dummy - observed).square().sum()
        return square + (square + 1e-20).sqrt()


@dataclass(frozen=True)
class SquaredError:
    """Weighted sum of squared differences (DLG, Eq. 4; GradInversion with weight alpha_G).

    Attributes:
        weight: on the whole term.
    """

    weight: float = 1.0

    def select(self, dummy: Tensor, observed: Tensor, layout: Layout) -> None:
        """Compare everything."""

    def distance(self, dummy: Tensor, observed: Tensor, layout: Layout, selection: Tensor | None) -> Tensor:
        """Return the weighted squared distance."""
        return self.weight * (dummy - observed).square().sum()

    def of_products(self, dummy_dummy: Tensor, dummy_observed: Tensor, observed_observed: Tensor) -> Tensor:
        """Return the weighted squared distance from inner products."""
        return self.weight * (dummy_dummy - 2 * dummy_observed + observed_observed)

    def with_direction(self, dummy: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted squared distance and twice the weighted difference."""
        difference = dummy - observed
        return self.weight * difference.square().sum(1), 2 * self.weight * difference


@dataclass(frozen=True)
class GaussianKernel:
    """SAPAG (Wang et al. 2020): sum over tensors of Q_l (1 - exp(-mean squared difference / variance of the true)).

    Q_l = 1 / (l + 1) falls with depth. The paper's norm inside the exponent is taken per element, since a sum over many
    elements starts so far out that the kernel's gradient is zero (docs/methods/sapag.md).
    """

    def select(self, dummy: Tensor, observed: Tensor, layout: Layout) -> None:
        """Compare everything."""

    def distance(self, dummy: Tensor, observed: Tensor, layout: Layout, selection: Tensor | None) -> Tensor:
        """Return the kernel distance."""
        total = dummy.new_zeros(())
        for depth, (mine, theirs) in enumerate(zip(layout.split(dummy), layout.split(observed), strict=True)):
            spread = (theirs - theirs.mean()).square().mean().clamp(min=1e-12)
            total = total + (1 - torch.exp(-(mine - theirs).square().mean() / spread)) / (depth + 1)
        return total


_LEAST_VARIANCE = 1e-4
"""Of the mean variance, what an entry without noise is taken to have, so that it does not outweigh all others."""


@runtime_checkable
class ReadsWithheld(Protocol):
    """A distance that also knows something of coordinates which were not sent."""

    def withheld(self, dummy: Tensor, observed: Tensor, layout: Layout) -> Tensor:
        """Return what a dummy update, before the defence is simulated, costs where nothing was sent."""


@dataclass(frozen=True)
class Likelihood:
    """Minus the log-likelihood of the observation under the defence's own noise law (Bayes attack, Eq. 4).

    Attributes:
        law: Gaussian gives |difference|^2 / 2 sigma^2, Laplace |difference|_1 / b; constants are dropped.
        rounding: maps one tensor of the observation to the variance its rounding adds; Gaussian laws only.
        mask: zeros were withheld, since their magnitudes were below the `largest` ones that were sent, or outside of
            the `middle`: what contradicts that is a deviation like any other.
        variances: of each entry [N], where they differ; Gaussian laws only.
    """

    law: NoiseLaw
    rounding: Callable[[Tensor], Tensor] | None = None
    mask: Literal["largest", "middle"] | None = None
    variances: Tensor | None = None

    def select(self, dummy: Tensor, observed: Tensor, layout: Layout) -> None:
        """Compare everything."""

    def distance(self, dummy: Tensor, observed: Tensor, layout: Layout, selection: Tensor | None) -> Tensor:
        """Return the negative log-likelihood up to a constant."""
        if self.law.family == "laplace":
            return (dummy - observed).abs().sum() / self.law.scale
        if self.variances is not None:
            least = _LEAST_VARIANCE * self.law.variance
            return ((dummy - observed).square() / (2 * self.variances.to(dummy).clamp(min=least))).sum()
        if self.rounding is None:
            return (dummy - observed).square().sum() / (2 * self.law.variance)
        total = dummy.new_zeros(())
        for mine, theirs in zip(layout.split(dummy), layout.split(observed), strict=True):
            if len(theirs):
                variance = self.law.variance + self.rounding(theirs).to(mine)
                total = total + (mine - theirs).square().sum() / (2 * variance)
        return total

    def withheld(self, dummy: Tensor, observed: Tensor, layout: Layout) -> Tensor:
        """Return the cost of magnitudes that would have been sent; 0 in a tensor of which nothing was."""
        total = dummy.new_zeros(())
        if self.mask is None:
            return total
        for mine, theirs in zip(layout.split(dummy), layout.split(observed), strict=True):
            seen, size = theirs.abs(), mine.abs()
            sent = seen != 0
            low = torch.where(sent, seen, torch.inf).amin()
            beyond = size - low if self.mask == "largest" else torch.minimum(size - low, seen.amax() - size)
            total = total + torch.where(sent | ~sent.any(), 0.0, beyond.clamp(min=0)).square().sum()
        return total / (2 * self.law.variance)


@dataclass(frozen=True)
class PartialMatching:
    """FedLeak's partial matching (Sec. 4.2, Eq. 8 and 15): L1 + cosine over the largest gradient entries only.

    Attributes:
        ratio: share R of entries compared, the largest in magnitude.
        scope: choose them within each tensor, or over all parameters at once.
        source: by the magnitude of the dummy gradient (recomputed as it changes) or of the observed one.
        l1: mean over the compared entries of each tensor (Eq. 8), or their sum (Eq. 15); 0 weight leaves it out.
        l1_weight, cosine_weight: of the two terms; both 1 in the paper, and 0 in its ablation (Table 19).
    """

    ratio: float = 0.5
    scope: Literal["tensor", "global"] = "tensor"
    source: Literal["dummy", "observed"] = "dummy"
    l1: Literal["mean", "sum"] = "mean"
    l1_weight: float = 1.0
    cosine_weight: float = 1.0

    def select(self, dummy: Tensor, observed: Tensor, layout: Layout) -> Tensor | None:
        """Return 1 at the ceil(ratio n) largest magnitudes, 0 elsewhere; None when everything is compared."""
        if self.ratio >= 1:
            return None
        magnitude = (dummy if self.source == "dummy" else observed).detach().abs()
        if self.scope == "global":
            return _largest(magnitude, self.ratio)
        return torch.cat([_largest(part, self.ratio) for part in layout.split(magnitude)])

    def distance(self, dummy: Tensor, observed: Tensor, layout: Layout, selection: Tensor | None) -> Tensor:
        """Return the sum over tensors (or one term over all) of L1 and cosine distance."""
        if selection is not None:
            dummy, observed = dummy * selection, observed * selection
        if self.scope == "global":
            return self._term(dummy, observed)
        total = dummy.new_zeros(())
        for mine, theirs in zip(layout.split(dummy), layout.split(observed), strict=True):
            total = total + self._term(mine, theirs)
        return total

    def _term(self, dummy: Tensor, observed: Tensor) -> Tensor:
        total = dummy.new_zeros(())
        if self.l1_weight:
            size = math.ceil(self.ratio * dummy.numel()) if self.l1 == "mean" else 1
            total = total + self.l1_weight * (dummy - observed).abs().sum() / size
        if self.cosine_weight:
            total = total + self.cosine_weight * cosine_distance(dummy, observed)
        return total


def _largest(magnitude: Tensor, ratio: float) -> Tensor:
    count = math.ceil(ratio * magnitude.numel())
    indices = magnitude.topk(count, sorted=False).indices
    return torch.zeros_like(magnitude).scatter(0, indices, 1.0)


ObjectiveFactory: TypeAlias = Callable[[AttackerView | None], Objective]
"""Builds the objective for what is known of the defence."""
