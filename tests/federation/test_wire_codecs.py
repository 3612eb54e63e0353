"""The codecs: the shortest is taken, Rice codes meet the entropy bound, grids are found and lose nothing."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from fedseal.core.defence import RoundContext
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.wire import bits as b
from fedseal.federation.wire import decode, encode
from fedseal.federation.wire.codecs import Positions, Values, decode_tensor, plan_tensors
from fedseal.federation.wire.grids import find_grids

NUMBERS = st.integers(0, 2**63 - 1)


def sparse(count: int, density: float, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.where(torch.rand(count, generator=source) < density, torch.randn(count, generator=source), 0)


def stochastic(x: Tensor, width: int, formula: int = 0) -> Tensor:
    """Quantise to sign and b - 1 bits, scaled by the largest magnitude."""
    steps, scale = 2 ** (width - 1) - 1, x.abs().max()
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    level = (x.abs().double() / scale.double() * steps + noise).floor().clamp(max=steps).to(x.dtype)
    exact = (level.double() * (scale.double() / steps)).to(x.dtype)
    magnitude = (exact, level / steps * scale, level * scale / steps, level * (scale / steps))[formula]
    return torch.copysign(magnitude, x)


def assert_exact(tensor: Tensor) -> tuple[Positions, Values, int]:
    """Round-trip a flat tensor; return what was chosen and the length of the body."""
    (plan,) = plan_tensors([tensor])
    tag, body = plan.tag, plan.write()
    back = decode_tensor(tag, memoryview(body), tensor.numel(), tensor.dtype)
    assert back.dtype == tensor.dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    return Positions(tag & 15), Values(tag >> 4), len(body)


@given(hnp.arrays("u8", st.integers(0, 70), elements=st.integers(0, 2**32 - 1)), st.integers(0, 32))
def test_fixed_widths_round_trip(numbers: np.ndarray, width: int):
    numbers = numbers & np.uint64((1 << width) - 1)
    packed = b.pack(numbers, width)
    assert (
        len(packed)
        == b.packed_size(len(numbers), width)
        == math.ceil(len(numbers) * (width % 8) / 8) + len(numbers) * (width // 8)
    )
    assert np.array_equal(b.unpack(memoryview(packed), len(numbers), width), numbers)


@given(st.lists(st.one_of(NUMBERS, st.integers(0, 300)), max_size=30))
def test_variable_lengths_round_trip_and_the_vector_writes_as_the_scalar(numbers: list[int]):
    array = np.array(numbers, np.uint64)
    written = b.write_varints(array)
    assert written == b"".join(map(b.varint, numbers))
    assert int(b.varint_sizes(array).sum()) == len(written)
    assert b.read_varints(memoryview(written), len(numbers)).tolist() == numbers
    if numbers:
        assert b.read_varint(memoryview(written), 0) == (numbers[0], len(b.varint(numbers[0])))


@given(st.lists(st.integers(0, 5000), max_size=60), st.integers(0, 20))
def test_rice_codes_round_trip_at_any_parameter(gaps: list[int], parameter: int):
    array = np.array(gaps, np.uint64)
    packed = b.rice_pack(array, parameter)
    assert len(packed) == b.rice_size(array, parameter)
    assert b.rice_unpack(memoryview(packed), len(gaps), parameter).tolist() == gaps


@pytest.mark.parametrize("density", [0.52, 0.2, 0.04, 0.01, 0.001])
def test_the_rice_parameter_is_the_best_there_is(density: float):
    gaps = np.random.default_rng(0).geometric(density, 20_000).astype(np.uint64) - np.uint64(1)
    sizes = [b.rice_size(gaps, parameter) for parameter in range(20)]
    assert sizes[b.rice_parameter(gaps)] == min(sizes)


@pytest.mark.parametrize("density", [0.999, 0.95, 0.9, 0.8, 0.6, 0.52, 0.4, 0.3, 0.2, 0.1, 0.04, 0.01, 0.001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_random_masks_cost_no_more_than_two_per_cent_above_the_entropy_bound(density: float, dtype: torch.dtype):
    count = 300_000
    tensor = sparse(count, density).to(dtype)
    kept = int((tensor != 0).sum()) / count
    bound = -kept * math.log2(kept) - (1 - kept) * math.log2(1 - kept) + 8 * dtype.itemsize * kept
    _, values, size = assert_exact(tensor)
    assert values is Values.RAW
    assert bound * 0.999 < 8 * size / count < 1.02 * bound


@pytest.mark.parametrize(
    ("density", "index", "bitmap", "varint", "rice"),
    [
        (0.52, 33.3, 17.6, 20.8, 17.6),
        (0.2, 12.8, 7.40, 8.00, 7.14),
        (0.04, 2.56, 2.28, 1.60, 1.52),
        (0.01, 0.64, 1.32, 0.422, 0.401),
    ],
)
def test_the_table_of_bytes_per_parameter(density: float, index: float, bitmap: float, varint: float, rice: float):
    """Bits per parameter of each way by itself, against the entropy's bound."""
    count = 400_000
    where = np.flatnonzero(sparse(count, density).numpy())
    gaps = (np.diff(where, prepend=-1) - 1).astype(np.uint64)
    kept, share = len(where), density * count / len(where)
    got = [
        64 * kept,
        count + 32 * kept,
        8 * int(b.varint_sizes(gaps).sum()) + 32 * kept,
        8 * b.rice_size(gaps, b.rice_parameter(gaps)) + 32 * kept,
    ]
    for bits, expected in zip(got, (index, bitmap, varint, rice), strict=True):
        assert bits / count * share == pytest.approx(expected, rel=0.015)


