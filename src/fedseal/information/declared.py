"""Whether an upload is what its defence declares it to be.

The ideal reading takes a defence at its word: what passes, and under how much noise. A defence that declares noise and
adds none, adds the same every time, or sends more than it says would be read as safe. The auditor knows the truth, so
what is left of an upload when all that passes is taken away must be as large as the declared noise in every tensor,
another each time the same images are sent, and look like noise (`noise`); where no noise is declared, nothing may be
left. Numbers that only look random can still hide anything: this refutes a declaration, it does not prove one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

import torch
from scipy.stats import chi2
from torch import Tensor

from fedseal.core.tensors import flatten
from fedseal.information.linear import rounding_deviation
from fedseal.information.noise import what_is_wrong
from fedseal.information.upload import Upload, UploadMap

_Left: TypeAlias = tuple[Tensor, Tensor, float]
"""What is left of a tensor, the declared variance of each entry, and the square of what does not count."""

_UNLIKELY = 1e-9
_ALIKE = 6.0
"""Standard deviations of a mean product beyond which two draws are not independent."""
_RELATIVE = 1e-3
"""Of a tensor's size, what its computation in another precision may leave."""


def disagreement(upload: Upload, again: Sequence[Upload] = (), others: Iterable[Upload] = ()) -> str:
    """Return how uploads differ from what their defence declares, in a sentence; empty if they do not.

    Args:
        upload: as the server saw it, with the truth behind it.
        again: of the same images, sent again with fresh randomness; none if that cannot be had.
        others: of other images under the same defence, which may treat them differently.
    """
    if upload.channel.draws is not None or not upload.channel.fed:
        return "what was sent depends on more than is declared, so that nobody can tell whether there is noise in it"
    first, repeats = _left(upload), [_left(other) for other in again]
    sent = [upload, *again]
    every = [first, *repeats]
    for other in others:
        sent.append(other)
        every.append(_left(other))
    for one in every:
        for name, left in one.items():
            if wrong := _wrong(left):
                return f"{name} {wrong}"
    for name, left in first.items():
        if repeats and _repeats(left, [other[name] for other in repeats]):
            return f"the noise in {name} is not new when the same images are sent again, so it can be taken away"
        noisy = torch.stack([one[name][1] > one[name][2] for one in every]).all(0)
        units = torch.stack([one[name][0][noisy] / one[name][1][noisy].sqrt() for one in every])
        seen = torch.stack([other.observed[name].detach().flatten()[noisy] for other in sent])
        if wrong := what_is_wrong(units, seen):
            return f"{name} {wrong}"
    return ""


def _wrong(found: _Left) -> str:
    """Return what is wrong with a tensor by itself; empty if nothing is."""
    left, variance, slack = found
    noisy = variance > slack
    if bool((~noisy).any()) and float(left[~noisy].square().mean()) > slack:
        return "holds something that the defence does not declare"
    if not bool(noisy.any()):
        return ""
    power, count = float((left[noisy].square() / variance[noisy]).mean()), int(noisy.sum())
    too_little = power < 0.8 * float(chi2.ppf(_UNLIKELY, count)) / count
    return f"holds {math.sqrt(power):.1%} of the noise that the defence declares" if too_little else ""


def _repeats(found: _Left, again: Sequence[_Left]) -> bool:
    """Return whether what is left of uploads is alike in the entries that should be noise."""
    noisy = torch.stack([one[1] > one[2] for one in (found, *again)]).all(0)
    count = int(noisy.sum())
    if count == 0:
        return False
    unit, *others = (one[0][noisy] / one[1][noisy].sqrt() for one in (found, *again))
    alike = fmean(float((unit * other).mean()) for other in others)
    size = math.sqrt(float(unit.square().mean()) * fmean(float(other.square().mean()) for other in others))
    return abs(alike) > size * (_ALIKE / math.sqrt(count * len(others)) + 0.02)


def _left(upload: Upload) -> Mapping[str, _Left]:
    """Return what is left of every tensor."""
    truth = UploadMap(upload, torch.float64)
    with torch.no_grad():
        passed, before, variance = truth(truth.point), truth.plain(truth.point), truth.variance()
    dtype = next(iter(upload.observed.values())).dtype
    rounding = rounding_deviation(flatten(passed), flatten(before), dtype) ** 2
    found = {}
    for name, value in passed.items():
        seen = upload.observed[name].detach().to(value)
        scale = float(torch.maximum(value.square().mean(), before[name].square().mean()))
        slack = max(16 * rounding, _RELATIVE**2 * scale)
        found[name] = ((seen - value).flatten(), variance[name].to(value).flatten(), slack)
    return found
