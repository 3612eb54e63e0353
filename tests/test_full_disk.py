"""A full disk, while SQLite or an artefact is written: one line, nothing lost, and the audit resumes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedseal.audit.runner import open_run, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.core.errors import StorageError
from fedseal.report.write import write_reports
from fedseal.store.database import Store
from fedseal.store.records import TrialRecord

SCENARIO = Scenario(
    data="faces:size=64", attacks=("ig:iterations=1",), defences=("none", "topk"), targets=4, readings=0
)


def record(key: str, size: int = 0) -> TrialRecord:
    return TrialRecord(key=key, scenario="s", defence="none", attack="ig", aware=False, target=0, message="x" * size)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, *, leave: int) -> None:
    """Fill the disk but for `leave` bytes."""
    free = os.statvfs(disk)
    with (disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave)


def test_a_store_on_a_full_disk_keeps_what_it_has(disk: Path):
    with Store(disk / "run", writable=True) as store:
        store.save([record("a")])
        fill(disk, leave=0)
        with pytest.raises(StorageError, match=r"no space left to write .*store\.sqlite") as caught:
            store.save([record("b", 300_000)])
        assert "it resumes" in str(caught.value)
        assert set(store.load(["a", "b"])) == {"a"}
        (disk / "filler").unlink()
        store.save([record("b", 300_000)])
    with Store(disk / "run", writable=False) as store:
        assert set(store.load(["a", "b"])) == {"a", "b"}


def test_a_store_cannot_begin_on_a_full_disk(disk: Path):
    fill(disk, leave=0)
    with pytest.raises(StorageError, match="no space left"):
        Store(disk / "run", writable=True)
    (disk / "filler").unlink()
    with Store(disk / "run", writable=True) as store:
        store.save([record("a")])


def test_an_audit_that_runs_out_of_space_resumes(disk: Path):
    run_audit([SCENARIO.model_copy(update={"defences": ("none",)})], disk / "run")
    fill(disk, leave=120_000)
    with pytest.raises(StorageError, match="no space left to write"):
        run_audit([SCENARIO], disk / "run")
    part = open_run(disk / "run")
    assert 4 <= len(part.records) < part.planned == 12
    assert not [path for path in (disk / "run").rglob(".*") if path.name != ".lock"]
    (disk / "filler").unlink()
    whole = run_audit([SCENARIO], disk / "run")
    assert len(whole.records) == 12
    assert [r for r in whole.records if r.key in {p.key for p in part.records}] == list(part.records)


def test_reports_on_a_full_disk_leave_the_old_ones(disk: Path):
    run = run_audit([SCENARIO.model_copy(update={"targets": 1})], disk / "run")
    before = {kind: path.read_bytes() for kind, path in write_reports(run, disk / "run").items()}
    fill(disk, leave=0)
    with pytest.raises(StorageError, match=r"no space left to write .*report\.html"):
        write_reports(run, disk / "run", redact=True)
    (disk / "filler").unlink()
    assert (disk / "run" / "report.html").read_bytes() == before["html"]


def test_a_run_on_a_read_only_disk_is_shown(disk: Path):
    run = run_audit([SCENARIO.model_copy(update={"targets": 1})], disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert open_run(disk / "run") == run
    with pytest.raises(StorageError, match=r"cannot write .*read-only") as caught:
        run_audit([SCENARIO], disk / "run")
    assert "--out" in str(caught.value)


LIMITED = """
import resource, signal, sys
from pathlib import Path
from fedseal.store.records import TrialRecord
from fedseal.store.database import Store
from fedseal.core.errors import StorageError

def record(key, size):
    return TrialRecord(
        key=key, scenario="s", defence="none", attack="ig", aware=False, target=0, message="x" * size
    )

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Store(Path(sys.argv[1]), writable=True) as store:
    store.save([record("a", 10)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    for write in (lambda: store.save([record("b", 500_000)]), lambda: store.save_images("c", bytes(500_000))):
        try:
            write()
        except StorageError as error:
            print(error)
    print(sorted(store.load(["a", "b"])))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.save([record("b", 500_000)])
"""


def test_files_that_may_not_grow_are_a_full_disk_too(tmp_path: Path):
    """The same without a disk of its own: a limit on the size of files, as quotas set it."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    first, second, kept = done.stdout.splitlines()
    assert "no space left to write" in first
    assert "store.sqlite" in first
    assert "no space left to write" in second
    assert "c.safetensors" in second
    assert kept == "['a']"
    with Store(tmp_path, writable=False) as store:
        assert set(store.load(["a", "b"])) == {"a", "b"}
    assert [path for path in (tmp_path / "artefacts").rglob("*") if path.is_file()] == []
