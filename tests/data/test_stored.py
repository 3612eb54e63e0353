"""Images beyond memory: the same pixels and figures as in memory, parts without copies, kept until they change."""

from __future__ import annotations

import os
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
