from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedseal.core.errors import InputError
from fedseal.metrics.labels import guessed_accuracy, label_accuracy


@pytest.mark.parametrize(
    ("labels", "guesses", "expected"),
    [
        ([3, 3, 3, 5], [3, 5, 5, 5], 0.5),
        ([0, 1, 2], [2, 0, 1], 1.0),
        ([0, 0], [1, 1], 0.0),
        ([0, 1], [0, 0], 0.5),
        ([4], [-1], 0.0),
    ],
)
def test_by_hand(labels: list[int], guesses: list[int], expected: float):
    assert label_accuracy(torch.tensor(labels), torch.tensor(guesses)) == expected


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12), st.randoms())
def test_it_is_the_best_accuracy_over_all_orders(pairs: list[tuple[int, int]], random):
    """Greedy removal finds the largest matching of equal labels; the order of either side does not matter."""
    labels, guesses = [a for a, _ in pairs], [b for _, b in pairs]
    left, right = list(guesses), 0
    for label in labels:
        if label in left:
            left.remove(label)
            right += 1
    random.shuffle(guesses)
    assert label_accuracy(torch.tensor(labels), torch.tensor(guesses)) == right / len(pairs)


@pytest.mark.parametrize(
    ("labels", "guesses"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 2, 3])),
        (torch.tensor([1]), torch.tensor([1.0])),
        (torch.tensor([[1]]), torch.tensor([[1]])),
        (torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
    ],
)
def test_wrong_labels_are_refused(labels: torch.Tensor, guesses: torch.Tensor):
    with pytest.raises(InputError, match="label accuracy"):
        label_accuracy(labels, guesses)


def test_guessing_by_frequency_scores_what_simulation_says():
    shares = torch.tensor([0.5, 0.3, 0.2])
    assert guessed_accuracy(shares, 1) == pytest.approx(0.5)
    assert guessed_accuracy(torch.tensor([7.0]), 3) == pytest.approx(1.0)
    drawn = torch.multinomial(shares, 4 * 20000, replacement=True, generator=torch.Generator().manual_seed(0))
    best = max(
        sum(label_accuracy(row, guess) for row in drawn.view(-1, 4)[:2000]) / 2000
        for guess in (torch.tensor(g) for g in ([0, 0, 1, 2], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]))
    )
    assert guessed_accuracy(shares, 4) == pytest.approx(best, abs=0.02)


def test_nothing_to_guess_by_is_refused():
    with pytest.raises(InputError, match="class frequencies"):
        guessed_accuracy(torch.zeros(3), 2)
