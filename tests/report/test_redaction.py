"""After `--redact` nothing private is in any report, and after `purge` nowhere in the run."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fedseal
from fedseal.audit.run import Run
from fedseal.cli import app
from fedseal.report.png import encode_png
from fedseal.report.redaction import redacted_command
from fedseal.report.write import write_reports
from fedseal.store.database import Store
from fedseal.store.findings import Finding

SECRET = "class 7 has 3 samples"
RAISED = "ValueError: bad batch tensor([[0.113700731, 0.582190417]])"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run whose store holds what attacks and models say of private data, as they do."""
    out = tmp_path_factory.mktemp("real") / "run"
    run = fedseal.audit(data="faces:size=8", attacks="ig:iterations=2", targets=2, readings=1, out=out)
    with Store(out, writable=True) as store:
        first, *_ = run.records
        store.save([first.model_copy(update={"notes": (SECRET,)})])
        store.set_meta({"findings": {"audit": [Finding(severity="note", topic="x", text=RAISED).model_dump()]}})
    return out


def told(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file())


def pictures(run: Run) -> list[bytes]:
    """Return every private pixel row in the forms a file could hold it: as floats, and inside of a PNG."""
    found = []
    for record in run.records:
        for image in torch.cat(run.images(record) or (torch.empty(0, 1, 1, 1),) * 2):
            found += [image.contiguous().numpy().tobytes(), base64.b64encode(encode_png(image))]
    return found


@pytest.mark.parametrize("redact", [False, True])
def test_no_report_of_a_redacted_run_holds_a_private_pixel_label_or_word(
    make_run: Callable[..., Run], tmp_path: Path, redact: bool
) -> None:
    base = make_run(targets=4)
    records = [r.model_copy(update={"notes": (SECRET,)}) for r in base.records]
    records[0] = records[0].model_copy(update={"status": "failed", "message": RAISED, "psnr": ()})
    finding = Finding(severity="problem", topic="client round", text=f"the client's round fails: {RAISED}")
    run = replace(base, records=tuple(records), findings={base.scenarios[0].name: (finding,)})
    write_reports(run, tmp_path, redact=redact)
    content = told(tmp_path)
    shown = [one for one in pictures(make_run(targets=4)) if one in content]
    assert bool(shown) is not redact
    for secret in (SECRET, "0.113700731", "0.582190417"):
        assert (secret.encode() in content) is not redact
    assert b"ValueError" in content
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.is_file()}
    assert modes == {0o644 if redact else 0o600}


def test_private_files_of_a_run_belong_to_their_owner_alone(real: Path) -> None:
    artefacts = [path for path in (real / "artefacts").rglob("*") if path.is_file()]
    assert len(artefacts) >= 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in artefacts} == {0o600}


def test_purge_removes_what_is_private_and_keeps_scores(real: Path) -> None:
    before = fedseal.open_run(real)
    write_reports(before, real)
    (real / "artefacts" / "00").mkdir(exist_ok=True)
    (real / "artefacts" / "00" / ".x.safetensors.0123.tmp").write_bytes(b"half a picture")
    secrets = [*pictures(before), SECRET.encode(), b"0.113700731"]
    assert any(secret in told(real) for secret in secrets)
    shown = CliRunner().invoke(app, ["purge", str(real.parent)])
    assert shown.exit_code == 0, shown.output
    assert "scores" in shown.output
    everything = b"".join(path.read_bytes() for path in real.rglob("*") if path.is_file())
    assert not any(secret in everything for secret in secrets)
    assert not (real / "artefacts").exists()
    after = fedseal.open_run(real)
    assert [r.psnr for r in after.records] == [r.psnr for r in before.records]
    assert after.verdict().sentence() == before.verdict().sentence()
    assert all(record.artefact is None for record in after.records)
    again = fedseal.audit(data="faces:size=8", attacks="ig:iterations=2", targets=2, readings=1, out=real)
    assert [r.psnr for r in again.records] == [r.psnr for r in before.records]
    assert not (real / "artefacts").exists()


def test_purge_of_a_place_without_runs_says_so(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["purge", str(tmp_path)])
    assert shown.exit_code != 0
    assert "holds no fedseal run" in str(shown.exception)


def test_commands_lose_labels_and_names_of_originals() -> None:
    command = "fedseal audit-update --model m:Net --labels 3,1 --original=mr-smith.png --original x.png --out 'a b'"
    assert redacted_command(command) == (
        "fedseal audit-update --model m:Net --labels '(withheld)' '--original=(withheld)' --original '(withheld)' "
        "--out 'a b'"
    )
    assert redacted_command("fedseal audit 'my scenario.yaml'") == "fedseal audit 'my scenario.yaml'"
    assert "smith" not in redacted_command("fedseal audit-update --original 'smith.png")


def test_json_of_a_redacted_run_is_whole(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run(targets=1)
    write_reports(run, tmp_path, redact=True)
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["records"][0]["psnr"] == list(run.records[0].psnr)
    assert all(record["artefact"] is None and record["notes"] == [] for record in data["records"])
