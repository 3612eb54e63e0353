"""Atomic writes: the old file or the new one, never a part of either, and nothing left lying about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedseal.core.errors import StorageError
from fedseal.core.files import PRIVATE, remove_temporaries, write_atomically
from fedseal.core.places import cache_directory

LIMITED = """
import resource, signal, sys
from pathlib import Path
from fedseal.core.errors import StorageError
from fedseal.core.files import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path(sys.argv[1]), b"x" * 5000)
except StorageError as error:
    print(error)
"""

INTERRUPTED = """
import os, signal, sys
from pathlib import Path
import fedseal.core.files as files
fsync = os.fsync
def interrupted(handle):
    os.kill(os.getpid(), signal.SIGINT)
    fsync(handle)
os.fsync = interrupted
try:
    files.write_atomically(Path(sys.argv[1]), b"new")
except KeyboardInterrupt:
    print("interrupted")
"""


def run(code: str, path: Path) -> str:
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout


def test_text_and_bytes_are_written_and_directories_made(tmp_path: Path):
    write_atomically(tmp_path / "a" / "b" / "text", "ä\n")
    write_atomically(tmp_path / "bytes", b"\x00\xff")
    assert (tmp_path / "a" / "b" / "text").read_text(encoding="utf-8") == "ä\n"
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    assert (tmp_path / "bytes").stat().st_mode & 0o777 == 0o644


def test_an_existing_file_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, "a long old text")
    with path.open() as reader:
        write_atomically(path, "new")
        assert reader.read() == "a long old text"
    assert path.read_text() == "new"


def test_a_full_disk_keeps_the_old_file_and_leaves_no_part(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, "old")
    said = run(LIMITED, path)
    assert f"no space left to write {path}" in said
    assert "it resumes" in said
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_interruption_keeps_the_old_file_and_leaves_no_part(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, "old")
    assert run(INTERRUPTED, path) == "interrupted\n"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("place", ["file/below", "directory"])
def test_unwritable_places_are_named(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "directory").mkdir()
    with pytest.raises(StorageError) as caught:
        write_atomically(tmp_path / place, "content")
    assert str(tmp_path / place) in str(caught.value)
    assert "--out" in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]


def test_an_unwritable_cache_is_told_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(StorageError) as caught:
        write_atomically(cache_directory() / "prepared" / "seer" / "decoder.safetensors", b"")
    assert str(caught.value).endswith("Choose a writable directory with FEDSEAL_CACHE.")
    assert str(tmp_path / "cache") in str(caught.value)
    (tmp_path / "cached").write_text("a neighbour")
    with pytest.raises(StorageError, match="with --out"):
        write_atomically(tmp_path / "cached" / "file", b"")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_umask_decides_who_reads_a_file_and_private_ones_nobody_else(tmp_path: Path, umask: int, mode: int):
    code = f"""
import os, sys
from pathlib import Path
from fedseal.core.files import PRIVATE, write_atomically
os.umask({umask})
write_atomically(Path(sys.argv[1]) / "open", "x")
write_atomically(Path(sys.argv[1]) / "private", "x", mode=PRIVATE)
"""
    run(code, tmp_path)
    assert (tmp_path / "open").stat().st_mode & 0o777 == mode
    assert (tmp_path / "private").stat().st_mode & 0o777 == PRIVATE


KILLED = """
import os, signal, sys
from pathlib import Path
import fedseal.core.files as files
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path(sys.argv[1]), b"a private picture", mode=files.PRIVATE)
"""


def test_what_a_killed_writer_left_is_private_and_collected(tmp_path: Path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "deep" / "file")], check=False)
    (left,) = (tmp_path / "deep").iterdir()
    assert left.read_bytes() == b"a private picture"
    assert left.stat().st_mode & 0o777 == PRIVATE
    (tmp_path / ".hidden").write_text("somebody else's")
    assert remove_temporaries(tmp_path, older_than=3600) == 0
    assert remove_temporaries(tmp_path) == 1
    assert not left.exists()
    assert (tmp_path / ".hidden").exists()
