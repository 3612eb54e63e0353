"""The run's memory: SQLite for records, safetensors for images, each written whole or not at all.

Images are written before the record that names them, so a crash leaves at most an unused file. A trial that ended well
is final and never run twice; what was refused or failed is kept too, until it runs again. One process writes; a second
one is told so.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar

from fedseal.core.errors import InputError, StorageError
from fedseal.core.files import PRIVATE, remove_temporaries, storage_error, write_atomically
from fedseal.federation.simulation.history import RoundRecord
from fedseal.store.findings import Finding
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord
from fedseal.store.redaction import redacted_finding, redacted_reading, redacted_record

T = TypeVar("T")
R = TypeVar("R", TrialRecord, ReadingRecord)

_SCHEMA = 2
"""Layout of the file and meaning of its keys. 1 (fedseal 0.1) named trials without their code and resolved options."""
_FILE = "store.sqlite"
_ARTEFACTS = "artefacts"
_ABANDONED = 3600.0
"""Seconds after which a file that was begun has no writer any more."""
_CHUNK = 500
"""Keys asked for at once; SQLite takes no more than 999 in older builds."""
_TROUBLE = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite can raise on a damaged file; its words may quote bytes of it that are no text."""


def run_directories(place: Path) -> list[Path]:
    """Return the directories at or below `place` that hold a run, in order; links are not followed."""
    found = [place] if (place / _FILE).is_file() else []
    for root, below, files in os.walk(place):
        below[:] = sorted(name for name in below if not name.startswith(".") and name != _ARTEFACTS)
        if _FILE in files and Path(root) != place:
            found.append(Path(root))
    return found


