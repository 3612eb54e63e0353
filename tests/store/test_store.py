"""The store: what is saved is there, whole, for one writer; damage is told, not raised."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedseal.audit.runner import open_run
from fedseal.core.errors import FedsealError, InputError, StorageError, UsageError
from fedseal.store.database import Store
from fedseal.store.records import TrialRecord


def record(key: str, **values: object) -> TrialRecord:
    where = {"key": key, "scenario": "s", "defence": "none", "attack": "ig", "aware": False, "target": 0}
    return TrialRecord.model_validate(where | values)


def refusal(directory: Path, *, writable: bool) -> str:
    def read() -> None:
        with Store(directory, writable=writable) as store:
            store.meta()
            store.load(["a"])

    with pytest.raises(FedsealError) as caught:
        read()
    assert caught.value.exit_code == 2
    assert str(directory) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with a store of two records, one of them with numbers that JSON has no word for."""
    diverged = record("a", trace=((0, float("inf")), (1, 2.5)), cost={"epsilon_nominal": float("inf")})
    with Store(tmp_path / "run", writable=True) as store:
        store.save([diverged, record("b")])
        store.set_meta({"plan": [["s", "a"]], "text": "ä"})
    return tmp_path / "run"


def test_what_was_saved_is_read_back(run: Path):
    with Store(run, writable=False) as store:
        diverged = record("a", trace=((0, float("inf")), (1, 2.5)), cost={"epsilon_nominal": float("inf")})
        assert store.load(["a", "b", "c"]) == {"a": diverged, "b": record("b")}
        assert store.load(["c"]) == {}
        assert store.meta()["text"] == "ä"


def test_a_store_opened_again_keeps_what_it_has(run: Path):
    with Store(run, writable=True) as store:
        store.save([record("c")])
    with Store(run, writable=False) as store:
        assert set(store.load(["a", "b", "c"])) == {"a", "b", "c"}


def test_records_are_saved_all_or_none(run: Path):
    with sqlite3.connect(run / "store.sqlite") as database:
        database.execute(
            "CREATE TRIGGER no BEFORE INSERT ON trials WHEN NEW.key = 'd' BEGIN SELECT RAISE(ABORT, 'no d'); END"
        )
    with Store(run, writable=True) as store:
        with pytest.raises(StorageError, match="no d"):
            store.save([record("c"), record("d"), record("e")])
        assert set(store.load(["c", "d", "e"])) == set()
        store.save([record("c")])
        assert set(store.load(["c"])) == {"c"}


def test_images_lie_beside_the_records(run: Path):
    with Store(run, writable=True) as store:
        name = store.save_images("abc", b"bytes")
    assert (run / name).read_bytes() == b"bytes"


def test_a_reader_sees_what_a_writer_saves(run: Path):
    with Store(run, writable=True) as writer, Store(run, writable=False) as reader:
        writer.save([record("c")])
        assert set(reader.load(["c"])) == {"c"}


def test_a_second_writer_is_refused_and_the_first_goes_on(run: Path):
    with Store(run, writable=True) as first:
        with pytest.raises(StorageError, match="another audit is writing"):
            Store(run, writable=True)
        first.save([record("c")])
    with Store(run, writable=True) as again:
        assert set(again.load(["c"])) == {"c"}


def test_a_writer_that_failed_to_open_leaves_no_lock(run: Path):
    whole = (run / "store.sqlite").read_bytes()
    (run / "store.sqlite").write_bytes(b"garbage" * 1000)
    with pytest.raises(StorageError) as kept:  # noqa: F841 - the exception keeps its frames alive
        Store(run, writable=True)
    (run / "store.sqlite").write_bytes(whole)
    with Store(run, writable=True) as store:
        assert set(store.load(["a"])) == {"a"}


