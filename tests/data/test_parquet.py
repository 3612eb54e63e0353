"""The small Parquet reader against files written by pyarrow 26 (in `samples`, so pyarrow is not needed)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fedseal.core.errors import InputError
from fedseal.data.parquet import read_columns

SAMPLES = Path(__file__).parent / "samples"
GROCERIES = (SAMPLES / "groceries.parquet").read_bytes()
"""Forty rows in two groups; the first three columns dictionary-encoded, pictures plain, an integer column beside."""

NAMES = ("dataset", "coarse_cat", "finegrained_cat", "image_data")


def test_columns_are_those_pyarrow_wrote() -> None:
    columns = read_columns(GROCERIES, NAMES, "tiny")
    assert columns == {
        "dataset": [b"train", b"test", b"val", b"test"] * 10,
        "coarse_cat": [b"Apple", b"Pear"] * 20,
        "finegrained_cat": [b"Gala", b"Anjou", b"Fuji", b"Kaiser", b"Gala"] * 8,
        "image_data": [b"picture %d" % (row % 30) for row in range(40)],
    }


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(InputError, match="the column 'nothing' has 0 values for 40 rows"):
        read_columns(GROCERIES, ("nothing",), "tiny")


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(InputError, match="a wanted column is not gzipped byte strings"):
        read_columns(GROCERIES, ("index",), "tiny")


def test_another_compression_is_refused() -> None:
    with pytest.raises(InputError, match="a wanted column is not gzipped byte strings"):
        read_columns((SAMPLES / "with_snappy.parquet").read_bytes(), ("a",), "tiny")


def test_missing_values_are_refused() -> None:
    with pytest.raises(InputError, match="a wanted column has missing values"):
        read_columns((SAMPLES / "with_null.parquet").read_bytes(), ("a",), "tiny")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"PK\x03\x04" * 10])
def test_other_files_are_refused_by_name(content: bytes) -> None:
    with pytest.raises(InputError, match=r"^here\.whl is not a Parquet file"):
        read_columns(content, NAMES, "here.whl")


def test_damage_is_refused_or_harmless() -> None:
    """Whatever bytes change, the answer is an InputError or columns, never another exception."""
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        content = bytearray(GROCERIES)
        for _ in range(3):
            content[rng.randrange(4, len(content) - 4)] = rng.randrange(256)
        try:
            read_columns(bytes(content), NAMES, "damaged")
        except InputError:
            refused += 1
    assert refused > 100
