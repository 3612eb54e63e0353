"""The ideal reading of one upload: what a perfect search near the truth would find of the images behind it.

Local and linear: the posterior of images under a Gaussian prior, given the upload linearised at the true batch. It is
no bound: an attacker with a better prior may pass it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from torch import Tensor

Method: TypeAlias = Literal["exact", "matrix-free"]
"""Whether the Jacobian was formed, or only products with it."""


@dataclass(frozen=True)
class IdealReading:
    """What an upload holds of its private images, in dB of PSNR; or why nobody can say.

    Attributes:
        psnr_db: -10 log10 of the expected squared error per pixel of the private images; None if it cannot be computed.
        prior_db: the same of an attacker without the update, who answers with the public mean image; None without
            public data.
        reason: why there is no `psnr_db`, in a sentence; empty if there is one.
        method: how it was computed; None if it was not.
        error_db: estimated error of `psnr_db` by random probes and unfinished solves; 0 if exact.
        dimensions: pixels of all images behind the upload.
        effective: how many of these the upload determines, trace(I - C S^-1); None if unknown.
        fed_db: the reading of what the model was fed, where a defence changes the data; `psnr_db` adds the distance
            from there to the private images. None if the model was fed these.
        per_layer: the reading of each layer's share of the upload alone, by the layer's name, in the model's order.
        pixel_map: expected squared error of each pixel of what was fed, [B, C, H, W]; None if it was not computed.
        refuted: whether what was sent is not what the defence declares; then there is no `psnr_db`.
        seconds: time spent.
        remarks: what a reader must know to judge the figure.
    """

    psnr_db: float | None
    prior_db: float | None = None
    reason: str = ""
    method: Method | None = None
    error_db: float = 0.0
    dimensions: int = 0
    effective: float | None = None
    fed_db: float | None = None
    per_layer: Mapping[str, float] = field(default_factory=dict)
    pixel_map: Tensor | None = None
    refuted: bool = False
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()

    @property
    def gain_db(self) -> float | None:
        """What the upload adds to the prior; None where either is unknown."""
        return None if self.psnr_db is None or self.prior_db is None else self.psnr_db - self.prior_db


def decibels(error: float) -> float:
    """Return -10 log10 of a mean squared error of pixels in [0, 1]; infinite for none."""
    return math.inf if error <= 0 else -10 * math.log10(error)


def squared_error(decibel: float) -> float:
    """Return the mean squared error behind a PSNR; the inverse of `decibels`."""
    return float(10 ** (-decibel / 10))


def unknown(reason: str, *, prior_db: float | None = None) -> IdealReading:
    """Return the reading of an upload that cannot be read, and why."""
    return IdealReading(None, prior_db, reason)
