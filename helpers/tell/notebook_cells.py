"""The tags of a notebook's cells, the question that it answers and the machine that it ran on."""

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
"""Tags of the cells with parameters, with the parameters that papermill put in, and with the line
about the machine.
"""


def question(notebook: NotebookNode) -> str:
    """The question that a notebook answers: the heading of its first cell of prose, empty where
    it begins otherwise.
    """
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = re.match(r"\s*# +([^\n]+)", cell.source)
            if heading:
                return uncoloured(heading[1]).strip()
            break  # only the first cell of prose is asked
    return ""


def machine_line(notebook: NotebookNode) -> str:
    """The line about the machine that the cell with the tag ``machine`` printed, below a warning
    that this is another machine; empty where there is none.
    """
    for cell in notebook.cells:
        if MACHINE not in cell.metadata.get("tags", []):
            continue
        for output in cell.get("outputs", []):
            # What was printed, or what was shown; text or lines of it, as nbformat keeps both.
            shown = output.get("data", {}).get("text/plain", "")
            text = "".join(output.get("text", shown))
            for line in uncoloured(text).strip().splitlines():
                if not line.startswith(ELSEWHERE):
                    return line
    return ""
