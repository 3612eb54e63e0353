"""Kernel ridge regression from updates to images, in closed form.

With unit vectors u(x) made of sketches, K(x, x') = exp(-width (1 - cos(u(x), u(x')))), and coefficients
A = (K + ridge I)^-1 (Y - mean), the answer to an update x is mean + k(x) A. How sketches are scaled, the width and the
ridge are chosen on public images that are held back, never on a target; then everything public is learned from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fedseal.attacks.learned.pairs import Pairs
from fedseal.attacks.learned.sketch import tensor_units, unit
from fedseal.core.errors import TrialError
from fedseal.core.seeds import generator

Scaling: TypeAlias = Literal["whole", "tensors", "entries"]
"""Updates to norm 1 as a whole; tensor by tensor; or that with every entry divided by its deviation over the public
updates, which lets rarely sent entries speak where a defence masks them."""

SCALINGS: tuple[Scaling, ...] = ("whole", "tensors", "entries")
WIDTHS = (0.25, 1.0, 2.0, 4.0)
RIDGES = (1e-3, 1e-2, 1e-1)
_KEPT = ("deviations", "known", "coefficients", "mean")
_MOST_CHOSEN_ON, _PIXELS = 1200, 256
_LEAST_DEVIATION = 1e-3
_ROWS = 1024
_TILE = 16
"""Targets answered at once, always: rows of a product of one shape do not depend on each other."""


@dataclass(frozen=True)
class Choice:
    """How a kernel compares updates, and how much it trusts them."""

    scaling: Scaling
    width: float
    ridge: float

    def __str__(self) -> str:
        return f"scaling {self.scaling}, width {self.width:g}, ridge {self.ridge:g}"


@dataclass(frozen=True)
class KernelDecoder:
    """What was learned.

    Attributes:
        choice: of the kernel.
        lengths: of the tensors' ranges in a sketch.
        deviations: of the entries over public updates, [D]; ones where they are not used.
        known: the public updates' unit vectors, [n, D], in half precision and scaled by sqrt(D).
        coefficients: [n, B C H W + B classes].
        mean: of the images and the labels' shares, [B C H W + B classes].
        held_back_db: PSNR in dB on the images held back.
    """

    choice: Choice
    lengths: tuple[int, ...]
    deviations: Tensor
    known: Tensor
    coefficients: Tensor
    mean: Tensor
    held_back_db: float
    ordered: bool = True

    def describe(self) -> str:
        """Return how it was learned."""
        return str(self.choice)

    def predict(self, sketches: Tensor) -> Tensor:
        """Return images and shares of labels [K, B C H W + B classes] in [0, 1] for sketches [K, D].

        Each is answered as if it were alone.
        """
        missing = -len(sketches) % _TILE
        padded = torch.cat([sketches, sketches.new_zeros(missing, sketches.shape[1])])
        tiles = [
            scaled(part, self.choice.scaling, self.lengths, self.deviations) for part in torch.split(padded, _TILE)
        ]
        root, found = math.sqrt(self.known.shape[1]), []
        for rows in torch.split(self.known, _ROWS):
            block = (rows.float() / root).T
            found.append([tile @ block for tile in tiles])
        weights = [torch.exp(self.choice.width * (torch.cat(parts, 1) - 1)) for parts in zip(*found, strict=True)]
        answers = torch.cat([self.mean + each @ self.coefficients for each in weights])
        return answers[: len(sketches)].clamp(0, 1)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and plain values that `restore` takes."""
        tensors = {key: getattr(self, key) for key in _KEPT}
        choice = self.choice
        plain = {"scaling": choice.scaling, "width": choice.width, "ridge": choice.ridge}
        return tensors, {**plain, "lengths": list(self.lengths), "held_back_db": self.held_back_db}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> KernelDecoder:
        """Return what `state` described."""
        choice = Choice(plain["scaling"], plain["width"], plain["ridge"])
        deviations, known, coefficients, mean = (tensors[key] for key in _KEPT)
        lengths, quality = tuple(plain["lengths"]), float(plain["held_back_db"])
        return cls(choice, lengths, deviations, known, coefficients, mean, quality)


