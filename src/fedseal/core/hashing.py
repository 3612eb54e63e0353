"""Content hashes: what determines a result names it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fedseal.core.tensors import Tensors


def hash_json(value: Any) -> str:
    """Return the SHA-256 of a JSON-able value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def hash_tensors(tensors: Tensors) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bytes of tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name}|{array.dtype}|{array.shape}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
