from __future__ import annotations

import math

import pytest
import torch

from fedseal.core.errors import InputError
from fedseal.metrics.gradient import cosine_similarity, density, relative_distance

G = {"w": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([4.0])}


def test_relative_distance_by_hand():
    u = {"w": torch.tensor([[0.0, 0.0]]), "b": torch.tensor([4.0])}
    assert relative_distance(G, u) == pytest.approx(3 / 5)
    assert relative_distance(G, G) == 0
    assert relative_distance(u, G) == pytest.approx(3 / 4)  # relative to the first


def test_cosine_by_hand():
    u = {"w": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([0.0])}
    assert cosine_similarity(G, u) == pytest.approx(3 / 5)
    assert cosine_similarity(G, {n: -7 * t for n, t in G.items()}) == pytest.approx(-1)
    # one global cosine: the mean of the two layers' would be 1
    assert cosine_similarity(G, {"w": 10 * G["w"], "b": G["b"]}) == pytest.approx(106 / (5 * math.sqrt(916)))


def test_density_by_hand():
    assert density(G) == pytest.approx(2 / 3)
    assert density({"w": torch.zeros(4)}) == 0


def test_zero_gradients_have_no_relative_distance():
    zero = {n: torch.zeros_like(t) for n, t in G.items()}
    assert relative_distance(zero, G) is None
    assert relative_distance(G, zero) == 1
    assert cosine_similarity(G, zero) is None


def test_tiny_gradients_do_not_underflow():
    tiny = {"w": torch.full((4,), 1e-30)}
    assert relative_distance(tiny, {"w": torch.full((4,), 2e-30)}) == pytest.approx(1)
    assert cosine_similarity(tiny, tiny) == pytest.approx(1)


def test_wrong_updates_are_refused():
    with pytest.raises(InputError, match="'b' is missing"):
        relative_distance(G, {"w": G["w"]})
    with pytest.raises(InputError, match="'w' has shape"):
        cosine_similarity(G, {"w": torch.zeros(2), "b": G["b"]})
    with pytest.raises(InputError, match="'b' holds 1"):
        relative_distance(G, {"w": G["w"], "b": torch.tensor([math.nan])})
    with pytest.raises(InputError, match="'b' holds 1"):
        density({"b": torch.tensor([math.nan])})
    with pytest.raises(InputError, match="no coordinates"):
        density({})
