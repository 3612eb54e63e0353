"""Error feedback: what is withheld comes later, to the bit, and states are not taken from strangers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.defence import RoundContext
from fedseal.core.errors import InputError
from fedseal.core.seeds import generator
from fedseal.defences.pruning import ErrorFeedback, TopK, kept_count, largest_mask


def context(round_number: int = 0) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("pruning needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(0), round_number)


def test_sent_plus_residual_is_the_sum_of_gradients_to_the_bit():
    defence = TopK(ratio=0.9, feedback=True)
    source = generator(1)
    updates = [torch.randint(-1024, 1025, (40, 25), generator=source).float() / 1024 for _ in range(50)]
    sent = [defence.on_update({"w": update}, context(number))["w"] for number, update in enumerate(updates)]
    assert torch.equal(torch.stack(sent).sum(0) + defence.state_dict()["w"], torch.stack(updates).sum(0))
    assert {int((part != 0).sum()) for part in sent} == {100}


def test_an_entry_without_residual_keeps_its_bits():
    defence = TopK(ratio=0, feedback=True)
    update = {"w": torch.tensor([-0.0, 0.0, -1.0])}
    for number in range(3):
        assert defence.on_update(update, context(number))["w"].numpy().tobytes() == update["w"].numpy().tobytes()


def test_a_saved_residual_goes_on():
    one, other = TopK(ratio=0.5, feedback=True), TopK(ratio=0.5, feedback=True)
    update = {"w": torch.randn(10, generator=generator(2))}
    one.on_update(update, context())
    other.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    assert torch.equal(one.on_update(update, context(1))["w"], other.on_update(update, context(1))["w"])


def test_a_residual_nobody_would_use_is_refused():
    with pytest.raises(InputError, match="keeps no residual"):
        TopK(ratio=0.5).load_state_dict({"w": torch.ones(3)})
    TopK(ratio=0.5).load_state_dict({})


def test_switched_off_nothing_is_kept():
    feedback = ErrorFeedback("topk", on=False)
    feedback.keep({"w": torch.ones(2)}, {"w": torch.zeros(2)})
    assert feedback.state_dict() == {}


def test_masks_count_zeros_and_ties():
    assert int(largest_mask(torch.zeros(10), 0.7).sum()) == kept_count(10, 0.7) == 3
    assert int(largest_mask(torch.ones(3, 7), 0.5).sum()) == 11
    assert largest_mask(torch.tensor(1.0), 0.99).shape == ()


def test_traits():
    assert TopK(ratio=0.5).traits.data_dependent_mask
    assert not TopK(ratio=0).traits.data_dependent_mask
    assert TopK(feedback=True).traits.keeps_residual
