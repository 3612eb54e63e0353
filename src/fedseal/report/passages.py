"""Two texts side by side, with what they do not share marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True)
class Piece:
    """Words in a row that are in both texts, or in one only.

    Attributes:
        text: as a person reads it.
        same: whether the other has it too.
        glued: whether it goes on with the word before.
    """

    text: str
    same: bool
    glued: bool = False


@dataclass(frozen=True)
class Passage:
    """An original and what an attack made of it.

    Attributes:
        original, recovered: both, in pieces.
        cells: whether every piece is a cell of a record, with a line of its own.
    """

    original: tuple[Piece, ...]
    recovered: tuple[Piece, ...]
    cells: bool = False


_INSIDE = "##"
"""Begins a piece of a word that is not its first, as BERT's tokenisers write it."""


def compared_cells(original: Sequence[str], recovered: Sequence[str]) -> Passage:
    """Return two records, cell by cell."""
    pairs = list(zip(original, recovered, strict=True))
    left, right = (tuple(Piece(pair[side], pair[0] == pair[1]) for pair in pairs) for side in (0, 1))
    return Passage(left, right, cells=True)


def compared(original: Sequence[str], recovered: Sequence[str]) -> Passage:
    """Return both texts cut where they differ."""
    blocks = SequenceMatcher(None, original, recovered, autojunk=False).get_opcodes()
    left = tuple(_piece(original[i:j], tag) for tag, i, j, _, _ in blocks if j > i)
    right = tuple(_piece(recovered[i:j], tag) for tag, _, _, i, j in blocks if j > i)
    return Passage(left, right)


def _piece(words: Sequence[str], tag: str) -> Piece:
    text = " ".join(words).replace(f" {_INSIDE}", "")
    return Piece(text.removeprefix(_INSIDE), tag == "equal", glued=text.startswith(_INSIDE))
