"""The ledger's file: SQLite in WAL mode, readable by its owner alone, one writer at an account at a time.

Tables: `entries` is the chain; `states` holds what each account's defences keep, whose digest is in the chain;
`seeds` the seed a client prepares its data with, which is nobody else's business and is never exported. Beside the file
lie its locks, and the anchor: the newest hash, so that a chain that was cut short or removed shows.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedseal.core.errors import InputError, StorageError
from fedseal.core.files import storage_error, write_atomically
from fedseal.core.hashing import hash_json
from fedseal.ledger.chain import Entry, canonical

SCHEMA = 1

_PRIVATE = 0o600
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, account TEXT NOT NULL, kind TEXT NOT NULL, slot TEXT NOT NULL,
    body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS entries_of ON entries (account, kind, number);
CREATE INDEX IF NOT EXISTS entries_in ON entries (account, slot, number);
CREATE TABLE IF NOT EXISTS states (account TEXT, slot TEXT, content BLOB NOT NULL, PRIMARY KEY (account, slot));
CREATE TABLE IF NOT EXISTS seeds (account TEXT PRIMARY KEY, seed INTEGER NOT NULL);
"""


class LedgerFile:
    """Connections, locks and the anchor of one ledger.

    Args:
        path: of the file.
        writable: makes it, with its directory, if it is missing.
    """

    def __init__(self, path: Path, writable: bool) -> None:
        self.path = path
        self._writable = writable
        self._laid_out = False
        if writable:
            self._touch()
        elif not path.is_file():
            raise InputError(f"there is no ledger {path}.", hint="Name one by --ledger or FEDSEAL_LEDGER.")

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """Open a connection; what SQLite cannot do becomes one sentence."""
        changeable = self._writable or os.access(self.path.parent, os.W_OK)
        uri = f"{self.path.resolve().as_uri()}?{'mode=rw' if changeable else 'immutable=1'}"
        try:
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=60.0)) as db:
                if self._writable:
                    db.execute("PRAGMA journal_mode=WAL")
                    db.execute("PRAGMA synchronous=FULL")
                if not self._laid_out:
                    self._lay_out(db)
                yield db
        except (sqlite3.Error, UnicodeDecodeError) as error:  # of a damaged file SQLite may quote what is no text
            raise StorageError(
                f"the ledger {self.path} cannot be used: {error}.", hint="Check its disk; nothing is sent without it."
            ) from error

    @contextmanager
    def transaction(self, db: sqlite3.Connection) -> Iterator[None]:
        """Write all of it or nothing."""
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    @contextmanager
    def exclusive(self, account: str, wait: float) -> Iterator[None]:
        """Hold an account's lock; the system takes it back from a process that dies."""
        directory = self.path.with_name(f"{self.path.name}.locks")
        path = directory / hash_json(account)[:32]
        try:
            directory.mkdir(exist_ok=True, mode=0o700)
            lock = os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR, _PRIVATE))
        except OSError as error:
            raise storage_error(path, error) from error
        with lock:
            until = time.monotonic() + wait
            while not _locked(lock.fileno()):
                if time.monotonic() >= until:
                    raise StorageError(
                        f"another process is in a round of account {account}.", hint="Let it end, or stop it."
                    )
                time.sleep(0.05)
            yield

    def append(self, db: sqlite3.Connection, account: str, body: Mapping[str, Any]) -> None:
        """Add an entry to the chain, inside of a transaction."""
        last = db.execute("SELECT number, body, previous, hash FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        entry = Entry.following(None if last is None else read_entry(last), body)
        number, _ = self.anchored()
        if entry.number <= number:
            raise StorageError(
                f"the ledger {self.path} ends at entry {entry.number - 1} and once had {number}: entries were deleted.",
                hint="Restore it from a backup; nothing is sent until then.",
            )
        db.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                entry.number,
                account,
                body["kind"],
                body.get("slot", ""),
                canonical(body),
                entry.previous,
                entry.hash,
            ),
        )

    @property
    def anchor_path(self) -> Path:
        """Where the newest hash is kept."""
        return self.path.with_name(f"{self.path.name}.anchor")

    def anchor(self, db: sqlite3.Connection) -> None:
        """Keep the newest hash; a crash before leaves an older one, which is as true."""
        row = db.execute("SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        write_atomically(self.anchor_path, json.dumps({"number": row[0], "hash": row[1]}), mode=_PRIVATE)

    def anchored(self) -> tuple[int, str]:
        """Return number and hash of the newest entry that is known to have been written."""
        try:
            value = json.loads(self.anchor_path.read_text())
            return int(value["number"]), str(value["hash"])
        except FileNotFoundError:
            return 0, ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{self.anchor_path} cannot be read.", hint="Restore it from a backup.") from error

    def _touch(self) -> None:
        """Make the file, for its owner alone, unless it is there; one that was removed is not made again."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self.path.exists() and (lost := self.anchored()[0]):
                raise StorageError(
                    f"the ledger {self.path} was removed: it had {lost} entries.",
                    hint=f"Restore it from a backup. To give up its budgets on purpose, remove {self.anchor_path} too.",
                )
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, _PRIVATE))
            os.chmod(self.path, _PRIVATE)
        except OSError as error:
            raise storage_error(self.path, error) from error

    def _lay_out(self, db: sqlite3.Connection) -> None:
        """Make the tables of a new file; refuse one that another version has laid out."""
        if self._writable and not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            with self.transaction(db):
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                db.execute("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", (str(SCHEMA),))
        found = db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if found is None or found[0] != str(SCHEMA):
            raise StorageError(
                f"{self.path} is a ledger of layout {found and found[0]}; this version reads {SCHEMA}.",
                hint="Use the version of fedseal that wrote it.",
            )
        self._laid_out = True


def read_entry(row: tuple[int, str, str, str]) -> Entry:
    """Read number, body, previous hash and hash."""
    number, body, previous, digest = row
    try:
        return Entry(number, json.loads(body), previous, digest)
    except ValueError as error:
        raise InputError(f"entry {number} of the ledger was changed after it had been written.") from error


def newest_entry(db: sqlite3.Connection, account: str, kind: str, slot: str | None = None) -> Entry | None:
    """Return the last entry of an account, of that kind and slot; one that was edited is refused."""
    row = db.execute(
        "SELECT number, body, previous, hash FROM entries WHERE account = ? AND kind = ? "
        f"{'' if slot is None else 'AND slot = ? '}ORDER BY number DESC LIMIT 1",
        (account, kind) if slot is None else (account, kind, slot),
    ).fetchone()
    if row is None:
        return None
    entry = read_entry(row)
    if not entry.is_sound:
        raise StorageError(
            f"entry {entry.number} of the ledger was changed after it had been written; nothing is sent.",
            hint="Run `fedseal ledger verify` and restore a backup.",
        )
    return entry


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