def test_who_writes_next_collects_what_killed_writers_left(run: Path):
    picture, report, young = (run / name for name in ("artefacts/ab/.a.12.tmp", ".report.html.34.tmp", ".new.56.tmp"))
    picture.parent.mkdir(parents=True)
    for path in (picture, report, young):
        path.write_bytes(b"half")
    os.utime(report, (time.time() - 7200,) * 2)
    with Store(run, writable=False):
        assert picture.exists()  # readers change nothing
    with Store(run, writable=True):
        assert [path.exists() for path in (picture, report, young)] == [False, False, True]


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_what_is_no_run_is_refused(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="holds no fedseal run"):
        Store(tmp_path / place, writable=False)
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_under_a_file_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert "cannot write" in refusal(tmp_path / "file" / "run", writable=True)


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_store_is_refused(run: Path, content: bytes, writable: bool):
    (run / "store.sqlite").write_bytes(content)
    assert "--out" in refusal(run, writable=writable)
    assert (run / "store.sqlite").read_bytes() == content


@pytest.mark.parametrize("writable", [True, False])
def test_a_truncated_store_is_refused(run: Path, writable: bool):
    content = (run / "store.sqlite").read_bytes()
    (run / "store.sqlite").write_bytes(content[: len(content) // 2])
    assert "--out" in refusal(run, writable=writable)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE trials SET record = '{\"key\": ' WHERE key = 'a'",
        "UPDATE trials SET record = '{}' WHERE key = 'a'",
        "UPDATE meta SET value = '[' WHERE name = 'plan'",
        "UPDATE meta SET value = '?' WHERE name = 'schema'",
        "DROP TABLE trials",
        "DROP TABLE meta",
    ],
)
def test_damaged_entries_are_told(run: Path, damage: str):
    with sqlite3.connect(run / "store.sqlite") as database:
        database.execute(damage)
    assert "--out" in refusal(run, writable=False)


def test_a_complaint_of_sqlite_that_is_no_text_is_told(run: Path):
    with contextlib.closing(sqlite3.connect(run / "store.sqlite", isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema=ON")
        database.execute("UPDATE sqlite_master SET name = CAST(X'9A' AS TEXT), sql = 'CREATE TABLE ('")
    with contextlib.closing(sqlite3.connect(run / "store.sqlite")) as database, pytest.raises(UnicodeDecodeError):
        database.execute("SELECT * FROM meta")  # what SQLite quotes of the file is not even an error of its own
    for writable in (False, True):
        assert "--out" in refusal(run, writable=writable)


@pytest.mark.parametrize("plan", ["3", '["a"]', '[["audit", {}]]', f'[["audit", {10**30}]]'])
def test_a_plan_that_makes_no_sense_is_told(run: Path, plan: str):
    with sqlite3.connect(run / "store.sqlite") as database:
        database.execute("UPDATE meta SET value = ? WHERE name = 'plan'", (plan,))
    with pytest.raises(StorageError, match="Use a new directory with --out"):
        open_run(run)


@pytest.mark.parametrize(
    ("layout", "said"), [("1", "by an older version"), ("99", "by a newer version"), ('"x"', "by another version")]
)
def test_another_layout_is_refused(run: Path, layout: str, said: str):
    with sqlite3.connect(run / "store.sqlite") as database:
        database.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (layout,))
    for writable in (True, False):
        assert said in refusal(run, writable=writable)


def test_more_keys_than_one_question_takes_are_found(tmp_path: Path):
    records = [record(key=f"{number:064d}") for number in range(1203)]
    with Store(tmp_path, writable=True) as store:
        store.save(records)
        asked = [one.key for one in records[1:]]
        assert set(store.load([*asked, "f" * 64])) == set(asked)
        assert store.load([]) == {}


def test_a_store_without_a_plan_is_told(tmp_path: Path):
    with Store(tmp_path, writable=True):
        pass
    with pytest.raises(UsageError, match="holds no plan yet"):
        open_run(tmp_path)


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_a_store_that_opens(run: Path):
    code = f"""
import os
from pathlib import Path
from fedseal.store.records import TrialRecord
from fedseal.store.database import Store
store = Store(Path({str(run)!r}), writable=True)
store.save([TrialRecord(key="c", scenario="s", defence="none", attack="ig", aware=False, target=0)])
store._db.execute("BEGIN IMMEDIATE")
store._db.execute("DELETE FROM trials")
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with Store(run, writable=True) as store:
        assert set(store.load(["a", "b", "c"])) == {"a", "b", "c"}
