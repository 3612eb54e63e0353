"""AdaDefense against torch.optim: an upload is the step of an optimiser that minimises by the client's gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.defence import RoundContext
from fedseal.core.seeds import generator
from fedseal.defences.adadefense import AdaDefense


def context(round_number: int) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("a stand-in needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(0), round_number)


@pytest.mark.parametrize("options", [{}, {"scale": 0.01, "beta1": 0.5, "beta2": 0.99, "eps": 1e-4}])
def test_five_rounds_are_five_steps_of_adam(options: dict[str, float]):
    defence = AdaDefense(eps_at="corrected", **options)  # type: ignore[arg-type]
    weight = nn.Parameter(torch.zeros(40, 30, dtype=torch.float64))
    optimiser = torch.optim.Adam(
        [weight],
        lr=options.get("scale", 1e-3),
        betas=(options.get("beta1", 0.9), options.get("beta2", 0.999)),
        eps=options.get("eps", 1e-8),
    )
    for number in range(5):
        gradient = 1e-3 * torch.randn(40, 30, generator=generator(number), dtype=torch.float64)
        before = weight.detach().clone()
        weight.grad = gradient
        optimiser.step()
        sent = defence.on_update({"w": gradient}, context(number))["w"]
        torch.testing.assert_close(sent, before - weight.detach(), rtol=1e-6, atol=1e-15)


def test_with_eps_where_the_released_code_has_it_the_steps_agree_for_gradients_of_order_one():
    defence = AdaDefense()
    weight = nn.Parameter(torch.zeros(500, dtype=torch.float64))
    optimiser = torch.optim.Adam([weight], lr=1e-3)
    for number in range(5):
        gradient = 1 + torch.rand(500, generator=generator(number), dtype=torch.float64)
        before = weight.detach().clone()
        weight.grad = gradient
        optimiser.step()
        sent = defence.on_update({"w": gradient}, context(number))["w"]
        torch.testing.assert_close(sent, before - weight.detach(), rtol=1e-6, atol=0)
