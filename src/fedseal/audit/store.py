"""The run's memory: SQLite for records, safetensors for images, each written whole or not at all.

Images are written before the record that names them, so a crash leaves at most an unused file. A record is final: a
finished trial is never run twice. One process writes; a second one is told so.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedseal.audit.records import TrialRecord
from fedseal.core.errors import InputError, StorageError
from fedseal.core.files import storage_error, write_atomically

_SCHEMA = 1
_FILE = "store.sqlite"


class Store:
    """The store of one run directory.

    Args:
        directory: created if missing.
        writable: whether to take the writer's lock.
    """

    def __init__(self, directory: Path, *, writable: bool) -> None:
        self.directory = directory
        self._path = directory / _FILE
        self._lock = self._take_lock() if writable else None
        if not writable and not self._path.is_file():
            raise InputError(
                f"{directory} holds no fedseal run.", hint="Name the directory given to `fedseal audit --out`."
            )
        try:
            self._db = sqlite3.connect(self._path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            if writable:
                self._db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
                self._db.execute("CREATE TABLE IF NOT EXISTS trials (key TEXT PRIMARY KEY, record TEXT NOT NULL)")
            self._check_schema(writable)
        except sqlite3.Error as error:
            raise self._error(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()
        if self._lock is not None:
            self._lock.close()

    def save(self, records: Iterable[TrialRecord]) -> None:
        """Add records in one transaction: all of them or none."""
        rows = [(record.key, record.model_dump_json()) for record in records]
        self._write(lambda: self._db.executemany("INSERT OR REPLACE INTO trials VALUES (?, ?)", rows))

    def save_images(self, key: str, content: bytes) -> str:
        """Write a trial's images, a safetensors file, and return its path relative to the directory."""
        name = f"artefacts/{key[:2]}/{key}.safetensors"
        write_atomically(self.directory / name, content)
        return name

    def load(self, keys: Sequence[str]) -> dict[str, TrialRecord]:
        """Return the records there are for `keys`."""
        wanted = set(keys)
        try:
            rows = self._db.execute("SELECT key, record FROM trials").fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error
        return {key: TrialRecord.model_validate_json(text) for key, text in rows if key in wanted}

    def set_meta(self, values: dict[str, Any]) -> None:
        """Write named JSON values in one transaction."""
        rows = [(name, json.dumps(value)) for name, value in values.items()]
        self._write(lambda: self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows))

    def meta(self) -> dict[str, Any]:
        """Return all named values."""
        try:
            return {name: json.loads(value) for name, value in self._db.execute("SELECT name, value FROM meta")}
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _write(self, action: Any) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            action()
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise self._error(error) from error

    def _check_schema(self, writable: bool) -> None:
        found = self._db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if found is None and writable:
            self.set_meta({"schema": _SCHEMA})
        elif found is None or json.loads(found[0]) != _SCHEMA:
            raise StorageError(f"{self._path} was written by another version.", hint="Use a new directory with --out.")

    def _take_lock(self) -> Any:
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
        return lock

    def _error(self, error: sqlite3.Error) -> StorageError:
        text = str(error)
        if "full" in text or "disk I/O" in text:
            return StorageError(
                f"no space left to write {self._path}.",
                hint="Free some space and run the same command again: it resumes.",
            )
        if "readonly" in text or "unable to open" in text:
            return StorageError(f"cannot write {self._path}: {text}.", hint="Choose a writable directory with --out.")
        return StorageError(f"{self._path} cannot be used: {text}.", hint="Use a new directory with --out.")
