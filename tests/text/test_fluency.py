"""LAMP's language models: pairs of public words, and stories15M in tokens of its own."""

from __future__ import annotations

import pytest
import torch

from fedseal.attacks.text.fluency import _stories, fluency_of
from fedseal.attacks.text.ordering import Bigrams
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.errors import InputError
from fedseal.core.tokeniser import characters
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.fitting import fitting_model
from fedseal.testing.texts import observed

TOLD = ("the little girl went to the park to play with her dog.", "dog her park to the girl with little play went.")
"""A sentence as it is told, and its words in no order."""


def test_pairs_of_words_are_counted_in_public_texts(notes: TextDataset) -> None:
    public = notes.batch(torch.arange(50))
    fluency = fluency_of("n-gram", notes.tokeniser, public)
    assert fluency is not None
    pairs = Bigrams(notes.tokeniser.content(public.inputs), notes.tokeniser.size)
    ids = notes.batch(torch.arange(50, 53)).inputs
    expected = [pairs.loss(text) for text in notes.tokeniser.content(ids)]
    torch.testing.assert_close(fluency(ids), torch.tensor(expected))
    assert fluency_of("n-gram", notes.tokeniser, None) is None


def test_stories15m_that_was_not_fetched_is_asked_for(notes: TextDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedseal.core.fetched.find_file", lambda names: None)
    _stories.cache_clear()
    with pytest.raises(InputError, match="Run `fedseal data get stories15m`") as refused:
        fluency_of("stories15m", notes.tokeniser, None)
    assert "stories15m is not on this machine" in refused.value.message


@pytest.mark.slow
def test_stories15m_prefers_a_sentence_to_its_words_in_no_order(notes: TextDataset, stories: None) -> None:
    tokeniser = characters(80)
    fluency = fluency_of("stories15m", tokeniser, None)
    assert fluency is not None
    told, shuffled = fluency(tokeniser.encode(TOLD)).tolist()
    assert told + 1 < shuffled
    (alone,) = fluency(tokeniser.encode(TOLD[:1])).tolist()
    assert alone == pytest.approx(told, rel=1e-4)  # what stands beside a text, and fills it up, counts for nothing
    assert float(fluency(torch.zeros(1, 5, dtype=torch.long))) == 0


@pytest.mark.slow
def test_lamp_runs_with_stories15m(notes: TextDataset, stories: None) -> None:
    model = fitting_model("text-encoder:width=16,layers=1,embeddings=frozen", notes, "cross-entropy", 0)
    _, seen = observed(model, notes, 1)
    answer = ATTACKS.build("lamp:prior=stories15m,starts=2,proposals=4").run(seen, Budget(iterations=10))
    assert answer.images.shape == (1, 16)
    assert answer.objective < float("inf")
