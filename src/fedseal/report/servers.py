"""Who attacked: a server that only looks, or one that changes the model; findings of the two are never mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedseal.audit.cells import Cell, Row
from fedseal.core.attack import ATTACKS
from fedseal.core.errors import FedsealError

_ALTERED = "the server altered the model"


@dataclass(frozen=True)
class Server:
    """A kind of attacker.

    Attributes:
        name: for a heading.
        words: what it sees and does, without jargon.
        active: whether it departs from the protocol.
    """

    name: str
    words: str
    active: bool


CURIOUS = Server(
    "The server alone",
    "follows the protocol and looks at what a client sends it (honest but curious)",
    active=False,
)
MALICIOUS = Server(
    "A server that changes the model",
    "sends clients a model or requests built to make them leak (malicious)",
    active=True,
)
SERVERS = (CURIOUS, MALICIOUS)


@dataclass(frozen=True)
class Finding:
    """What one kind of server got under one defence: the worst of its cells, and the best of each reading."""

    row: Row
    cells: tuple[Cell, ...]
    worst: Cell


def is_active(cell: Cell) -> bool:
    """Return whether a cell's attack departs from the protocol, by what it declares or by what its ledgers say."""
    if any(_ALTERED in record.knowledge.get("model", "") for record in cell.records):
        return True
    try:
        return ATTACKS.entry(cell.attack.partition(":")[0]).info.threat.startswith("active")
    except FedsealError:
        return False  # somebody's own, which a reader does not import: its ledger is all there is


def findings_of(server: Server, rows: Sequence[Row]) -> tuple[Finding, ...]:
    """Return what a kind of server found under each defence; rows it did not attack with success are left out."""
    found = []
    for row in rows:
        cells = tuple(cell for cell in row.cells if cell.psnr is not None and is_active(cell) is server.active)
        if cells:
            found.append(Finding(row, cells, max(cells, key=lambda cell: cell.severity)))
    return tuple(found)
