"""What `auto` may spend: iterations, or seconds turned into iterations by a model of cost, never by a clock.

Results must not depend on the machine. A second is worth 5e9 operations here, about what one core of 2020 does in such
networks, and an iteration costs four gradients of the batch (forward and backward once, and once more through that) and
a millisecond.
"""

from __future__ import annotations

import copy
import re

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedseal.attacks.reading import image_count
from fedseal.core.errors import UsageError
from fedseal.core.observation import Observation
from fedseal.core.specs import shortened

OPERATIONS_PER_SECOND = 5e9
GRADIENTS_PER_ITERATION = 4
SECONDS_PER_ITERATION = 1e-3
FEWEST = 20
_UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> tuple[int, str]:
    """Return a number and its unit, "" for iterations; a budget is `600`, `90s`, `10m` or `1h` per target."""
    match = re.fullmatch(r"([1-9]\d{0,9})([smh]?)", text.strip())
    if match is None:
        raise UsageError(
            f"a budget cannot be {shortened(text)}.",
            hint="Write iterations per target, as 600, or a time: 90s, 10m, 1h.",
        )
    return int(match[1]), match[2]


def iterations_for(text: str, observation: Observation) -> int:
    """Return the iterations per target a budget stands for; at least a few."""
    number, unit = parse_budget(text)
    if not unit:
        return number
    seconds = number * _UNITS[unit]
    each = SECONDS_PER_ITERATION + GRADIENTS_PER_ITERATION * _gradient_cost(observation) / OPERATIONS_PER_SECOND
    return max(FEWEST, int(seconds / each))


def _gradient_cost(observation: Observation) -> float:
    """Return the multiplications and additions behind one gradient of as many images as are behind the update."""
    model = copy.deepcopy(observation.model).eval()
    like = next(model.parameters())
    images = torch.zeros(1, *observation.knowledge.input_shape, dtype=like.dtype, device=like.device)
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    return float(counter.get_total_flops()) * image_count(observation)
