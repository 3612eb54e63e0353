"""The usual sets from a directory: where they are looked for, how they are read, what a missing one says."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedseal.core.errors import InputError, UsageError
from fedseal.data.dataset import ImageDataset
from fedseal.data.places import cache_directory, search_places
from fedseal.data.registry import DATASETS


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for every test: an empty cache, no FEDSEAL_DATA."""
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSEAL_DATA", raising=False)
    return tmp_path


def write(directory: Path, name: str, shade: int, prefix: str = "", side: int = 32) -> None:
    directory.mkdir(exist_ok=True)
    images = np.full((4, side, side, 3), shade, np.uint8)
    np.savez(directory / name, **{f"{prefix}images": images, f"{prefix}labels": np.array([2, 5, 2, 9])})


def shade(dataset: ImageDataset) -> int:
    return int(dataset.images.unique().item())


def test_places_are_searched_in_order(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(places / "cache", "cifar10_train.npz", 1)
    assert shade(DATASETS.build("cifar10")) == 1
    write(places / "variable", "cifar10_train.npz", 2)
    monkeypatch.setenv("FEDSEAL_DATA", str(places / "variable"))
    assert shade(DATASETS.build("cifar10")) == 2
    write(places / "root", "cifar10_train.npz", 3)
    assert shade(DATASETS.build("cifar10", data_root=places / "root")) == 3


def test_labels_keep_their_meaning_in_a_partial_file(places: Path) -> None:
    """A file with three of the ten classes must not have its labels renumbered."""
    write(places / "cache", "cifar10_train.npz", 1)
    dataset = DATASETS.build("cifar10")
    assert dataset.labels.tolist() == [2, 5, 2, 9]
    assert [dataset.classes[label] for label in dataset.labels[:2]] == ["bird", "dog"]


def test_splits_may_share_a_file(places: Path) -> None:
    images, labels = np.zeros((2, 32, 32, 3), np.uint8), np.array([0, 1])
    (places / "cache").mkdir()
    np.savez(
        places / "cache" / "svhn.npz",
        train_images=images,
        train_labels=labels,
        test_images=images + 7,
        test_labels=labels,
    )
    assert shade(DATASETS.build("svhn")) == 0
    assert shade(DATASETS.build("svhn:test")) == 7


def test_a_changed_file_is_read_again(places: Path) -> None:
    write(places / "cache", "cifar10_train.npz", 1)
    assert shade(DATASETS.build("cifar10")) == 1
    (places / "cache" / "cifar10_train.npz").unlink()
    write(places / "cache", "cifar10_train.npz", 9)
    assert shade(DATASETS.build("cifar10")) == 9


def test_images_of_another_shape_are_refused(places: Path) -> None:
    write(places / "cache", "cifar10_train.npz", 1, side=16)
    with pytest.raises(InputError, match=r"holds images \[3, 16, 16\], not cifar10's \[3, 32, 32\]"):
        DATASETS.build("cifar10")


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_a_missing_fetchable_set_says_how_to_get_it(places: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        DATASETS.build(f"{name}:test", data_root=places / "root")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"Run `fedseal data get {name}`, or put {name}_test.npz into")
    assert f"no {name}_test.npz or {name}.npz in {places / 'root'}, {places / 'cache'}" in caught.value.message


@pytest.mark.parametrize("name", ["cifar100", "svhn"])
def test_another_missing_set_says_what_to_put_where(places: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("FEDSEAL_DATA", str(places / "variable"))
    with pytest.raises(InputError) as caught:
        DATASETS.build(name)
    wanted = f"Put {name}_train.npz into a directory and pass --data-root DIR or set FEDSEAL_DATA"
    assert (caught.value.hint or "").startswith(wanted)
    assert str(places / "variable") in caught.value.message


def test_missing_groceries_say_how_to_get_them() -> None:
    with pytest.raises(InputError, match="Run `fedseal data get groceries`"):
        DATASETS.build("groceries")


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UsageError, match="option 'split' of the data set 'mnist' cannot be 'validation'"):
        DATASETS.build("mnist:validation")


def test_groceries_are_decoded(places: Path) -> None:
    files = []
    for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255)):
        buffer = io.BytesIO()
        Image.new("RGB", (60, 40), colour).save(buffer, "JPEG", quality=95)
        files.append(buffer.getvalue())
    (places / "cache").mkdir()
    np.savez(
        places / "cache" / "groceries.npz",
        jpeg=np.frombuffer(b"".join(files), np.uint8),
        offsets=np.cumsum([0, *map(len, files)]),
        is_test=np.array([False, True, False]),
        coarse=np.array([1, 0, 1]),
        fine=np.array([0, 1, 2]),
        coarse_names=np.array(["Apple", "Pear"]),
        fine_names=np.array(["Anjou", "Gala", "Kaiser"]),
    )
    coarse, fine = DATASETS.build("groceries"), DATASETS.build("groceries:split=test,size=16,labels=fine")
    assert coarse.images.shape == (2, 3, 32, 32)
    assert coarse.labels.tolist() == [1, 1]
    assert coarse.images[:, :, 9, 9].argmax(1).tolist() == [0, 2]
    assert fine.images.shape == (1, 3, 16, 16)
    assert fine.labels.tolist() == [1]
    assert fine.images[0, :, 9, 9].argmax() == 1


def test_damaged_groceries_are_named(places: Path) -> None:
    (places / "cache").mkdir()
    np.savez(places / "cache" / "groceries.npz", jpeg=np.zeros(3, np.uint8))
    with pytest.raises(InputError, match=r"groceries\.npz is damaged"):
        DATASETS.build("groceries")


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("FEDSEAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "fedseal"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "fedseal"
    assert search_places(tmp_path / "home" / ".cache" / "fedseal") == [cache_directory()]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("spec", "count", "shape", "classes"),
    [
        ("cifar10:test", 2000, (3, 32, 32), 10),
        ("cifar100:test", 2000, (3, 32, 32), 100),
        ("mnist", 12000, (1, 28, 28), 10),
        ("mnist:test", 2000, (1, 28, 28), 10),
        ("svhn", 900, (3, 32, 32), 10),
        ("svhn:test", 183, (3, 32, 32), 10),
    ],
)
def test_real_sets(shared: Path, spec: str, count: int, shape: tuple[int, ...], classes: int) -> None:
    dataset = DATASETS.build(spec, data_root=shared / "data")
    assert (len(dataset), dataset.shape, len(dataset.classes)) == (count, shape, classes)
    assert torch.bincount(dataset.labels, minlength=classes).min() > 0
    images = dataset.normalisation(dataset.batch().images)
    tolerance = 0.1 if not spec.startswith("svhn") else 0.3
    assert images.mean(dim=(0, 2, 3)).abs().max() < tolerance
    assert (images.transpose(0, 1).flatten(1).std(dim=1) - 1).abs().max() < tolerance


@pytest.mark.shared
def test_real_images_are_the_files_own(shared: Path) -> None:
    dataset = DATASETS.build("cifar10:test", data_root=shared / "data")
    with np.load(shared / "data" / "cifar10_test.npz") as file:
        assert np.array_equal(dataset.images.permute(0, 2, 3, 1).numpy(), file["images"])
        assert dataset.labels.tolist() == file["labels"].tolist()
    assert dataset.classes[3] == "cat"
    again = DATASETS.build("cifar10:test", data_root=shared / "data")
    assert again.images.data_ptr() == dataset.images.data_ptr(), "decoded twice"
