"""`file`: a partition of the user's own, as lists of places in the data set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.core.registry import Info
from fedseal.data.dataset import ImageDataset
from fedseal.data.partition.core import PARTITIONERS, Partitioner

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

    def deal(self, dataset: ImageDataset, clients: int, source: torch.Generator) -> list[Tensor]:
        """Return what the file says; it must hold a list per client."""
        lists = self._read()
        left = len(dataset) - len(torch.cat(lists)) if lists else len(dataset)
        self.note = f"{left} of {len(dataset)} images belong to nobody" if left > 0 else ""
        return lists

    def _read(self) -> list[Tensor]:
        try:
            if self.path.suffix == ".npz":
                with np.load(self.path, allow_pickle=False) as archive:
                    arrays = [np.asarray(archive[name]) for name in sorted(archive.files)]
            else:
                content = json.loads(self.path.read_text(encoding="utf-8"))
                if not isinstance(content, list) or not all(isinstance(places, list) for places in content):
                    raise InputError(f"{self.path} is no list of lists.", hint=f"It must be {_FORMAT}.")
                arrays = [np.asarray(places, dtype=None if places else np.int64) for places in content]
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror or error}.", hint="Check the path.") from error
        except (ValueError, EOFError) as error:
            raise InputError(f"{self.path} holds no partition: {error}.", hint=f"It must be {_FORMAT}.") from error
        for client, array in enumerate(arrays):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise InputError(
                    f"{self.path}: client {client} has no list of integers.", hint=f"It must be {_FORMAT}."
                )
        return [torch.from_numpy(array.astype(np.int64)) for array in arrays]
