"""Images beyond memory: the same pixels and figures as in memory, parts without copies, kept until they change."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.test_pack import pack

import fedseal
from fedseal.core.errors import InputError
from fedseal.data.dataset import Dataset, ImageDataset, of_images, split_public
from fedseal.data.folder import folder
from fedseal.data.npz import npz
from fedseal.data.stored import StoredImages

SIDE, COUNT = 16, 24


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "set" / label).mkdir(parents=True)
        for place in range(COUNT // 2):
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / label / f"{place}.png")
    return tmp_path / "set"


@pytest.fixture
def small_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that may not hold a third of the pictures."""
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDSEAL_MEMORY", str(COUNT * SIDE * SIDE * 3 // 3))


def _held(path: Path) -> ImageDataset:
    found = folder(path, size=SIDE)
    assert isinstance(found, ImageDataset)
    return found


def _same(stored: Dataset, held: Dataset, places: torch.Tensor) -> bool:
    ours, theirs = stored.batch(places), held.batch(places)
    return torch.equal(ours.inputs, theirs.inputs) and torch.equal(ours.labels, theirs.labels)


def test_it_holds_what_memory_would(pictures: Path, request: pytest.FixtureRequest):
    held = _held(pictures)
    request.getfixturevalue("small_machine")
    kept = folder(pictures, size=SIDE)
    assert isinstance(kept, StoredImages)
    assert _same(kept, held, torch.arange(COUNT))
    assert kept.normalisation == held.normalisation
    assert (kept.shape, kept.classes, len(kept)) == (held.shape, held.classes, len(held))
    assert "kept in" in kept.notes[-1]
    private, public = split_public(kept, 0.25, 3)
    own_private, own_public = split_public(held, 0.25, 3)
    assert _same(private, own_private, torch.arange(len(private)))
    assert _same(public, own_public, torch.arange(len(public)))
    assert isinstance(private, StoredImages)
    assert private.pixels.data_ptr() == kept.pixels.data_ptr()
    assert private.digest() != public.digest() != kept.digest()


def test_all_pixels_at_once_are_refused_where_they_do_not_fit(pictures: Path, small_machine: None):
    kept = folder(pictures, size=SIDE)
    with pytest.raises(InputError, match="24 images at once would take"):
        kept.batch()
    assert len(kept.subset(torch.arange(4)).batch()) == 4
    with pytest.raises(InputError, match="24 images at once would take"):
        of_images(kept, "a prior")
    assert torch.equal(of_images(kept.subset(torch.arange(4)), "a prior").images, kept.pixels[:4])


def test_pictures_are_decoded_once_and_again_when_one_changes(pictures: Path, small_machine: None):
    first = folder(pictures, size=SIDE)
    changed = pictures / "cat" / "0.png"
    modified = changed.stat().st_mtime_ns
    content = changed.read_bytes()
    changed.write_bytes(b"x" * len(content))
    os.utime(changed, ns=(modified, modified))
    assert folder(pictures, size=SIDE).digest() == first.digest()  # not opened again
    Image.new("RGB", (SIDE, SIDE), (1, 2, 3)).save(changed)
    again = folder(pictures, size=SIDE)
    assert again.digest() != first.digest()
    assert again.batch(torch.tensor([0])).inputs[0, 2].unique().tolist() == [pytest.approx(3 / 255)]


