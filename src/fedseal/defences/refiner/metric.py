"""The noise ratio as a metric by name: how much of a reconstruction is noise, to Refiner's evaluation network."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from fedseal.core.registry import Info
from fedseal.defences.refiner.privacy import NoiseJudge, noise_judge
from fedseal.metrics.registry import METRICS

_judge = lru_cache(maxsize=2)(noise_judge)


@METRICS.register(
    "noise-ratio",
    Info("share of noise in a reconstruction, by Refiner's network", paper="Fan et al., USENIX Sec. 2025"),
)
@torch.no_grad()
def noise_ratio(originals: Tensor, reconstructions: Tensor, evaluator: Path | None = None) -> Tensor:
    """Return D of each reconstruction [B, C, H, W], as [B]; the originals are not looked at.

    Args:
        originals: in [0, 1].
        reconstructions: in [0, 1].
        evaluator: file of another evaluation network than the package's.
    """
    judge: NoiseJudge = _judge(evaluator)
    return judge(reconstructions.float())
