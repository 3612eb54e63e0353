"""Refiner on text: what is sent is the gradient of vectors that are no words, and what still reads words off it."""

from __future__ import annotations

import pytest
import torch

from fedseal.core.attack import ATTACKS
from fedseal.core.defence import RoundContext
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.data.text.dataset import TextDataset
from fedseal.defences.pipeline import build_defence
from fedseal.defences.refiner.passes import ClientPasses
from fedseal.defences.refiner.words import WordPasses, fit_evaluator
from fedseal.federation.client import ClientRound, RoundConfig, client_round
from fedseal.federation.fitting import fitting_model
from fedseal.testing.texts import observed

SMALL = "text-encoder:width=16,layers=1"


def played(notes: TextDataset, spec: str, model: torch.nn.Module) -> tuple[ClientRound, str]:
    defence = build_defence(spec)
    defence.prepare(notes.batch(torch.arange(100)), generator(0))
    done = client_round(model, [notes.batch(torch.arange(1))], RoundConfig(), defence, generator(0))
    return done, " ".join(defence.report().remarks)


def read(name: str, notes: TextDataset, model: torch.nn.Module, spec: str) -> tuple[set[int], set[int]]:
    """Return the private words, and those an attack reads off what is sent under a defence."""
    texts, plain = observed(model, notes, 1)
    sent = Observation(model, played(notes, spec, model)[0].update, plain.knowledge)
    try:
        answer = ATTACKS.build(name).run(sent)
    except CapabilityError:
        return set(notes.tokeniser.content(texts.inputs)[0]), set()
    words, found = (set(notes.tokeniser.content(ids)[0]) for ids in (texts.inputs, answer.images))
    return words, found


def test_vectors_of_the_private_words_give_the_true_gradient(notes: TextDataset) -> None:
    model = fitting_model(SMALL, notes, "cross-entropy", 0)
    batch = notes.batch(torch.arange(2))
    seen: list[tuple[ClientPasses, dict[str, torch.Tensor]]] = []

    class Watching(type(build_defence("none"))):  # type: ignore[misc]
        def on_batch(self, fed: object, context: RoundContext) -> object:
            passes = WordPasses(context, batch)
            seen.append((passes, passes.gradient(passes.private)))
            return fed

    plain = client_round(model, [batch], RoundConfig(), Watching(), generator(0)).update.tensors
    _, found = seen[0]
    assert {"words.weight", "positions.weight"} == plain.keys() - found.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, plain[name], rtol=1e-4, atol=1e-6)


def test_the_evaluation_network_counts_random_words(notes: TextDataset) -> None:
    vectors = torch.randn(notes.tokeniser.size, 16, generator=generator(0))
    network = fit_evaluator(notes.inputs[:100], vectors)
    ids = notes.inputs[100:140]
    drawn = torch.randint(len(vectors), ids.shape, generator=generator(1))
    scaled = vectors / (4 * vectors.std())
    shares = [
        float(network(scaled[torch.where(torch.rand(ids.shape, generator=generator(2)) < s, drawn, ids)], ids).mean())
        for s in (0.0, 0.5, 1.0)
    ]
    assert shares[0] + 0.15 < shares[1] < shares[2] - 0.15


def test_no_embedding_is_sent_and_words_find_nothing(notes: TextDataset) -> None:
    model = fitting_model(SMALL, notes, "cross-entropy", 0)
    done, said = played(notes, "refiner:epsilon=inf", model)
    assert not done.update.tensors["words.weight"].any()
    assert not done.update.tensors["positions.weight"].any()
    assert "of the words are nearest to their own vectors" in said
    assert read("words", notes, model, "refiner:epsilon=inf")[1] == set()


def test_the_span_test_reads_what_the_projection_gives_back(notes: TextDataset) -> None:
    """Refined vectors are no words, so the test finds none; a ball round the true gradient holds the true ones."""
    model = fitting_model("text-encoder:width=96", notes, "cross-entropy", 0).double()
    words, found = read("dager", notes, model, "refiner:epsilon=inf")
    assert not found & words
    words, found = read("dager", notes, model, "refiner:epsilon_relative=0.01")
    assert found >= words


def test_what_is_made_for_images_is_refused_in_words(notes: TextDataset) -> None:
    model = fitting_model(SMALL, notes, "cross-entropy", 0)
    with pytest.raises(CapabilityError, match="takes texts with scope=batch"):
        played(notes, "refiner:scope=sample", model)


def test_a_model_that_trains_its_embeddings_alone_is_refused(notes: TextDataset) -> None:
    model = fitting_model(SMALL, notes, "cross-entropy", 0)
    for name, value in model.named_parameters():
        value.requires_grad_(name == "words.weight")
    with pytest.raises(CapabilityError, match="the model trains nothing else"):
        played(notes, "refiner", model)
