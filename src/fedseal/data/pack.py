"""Packs of pictures: many JPEG files one behind the other in a numpy archive, as larger sets are passed on.

An archive is a pack if it has `jpeg`, bytes [B], and `offsets`, whole numbers [N + 1] from 0 to B: picture i lies
between the i-th and the next. `is_val` [N], where it is there, tells the test part from the training part.
"""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseal.core.errors import InputError
from fedseal.core.identity import identity_of
from fedseal.data.folder import decoded
from fedseal.data.images import Pixels, check_size, square
from fedseal.data.stored import Kept, keep_images, too_large

PICTURES, OFFSETS, VALIDATION = "jpeg", "offsets", "is_val"
_HINT = "A pack has `jpeg`, uint8 [B], and `offsets`, rising whole numbers [N + 1] from 0 to B."


def is_pack(names: list[str]) -> bool:
    """Return whether an archive with these arrays is a pack."""
    return PICTURES in names and OFFSETS in names


def chosen_part(flags: NDArray[Any], count: int, test: bool, where: str) -> NDArray[np.int64]:
    """Return the places of the test part, or of the training part.

    Args:
        flags: whether a picture is for testing, [N].
        count: N.
        test: which part.
        where: for errors.
    """
    if flags.shape != (count,) or flags.dtype.kind not in "bui":
        raise InputError(f"{where} has {flags.dtype} {list(flags.shape)} for {count} pictures.", hint="Give flags [N].")
    places = np.flatnonzero((flags != 0) == test)
    if not len(places):
        part = "testing" if test else "training"
        raise InputError(f"{where} marks no picture for {part}.", hint="Leave `split` out.")
    return places


def check_offsets(pictures: NDArray[Any], offsets: NDArray[Any], where: str) -> int:
    """Return how many pictures a pack holds, or refuse it."""
    good = (
        pictures.ndim == 1
        and pictures.dtype == np.uint8
        and offsets.ndim == 1
        and len(offsets) > 1
        and offsets.dtype.kind in "iu"
        and int(offsets[0]) == 0
        and int(offsets[-1]) == len(pictures)
        and bool((offsets[1:] > offsets[:-1]).all())
    )
    if not good:
        raise InputError(f"{where}: `jpeg` and `offsets` do not fit together.", hint=_HINT)
    return len(offsets) - 1


def unpack(
    pictures: NDArray[Any],
    offsets: NDArray[Any],
    places: NDArray[np.int64],
    where: str,
    size: int | None,
    channels: int,
) -> Pixels | Kept:
    """Return pictures of a pack, uint8 [N, channels, size, size]; more than fit into memory in a file of the cache.

    Args:
        pictures: uint8 [B], the files.
        offsets: where each begins, and the last ends.
        places: of those wanted.
        where: for errors.
        size: centre-cropped to a square and resized to this side; without it that of the first picture's shorter side.
        channels: 3 for RGB, 1 for grey.
    """

    def read(place: int, side: int | None) -> Pixels:
        content = io.BytesIO(pictures[int(offsets[place]) : int(offsets[place + 1])].tobytes())
        name = f"{where}, picture {place},"
        return decoded(content, name, lambda picture: square(picture, side or min(picture.size), channels))

    side = check_size(size if size is not None else read(int(places[0]), None).shape[-1])
    images = (read(int(place), side) for place in places)
    if too_large(len(places), (channels, side, side)):
        key = identity_of(
            files=hashlib.sha256(pictures.tobytes()).hexdigest(),
            offsets=offsets.tolist(),
            places=places.tolist(),
            side=side,
            channels=channels,
        )
        return keep_images(images, len(places), (channels, side, side), key)
    return np.stack(list(images))