def test_each_way_is_taken_where_it_is_shortest():
    lonely = torch.zeros(2**20)
    lonely[[5, 700_000]] = 1.5
    lonely[900_000] = 0.3
    clustered = torch.zeros(20_000)
    clustered[::40] = torch.randn(500, generator=torch.Generator().manual_seed(3))
    clustered[::4000] = 1.0
    runs = torch.zeros(4096)
    runs[:600] = torch.randn(600, generator=torch.Generator().manual_seed(3))
    chosen = {
        "dense": assert_exact(torch.randn(100))[0],
        "zeros": assert_exact(torch.zeros(5000))[0],
        "half": assert_exact(sparse(100_000, 0.5))[0],
        "sparse": assert_exact(sparse(100_000, 0.05))[0],
        "nearly dense": assert_exact(sparse(100_000, 0.97))[0],
        "one": assert_exact(torch.zeros(120).index_fill(0, torch.tensor([100]), 2.0))[0],
    }
    assert chosen["dense"] is Positions.ALL
    assert chosen["half"] in (Positions.BITMAP, Positions.RICE, Positions.RICE_ABSENT)
    assert chosen["sparse"] is Positions.RICE
    assert chosen["nearly dense"] is Positions.RICE_ABSENT
    assert chosen["one"] is Positions.VARINT
    assert assert_exact(torch.zeros(5000))[2] <= 2
    for tensor in (lonely, clustered, runs):
        assert_exact(tensor)


@pytest.mark.parametrize("positions", [p for p in Positions if p is not Positions.ALL])
@pytest.mark.parametrize("density", [0.03, 0.5, 0.98, 1.0])
@pytest.mark.parametrize("levels", [False, True])
def test_every_way_reads_back_what_it_wrote_even_where_it_is_not_shortest(
    positions: Positions, density: float, levels: bool, monkeypatch: pytest.MonkeyPatch
):
    from fedseal.federation.wire import codecs

    tensor = sparse(3000, density)
    tensor = stochastic(tensor, 4) if levels and density else tensor
    original = codecs._position_sizes

    def only(count: int, kept: int, gaps: object, parameter: int) -> dict[Positions, int]:
        rare_is_absent = 2 * kept > count
        gapped = positions in (Positions.VARINT, Positions.RICE)
        if gaps is None or (gapped and rare_is_absent) or (positions is Positions.RICE_ABSENT and not rare_is_absent):
            return original(count, kept, gaps, parameter)  # type: ignore[arg-type]
        return {positions: 0}

    monkeypatch.setattr(codecs, "_position_sizes", only)
    assert_exact(tensor)


@pytest.mark.parametrize("formula", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [2, 3, 4, 5, 8, 12, 16, 20])
def test_quantised_tensors_take_their_bits_and_lose_nothing(width: int, formula: int):
    x = torch.randn(20_011, generator=torch.Generator().manual_seed(0))
    positions, values, size = assert_exact(stochastic(x, width, formula))
    assert values is Values.GRID
    if width > 4:  # coarser ones have so many zeros that leaving them out may pay
        assert positions is Positions.ALL
    assert size <= width * 20_011 / 8 + 7


@pytest.mark.parametrize("width", [24, 28])
def test_grids_finer_than_the_mantissa_go_as_they_are(width: int):
    assert_exact(stochastic(torch.randn(3000), width))


