"""Two texts side by side, with what they do not share marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True)
class Piece:
    """Words in a row that are in both texts, or in one only."""

    text: str
    same: bool


@dataclass(frozen=True)
class Passage:
    """An original and what an attack made of it."""

    original: tuple[Piece, ...]
    recovered: tuple[Piece, ...]


def compared(original: Sequence[str], recovered: Sequence[str]) -> Passage:
    """Return both texts cut where they differ."""
    blocks = SequenceMatcher(None, original, recovered, autojunk=False).get_opcodes()
    left = tuple(_piece(original[i:j], tag) for tag, i, j, _, _ in blocks if j > i)
    right = tuple(_piece(recovered[i:j], tag) for tag, _, _, i, j in blocks if j > i)
    return Passage(left, right)


def _piece(words: Sequence[str], tag: str) -> Piece:
    return Piece(" ".join(words), tag == "equal")
