"""Attacks on tables: how much of records comes back, and that an audit says so in cells."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedseal
from fedseal.attacks.tableak import cell_entropy, relaxed
from fedseal.audit.factor_tables import factor_tables
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.privacy import PrivateRelease
from fedseal.core.reconstruction import Reconstruction
from fedseal.data.registry import DATASETS
from fedseal.data.table import TableDataset
from fedseal.information.proven import prove
from fedseal.metrics.records import cell_scores, guesses, paired
from fedseal.models.registry import build_model
from fedseal.report.protocol import write_protocol


@pytest.fixture(scope="module")
def people() -> TableDataset:
    found = DATASETS.build("census:rows=200")
    assert isinstance(found, TableDataset)
    return found


def attacked(people: TableDataset, spec: str, model: str, count: int, seed: int = 1) -> tuple[Reconstruction, Tensor]:
    net = build_model(model, input_shape=people.shape, num_classes=2, seed=0, probe=people.probe())
    batch = people.batch(torch.arange(count))
    loss = nn.functional.cross_entropy(net(batch.inputs), batch.labels)
    names = [name for name, _ in net.named_parameters()]
    sent = dict(zip(names, torch.autograd.grad(loss, list(net.parameters())), strict=True))
    known = Knowledge(
        people.shape,
        2,
        batch_size=count,
        labels=batch.labels,
        label_rule="true",
        modality="table",
        encoding=people.encoding,
    )
    found = ATTACKS.build(spec).run(Observation(net, Update(sent, "gradient"), known), Budget(), seed)
    return found, batch.inputs


def test_an_ensemble_recovers_four_in_five_cells_of_a_single_record(people: TableDataset):
    shares = []
    for seed in (1,):
        found, truth = attacked(people, "tableak:members=4,iterations=120", "mlp:width=32,activation=tanh", 1, seed)
        shares.append(float(cell_scores(people.columns, truth, found.images)))
    guess = guesses(people.columns, people.batch(torch.arange(1)), people.batch(torch.arange(50, 200)), 0)["typical"]
    assert min(shares) > 80
    assert float(cell_scores(people.columns, people.rows[:1], guess)) < 70
    assert any("agree on" in note for note in found.notes)


def test_records_behind_relu_are_exact_whatever_their_columns(people: TableDataset):
    found, truth = attacked(people, "spear", "mlp:width=64", 4)
    assert found.objective == 0
    order = paired(people.columns, truth, found.images)
    assert torch.allclose(found.images[order], truth, atol=1e-3)


def test_the_first_linear_layer_of_a_residual_net_gives_one_record_away(people: TableDataset):
    found, truth = attacked(people, "first-layer", "tab-resnet:width=16,hidden=16", 1)
    assert torch.allclose(found.images, truth, atol=1e-4)


def test_an_ensemble_runs_alike_with_one_seed(people: TableDataset):
    spec = "tableak:members=2,iterations=5"
    one, other = (attacked(people, spec, "mlp:width=16", 2)[0] for _ in range(2))
    assert torch.equal(one.images, other.images)
    assert bool(((one.images >= 0) & (one.images <= 1)).all())


def test_entropy_is_zero_where_members_agree_and_one_where_they_do_not(people: TableDataset):
    same = people.rows[:2].expand(5, -1, -1)
    assert float(cell_entropy(people.columns, same).max()) < 1e-6
    free = torch.zeros(3, 2, people.columns.width)
    even = cell_entropy(people.columns, relaxed(people.columns, free))
    kinds = torch.tensor([bool(column.categories) for column in people.columns.columns])
    assert torch.allclose(even[:, kinds], torch.ones(()).double(), atol=1e-5)


def test_an_audit_of_a_table_speaks_of_records_and_cells(tmp_path: Path):
    run = fedseal.audit(
        data="census:rows=300",
        model="mlp:width=32",
        attacks="first-layer",
        defences="none",
        targets=4,
        out=tmp_path / "run",
    )
    record = next(record for record in run.records if record.defence == "none")
    assert record.scale == "cells"
    assert record.psnr == (100.0,)
    assert record.metrics["record recovered"] == (1.0,)
    assert record.baselines["typical"][0] < 100
    assert record.ranks["mse"] == (1,)
    assert "records" in run.verdict().sentence()
    texts = run.texts(record)
    assert texts is not None
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("attack", "least"), [("retrieval", 45.0), ("learned", 45.0), ("learned:form=network,epochs=2", 0.0)]
)
def test_who_looks_up_or_learns_takes_tables_too(attack: str, least: float, tmp_path: Path):
    run = fedseal.audit(
        fedseal.Scenario(
            data="census:rows=300", model="mlp:width=16", attacks=[attack], defences=["none"], targets=4, readings=0
        ),
        out=tmp_path / "run",
    )
    assert [record.status for record in run.records] == ["ok"] * 4
    assert sum(record.psnr[0] for record in run.records) / 4 > least
    assert all("records" in " ".join(record.notes) for record in run.records)
    assert "dB" not in " ".join(note for record in run.records for note in record.notes)


def test_matching_of_images_is_refused_for_tables_in_words(tmp_path: Path):
    run = fedseal.audit(
        fedseal.Scenario(data="census:rows=200", model="mlp:width=16", attacks=["ig"], targets=1, readings=0),
        out=tmp_path / "run",
    )
    assert {record.status for record in run.records} == {"refused"}
    assert "ig rebuilds data of the kind image, and the clients hold table" in run.records[0].message


def test_factors_of_tables_and_proofs_speak_of_cells_and_records(tmp_path: Path):
    scenario = {"data": "census:rows=200", "model": "mlp:width=8", "client": {"batch_size": [1, 2]}}
    run = fedseal.audit(scenario, attacks="first-layer", targets=2, out=tmp_path)
    (answer,) = [table.sentence() for table in factor_tables(run)]
    assert "cells recovered" in answer
    write_protocol(run, tmp_path)
    for name in ("protocol.md", "protocol.html"):
        text = (tmp_path / name).read_text()
        assert "ells recovered (%)" in text
        assert "dB" not in text
        assert "PSNR" not in text
    public = DATASETS.build("census:rows=200").batch()
    proof = prove([PrivateRelease("sample", "gaussian", 10.0)], public, labels_known=True)
    assert proof is not None
    assert "rebuilds a record to a root mean square error of" in proof.sentence()
    assert "dB" not in proof.sentence()
    words = DATASETS.build("text:notes?length=8&limit=60").batch()
    told = prove([PrivateRelease("sample", "gaussian", 10.0)], words, labels_known=True)
    assert told is not None
    assert "rebuilds a text but for 1% of its words" in told.sentence()
