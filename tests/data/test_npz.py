"""`npz:PATH`: what is accepted, how it is laid out afterwards, and what every refusal says."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedseal.core.errors import InputError
from fedseal.data.npz import npz
from fedseal.data.registry import DATASETS

RNG = np.random.default_rng(0)
HWC = RNG.integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def save(path: Path, **arrays: Any) -> Path:
    file = path / "set.npz"
    np.savez(file, **arrays)
    return file


@pytest.mark.parametrize(
    ("images", "labels"),
    [("images", "labels"), ("x", "y"), ("data", "labels"), ("train_images", "train_labels"), ("x_train", "y_train")],
)
def test_known_keys(tmp_path: Path, images: str, labels: str) -> None:
    dataset = DATASETS.build(f"npz:{save(tmp_path, **{images: HWC, labels: LABELS})}")
    assert dataset.name == "set"
    assert torch.equal(dataset.images, torch.from_numpy(HWC).permute(0, 3, 1, 2))
    assert dataset.labels.tolist() == LABELS.tolist()
    assert dataset.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (HWC, HWC.transpose(0, 3, 1, 2)),
        (HWC.transpose(0, 3, 1, 2), HWC.transpose(0, 3, 1, 2)),
        (HWC[..., 0], HWC[..., 0][:, None]),
        (HWC[..., :1], HWC[..., 0][:, None]),
        (HWC[..., 0][:, None], HWC[..., 0][:, None]),
        ((HWC / 255).astype(np.float32), HWC.transpose(0, 3, 1, 2)),
        (HWC / 255, HWC.transpose(0, 3, 1, 2)),
        (HWC.astype(np.uint16) * 257, HWC.transpose(0, 3, 1, 2)),
    ],
    ids=["hwc", "chw", "hw", "hw1", "1hw", "float32", "float64", "uint16"],
)
def test_layouts(tmp_path: Path, stored: np.ndarray, expected: np.ndarray) -> None:
    dataset = npz(save(tmp_path, images=stored, labels=LABELS))
    assert np.array_equal(dataset.images.numpy(), expected)


def test_the_split_chooses_the_prefix(tmp_path: Path) -> None:
    file = save(tmp_path, train_images=HWC, train_labels=LABELS, test_images=HWC[:2] // 2, test_labels=LABELS[:2])
    assert len(DATASETS.build(f"npz:path={file},split=test")) == 2
    assert len(DATASETS.build(f"npz:path={file},split=train")) == len(DATASETS.build(f"npz:{file}")) == 6


def test_only_gaps_in_the_labels_are_closed(tmp_path: Path) -> None:
    gaps = npz(save(tmp_path, images=HWC, labels=np.array([7, 3, 7, 90, 3, 3])))
    assert gaps.labels.tolist() == [1, 0, 1, 2, 0, 0]
    assert gaps.classes == ("3", "7", "90")
    from_one = npz(save(tmp_path, images=HWC, labels=np.array([1, 2, 1, 2, 1, 2])))
    assert from_one.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert from_one.classes == ("1", "2")


def test_names_in_the_file_keep_the_labels_as_they_are(tmp_path: Path) -> None:
    names = np.array(["ant", "bee", "cat", "dog"])
    dataset = npz(save(tmp_path, images=HWC, labels=np.array([3, 1, 3, 1, 1, 1]), class_names=names))
    assert dataset.labels.tolist() == [3, 1, 3, 1, 1, 1]
    assert dataset.classes == ("ant", "bee", "cat", "dog")


def test_names_of_the_classes_that_are_there_go_by_the_order_of_their_labels(tmp_path: Path) -> None:
    dataset = npz(save(tmp_path, images=HWC, labels=LABELS * 50, class_names=np.array(["a", "b", "c"])))
    assert dataset.classes == ("a", "b", "c")
    assert dataset.labels.tolist() == LABELS.tolist()


def test_images_are_resized_where_a_size_is_given(tmp_path: Path) -> None:
    square = np.zeros((6, 12, 12, 3), np.uint8)
    assert npz(save(tmp_path, images=square, labels=LABELS), size=8).shape == (3, 8, 8)
    with pytest.raises(InputError, match="5 x 7, not square"):
        npz(save(tmp_path, images=HWC, labels=LABELS), size=8)


def test_columns_of_labels_are_accepted(tmp_path: Path) -> None:
    assert npz(save(tmp_path, images=HWC, labels=LABELS[:, None])).labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": HWC, "labels": LABELS}, "holds the arrays labels, pictures, but no images/labels or x/y"),
        ({"images": HWC.astype(np.int32), "labels": LABELS}, "array 'images' has dtype int32"),
        ({"images": HWC.astype(np.float32), "labels": LABELS}, r"holds floats from 0 to 255, not in \[0, 1\]"),
        ({"images": np.full((1, 4, 4), np.nan), "labels": LABELS[:1]}, "holds floats from nan to nan"),
        ({"images": HWC.reshape(6, -1), "labels": LABELS}, r"has shape \[6, 105\], which is no stack of images"),
        ({"images": HWC[..., [0, 1, 2, 0]], "labels": LABELS}, r"shape \[6, 5, 7, 4\], which is no stack"),
        ({"images": HWC[:, :3], "labels": LABELS}, r"shape \[6, 3, 7, 3\], which is both \[N, H, W, C\] and"),
        ({"images": HWC, "labels": LABELS[:5]}, "array 'labels' has 5 labels for 6 images"),
        ({"images": HWC, "labels": LABELS.astype(str)}, r"has shape \[6\] and dtype <U"),
        ({"images": HWC[:0], "labels": LABELS[:0]}, "is empty"),
        ({"images": HWC, "labels": LABELS, "classes": np.array(["a", "b"])}, r"has labels 0\.\.2 for 2 classes"),
    ],
)
def test_refusals_name_the_file_and_the_trouble(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    file = save(tmp_path, **arrays)
    with pytest.raises(InputError, match=message) as caught:
        npz(file)
    assert str(file) in caught.value.message
    assert caught.value.hint


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="but no test_images/test_labels or x_test/y_test"):
        npz(save(tmp_path, images=HWC, labels=LABELS), "test")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*gone\.npz"):
        npz(tmp_path / "gone.npz")


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 torn"])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "torn.npz"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"torn\.npz is (no|not a readable) numpy archive"):
        npz(file)


def test_a_torn_archive_is_named(tmp_path: Path) -> None:
    file = save(tmp_path, images=HWC, labels=LABELS)
    content = bytearray(file.read_bytes())
    content[200:260] = bytes(60)
    file.write_bytes(content)
    with pytest.raises(InputError, match="is not a readable numpy archive"):
        npz(file)


def test_a_member_that_is_no_array_is_named(tmp_path: Path) -> None:
    file = tmp_path / "odd.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images", b"no array")
        archive.writestr("labels", b"none either")
    with pytest.raises(InputError, match="'images' is no array"):
        npz(file)


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", HWC)
    with pytest.raises(InputError, match=r"one\.npy is no numpy archive"):
        npz(tmp_path / "one.npy")


def test_pickled_objects_never_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    file = save(tmp_path, images=np.array([Trap()], dtype=object), labels=np.array([0]))
    with pytest.raises(InputError, match="pickled objects are refused"):
        npz(file)
    assert not (tmp_path / "sprung").exists()


def test_an_array_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSEAL_MEMORY", "1M")
    file = tmp_path / "bomb.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", bytes(2 << 20))
        archive.writestr("labels.npy", b"")
    with pytest.raises(InputError, match=r"images\.npy, unpacked, would take 2 MiB"):
        npz(file)
