"""The last layer in closed form: from its gradient to the features that entered it and the slope of the loss.

With k = dL/dlogits the layer's gradients are dW = k h^T and db = k. With a bias, k is read and h follows. Without one,
dW gives h and k up to one scale s, which the loss itself fixes: k must be softmax(W h) - onehot(y) (several classes),
or -y' / (1 + e^mu) with mu = y' W h (one logit, R-GAP Eq. 4-6).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from fedseal.core.errors import InputError
from fedseal.models.chains.stages import Link

_TURN = 1.2784645427610738
"""The margin at which mu / (1 + e^mu) is largest; beyond it the logistic equation has a second root."""

_LOG_SCALES = torch.linspace(-12, 12, 193, dtype=torch.float64)
_AS_GOOD, _ROUNDING = 4.0, 1e-14


@dataclass(frozen=True)
class HeadSolution:
    """What the last layer gives away: its input features [F] and k = dL/dlogits [classes]."""

    features: Tensor
    slope: Tensor


def solve_head(stage: Link, weight_gradient: Tensor, bias_gradient: Tensor | None) -> list[HeadSolution]:
    """Return the solutions that agree with the last layer's gradient, most often one."""
    if not bool(weight_gradient.any()):
        raise InputError("the last layer's gradient is zero.", hint="R-GAP has nothing to start from.")
    if bias_gradient is not None and bool(bias_gradient.any()):
        return [HeadSolution(bias_gradient @ weight_gradient / bias_gradient.square().sum(), bias_gradient)]
    if len(weight_gradient) == 1:
        return _logistic(stage, weight_gradient[0])
    return _softmax(stage, weight_gradient)


def logistic_margins(product: float) -> list[float]:
    """Return the margins mu with -mu / (1 + e^mu) = product: one for a misclassified sample, two for a right one."""

    def excess(margin: float) -> float:
        return float(-margin / (1 + np.exp(min(margin, 700.0)))) - product

    if product >= 0:
        return [float(brentq(excess, -2 * product - 2, 0.0, xtol=1e-15))]
    if excess(_TURN) > 0:
        return [_TURN]
    return [float(brentq(excess, 0.0, _TURN, xtol=1e-15)), float(brentq(excess, _TURN, 700.0, xtol=1e-13))]


def _logistic(stage: Link, gradient: Tensor) -> list[HeadSolution]:
    """Solve one logit: <dW, W> = mu dL/dmu, for both signs of the label and every root."""
    solutions = []
    for margin in logistic_margins(float(gradient @ stage.weight[0])):
        for label in (1.0, -1.0):
            slope = gradient.new_tensor([-label / (1 + np.exp(margin))])
            solutions.append(HeadSolution(gradient / slope, slope))
    return solutions


def _softmax(stage: Link, gradient: Tensor) -> list[HeadSolution]:
    """Find the scales s at which dW = (u / s)(s v)^T is consistent with softmax cross-entropy."""
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    found = []
    for sign in (1.0, -1.0):
        slope, features = sign * values[0] * left[:, 0], sign * right[0]
        misfit = partial(_scale_misfit, slope, stage.weight @ features, stage.bias)
        for low, high in _valleys(misfit(_LOG_SCALES)):
            best = minimize_scalar(
                lambda value, misfit=misfit: float(misfit(gradient.new_tensor([value]))),
                bounds=(low, high),
                method="bounded",
                options={"xatol": 1e-14},
            )
            scale = float(np.exp(best.x))
            found.append((float(best.fun), HeadSolution(scale * features, slope / scale)))
    least = min(value for value, _ in found)
    return [solution for value, solution in found if value <= _AS_GOOD * least + _ROUNDING]


def _scale_misfit(slope: Tensor, along: Tensor, bias: Tensor | None, log_scales: Tensor) -> Tensor:
    """Return how far slope / s is from softmax(s along + bias) - onehot(label), relative to slope / s, for each scale.

    Relative, because both tend to zero as s grows where the label is the class with the largest logit.
    """
    scales = log_scales.to(slope).exp()[:, None]
    logits = scales * along if bias is None else scales * along + bias
    target = F.one_hot(slope.argmin(), len(slope)).to(slope)
    return ((logits.softmax(1) - target) * scales - slope).square().sum(1) / slope.square().sum()


def _valleys(heights: Tensor) -> list[tuple[float, float]]:
    """Return the neighbours on the grid of every local minimum, its ends included."""
    padded = F.pad(heights, (1, 1), value=float("inf"))
    lowest = ((heights <= padded[:-2]) & (heights < padded[2:])).nonzero().flatten().tolist()
    last = len(heights) - 1
    return [(float(_LOG_SCALES[max(i - 1, 0)]), float(_LOG_SCALES[min(i + 1, last)])) for i in lowest]
