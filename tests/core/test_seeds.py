"""Seeds: streams that are reproducible, independent of one another, and never the global generator."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedseal.core.seeds import derive_seed, generator

PATHS = st.lists(st.one_of(st.integers(), st.text("abc", min_size=1)), max_size=3).map(tuple)


def draw(seed: int | None, *path: str | int) -> torch.Tensor:
    return torch.randn(10_000, generator=generator(seed, *path), dtype=torch.float64)


@given(st.integers(), PATHS)
def test_derived_seeds_fit_63_bits_and_repeat(seed: int, path: tuple[str | int, ...]):
    value = derive_seed(seed, *path)
    assert 0 <= value < 2**63
    assert value == derive_seed(seed, *path)


def test_streams_repeat():
    assert torch.equal(draw(1, "noise", 2), draw(1, "noise", 2))


def test_streams_of_other_names_or_seeds_are_uncorrelated():
    streams = [draw(0, "a"), draw(0, "b"), draw(0, "a", 1), draw(0, "a", 2), draw(1, "a"), draw(2, "a"), draw(0)]
    correlation = torch.corrcoef(torch.stack(streams)) - torch.eye(len(streams), dtype=torch.float64)
    assert float(correlation.abs().max()) < 0.05  # five standard deviations


def test_a_draw_in_one_stream_does_not_shift_another():
    first = generator(0, "targets")
    torch.randn(100, generator=generator(0, "defence"))
    assert torch.equal(torch.randn(5, generator=first), torch.randn(5, generator=generator(0, "targets")))


def test_without_a_seed_streams_are_fresh():
    assert not torch.equal(draw(None, "noise"), draw(None, "noise"))


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    draw(3, "noise")
    draw(None)
    assert torch.equal(before, torch.get_rng_state())
