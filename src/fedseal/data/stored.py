"""Images that do not fit into memory: decoded once, kept on disk as plain bytes, read where they are needed.

A part of them (a client's, the attacker's) is a list of places and copies nothing. What needs all pixels of a part at
once asks for `inputs`, within the limit of memory (`core.limits`); batches do not.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedseal.core.batch import IDENTITY, Batch, Normalisation
from fedseal.core.errors import InputError
from fedseal.core.files import storage_error
from fedseal.core.hashing import hash_tensors
from fedseal.core.identity import identity_of
from fedseal.core.limits import check_memory, memory_limit
from fedseal.core.modality import IMAGE
from fedseal.core.places import CACHE_VARIABLE, cache_directory
from fedseal.data.dataset import Dataset, grey_ramps
from fedseal.data.images import Histogram, Pixels

_SHARE = 4
"""Images that take more than this part of the memory allowed are kept on disk: they are copied when they are split."""
_TOGETHER = 256
"""Images that are decoded before they are written."""


@dataclass(frozen=True)
class StoredImages(Dataset):
    """Images in a file, of which `places` are ours.

    Attributes:
        name: for reports.
        pixels: uint8 [M, C, H, W], the file's; read where they are touched.
        places: int64 [N], in the file.
        labels: one for each place.
        classes: their names.
        content: hash of the file.
        normalisation: statistics of the whole file.
        notes: what was done to the images that their owner should know.
        groups: int64 [N], whose an image is.
    """

    name: str
    pixels: Tensor
    places: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    content: str
    normalisation: Normalisation = IDENTITY
    notes: tuple[str, ...] = ()
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.places) or not len(self.places):
            raise InputError(f"data set {self.name!r} has {len(self.labels)} labels for {len(self.places)} images.")

    @property
    def inputs(self) -> Tensor:
        """All pixels of this part, in memory."""
        check_memory(len(self) * math.prod(self.shape), f"{self.name}: {len(self):,} images at once")
        return self.pixels[self.places]

    @property
    def modality(self) -> str:
        """Images."""
        return IMAGE

    @property
    def shape(self) -> tuple[int, ...]:
        """C, H, W of an image."""
        return tuple(self.pixels.shape[1:])

    def probe(self) -> Tensor:
        """Return two grey ramps."""
        return grey_ramps(self.shape)

    def batch(self, indices: Tensor | None = None) -> Batch:
        """Return the images at `indices` as floats in [0, 1]; all, if None, within the limit of memory."""
        if indices is None:
            return Batch(self.inputs.to(torch.float32) / 255, self.labels)
        return Batch(self.pixels[self.places[indices]].to(torch.float32) / 255, self.labels[indices])

    def subset(self, indices: Tensor) -> Self:
        """Return the data set restricted to `indices`, without a copy of images."""
        groups = None if self.groups is None else self.groups[indices]
        return replace(self, places=self.places[indices], labels=self.labels[indices], groups=groups)

    @property
    def memory(self) -> int:
        """Bytes it takes: of its places."""
        return 8 * len(self)

    def digest(self, key: str = "inputs") -> str:
        """Return a hash of what determines images and labels."""
        return identity_of(file=self.content, part=hash_tensors({key: self.places, "labels": self.labels}))


def too_large(count: int, shape: tuple[int, int, int]) -> bool:
    """Return whether so many images are better kept on disk."""
    return too_much(count * math.prod(shape))


def too_much(size: int) -> bool:
    """Return whether images of so many bytes are better kept on disk."""
    return size > memory_limit() // _SHARE


@dataclass(frozen=True)
class Kept:
    """A file of images in the cache.

    Attributes:
        pixels: uint8 [M, C, H, W], read where they are touched.
        normalisation: their statistics.
        content: SHA-256 of the bytes.
    """

    pixels: Tensor
    normalisation: Normalisation
    content: str


def keep_images(images: Iterable[Pixels], count: int, shape: tuple[int, int, int], key: str) -> Kept:
    """Return images in a file of the cache, written if it is not there.

    Args:
        images: uint8 [C, H, W] each, not touched where the file is there.
        count: how many.
        shape: C, H, W.
        key: names the file: a hash of what they are decoded from, and how.
    """
    path = cache_directory() / "images" / f"{key}.u8"
    size = count * math.prod(shape)
    if not path.is_file() or path.stat().st_size != size:
        _write(images, size, path)
    pixels = np.memmap(path, dtype=np.uint8, mode="c", shape=(count, *shape))
    seen, digest = Histogram(shape[0]), hashlib.sha256()
    for first in range(0, count, _TOGETHER):
        part = np.asarray(pixels[first : first + _TOGETHER])
        seen.add(part)
        digest.update(part.tobytes())
    return Kept(torch.from_numpy(pixels), seen.normalisation(), digest.hexdigest())


def stored(
    name: str,
    kept: Kept,
    labels: Tensor,
    classes: tuple[str, ...],
    notes: tuple[str, ...] = (),
    groups: Tensor | None = None,
) -> StoredImages:
    """Return all images of a file as a data set."""
    size = kept.pixels.numel() / 2**30
    told = (
        f"{len(labels):,} images would take {size:.1f} GiB of memory: they are kept in {cache_directory() / 'images'}"
    )
    return StoredImages(
        name,
        kept.pixels,
        torch.arange(len(kept.pixels)),
        labels,
        classes,
        kept.content,
        kept.normalisation,
        (*notes, told),
        groups,
    )


def _write(images: Iterable[Pixels], size: int, path: Path) -> None:
    """Write images to a file, whole or not at all."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if size > (free := shutil.disk_usage(path.parent).free):
            raise InputError(
                f"{size / 2**30:.1f} GiB of images do not fit into {path.parent}: {free / 2**30:.1f} GiB free.",
                hint=f"Name another place: {CACHE_VARIABLE}=DIR.",
            )
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            for part in _joined(images):
                file.write(part)
            written = file.tell()
        if written != size:
            raise InputError(f"{written:,} bytes of images came where {size:,} were announced.", hint="Try again.")
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _joined(images: Iterable[Pixels]) -> Iterator[bytes]:
    held: list[Pixels] = []
    for image in images:
        held.append(image)
        if len(held) == _TOGETHER:
            yield np.stack(held).tobytes()
            held.clear()
    if held:
        yield np.stack(held).tobytes()
