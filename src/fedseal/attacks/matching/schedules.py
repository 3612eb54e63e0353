"""Learning rates over a run, and when a lane may stop."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

Schedule: TypeAlias = Literal["constant", "steps", "cosine", "exponential", "ramps", "tenth"]


def learning_rate_at(schedule: Schedule, step: int, total: int, warmup: int = 0) -> float:
    """Return the factor on the learning rate at `step` of `total`.

    `steps` multiplies by 0.1 at 3/8, 5/8 and 7/8 of the run (Inverting Gradients); `cosine` falls to zero after a
    linear warm-up (GradInversion: 50 steps); `exponential` multiplies by 0.94 a hundred times (the Bayes attack);
    `ramps` rises over the first twentieth and falls along a cosine over the last quarter (GGL); `tenth` falls along a
    cosine to a tenth (ROG).
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "steps":
        return 0.1 ** sum(step >= math.floor(total * eighths / 8) for eighths in (3, 5, 7))
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
    if schedule == "tenth":
        return 0.55 + 0.45 * math.cos(math.pi * step / max(1, total))
    if schedule == "ramps":
        falling = min(1.0, 4 * (1 - step / max(1, total)))
        return (0.5 - 0.5 * math.cos(math.pi * falling)) * min(1.0, 20 * (step + 1) / max(1, total))
    if schedule == "exponential":
        return 0.94 ** math.floor(100 * step / total)
    return 1.0


def anneal_at(start: float, progress: float) -> float:
    """Return a weight that grows exponentially from `start` to 1 as progress goes from 0 to 1."""
    return float(start ** (1 - progress))
