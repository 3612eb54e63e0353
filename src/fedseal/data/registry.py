"""The registry of data sets."""

from __future__ import annotations

from fedseal.core.registry import Registry
from fedseal.data.dataset import Dataset

DATASETS: Registry[Dataset] = Registry("data set", "fedseal.data", group="fedseal.data", product=Dataset)

register_data = DATASETS.register
"""Register a data set under a name: see `Registry.register`."""
