"""Named tensors: flattening and its inverse, and refusals that name the tensor; batches and normalisation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.errors import InputError
from fedseal.core.hashing import hash_json, hash_tensors
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.tensors import check_finite, check_like, flatten, unflatten

SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4)


@given(SHAPES)
def test_unflatten_is_the_inverse_of_flatten(shapes: list[list[int]]):
    tensors = {str(index): torch.randn(shape) for index, shape in enumerate(shapes)}
    back = unflatten(flatten(tensors), tensors)
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_tensor_that_is_not_finite_is_named(bad: float):
    tensors = {"first": torch.zeros(2), "second.weight": torch.tensor([0.0, bad])}
    with pytest.raises(InputError, match=r"'second.weight' holds 1 value") as caught:
        check_finite(tensors, "update")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"weight": torch.zeros(2, 3)}, "'bias' is missing"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "more": torch.zeros(1)}, "'more' is not a parameter"),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}, r"'weight' has shape \[3, 2\]"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2).double()}, "'bias' is torch.float64"),
    ],
)
def test_updates_of_another_model_are_refused(tensors: dict[str, torch.Tensor], says: str):
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match=says):
        check_like(tensors, dict(model.named_parameters()), "update")
    with pytest.raises(InputError, match=says):
        Observation(model, Update(tensors), Knowledge((1, 1, 3), 2))


def test_a_batch_needs_as_many_labels_as_images():
    with pytest.raises(InputError, match=r"\[2, 1, 3, 3\]"):
        Batch(torch.zeros(2, 1, 3, 3), torch.zeros(3))
    with pytest.raises(InputError):
        Batch(torch.zeros(1, 3, 3), torch.zeros(1))


def test_normalisation_and_its_inverse():
    images = torch.rand(4, 2, 3, 3, dtype=torch.float64)
    normalisation = Normalisation((0.1, 0.2), (0.5, 2.0))
    expected = torch.stack([(images[:, 0] - 0.1) / 0.5, (images[:, 1] - 0.2) / 2.0], 1)
    torch.testing.assert_close(normalisation(images), expected)
    torch.testing.assert_close(normalisation.undo(normalisation(images)), images)
    assert Normalisation().is_identity
    assert Normalisation()(images) is images
    assert Normalisation().undo(images) is images


@pytest.mark.parametrize(("mean", "std"), [((0.0,), (0.0,)), ((0.0,), (-1.0,)), ((0.0, 0.0), (1.0,))])
def test_impossible_normalisations_are_refused(mean: tuple[float, ...], std: tuple[float, ...]):
    with pytest.raises(InputError):
        Normalisation(mean, std)


def test_hashes_see_names_dtypes_shapes_and_values_but_not_order():
    base = {"a": torch.zeros(2), "b": torch.ones(2)}
    assert hash_tensors(base) == hash_tensors(dict(reversed(base.items())))
    others = [
        {"a": torch.zeros(2), "c": torch.ones(2)},
        {"a": torch.zeros(2).double(), "b": torch.ones(2)},
        {"a": torch.zeros(1, 2), "b": torch.ones(2)},
        {"a": torch.zeros(2), "b": torch.tensor([1.0, 1.0000001])},
    ]
    assert len({hash_tensors(tensors) for tensors in [base, *others]}) == 5
    assert hash_json({"a": 1, "b": [2]}) == hash_json({"b": [2], "a": 1}) != hash_json({"a": 1, "b": [3]})


def test_the_ledger_says_for_every_capability_whether_it_was_given():
    nothing = Knowledge((1, 2, 3), 4)
    everything = Knowledge(
        (1, 2, 3),
        4,
        label_rule="true",
        batch_size=8,
        labels=torch.zeros(8),
        local_steps=1,
        learning_rate=0.1,
        normalisation=Normalisation(),
    )
    assert nothing.ledger().keys() == everything.ledger().keys()
    assert nothing.ledger()["batch size"] == nothing.ledger()["learning rate"] == "not given"
    assert everything.ledger()["batch size"] == "8"
    assert everything.ledger()["labels"] == "given"
    assert "identity" in nothing.ledger()["labels"]
    assert everything.granted() - nothing.granted() == {
        "batch_size",
        "labels",
        "local_steps",
        "learning_rate",
        "normalisation",
    }
