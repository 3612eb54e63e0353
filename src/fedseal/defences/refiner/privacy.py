"""The privacy metric PM(x*, x): how little refined images show of the private ones (Sec. 3.3); larger is better.

Refiner's is the noise ratio of the evaluation network, which does not look at x. MSE and LPIPS are what the paper
argues against, for the ablation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.defences.refiner.evaluator import EvaluationNetwork
from fedseal.defences.refiner.weights import load_evaluator, shipped_evaluator
from fedseal.metrics.lpips import load_lpips, why_no_lpips

PrivacyMetric: TypeAlias = Literal["noise", "mse", "lpips"]

PrivacyJudge: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Maps refined and private images [B, C, H, W] to a value per image [B], differentiable in the first."""


class NoiseJudge:
    """D(x*), the share of noise in an image.

    Args:
        network: the evaluation network.
    """

    def __init__(self, network: EvaluationNetwork) -> None:
        self.network = network

    def __call__(self, refined: Tensor, private: Tensor | None = None) -> Tensor:
        """Return the noise ratio of each refined image, [B]."""
        like = next(self.network.parameters())
        if like.device != refined.device:
            self.network.to(refined.device)
        return self.network(refined.to(like.dtype)).to(refined.dtype)  # type: ignore[no-any-return]


def mse_judge(refined: Tensor, private: Tensor) -> Tensor:
    """Return the mean squared error of each image, [B]."""
    return (refined - private).square().flatten(1).mean(1)


def noise_judge(evaluator: Path | None = None) -> NoiseJudge:
    """Return D by the network in a file, or by the package's own."""
    return NoiseJudge(shipped_evaluator() if evaluator is None else load_evaluator(evaluator))


def lpips_judge() -> PrivacyJudge:
    """Return LPIPS-Alex as a privacy metric."""
    metric = load_lpips()
    if metric is None:
        raise InputError("refiner:privacy=lpips needs the weights of LPIPS.", hint=why_no_lpips())

    def judge(refined: Tensor, private: Tensor) -> Tensor:
        metric.to(refined.device)
        return metric.differentiable(refined, private).to(refined.dtype)

    return judge


def judge_of(metric: PrivacyMetric, noise: PrivacyJudge) -> PrivacyJudge:
    """Return the privacy metric of a name; `noise` is the evaluation network's."""
    if metric == "noise":
        return noise
    return mse_judge if metric == "mse" else lpips_judge()
