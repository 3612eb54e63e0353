"""Small texts."""

from __future__ import annotations

import pytest

from fedseal.data.registry import DATASETS
from fedseal.data.text.dataset import TextDataset


@pytest.fixture(scope="session")
def notes() -> TextDataset:
    data = DATASETS.build("text:notes?length=16&limit=200")
    assert isinstance(data, TextDataset)
    return data
