"""`folder:PATH`: pictures in sub-folders, and what every refusal says."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedseal.core.errors import InputError, UsageError
from fedseal.data.folder import folder
from fedseal.data.registry import DATASETS


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 40)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    paint(root / "red" / "2.png", (200, 0, 0))
    paint(root / "red" / "1.bmp", (100, 0, 0))
    paint(root / "blue" / "a.PNG", (0, 0, 255))
    (root / "red" / "notes.txt").write_text("not a picture")
    (root / "red" / ".hidden.png").write_text("not one either")
    (root / ".git").mkdir()
    return root


def test_classes_and_pictures_are_sorted(pictures: Path) -> None:
    dataset = DATASETS.build(f"folder:{pictures}")
    assert dataset.name == "pictures"
    assert dataset.classes == ("blue", "red")
    assert dataset.labels.tolist() == [0, 1, 1]
    assert dataset.images.shape == (3, 3, 32, 32)
    assert dataset.images[:, :, 5, 5].tolist() == [[0, 0, 255], [100, 0, 0], [200, 0, 0]]


def test_options_with_a_path(pictures: Path) -> None:
    dataset = DATASETS.build(f"folder:path={pictures},size=64,channels=1")
    assert dataset.images.shape == (3, 1, 64, 64)
    assert dataset.images[0, 0, 0, 0] == 29  # the luminance of blue


def test_pictures_are_cropped_about_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 255
    (tmp_path / "c").mkdir()
    Image.fromarray(wide).save(tmp_path / "c" / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "c" / "high.png")
    assert torch.all(folder(tmp_path, size=20).images == 255)


def test_orientation_and_sixteen_bits_are_respected(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    half = Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8), 2, axis=0).repeat(8, 0).repeat(8, 1))
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    half.save(tmp_path / "c" / "a.png", exif=turned)
    Image.fromarray(np.full((16, 16), 0x8080, np.uint16)).save(tmp_path / "c" / "b.png")
    images = folder(tmp_path, size=16, channels=1).images
    assert images[0, 0, 8, 0] == 255
    assert images[0, 0, 8, -1] == 0
    assert torch.all(images[1] == 0x80)


@pytest.mark.parametrize("name", ["broken.png", "text.jpg"])
def test_an_unreadable_picture_is_named(pictures: Path, name: str) -> None:
    (pictures / "red" / name).write_bytes(b"\x89PNG\r\n\x1a\n torn" if name == "broken.png" else b"hello")
    with pytest.raises(InputError, match=f"cannot read .*{name} as a picture") as caught:
        folder(pictures)
    assert caught.value.hint == "Repair or remove the file."


def test_a_truncated_picture_is_named(pictures: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    file = pictures / "red" / "cut.png"
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(InputError, match=r"cannot read .*cut\.png as a picture"):
        folder(pictures)


def test_float_pictures_are_refused(pictures: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.float32)).save(pictures / "red" / "f.tiff")
    with pytest.raises(InputError, match=r"cannot read .*f\.tiff: floating-point pixels"):
        folder(pictures)


def test_formats_that_run_other_programs_are_not_opened(pictures: Path) -> None:
    (pictures / "red" / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    with pytest.raises(InputError, match=r"x\.png as a picture: UnidentifiedImageError"):
        folder(pictures)


def test_a_decompression_bomb_is_refused(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    with pytest.raises(InputError, match=r"a\.PNG has more than 1,500 pixels"):
        folder(pictures)


@pytest.mark.parametrize("level", ["class", "picture"])
def test_links_may_not_leave_the_folder(pictures: Path, tmp_path: Path, level: str) -> None:
    outside = paint(tmp_path / "private" / "secret.png", (1, 2, 3))
    if level == "class":
        (pictures / "linked").symlink_to(outside.parent, target_is_directory=True)
    else:
        (pictures / "red" / "linked.png").symlink_to(outside)
    with pytest.raises(InputError, match=r"linked\S* is a link that leaves"):
        folder(pictures)


def test_links_inside_the_folder_are_fine(pictures: Path) -> None:
    (pictures / "red" / "3.png").symlink_to(pictures / "blue" / "a.PNG")
    assert len(folder(pictures)) == 4


def test_a_dangling_link_is_named(pictures: Path) -> None:
    (pictures / "red" / "gone.png").symlink_to(pictures / "red" / "nothing.png")
    with pytest.raises(InputError, match=r"gone\.png is a link that leads nowhere"):
        folder(pictures)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_hang(pictures: Path) -> None:
    os.mkfifo(pictures / "red" / "pipe.png")
    with pytest.raises(InputError, match=r"pipe\.png is not a file"):
        folder(pictures)


def test_missing_and_empty_folders_are_named(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        folder(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no sub-folders"):
        folder(pictures / "red")
    (pictures / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds no pictures"):
        folder(pictures)


def test_wrong_options_are_refused(pictures: Path) -> None:
    with pytest.raises(UsageError, match="cannot have 4 channels"):
        folder(pictures, channels=4)
    with pytest.raises(UsageError, match="300 x 300 pixels are not supported"):
        folder(pictures, size=300)
