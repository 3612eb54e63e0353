"""MinMax sampling: counts, unbiasedness, inclusion probabilities, and the view of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.defence import RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.defences.minmax import MinMaxSampling, minmax_sample
from fedseal.defences.pipeline import build_defence

DRAWS = 100_000


def context(seed: int = 0) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("sampling needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(seed))


def update(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    source = generator(1)
    return {
        "w": torch.randn(30, 40, generator=source).to(dtype),
        "b": 0.1 * torch.randn(50, generator=source).to(dtype),
    }


@pytest.mark.parametrize("kept", [1, 3, 7])
def test_the_mean_upload_is_the_update(kept: int):
    x = torch.tensor([3.0, -2.0, 1.0, 0.7, -0.5, 0.2, 0.1, -0.05, 0.0], dtype=torch.float64)
    draws = minmax_sample(x.expand(DRAWS, -1), kept, generator(3))
    error = draws.std(0) / math.sqrt(DRAWS)
    assert bool(((draws.mean(0) - x).abs() <= 3 * error).all())
    assert bool(((draws != 0).sum(1) == kept).all())


def test_entries_are_kept_with_the_probability_of_the_paper():
    x = torch.linspace(0.1, 3, 200, dtype=torch.float64)
    draws = minmax_sample(x.expand(20_000, -1), 40, generator(4))
    kept = draws != 0
    threshold = torch.where(kept, (draws - x) * x, 0.0).amax(1, keepdim=True)  # C = (sent - x) x
    expected = (x**2 / (x**2 + threshold)).mean(0)
    torch.testing.assert_close(kept.double().mean(0), expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("scope", "counts"), [("tensor", {"w": 120, "b": 5}), ("update", None)])
def test_exactly_the_share_is_sent(scope: str, counts: dict[str, int] | None, dtype: torch.dtype):
    sent = build_defence(f"minmax:ratio=0.9,scope={scope}").on_update(update(dtype), context())
    found = {name: int((tensor != 0).sum()) for name, tensor in sent.items()}
    assert sum(found.values()) == 125
    assert counts is None or found == counts
    assert all(tensor.dtype == dtype for tensor in sent.values())


def test_ratio_zero_is_the_identity_and_zeros_are_never_sent():
    x = {"w": torch.tensor([-0.0, 2.0, -1.0])}
    assert MinMaxSampling(ratio=0).on_update(x, context())["w"] is x["w"]
    sparse = {"w": torch.tensor([0.0, 5.0, 0.0, 0.0])}
    assert MinMaxSampling(ratio=0.5).on_update(sparse, context())["w"].tolist() == [0, 5, 0, 0]
    assert MinMaxSampling(ratio=0.5).on_update({"w": torch.zeros(6)}, context())["w"].tolist() == [0] * 6


def test_the_attacker_compares_what_was_sent():
    sent = MinMaxSampling(ratio=0.5).on_update(update(), context())
    simulated = MinMaxSampling(ratio=0.5).attacker_view().simulate(update(), sent)
    for name, tensor in update().items():
        assert torch.equal(simulated[name], torch.where(sent[name] != 0, tensor, 0.0))


@pytest.mark.parametrize("spec", ["minmax:ratio=1", "minmax:ratio=-0.1", "minmax:ratio=nan", "minmax:scope=layer"])
def test_nonsense_is_refused(spec: str):
    with pytest.raises(UsageError, match="minmax"):
        build_defence(spec)


@pytest.mark.parametrize("ratio", [0.5, 0.9])
def test_the_threshold_and_the_values_before_sampling_are_read_from_the_upload(ratio: float):
    defence = MinMaxSampling(ratio)
    source = generator(4)
    heavy = {}
    for name, size in (("w", 4000), ("b", 200)):  # of the law the attacker assumes, (1 + |x|)^-4
        u, coin = torch.rand(2, size, generator=source, dtype=torch.float64)
        heavy[name] = (coin - 0.5).sign() * ((1 - u) ** (-1 / 3) - 1)
    sent = defence.on_update(heavy, context(5))
    read = defence.attacker_view().read(sent)

    def error(guess: dict[str, Tensor]) -> float:
        return sum(float(((guess[name] - heavy[name]) * (sent[name] != 0)).square().sum()) for name in sent)

    assert error(read) < error(sent)
    assert all(bool(((read[name] == 0) == (sent[name] == 0)).all()) for name in sent)
