"""An audit of text, from the scenario to the page: the same commands, verdict and reports as of images."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
import torch

import fedseal
from fedseal.attacks.learned.words import WordVectors
from fedseal.audit.levels import RiskLevel
from fedseal.audit.run import Run
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.report.html import render_html
from fedseal.report.machine import report_data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    scenario = Scenario(
        name="ward",
        data="text:notes?length=16&limit=400",
        model="text-encoder:width=16,layers=1",
        client={"batch_size": 1},
        attacks=["words", "ig:iterations=2"],
        defences=["gaussian:sigma=0.5"],
        readings=1,
        targets=4,
    )
    return run_audit([scenario], tmp_path_factory.mktemp("text"))


def test_words_that_come_back_are_a_very_high_risk(run: Run) -> None:
    rows = {row.defence: row for row in run.verdict().rows}
    assert rows["none"].level is RiskLevel.VERY_HIGH
    assert "rebuilds its texts at" in run.verdict().sentence()
    done = [record for record in run.records if record.status == "ok" and record.defence == "none"]
    assert all(record.scale == "tokens" and min(record.psnr) > 80 for record in done)
    assert all(min(record.metrics["precision"]) == 1.0 for record in done)
    assert {"rouge1", "rouge2", "rougeL", "exact", "edit"} <= set(done[0].metrics)
    assert all(rank == 1 for record in done for rank in record.ranks["words"])


def test_noise_on_every_row_hides_them(run: Run) -> None:
    noisy = [record for record in run.records if record.defence != "none" and record.attack == "words"]
    assert all(record.status == "ok" and max(record.psnr) < 50 for record in noisy)


def test_attacks_on_images_are_refused_and_the_ideal_reading_says_why_it_has_no_figure(run: Run) -> None:
    refused = [record for record in run.records if record.attack.startswith("ig")]
    assert {record.status for record in refused} == {"refused"}
    assert "rebuilds data of the kind image, and the clients hold text" in refused[0].message
    assert all(
        "has no neighbourhood" in reading.reason or "no neighbourhood" in reading.reason for reading in run.readings
    )


def test_the_report_shows_both_texts_and_withholds_them_when_asked(run: Run) -> None:
    record = next(record for record in run.records if record.status == "ok" and record.defence == "none")
    found = run.texts(record)
    assert found is not None
    original = found[0][0]
    page, withheld = render_html(run), render_html(run, redact=True)
    assert '<dl class="passage">' in page
    assert "words recovered in %" in page
    assert original[1] in page
    assert '<dl class="passage">' not in withheld
    assert not any(" ".join(original[i : i + 3]) in withheld for i in range(len(original) - 2))


def test_programs_are_told_the_scale(run: Run, tmp_path: Path) -> None:
    assert {record["scale"] for record in report_data(run)["records"] if record["status"] == "ok"} == {"tokens"}


def test_vectors_of_words_are_read_back_as_these_words() -> None:
    vectors = WordVectors(torch.rand(50, 8, generator=torch.Generator().manual_seed(0)))
    ids = torch.randint(50, (3, 2, 7), generator=torch.Generator().manual_seed(1))
    assert vectors.of(ids).shape == (3, 2, 56)
    assert torch.equal(vectors.nearest(vectors.of(ids) + 0.001), ids)


@pytest.mark.slow
def test_a_map_learned_from_public_texts_answers_with_words(tmp_path: Path) -> None:
    scenario = {"data": "text:notes?length=12", "model": "text-encoder:width=16,layers=1", "readings": 0}
    run = fedseal.audit(scenario, attacks=["learned:features=512"], defences=["none"], targets=8, out=tmp_path)
    assert [record.status for record in run.records] == ["ok"] * 8
    assert all("public texts" in " ".join(record.notes) for record in run.records)
    found, guessed = (
        fmean(values) for values in zip(*((r.psnr[0], r.baselines["frequent"][0]) for r in run.records), strict=True)
    )
    assert found > guessed
    network = fedseal.audit(scenario, attacks=["learned:form=network"], targets=1, out=tmp_path / "network")
    assert "by a kernel" in network.records[0].message
