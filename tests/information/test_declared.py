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
