"""`folder:PATH`: pictures in one sub-folder per class.

Files are opened as the few common raster formats only, within Pillow's limit against decompression bombs;
symbolic links may not lead out of the folder, so that an audit never reads what its owner did not hand over.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from fedseal.core.errors import InputError, UsageError
from fedseal.core.registry import Info
from fedseal.data.dataset import ImageDataset
from fedseal.data.images import Pixels, check_size, measure, square
from fedseal.data.registry import DATASETS

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
def folder(path: Path, size: int = 32, channels: int = 3) -> ImageDataset:
    """Return the pictures below a folder: `folder:PATH`, or `folder:path=PATH,size=64,channels=1`.

    What follows the colon is the path as long as it holds no `=`; with options, the path is an option too.

    Args:
        path: the folder; its sub-folders, sorted by name, are the classes, and the picture files directly
            inside them, sorted by name, their images. Names that start with a dot are ignored.
        size: pictures are centre-cropped to a square and resized to [channels, size, size].
        channels: 3 for RGB, 1 for grey.
    """
    if channels not in (1, 3):
        raise UsageError(f"a folder of pictures cannot have {channels} channels.", hint="Use channels=1 or channels=3.")
    check_size(size)
    root = Path(path).expanduser()
    if not root.is_dir():
        raise InputError(f"there is no folder {root}.", hint="Check the path; write folder:PATH.")
    inside = root.resolve()
    classes = [child for child in _children(root) if _resolve(child, inside).is_dir()]
    if not classes:
        raise InputError(f"{root} has no sub-folders.", hint="Put the pictures into one sub-folder per class.")
    images: list[Pixels] = []
    labels: list[int] = []
    for label, directory in enumerate(classes):
        pictures = [child for child in _children(directory) if child.suffix.lower() in FORMATS]
        if not pictures:
            endings = ", ".join(sorted(FORMATS))
            raise InputError(f"{directory} holds no pictures.", hint=f"Add some ({endings}) or remove the folder.")
        images.extend(_read(_resolve(picture, inside), picture, size, channels) for picture in pictures)
        labels.extend([label] * len(pictures))
    stack = np.stack(images)
    names = tuple(directory.name for directory in classes)
    return ImageDataset(root.name, torch.from_numpy(stack), torch.tensor(labels), names, measure(stack))


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


def _read(real: Path, shown: Path, size: int, channels: int) -> Pixels:
    from PIL import Image, ImageOps

    if not real.is_file():
        raise InputError(f"{shown} is not a file.", hint="Remove it.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(real, formats=sorted(set(FORMATS.values()))) as picture:
                return square(ImageOps.exif_transpose(picture), size, channels)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(
            f"{shown} has more than {Image.MAX_IMAGE_PIXELS:,} pixels.", hint="Shrink it, or remove it."
        ) from error
    except InputError as error:
        raise InputError(f"cannot read {shown}: {error.message}", hint=error.hint) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(
            f"cannot read {shown} as a picture: {type(error).__name__}: {str(error).splitlines()[0]}.",
            hint="Repair or remove the file.",
        ) from error
