"""Odd updates and odd images: each is refused in words, or comes out with its names, shapes and precisions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import RoundContext
from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.aggregation import SelectiveEncryption
from fedseal.defences.ats import ATS
from fedseal.defences.outpost import Outpost
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.posthoc import seal_update
from fedseal.models.registry import build_model

OF_UPDATES = (
    *("topk", "dgc", "minmax", "quantise", "quantise:bits=1", "gaussian:sigma=0.1", "laplace:scale=0.1", "dgp", "adgp"),
    *("selective-encryption", "selective-encryption:per_tensor=true", "adadefense", "svdefense"),
)
ODD = {
    "empty": torch.zeros(0),
    "deep and empty": torch.zeros(3, 0, 2),
    "scalar": torch.tensor(0.5),
    "one": torch.ones(1),
    "equal": torch.full((9,), 0.25),
    "expanded": torch.ones(1).expand(8),
    "transposed": torch.arange(12.0).view(3, 4).T,
    "half": torch.ones(5).half(),
    "double": torch.ones(5).double(),
}


def sealed(spec: str, tensors: Tensors) -> Tensors:
    before = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    return seal_update(
        Update(tensors, "delta"),
        build_defence(spec),
        generator(0),
        before=before,
        round_number=0,
        client="a",
        learning_rate=0.1,
    ).update.tensors


@pytest.mark.parametrize("spec", OF_UPDATES)
def test_odd_shapes_and_mixed_precision_come_out_as_they_went_in(spec: str) -> None:
    tensors = {"weight": torch.randn(6, 5, generator=generator(0, "w"))} | {f"odd {n}": t for n, t in ODD.items()}
    sent = sealed(spec, tensors)
    assert list(sent) == list(tensors)
    for name, tensor in tensors.items():
        assert (sent[name].shape, sent[name].dtype) == (tensor.shape, tensor.dtype), name
        assert bool(torch.isfinite(sent[name]).all()), name


@pytest.mark.parametrize("spec", OF_UPDATES)
@pytest.mark.parametrize("odd", [torch.arange(5), torch.tensor([True]), torch.ones(2, dtype=torch.complex64)])
def test_what_is_not_real_is_refused(spec: str, odd: Tensor) -> None:
    with pytest.raises(InputError, match="tensor 'odd' is torch"):
        sealed(spec, {"weight": torch.ones(3), "odd": odd})


@pytest.mark.parametrize("per_tensor", [False, True])
def test_a_tensor_of_one_entry_is_not_sent_in_clear(per_tensor: bool) -> None:
    seen = SelectiveEncryption(0.1, per_tensor=per_tensor).server_view({"bias": torch.tensor([3.0])})
    assert seen["bias"].tolist() == [0.0]
    assert bool(torch.signbit(seen["bias"]).all())  # which says that it is hidden


def test_outpost_takes_parameters_of_one_entry_and_of_none() -> None:
    model = nn.Module()
    gradient = {"scalar": torch.tensor(0.5), "one": torch.ones(1), "none": torch.zeros(0), "w": torch.ones(3, 4)}
    for name, tensor in gradient.items():
        model.register_parameter(name, nn.Parameter(torch.ones_like(tensor)))
    context = RoundContext(model, None, generator(0))  # type: ignore[arg-type]
    sent = Outpost().on_gradient(gradient, context)
    assert {name: tensor.shape for name, tensor in sent.items()} == {n: t.shape for n, t in gradient.items()}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in sent.values())


@pytest.mark.parametrize("method", ["exact", "probes"])
@pytest.mark.parametrize("kind", ["equal", "expanded", "black"])
def test_soteria_takes_images_that_are_all_the_same(kind: str, method: str) -> None:
    one = torch.rand(1, 1, 8, 8, generator=generator(0, "image"))
    images = {"equal": one.repeat(3, 1, 1, 1), "expanded": one.expand(3, 1, 8, 8), "black": torch.zeros(3, 1, 8, 8)}
    model = build_model("mlp:width=8", input_shape=(1, 8, 8), num_classes=2, seed=0)
    batch = Batch(images[kind], torch.tensor([0, 1, 0]))
    defence = build_defence(f"soteria:ratio=0.5,method={method}")
    sent = client_round(model, [batch], RoundConfig(), defence, generator(0)).update.tensors
    assert all(bool(torch.isfinite(tensor).all()) for tensor in sent.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_ats_refuses_images_that_are_no_numbers(value: float) -> None:
    images = torch.rand(2, 1, 8, 8)
    images[0, 0, 0, 0] = value
    context = RoundContext(nn.Linear(1, 1), None, generator(0))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ats"):
        ATS().on_batch(Batch(images, torch.tensor([0, 1])), context)
