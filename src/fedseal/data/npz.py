"""`npz:PATH`: images and labels from a numpy archive, read without pickle."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedseal.core.batch import Normalisation
from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import local_path
from fedseal.core.identity import identity_of
from fedseal.core.limits import check_memory
from fedseal.core.registry import Info
from fedseal.core.specs import near_matches
from fedseal.data.dataset import ImageDataset
from fedseal.data.groups import number_owners
from fedseal.data.images import Pixels, measure, resize
from fedseal.data.member import Member, member_of
from fedseal.data.pack import OFFSETS, PICTURES, VALIDATION, check_offsets, chosen_part, is_pack, unpack
from fedseal.data.registry import DATASETS
from fedseal.data.stored import Kept, StoredImages, keep_images, stored, too_much

Split = Literal["train", "test"]

PLAIN_KEYS = (("images", "labels"), ("x", "y"), ("data", "labels"))
NAME_KEYS = ("class_names", "classes", "names")
_FORMAT = "Images are uint8, uint16 or floats in [0, 1], as [N, H, W], [N, H, W, C] or [N, C, H, W] with C = 1 or 3."
_NONE: Pixels = np.empty((0, 1, 1, 1), dtype=np.uint8)
_LABELS = "Labels are classes, integers [N]; flags, 0 or 1 [N, K]; or values, floats [N] or [N, K]."
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    MemoryError,
    RuntimeError,
    ValueError,
    KeyError,
    NotImplementedError,
)
"""What reading a damaged archive can raise."""


@dataclass(frozen=True)
class LabelledArrays:
    """What a numpy archive holds: images uint8 [N, C, H, W], labels int64 [N], the classes' names, and groups [N].

    Labels may be flags or values too, float32 [N, K], with a name for each of the K. Images that do not fit into memory
    are `kept` in a file, and `images` is empty.
    """

    images: Pixels
    labels: NDArray[Any]
    classes: tuple[str, ...]
    groups: NDArray[np.int64] | None = None
    kept: Kept | None = None


@DATASETS.register("npz", Info(summary="a numpy archive of yours with images and labels: npz:PATH"))
def npz(
    path: Path, split: Split | None = None, group: str | None = None, size: int | None = None, channels: int = 3
) -> ImageDataset | StoredImages:
    """Return the data set in a numpy archive: `npz:PATH`, or `npz:path=PATH,split=test`.

    Args:
        path: the file. Images and labels lie under `images`/`labels`, `x`/`y` or `data`/`labels`, or under
            `train_images`/`train_labels` (`test_...`), also spelt `x_train`/`y_train`. Images are uint8 or
            floats in [0, 1] or 16 bits deep (both rounded to 256 levels), as [N, H, W], [N, H, W, C] or [N, C, H, W].
            Or it is a pack of JPEG files, `jpeg` and `offsets` beside `labels` (`fedseal.data.pack`).
        split: which of the prefixed pairs; without it the plain keys, else the training part. Of a pack that has
            `is_val` the part it tells, without it all.
        group: array that says whose each image is, numbers or texts [N]: a patient's images are never shared between
            public and private data, training and test, or those attacked and strangers. Beside `train_images` it may
            be called `train_...` too, and so on.
        size: side that square images are resized to, and pictures of a pack cropped and resized.
        channels: of the pictures of a pack: 3 for RGB, 1 for grey.

    Labels are remapped to 0..C-1, in the order of their values, only if they are not contiguous from 0;
    the classes keep the original values as names. With `class_names` in the file, labels index these and
    stay as they are. Whole numbers 0 and 1 [N, K] are flags, for `loss: bce`, and floats [N] or [N, K] values, for
    `loss: mse`. Normalisation is measured from the images. Images that do not fit into memory are read once, some
    hundred at a time, and kept in the cache.
    """
    if channels not in (1, 3):
        raise UsageError(f"pictures cannot have {channels} channels.", hint="Use channels=1 or channels=3.")
    arrays = read_npz(path, split, group=group, shown=Shown(size, channels))
    name, labels = Path(path).stem, torch.from_numpy(arrays.labels)
    if arrays.kept is not None:
        return stored(name, arrays.kept, labels, arrays.classes, groups=_owners(arrays))
    return as_dataset(name, arrays, measure(arrays.images))


def as_dataset(name: str, arrays: LabelledArrays, normalisation: Normalisation) -> ImageDataset:
    """Wrap arrays in memory as a data set with the given statistics."""
    images, labels = torch.from_numpy(arrays.images), torch.from_numpy(arrays.labels)
    return ImageDataset(name, images, labels, arrays.classes, normalisation, groups=_owners(arrays))


def _owners(arrays: LabelledArrays) -> torch.Tensor | None:
    return None if arrays.groups is None else torch.from_numpy(arrays.groups)


@dataclass(frozen=True)
class Shown:
    """How images are read: their side (their own, if None) and, of pictures of a pack, their channels."""

    size: int | None = None
    channels: int = 3


def read_npz(
    path: Path,
    split: Split | None = None,
    classes: tuple[str, ...] = (),
    group: str | None = None,
    shown: Shown | None = None,
) -> LabelledArrays:
    """Read and check images, labels and class names of a numpy archive; see `npz` for what it may look like.

    Args:
        path: the file.
        split: the prefix of the keys, as for `npz`.
        classes: names the labels index when the file brings none; without either, labels may be remapped.
        group: array that says whose each image is.
        shown: how images are read, beyond memory too; without it as they are, and refused if they do not fit.
    """
    path = local_path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}.", hint="Check the path; write npz:PATH.")
    with _readable(path):
        if not zipfile.is_zipfile(path):
            raise InputError(f"{path} is no numpy archive.", hint="Save it with numpy.savez(images=..., labels=...).")
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} holds a single array.", hint="Save it with numpy.savez(images=..., labels=...).")
        with archive:
            images = (_packed if is_pack(archive.files) else _plain)(path, archive, split, shown)
            if images.label_key not in archive.files:
                raise InputError(f"{path} is a pack of pictures without `labels`.", hint=_LABELS)
            labels = _array(archive, images.label_key)
            group_key = None if group is None else _group_key(archive.files, group, images.label_key)
            if group_key is not None and group_key not in archive.files:
                known = near_matches(group_key, archive.files)
                raise InputError(f"{path} has no array {group_key!r} of groups.", hint=known)
            owners = None if group_key is None else _array(archive, group_key)
            names_key = next((key for key in NAME_KEYS if key in archive.files), None)
            names = classes if names_key is None else _as_names(_array(archive, names_key))
    values = _as_labels(labels, images.count, f"{path}, array {images.label_key!r}")
    groups = None if owners is None else _as_groups(owners, images.count, f"{path}, array {group_key!r}")
    if images.places is not None:
        values, groups = values[images.places], None if groups is None else groups[images.places]
    read = images.read()
    pixels, kept = (_NONE, read) if isinstance(read, Kept) else (read, None)
    if values.ndim == 2:
        columns = names if len(names) == values.shape[1] else tuple(map(str, range(values.shape[1])))
        return LabelledArrays(pixels, values, columns, groups, kept)
    return LabelledArrays(pixels, *_name_classes(values, names, str(path)), groups, kept)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say in a sentence what keeps an archive from being read."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.", hint="Check the file.") from error
    except DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else "damaged"
        raise InputError(
            f"{path} is not a readable numpy archive: {reason}.",
            hint="Save plain arrays with numpy.savez; pickled objects are refused, they could run code.",
        ) from error


@dataclass(frozen=True)
class _Images:
    """Images of an archive, found and not yet read.

    Attributes:
        count: of the archive's images.
        label_key: names their labels.
        places: of those wanted, as there are labels for all; None for all.
        read: returns them.
    """

    count: int
    label_key: str
    places: NDArray[np.int64] | None
    read: Callable[[], Pixels | Kept]


def _packed(path: Path, archive: Any, split: Split | None, shown: Shown | None) -> _Images:
    """Find the pictures of a pack, whose files have to fit into memory."""
    check_sizes(path, archive)
    files, offsets = _array(archive, PICTURES), _array(archive, OFFSETS)
    count = check_offsets(files, offsets, str(path))
    places = np.arange(count)
    if split and VALIDATION in archive.files:
        flags = _array(archive, VALIDATION)
        places = chosen_part(flags, count, split == "test", f"{path}, array {VALIDATION!r}")
    how = shown or Shown()
    return _Images(count, "labels", places, lambda: unpack(files, offsets, places, str(path), how.size, how.channels))


def _plain(path: Path, archive: Any, split: Split | None, shown: Shown | None) -> _Images:
    """Find an array of images."""
    image_key, label_key = _choose_keys(path, archive.files, split)
    where = f"{path}, array {image_key!r}"
    member = member_of(path, archive, image_key)
    if shown is not None and member is not None and too_much(member.size):
        check_sizes(path, archive, besides=image_key)
        return _Images(member.shape[0] if member.shape else 0, label_key, None, lambda: _kept(member, shown, where))
    check_sizes(path, archive)
    images = _array(archive, image_key)
    return _Images(len(images), label_key, None, lambda: _sized(_as_pixels(images, where), shown, path))


def _kept(member: Member, shown: Shown, where: str) -> Kept:
    """Return images that do not fit into memory in a file of the cache, made once while the archive is not touched."""
    check_memory(member.size // max(1, member.shape[0]), f"an image of {where}")
    example = _sized(_as_pixels(np.zeros((1, *member.shape[1:]), dtype=member.dtype), where), shown, member.path)
    _, channels, height, width = example.shape

    def images() -> Iterator[Pixels]:
        parts = member.parts()
        while True:
            with _readable(member.path):
                part = next(parts, None)
            if part is None:
                return
            yield from _sized(_as_pixels(part, where), shown, member.path)

    about = member.path.stat()
    key = identity_of(
        file=str(member.path.resolve()),
        bytes=about.st_size,
        changed=about.st_mtime_ns,
        array=member.key,
        size=shown.size,
    )
    return keep_images(images(), member.shape[0], (channels, height, width), key)


def _sized(images: Pixels, shown: Shown | None, path: Path) -> Pixels:
    """Return images at the side that is wanted."""
    if shown is None or shown.size is None or images.shape[-2:] == (shown.size, shown.size):
        return images
    height, width = images.shape[-2:]
    if height != width:
        raise InputError(f"{path} holds images of {height} x {width}, not square.", hint="Leave `size` out.")
    return resize(images, shown.size)


def _array(archive: Any, key: str) -> Any:
    """Return an array of an archive; numpy hands out a member without a header as bytes."""
    found = archive[key]
    if not isinstance(found, np.ndarray):
        raise ValueError(f"{key!r} is no array")
    return found


def _choose_keys(path: Path, found: list[str], split: Split | None) -> tuple[str, str]:
    part = split or "train"
    prefixed = ((f"{part}_images", f"{part}_labels"), (f"x_{part}", f"y_{part}"))
    candidates = prefixed if split else PLAIN_KEYS + prefixed
    for images, labels in candidates:
        if images in found and labels in found:
            return images, labels
    wanted = " or ".join(f"{images}/{labels}" for images, labels in candidates)
    raise InputError(
        f"{path} holds the arrays {', '.join(sorted(found)) or '(none)'}, but no {wanted}.",
        hint="Save it with numpy.savez(path, images=..., labels=...).",
    )


def _group_key(found: list[str], group: str, label_key: str) -> str:
    """Return the array of groups that belongs to labels: `train_patient` beside `train_labels`, if there is one."""
    for part in ("train", "test"):
        own = {f"{part}_labels": f"{part}_{group}", f"y_{part}": f"{group}_{part}"}.get(label_key)
        if own in found:
            return own
    return group


def check_sizes(path: Path, archive: Any, besides: str | None = None) -> None:
    """Refuse an archive whose arrays would take more memory than is allowed, before any is unpacked.

    Args:
        path: of the archive.
        archive: numpy's `NpzFile`.
        besides: an array that is not read whole.
    """
    for member in archive.zip.infolist():
        if besides is None or member.filename not in (besides, f"{besides}.npy"):
            check_memory(member.file_size, f"{path}: {member.filename}, unpacked,")
    for name in (name for name in archive.files if name != besides):
        known = member_of(path, archive, name)
        check_memory(0 if known is None else known.size, f"{path}: array {name!r}")


def _as_pixels(images: NDArray[Any], where: str) -> Pixels:
    if images.dtype.kind == "f":
        if not bool(np.isfinite(images).all()) or images.min(initial=0) < 0 or images.max(initial=0) > 1:
            low, high = images.min(initial=np.inf), images.max(initial=-np.inf)
            raise InputError(f"{where} holds floats from {low:g} to {high:g}, not in [0, 1].", hint=_FORMAT)
        images = np.rint(images * 255).astype(np.uint8)
    if images.dtype == np.uint16:
        images = ((images.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if images.dtype != np.uint8:
        raise InputError(f"{where} has dtype {images.dtype}.", hint=_FORMAT)
    if images.ndim == 3:
        return np.ascontiguousarray(images[:, None])
    last, first = (images.ndim == 4 and images.shape[axis] in (1, 3) for axis in (3, 1))
    if last == first:
        problem = "which is both [N, H, W, C] and [N, C, H, W]" if last else "which is no stack of images"
        raise InputError(f"{where} has shape {list(images.shape)}, {problem}.", hint=_FORMAT)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2) if last else images)


def _as_labels(labels: NDArray[Any], count: int, where: str) -> NDArray[Any]:
    """Return classes int64 [N], or flags or values float32 [N, K]."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "iufb":
        raise InputError(f"{where} has shape {list(labels.shape)} and dtype {labels.dtype}.", hint=_LABELS)
    if len(labels) != count:
        raise InputError(f"{where} has {len(labels)} labels for {count} images.", hint="Give one label per image.")
    if count == 0:
        raise InputError(f"{where} is empty.", hint="Give at least one image.")
    if labels.dtype.kind == "f" and not bool(np.isfinite(labels).all()):
        raise InputError(f"{where} holds NaN or infinite values.", hint=_LABELS)
    binary = bool(np.isin(labels, (0, 1)).all())
    if labels.ndim == 1 and (binary or labels.dtype.kind != "f"):
        return labels.astype(np.int64)
    if labels.dtype.kind != "f" and not binary:
        raise InputError(f"{where} has shape {list(labels.shape)} and values other than 0 and 1.", hint=_LABELS)
    return labels.astype(np.float32).reshape(len(labels), -1)


