"""The registry of metrics a scenario can ask for beside those every audit keeps.

A metric is a function of originals and reconstructions, both [B, C, H, W] in [0, 1], entry i of the one paired with
entry i of the other, that returns one number per image, [B]; what it takes beside these two are its options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.plugins import blamed_on
from fedseal.core.registry import FunctionRegistry

Metric: TypeAlias = Callable[[Tensor, Tensor], Tensor]

METRICS: FunctionRegistry[Metric] = FunctionRegistry(
    "metric", "fedseal.metrics", supplied=2, group="fedseal.metrics", more=("fedseal.defences.refiner.metric",)
)

register_metric = METRICS.register
"""Register a metric under a name: see `Registry.register`."""


def measure(spec: str, originals: Tensor, reconstructions: Tensor) -> tuple[float, ...]:
    """Return what a metric says of each pair of images; what is not one finite number per image is refused."""
    with blamed_on(f"the metric {spec} failed"):
        values = METRICS.build(spec)(originals, reconstructions)
    if not isinstance(values, Tensor) or values.shape != (len(originals),):
        got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(
            f"the metric {spec} answers {len(originals)} images with {got}.", hint="It must be a tensor [B]."
        )
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"the metric {spec} is not finite for every image.", hint="Cap what can be infinite.")
    return tuple(float(value) for value in values)
