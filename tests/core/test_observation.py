"""What an attack may look at is checked and put in order when it is made."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedseal.core.errors import InputError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update

MODEL = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
KNOWLEDGE = Knowledge(input_shape=(1, 1, 2), num_classes=2)


def test_tensors_are_put_in_the_models_order() -> None:
    gradient = {name: torch.full_like(p, float(place)) for place, (name, p) in enumerate(MODEL.named_parameters())}
    shuffled = {name: gradient[name] for name in sorted(gradient, reverse=True)}
    seen = Observation(MODEL, Update(shuffled, "delta"), KNOWLEDGE)
    assert list(seen.update.tensors) == [name for name, _ in MODEL.named_parameters()]
    assert seen.update.kind == "delta"
    assert all(torch.equal(seen.update.tensors[name], tensor) for name, tensor in gradient.items())


def test_what_is_not_of_the_model_is_refused() -> None:
    gradient = {name: torch.zeros_like(p) for name, p in MODEL.named_parameters()}
    with pytest.raises(InputError):
        Observation(MODEL, Update({**gradient, "odd": torch.zeros(1)}), KNOWLEDGE)
    with pytest.raises(InputError):
        Observation(MODEL, Update({**gradient, "0.weight": torch.full((3, 2), float("nan"))}), KNOWLEDGE)
