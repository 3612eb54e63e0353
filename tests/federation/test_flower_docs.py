"""Every piece of Python in docs/flower.md runs, in order, and its apps take part in a federation (P14)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from fedseal.flower import guard

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_pages_snippets_run_and_their_apps_train(flower: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    seen: set[int] = set()
    for code in snippets():
        exec(compile(code, str(PAGE), "exec"), names)
        app = names["app"]
        if id(app) not in seen:
            seen.add(id(app))
            grid = flower.grid(app, 2)
            start = ArrayRecord(names["load_model"]().state_dict())
            guard(FedAvg(fraction_evaluate=0.0)).start(grid=grid, initial_arrays=start, num_rounds=1)
            assert not any(reply.has_error() for reply in grid.replies), grid.replies[0].error.reason
    assert len(seen) == 2
    start = ArrayRecord(names["load_model"]().state_dict())
    names["strategy"].start(grid=flower.grid(names["app"], 2), initial_arrays=start, num_rounds=1)
    assert len(list((tmp_path / "updates").iterdir())) == 2


def test_the_page_names_what_there_is():
    import inspect

    from fedseal.flower import defend

    text = PAGE.read_text(encoding="utf-8")
    for option in (
        "include",
        "exclude",
        "bn",
        "ledger",
        "budget",
        "allow_none",
        "costs",
        "encoding",
        "inside",
        "model",
    ):
        assert option in inspect.signature(defend).parameters
        assert f"{option}=" in text
    for option in ("max_norm", "max_examples", "outlier", "recorder"):
        assert option in inspect.signature(guard).parameters
        assert f"{option}=" in text
