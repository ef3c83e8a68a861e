"""Executes committed notebooks in place, as they are kept: ``python tests/execute_notebooks.py notebooks/01_*.ipynb``.

The kernel starts in the checkout; times of cells are left out, and names of this machine are replaced in notebooks/cases.
"""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from this_machine import known_values, replace_in_notebook

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

CELL_S = 600


def execute(path: Path) -> None:
    """Run one notebook and write it back."""
    notebook = nbformat.read(path, 4)
    about = copy.deepcopy(notebook.metadata)
    client = NotebookClient(
        notebook,
        timeout=CELL_S,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(ROOT)}},
    )
    client.execute()
    notebook.metadata = about
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_about_set_up(output)]
    if path.parent.name == "cases":
        replace_in_notebook(notebook, known_values())
    nbformat.write(notebook, path)


def is_about_set_up(output: nbformat.NotebookNode) -> bool:
    """Whether an output only says that the allocator was compiled, which happens once a machine."""
    return output.get("name") == "stderr" and output["text"].startswith("Compiling the allocator")


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT)
    for name in sys.argv[1:]:
        execute(Path(name).resolve())
        print(name, flush=True)
