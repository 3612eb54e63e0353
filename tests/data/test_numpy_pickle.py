"""The array reader: numpy's pickles are read, everything else is refused and never runs."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedseal.core.errors import InputError
from fedseal.data.numpy_pickle import read_arrays


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_nested_arrays_are_read(protocol: int) -> None:
    kernel = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tree = {"net": {"conv": {"kernel": kernel, "bias": np.ones(3, np.float32)}}, "turned": np.asfortranarray(kernel)}
    if protocol == 2:  # bytes are written as a call of codecs.encode there, which is not an array's business
        with pytest.raises(InputError, match=r"asks for _codecs\.encode"):
            read_arrays(pickle.dumps(tree, protocol), "x")
        return
    arrays = read_arrays(pickle.dumps(tree, protocol), "x")
    assert list(arrays) == ["net/conv/kernel", "net/conv/bias", "turned"]
    assert np.array_equal(arrays["net/conv/kernel"], kernel)
    assert np.array_equal(arrays["turned"], kernel)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch {}",), r"(posix|nt)\.system"),
        (eval, ("open({!r}, 'w')",), r"(builtins|__builtin__)\.eval"),
        (io.open, ("{}", "w"), r"(_io|io)\.open"),
        (np.load, ("{}",), r"numpy\.load"),
        (np.ndarray, ((1,), "O"), r"is not callable"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_does_not_run(
    tmp_path: Path, function: Any, arguments: tuple[Any, ...], name: str, protocol: int
) -> None:
    trap = tmp_path / "sprung"
    filled = tuple(a.format(str(trap)) if isinstance(a, str) else a for a in arguments)
    content = pickle.dumps({"net": Call(function, *filled)}, protocol)
    with pytest.raises(InputError, match=name) as caught:
        read_arrays(content, "weights.ckpt")
    assert not trap.exists()
    assert caught.value.message.startswith("weights.ckpt is not a plain dictionary of float arrays")


@pytest.mark.parametrize(
    "value",
    [
        {"a": np.zeros(2, np.float64)},
        {"a": np.zeros(2, ">f4")},
        {"a": np.array([{}], dtype=object)},
        {"a": [1.0, 2.0]},
        np.float32(1),
        3,
    ],
    ids=["float64", "big-endian", "objects", "list", "scalar", "number"],
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InputError):
        read_arrays(pickle.dumps(value, 3), "x")


@pytest.mark.parametrize("content", [b"", b".", b"garbage", b"\x80\x04}\x94(", b"cnumpy\nndarray\n)R."])
def test_torn_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="x is not a plain dictionary"):
        read_arrays(content, "x")


def test_a_dictionary_that_holds_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(InputError):
        read_arrays(pickle.dumps(loop, 3), "x")


def test_bytes_that_do_not_fill_the_shape_are_refused() -> None:
    content = pickle.dumps({"a": np.zeros(5, np.float32)}, 3).replace(b"K\x05", b"K\x06")
    with pytest.raises(InputError, match="do not fill its shape"):
        read_arrays(content, "x")


def test_a_few_bytes_cannot_ask_for_gigabytes_of_memo() -> None:
    with pytest.raises(InputError, match=r"2,147,483,647 places in a memo"):
        read_arrays(b"\x80\x04}r\xff\xff\xff\x7f.", "it")