@pytest.mark.parametrize(
    "spec",
    [
        "bits=1",
        "bits=1,sign=bare",
        "bits=2",
        "bits=4",
        "bits=8",
        "bits=12",
        "bits=16",
        "bits=20",
        "bits=24",
        "bits=8,rounding=nearest",
    ],
)
def test_what_our_own_quantiser_sends_takes_its_bits(spec: str):
    defence = build_defence(f"quantise:{spec}")
    x = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    sent = defence.on_update({"w": x}, RoundContext(nn.Linear(1, 1), lambda model, batch: x, generator(0)))["w"]
    _, values, size = assert_exact(sent.reshape(-1))
    assert values is Values.GRID
    assert size <= int(spec.split(",")[0].removeprefix("bits=")) * 12_000 / 8 + 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("width", [2, 4, 6])
def test_other_dtypes_have_grids_too(dtype: torch.dtype, width: int):
    x = torch.randn(5000, generator=torch.Generator().manual_seed(0)).to(dtype)
    _, values, size = assert_exact(stochastic(x, width))
    assert values is Values.GRID
    assert size <= width * 5000 / 8 + 11


@pytest.mark.parametrize("scale", [1.0, 0.0123, 3e-39, 1e38])
def test_signs_take_one_bit(scale: float):
    signs = torch.where(torch.randn(8001) < 0, -1.0, 1.0) * scale
    assert assert_exact(signs) == (Positions.ALL, Values.GRID, 1001 + 5)


def test_signs_with_zeros_take_a_mask_or_a_second_bit():
    x = torch.randn(9000, generator=torch.Generator().manual_seed(0))
    few, many = x.clone(), x.sign() * 0.5
    few = few.sign() * 0.5
    few[::1000] = 0
    many[torch.arange(9000) % 3 != 0] = 0
    assert assert_exact(few)[1] is Values.GRID
    assert assert_exact(few)[2] < 9000 / 8 + 40
    assert assert_exact(many)[2] < 9000 * 2 / 8 + 10


def test_a_sparse_quantised_tensor_profits_twice():
    tensor = stochastic(sparse(50_000, 0.05), 8)
    positions, values, size = assert_exact(tensor)
    assert (positions, values) == (Positions.RICE, Values.GRID)
    assert 8 * size / 50_000 < 0.05 * 8 + 0.31


def test_minus_zero_is_on_the_grid():
    tensor = stochastic(torch.randn(1000, generator=torch.Generator().manual_seed(0)), 8)
    tensor[::7] = -0.0
    assert assert_exact(tensor)[1] is Values.GRID


def test_one_value_off_the_grid_is_enough_to_leave_it():
    tensor = stochastic(torch.randn(10_001, generator=torch.Generator().manual_seed(0)), 4)
    assert find_grids([tensor], [tensor[:64]]) != [None]
    for odd in (0.123, math.nan, math.inf):
        off = tensor.clone()
        off[777] = odd
        assert find_grids([tensor, off], [tensor[:64], off[:64]])[1] is None
        assert_exact(off)


@given(st.integers(1, 400), st.integers(1, 12), st.integers(0, 3), st.floats(2**-100, 2**100))
def test_grids_of_any_size_and_scale_round_trip(count: int, width: int, formula: int, scale: float):
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)) * scale
    assert_exact(stochastic(x, max(2, width), formula) if width > 1 else x.sign() * scale)


def test_a_zero_tensor_costs_its_header():
    assert len(encode({"w": torch.zeros(1_000_000)})) < 30


def test_the_header_is_compact():
    named = {f"layer{i}.weight": torch.randn(3) for i in range(50)}
    assert len(encode(named)) < 50 * (12 + len("layer10.weight") + 8) + 20


@pytest.mark.slow
@pytest.mark.parametrize("density", [1.0, 0.52, 0.2, 0.01])
def test_eleven_million_parameters_take_seconds(density: float):
    tensor = sparse(11_000_000, density)
    start = time.process_time()
    back = decode(encode({"w": tensor}))["w"]
    assert time.process_time() - start < 5
    assert torch.equal(back.view(torch.int32), tensor.view(torch.int32))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 4, 8, 12])
def test_eleven_million_quantised_parameters_take_seconds(width: int):
    x = torch.randn(11_000_000)
    tensor = x.sign() if width == 1 else stochastic(x, width)
    start = time.process_time()
    back = decode(encode({"w": tensor}))["w"]
    assert time.process_time() - start < 8
    assert torch.equal(back, tensor)
