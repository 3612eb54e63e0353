"""Grids that quantisers leave behind: found, so that a tensor on one is sent as small integers.

A grid is `scale * k / s` with s = 2^(b-1) - 1 and the largest magnitude as its scale. It is used only
if it gives every bit back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

MANTISSA = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 32}
"""Most bits of a grid per dtype: beyond the mantissa, quantising is the identity (float64: as many as pay)."""
SAMPLE = 64
"""Values of a tensor that are looked at before all are."""
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(values: Tensor) -> Tensor:
    """Return the bit patterns of floats [...] as integers of the same shape, in the same memory."""
    return values.view(_INTEGERS[values.element_size()])


@dataclass(frozen=True)
class Grid:
    """A quantiser's grid.

    Attributes:
        scale: zero-dimensional tensor; the largest magnitude.
        width: bits per value, sign included.
        formula: which order of operations gives the very bits.
    """

    scale: Tensor
    width: int
    formula: int

    def magnitudes(self, levels: Tensor) -> Tensor:
        """Return the magnitudes of integer levels [n], in the dtype of the scale."""
        levels = levels.to(self.scale.dtype)
        return levels * self.scale if self.width == 1 else _FORMULAS[self.formula](levels, self.scale, self.steps)

    @property
    def steps(self) -> int:
        """The level of the largest magnitude, s; 1 where only signs are written."""
        return max(1, (1 << self.width - 1) - 1)

    def levels(self, values: Tensor) -> Tensor:
        """Return the nearest levels of values [n]."""
        return (values.abs().double() / self.scale.double() * self.steps).round()

    def holds(self, values: Tensor) -> bool:
        """Tell whether values [n] come back bit for bit."""
        back = torch.copysign(self.magnitudes(self.levels(values)), values)
        return torch.equal(bits_of(back), bits_of(values))


_FORMULAS: tuple[Callable[[Tensor, Tensor, int | Tensor], Tensor], ...] = (
    lambda levels, scale, steps: (levels.double() * (scale.double() / steps)).to(scale.dtype),
    lambda levels, scale, steps: levels / steps * scale,
    lambda levels, scale, steps: levels * scale / steps,
    lambda levels, scale, steps: levels * (scale / steps),
)
"""The same number in exact arithmetic; floating point rounds them differently, and quantisers choose freely."""


def find_grids(tensors: Sequence[Tensor], samples: Sequence[Tensor]) -> list[Grid | None]:
    """Return for each of several tensors [n] the coarsest grid that gives back all but its zeros bit for bit, or None.

    The samples decide for nearly every tensor that there is none, those of all tensors in one pass; only a tensor
    whose sample fits is tried as a whole.

    Args:
        tensors: flat, finite or not.
        samples: at most `SAMPLE` values of each, none of them zero.
    """
    found: list[Grid | None] = [None] * len(tensors)
    for dtype, places in _by_dtype(tensors, samples).items():
        scales = torch.stack([_largest(tensors[place]) for place in places])
        sound = [p for p, scale in zip(places, scales.tolist(), strict=True) if 0 < scale < torch.inf]
        if not sound:
            continue
        scales = scales[[places.index(place) for place in sound]]
        padded = torch.stack([_padded(samples[place]) for place in sound])
        for place, scale, fitting in zip(sound, scales, _fitting(padded, scales, dtype), strict=True):
            grids = (Grid(scale, width, formula) for width, formula in fitting)
            found[place] = next((grid for grid in grids if _holds_all(grid, tensors[place])), None)
    return found


def _by_dtype(tensors: Sequence[Tensor], samples: Sequence[Tensor]) -> dict[torch.dtype, list[int]]:
    """Return the places of the tensors that may lie on a grid: a single value saves nothing."""
    places: dict[torch.dtype, list[int]] = defaultdict(list)
    for place, (tensor, sample) in enumerate(zip(tensors, samples, strict=True)):
        if tensor.numel() > 1 and sample.numel():
            places[tensor.dtype].append(place)
    return places


def _largest(values: Tensor) -> Tensor:
    low, high = values.aminmax()
    return torch.maximum(-low, high)


def _padded(sample: Tensor) -> Tensor:
    """Return `SAMPLE` values, those of a sample [n] repeated."""
    return sample if sample.numel() == SAMPLE else sample.repeat(-(-SAMPLE // sample.numel()))[:SAMPLE]


def _fitting(samples: Tensor, scales: Tensor, dtype: torch.dtype) -> list[list[tuple[int, int]]]:
    """Return for each of samples [T, n] the widths and formulas that give it back bit for bit, coarsest first.

    Wide grids are so fine that every value lies near a level; few then come back exactly, and each must be tried.
    """
    magnitudes, scale, steps = samples.abs()[:, None], scales[:, None, None], _all_steps(dtype)[:, None]
    scaled = magnitudes.double() / scale.double() * steps
    levels = scaled.round()
    misfit = (scaled - levels).abs_().amax(2)
    misfit[:, 0] = (scaled[:, 0] - 1).abs().amax(1)  # one bit holds a sign and no zero
    near = misfit <= 4 * torch.finfo(dtype).eps * steps[:, 0]
    levels, wanted, rounded = levels.to(dtype), bits_of(magnitudes), steps.to(dtype)
    exact = torch.stack(
        [
            (bits_of(formula(levels, scale, steps if index == 0 else rounded)) == wanted).all(2)
            for index, formula in enumerate(_FORMULAS)  # the first computes in double precision throughout
        ],
        dim=2,
    )
    exact[:, :2, 0], exact[:, :2, 1:] = True, False  # one formula, and no level between zero and the largest
    fits = exact & near[:, :, None]
    pairs: list[list[tuple[int, int]]] = [[] for _ in samples]
    for place, width, formula in fits.nonzero().tolist():
        pairs[place].append((width + 1, formula))
    return pairs


@cache
def _all_steps(dtype: torch.dtype) -> Tensor:
    """Return the level of the largest magnitude for every width of a dtype from 1 upwards, float64."""
    one = torch.ones(())
    return torch.tensor([Grid(one, width, 0).steps for width in range(1, MANTISSA[dtype] + 1)], dtype=torch.float64)


def _holds_all(grid: Grid, values: Tensor) -> bool:
    if grid.width == 1:
        return bool(((values.abs() == grid.scale) | (bits_of(values) == 0)).all())
    return all(grid.holds(part) for part in torch.split(values, 1 << 20))  # in parts: a misfit is found early
