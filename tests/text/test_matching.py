"""Gradient matching on words: what is minimised, what stays in place, and what rearrangements are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedseal.attacks.text.matching import problem_of
from fedseal.attacks.text.ordering import Bigrams, rearranged
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.fitting import fitting_model
from fedseal.testing.texts import observed

SMALL = "text-encoder:width=16,layers=1,embeddings=frozen"


@pytest.mark.parametrize("match", ["cosine", "l1l2"])
def test_the_truth_is_where_the_distance_vanishes(notes: TextDataset, match: str) -> None:
    model = fitting_model(SMALL, notes, "cross-entropy", 0).double()
    texts, seen = observed(model, notes, 2)
    problem = problem_of([seen], match, [0], None)  # type: ignore[arg-type]
    truth = problem.vectors[texts.inputs][None]
    assert float(problem.mismatch(truth)) < 1e-9
    assert float(problem.mismatch(problem.start([torch.Generator().manual_seed(0)]))) > 1e-4
    assert torch.equal(problem.read(truth)[0], texts.inputs)


@pytest.mark.parametrize("spec", ["tag:rate=0.03", "lamp:starts=2,proposals=4"])
def test_updates_attacked_at_once_get_the_answers_they_get_alone(notes: TextDataset, spec: str) -> None:
    model = fitting_model(SMALL, notes, "cross-entropy", 0).double()
    seen = [observed(model, notes, 1, first=place)[1] for place in (0, 3, 5)]
    attack = ATTACKS.build(spec)
    together = attack.run_many(seen, Budget(iterations=8), [7, 8, 9])
    for observation, seed, answer in zip(seen, [7, 8, 9], together, strict=True):
        (alone,) = attack.run_many([observation], Budget(iterations=8), [seed])
        assert (alone.images == answer.images).double().mean() > 0.9  # Adam makes steps of rounding
        assert answer.objective == pytest.approx(alone.objective, rel=0.02)


def test_a_client_that_drops_is_matched_by_its_masks_alone(notes: TextDataset) -> None:
    model = fitting_model(f"{SMALL},dropout=0.3", notes, "cross-entropy", 0).double()
    texts, seen = observed(model, notes, 1)
    drawn, update = _dropping(model, texts)
    seen = replace(seen, update=replace(seen.update, tensors=update))
    attack = ATTACKS.build("tag:dropout=masks")
    problem = problem_of([seen], "l1l2", [0], None, attack._drops)  # type: ignore[attr-defined]
    truth, masks = problem.vectors[texts.inputs][None], [40 * (2 * mask[None] - 1) for mask in drawn]
    assert len(masks) == len(problem.drops) == 4  # of the embedding, the attention's weights and twice in the block
    assert float(problem.mismatch(truth, masks)) < 1e-9 < 1e-4 < float(problem.mismatch(truth, problem.masks()))


def test_seeking_masks_explains_an_update_with_dropout_better(notes: TextDataset) -> None:
    model = fitting_model(f"{SMALL},dropout=0.3", notes, "cross-entropy", 0)
    texts, seen = observed(model, notes, 1)
    seen = replace(seen, update=replace(seen.update, tensors=_dropping(model, texts)[1]))
    ignored, sought = (
        ATTACKS.build(f"tag:rate=0.03,dropout={way}").run(seen, Budget(iterations=30)) for way in ("ignored", "masks")
    )
    assert sought.objective < 0.9 * ignored.objective
    assert sought.notes == ("sought the masks of 4 calls of dropout",)


def _dropping(model: nn.Module, texts: Batch) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the masks that a client with dropout drew, and the gradient it sends."""
    drawn: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor], answer: Tensor) -> None:
        drawn.append((answer != 0).to(answer))

    layers = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, nn.Dropout)]
    sent = {name: value for name, value in model.named_parameters() if value.requires_grad}
    model.train()
    torch.manual_seed(0)
    loss = nn.functional.cross_entropy(model(texts.inputs), texts.labels)
    model.eval()
    for layer in layers:
        layer.remove()
    return drawn, dict(zip(sent, torch.autograd.grad(loss, list(sent.values())), strict=True))


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
