"""What the cells of a notebook are: their tags, and what two of them say of the whole."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .box import ELSEWHERE
from .prose import uncoloured

if TYPE_CHECKING:
    from nbformat import NotebookNode

PARAMETERS = "parameters"
INJECTED = "injected-parameters"
MACHINE = "machine"
"""Tags of the cells that hold parameters, those that papermill put in, and the machine's line."""


def question(notebook: NotebookNode) -> str:
    """The heading that a notebook begins with: the question that it answers."""
    prose = (cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    heading = re.match(r"\s*# +([^\n]+)", next(prose, ""))
    return uncoloured(heading[1]).strip() if heading else ""


def machine_line(notebook: NotebookNode) -> str:
    """The line about the machine that the cell with the tag ``machine`` printed first.

    Empty where there is none.
    """
    for cell in notebook.cells:
        if MACHINE not in cell.metadata.get("tags", []):
            continue
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain") or ""
            lines = uncoloured("".join(text)).strip().splitlines()
            lines = [line for line in lines if not line.startswith(ELSEWHERE)]
            if lines:
                return lines[0]
    return ""
