"""Which mixtures of a gradient's singular vectors belong to single samples: SPEAR's search for sparse directions.

With G = D X^T = U S V^T there is an invertible Q with D = U Q and X^T = Q^-1 S V^T. Behind ReLU a column of D is zero
wherever its sample does not activate the unit, about half of the rows; so its q is orthogonal to all those rows of U,
and to any B - 1 of them already.

Two searches find such directions. The first descends: from random directions, the one that vanishes best on rows is
solved for again and again, each row weighing the more the nearer to zero it was before, so that ends are directions
with many zeros (reweighted least squares; sparse vectors of a subspace are its fixed points). The second is the
paper's: rows are drawn B - 1 at a time, the direction orthogonal to them is solved for, and kept if it is orthogonal to
many more (Dimitrov et al. 2024, Sec. 3). Photographs fire much the same units, and few draws tell them apart; the
descent does. Each direction kept is fitted again to all rows it nearly vanishes on, which averages rounding away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.attacks.exact.claims import Claims
from fedseal.attacks.spectrum import Spectrum

CHUNK = 4096
"""Draws that are solved as one batch, at most."""
_FIRST = 256
_MOST = 512
"""Directions of a batch that are looked at further."""
_STARTS = 256
"""Random directions that one descent begins with."""
_DESCENTS = 4
_STEPS, _EVENLY = 24, 8
"""Solutions of a descent, and how many of the first of them weigh rows by one over their size, not its square."""
_WIDEST, _NARROWER, _NARROWEST = 0.3, 0.55, 1e-6
"""Of the root mean square of a direction's entries: what counts as small at first, its share from step to step, and at
last."""
_POOL = 96
"""Directions that are kept for exchanges, beside those chosen."""
_LOOSE = 2e-3
"""Of the root mean square of a direction's entries: below it an entry of an unrefined direction counts as zero."""
_TIGHTER = (_LOOSE, _LOOSE / 20, _LOOSE / 400, _LOOSE / 8000)
"""The same for directions fitted once and more: each fit lets fewer rows pass that are small but not zero."""
_TRUST = 4.0
"""How much likelier a row is drawn that sparse directions vanish on: of units that fire for every sample, none does."""
_EQUAL = 1e-6
_INDEPENDENT = 1e-3


@dataclass(frozen=True)
class Separated:
    """Samples taken apart.

    Attributes:
        inputs: what entered the layer, one row per sample, [B, n].
        agreement: share of pairs (unit, sample) for which a derivative is there exactly where the unit fires.
        draws: how many were solved.
    """

    inputs: Tensor
    agreement: float
    draws: int


def expected_draws(rank: int, share: float = 0.5) -> float:
    """Return how many draws find every direction, on average, if units are silent with probability `share`."""
    return float(share ** -(rank - 1) * sum(1 / k for k in range(1, rank + 1))) if rank else 0.0


def separate(
    found: Spectrum,
    bias: Tensor,
    layer: tuple[Tensor, Tensor],
    draws: int,
    generator: torch.Generator,
    tick: Callable[[int], None] = lambda done: None,
) -> Separated | None:
    """Take a gradient apart into samples; None if fewer directions than its rank are found in that many draws.

    Args:
        found: of the weight's gradient [m, n].
        bias: gradient of the bias, [m].
        layer: weight [m, n] and bias [m], by which a claim is checked.
        draws: at most; it ends earlier once a claim agrees with the layer for every unit and sample.
        generator: of the draws.
        tick: told how many draws are done.
    """
    claims = Claims.of(found, bias, layer)
    best, most, spent = None, -1.0, 0
    pool = found.left.new_zeros(0, found.rank)
    for done, directions in _sparse_directions(found, draws, generator):
        tick(done)
        pool, chosen = _ordered(found, torch.cat([pool, directions]))
        if len(chosen) < found.rank:
            continue
        basis, agreement = claims.improved(pool[chosen], pool)
        if agreement > most:
            best, most, spent = basis, agreement, done
        if most == 1:
            break
    return None if best is None else Separated(claims.inputs(best), most, spent)


