"""Execute the notebooks and keep their outputs in them: `python docs/notebooks/execute.py [NAME ...]`.

Outputs are what the site shows; tests/docs executes the notebooks again and compares nothing but that they run, since
figures may differ in their last digits between machines. For that they are shortened: every line as it stands, with
fewer iterations and targets.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).parent
TIMEOUT = 600
SHORTER = {r"\biterations=\d+": "iterations=4", r"\btargets=\d+": "targets=1", r"\brestarts=\d+": "restarts=1"}
"""What takes the time, and what it is in a shortened notebook."""


def shortened(notebook: NotebookNode) -> NotebookNode:
    """Return the same notebook with less of everything."""
    for cell in notebook.cells:
        for long, short in SHORTER.items():
            cell.source = re.sub(long, short, cell.source)
    return notebook


def executed(
    path: Path, directory: str | Path, *, short: bool = False, kernel: KernelManager | None = None
) -> NotebookNode:
    """Return a notebook with fresh outputs, executed in a directory; raises CellExecutionError if a cell fails.

    Args:
        path: of the notebook.
        directory: where it runs.
        short: whether it is shortened first.
        kernel: a kernel to go on with, which spares its start and imports; one of its own if None.
    """
    notebook = nbformat.read(path, as_version=4)
    if short:
        notebook = shortened(notebook)
    if kernel is not None:  # it may be elsewhere, and have names
        first = nbformat.v4.new_code_cell(f"%reset -f\nimport os\nos.chdir({str(directory)!r})")
        notebook.cells.insert(0, first)
    NotebookClient(notebook, timeout=TIMEOUT, km=kernel, resources={"metadata": {"path": str(directory)}}).execute()
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
