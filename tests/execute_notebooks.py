"""Executes committed notebooks in place, as they are kept: ``python tests/execute_notebooks.py notebooks/01_*.ipynb``.

The kernel starts in the checkout; times of cells are left out, and names of this machine are replaced in notebooks/cases.
At its end, and without a notebook at once, it writes the digests of what all of them hold, by which `share` knows them.
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


def write_digests() -> None:
    """The digests of every source and output of the committed notebooks, for helpers/share."""
    from helpers.share import texts

    digests = set()
    for path in [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/cases/*.ipynb")]:
        digests |= {text.digest[: texts.DIGITS] for text in texts.all_of(nbformat.read(path, 4))}
    texts.COMMITTED.write_text("\n".join(sorted(digests)) + "\n", "ascii")


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT)
    for name in sys.argv[1:]:
        execute(Path(name).resolve())
        print(name, flush=True)
    write_digests()
