"""The span test: whether a vector is one of those that a linear layer's gradient was summed of.

The gradient of a linear layer is a sum of outer products, one for every vector it was fed, so its rows lie in the span
of these vectors. As long as they are fewer than the layer is wide, a candidate lies in that span if and only if it was
fed, but for accidents of probability zero (DAGER, Petrov et al., NeurIPS 2024, Sec. 4). Where there are finitely many
candidates, words for instance, testing all of them reads the text.

No constant decides. The rank is where the spectrum has its largest gap; how far from the span a vector may be is where
the sorted distances of the candidates have theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.attacks.spectrum import CLEAR, before_gap


@dataclass(frozen=True)
class SpanTest:
    """The span of what a layer was fed.

    Attributes:
        basis: orthonormal rows [rank, D].
        gap: of the spectrum behind the last of them; the evidence that the rank is right.
        full: whether every direction is in the span, so that the test passes anything.
    """

    basis: Tensor
    gap: float
    full: bool

    @property
    def rank(self) -> int:
        """How many independent vectors were fed."""
        return len(self.basis)

    @property
    def blind(self) -> bool:
        """Whether the test says nothing: the span is empty, or everything, or nobody can tell where it ends."""
        return self.rank == 0 or self.full or self.rank >= self.basis.shape[1] or self.gap < CLEAR

    @property
    def limit(self) -> float:
        """The distance halfway, in powers of ten, between what noise gives a vector of the span and a stranger's."""
        return float(max(self.gap, 1.0) ** -0.5)

    def distances(self, vectors: Tensor) -> Tensor:
        """Return each vector's [..., D] distance from the span, by its length: 0 inside, 1 at right angles."""
        vectors = vectors.to(self.basis)
        size = vectors.norm(dim=-1).clamp(min=1e-300)
        inside = vectors @ self.basis.T
        away: Tensor = (vectors - inside @ self.basis).norm(dim=-1) / size
        return away


def span_of(gradient: Tensor) -> SpanTest:
    """Return the span of a gradient's rows [outputs, D]."""
    _, values, right = torch.linalg.svd(gradient.double(), full_matrices=False)
    floor = float(values[0]) * torch.finfo(gradient.dtype).eps / 4 if len(values) else 0.0
    rank, gap = before_gap(values, floor, later=True)
    return SpanTest(right[:rank], gap, full=rank == min(gradient.shape) or not _levels_off(values[rank:], 400 * floor))


def _levels_off(beyond: Tensor, rounding: float) -> bool:
    """Return whether values behind a gap are a floor: rounding, or level as noise is; a signal goes on falling."""
    return float(beyond[0]) <= rounding or float(beyond[0]) <= 10 * float(beyond.median()) if len(beyond) else False


def joint_span(gradients: Sequence[Tensor]) -> SpanTest:
    """Return the span of the rows of several gradients [outputs, D] of layers fed the same, each of unit norm."""
    kept = [one.double() / one.double().norm() for one in gradients if float(one.norm()) > 0]
    if not kept:
        return SpanTest(gradients[0].new_zeros(0, gradients[0].shape[1]).double(), 1.0, full=False)
    rounded = torch.cat(kept).to(gradients[0].dtype)
    return span_of(rounded)


def inside(distances: Tensor, limit: float) -> tuple[Tensor, float]:
    """Return which candidates belong to the span, and the gap behind the last of them.

    Of all gaps between neighbours among the sorted distances, in powers of ten, the largest whose near side is below
    `limit` parts inside from outside; where no distance is below it, none is inside.
    """
    flat = distances.flatten().double().clamp(min=1e-16)
    order = flat.sort().values
    near = int((order < limit).sum())
    if near == 0:
        return torch.zeros_like(distances, dtype=torch.bool), 1.0
    beyond = torch.cat([order, order.new_ones(1)])
    gaps = beyond[1 : near + 1].log() - order[:near].log()
    place = int(gaps.argmax())
    return distances.double().clamp(min=1e-16) <= order[place], float(gaps[place].exp())


def told_apart(vectors: Tensor, distances: Tensor) -> Tensor:
    """Return which candidates [N] are in a span themselves, and not by their likeness to one that is nearer.

    Some vocabularies hold thousands of tokens that were never trained and are nearly one vector. A candidate whose
    distance is no smaller than half of its difference to a nearer one is explained by that: it goes.

    Args:
        vectors: of the candidates, [N, D].
        distances: from the span, [N].
    """
    unit = vectors.double() / vectors.double().norm(dim=1, keepdim=True).clamp(min=1e-300)
    kept: list[int] = []
    alone = torch.zeros(len(unit), dtype=torch.bool)
    for place in distances.argsort().tolist():
        if kept:
            nearest = float((unit[kept] - unit[place]).norm(dim=1).min())
            if float(distances[place]) > nearest / 2:
                continue
        kept.append(place)
        alone[place] = True
    return alone
