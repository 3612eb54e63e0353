"""Accounts, turns and their record: what the ledger's file means."""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedseal.core.errors import InputError, StorageError
from fedseal.core.files import PathText
from fedseal.core.privacy import PrivateRelease
from fedseal.core.tensors import Tensors
from fedseal.ledger.chain import Entry, check_chain, check_extends
from fedseal.ledger.database import SCHEMA, LedgerFile, newest_entry, read_entry
from fedseal.ledger.spending import Budget, Epsilon, Page
from fedseal.ledger.turn import Account, Turn


@dataclass(frozen=True)
class Summary:
    """An account as `fedseal ledger show` lists it.

    Attributes:
        account: whose.
        page: where it stands.
        budget: the most it may spend, if that is written down.
        epsilon: what it has spent, at the budget's delta.
        last: when it released last, UTC; None if never.
    """

    account: Account
    page: Page
    budget: Budget | None
    epsilon: Epsilon
    last: str | None


class SiteLedger:
    """A site's ledger; the package says how it is used.

    Args:
        path: of the file; made, with its directory, if missing. On a local disk: WAL does not work over a network.
        writable: False reads only, and a missing file is an error.
        check: look at once whether it is a ledger; False leaves that to its first use, and spares a connection.
    """

    def __init__(self, path: PathText, *, writable: bool = True, check: bool = True) -> None:
        self.path = Path(path)
        self._file = LedgerFile(self.path, writable)
        if check:
            with self._file.connected():
                pass

    @contextmanager
    def turn(self, account: Account, slot: str, *, budget: Budget | None = None, wait: float = 60.0) -> Iterator[Turn]:
        """Open an account for one round; nothing changes unless the turn is committed.

        Args:
            account: whose data are used.
            slot: where the defence's state is kept, by `slot_of`.
            budget: the most that may be spent; the strictest of this and the one written down counts.
            wait: seconds to wait for another process at the same account.
        """
        key = _key(account)
        with self._file.exclusive(key, wait), self._file.connected() as db:
            page = _page(newest_entry(db, key, "release"))
            granted = _strictest(budget, _budget(db, key))
            before = newest_entry(db, key, "release", slot)

            def record(
                after: Page, left: Tensors, facts: Mapping[str, Any], releases: Sequence[PrivateRelease]
            ) -> None:
                body, content = _release(account, slot, after, left, facts, releases, granted)
                with self._file.transaction(db):
                    if _page(newest_entry(db, key, "release")) != page:  # where locks do not work
                        raise StorageError(
                            f"another process has recorded a round of {account} meanwhile; nothing was sent.",
                            hint="Keep the ledger on a local disk, where locks work.",
                        )
                    self._file.append(db, key, body)
                    db.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (key, slot, content))
                self._file.anchor(db)

            turn = Turn(str(account), page, self._state(db, key, slot, before), self._seed(db, key), granted, record)
            if before is not None:
                turn.expect([PrivateRelease(**one) for one in before.body["releases"]])
            yield turn

    def set_budget(self, account: Account, budget: Budget) -> None:
        """Write down the most an account may spend; it holds for every later turn, whoever asks for it."""
        key = _key(account)
        body = {"kind": "budget", "account": asdict(account), "budget": asdict(budget), "time": _now()}
        with self._file.exclusive(key, 60.0), self._file.connected() as db:
            with self._file.transaction(db):
                self._file.append(db, key, body)
            self._file.anchor(db)

    def accounts(self) -> list[Summary]:
        """Return every account with what it has spent."""
        found = []
        with self._file.connected() as db:
            for (key,) in db.execute("SELECT DISTINCT account FROM entries ORDER BY account").fetchall():
                last, budget = newest_entry(db, key, "release"), _budget(db, key)
                page = _page(last)
                epsilon = page.epsilon(budget.delta if budget else 1e-5)
                time = None if last is None else str(last.body["time"])
                found.append(Summary(Account(*json.loads(key)), page, budget, epsilon, time))
        return found

    def entries(self) -> list[Entry]:
        """Return the chain, oldest first, as it is written."""
        with self._file.connected() as db:
            rows = db.execute("SELECT number, body, previous, hash FROM entries ORDER BY number").fetchall()
        return [read_entry(row) for row in rows]

    def export(self) -> dict[str, Any]:
        """Return the whole chain as JSON, without states and seeds: nothing private is in it."""
        entries = self.entries()
        check_chain(entries, f"ledger {self.path}")
        return {"fedseal-ledger": SCHEMA, "entries": [entry.as_dict() for entry in entries]}

    def verify(self, earlier: Mapping[str, Any] | None = None) -> list[Entry]:
        """Refuse a ledger that was edited, shortened or replaced, with what is wrong; return its entries.

        Args:
            earlier: an export, which the ledger must still begin with.
        """
        what, entries = f"ledger {self.path}", self.entries()
        check_chain(entries, what)
        check_extends(entries, *self._file.anchored(), what)
        if earlier is not None:
            known = _exported(earlier)
            check_extends(entries, len(known), known[-1].hash if known else "", what)
        self._check_columns(entries, what)
        _check_pages(entries, what)
        self._check_states(entries, what)
        return entries

    def _check_columns(self, entries: Sequence[Entry], what: str) -> None:
        """Hold what is searched by to what the chain says."""
        with self._file.connected() as db:
            rows = db.execute("SELECT account, kind, slot FROM entries ORDER BY number").fetchall()
        for entry, row in zip(entries, rows, strict=True):
            if row != (_key(Account(**entry.body["account"])), entry.body["kind"], entry.body.get("slot", "")):
                raise InputError(f"{what}: entry {entry.number} was changed after it had been written.")

    def _check_states(self, entries: Sequence[Entry], what: str) -> None:
        newest = {
            (_key(Account(**entry.body["account"])), entry.body["slot"]): entry.body["state"]
            for entry in entries
            if entry.body["kind"] == "release"
        }
        with self._file.connected() as db:
            rows = db.execute("SELECT account, slot, content FROM states").fetchall()
        kept = {(account, slot): hashlib.sha256(content).hexdigest() for account, slot, content in rows}
        for place, digest in newest.items():
            if kept.get(place) != digest:
                raise InputError(f"{what}: the state kept for {place[1]!r} is not the one its last release left.")

    def _state(self, db: sqlite3.Connection, key: str, slot: str, last: Entry | None) -> dict[str, Tensor]:
        """Return what the last release left, or refuse what is not that."""
        row = db.execute("SELECT content FROM states WHERE account = ? AND slot = ?", (key, slot)).fetchone()
        content: bytes | None = None if row is None else row[0]
        expected = None if last is None else last.body["state"]
        try:
            if (None if content is None else hashlib.sha256(content).hexdigest()) != expected:
                raise ValueError("digest")
            return {} if content is None else dict(load(content))
        except (SafetensorError, ValueError) as error:
            raise StorageError(
                f"the state that {self.path} keeps for {slot!r} is not the one its last release left; nothing is sent.",
                hint="Run `fedseal ledger verify` and restore a backup.",
            ) from error

    def _seed(self, db: sqlite3.Connection, key: str) -> int:
        with self._file.transaction(db):
            db.execute("INSERT OR IGNORE INTO seeds VALUES (?, ?)", (key, secrets.randbits(62)))
            seed: int = db.execute("SELECT seed FROM seeds WHERE account = ?", (key,)).fetchone()[0]
        return seed


