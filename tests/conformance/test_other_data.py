"""Defences of the update keep the contract on texts and tables as on images; the others refuse these in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedseal
from fedseal.core.defence import DEFENCES
from fedseal.core.errors import CapabilityError
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.fitting import fitting_model
from fedseal.testing import DEFENCE_CHECKS, Check, DefenceCase
from fedseal.testing import defences as checks
from fedseal.testing.other_grounds import TABLES, TEXTS
from fedseal.testing.rounds import Ground, upload

from .cases import CASES

GROUNDS = (TEXTS, TABLES)
OF_PICTURES = {"ats", "blur", "instahide", "lids", "mixup", "pixelate", "refiner", "fedkl"}
OF_NUMBERS = {"graddefense", "optimal-noise", "soteria"}
NEEDS_A_FILE = {"pretrained"}

CHEAP: tuple[Check[DefenceCase], ...] = (
    checks.does_nothing_at_zero_strength,
    checks.repeats_by_its_seed,
    checks.is_simulated_exactly,
    checks.reports_its_state,
)
DEAR = tuple(check for check in DEFENCE_CHECKS if check not in CHEAP)
SAID = "works on images|are choices, without any|locks batch normalisation"


REFINED_WORDS = DefenceCase(
    "refiner",
    zero="refiner:alpha=0,beta=0",
    strong=("refiner", "refiner:preset=fast"),
    random=True,
    stateful=("refiner:preset=fast",),
    withholds="body.",
    ground=TEXTS,
)
"""Refiner takes texts, but for one of its ways of working."""


def refused(name: str, ground: Ground) -> bool:
    return name in OF_PICTURES or (name in OF_NUMBERS and ground is TEXTS)


def _on(ground: Ground, case: DefenceCase) -> DefenceCase:
    """Return the case on a ground; of the table's eight features Soteria's estimate is as good as exact."""
    return replace(case, ground=ground, fixed=case.strengths if case.name == "soteria" else case.fixed)


PLAYED = [
    pytest.param(_on(ground, case), id=f"{case.name}-{ground}")
    for ground in GROUNDS
    for case in CASES
    if case.name not in NEEDS_A_FILE and not refused(case.name, ground)
] + [pytest.param(REFINED_WORDS, id="refiner-text")]


@pytest.mark.parametrize("case", PLAYED)
def test_a_defence_of_the_update_protects_other_data_too(case: DefenceCase) -> None:
    first = replace(case, strong=case.strengths[:1], stateful=(*case.stateful,), exact=case.exact[:1])
    for check in CHEAP:
        check(first)
    for spec in first.strengths:
        sent, plain = first.upload(spec), first.upload("none")
        assert all(bool(torch.isfinite(tensor).all()) for tensor in sent.values())
        assert list(sent) != list(plain) or any(not torch.equal(plain[name], sent[name]) for name in plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [check for check in DEFENCE_CHECKS if check not in CHEAP], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("case", PLAYED)
def test_it_keeps_the_rest_of_the_contract(case: DefenceCase, check: Check[DefenceCase]) -> None:
    if (reason := check(case)) is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("ground", GROUNDS, ids=str)
@pytest.mark.parametrize("name", sorted({*OF_PICTURES, *OF_NUMBERS} & set(DEFENCES.names())))
def test_what_makes_no_sense_there_is_refused_in_words(name: str, ground: Ground) -> None:
    if name == "refiner" and ground is TEXTS:
        pytest.skip("it refines word vectors")
    if not refused(name, ground):
        pytest.skip("it differentiates by its inputs, which rows of a table are made for")
    with pytest.raises(CapabilityError, match=r"works on images|are choices, without any|locks batch norm") as said:
        upload(build_defence(name), ground=ground)
    assert said.value.hint


@pytest.mark.parametrize("name", ["gaussian", "dp-sgd", "topk"])
def test_a_whole_client_round_of_next_tokens_is_defended(name: str) -> None:
    data = DATASETS.build("text:notes?length=8&limit=20")
    model = fitting_model("text-decoder:width=8,layers=1,task=next-token", data, "next-token", 0)
    config = RoundConfig(loss="next-token")
    done = client_round(model, [data.batch(torch.arange(3))], config, build_defence(name), generator(0))
    plain = client_round(model, [data.batch(torch.arange(3))], config, build_defence("none"), generator(0))
    assert any(not torch.equal(done.update.tensors[key], plain.update.tensors[key]) for key in plain.update.tensors)


def test_federations_of_tables_train_many_clients_at_once(tmp_path: Path) -> None:
    values = {"data": "census:rows=400", "model": "mlp:width=16", "clients": 3, "federation": {"rounds": 1}}
    run = fedseal.train(values, defences=["topk:ratio=0.5"], out=tmp_path / "run")
    assert [utility.defence for utility in run.utilities] == ["none", "topk:ratio=0.5"]
