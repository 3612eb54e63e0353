"""Whether what looks like noise is: new each time, in every entry, independent of its neighbours, and on no lattice.

All here take residuals in units of the declared deviation, [U, N] for U uploads and N entries of one tensor, and assume
nothing of the noise's law but a density below 0.8 at zero (Laplace's is 0.71) and a smooth one. Limits lie
seven standard deviations out, so that honest noise does not meet them by chance; the soundness tests ask several seeds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_DENSITY = 0.8
"""Of noise at zero, at most, per deviation."""
_SPREAD = 7.0
"""Standard deviations that honest noise does not reach."""
_SLACK = 0.02
_NEAR = 0.01
_QUIET = 0.05
_FEW = 32
"""Entries or residuals below which nothing can be told."""
_BINS, _REACH, _COARSE = 160_000, 8.0, 10.0
"""Of the histogram in which lattices show; its half width in deviations; the frequency above which it is looked at."""


def what_is_wrong(units: Tensor, observed: Tensor) -> str:
    """Return why residuals [U, N] are no noise, as the end of a sentence on a tensor; empty if they may be.

    Args:
        units: residuals, each divided by its declared deviation.
        observed: what was sent, [U, N].
    """
    if units.numel() < _FEW:
        return ""
    if is_missing(units):
        return "holds entries without the noise that the defence declares"
    if is_shared(units):
        return "holds the same noise in several uploads, so it can be taken away"
    if is_patterned(units):
        return "holds noise that one entry tells of another, so it can be taken away"
    if is_stepped(units) and not _was_rounded(observed):
        return "holds noise in steps, so that what lies between them is clear"
    return ""


def is_missing(units: Tensor) -> bool:
    """Return whether entries hold next to nothing: more than chance in all, or the same in every upload."""
    uploads, entries = units.shape
    size = units.abs()
    share = 2 * _NEAR * _DENSITY
    near = float((size < _NEAR).double().mean())
    if near > share + _SPREAD * math.sqrt(share / units.numel()) + _SLACK / 4:
        return True
    always = (2 * _QUIET * _DENSITY) ** uploads * entries
    return uploads > 2 and int((size < _QUIET).all(0).sum()) > always + _SPREAD * math.sqrt(always) + 2


def is_shared(units: Tensor) -> bool:
    """Return whether any two uploads have the same noise."""
    scaled = units / units.norm(dim=1, keepdim=True).clamp(min=1e-30)
    alike = (scaled @ scaled.T).fill_diagonal_(0).abs()
    return float(alike.max()) > _SPREAD / math.sqrt(units.shape[1]) + _SLACK


def is_patterned(units: Tensor) -> bool:
    """Return whether entries at some distance from each other are alike, over all uploads."""
    if units.shape[1] < _FEW:
        return False
    power = torch.fft.rfft(units, dim=1).abs().square().sum(0)
    alike = torch.fft.irfft(power, n=units.shape[1])
    strongest = float(alike[1:].abs().max() / alike[0].clamp(min=1e-30))
    return strongest > _SPREAD / math.sqrt(units.numel()) + _SLACK


def is_stepped(units: Tensor) -> bool:
    """Return whether values keep to a lattice: a smooth law's characteristic function vanishes, theirs not."""
    counts = torch.histc(units.float(), bins=_BINS, min=-_REACH, max=_REACH).double()
    number = float(counts.sum())
    if number < 10 * _FEW:
        return False
    lowest = int(_COARSE * 2 * _REACH)
    strongest = float(torch.fft.rfft(counts).abs()[lowest:].max()) / number
    return strongest > 0.05 + math.sqrt(32 / number)


def _was_rounded(observed: Tensor) -> bool:
    """Return whether uploads were rounded after the noise came in: then nothing lies between the steps."""
    if observed.dtype in (torch.float16, torch.bfloat16):
        return True
    return len(torch.unique(observed)) < observed.numel() / 2