class Store:
    """The store of one run directory.

    Args:
        directory: created if missing.
        writable: whether to take the writer's lock.
    """

    def __init__(self, directory: Path, *, writable: bool) -> None:
        self.directory = directory
        self._path = directory / _FILE
        with ExitStack() as opened:  # closes again what was opened if the store turns out to be unusable
            if writable:
                opened.enter_context(self._take_lock())
                self._tidy()
            elif not self._path.is_file():
                raise InputError(
                    f"{directory} holds no fedseal run.", hint="Name the directory given to `fedseal audit --out`."
                )
            try:
                self._db = opened.enter_context(closing(self._connect(writable)))
                if writable:
                    self._prepare()
                else:
                    self._db.execute("PRAGMA query_only=ON")
                self._check_schema(writable)
            except _TROUBLE as error:
                raise self._error(error) from error
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def save(self, records: Iterable[TrialRecord]) -> None:
        """Add records in one transaction: all of them or none."""
        rows = [(record.key, record.model_dump_json()) for record in records]
        self._write(lambda: self._db.executemany("INSERT OR REPLACE INTO trials VALUES (?, ?)", rows))

    def save_images(self, key: str, content: bytes) -> str:
        """Write a trial's images, a safetensors file its owner alone may read; return its path below the directory."""
        name = f"{_ARTEFACTS}/{key[:2]}/{key}.safetensors"
        write_atomically(self.directory / name, content, mode=PRIVATE)
        return name

    def load(self, keys: Sequence[str]) -> dict[str, TrialRecord]:
        """Return the records there are for `keys`; what it costs depends on their number, not on the store's size."""
        rows: list[tuple[str, str]] = []
        try:
            for start in range(0, len(keys), _CHUNK):
                part = keys[start : start + _CHUNK]
                asked = ", ".join("?" * len(part))
                rows += self._db.execute(f"SELECT key, record FROM trials WHERE key IN ({asked})", part)
        except _TROUBLE as error:
            raise self._error(error) from error
        return {key: self._parse(TrialRecord.model_validate_json, text) for key, text in rows}

    def trials(self) -> list[TrialRecord]:
        """Return every trial there is, of this plan or of an earlier one."""
        return [record for _, record in self._all("trials", TrialRecord)]

    def readings(self) -> list[ReadingRecord]:
        """Return every ideal reading there is; none from a store that was written before there were any."""
        return [record for _, record in self._all("readings", ReadingRecord)] if self._has("readings") else []

    def save_readings(self, readings: Iterable[ReadingRecord]) -> None:
        """Add ideal readings in one transaction; one that is there already is replaced."""
        rows = [(record.key, record.model_dump_json()) for record in readings]
        self._write(lambda: self._db.executemany("INSERT OR REPLACE INTO readings VALUES (?, ?)", rows))

    def load_readings(self, keys: Sequence[str]) -> dict[str, ReadingRecord]:
        """Return the ideal readings there are for `keys`; none from a store that was written before there were any."""
        wanted = set(keys)
        try:
            if not self._has("readings"):
                return {}
            rows = self._db.execute("SELECT key, record FROM readings").fetchall()
        except _TROUBLE as error:
            raise self._error(error) from error
        return {key: self._parse(ReadingRecord.model_validate_json, text) for key, text in rows if key in wanted}

    def save_rounds(self, training: str, rounds: Iterable[RoundRecord]) -> None:
        """Add rounds of a training in one transaction; one that is there already is replaced."""
        rows = [(training, record.round, record.model_dump_json()) for record in rounds]
        self._write(lambda: self._db.executemany("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", rows))

    def load_rounds(self, training: str) -> tuple[RoundRecord, ...]:
        """Return the rounds there are of a training, in order."""
        try:
            rows = self._db.execute(
                "SELECT record FROM rounds WHERE training = ? ORDER BY round", (training,)
            ).fetchall()
        except _TROUBLE as error:
            raise self._error(error) from error
        return tuple(self._parse(RoundRecord.model_validate_json, text) for (text,) in rows)

    def set_meta(self, values: dict[str, Any]) -> None:
        """Write named JSON values in one transaction."""
        rows = [(name, json.dumps(value)) for name, value in values.items()]
        self._write(lambda: self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows))

    def meta(self) -> dict[str, Any]:
        """Return all named values."""
        try:
            rows = self._db.execute("SELECT name, value FROM meta").fetchall()
        except _TROUBLE as error:
            raise self._error(error) from error
        return {name: self._parse(json.loads, value) for name, value in rows}

    def purge(self) -> int:
        """Remove every private picture and what was said of private data; scores stay. Return how many files went."""
        rows = [(key, redacted_record(r).model_dump_json()) for key, r in self._all("trials", TrialRecord)]
        read = [(key, redacted_reading(r).model_dump_json()) for key, r in self._all("readings", ReadingRecord)]

        def rewrite() -> None:
            self._db.executemany("INSERT OR REPLACE INTO trials VALUES (?, ?)", rows)
            self._db.executemany("INSERT OR REPLACE INTO readings VALUES (?, ?)", read)

        said = self.meta().get("findings", {})
        parsed = {name: [Finding.model_validate(one) for one in found] for name, found in said.items()}
        try:
            self._db.execute("PRAGMA secure_delete=ON")
            self._write(rewrite)
            self.set_meta({"findings": {n: [redacted_finding(f).model_dump() for f in fs] for n, fs in parsed.items()}})
            self._db.execute("VACUUM")  # what was rewritten stays in no free page, nor in the log
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except _TROUBLE as error:
            raise self._error(error) from error
        place = self.directory / _ARTEFACTS
        removed = sum(path.is_file() for path in place.rglob("*"))
        try:
            shutil.rmtree(place)
        except FileNotFoundError:
            pass  # it never held any
        except OSError as error:
            raise storage_error(place, error) from error
        return removed

    def _has(self, table: str) -> bool:
        found = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        return found is not None

    def _all(self, table: str, kind: type[R]) -> list[tuple[str, R]]:
        try:
            rows = self._db.execute(f"SELECT key, record FROM {table}").fetchall()
        except _TROUBLE as error:
            raise self._error(error) from error
        return [(key, self._parse(kind.model_validate_json, text)) for key, text in rows]

    def _tidy(self) -> None:
        """Remove what killed writers left: none but the holder of the lock writes pictures, others write reports."""
        remove_temporaries(self.directory / _ARTEFACTS)
        remove_temporaries(self.directory, older_than=_ABANDONED)

    def _parse(self, parse: Callable[[str], T], text: str) -> T:
        try:
            return parse(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise StorageError(
                f"{self._path} is damaged: it holds an entry that cannot be read.",
                hint="Use a new directory with --out.",
            ) from error

    def _connect(self, writable: bool) -> sqlite3.Connection:
        """Connect to the file; on a read-only medium as one that nobody changes, as SQLite could keep no log there."""
        log = self._path.with_name(f"{_FILE}-wal")
        changeable = writable or os.access(self.directory, os.W_OK) or log.exists()
        mode = "mode=rwc" if writable else "mode=rw" if changeable else "immutable=1"
        return sqlite3.connect(f"{self._path.resolve().as_uri()}?{mode}", uri=True, isolation_level=None)

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        self._db.execute("CREATE TABLE IF NOT EXISTS trials (key TEXT PRIMARY KEY, record TEXT NOT NULL)")
        self._db.execute("CREATE TABLE IF NOT EXISTS readings (key TEXT PRIMARY KEY, record TEXT NOT NULL)")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS rounds "
            "(training TEXT, round INTEGER, record TEXT NOT NULL, PRIMARY KEY (training, round))"
        )

    def _write(self, action: Any) -> None:
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                action()
        except _TROUBLE as error:
            raise self._error(error) from error

    def _check_schema(self, writable: bool) -> None:
        """Refuse a store whose keys mean something else: its trials would be mistaken for others."""
        found = self.meta().get("schema")
        if found is None and writable:
            self.set_meta({"schema": _SCHEMA})
        elif found != _SCHEMA:
            age = "another" if not isinstance(found, int) else "an older" if found < _SCHEMA else "a newer"
            raise StorageError(
                f"{self._path} was written by {age} version of fedseal, in layout {found}; this one reads {_SCHEMA}.",
                hint="Use a new directory with --out, or that version.",
            )

    def _take_lock(self) -> TextIO:
        path = self.directory / ".lock"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = path.open("w")
        except OSError as error:
            raise storage_error(path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise StorageError(
                f"another audit is writing to {self.directory}.", hint="Wait for it, or choose another --out."
            ) from error
        except OSError as error:
            lock.close()
            raise storage_error(path, error) from error
        return lock

    def _error(self, error: Exception) -> StorageError:
        text = str(error)
        if "full" in text or "disk I/O" in text:
            return StorageError(
                f"no space left to write {self._path}.",
                hint="Free some space and run the same command again: it resumes.",
            )
        if "readonly" in text or "unable to open" in text:
            return StorageError(f"cannot write {self._path}: {text}.", hint="Choose a writable directory with --out.")
        return StorageError(f"{self._path} cannot be used: {text}.", hint="Use a new directory with --out.")
