"""Benchmarks run rarely: what they import of the package must be there all the same."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = sorted(path for path in BENCH.rglob("*.py") if not path.relative_to(BENCH).parts[0].startswith("."))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(BENCH)))
def test_every_name_a_benchmark_imports_exists(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("fedseal"):
            continue
        module = importlib.import_module(node.module or "")
        for alias in node.names:
            if not hasattr(module, alias.name):
                importlib.import_module(f"{node.module}.{alias.name}")
