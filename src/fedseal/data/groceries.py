"""`groceries`: colour photographs of fruit from a shop; the colour classification set that PyPI alone can bring.

Fetched once (see `fetch`) and kept as the original JPEGs in `groceries.npz`: `jpeg` is all files end to end,
`offsets` [N + 1] where each begins, `coarse`/`fine` the labels, `coarse_names`/`fine_names` the classes, `is_test`.
"""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedseal.core.batch import Normalisation
from fedseal.core.errors import InputError
from fedseal.core.registry import Info
from fedseal.data.dataset import ImageDataset
from fedseal.data.images import check_size, square
from fedseal.data.npz import Split
from fedseal.data.places import find_file, search_places
from fedseal.data.registry import DATASETS

GROCERIES_FILE = "groceries.npz"
STATISTICS = Normalisation((0.552, 0.395, 0.190), (0.239, 0.212, 0.167))
"""Of the training part at 64 pixels; the deviation depends slightly on the size."""


@DATASETS.register(
    "groceries",
    Info(
        summary="1,393 photographs of fruit in a shop, 5 or 14 classes: `fedseal data get groceries` (61 MB)",
        paper="Klasson et al., WACV 2019",
    ),
)
def groceries(
    split: Split = "train",
    size: int = 32,
    labels: Literal["coarse", "fine"] = "coarse",
    data_root: Path | None = None,
) -> ImageDataset:
    """Return the photographs, centre-cropped and resized to [N, 3, size, size].

    Args:
        split: 732 training or 661 test pictures; the split is the authors', their validation part joins training.
        size: side in pixels; the originals have 348.
        labels: 5 coarse classes (apple, melon, ...) or 14 fine ones (Golden Delicious, ...).
        data_root: where to look before FEDSEAL_DATA and the cache.
    """
    check_size(size)
    path = find_file((GROCERIES_FILE,), data_root)
    if path is None:
        places = ", ".join(str(place) for place in search_places(data_root))
        raise InputError(
            f"the data set 'groceries' is not on this machine: no {GROCERIES_FILE} in {places}.",
            hint="Run `fedseal data get groceries`.",
        )
    return _read(path, path.stat().st_mtime_ns, split, size, labels)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, split: Split, size: int, labels: str) -> ImageDataset:
    from PIL import Image

    try:
        with np.load(path, allow_pickle=False) as archive:
            content, offsets = archive["jpeg"].tobytes(), archive["offsets"]
            rows = np.flatnonzero(archive["is_test"] == (split == "test"))
            targets = archive[labels][rows].astype(np.int64)
            names = tuple(str(name) for name in archive[f"{labels}_names"])
        pictures = []
        for row in rows:
            with Image.open(io.BytesIO(content[offsets[row] : offsets[row + 1]]), formats=["JPEG"]) as picture:
                picture.draft("RGB", (2 * size, 2 * size))
                pictures.append(square(picture, size, channels=3))
        images = np.stack(pictures)
    except (OSError, KeyError, IndexError, ValueError, EOFError) as error:
        raise InputError(
            f"{path} is damaged: {error}.", hint="Delete it and run `fedseal data get groceries`."
        ) from error
    return ImageDataset("groceries", torch.from_numpy(images), torch.from_numpy(targets), names, STATISTICS)
