"""Uploads are held to what their defence declares; what is fed instead of private images is turned back if possible."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.channel import Channel, constant_variance
from fedseal.federation.client import RoundConfig, plain_update
from fedseal.information.declared import disagreement
from fedseal.information.noise import what_is_wrong
from fedseal.information.undoing import FEWEST, undone_error
from fedseal.information.upload import Upload
from fedseal.models.registry import build_model

SIGMA = 0.5


def upload(noise: float, seed: int, declared: float = SIGMA, also: float = 0.0) -> Upload:
    source = torch.Generator().manual_seed(5)
    batch = Batch(torch.rand(2, 1, 8, 8, generator=source), torch.tensor([0, 1]))
    model = build_model("mlp:width=8", input_shape=(1, 8, 8), num_classes=2, seed=0)
    sent = dict(plain_update(model, [batch], RoundConfig(), torch.Generator()).tensors)
    drawn = torch.Generator().manual_seed(seed)
    sent = {name: t + noise * torch.randn(t.shape, generator=drawn) + also for name, t in sent.items()}
    channel = Channel(variance=constant_variance(declared**2)) if declared else Channel()
    return Upload(model, batch, batch, sent, RoundConfig(), channel)


def test_noise_as_declared_is_believed():
    assert disagreement(upload(SIGMA, 0), [upload(SIGMA, seed) for seed in range(1, 9)]) == ""
    assert disagreement(upload(0, 0, declared=0), [upload(0, 1, declared=0)]) == ""


@pytest.mark.parametrize(
    ("first", "again", "words"),
    [
        (upload(0, 0), [], "0.0% of the noise"),
        (upload(SIGMA / 3, 0), [], "of the noise that the defence declares"),
        (upload(SIGMA, 0), [upload(SIGMA, 0)], "not new when the same images are sent again"),
        (upload(SIGMA, 0), [upload(SIGMA, 1), upload(0, 2)], "0.0% of the noise"),
        (upload(0, 0, declared=0, also=0.01), [], "something that the defence does not declare"),
        (upload(SIGMA, 0, also=1.0), [upload(SIGMA, 1, also=1.0)], "not new"),
    ],
)
def test_what_is_not_as_declared_is_named(first: Upload, again: list[Upload], words: str):
    assert words in disagreement(first, again)


def drawn(uploads: int = 9, entries: int = 400, seed: int = 0) -> Tensor:
    return torch.randn(uploads, entries, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(6))
def test_honest_noise_of_any_law_and_size_looks_like_noise(seed: int):
    source = torch.Generator().manual_seed(seed)
    for uploads, entries in ((1, 10), (1, 2000), (9, 10), (9, 400), (16, 30)):
        sides = torch.rand(2, uploads, entries, generator=source).clamp(min=1e-30).log()
        laws = (drawn(uploads, entries, seed), (sides[0] - sides[1]) / 2**0.5, 12**0.5 * (sides[0].exp() - 0.5))
        for units in laws:
            assert what_is_wrong(units, 30 * units) == ""
        rounded = (30 * laws[0]).round()
        assert what_is_wrong(rounded / 30 + 1e-4 * drawn(uploads, entries, 99), rounded) == ""


def test_noise_that_can_be_taken_away_is_named():
    clear = drawn()
    clear[:, :4] = 0
    rarely = drawn()
    rarely[torch.rand(rarely.shape, generator=torch.Generator().manual_seed(1)) < 0.1] = 0
    for units in (clear, rarely):
        assert "without the noise" in what_is_wrong(units, units)
    twice = drawn()
    twice[5] = twice[2]
    assert "the same noise" in what_is_wrong(twice, twice)
    pairs = drawn()
    pairs[:, 1::2] = -pairs[:, ::2]
    assert "one entry tells of another" in what_is_wrong(pairs, pairs)
    steps = (30 * drawn()).round() / 30
    assert "in steps" in what_is_wrong(steps, 30 * steps + 0.02 * drawn(seed=1))


def test_what_depends_on_unknown_draws_cannot_be_confirmed():
    drawing = replace(upload(SIGMA, 0), channel=Channel(draws=lambda model, source: None))
    assert "depends on more than is declared" in disagreement(drawing)


def pictures(count: int = 200) -> Tensor:
    coarse = torch.rand(count, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(coarse, size=(9, 9), mode="bicubic").clamp(0, 1)


def test_reversible_pictures_are_turned_back_and_others_are_not():
    private = pictures()
    alone = float((private - private.mean(0)).square().mean())
    shuffled = private.flatten(1)[:, torch.randperm(81, generator=torch.Generator().manual_seed(1))].view_as(private)
    for fed in (1 - private, shuffled, (private + 0.3) % 1):
        assert (undone_error(fed, private) or 1) < 0.5 * alone
    noise = torch.rand(private.shape, generator=torch.Generator().manual_seed(2))
    assert (undone_error(noise, private) or 0) > 0.9 * alone
    assert undone_error(private[: FEWEST - 1], private[: FEWEST - 1]) is None
