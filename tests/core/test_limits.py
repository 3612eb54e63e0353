"""Memory that something from outside asks for is refused before it is taken."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedseal.core.devices import find_device
from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import local_path
from fedseal.core.limits import check_memory, memory_limit
from fedseal.data.npz import npz
from fedseal.data.partition.core import partition
from fedseal.data.registry import DATASETS
from fedseal.federation.tensor_file import read_tensors
from fedseal.models.registry import build_model


def test_the_limit_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSEAL_MEMORY", "2G")
    assert memory_limit() == 2 << 30
    with pytest.raises(InputError, match=r"it would take 3 GiB of memory, 2 GiB are allowed.*FEDSEAL_MEMORY"):
        check_memory(3 << 30, "it")
    for wrong in ("much", "0", "-1G", "1.5.2"):
        monkeypatch.setenv("FEDSEAL_MEMORY", wrong)
        with pytest.raises(UsageError, match="FEDSEAL_MEMORY cannot be"):
            memory_limit()
    monkeypatch.delenv("FEDSEAL_MEMORY")
    assert 1 << 30 <= memory_limit() <= 8 << 30


def huge() -> bytes:
    head = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(117) + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("images", "labels"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    return file.getvalue()


def test_an_archive_of_a_few_bytes_that_asks_for_terabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.npz"
    path.write_bytes(huge())
    with pytest.raises(InputError, match=r"array 'labels' would take 8 TiB"):
        npz(path)
    with pytest.raises(InputError, match="8 TiB"):
        partition(DATASETS.build("faces:size=8"), f"file:{path}", 2, 0)


def test_a_tensor_file_of_an_impossible_shape_is_refused(tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}'
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(InputError, match="impossible shape"):
        read_tensors(path, "tensors")


def test_a_network_of_a_hundred_thousand_layers_is_not_built() -> None:
    with pytest.raises(UsageError, match=r"option 'depth'.*less than or equal to 256"):
        build_model("mlp:depth=100000", input_shape=(1, 8, 8), num_classes=2, seed=0)


@pytest.mark.parametrize("text", ["~nobody-of-this-name/x", "x" * 5000, "a\x00b"])
def test_paths_that_no_file_can_have_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="cannot be a path"):
        local_path(text)


def test_a_device_that_holds_no_numbers_is_none() -> None:
    assert find_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match=r"'meta'.*holds no numbers"):
        find_device("meta")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[[0, 1e999]]",
        b"[" * 5000,
        b"[[99999999999999999999999999]]",
        b'{"a": 1}',
        b"\xff\xfe",
        b"[[0], 1]",
        b"[[[]]]",
    ],
)
def test_a_damaged_partition_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "parts.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        partition(DATASETS.build("faces:size=8"), f"file:{path}", 1, 0)


def test_labels_of_an_archive_are_classes_flags_or_values(tmp_path: Path) -> None:
    images = np.zeros((4, 8, 8), np.uint8)
    cases = {
        "classes": (np.array([0, 1, 2, 0]), torch.int64, (4,)),
        "two classes as floats": (np.array([0.0, 1, 1, 0]), torch.int64, (4,)),
        "flags": (np.array([[0, 1], [1, 1], [0, 0], [1, 0]]), torch.float32, (4, 2)),
        "truths": (np.array([[False, True]] * 4), torch.float32, (4, 2)),
        "values": (np.array([0.5, 2, -1, 0]), torch.float32, (4, 1)),
    }
    for name, (labels, dtype, shape) in cases.items():
        np.savez(tmp_path / "a.npz", images=images, labels=labels)
        found = npz(tmp_path / "a.npz")
        assert (found.labels.dtype, found.labels.shape) == (dtype, shape), name
    wrong = {
        "negative": (np.array([-1, 0, 1, 1]), "negative labels, -1"),
        "not finite": (np.array([np.nan, 0.1, 1, 2]), "NaN"),
        "no flags": (np.array([[0, 3]] * 4), "other than 0 and 1"),
        "text": (np.array(["a", "b", "c", "d"]), "dtype"),
    }
    for name, (labels, says) in wrong.items():
        np.savez(tmp_path / "a.npz", images=images, labels=labels)
        with pytest.raises(InputError, match=says):
            npz(tmp_path / "a.npz")
        assert name
    (tmp_path / "text.npz").write_text("images, labels")
    with pytest.raises(InputError, match="is no numpy archive"):
        npz(tmp_path / "text.npz")
