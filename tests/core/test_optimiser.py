"""Rules of local steps: those of `torch.optim`, differentiable, and told in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import jvp

from fedseal.core.errors import UsageError
from fedseal.core.optimiser import PLAIN, Optimiser
from fedseal.core.seeds import generator

RULES: dict[str, tuple[Optimiser, Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "plain": (PLAIN, lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (Optimiser(momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "decay": (
        Optimiser(momentum=0.5, weight_decay=0.3),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, weight_decay=0.3),
    ),
    "adam": (Optimiser("adam"), lambda p: torch.optim.Adam(p, 0.1)),
    "adam with decay": (Optimiser("adam", weight_decay=0.3), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.3)),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_that_of_torch(name: str):
    rule, make = RULES[name]
    start = torch.randn(7, generator=generator(0), dtype=torch.float64)
    own, theirs = start.clone(), start.clone().requires_grad_()
    course, reference = rule.begin(), make([theirs])
    for step in range(6):
        slope = torch.randn(7, generator=generator(1, step), dtype=torch.float64)
        slope[0] = 0.0
        own = own - 0.1 * course.directions({"w": own}, {"w": slope})["w"]
        theirs.grad = slope.clone()
        reference.step()
    torch.testing.assert_close(own, theirs.detach())


@pytest.mark.parametrize("name", RULES)
def test_a_course_can_be_differentiated_even_where_a_gradient_is_zero(name: str):
    slope = torch.tensor([0.0, 0.3, -2.0], dtype=torch.float64)

    def after(scale: Tensor) -> Tensor:
        weights, course = torch.ones(3, dtype=torch.float64), RULES[name][0].begin()
        for _ in range(3):
            weights = weights - 0.1 * course.directions({"w": weights}, {"w": slope * scale + 0.1 * scale})["w"]
        return weights

    one, ahead = torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    measured = (after(one + 1e-6) - after(one - 1e-6)) / 2e-6
    torch.testing.assert_close(jvp(after, (one,), (ahead,))[1], measured, rtol=1e-5, atol=1e-7)
    assert bool(torch.isfinite(jvp(lambda s: after(s * 0), (one,), (ahead,))[1]).all())


def test_momentum_reaches_as_far_as_its_sum():
    assert PLAIN.reach(5) == 5
    assert Optimiser(momentum=0.5).reach(3) == pytest.approx(1 + 1.5 + 1.75)


def test_a_rule_says_what_it_is_and_refuses_what_means_nothing():
    assert PLAIN.describe() == "plain SGD"
    assert Optimiser(momentum=0.9, weight_decay=5e-4).describe() == "SGD with momentum 0.9 and weight decay 0.0005"
    assert Optimiser("adam").describe() == "Adam"
    with pytest.raises(UsageError, match="moments of its own"):
        Optimiser("adam", momentum=0.9)
