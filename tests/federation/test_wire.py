"""The wire: what goes in comes out bit for bit, and nothing else is let in."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from fedseal.core.errors import InputError
from fedseal.federation.wire import MAX_DIMENSIONS, MAX_NAME, MAX_TENSORS, decode, encode, payload_size
from fedseal.federation.wire.bits import varint
from fedseal.federation.wire.codecs import Positions, Values

NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
ONE = b"\x00\x00\x80\x3f"
DTYPES = {torch.float16: "u2", torch.bfloat16: "u2", torch.float32: "u4", torch.float64: "u8"}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bit patterns at all, and mixtures with many zeros: infinities, NaN payloads, -0.0 and subnormals too."""
    dtype = draw(st.sampled_from(sorted(DTYPES, key=str)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9))
    top = 2 ** (8 * dtype.itemsize)
    any_bits = st.integers(0, top - 1)
    elements = draw(st.sampled_from([any_bits, st.just(0), st.sampled_from([0, 0, 0, 0, top // 2, 1, top - 1])]))
    words = draw(hnp.arrays(DTYPES[dtype], shape, elements=elements))
    return torch.from_numpy(words.reshape(-1).view("i" + DTYPES[dtype][1]).copy()).view(dtype).reshape(shape)


def bits(tensor: Tensor) -> bytes:
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().contiguous().view(words).numpy().tobytes()


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        assert actual[name].shape == tensor.shape
        assert bits(actual[name]) == bits(tensor)


def resealed(content: bytes) -> bytes:
    return content + struct.pack("<I", zlib.crc32(content))


def row(
    name: bytes = b"w",
    dtype: int = 0,
    tag: int = 0,
    shape: tuple[int, ...] = (1,),
    size: int = 4,
    dimensions: int | None = None,
) -> bytes:
    sides = b"".join(map(varint, shape))
    return (
        varint(len(name))
        + name
        + bytes([dtype, tag, len(shape) if dimensions is None else dimensions])
        + sides
        + varint(size)
    )


def payload(*rows: bytes, body: bytes = ONE, number: int | None = None, version: int = 2) -> bytes:
    """Return a payload with a valid checksum and any header."""
    count = varint(len(rows) if number is None else number)
    return resealed(b"FSEAL" + bytes([version]) + count + b"".join(rows) + body)


@given(st.dictionaries(NAMES, tensors(), max_size=4))
def test_what_goes_in_comes_out(named: dict[str, Tensor]):
    coded = encode(named)
    assert_same(decode(coded), named)
    assert payload_size(named) == len(coded)


@given(tensors())
def test_equal_tensors_have_equal_payloads(tensor: Tensor):
    first = encode({"w": tensor})
    assert encode(decode(first)) == first


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_pattern_of_sixteen_bits_survives(dtype: torch.dtype):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    sparse = torch.zeros(2**18, dtype=dtype)
    sparse[::4] = every
    assert_same(decode(encode({"w": every, "s": sparse})), {"w": every, "s": sparse})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_patterns_of_more_bits_survive(dtype: torch.dtype):
    source = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**63), 2**63 - 1, (50_000,), generator=source)
    tensor = words.view(dtype)
    assert bool(torch.isnan(tensor).any())
    assert_same(decode(encode({"w": tensor})), {"w": tensor})


def test_the_corner_cases_themselves():
    named = {
        "minus zero": torch.tensor([-0.0, 0.0]),
        "minus zeros among zeros": torch.zeros(100).index_fill(0, torch.tensor([7, 50]), -0.0),
        "empty": torch.zeros(0),
        "empty, with shape": torch.zeros(3, 0, 2),
        "scalar": torch.tensor(3.5),
        "scalar zero": torch.tensor(0.0),
        "sparse": torch.zeros(1000).index_fill(0, torch.tensor([3, 999]), -2.0),
        "not contiguous": torch.rand(3, 4).T,
        "needs grad": torch.rand(2, requires_grad=True),
        "infinite": torch.tensor([torch.inf, -torch.inf, torch.nan, 1e-45]),
        "": torch.ones(1),
    }
    decoded = decode(encode(named))
    assert_same(decoded, named)
    decoded["sparse"].add_(1)  # what comes out can be worked on
    decoded["scalar"].add_(1)
    assert decode(encode({})) == {}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_foreign_dtypes_are_refused_by_name(dtype: torch.dtype):
    with pytest.raises(InputError, match=r"cannot encode tensor 'w' .*float32"):
        encode({"w": torch.zeros(2).to(dtype)})


def test_what_could_not_be_read_is_not_written():
    with pytest.raises(InputError, match="not Unicode"):
        encode({"\ud800": torch.zeros(1)})
    with pytest.raises(InputError, match="name has 1025 bytes"):
        encode({"n" * (MAX_NAME + 1): torch.zeros(1)})
    with pytest.raises(InputError, match="33 numbers"):
        encode({"w": torch.zeros([1] * (MAX_DIMENSIONS + 1))})
    with pytest.raises(InputError, match="in parts"):
        encode({"w": torch.zeros(1).expand(2**31)})
    assert decode(encode({"n" * MAX_NAME: torch.zeros([1] * MAX_DIMENSIONS)}))


def small() -> dict[str, Tensor]:
    """Return tensors that between them use every codec; the payload stays small."""
    source = torch.Generator().manual_seed(1)
    noise = torch.randn(400, generator=source)
    return {
        "dense": noise[:7],
        "bitmap": torch.where(torch.arange(40) % 2 == 0, noise[:40], 0),
        "rice": torch.where(torch.rand(400, generator=source) < 0.05, noise, 0),
        "absent": torch.where(torch.rand(400, generator=source) < 0.97, noise, 0).half(),
        "levels": (noise[:30] * 3).round().clamp(-3, 3),
        "signs": noise[:64].sign() * 0.3,
        "zeros": torch.zeros(30, 2),
    }


def test_every_flipped_byte_and_bit_of_a_small_payload_is_noticed():
    whole = encode(small())
    for position in range(len(whole)):
        for change in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = bytearray(whole)
            damaged[position] ^= change
            with pytest.raises(InputError):
                decode(bytes(damaged))


def test_every_truncation_and_every_addition_is_noticed():
    whole = encode(small())
    for length in range(len(whole)):
        with pytest.raises(InputError):
            decode(whole[:length])
        if length < len(whole) - 4:
            with pytest.raises(InputError):
                decode(resealed(whole[:length]))
    for more in (b"\x00", b"\x00" * 9, whole):
        with pytest.raises(InputError):
            decode(whole + more)
        with pytest.raises(InputError):
            decode(resealed(whole[:-4] + more))


@pytest.mark.slow
def test_a_change_under_a_valid_checksum_is_refused_or_read_as_what_it_says():
    """Nothing but an InputError is raised, and nothing large is allocated.

    No other bytes say the same.
    """
    named = small()
    whole = encode(named)
    refused, aliases = 0, 0
    tracemalloc.start()
    for position in range(6, len(whole) - 4):
        for change in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = bytearray(whole[:-4])
            damaged[position] ^= change
            try:
                decoded = decode(resealed(bytes(damaged)), limit=1 << 20)
            except InputError:
                refused += 1
                continue
            same = list(decoded) == list(named) and all(
                decoded[n].dtype == t.dtype and decoded[n].shape == t.shape and bits(decoded[n]) == bits(t)
                for n, t in named.items()
            )
            aliases += same
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > 500
    assert aliases == 0
    assert peak < 1 << 24


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes):
    with pytest.raises(InputError):
        decode(garbage)


@settings(max_examples=300)
@given(
    st.sampled_from([p | v << 4 for p in Positions for v in Values]),
    st.integers(0, 3),
    st.integers(0, 100),
    st.binary(max_size=40),
)
def test_garbage_behind_an_honest_header_is_refused_or_read(tag: int, dtype: int, count: int, body: bytes):
    try:
        decoded = decode(payload(row(dtype=dtype, tag=tag, shape=(count,), size=len(body)), body=body))
    except InputError:
        return
    assert decoded["w"].shape == (count,)
    assert_same(decode(encode(decoded)), decoded)


RICE, BITMAP, INDEX, VARINT, ABSENT = (
    int(p) for p in (Positions.RICE, Positions.BITMAP, Positions.INDEX, Positions.VARINT, Positions.RICE_ABSENT)
)
GRID = int(Values.GRID) << 4

LIES = {
    "too few values": payload(row(shape=(2,))),
    "too many values": payload(row(size=8), body=ONE + ONE),
    "size beyond the payload": payload(row(size=8)),
    "size below the payload": payload(row(size=3)),
    "absurd size": payload(row(size=2**62)),
    "unknown dtype": payload(row(dtype=4)),
    "unknown positions": payload(row(tag=6)),
    "unknown values": payload(row(tag=0x20)),
    "dimensions beyond the header": payload(row(dimensions=20)),
    "too many dimensions": payload(row(shape=(1,) * 33)),
    "name beyond the header": payload(b"\x60w"),
    "name too long": payload(row(name=b"n" * 1025)),
    "name not UTF-8": payload(row(name=b"\xff\xfe")),
    "name twice": payload(row(), row(shape=(0,), size=0)),
    "more tensors than rows": payload(row(), number=2),
    "fewer tensors than rows": payload(row(), row(name=b"v"), number=1),
    "absurdly many tensors": payload(row(), number=2**60),
    "more tensors than allowed": payload(row(), number=MAX_TENSORS + 1),
    "endless number": payload(b"\xff" * 40),
    "overlong number": payload(b"\x81\x00w\x00\x00\x01\x01\x04"),
    "empty tensor of absurd sides": payload(row(shape=(0, 2**62), size=0), row(name=b"v")),
    "huge dense": payload(row(shape=(10**12,))),
    "huge zeros": payload(row(tag=RICE, shape=(2**40,), size=2), body=b"\x00\x00"),
    "huge by product": payload(row(tag=RICE, shape=(2**20, 2**20, 2**20), size=2), body=b"\x00\x00"),
    "huge in sum": payload(*(row(b"%d" % i, tag=RICE, shape=(2**29,), size=2) for i in range(3)), body=b"\0" * 6),
    **{
        f"a few bytes for gigabytes within the limit, {way}": payload(row(tag=tag, shape=(10**9,), size=6), body=body)
        for way, tag, body in (
            ("dense", 0, b"\0" * 6),
            ("bitmap", BITMAP, b"\x01" + ONE + b"\x01"),
            ("gaps", VARINT, b"\x01" + ONE + b"\x81"),
            ("absent", ABSENT, b"\x01\x00" + ONE),
            ("grid", GRID, b"\x02" + ONE + b"\x03"),
        )
    },
    "no count": payload(row(tag=BITMAP, shape=(8,), size=0), body=b""),
    "count beyond the tensor": payload(row(tag=BITMAP, shape=(8,), size=6), body=b"\x09" + ONE + b"\xff"),
    "bitmap of another count": payload(row(tag=BITMAP, shape=(8,), size=6), body=b"\x01" + ONE + b"\x03"),
    "bitmap with padding": payload(row(tag=BITMAP, shape=(7,), size=6), body=b"\x01" + ONE + b"\x80"),
    "bitmap too long": payload(row(tag=BITMAP, shape=(8,), size=7), body=b"\x01" + ONE + b"\x01\x00"),
    "index outside": payload(row(tag=INDEX, shape=(8,), size=9), body=b"\x01" + ONE + b"\x08\0\0\0"),
    "index twice": payload(row(tag=INDEX, shape=(8,), size=17), body=b"\x02" + ONE + ONE + b"\x01\0\0\0" * 2),
    "index cut": payload(row(tag=INDEX, shape=(8,), size=8), body=b"\x01" + ONE + b"\x08\0\0"),
    "gap outside": payload(row(tag=VARINT, shape=(8,), size=6), body=b"\x01" + ONE + b"\x08"),
    "gap overlong": payload(row(tag=VARINT, shape=(8,), size=7), body=b"\x01" + ONE + b"\x81\x00"),
    "gap overflowing": payload(
        row(tag=VARINT, shape=(8,), size=27), body=b"\x02" + ONE + ONE + (b"\xff" * 8 + b"\x7f") * 2
    ),
    "gap cut": payload(row(tag=VARINT, shape=(8,), size=6), body=b"\x01" + ONE + b"\x81"),
    "gaps without entries": payload(row(tag=VARINT, shape=(8,), size=2), body=b"\x00\x01"),
    "Rice parameter absurd": payload(row(tag=RICE, shape=(8,), size=7), body=b"\x01\xff" + ONE + b"\x01"),
    "Rice parameter missing": payload(row(tag=RICE, shape=(8,), size=1), body=b"\x00"),
    "Rice without a one": payload(row(tag=RICE, shape=(8,), size=7), body=b"\x01\x00" + ONE + b"\x00"),
    "Rice with two": payload(row(tag=RICE, shape=(8,), size=7), body=b"\x01\x00" + ONE + b"\x03"),
    "Rice outside": payload(row(tag=RICE, shape=(2,), size=7), body=b"\x01\x00" + ONE + b"\x08"),
    "Rice with a tail": payload(row(tag=RICE, shape=(8,), size=8), body=b"\x01\x00" + ONE + b"\x01\x00"),
    "Rice low bits padded": payload(row(tag=RICE, shape=(8,), size=8), body=b"\x01\x01" + ONE + b"\x03\x01"),
    "absent outside": payload(row(tag=ABSENT, shape=(2,), size=7), body=b"\x01\x00" + ONE + b"\x08"),
    "grid cut": payload(row(tag=GRID), body=b"\x02" + ONE[:3]),
    "grid of no bits": payload(row(tag=GRID, size=5), body=b"\x00" + ONE),
    "grid of 25 bits": payload(row(tag=GRID, size=9), body=b"\x19" + ONE + b"\0" * 4),
    "grid of a formula that says nothing": payload(row(tag=GRID, size=6), body=b"\x42" + ONE + b"\x03"),
    "grid of infinite scale": payload(row(tag=GRID, size=6), body=b"\x02" + b"\x00\x00\x80\x7f" + b"\x03"),
    "grid of NaN": payload(row(tag=GRID, size=6), body=b"\x02" + b"\xff\xff\xff\x7f" + b"\x03"),
    "grid of negative scale": payload(row(tag=GRID, size=6), body=b"\x02" + b"\x00\x00\x80\xbf" + b"\x03"),
    "grid of scale zero": payload(row(tag=GRID, size=6), body=b"\x02" + b"\0" * 4 + b"\x03"),
    "grid padded": payload(row(tag=GRID, size=6), body=b"\x02" + ONE + b"\x0f"),
    "grid too long": payload(row(tag=GRID, size=7), body=b"\x02" + ONE + b"\x03\x00"),
    "nothing at all": payload(),
    "zeros as a bitmap": payload(row(tag=BITMAP, shape=(8,), size=2), body=b"\x00\x00"),
    "zeros as gaps": payload(row(tag=VARINT, shape=(8,), size=1), body=b"\x00"),
    "zeros on a grid": payload(row(tag=INDEX | GRID, shape=(8,), size=6), body=b"\x00\x02" + ONE),
    "no entries as an index": payload(row(tag=INDEX, shape=(0,), size=1), body=b"\x00"),
    "positions of all": payload(row(tag=BITMAP, shape=(1,), size=6), body=b"\x01" + ONE + b"\x01"),
    "a zero as present": payload(row(tag=INDEX, shape=(8,), size=9), body=b"\x01" + b"\0" * 4 + b"\x01\0\0\0"),
    "another Rice parameter": payload(row(tag=RICE, shape=(8,), size=8), body=b"\x01\x03" + ONE + b"\x02\x01"),
    "a later formula": payload(row(tag=GRID, size=6), body=b"\x43" + ONE + b"\x07"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_under_a_valid_checksum_are_refused_before_anything_is_allocated(lie: str):
    tracemalloc.start()
    with pytest.raises(InputError, match="payload"):
        decode(LIES[lie])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 22


def test_the_helper_makes_payloads_that_are_read():
    assert decode(payload(row()))["w"].tolist() == [1.0]
    assert decode(payload(row(tag=RICE, shape=(8,), size=7), body=b"\x01\x00" + ONE + b"\x02"))["w"].tolist()[1] == 1
    assert decode(payload(row(tag=GRID, size=6), body=b"\x02" + ONE + b"\x03"))["w"].tolist() == [-1.0]


def test_the_message_names_the_tensor_and_what_to_do():
    with pytest.raises(InputError, match=r"tensor 'w'.*outside of the tensor.*send it again"):
        decode(LIES["Rice outside"])
    with pytest.raises(InputError, match=r"shape \[1099511627776\].*at most"):
        decode(LIES["huge zeros"])


def test_a_server_that_knows_its_model_sets_the_limit():
    update = {"w": torch.zeros(1000), "b": torch.ones(10)}
    assert_same(decode(encode(update), limit=4040), update)
    with pytest.raises(InputError, match="at most 4039"):
        decode(encode(update), limit=4039)


@pytest.mark.parametrize(("magic", "version"), [(b"OTHER", 2), (b"FSEAL", 1), (b"FSEAL", 3)])
def test_other_formats_and_versions_are_named(magic: bytes, version: int):
    with pytest.raises(InputError, match="version 2"):
        decode(resealed(magic + bytes([version]) + b"\x00"))
