"""How much of what an attack went for it got, over many attacked batches (LIDS, Sec. IV).

REC is the share of batches whose image came out above 19 dB; PSNR-All the mean over all batches; PSNR-Top the mean of
the best 1/e of them. RLA is the share of reconstructions that a judge, a classifier trained on data of neither the
clients nor the attacker, gives the label of the image they were meant to show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.metrics.intervals import Interval, mean_interval
from fedseal.metrics.shares import share_interval

RECOVERED_DB = 19.0
"""PSNR above which an image counts as recovered; the authors' code says at least, their text more than."""

TOP_SHARE = 1 / math.e
"""Share of batches that PSNR-Top averages."""

ClassJudge: TypeAlias = Callable[[Tensor], Tensor]
"""Maps images [N, C, H, W] in [0, 1] to scores of classes [N, classes]; any classifier can be one."""


@dataclass(frozen=True)
class Recovery:
    """What an attack recovered of its targets, one per batch.

    Attributes:
        rec: share of batches above `RECOVERED_DB`, with its interval.
        psnr_all: mean PSNR in dB, with its interval.
        psnr_top: mean PSNR of the best 1/e of the batches.
        least, most: PSNR of the worst and best batch.
        n: batches.
    """

    rec: Interval
    psnr_all: Interval
    psnr_top: float
    least: float
    most: float
    n: int


def recovery(psnr: Sequence[float], *, threshold: float = RECOVERED_DB, seed: int = 0) -> Recovery:
    """Return the summary of one PSNR in dB per attacked batch.

    Args:
        psnr: of the image the attack went for in each batch.
        threshold: above which it counts as recovered.
        seed: of the intervals' resampling.
    """
    values = sorted((float(value) for value in psnr), reverse=True)
    overall = mean_interval(values, seed=seed)
    top = values[: top_count(len(values))]
    return Recovery(
        share_interval(sum(value > threshold for value in values), len(values)),
        overall,
        sum(top) / len(top),
        values[-1],
        values[0],
        len(values),
    )


def top_count(batches: int) -> int:
    """Return how many batches PSNR-Top averages: 1/e of them, at least one."""
    return max(1, round(batches * TOP_SHARE))


@torch.no_grad()
def label_recognition(judge: ClassJudge, images: Tensor, labels: Tensor) -> list[float]:
    """Return 1 for each image [N, C, H, W] to which the judge gives its label [N], else 0; their mean is RLA."""
    if len(images) != len(labels):
        raise InputError(f"{len(images)} images cannot be judged against {len(labels)} labels.")
    scores = torch.cat([judge(part) for part in torch.split(images, 256)])
    if scores.ndim != 2 or scores.shape[0] != len(images):
        raise InputError(
            f"a judge answers images with scores [N, classes], this one with {list(scores.shape)}.",
            hint="Wrap your classifier so that it takes images in [0, 1].",
        )
    return (scores.argmax(1) == labels.to(scores.device)).float().tolist()
