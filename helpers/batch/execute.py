"""Executes a notebook as papermill does, and says truly whether its kernel died, hung or was
interrupted.

papermill 2.7.0 itself marks the cell whose kernel died, and those after it, as completed
(tests/test_papermill_contract.py watches for the release that stops doing so).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from papermill.engines import NotebookExecutionManager
from papermill.exceptions import PapermillExecutionError
from papermill.execute import (
    prepare_notebook_metadata,
    raise_for_execution_errors,
    remove_error_markers,
)
from papermill.iorw import load_notebook_node, papermill_io
from papermill.parameterize import parameterize_notebook

from helpers.look.files import write_atomic

from .execution import Execution, RunFault
from .notebook_client import CasebookClient
from .notebook_kernel import KERNEL, LANGUAGE
from .record import in_words

WHOLE = "casebook://"
"""A path with this prefix is saved whole or not at all; papermill saves others in place."""
AUTOSAVE_S = 5
"""Seconds between two saves during a cell: the output of these may be lost."""


class AtomicFiles:
    """A handler for papermill that saves a file whole or not at all."""

    def write(self, text: str, path: str) -> None:
        """Save the text; papermill gives the path with the prefix for which this is registered."""
        write_atomic(Path(path.removeprefix(WHOLE)), text)


papermill_io.register(WHOLE, AtomicFiles())


def execute(
    source: Path, execution: Execution, parameters: Mapping[str, object]
) -> None:
    """Run the notebook ``source`` with ``parameters`` in a kernel of its own, and write the result
    into ``execution``. What goes wrong is not raised: it is in ``execution.fault``.

    The notebook is saved whole after every step. A cell may have its own limit in seconds in
    ``metadata.timeout``.
    """
    out = f"{WHOLE}{execution.out}"
    fault = None
    try:
        notebook = load_notebook_node(str(source))
        if parameters:  # without any, papermill would inject a cell that sets nothing
            notebook = parameterize_notebook(
                notebook, parameters, kernel_name=KERNEL, language=LANGUAGE
            )
        prepare_notebook_metadata(notebook, str(source), str(execution.out))
        remove_error_markers(notebook)
        manager = NotebookExecutionManager(
            notebook, out, progress_bar=False, autosave_cell_every=AUTOSAVE_S
        )
        manager.notebook_start()
        try:
            CasebookClient(manager, execution).run_notebook()
        finally:
            manager.notebook_complete()
        # Puts a banner above a notebook with an error, and saves it.
        raise_for_execution_errors(notebook, out)
    except PapermillExecutionError as raised:
        fault = RunFault("failed", in_words(raised))
    except OSError as raised:
        why = raised.strerror or raised
        fault = RunFault("failed", f"the notebook cannot be saved: {why}")
    if execution.fault is None:  # else the client has seen the cause
        execution.fault = fault
