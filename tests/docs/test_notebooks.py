"""The notebooks run from top to bottom, and the site has something to show of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

HERE = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in HERE.glob("*.ipynb"))


@pytest.fixture(scope="module")
def execute() -> ModuleType:
    spec = importlib.util.spec_from_file_location("execute_notebooks", HERE / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_top_to_bottom(
    name: str, execute: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1] / "src"))
    notebook = execute.executed(HERE / f"{name}.ipynb", tmp_path)
    assert any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_carries_its_outputs_and_is_small(name: str) -> None:
    path = HERE / f"{name}.ipynb"
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert code[-1].outputs, "run `python docs/notebooks/execute.py`"
    assert all(cell.execution_count == place for place, cell in enumerate(code, 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert path.stat().st_size < 200_000
