"""`file`: a partition of the user's own, as lists of places in the data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.files import local_path
from fedseal.core.limits import check_memory
from fedseal.core.registry import Info
from fedseal.data.dataset import Dataset
from fedseal.data.npz import DAMAGE, check_sizes
from fedseal.data.partition.core import PARTITIONERS, Partitioner

_LAST = (1 << 62) - 1
_FORMAT = "a JSON list with one list of places per client, or an .npz with one array of integers per client, by name"


@PARTITIONERS.register("file", Info("places in the data set per client, from a JSON or NPZ file of yours: file:PATH"))
class IndexFile(Partitioner):
    """Reads `[[0, 5, 7], [1, 2]]`, or an archive of integer arrays; its arrays are clients in the order of their names.

    Images that are in no list belong to nobody.

    Args:
        path: the file.
    """

    complete = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def deal(self, dataset: Dataset, clients: int, source: torch.Generator) -> list[Tensor]:
        """Return what the file says; it must hold a list per client."""
        lists = self._read()
        left = len(dataset) - len(torch.cat(lists)) if lists else len(dataset)
        self.note = f"{left} of {len(dataset)} images belong to nobody" if left > 0 else ""
        return lists

    def _read(self) -> list[Tensor]:
        path = local_path(self.path)
        try:
            arrays = _from_archive(path) if path.suffix == ".npz" else _from_json(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}.", hint="Check the path.") from error
        except (ValueError, EOFError, KeyError, OverflowError, RecursionError, RuntimeError, *DAMAGE) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{path} holds no partition: {reason}.", hint=f"It must be {_FORMAT}.") from error
        for client, array in enumerate(arrays):
            if array.ndim != 1 or array.dtype.kind not in "iu" or (len(array) and int(array.max()) > _LAST):
                raise InputError(f"{path}: client {client} has no list of integers.", hint=f"It must be {_FORMAT}.")
        return [torch.from_numpy(array.astype(np.int64)) for array in arrays]


def _from_archive(path: Path) -> list[NDArray[Any]]:
    with path.open("rb") as start:
        if start.read(2) != b"PK":
            raise InputError(f"{path} is no numpy archive.", hint=f"It must be {_FORMAT}.")
    with np.load(path, allow_pickle=False) as archive:
        check_sizes(path, archive)
        return [np.asarray(archive[name]) for name in sorted(archive.files)]


def _from_json(path: Path) -> list[NDArray[Any]]:
    check_memory(16 * path.stat().st_size, str(path))
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, list) or not all(isinstance(places, list) for places in content):
        raise InputError(f"{path} is no list of lists.", hint=f"It must be {_FORMAT}.")
    return [np.asarray(places, dtype=None if places else np.int64) for places in content]
