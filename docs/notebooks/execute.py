"""Execute the notebooks and keep their outputs in them: `python docs/notebooks/execute.py [NAME ...]`.

Outputs are what the site shows; tests/docs executes the notebooks again and compares nothing but that they run, since
figures may differ in their last digits between machines.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).parent
TIMEOUT = 600


def executed(path: Path, directory: str | Path) -> NotebookNode:
    """Return a notebook with fresh outputs, executed in a directory; raises CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": str(directory)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when each cell ran
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                output.get("data", {}).pop("image/jpeg", None)  # the same picture as PNG is there too
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main(names: list[str]) -> None:
    """Execute all notebooks, or those named."""
    for path in [HERE / f"{name}.ipynb" for name in names] or sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as directory:
            nbformat.write(executed(path, directory), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
