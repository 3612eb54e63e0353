"""The recipe for other frameworks runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "other-frameworks.md"


def test_numpy_arrays_are_sealed_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    block = next(code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "seal_update" in code)
    found: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), found)  # our own page
    assert np.count_nonzero(found["send"]["w"]) == 2
    assert (tmp_path / "ledger.sqlite").exists()
