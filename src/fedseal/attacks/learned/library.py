"""What was learned, by content: learned once, kept in the cache, found again by what determined it."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.files import write_atomically
from fedseal.core.identity import classes_in, identity_of
from fedseal.core.knowledge import Rehearse
from fedseal.core.sources import code_digest
from fedseal.data.places import cache_directory
from fedseal.federation.tensor_file import read_tensors

State: TypeAlias = tuple[Mapping[str, Tensor], Mapping[str, Any]]
"""Tensors and plain values."""

_HEADER = "fedseal"
_MOST_BYTES = 4 << 30
_IN_MEMORY = 4
_recent: OrderedDict[str, State] = OrderedDict()


def lesson_identity(model: nn.Module, public: Batch, rehearse: Rehearse, options: Mapping[str, object]) -> str:
    """Return the hash of all that determines what is learned."""
    return identity_of(
        model=model,
        model_code=code_digest(classes_in(model)),
        public={"images": public.images, "labels": public.labels},
        rehearsal=rehearse.identity,
        options=options,
        torch=torch.__version__,
        device=public.images.device.type,
        code=code_digest(["fedseal.attacks.learned.attack", "fedseal.attacks.retrieval"]),
    )


def kept(kind: str, identity: str, learn: Callable[[], State]) -> State:
    """Return what was learned under that identity: from memory, from the cache, or by learning it now."""
    if identity in _recent:
        _recent.move_to_end(identity)
        return _recent[identity]
    path = cache_directory() / kind / f"{identity[:32]}.safetensors"
    state = _load(path, identity) if path.is_file() else None
    if state is None:
        state = learn()
        _save(path, identity, state)
    _recent[identity] = state
    while len(_recent) > _IN_MEMORY:
        _recent.popitem(last=False)
    return state


def _load(path: Path, identity: str) -> State | None:
    """Read a file; one of another identity whose name begins alike is not this one."""
    held = read_tensors(path, "learned inversion")
    header = json.loads(held.metadata.get(_HEADER, "{}"))
    return (held.tensors, header["values"]) if header.get("identity") == identity else None


def _save(path: Path, identity: str, state: State) -> None:
    """Write a file, and delete the oldest ones beside it while they take too much room."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state[0].items()}
    header = {"identity": identity, "values": dict(state[1])}
    write_atomically(path, save(tensors, {_HEADER: json.dumps(header)}))
    others = sorted(path.parent.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
    total = sum(file.stat().st_size for file in others)
    for file in others[:-1]:
        if total <= _MOST_BYTES:
            return
        total -= file.stat().st_size
        file.unlink(missing_ok=True)
