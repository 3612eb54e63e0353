"""Small digits, so that a planted system is audited in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedseal.data.registry import DATASETS
from fedseal.data.resize import at_size


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set of 1,250 digits of 14 x 14 pixels, as a spec."""
    small = at_size(DATASETS.build("digits"), 14).subset(torch.arange(0, 5000, 4))
    return saved(tmp_path_factory.mktemp("digits") / "digits.npz", small.images, small.labels)


def saved(path: Path, images: torch.Tensor, labels: torch.Tensor) -> str:
    """Write images [N, C, H, W] in bytes and labels to a file, and return its spec."""
    np.savez(path, images=images.permute(0, 2, 3, 1).numpy(), labels=labels.numpy())
    return f"npz:{path}"