def scaled(sketches: Tensor, scaling: Scaling, lengths: tuple[int, ...], deviations: Tensor) -> Tensor:
    """Return unit vectors [n, D] of sketches."""
    if scaling == "whole":
        return unit(sketches)
    units = tensor_units(sketches, lengths)
    return unit(units if scaling == "tensors" else units / deviations)


def deviations_of(sketches: Tensor, scaling: Scaling, lengths: tuple[int, ...]) -> Tensor:
    """Return each entry's deviation [D] over sketches, no smaller than a share of the largest; ones if not used."""
    if scaling != "entries":
        return torch.ones_like(sketches[0])
    found = tensor_units(sketches, lengths).std(0)
    return found.clamp(min=max(_LEAST_DEVIATION * float(found.max()), torch.finfo(found.dtype).tiny))


def shares_of(labels: Tensor, classes: int) -> Tensor:
    """Return labels [n, B] as 0 and 1, [n, B classes]."""
    return torch.nn.functional.one_hot(labels, classes).flatten(1).float()


def fit_kernel(learn: Pairs, held: Pairs, lengths: tuple[int, ...], classes: int) -> KernelDecoder:
    """Choose the kernel on `held`, learning from `learn`; then learn from both."""
    choice, quality = choose(learn.first(_MOST_CHOSEN_ON), held, lengths)
    everything = learn.joined(held)
    sketches = everything.sketches
    deviations = deviations_of(sketches, choice.scaling, lengths)
    root = math.sqrt(sketches.shape[1])
    known = torch.cat(
        [(scaled(part, choice.scaling, lengths, deviations) * root).half() for part in torch.split(sketches, _ROWS)]
    )
    answers = torch.cat([everything.images, shares_of(everything.labels, classes)], 1)
    del everything, sketches
    mean = answers.mean(0)
    coefficients = solve(gram(known), choice.width, choice.ridge, answers - mean)
    return KernelDecoder(choice, lengths, deviations, known, coefficients, mean, quality)


def choose(learn: Pairs, held: Pairs, lengths: tuple[int, ...]) -> tuple[Choice, float]:
    """Return the kernel whose answers to `held` have the highest mean PSNR, and that in dB; by some of the pixels."""
    some = torch.randperm(learn.images.shape[1], generator=generator(0, "pixels"))[:_PIXELS].to(learn.images.device)
    wanted, truth = learn.images[:, some], held.images[:, some]
    mean = wanted.mean(0)
    best, highest = Choice("whole", 4.0, 1e-2), -math.inf
    for scaling in SCALINGS:
        deviations = deviations_of(learn.sketches, scaling, lengths)
        known = scaled(learn.sketches, scaling, lengths, deviations)
        among, across = known @ known.T, scaled(held.sketches, scaling, lengths, deviations) @ known.T
        for width, ridge in product(WIDTHS, RIDGES):
            coefficients = solve(among, width, ridge, wanted - mean)
            answers = (mean + torch.exp(width * (across - 1)) @ coefficients).clamp(0, 1)
            quality = float(-10 * (answers - truth).square().mean(1).clamp(min=1e-12).log10().mean())
            if quality > highest:
                best, highest = Choice(scaling, width, ridge), quality
    return best, highest


def gram(known: Tensor) -> Tensor:
    """Return all cosines [n, n] of unit vectors [n, D] as they are kept, block by block."""
    count, length = known.shape
    cosines = torch.empty(count, count, device=known.device)
    for start in range(0, count, _ROWS):
        rows = known[start : start + _ROWS].float() / length
        for other in range(0, start + 1, _ROWS):
            block = rows @ known[other : other + _ROWS].float().T
            cosines[start : start + _ROWS, other : other + _ROWS] = block
            cosines[other : other + _ROWS, start : start + _ROWS] = block.T
    return cosines


def solve(cosines: Tensor, width: float, ridge: float, targets: Tensor) -> Tensor:
    """Return (K + ridge I)^-1 targets for the kernel of these cosines; a ridge too small for rounding is raised."""
    for _ in range(4):
        kernel = torch.exp(width * (cosines - 1))
        kernel.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(kernel)
        if not int(failed):
            return torch.cholesky_solve(targets, factor)
        ridge *= 10
    raise TrialError("the kernel of the public updates is not positive definite.", hint="Are they finite?")
