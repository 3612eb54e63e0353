"""Tokenisers of pre-trained models, from the cache; `fedseal data get stories15m` and `minilm` bring them there."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from fedseal.core.fetched import MINILM_FILES, STORIES_FILES, fetched
from fedseal.core.tokeniser import FILLER, Tokeniser, read_tokeniser


def minilm_tokeniser(length: int) -> Tokeniser:
    """Return MiniLM's word pieces."""
    path = fetched("minilm", MINILM_FILES[1])
    return read_tokeniser(_text(path, path.stat().st_mtime_ns), length, "the word pieces of MiniLM")


def stories_tokeniser(length: int) -> Tokeniser:
    """Return the byte pairs of stories15M; every text begins with its start mark, id 1."""
    path = fetched("stories15m", STORIES_FILES[1])
    text = _text(path, path.stat().st_mtime_ns)
    return Tokeniser(text, length, 1, None, "the byte pairs of stories15M", frozenset((FILLER, 1, 2)))


@lru_cache(maxsize=4)
def _text(path: Path, changed: int) -> str:
    return path.read_text(encoding="utf-8")
