"""A federation's state as one safetensors file, written whole or not at all, from which training goes on.

It holds the global model, the server's momentum, every client's defence state and the history. There is no generator's
state to keep: each draw is a function of seed, round and client (`sampling`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedseal.core.errors import InputError, StorageError, UsageError
from fedseal.core.files import PRIVATE, write_atomically
from fedseal.models.checkpoint import SEPARATOR

_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A federation between two rounds.

    Attributes:
        identity: hash of what determines the run; only the same run goes on from here.
        history: as plain data.
        parts: tensors by part (`model`, `server`, `defence`, `client-3`) and name.
    """

    identity: str
    history: dict[str, Any]
    parts: Mapping[str, Mapping[str, Tensor]]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; a crash leaves the last one."""
    tensors = {
        f"{part}{SEPARATOR}{name}": tensor.detach().cpu().contiguous().clone()
        for part, named in checkpoint.parts.items()
        for name, tensor in named.items()
    }
    head = {"format": _FORMAT, "identity": checkpoint.identity, "history": checkpoint.history}
    write_atomically(path, save(tensors, metadata={"fedseal": json.dumps(head)}), mode=PRIVATE)


def load_checkpoint(path: Path, identity: str) -> Checkpoint:
    """Read a checkpoint of the run that `identity` names; any other, or a damaged one, is refused."""
    head, parts = _read(path, tensors=True)
    if head["identity"] != identity:
        raise UsageError(
            f"{path} belongs to another run: model, data, defence, configuration or code differ.",
            hint="Delete it to start again, or choose another --out.",
        )
    return Checkpoint(identity, head["history"], parts)


def rounds_behind(path: Path) -> int:
    """Return how many rounds a checkpoint has behind it, whatever run it is of."""
    return len(_read(path, tensors=False)[0]["history"]["rounds"])


def _read(path: Path, *, tensors: bool) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Return a checkpoint's head and, if asked for, its tensors by part."""
    try:
        with safe_open(path, framework="pt") as file:
            head = json.loads((file.metadata() or {}).get("fedseal", "null"))
            parts: dict[str, dict[str, Tensor]] = {}
            for key in file.keys() if tensors else ():
                part, _, name = key.partition(SEPARATOR)
                parts.setdefault(part, {})[name] = file.get_tensor(key)
    except OSError as error:
        raise StorageError(f"cannot read the checkpoint {path}: {error}.", hint="Check the path.") from error
    except (SafetensorError, ValueError) as error:
        raise InputError(
            f"{path} is not a checkpoint: {error}.", hint="Delete it to start again, or choose another --out."
        ) from error
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise InputError(f"{path} is not a checkpoint of this version.", hint="Delete it to start again.")
    return head, parts
