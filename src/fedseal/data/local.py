"""`cifar10`, `cifar100`, `mnist`, `svhn`: the usual sets, from files in the user's directory or the cache.

A set is one file per split (`cifar10_train.npz` with `images` and `labels`) or one for both (`mnist.npz` with
`train_images`, ...). Decoded sets are kept for the life of the process, since unpacking takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedseal.core.batch import Normalisation
from fedseal.core.errors import InputError
from fedseal.core.registry import Info
from fedseal.data.dataset import ImageDataset
from fedseal.data.digits import DIGIT_NAMES, MNIST_STATISTICS
from fedseal.data.npz import LabelledArrays, Split, as_dataset, read_npz
from fedseal.data.places import DATA_VARIABLE, find_file, search_places
from fedseal.data.registry import DATASETS
from fedseal.data.resize import at_size

CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class LocalSet:
    """What is known of a set before its files are found.

    Attributes:
        name: registry key and stem of its files.
        shape: C, H, W of its images.
        classes: their names, where a file brings none.
        normalisation: the published channel statistics of the training part.
        fetchable: whether `fedseal data get` can bring it.
        stems: further stems of one-file sets.
    """

    name: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    normalisation: Normalisation
    fetchable: bool = False
    stems: tuple[str, ...] = ()

    def files(self, split: Split) -> tuple[str, ...]:
        """Return the file names a split may have, the first found being used."""
        return (f"{self.name}_{split}.npz", f"{self.name}.npz", *(f"{stem}.npz" for stem in self.stems))


CIFAR10 = LocalSet(
    "cifar10",
    (3, 32, 32),
    CIFAR10_NAMES,
    Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    fetchable=True,
)
CIFAR100 = LocalSet(
    "cifar100",
    (3, 32, 32),
    tuple(str(label) for label in range(100)),
    Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)
MNIST = LocalSet("mnist", (1, 28, 28), DIGIT_NAMES, MNIST_STATISTICS, fetchable=True)
SVHN = LocalSet(
    "svhn",
    (3, 32, 32),
    DIGIT_NAMES,
    Normalisation((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    stems=("svhn_small",),
)


@DATASETS.register(
    "cifar10",
    Info(
        summary="60,000 colour pictures of 10 classes, 3 x 32 x 32: `fedseal data get cifar10` (139 MB)",
        paper="Krizhevsky, tech. report 2009",
    ),
)
def cifar10(split: Split = "train", size: int | None = None, data_root: Path | None = None) -> ImageDataset:
    """Return CIFAR-10's training or test part, images [N, 3, 32, 32]; `load` says where from."""
    return load(CIFAR10, split, data_root, size)


@DATASETS.register(
    "cifar100",
    Info(
        summary="colour pictures of 100 classes, 3 x 32 x 32, from cifar100_train.npz in --data-root",
        paper="Krizhevsky, tech. report 2009",
    ),
)
def cifar100(split: Split = "train", size: int | None = None, data_root: Path | None = None) -> ImageDataset:
    """Return CIFAR-100's training or test part, images [N, 3, 32, 32]; `load` says where from."""
    return load(CIFAR100, split, data_root, size)


@DATASETS.register(
    "mnist",
    Info(
        summary="70,000 handwritten digits, 1 x 28 x 28: `fedseal data get mnist` (12 MB)",
        paper="LeCun et al., Proc. IEEE 1998",
    ),
)
def mnist(split: Split = "train", size: int | None = None, data_root: Path | None = None) -> ImageDataset:
    """Return MNIST's training or test part, images [N, 1, 28, 28]; `load` says where from."""
    return load(MNIST, split, data_root, size)


@DATASETS.register(
    "svhn",
    Info(
        summary="house numbers photographed from the street, 3 x 32 x 32, from svhn.npz in --data-root",
        paper="Netzer et al., NIPS workshop 2011",
    ),
)
def svhn(split: Split = "train", size: int | None = None, data_root: Path | None = None) -> ImageDataset:
    """Return SVHN's training or test part, images [N, 3, 32, 32]; `load` says where from."""
    return load(SVHN, split, data_root, size)


def load(known: LocalSet, split: Split, data_root: Path | None, size: int | None = None) -> ImageDataset:
    """Return a split of a set from the first place that has its file: `data_root`, FEDSEAL_DATA, the cache.

    The tensors are shared between calls: do not change them in place. With a `size`, pixels are averaged in blocks
    (`resize.at_size`).
    """
    path = find_file(known.files(split), data_root)
    if path is None:
        raise _missing(known, split, data_root)
    prefix = None if path.stem.endswith(f"_{split}") else split
    arrays = _read(path, path.stat().st_mtime_ns, prefix, known.classes)
    if arrays.images.shape[1:] != known.shape:
        raise InputError(
            f"{path} holds images {list(arrays.images.shape[1:])}, not {known.name}'s {list(known.shape)}.",
            hint=f"Read a set of your own with npz:{path}.",
        )
    return at_size(as_dataset(known.name, arrays, known.normalisation), size)


@lru_cache(maxsize=8)
def _read(path: Path, changed: int, split: Split | None, classes: tuple[str, ...]) -> LabelledArrays:
    return read_npz(path, split, classes)


def _missing(known: LocalSet, split: Split, data_root: Path | None) -> InputError:
    places = ", ".join(str(place) for place in search_places(data_root))
    files = " or ".join(known.files(split))
    by_hand = f"put {known.files(split)[0]} into a directory and pass --data-root DIR or set {DATA_VARIABLE}"
    return InputError(
        f"the data set {known.name!r} ({split}) is not on this machine: no {files} in {places}.",
        hint=f"Run `fedseal data get {known.name}`, or {by_hand}."
        if known.fetchable
        else f"{by_hand[0].upper()}{by_hand[1:]}; its arrays: images (uint8 [N, H, W, C]), labels ([N]).",
    )
