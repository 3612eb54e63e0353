"""Small public images for priors to learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedseal.attacks.shadow.imagined import imagined
from fedseal.preparation import forget


@pytest.fixture
def public() -> Tensor:
    """Forty clouds of 8 x 8 pixels."""
    return imagined((1, 8, 8), 10, 40, 3).images


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    forget()
    torch.manual_seed(0)
    return tmp_path / "cache"
