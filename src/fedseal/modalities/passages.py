"""Words among the tensors of a trial's artefact: kept as UTF-8, so that reports need no tokeniser."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_KEYS = ("originals.words", "reconstructions.words")


def pack_words(originals: Sequence[Sequence[str]], recovered: Sequence[Sequence[str]]) -> dict[str, Tensor]:
    """Return words of originals and of what was made of each, as tensors of bytes."""
    texts = (json.dumps([list(words) for words in part]).encode() for part in (originals, recovered))
    return {key: torch.tensor(list(text), dtype=torch.uint8) for key, text in zip(_KEYS, texts, strict=True)}


def unpack_words(kept: Mapping[str, Tensor]) -> tuple[list[list[str]], list[list[str]]] | None:
    """Return what `pack_words` packed; None where there is none."""
    if any(key not in kept for key in _KEYS):
        return None
    first, second = (json.loads(bytes(kept[key].tolist())) for key in _KEYS)
    return first, second
