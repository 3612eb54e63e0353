"""Defences on finished updates: which can be applied there, what they may see, and what never travels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedseal.core.defence import DEFENCES, Defence, RoundContext
from fedseal.core.errors import CapabilityError, InputError
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.pipeline import build_defence
from fedseal.federation.posthoc import needs_training, refuse_joint, seal_update, travelling
from fedseal.federation.wire import encode

BEFORE = {"body.0.weight": torch.ones(3, 2), "body.0.bias": torch.zeros(3)}
CHANGE = {"body.0.weight": torch.arange(6.0).view(3, 2), "body.0.bias": torch.tensor([0.5, -1.0, 2.0])}


def seal(defence: Defence, update: Tensors = CHANGE, **changes: Any) -> Any:
    options: dict[str, Any] = {"before": BEFORE, "round_number": 2, "client": "7", "learning_rate": 0.3} | changes
    return seal_update(Update(update, "delta"), defence, generator(0), **options)


class Watching(Defence):
    """Keeps what it was shown."""

    name = "watching"

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        self.context = context
        return update


def test_the_defence_is_told_of_its_round():
    defence = Watching()
    sealed = seal(defence)
    context = defence.context
    assert (context.round, context.client, context.learning_rate, context.kind) == (2, "7", 0.3, "delta")
    assert {name: p.tolist() for name, p in context.model.named_parameters()} == {
        name: tensor.tolist() for name, tensor in BEFORE.items()
    }
    assert sealed.update.tensors is CHANGE
    assert sealed.cost.bytes_up == len(encode(CHANGE))


def test_what_is_gone_after_training_is_not_made_up():
    defence = Watching()
    seal(defence)
    with pytest.raises(CapabilityError, match="asks for the client's loss"):
        defence.context.loss(defence.context.model, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in DEFENCES.names() if name != "pretrained"])
def test_every_defence_is_applied_or_refused_by_name(name: str):
    entry = DEFENCES.entry(name)
    if any(p.default is p.empty for p in entry.parameters.values()):
        pytest.skip("needs options of its own")
    defence = DEFENCES.build(name)
    if defence.stage == "aggregate" or defence.uses("broadcast"):
        with pytest.raises(CapabilityError, match=f"{name} is a protocol between several parties"):
            refuse_joint(defence, "something else")
        return
    if needs_training(defence):
        with pytest.raises(CapabilityError, match=f"{name} acts while the client trains"):
            seal(defence)
        return
    sealed = seal(defence)
    assert sealed.update.tensors.keys() == CHANGE.keys()
    if name != "none":
        changed = any(not torch.equal(sealed.update.tensors[key], CHANGE[key]) for key in CHANGE)
        assert changed, f"{name} left the update as it was"


def test_a_pipeline_is_as_early_as_its_earliest_member():
    assert needs_training(build_defence("dp-sgd+topk")) == ("dp-sgd",)
    assert needs_training(build_defence("gaussian+topk")) == ()


def test_a_nan_is_not_sealed():
    with pytest.raises(InputError, match="NaN or infinite"):
        seal(Watching(), {**CHANGE, "body.0.bias": torch.tensor([1.0, float("nan"), 0.0])})


def test_statistics_and_counters_do_not_travel():
    state = {
        "bn.weight": torch.ones(2),
        "bn.running_mean": torch.ones(2),
        "bn.running_var": torch.ones(2),
        "bn.num_batches_tracked": torch.tensor(3),
        "positions": torch.arange(4),
    }
    assert travelling(state) == ["bn.weight"]
