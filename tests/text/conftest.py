"""Small texts."""

from __future__ import annotations

import pytest

from fedseal.core.errors import FedsealError
from fedseal.data.fetch import fetch
from fedseal.data.registry import DATASETS
from fedseal.data.text.dataset import TextDataset


@pytest.fixture(scope="session")
def notes() -> TextDataset:
    data = DATASETS.build("text:notes?length=16&limit=200")
    assert isinstance(data, TextDataset)
    return data


@pytest.fixture(scope="session")
def stories() -> None:
    """Skips what needs stories15M where it is neither in the cache nor can be fetched."""
    try:
        fetch("stories15m")
    except FedsealError as error:
        pytest.skip(f"stories15M cannot be fetched here: {error}")