def _sparse_directions(found: Spectrum, draws: int, generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """Yield how many draws are done and the refined sparse directions [k, rank] of the last ones."""
    rank = found.rank
    if rank == 1:
        yield 1, found.left.new_ones(1, 1)
        return
    alive = torch.nonzero((found.left * found.values).norm(dim=1) > 6 * found.noise * rank**0.5).flatten()
    if len(alive) < rank:
        return
    for _ in range(_DESCENTS):
        yield 0, _refined(found, _descended(found.left[alive], generator))
    done, count = 0, _FIRST
    votes = torch.zeros(len(alive), dtype=torch.float64, device=alive.device)
    while done < draws:
        count = min(count, draws - done)
        done += count
        weights = 1 + _TRUST * votes / votes.mean().clamp(min=1e-9)
        chances = torch.rand(count, len(alive), generator=generator).to(alive.device).log() / weights  # -> top: drawn
        order = chances.topk(rank - 1, dim=1).indices
        refined = _refined(found, _orthogonal(found.left[alive[order]]))
        votes += _vanishing(found, refined, _TIGHTER[-1])[alive].double().sum(1)
        yield done, refined
        count = min(2 * count, CHUNK)


def _descended(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Return directions [k, B] that vanish on many of the rows [m, B], each from a random start."""
    rank = rows.shape[1]
    directions: Tensor = torch.randn(_STARTS, rank, generator=generator, dtype=torch.float64).to(rows)
    directions = directions / directions.norm(dim=1, keepdim=True)
    outer = (rows.unsqueeze(2) * rows.unsqueeze(1)).flatten(1)
    usual = float(rows.square().mean().sqrt())  # of an entry of rows @ direction
    for step in range(_STEPS):
        small = usual * max(_NARROWEST, _WIDEST * _NARROWER**step)
        squares = (directions @ rows.T).square() + small**2
        weights = squares.rsqrt() if step < _EVENLY else squares.reciprocal()
        products = (weights / weights.amax(1, keepdim=True)) @ outer
        directions = torch.linalg.eigh(products.view(-1, rank, rank)).eigenvectors[:, :, 0]
    return directions


def _orthogonal(rows: Tensor) -> Tensor:
    """Return unit vectors [k, B] orthogonal to B - 1 rows each, [k, B - 1, B]; draws without one are left out."""
    solved, failed = torch.linalg.solve_ex(rows[:, :, :-1], -rows[:, :, -1:])
    directions = torch.cat([solved.squeeze(-1), rows.new_ones(len(rows), 1)], dim=1)
    directions = directions[(failed == 0) & torch.isfinite(directions).all(1)]
    return torch.div(directions, directions.norm(dim=1, keepdim=True))


def _refined(found: Spectrum, directions: Tensor) -> Tensor:
    """Return those directions that vanish on many more rows than chance, each fitted to all of these rows."""
    zeros = _vanishing(found, directions, _LOOSE)
    odds = 0.8 * _LOOSE * len(zeros)  # of entries of a random direction, which are nearly normal
    kept = directions[zeros.sum(0) > found.rank - 1 + 4 + odds + 4 * odds**0.5][:_MOST]
    for tight in _TIGHTER:
        kept = _distinct(_fitted(found.left, _vanishing(found, _distinct(kept), tight).T))
    return kept


def _vanishing(found: Spectrum, directions: Tensor, share: float) -> Tensor:
    """Tell on which rows directions [k, B] are below a share of their root mean square, or in the noise, [m, k]."""
    scale = len(found.left) ** -0.5
    return (found.left @ directions.T).abs() < found.silence(directions).clamp(min=share * scale, max=0.05 * scale)


def _fitted(rows: Tensor, silent: Tensor) -> Tensor:
    """Return the directions [k, B] that vanish best on the rows each is `silent` [k, m] on."""
    outer = (rows.unsqueeze(2) * rows.unsqueeze(1)).flatten(1)
    products = (silent.to(rows) @ outer).view(len(silent), rows.shape[1], rows.shape[1])
    vectors: Tensor = torch.linalg.eigh(products).eigenvectors
    return vectors[:, :, 0]


def _distinct(directions: Tensor) -> Tensor:
    """Return each of the directions once, the first of those that are alike."""
    alike = (directions @ directions.T).abs() > 1 - _EQUAL
    return directions[~alike.tril(-1).any(1)]


def _ordered(found: Spectrum, directions: Tensor) -> tuple[Tensor, list[int]]:
    """Return distinct directions by falling number of rows they vanish on, and the places of an independent choice.

    The choice is greedy, so it is the sparsest basis there is; it stays in the pool, whose other members are the
    sparsest of the rest.
    """
    directions = _distinct(directions)
    silent = (found.left @ directions.T).abs() < found.silence(directions)
    ordered = directions[silent.sum(0).argsort(descending=True, stable=True)]
    spanned = directions.new_zeros(found.rank, 0)
    chosen: list[int] = []
    for place, direction in enumerate(ordered):
        rest = direction - spanned @ (spanned.T @ direction)
        if float(rest.norm()) > _INDEPENDENT:
            rest = rest - spanned @ (spanned.T @ rest)
            spanned = torch.cat([spanned, (rest / rest.norm()).unsqueeze(1)], dim=1)
            chosen.append(place)
        if len(chosen) == found.rank:
            break
    others = [place for place in range(min(len(ordered), _POOL + found.rank)) if place not in chosen]
    return ordered[chosen + others], list(range(len(chosen)))
