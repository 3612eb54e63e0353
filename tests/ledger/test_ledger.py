"""The site ledger: what was released stays counted, whatever is killed, edited or asked for again."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedseal.cli import app
from fedseal.core.errors import FedsealError, InputError, StorageError, UsageError
from fedseal.core.privacy import PrivateRelease
from fedseal.defences.accounting import BudgetSpentError, gaussian_epsilon
from fedseal.ledger import Account, Budget, Page, SiteLedger, slot_of

FORK = multiprocessing.get_context("fork")
SITE = Account("trial", "hospital", "xrays")
GAUSS = PrivateRelease("update", "gaussian", 2.0)


def release(
    ledger: SiteLedger, releases: list[PrivateRelease], value: float = 0.0, budget: Budget | None = None, **where: str
) -> Page:
    account = Account(**({"federation": "trial", "client": "hospital", "dataset": "xrays"} | where))
    with ledger.turn(account, "dgc", budget=budget) as turn:
        turn.check(releases)
        return turn.commit(releases, {"residual": torch.full((3,), value)})


def edit(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement, values)
    db.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "site" / "ledger.sqlite"


def test_what_was_released_is_there_in_another_process(path: Path):
    release(SiteLedger(path), [GAUSS], 1.5)
    code = (
        "import sys; from fedseal.ledger import *\n"
        "with SiteLedger(sys.argv[1]).turn(Account('trial', 'hospital', 'xrays'), 'dgc') as turn:\n"
        "    print(turn.number, turn.state['residual'].tolist(), turn.epsilon().value, turn.seed)"
    )
    printed = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    with SiteLedger(path).turn(SITE, "dgc") as turn:
        assert printed == f"1 [1.5, 1.5, 1.5] {gaussian_epsilon(0.5, 1e-5)} {turn.seed}\n"


def test_the_file_is_its_owners_alone(path: Path):
    mask = os.umask(0)
    try:
        release(SiteLedger(path), [GAUSS])
        with sqlite3.connect(path) as db:
            db.execute("SELECT * FROM meta").fetchall()  # keeps the log alive
            release(SiteLedger(path), [GAUSS])
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.rglob("*") if file.is_file()}
        db.close()
    finally:
        os.umask(mask)
    assert "ledger.sqlite-wal" in modes
    assert set(modes.values()) == {0o600}


def test_epsilon_composes_over_everything_ever_released(path: Path):
    ledger = SiteLedger(path)
    pages = [release(ledger, [GAUSS]) for _ in range(4)]
    assert [page.number for page in pages] == [1, 2, 3, 4]
    assert pages[-1].epsilon().value == pytest.approx(gaussian_epsilon(math.sqrt(4) / 2, 1e-5))
    assert pages[-1].epsilon().unit == "update"


def test_samples_and_updates_together_are_stated_per_sample():
    mixed = Page().after([GAUSS]).after([PrivateRelease("sample", "gaussian", 1.0)])
    assert mixed.epsilon().unit == "sample"
    assert mixed.epsilon().value == pytest.approx(gaussian_epsilon(math.sqrt(1 / 1.0**2 + 1 / 1.0**2), 1e-5))


def test_an_update_without_guarantee_makes_epsilon_infinite_for_good(path: Path):
    ledger = SiteLedger(path)
    release(ledger, [])
    assert release(ledger, [GAUSS]).epsilon().value == math.inf
    with pytest.raises(BudgetSpentError, match="without any guarantee"):
        release(ledger, [GAUSS], budget=Budget(1e6))


def test_a_round_that_would_pass_the_budget_is_halted_before_it_runs(path: Path):
    ledger, limit = SiteLedger(path), gaussian_epsilon(math.sqrt(3) / 2, 1e-5)
    for _ in range(3):
        release(ledger, [GAUSS], budget=Budget(limit + 1e-9))
    with ledger.turn(SITE, "dgc", budget=Budget(limit + 1e-9)) as turn:
        with pytest.raises(BudgetSpentError, match="3 releases cost"):
            turn.check()  # a defence that can say nothing before its round is judged by its last one
        with pytest.raises(BudgetSpentError, match="Nothing was sent"):
            turn.commit([GAUSS], {})
    assert ledger.accounts()[0].page.number == 3


def test_a_budget_that_was_written_down_holds_for_those_who_ask_for_more(path: Path):
    ledger = SiteLedger(path)
    ledger.set_budget(SITE, Budget(1.0))
    with pytest.raises(BudgetSpentError):
        release(ledger, [PrivateRelease("update", "gaussian", 0.5)], budget=Budget(100.0))
    with pytest.raises(BudgetSpentError):
        release(ledger, [PrivateRelease("update", "gaussian", 0.5)])
    assert release(ledger, [PrivateRelease("update", "gaussian", 10.0)]).number == 1


def test_accounts_are_apart_by_federation_client_and_data_set(path: Path):
    ledger = SiteLedger(path)
    release(ledger, [GAUSS], 1.0)
    for other in ({"federation": "b"}, {"client": "b"}, {"dataset": "b"}):
        assert release(ledger, [GAUSS], **other).number == 1
    assert len(ledger.accounts()) == 4


def test_a_state_belongs_to_one_defence_and_one_structure(path: Path):
    ledger, small, large = SiteLedger(path), {"w": torch.zeros(2)}, {"w": torch.zeros(3)}
    slots = [slot_of("dgc", small), slot_of("dgc", large), slot_of("topk", small)]
    for index, slot in enumerate(slots):
        with ledger.turn(SITE, slot) as turn:
            assert turn.state == {}
            turn.commit([GAUSS], {"residual": torch.tensor([float(index)])})
    with ledger.turn(SITE, slots[1]) as turn:
        assert turn.state["residual"].item() == 1
        assert turn.number == 3


def test_a_turn_that_is_not_committed_changes_nothing(path: Path):
    ledger = SiteLedger(path)
    release(ledger, [GAUSS], 1.0)
    before = ledger.entries()

    def failing() -> None:
        with ledger.turn(SITE, "dgc") as turn:
            turn.state["residual"] += 5
            raise ValueError("training failed")

    with pytest.raises(ValueError, match="training failed"):
        failing()
    assert ledger.entries() == before
    with ledger.turn(SITE, "dgc") as turn:
        assert turn.state["residual"].tolist() == [1.0] * 3


def test_two_processes_never_take_the_same_turn(path: Path):
    ledger = SiteLedger(path)
    with (
        ledger.turn(SITE, "dgc"),
        pytest.raises(StorageError, match="another process is in a round"),
        ledger.turn(SITE, "dgc", wait=0.1),
    ):
        pass
    with ledger.turn(SITE, "dgc"), ledger.turn(Account("other"), "dgc", wait=0.1):
        pass


def write_ten(path: Path, client: str) -> None:
    ledger = SiteLedger(path)
    for _ in range(10):
        release(ledger, [GAUSS], client=client)


def test_many_writers_leave_one_chain(path: Path):
    running = [FORK.Process(target=write_ten, args=(path, name)) for name in ("a", "b", "a")]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0, 0, 0]
    ledger = SiteLedger(path)
    assert len(ledger.verify()) == 30
    assert {one.account.client: one.page.number for one in ledger.accounts()} == {"a": 20, "b": 10}


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM entries WHERE number = 2", "entry 2 is missing"),
        ("DELETE FROM entries WHERE number = 3", "entries were deleted"),
        ("DELETE FROM entries", "entries were deleted"),
        (
            "UPDATE entries SET body = replace(body, '\"multiplier\":2.0', '\"multiplier\":9.0') WHERE number = 2",
            "changed",
        ),
        ("UPDATE entries SET body = 'x' WHERE number = 1", "changed"),
        ('UPDATE entries SET account = \'["a","b","c"]\' WHERE number = 3', "changed"),
        ("UPDATE states SET content = x'00'", "state"),
        ("DELETE FROM states", "state"),
    ],
)
def test_what_is_edited_or_deleted_shows(path: Path, statement: str, says: str):
    ledger = SiteLedger(path)
    for _ in range(3):
        release(ledger, [GAUSS])
    assert len(ledger.verify()) == 3
    edit(path, statement)
    with pytest.raises(FedsealError, match=says):
        SiteLedger(path).verify()


def test_a_ledger_that_was_rewritten_from_the_start_shows_by_its_anchor_and_by_an_export(path: Path, tmp_path: Path):
    ledger = SiteLedger(path)
    for _ in range(3):
        release(ledger, [GAUSS])
    kept = ledger.export()
    path.unlink()
    with pytest.raises(StorageError, match="was removed: it had 3 entries"):
        SiteLedger(path)
    path.with_name("ledger.sqlite.anchor").unlink()
    again = SiteLedger(path)
    for _ in range(4):
        release(again, [PrivateRelease("update", "gaussian", 50.0)])
    assert again.verify()
    with pytest.raises(InputError, match="was replaced"):
        again.verify(kept)


def test_nothing_is_recorded_upon_a_shortened_or_edited_chain(path: Path):
    ledger = SiteLedger(path)
    for _ in range(2):
        release(ledger, [GAUSS])
    edit(path, "UPDATE entries SET body = replace(body, '\"number\":2', '\"number\":1') WHERE number = 2")
    with pytest.raises(StorageError, match="changed after it had been written; nothing is sent"):
        release(ledger, [GAUSS])
    edit(path, "DELETE FROM entries WHERE number = 2")
    with pytest.raises(StorageError):
        release(ledger, [GAUSS])


def work(path: Path, log: Path, budget: float) -> None:
    """Release until the budget halts it, and write down, after each commit, what may leave."""
    ledger = SiteLedger(path)
    with log.open("a") as left:
        while True:
            with ledger.turn(SITE, "dgc", budget=Budget(budget)) as turn:
                try:
                    turn.check()
                except BudgetSpentError:
                    return
                residual = turn.state.get("residual", torch.zeros(20000)) + 1
                turn.commit([PrivateRelease("update", "gaussian", 20.0)], {"residual": residual})
            print(turn.number, file=left, flush=True)


def kill_at_work(path: Path, log: Path, budget: float, after: float) -> None:
    """Kill a worker so many seconds after its first release, however long a busy machine takes to get there."""
    process, before = FORK.Process(target=work, args=(path, log, budget)), log.read_text()
    process.start()
    while log.read_text() == before and process.is_alive():
        time.sleep(0.001)
    time.sleep(after)
    process.kill()
    process.join()


def test_a_kill_at_any_moment_neither_forgets_a_release_nor_takes_a_residual_twice(path: Path, tmp_path: Path):
    log, budget = tmp_path / "left", gaussian_epsilon(math.sqrt(150.5) / 20, 1e-5)
    log.touch()
    for attempt in range(12):
        kill_at_work(path, log, budget, 0.0037 * attempt)
    left = [int(line) for line in log.read_text().splitlines()]
    ledger = SiteLedger(path)
    entries, page = ledger.verify(), ledger.accounts()[0].page
    assert left == sorted(set(left))
    assert page.number >= left[-1]  # what left was recorded first
    assert len(entries) == page.number
    with ledger.turn(SITE, "dgc") as turn:
        assert turn.state["residual"].unique().tolist() == [page.number]
    work(path, log, budget)
    spent = [float(entry.body["epsilon"]) for entry in ledger.verify()]
    assert spent == sorted(spent)
    assert (len(spent), spent[-1] <= budget) == (150, True)


def test_the_command_line_shows_exports_and_verifies(path: Path, tmp_path: Path):
    ledger, run = SiteLedger(path), CliRunner()
    where = ["--ledger", str(path)]
    given = ["--federation", "trial", "--client", "hospital", "--dataset", "xrays", "--delta", "1e-6"]
    assert "may spend epsilon = 8" in run.invoke(app, ["ledger", "budget", "8", *where, *given]).output
    release(ledger, [GAUSS])
    shown = json.loads(run.invoke(app, ["ledger", "show", "--json", *where]).output)
    assert shown[0]["releases"] == 1
    assert shown[0]["epsilon"] == pytest.approx(gaussian_epsilon(0.5, 1e-6))
    assert (shown[0]["budget"], shown[0]["unit"]) == (8.0, "update")
    table = run.invoke(app, ["ledger", "show", *where], env={"COLUMNS": "200"}).output
    assert "trial/hospital/xrays" in table
    assert "the client's whole update" in table
    export = tmp_path / "export.json"
    assert "2 entries written" in run.invoke(app, ["ledger", "export", str(export), *where]).output
    release(ledger, [GAUSS])
    assert "3 entries" in run.invoke(app, ["ledger", "verify", *where, "--against", str(export)]).output
    assert (
        str(ledger.entries()[-1].hash)
        in run.invoke(app, ["ledger", "verify"], env={"FEDSEAL_LEDGER": str(path)}).output
    )
    edit(path, "DELETE FROM entries WHERE number = 3")
    failed = run.invoke(app, ["ledger", "verify", *where])
    assert isinstance(failed.exception, InputError)
    assert "entries were deleted" in str(failed.exception)


def test_what_is_no_ledger_is_refused_in_words(tmp_path: Path):
    (tmp_path / "text").write_text("no database")
    with pytest.raises(FedsealError, match="cannot be used"):
        SiteLedger(tmp_path / "text")
    with pytest.raises(InputError, match="there is no ledger"):
        SiteLedger(tmp_path / "none", writable=False)
    with pytest.raises(UsageError, match="budget"):
        Budget(-1.0)
    with pytest.raises(UsageError, match="client"):
        Account(client="")


def test_a_complaint_of_sqlite_that_is_no_text_is_told(path: Path):
    SiteLedger(path).accounts()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET name = CAST(X'9A' AS TEXT), sql = 'CREATE TABLE ('")
    with pytest.raises(FedsealError, match="cannot be used"):
        SiteLedger(path).accounts()
