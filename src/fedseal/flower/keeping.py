"""Where a Flower client keeps what must outlive a round: in the site's ledger, or in Flower's context without one.

Which ledger, and whose account, is the site's to say, not the app's: by environment (`FEDSEAL_LEDGER`,
`FEDSEAL_FEDERATION`, `FEDSEAL_CLIENT`, `FEDSEAL_DATASET`) or by the SuperNode's node config (`fedseal-ledger`, ...).
What an app names itself counts only where the site names nothing. Flower's context is lost with node and run.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context
from torch import Tensor

from fedseal.core.defence import Defence
from fedseal.core.errors import InputError, StorageError
from fedseal.core.files import PRIVATE, PathText, write_atomically
from fedseal.core.seeds import derive_seed, generator
from fedseal.core.tensors import Tensors
from fedseal.data.places import cache_directory
from fedseal.flower.records import to_tensors
from fedseal.ledger import Account, Budget, Page, SiteLedger, Turn, memory_turn, slot_of

STATE = "fedseal.state"
PROGRESS = "fedseal.progress"

_LOG = logging.getLogger("fedseal.flower")
_SAID: set[str] = set()


def site_setting(context: Context, name: str) -> str | None:
    """Return what the site says: by the environment's `FEDSEAL_NAME`, or by the node config's `fedseal-name`."""
    value = os.environ.get(f"FEDSEAL_{name.upper().replace('-', '_')}")
    if value is None:
        given = context.node_config.get(f"fedseal-{name}")
        value = None if given is None else str(given)
    return value or None


def account_of(context: Context) -> Account:
    """Return whose account a client uses; a simulated one is told from others by its partition."""
    partition = context.node_config.get("partition-id")
    return Account(
        site_setting(context, "federation") or "default",
        site_setting(context, "client") or ("site" if partition is None else f"partition-{partition}"),
        site_setting(context, "dataset") or "default",
    )


def site_seed(account: Account) -> int | None:
    """Return the seed an account's data are prepared with where there is no ledger: the same in every run.

    It comes from a secret in the site's cache, so that what a defence builds of the same data (`lids`) is built once;
    None, for a fresh draw, where there is no place to keep one.
    """
    path = cache_directory() / "site-secret"
    try:
        if not path.exists():
            write_atomically(path, secrets.token_hex(32), mode=PRIVATE)
        return derive_seed(0, path.read_text(encoding="ascii"), str(account))
    except (OSError, StorageError, UnicodeDecodeError):
        return None


@contextmanager
def turn_of(
    context: Context, spec: str, weights: Tensors, *, ledger: PathText | None, budget: Budget | None, seed: int | None
) -> Iterator[Turn]:
    """Open this client's turn.

    Args:
        context: Flower's, of the client.
        spec: of the defence.
        weights: as received, for their structure.
        ledger: the app's own, if the site names none.
        budget: the app's own; a stricter one that is written in the ledger counts.
        seed: for experiments, which prepare data alike in every run.
    """
    prepared = None if seed is None else generator(seed, "flower", str(context.node_id)).initial_seed()
    path = site_setting(context, "ledger") or ledger
    slot = slot_of(spec, weights)
    if path is None:
        yield _context_turn(context, slot, budget, site_seed(account_of(context)) if prepared is None else prepared)
        return
    with SiteLedger(Path(path), check=False).turn(account_of(context), slot, budget=budget) as turn:
        if prepared is not None:
            turn.seed = prepared
        yield turn


def _context_turn(context: Context, slot: str, budget: Budget | None, seed: int | None) -> Turn:
    """Return a turn whose record is Flower's context."""
    page, kept_seed, state = Page(), seed, dict[str, Tensor]()
    progress = context.state.config_records.get(PROGRESS)
    if progress is not None:
        try:
            page = Page.from_dict(json.loads(str(progress["page"])))
            kept_seed = int(str(progress["prepare"]))
            same = progress["slot"] == slot
        except (KeyError, ValueError) as error:
            raise InputError("the client's state in Flower's context cannot be read.") from error
        arrays = context.state.array_records.get(STATE)
        state = to_tensors(arrays, "defence state") if arrays and same else {}

    def save(after: Page, left: Tensors) -> None:
        context.state.array_records[STATE] = ArrayRecord({name: value.detach().cpu() for name, value in left.items()})
        context.state.config_records[PROGRESS] = ConfigRecord(
            {"page": json.dumps(after.as_dict()), "prepare": str(turn.seed), "slot": slot}
        )

    turn = memory_turn(f"client {context.node_id}", page, state, save, seed=kept_seed, budget=budget)
    return turn


def say_what_is_lost(context: Context, defence: Defence, *, ledger: PathText | None) -> None:
    """Say once in a process that a defence with a past has no ledger to keep it in."""
    if ledger is not None or site_setting(context, "ledger") or defence.name in _SAID:
        return
    if defence.traits.accounts_epsilon or defence.traits.keeps_residual:
        _SAID.add(defence.name)
        _LOG.warning(
            "%s: residuals and epsilon are kept in Flower's context and lost with this node or run; name a ledger by "
            "FEDSEAL_LEDGER or the node config's fedseal-ledger.",
            defence.name,
        )
