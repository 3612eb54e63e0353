"""Selection by magnitude equals a stable descending sort, at every count, with ties and zeros."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseal.core.seeds import generator
from fedseal.defences.selection import largest, largest_and_middle


def ranks(magnitude: torch.Tensor) -> torch.Tensor:
    """Return the rank of each entry, 0 the largest, by a full stable sort."""
    order = magnitude.sort(descending=True, stable=True).indices
    return torch.empty_like(order).scatter(0, order, torch.arange(len(order)))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.data())
def test_ties_are_cut_in_index_order(values: list[int], data: st.DataObject):
    magnitude = torch.tensor(values, dtype=torch.float32)
    top = data.draw(st.integers(0, len(values)))
    bottom = data.draw(st.integers(0, len(values) - top))
    rank = ranks(magnitude)
    tops, middle = largest_and_middle(magnitude, top, bottom)
    assert torch.equal(tops, rank < top)
    assert torch.equal(middle, (rank >= top) & (rank < len(values) - bottom))
    assert torch.equal(largest(magnitude, top), rank < top)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_it_is_exact_on_many_values(dtype: torch.dtype):
    magnitude = torch.randn(20_000, generator=generator(0)).abs().to(dtype)
    tops, middle = largest_and_middle(magnitude, 1000, 15_000)
    rank = ranks(magnitude)
    assert torch.equal(tops, rank < 1000)
    assert torch.equal(middle, (rank >= 1000) & (rank < 5000))
