"""Seeded generators: every random choice draws from a generator derived from one seed and a name.

Streams with different names are independent, so adding a draw in one place never shifts the numbers of another.
"""

from __future__ import annotations

import hashlib
import secrets

import torch


def derive_seed(seed: int, *path: str | int) -> int:
    """Return a 63-bit seed determined by `seed` and the names in `path`."""
    text = "/".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int | None, *path: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """Return a generator for the stream `path` of `seed`; without a seed, one seeded by the operating system."""
    value = secrets.randbits(63) if seed is None else derive_seed(seed, *path)
    return torch.Generator(device=device).manual_seed(value)
