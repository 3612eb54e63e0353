"""Every defence meets a table: those of the update protect it as they do images, the others refuse it in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedseal
from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES
from fedseal.core.errors import CapabilityError
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import ClientRound, RoundConfig, client_round
from fedseal.models.registry import build_model

PEOPLE = DATASETS.build("census:rows=40")
ZERO = {
    "adadefense": "adadefense:variant=none",
    "adgp": "adgp:k1=0,k=1",
    "dgc": "dgc:ratio=0,clip=inf",
    "dgp": "dgp:k1=0,k2=0",
    "dp-sgd": "dp-sgd:sigma=0,clip=inf",
    "fed-cdp": "fed-cdp:sigma=0,clip=inf",
    "gaussian": "gaussian:sigma=0,clip=inf",
    "topk": "topk:ratio=0",
}
OF_THE_UPDATE = {*ZERO, "laplace", "minmax", "quantise", "dp-adaptive"}
OF_PICTURES = {"ats", "blur", "instahide", "lids", "mixup", "pixelate", "refiner"}
ELSEWHERE = {"pretrained"}


def batch() -> Batch:
    return PEOPLE.batch(torch.arange(4))


def played(spec: str) -> ClientRound:
    model = build_model("mlp:width=16", input_shape=PEOPLE.shape, num_classes=2, seed=0, probe=PEOPLE.probe())
    defence = build_defence(spec)
    defence.prepare(batch(), generator(0))
    return client_round(model, [batch()], RoundConfig(), defence, generator(1))


@pytest.mark.parametrize("name", sorted(OF_THE_UPDATE))
def test_defences_of_the_update_protect_tables(name: str):
    tensors = played(name).update.tensors
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    plain = played("none").update.tensors
    assert any(not torch.equal(plain[key], tensors[key]) for key in plain)


@pytest.mark.parametrize("spec", sorted(ZERO.values()))
def test_at_zero_strength_they_return_it_bit_for_bit(spec: str):
    plain, sent = played("none").update.tensors, played(spec).update.tensors
    assert all(torch.equal(plain[key], sent[key]) for key in plain)


@pytest.mark.parametrize("name", sorted(OF_PICTURES & set(DEFENCES.names())))
def test_defences_of_pictures_refuse_tables_in_words(name: str):
    with pytest.raises(CapabilityError, match="image"):
        played(name)


def test_federations_of_tables_train_many_clients_at_once(tmp_path: Path):
    values = {"data": "census:rows=400", "model": "mlp:width=16", "clients": 3, "federation": {"rounds": 1}}
    run = fedseal.train(values, defences=["topk:ratio=0.5"], out=tmp_path / "run")
    assert [utility.defence for utility in run.utilities] == ["none", "topk:ratio=0.5"]
