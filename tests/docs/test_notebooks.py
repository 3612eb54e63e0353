"""The notebooks run from top to bottom, and the site has something to show of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in HERE.glob("*.ipynb"))
BRIEF = {"first-audit", "read-the-results"}
"""Those that every change runs, shortened; the others take a minute and run with the slow tests."""


@pytest.fixture(scope="module")
def execute(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(HERE / "execute.py")


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelManager]:
    """One kernel for all notebooks: PyTorch is imported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE.parents[1] / "src"))
        patch.setenv("OMP_NUM_THREADS", "1")
        manager = KernelManager()
        manager.start_kernel()
        yield manager
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize(
    "name", [name if name in BRIEF else pytest.param(name, marks=pytest.mark.slow) for name in NOTEBOOKS]
)
def test_a_notebook_runs_from_top_to_bottom(
    name: str, execute: ModuleType, kernel: KernelManager, tmp_path: Path
) -> None:
    notebook = execute.executed(HERE / f"{name}.ipynb", tmp_path, short=True, kernel=kernel)
    assert any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_at_its_full_length(
    name: str, execute: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1] / "src"))
    notebook = execute.executed(HERE / f"{name}.ipynb", tmp_path)
    assert any(cell.get("outputs") for cell in notebook.cells)


def test_a_cell_that_fails_is_seen(execute: ModuleType, kernel: KernelManager, tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell("x = 1"), nbformat.v4.new_code_cell("assert x == 2, 'as it is'")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "wrong.ipynb")
    with pytest.raises(CellExecutionError, match="as it is"):
        execute.executed(tmp_path / "wrong.ipynb", tmp_path, kernel=kernel)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_carries_its_outputs_and_is_small(name: str) -> None:
    path = HERE / f"{name}.ipynb"
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert code[-1].outputs, "run `python docs/notebooks/execute.py`"
    assert all(cell.execution_count == place for place, cell in enumerate(code, 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert path.stat().st_size < 200_000
