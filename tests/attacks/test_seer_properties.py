"""SEER's properties: each score is what its definition says, and thresholds isolate one image of one client."""

from __future__ import annotations

import pytest
import torch

from fedseal.attacks.active.seer.properties import (
    PROPERTIES,
    SHIFTABLE,
    best_threshold,
    property_scores,
    random_kernel,
    shift,
)
from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator


def images(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=generator(0, "images"), dtype=torch.float64)


def test_scores_are_their_closed_forms():
    x = images(5, 3, 7, 9)
    torch.testing.assert_close(property_scores(x, "bright"), x.flatten(1).mean(1))
    torch.testing.assert_close(property_scores(x, "dark"), -x.flatten(1).mean(1))
    for place, colour in enumerate(("red", "green", "blue")):
        weights = torch.full((3,), -1.0, dtype=torch.float64)
        weights[place] = 2
        torch.testing.assert_close(property_scores(x, colour), (x.mean((2, 3)) * weights).sum(1))
    grey = x.mean(1)
    torch.testing.assert_close(property_scores(x, "hedge"), (grey[:, -1] - grey[:, 0]).mean(1) / 6)
    torch.testing.assert_close(property_scores(x, "vedge"), (grey[:, :, -1] - grey[:, :, 0]).mean(1) / 8)


def test_the_random_kernel_is_one_and_the_same_and_ignores_flat_images():
    x = images(4, 3, 8, 8)
    assert float(random_kernel(x).sum()) == pytest.approx(0, abs=1e-12)
    assert torch.equal(random_kernel(x), random_kernel(x[:1]))
    torch.testing.assert_close(property_scores(x, "rand_conv"), property_scores(x + 0.3, "rand_conv"))
    by_hand = sum((random_kernel(x)[0] * x[2, :, i : i + 3, j : j + 3]).sum() for i in range(6) for j in range(6)) / 36
    torch.testing.assert_close(property_scores(x, "rand_conv")[2], by_hand)


@pytest.mark.parametrize("kind", PROPERTIES)
def test_batches_of_batches_score_alike(kind: str):
    x = images(2, 4, 3, 6, 6)
    torch.testing.assert_close(property_scores(x, kind)[1], property_scores(x[1], kind))


def test_a_property_that_images_cannot_have_is_refused():
    with pytest.raises(InputError, match="needs colour images"):
        property_scores(images(2, 1, 6, 6), "red")


@pytest.mark.parametrize("kind", SHIFTABLE)
def test_a_shift_changes_the_score_by_the_amount(kind: str):
    x = 0.4 + 0.2 * images(3, 4, 3, 6, 6)
    amount = torch.tensor([0.05, -0.1, 0.0], dtype=torch.float64)
    moved = property_scores(shift(x, amount, kind), kind) - property_scores(x, kind)
    torch.testing.assert_close(moved, amount[:, None].expand(3, 4))


def test_only_some_properties_can_have_a_threshold():
    with pytest.raises(UsageError, match="defined for bright, dark, red, not for 'hedge'"):
        shift(images(1, 2, 3, 6, 6), torch.zeros(1), "hedge")


def test_the_threshold_isolates_more_often_than_others():
    scores = torch.randn(4000, 8, generator=generator(0, "scores"))

    def isolated(threshold: float, clients: int) -> float:
        above = (scores[: 4000 // clients * clients] > threshold).sum(1).view(-1, clients)
        return float(((above.sum(1)) == 1).double().mean())

    for clients in (1, 4):
        chosen = best_threshold(scores, clients)
        rates = [isolated(value, clients) for value in torch.linspace(0, 4, 41).tolist()]
        assert isolated(chosen, clients) > 0.95 * max(rates)
    assert best_threshold(scores, 4) > best_threshold(scores, 1)
