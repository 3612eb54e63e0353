"""Drawn images without noise, to teach the evaluation network that fine structure is not noise.

Photographs of one data set are all rough in the same way. Flat colours, gradients, stripes, blocks, spectra and strokes
cover what they lack: screens, scans, tissue, digits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def structured_images(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Return images [count, 3, size, size] in [0, 1], of all kinds in turn."""
    drawn = [_KINDS[index % len(_KINDS)](size, generator) for index in range(count)]
    return torch.stack([image.clamp(0, 1) for image in drawn])


def _uniform(generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def _colour(generator: torch.Generator) -> Tensor:
    """Return one colour [3, 1, 1], grey half of the time."""
    channels = 1 if _uniform(generator) < 0.5 else 3
    return torch.rand(channels, 1, 1, generator=generator).expand(3, 1, 1)


def _blend(share: Tensor, generator: torch.Generator) -> Tensor:
    """Mix two colours by a map [size, size] of shares."""
    return share * _colour(generator) + (1 - share) * _colour(generator)


def _wave(size: int, generator: torch.Generator) -> Tensor:
    """Return a wave [size, size] in [-1, 1] of random direction and a period of 2 to 24 pixels."""
    angle, period = _uniform(generator, 0, math.pi), 2 ** _uniform(generator, 1, 4.6)
    place = torch.arange(size, dtype=torch.float32)
    along = place[None] * math.cos(angle) + place[:, None] * math.sin(angle)
    return torch.sin(2 * math.pi * along / period + _uniform(generator, 0, 2 * math.pi))


def _gradient(size: int, generator: torch.Generator) -> Tensor:
    ends = torch.rand(1, 1, 2, 2, generator=generator)
    return _blend(F.interpolate(ends, size=(size, size), mode="bilinear", align_corners=True)[0, 0], generator)


def _stripes(size: int, generator: torch.Generator) -> Tensor:
    wave = _wave(size, generator)
    share = (wave > 0).float() if _uniform(generator) < 0.5 else (wave + 1) / 2
    return _blend(share, generator)


def _checks(size: int, generator: torch.Generator) -> Tensor:
    return _blend((_wave(size, generator) * _wave(size, generator) > 0).float(), generator)


def _blocks(size: int, generator: torch.Generator) -> Tensor:
    cells = max(2, size // int(_uniform(generator, 2, 9)))
    small = torch.rand(1, 1 if _uniform(generator) < 0.5 else 3, cells, cells, generator=generator)
    return F.interpolate(small, size=(size, size), mode="nearest")[0].expand(3, size, size)


def _spectrum(size: int, generator: torch.Generator) -> Tensor:
    """Return a texture whose amplitudes fall with a power of 0.8 to 2.5 of the frequency, its channels related."""
    waves = torch.fft.rfft2(torch.randn(4, size, size, generator=generator))
    down, across = torch.fft.fftfreq(size)[:, None], torch.fft.rfftfreq(size)[None]
    distance = (down.square() + across.square()).sqrt().clamp(min=1 / size)
    shaped: Tensor = torch.fft.irfft2(waves * distance ** -_uniform(generator, 0.8, 2.5), s=(size, size))
    shaped = shaped / shaped.std((1, 2), keepdim=True).clamp(min=1e-6)
    common = _uniform(generator)
    mixed = common * shaped[:1] + (1 - common) * shaped[1:]
    texture: Tensor = _colour(generator) + _uniform(generator, 0.05, 0.35) * mixed
    return texture


def _strokes(size: int, generator: torch.Generator) -> Tensor:
    """Return a few thick lines on a plain ground, smoothed or not."""
    place = torch.arange(size, dtype=torch.float32)
    share = torch.zeros(size, size)
    for _ in range(1 + int(_uniform(generator, 0, 5))):
        ends = torch.rand(2, 2, generator=generator) * size
        along = ends[1] - ends[0]
        offset = torch.stack(torch.meshgrid(place - ends[0, 0], place - ends[0, 1], indexing="ij"), -1)
        reached = ((offset @ along) / along.square().sum().clamp(min=1e-6)).clamp(0, 1)
        distance = (offset - reached[..., None] * along).norm(dim=-1)
        share = torch.maximum(share, (_uniform(generator, 1, 3) + 0.5 - distance).clamp(0, 1))
    return share.expand(3, size, size) if _uniform(generator) < 0.5 else _blend(share, generator)


_KINDS = (_gradient, _spectrum, _stripes, _spectrum, _strokes, _blocks, _strokes, _spectrum, _checks, _spectrum)
