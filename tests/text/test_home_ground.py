"""TAG and LAMP on SST-2 with a small encoder; constants were tuned on other sentences than these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

from fedseal.core.attack import ATTACKS, Budget
from fedseal.data.registry import DATASETS
from fedseal.federation.fitting import fitting_model
from fedseal.metrics.text import overlap
from fedseal.metrics.text_guesses import frequent
from fedseal.testing.texts import observed

TAG = "tag:iterations=300,rate=0.03"
LAMP = "lamp:match=l1l2,iterations=300,rate=0.03,starts=20,proposals=20"
SENTENCES = 4


@pytest.mark.slow
@pytest.mark.shared
def test_both_beat_frequent_words_and_lamp_is_at_least_as_good_as_tag(shared: Path) -> None:
    data = DATASETS.build("text:sst2?length=16&limit=6000", data_root=shared / "data")
    model = fitting_model("text-encoder:embeddings=frozen,width=48", data, "cross-entropy", 0)
    public = data.batch(torch.arange(1000, 5000))
    lengths = (data.inputs != 0).sum(1)
    places = [place for place in range(5000, 6000) if 8 <= int(lengths[place]) <= 14][:SENTENCES]
    scores: dict[str, list[float]] = {TAG: [], LAMP: [], "guess": []}
    for place in places:
        texts, seen = observed(model, data, 1, first=place)
        known = replace(seen, knowledge=replace(seen.knowledge, auxiliary=public))
        truth = data.tokeniser.content(texts.inputs)[0]
        for spec in (TAG, LAMP):
            claim = data.tokeniser.content(ATTACKS.build(spec).run_many([known], Budget(), [place])[0].images)[0]
            scores[spec].append(overlap(truth, claim).f1)
        guess = frequent(data.tokeniser.content(public.inputs), len(truth))
        scores["guess"].append(overlap(truth, guess).f1)
    print({name: [round(value, 2) for value in values] for name, values in scores.items()})
    assert fmean(scores[TAG]) > fmean(scores["guess"]) + 0.1
    assert fmean(scores[LAMP]) > fmean(scores["guess"]) + 0.1
    assert fmean(scores[LAMP]) >= fmean(scores[TAG])
