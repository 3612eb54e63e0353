"""Trained models that packages bring: the attacks on their home ground. They need the network once, or the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedseal.core.attack import ATTACKS
from fedseal.data.registry import DATASETS
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.fitting import fitting_model
from fedseal.federation.loss import training_loss
from fedseal.metrics.text import matched
from fedseal.testing.texts import observed

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def sentences(stories: None) -> TextDataset:
    source = "sst2" if SHARED.is_dir() else "notes"
    data = DATASETS.build(f"text:{source}?tokens=stories15m&length=64&split=test&limit=64", data_root=SHARED)
    assert isinstance(data, TextDataset)
    return data.subset(torch.randperm(len(data), generator=torch.Generator().manual_seed(0)))


@pytest.mark.slow
def test_stories15m_is_what_it_says_it_is(sentences: TextDataset) -> None:
    model = fitting_model("stories15m", sentences, "next-token", 0).eval()

    def loss(text: str) -> float:
        ids = sentences.tokeniser.encode([text])
        with torch.no_grad():
            return float(training_loss("next-token")(model(ids), ids, "mean"))

    told, shuffled = (
        "Once upon a time, there was a little girl named Lily.",
        "Lily time a there, named upon girl was little.",
    )
    assert loss(told) < 0.2
    assert loss(shuffled) > loss(told) + 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "dtype", "draw"),
    [
        (8, torch.float64, 0),
        (8, torch.float64, 1),
        (1, torch.float32, 0),
        (2, torch.float32, 0),
        (4, torch.float32, 0),
        (8, torch.float32, 0),
    ],
)
def test_dager_reads_all_but_each_last_token_of_real_sentences(
    sentences: TextDataset, batch: int, dtype: torch.dtype, draw: int
) -> None:
    sentences = sentences.subset(torch.arange(len(sentences)).roll(-8 * draw))  # others of them
    model = fitting_model("stories15m", sentences, "next-token", 0).to(dtype)
    texts, seen = observed(model, sentences, batch, "next-token")
    answer = ATTACKS.build("dager").run(seen)
    truths, claims = (sentences.tokeniser.content(ids) for ids in (texts.inputs, answer.images))
    read = sum(claims[place] == truth[:-1] for truth, place in zip(truths, matched(truths, claims), strict=True))
    assert read == batch, answer.notes
