"""What is read exactly: words off an embedding, sentences off attention, words off adapters below their ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedseal.attacks.span import inside, span_of
from fedseal.attacks.text.dager import ground_of
from fedseal.core.attack import ATTACKS
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation, Update
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.fitting import fitting_model
from fedseal.metrics.text import matched
from fedseal.testing.texts import observed


def test_a_span_holds_what_it_was_summed_of_and_nothing_else() -> None:
    torch.manual_seed(0)
    fed, strangers = torch.randn(5, 32), torch.randn(200, 32)
    test = span_of(torch.randn(40, 5) @ fed)
    assert test.rank == 5
    passed, gap = inside(test.distances(torch.cat([fed, strangers])), test.limit)
    assert passed.tolist() == [True] * 5 + [False] * 200
    assert gap > 1e3
    assert not inside(test.distances(strangers), test.limit)[0].any()


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_no_constant_decides_so_that_the_size_of_a_gradient_does_not(scale: float) -> None:
    torch.manual_seed(1)
    gradient = scale * torch.randn(40, 7) @ torch.randn(7, 32)
    assert span_of(gradient + 1e-4 * gradient.std() * torch.randn(40, 32)).rank == 7


@pytest.mark.parametrize("batch", [1, 8])
def test_words_are_exact_for_any_batch(notes: TextDataset, batch: int) -> None:
    model = fitting_model("text-encoder:width=16,layers=1", notes, "cross-entropy", 0)
    texts, seen = observed(model, notes, batch)
    answer = ATTACKS.build("words").run(seen)
    wanted = {token for text in notes.tokeniser.content(texts.inputs) for token in text}
    assert set(notes.tokeniser.content(answer.images)[0]) == wanted
    assert "exactly these words occurred" in answer.notes[0]


def test_words_are_refused_where_the_embedding_is_not_sent(notes: TextDataset) -> None:
    model = fitting_model("text-encoder:embeddings=frozen", notes, "cross-entropy", 0)
    with pytest.raises(CapabilityError, match=r"gradient of words\.weight, which clients do not send"):
        ATTACKS.build("words").check(observed(model, notes, 1)[1])


@pytest.mark.parametrize(
    ("spec", "loss", "batch"),
    [
        ("text-decoder:task=next-token,embeddings=frozen,width=96", "next-token", 2),
        ("text-decoder:embeddings=frozen,width=96", "cross-entropy", 2),
        ("text-encoder:embeddings=frozen,width=96", "cross-entropy", 1),
    ],
)
def test_dager_reads_sentences_without_the_embedding_s_gradient(
    notes: TextDataset, spec: str, loss: str, batch: int
) -> None:
    model = fitting_model(spec, notes, loss, 0)
    texts, seen = observed(model, notes, batch, loss)
    answer = ATTACKS.build("dager").run(seen)
    truths, claims = (notes.tokeniser.content(ids) for ids in (texts.inputs, answer.images))
    unseen = 1 if loss == "next-token" else 0  # the last token has no gradient; here it is the end mark
    for truth, place in zip(truths, matched(truths, claims), strict=True):
        assert claims[place][: len(truth) - unseen] == truth[: len(truth) - unseen], answer.notes


def test_more_vectors_than_a_layer_is_wide_make_the_test_blind() -> None:
    torch.manual_seed(2)
    assert span_of(torch.randn(40, 30) @ torch.randn(30, 16)).blind


class Adapted(nn.Module):
    """A linear layer with a low-rank addition, named as peft names it."""

    def __init__(self, base: nn.Linear, rank: int, up: float) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        nn.init.normal_(self.lora_B["default"].weight, std=up) if up else nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.lora_B["default"](self.lora_A["default"](tokens))
        return self.base_layer(tokens) + added  # type: ignore[no-any-return]


def adapted(data: TextDataset, rank: int, names: tuple[str, ...], up: float) -> nn.Module:
    torch.manual_seed(0)
    model = fitting_model("text-decoder:width=64", data, "cross-entropy", 0).double()
    model.requires_grad_(False)
    attention = model.layers[0].attention  # type: ignore[union-attr, index]
    for name in names:
        setattr(attention, name, Adapted(getattr(attention, name), rank, up).double())
    return model


@pytest.mark.parametrize("names", [("value",), ("query", "key", "value")])
@pytest.mark.parametrize("up", [0.0, 0.1], ids=["first round", "later round"])
@pytest.mark.parametrize("rank", [4, 8, 24])
def test_the_law_of_adapters_holds_on_both_sides_of_its_bound(
    notes: TextDataset, names: tuple[str, ...], up: float, rank: int
) -> None:
    model = adapted(notes, rank, names, up)
    texts, seen = observed(model, notes, 1)
    ground = ground_of(seen)
    tokens = int((texts.inputs != 0).sum())  # at places, so all are distinct
    bound = rank if up == 0 else len(names) * rank
    assert ground.first.bound == min(bound, 64)
    words = set(notes.tokeniser.content(texts.inputs)[0])
    found = set(notes.tokeniser.content(ATTACKS.build("lora").run(seen).images)[0])
    if tokens < bound:
        assert found == words
    else:
        assert ground.first.blind
        assert not found


def test_an_update_without_adapters_is_refused_by_name(notes: TextDataset) -> None:
    model = fitting_model("text-encoder", notes, "cross-entropy", 0)
    with pytest.raises(CapabilityError, match="no LoRA adapter"):
        ATTACKS.build("lora").check(observed(model, notes, 1)[1])


@pytest.mark.parametrize("name", ["words", "dager"])
def test_updates_of_zeros_are_answered_and_not_crashed_on(notes: TextDataset, name: str) -> None:
    model = fitting_model("text-encoder:width=16", notes, "cross-entropy", 0)
    _, seen = observed(model, notes, 2)
    empty = {key: torch.zeros_like(value) for key, value in seen.update.tensors.items()}
    hostile = Observation(seen.model, Update(empty), seen.knowledge)
    if name == "dager":
        with pytest.raises(CapabilityError, match="no linear layer that is fed single tokens sends its gradient"):
            ATTACKS.build(name).run(hostile)
    else:
        assert not any(notes.tokeniser.content(ATTACKS.build(name).run(hostile).images))