def test_a_damaged_picture_leaves_nothing_behind(pictures: Path, small_machine: None, tmp_path: Path):
    (pictures / "dog" / "3.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"3\.png"):
        folder(pictures, size=SIDE)
    assert not list((tmp_path / "cache" / "images").iterdir())


def test_a_torn_file_is_written_again(pictures: Path, small_machine: None, tmp_path: Path):
    first = folder(pictures, size=SIDE)
    (file,) = (tmp_path / "cache" / "images").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert folder(pictures, size=SIDE).digest() == first.digest()


def test_packs_are_kept_too(tmp_path: Path, small_machine: None, monkeypatch: pytest.MonkeyPatch):
    file = pack(tmp_path)
    held = npz(file, group="patient")
    monkeypatch.setenv("FEDSEAL_MEMORY", "5K")
    kept = npz(file, group="patient")
    assert isinstance(kept, StoredImages)
    assert _same(kept, held, torch.arange(3))
    assert kept.groups is not None
    assert held.groups is not None
    assert kept.groups.tolist() == held.groups.tolist()


def test_an_audit_finds_in_stored_images_what_it_finds_in_memory(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def scores(out: str) -> list[float]:
        run = fedseal.audit(
            data=f"folder:{pictures}?size={SIDE}",
            model="mlp:width=8",
            attacks="ig:iterations=3",
            targets=2,
            readings=0,
            public_fraction=0.25,
            out=tmp_path / out,
        )
        return [record.psnr for record in run.records]

    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    in_memory = scores("held")
    monkeypatch.setenv("FEDSEAL_MEMORY", str(COUNT * SIDE * SIDE * 3 * 2))
    assert (tmp_path / "cache" / "images").is_dir() is False
    on_disk = scores("stored")
    assert (tmp_path / "cache" / "images").is_dir()
    assert on_disk == in_memory


def _archive(path: Path, **changed: np.ndarray) -> Path:
    rng = np.random.default_rng(1)
    arrays = {
        "images": rng.integers(0, 256, (COUNT, SIDE, SIDE, 3), dtype=np.uint8),
        "labels": np.arange(COUNT) % 2,
        "owner": np.arange(COUNT) // 2,
    } | changed
    np.savez_compressed(path / "set.npz", **arrays)
    return path / "set.npz"


@pytest.mark.parametrize("size", [None, SIDE // 2])
@pytest.mark.parametrize("kind", ["bytes", "floats", "sixteen bits"])
def test_an_archive_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, size: int | None, kind: str
):
    monkeypatch.setattr("fedseal.data.member._TOGETHER", 7)
    images = np.random.default_rng(2).random((COUNT, SIDE, SIDE, 3))
    kinds = {
        "bytes": np.rint(images * 255).astype(np.uint8),
        "floats": images.astype(np.float32),
        "sixteen bits": np.rint(images * 65535).astype(np.uint16),
    }
    file = _archive(tmp_path, images=kinds[kind])
    held = npz(file, size=size, group="owner")
    request.getfixturevalue("small_machine")
    kept = npz(file, size=size, group="owner")
    assert isinstance(held, ImageDataset)
    assert isinstance(kept, StoredImages)
    assert _same(kept, held, torch.arange(COUNT))
    assert kept.normalisation == held.normalisation
    assert kept.groups is not None
    first, second = kept.groups[0::2], kept.groups[1::2]
    assert torch.equal(first, second)
    assert len(first.unique()) == len(first) == COUNT // 2


def test_an_archive_is_read_again_when_it_changes(tmp_path: Path, small_machine: None):
    first = npz(_archive(tmp_path))
    assert npz(tmp_path / "set.npz").digest() == first.digest()
    changed = np.full((COUNT, SIDE, SIDE, 3), 9, dtype=np.uint8)
    assert npz(_archive(tmp_path, images=changed)).digest() != first.digest()


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.asfortranarray(np.zeros((COUNT, SIDE, SIDE, 3), dtype=np.uint8)), "row by row"),
        (np.full((COUNT, SIDE, SIDE, 3), 2.0, dtype=np.float32), r"not in \[0, 1\]"),
        (np.zeros((COUNT, SIDE, SIDE, 2), dtype=np.uint8), "no stack of images"),
        (np.zeros((COUNT, 3, SIDE, 2 * SIDE), dtype=np.uint8), "not square"),
        (np.zeros((2, 3, 64, 64), dtype=np.uint8), "an image of"),
    ],
)
def test_what_cannot_be_read_in_parts_is_refused(tmp_path: Path, small_machine: None, images: np.ndarray, said: str):
    file = _archive(tmp_path, images=images, labels=np.arange(len(images)) % 2)
    with pytest.raises(InputError, match=said):
        npz(file, size=SIDE)
    assert not list((tmp_path / "cache").rglob("*.u8*"))


def test_an_archive_that_ends_early_or_promises_too_much_leaves_nothing_behind(
    tmp_path: Path, small_machine: None, monkeypatch: pytest.MonkeyPatch
):
    file = _archive(tmp_path)
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40, SIDE, SIDE, 3)}
    )
    labels = io.BytesIO()
    np.save(labels, np.arange(COUNT) % 2)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", content.getvalue() + bytes(100))
        archive.writestr("labels.npy", labels.getvalue())
    with pytest.raises(InputError, match="labels for"):
        npz(file)
    rows = np.zeros((COUNT, SIDE, SIDE, 3), dtype=np.uint8)
    short = io.BytesIO()
    np.save(short, rows)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", short.getvalue()[:-1])
        archive.writestr("labels.npy", labels.getvalue())
    with pytest.raises(InputError, match="ends after 23 of 24 rows"):
        npz(file)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Disk", (), {"free": 10})())
    with pytest.raises(InputError, match="GiB free"):
        npz(_archive(tmp_path))
    assert not list((tmp_path / "cache").rglob("*.u8*"))