def _release(
    account: Account,
    slot: str,
    after: Page,
    state: Tensors,
    facts: Mapping[str, Any],
    releases: Sequence[PrivateRelease],
    budget: Budget | None,
) -> tuple[dict[str, Any], bytes]:
    """Return the body of a release's entry, and the state it leaves as bytes."""
    content: bytes = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()})
    epsilon = after.epsilon(budget.delta if budget else 1e-5)
    body = {
        "kind": "release",
        "account": asdict(account),
        "time": _now(),
        "slot": slot,
        "releases": [asdict(release) for release in releases],
        "page": after.as_dict(),
        "epsilon": epsilon.value if epsilon.value < float("inf") else None,
        "delta": epsilon.delta,
        "unit": epsilon.unit,
        "budget": None if budget is None else asdict(budget),
        "state": hashlib.sha256(content).hexdigest(),
        "facts": dict(facts),
    }
    return body, content


def _check_pages(entries: Sequence[Entry], what: str) -> None:
    """Add up every account's releases again."""
    pages: dict[str, Page] = {}
    for entry in entries:
        if entry.body["kind"] != "release":
            continue
        key = _key(Account(**entry.body["account"]))
        pages[key] = pages.get(key, Page()).after([PrivateRelease(**one) for one in entry.body["releases"]])
        if pages[key] != Page.from_dict(entry.body["page"]):
            raise InputError(f"{what}: entry {entry.number} does not add up to its account's releases.")


def _key(account: Account) -> str:
    return json.dumps([account.federation, account.client, account.dataset])


def _page(last: Entry | None) -> Page:
    return Page() if last is None else Page.from_dict(last.body["page"])


def _budget(db: sqlite3.Connection, key: str) -> Budget | None:
    entry = newest_entry(db, key, "budget")
    return None if entry is None else Budget(**entry.body["budget"])


def _strictest(*budgets: Budget | None) -> Budget | None:
    """Return the smallest epsilon, at the smallest delta of all."""
    given = [budget for budget in budgets if budget is not None]
    if not given:
        return None
    return Budget(min(budget.epsilon for budget in given), min(budget.delta for budget in given))


def _exported(value: Mapping[str, Any]) -> list[Entry]:
    try:
        if value["fedseal-ledger"] != SCHEMA:
            raise ValueError("layout")
        entries = [Entry(one["number"], one["body"], one["previous"], one["hash"]) for one in value["entries"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "this is no export of a fedseal ledger.", hint="Write one by `fedseal ledger export`."
        ) from error
    check_chain(entries, "export")
    return entries


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
