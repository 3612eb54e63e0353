"""Transformers of text: what they answer, what they do not look at, and whom they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedseal.core.errors import InputError
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.fitting import fitting_model
from fedseal.federation.loss import training_loss
from fedseal.models.registry import build_model
from fedseal.models.text.access import token_layers
from fedseal.models.text.attention import earlier
from fedseal.models.text.llama import Llama


def model_of(data: TextDataset, spec: str, loss: str = "cross-entropy") -> nn.Module:
    return fitting_model(spec, data, loss, 0)


@pytest.mark.parametrize("spec", ["text-encoder", "text-decoder"])
def test_the_filler_behind_a_text_changes_nothing(notes: TextDataset, spec: str) -> None:
    model = model_of(notes, spec).eval()
    ids = notes.inputs[:3].clone()
    ids[:, 12:] = 0
    assert torch.allclose(model(ids), model(ids[:, :12]), atol=1e-6)
    assert model(ids).shape == (3, 2)


def test_a_decoder_does_not_look_ahead(notes: TextDataset) -> None:
    model = model_of(notes, "text-decoder:task=next-token", "next-token").eval()
    ids = notes.inputs[:1]
    changed = ids.clone()
    changed[0, 5] = 9
    assert torch.allclose(model(ids)[0, :5], model(changed)[0, :5], atol=1e-6)
    assert not torch.allclose(model(ids)[0, 5:], model(changed)[0, 5:], atol=1e-6)


def test_next_token_loss_is_the_cross_entropy_of_the_tokens_behind() -> None:
    logits, ids = torch.randn(1, 4, 6), torch.tensor([[2, 5, 3, 0]])
    wanted = torch.nn.functional.cross_entropy(logits[0, :2], torch.tensor([5, 3]))
    assert torch.allclose(training_loss("next-token")(logits, ids, "mean"), wanted)
    with pytest.raises(InputError, match="needs logits"):
        training_loss("next-token")(torch.zeros(2, 3), ids, "mean")


def test_layers_are_told_apart_by_what_they_are_fed(notes: TextDataset) -> None:
    encoder = {layer.name: layer for layer in token_layers(model_of(notes, "text-encoder").eval(), 16, 100)}
    first, second = encoder["layers.0.attention.query"], encoder["layers.1.attention.value"]
    assert first.alone
    assert first.placed
    assert first.group == encoder["layers.0.attention.value"].group != second.group
    assert not second.alone
    assert not second.causal
    llama = token_layers(Llama(50, 16, 2, 2, 32).eval(), 8, 50)
    assert llama[0].alone
    assert not llama[0].placed
    assert all(layer.causal for layer in llama)


def test_models_of_text_refuse_images() -> None:
    with pytest.raises(InputError, match="a model of text, and the data is none"):
        build_model("text-encoder", input_shape=(1, 8, 8), num_classes=2, seed=0)


def test_frozen_embeddings_are_not_part_of_an_update(notes: TextDataset) -> None:
    model = model_of(notes, "text-encoder:embeddings=frozen")
    assert "words.weight" not in {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_comes_later_is_hidden_in_every_precision(dtype: torch.dtype) -> None:
    weights = earlier(3, torch.zeros(1, dtype=dtype)).float().softmax(-1)[0, 0]
    assert torch.allclose(weights, torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]]))
