"""Gradient matching on words: what is minimised, what stays in place, and what rearrangements are."""

from __future__ import annotations

import pytest
import torch

from fedseal.attacks.text.matching import problem_of
from fedseal.attacks.text.ordering import Bigrams, rearranged
from fedseal.core.attack import ATTACKS, Budget
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.fitting import fitting_model
from fedseal.testing.texts import observed

SMALL = "text-encoder:width=16,layers=1,embeddings=frozen"


@pytest.mark.parametrize("match", ["cosine", "l1l2"])
def test_the_truth_is_where_the_distance_vanishes(notes: TextDataset, match: str) -> None:
    model = fitting_model(SMALL, notes, "cross-entropy", 0).double()
    texts, seen = observed(model, notes, 2)
    problem = problem_of(seen, match, 0, None)  # type: ignore[arg-type]
    truth = problem.vectors[texts.inputs]
    assert float(problem.mismatch(truth).detach()) < 1e-9
    assert float(problem.mismatch(problem.start(torch.Generator().manual_seed(0))).detach()) > 1e-4
    assert torch.equal(problem.read(truth), texts.inputs)


def test_marks_and_fillers_stay_where_they_are(notes: TextDataset) -> None:
    model = fitting_model(SMALL, notes, "cross-entropy", 0)
    texts, seen = observed(model, notes, 1)
    answer = ATTACKS.build("tag").run(seen, Budget(iterations=2))
    special = torch.isin(texts.inputs, torch.tensor(sorted(notes.tokeniser.special)))
    assert torch.equal(answer.images[special], texts.inputs[special])


@pytest.mark.parametrize("kind", range(4))
def test_rearrangements_keep_every_word(kind: int) -> None:
    source = torch.Generator().manual_seed(kind)
    orders = [rearranged(7, kind, source) for _ in range(20)]
    assert all(sorted(order) == list(range(7)) for order in orders)
    assert any(order != list(range(7)) for order in orders)


def test_pairs_of_public_words_tell_an_order_from_its_reverse() -> None:
    prior = Bigrams([[1, 2, 3, 4], [2, 3, 4, 5], [1, 2, 3]], 10)
    assert prior.loss([1, 2, 3, 4]) < prior.loss([4, 3, 2, 1])


@pytest.mark.parametrize("spec", ["lamp:starts=2,proposals=4", "lamp:match=l1l2,starts=2,proposals=4"])
def test_both_variants_of_lamp_run_to_an_answer(notes: TextDataset, spec: str) -> None:
    model = fitting_model(SMALL, notes, "cross-entropy", 0)
    _, seen = observed(model, notes, 1)
    answer = ATTACKS.build(spec).run(seen, Budget(iterations=10))
    assert answer.images.shape == (1, 16)
    assert answer.objective < float("inf")