def _as_names(names: NDArray[Any]) -> tuple[str, ...]:
    return tuple(str(name) for name in names) if names.ndim == 1 and names.dtype.kind == "U" else ()


def _name_classes(
    labels: NDArray[np.int64], names: tuple[str, ...], where: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    values, compact = np.unique(labels, return_inverse=True)
    if values[0] < 0:
        raise InputError(
            f"{where} has negative labels, {values[0]} among them.",
            hint="Count classes from 0, and leave images without a label out.",
        )
    if names:
        if values[-1] >= len(names) == len(values):
            return compact.astype(np.int64), names  # a part of a larger set, that names only the classes it has
        if values[-1] >= len(names):
            raise InputError(
                f"{where} has labels {values[0]}..{values[-1]} for {len(names)} classes.",
                hint="Labels index the classes, from 0; or there is one name for each label there is, in their order.",
            )
        return labels, names
    contiguous = values[0] == 0 and values[-1] == len(values) - 1
    return labels if contiguous else compact.astype(np.int64), tuple(str(value) for value in values)


def _as_groups(owners: NDArray[Any], count: int, where: str) -> NDArray[np.int64]:
    """Return groups that are told by numbers or texts as numbers that are the same in every file."""
    if owners.shape != (count,) or owners.dtype.kind not in "iuSU":
        raise InputError(
            f"{where} has {owners.dtype} {list(owners.shape)} for {count} images.",
            hint="Groups are whole numbers or texts, one for each image.",
        )
    texts = np.char.decode(owners, "utf-8", "surrogateescape") if owners.dtype.kind == "S" else owners
    return number_owners([str(owner) for owner in texts.tolist()]).numpy()
