"""Names for what was computed: a hash of everything that determines it, and of nothing else.

`identity_of` takes named parts and hashes their content: numbers and texts as they are, files and tensors by what is
in them, objects by their class, its code and their own values. Trials, trainings, checkpoints and what is prepared
beforehand are all named by it. What only registries know, how a spec resolves, is added in `store.identity`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedseal.core.hashing import hash_json, hash_tensors
from fedseal.core.sources import code_digest


def identity_of(**parts: Any) -> str:
    """Return the hash that names what these parts determine."""
    return hash_json(content_of(parts))


def content_of(value: Any) -> Any:
    """Return a value as plain data: equal for equal content, however it is spelt, stored or ordered.

    A path to a file is the file's hash, wherever it lies. A whole number is the same as an integer or as a float. An
    object is its class and what it holds; the code of classes is a part of its own (`code_of`).
    """
    return _content(value, ())


def _content(value: Any, within: tuple[int, ...]) -> Any:
    """Return the content of a value that was reached through the objects `within`; one among them is not entered."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return repr(float(value)) if abs(value) < 2**53 else repr(value)
    if isinstance(value, Path):
        return file_content(value)
    if isinstance(value, Tensor):
        return {"tensor": hash_tensors({"": value})}
    if isinstance(value, nn.Module):
        return model_content(value)
    if id(value) in within:
        return {"again": len(within) - within.index(id(value))}
    inner = (*within, id(value))
    if isinstance(value, Mapping):
        pairs = ([_content(key, inner), _content(one, inner)] for key, one in value.items())
        return {"mapping": sorted(pairs, key=hash_json)}
    if isinstance(value, AbstractSet):
        return {"set": sorted((_content(one, inner) for one in value), key=hash_json)}
    if isinstance(value, list | tuple):
        return [_content(one, inner) for one in value]
    return _object_content(value, inner)


def model_content(model: nn.Module) -> Any:
    """Return a model's structure in words, without addresses, and its weights by content."""
    return {"structure": re.sub(r"0x[0-9a-f]+", "", str(model)), "weights": hash_tensors(model.state_dict())}


def file_content(path: Path) -> Any:
    """Return the hash of a file; of what is no file that can be read, its path."""
    try:
        return {"file": hashlib.sha256(path.expanduser().read_bytes()).hexdigest()}
    except (OSError, RuntimeError):
        return {"path": str(path)}


def classes_in(value: Any) -> list[str]:
    """Return the modules of the classes a value, or a model and its parts, is made of; torch's own are left out."""
    seen: set[str] = set()
    waiting, visited = [value], set()
    while waiting:
        one = waiting.pop()
        if id(one) in visited or isinstance(one, Tensor | torch.Generator | type | str | bytes | int | float | None):
            continue
        visited.add(id(one))
        seen.add(type(one).__module__)
        if isinstance(one, nn.Module):
            waiting += one.modules()
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | AbstractSet):
            waiting += one
        elif hasattr(one, "__dict__") and not inspect.isroutine(one) and not inspect.ismodule(one):
            waiting += vars(one).values()
    return sorted(name for name in seen if name.partition(".")[0] not in {"torch", "builtins", "collections"})


def code_of(value: Any) -> str:
    """Return the digest of the code behind an object: of its class, and of the classes of what it holds."""
    return code_digest(classes_in(value))


def _object_content(value: Any, within: tuple[int, ...]) -> Any:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Enum):
        return [name, value.name]
    if isinstance(value, torch.Generator):
        return [name, hash_tensors({"": value.get_state()})]
    if isinstance(value, torch.dtype | torch.device | bytes | complex | range):
        return [name, repr(value)]
    if isinstance(value, functools.partial):
        return [name, *(_content(one, within) for one in (value.func, value.args, value.keywords))]
    if isinstance(value, type) or inspect.isroutine(value):
        cells = getattr(value, "__closure__", None) or ()
        return [f"{value.__module__}.{value.__qualname__}", [_content(one.cell_contents, within) for one in cells]]
    if dataclasses.is_dataclass(value):
        held = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    else:
        held = getattr(value, "__dict__", {})
    return [name, _content(held, within)]
