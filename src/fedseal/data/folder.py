"""`folder:PATH`: pictures in one sub-folder per class.

Files are opened as the few common raster formats only, within Pillow's limit against decompression bombs;
symbolic links may not lead out of the folder, so that an audit never reads what its owner did not hand over.
"""

from __future__ import annotations

import struct
import warnings
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import local_path
from fedseal.core.identity import identity_of
from fedseal.core.registry import Info
from fedseal.data.dataset import ImageDataset
from fedseal.data.images import LARGEST, SMALLEST, Pixels, check_size, measure, square
from fedseal.data.registry import DATASETS
from fedseal.data.stored import StoredImages, keep_images, stored, too_large

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_SIZE = 32

FORMATS = {
    ".bmp": "BMP",
    ".gif": "GIF",
    ".jpeg": "JPEG",
    ".jpg": "JPEG",
    ".pgm": "PPM",
    ".png": "PNG",
    ".ppm": "PPM",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}
"""File endings read, with Pillow's format names; other files are ignored."""


@DATASETS.register("folder", Info(summary="pictures of yours, one sub-folder per class: folder:PATH"))
def folder(path: Path, size: int | None = None, channels: int = 3) -> ImageDataset | StoredImages:
    """Return the pictures below a folder: `folder:PATH`, or `folder:PATH?size=64&channels=1`.

    The path may hold commas; `folder:path=PATH,size=64` is the same where it holds none.

    Args:
        path: the folder; its sub-folders, sorted by name, are the classes, and the picture files directly
            inside them, sorted by name, their images. Names that start with a dot are ignored.
        size: pictures are centre-cropped to a square and resized to [channels, size, size]; without it 32, which is
            announced where it takes pixels away.
        channels: 3 for RGB, 1 for grey.

    More pictures than fit into memory are decoded once into the cache and read from there.
    """
    if channels not in (1, 3):
        raise UsageError(f"a folder of pictures cannot have {channels} channels.", hint="Use channels=1 or channels=3.")
    if size is not None:
        check_size(size)
    root = local_path(path)
    if not root.is_dir():
        raise InputError(f"there is no folder {root}.", hint="Check the path; write folder:PATH.")
    inside = root.resolve()
    classes = [child for child in _children(root) if _resolve(child, inside).is_dir()]
    if not classes:
        raise InputError(f"{root} has no sub-folders.", hint="Put the pictures into one sub-folder per class.")
    sizes: Counter[tuple[int, int]] = Counter()
    files: list[tuple[int, Path]] = []
    for label, directory in enumerate(classes):
        pictures = [child for child in _children(directory) if child.suffix.lower() in FORMATS]
        if not pictures:
            endings = ", ".join(sorted(FORMATS))
            raise InputError(f"{directory} holds no pictures.", hint=f"Add some ({endings}) or remove the folder.")
        files.extend((label, picture) for picture in pictures)
    side = size or DEFAULT_SIZE
    names = tuple(directory.name for directory in classes)
    labels = torch.tensor([label for label, _ in files])
    images = (read_picture(_resolve(picture, inside), picture, side, channels, sizes) for _, picture in files)
    if too_large(len(files), (channels, side, side)):
        kept = keep_images(images, len(files), (channels, side, side), _key(root, files, side, channels))
        notes = _resized(root, sizes, side) if size is None and sizes else ()
        return stored(root.name, kept, labels, names, notes)
    stack = np.stack(list(images))
    notes = _resized(root, sizes, side) if size is None else ()
    return ImageDataset(root.name, torch.from_numpy(stack), labels, names, measure(stack), notes)


def _key(root: Path, files: list[tuple[int, Path]], side: int, channels: int) -> str:
    """Return what decoded pictures are kept under: as long as no file changes, they are not decoded again."""
    known = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for _, path in files]
    return identity_of(root=str(root.resolve()), files=known, side=side, channels=channels)


def _resized(root: Path, sizes: Counter[tuple[int, int]], side: int) -> tuple[str, ...]:
    """Say that pictures were changed, where nobody asked for a size."""
    if set(sizes) == {(side, side)}:
        return ()
    width, height = sizes.most_common(1)[0][0]
    others = f" and {len(sizes) - 1} other sizes" if len(sizes) > 1 else ""
    fitting = min(max(min(width, height), SMALLEST), LARGEST)
    return (
        f"pictures are cropped and resized, {width}x{height}{others} -> {side}x{side}, as no size was given. Say what "
        f"your clients train on: folder:{root}?size={fitting}",
    )


def read_sizes(root: Path, most: int = 200) -> tuple[int, bool]:
    """Return the commonest shorter side of a folder's first pictures, and whether all of them are grey."""
    from PIL import Image

    sides: Counter[int] = Counter()
    modes: set[str] = set()
    for picture in islice((p for c in _children(root) if c.is_dir() for p in _children(c)), most):
        if picture.suffix.lower() not in FORMATS:
            continue
        try:
            with Image.open(picture, formats=sorted(set(FORMATS.values()))) as opened:
                sides[min(opened.size)] += 1
                modes.add(opened.mode)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue  # reading it whole says what is wrong with it
    if not sides:
        return DEFAULT_SIZE, False
    return sides.most_common(1)[0][0], modes <= {"1", "L", "LA", "I", "I;16"}


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(child for child in directory.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise InputError(f"cannot list {directory}: {error.strerror}.", hint="Check its permissions.") from error


def _resolve(path: Path, inside: Path) -> Path:
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} is a link that leads nowhere.", hint="Remove it.") from error
    if not real.is_relative_to(inside):
        raise InputError(f"{path} is a link that leaves {inside}.", hint="Copy what it points to into the folder.")
    return real


def read_picture(
    real: Path, shown: Path, size: int, channels: int, sizes: Counter[tuple[int, int]] | None = None
) -> Pixels:
    """Read a picture file as pixels [channels, size, size], or refuse it; its own size is counted in `sizes`."""

    def fit(picture: Image.Image) -> Pixels:
        if sizes is not None:
            sizes[picture.size] += 1
        return square(picture, size, channels)

    return decoded(real, shown, fit)


def decoded(real: Path | BytesIO, shown: Path | str, make: Callable[[Image.Image], Pixels]) -> Pixels:
    """Open a picture, upright, and return what `make` makes of it; whatever is wrong with it is said.

    Args:
        real: the file, or its content.
        shown: what to call it.
        make: turns the opened picture into pixels.
    """
    from PIL import Image, ImageOps

    if isinstance(real, Path) and not real.is_file():
        raise InputError(f"{shown} is not a file.", hint="Remove it, or check the path.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(real, formats=sorted(set(FORMATS.values()))) as picture:
                return make(ImageOps.exif_transpose(picture))
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(
            f"{shown} has more than {Image.MAX_IMAGE_PIXELS:,} pixels.", hint="Shrink it, or remove it."
        ) from error
    except InputError as error:
        raise InputError(f"cannot read {shown}: {error.message}", hint=error.hint) from error
    except (OSError, SyntaxError, ValueError, struct.error, KeyError, IndexError, TypeError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), "damaged")
        raise InputError(
            f"cannot read {shown} as a picture: {type(error).__name__}: {reason}.", hint="Repair or remove the file."
        ) from error
