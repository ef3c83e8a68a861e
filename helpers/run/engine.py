"""A papermill engine that tells the truth about a notebook whose kernel died, hung or was interrupted.

Stock papermill 2.7.0 marks the cell that died, and those after it, as completed (tests/test_papermill_contract.py watches for
the release that stops doing so). Importing this module registers the engine ``casebook``; ``execute`` is the way to use it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import papermill
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, papermill_io

from helpers.look.files import write_atomic

from .client import START_S, CasebookClient, RunFault, named

NAME = "casebook"
WHOLE = "casebook://"
"""Before a path: papermill saves that file whole or not at all. Every other path stays with papermill's own handlers."""
AUTOSAVE_S = 5


def _no_progress(cell: int, cells: int) -> None:
    pass


class AtomicFiles(LocalHandler):
    """Saves notebooks whole or not at all; papermill itself rewrites the file in place."""

    def write(self, buf: str, path: str) -> None:
        write_atomic(Path(path[len(WHOLE) :]), buf)


class CasebookEngine(NBClientEngine):
    """The engine ``casebook``. Takes ``folder, cell_s, run_s, mark, adopted, on_cell, keep``; each has a default."""

    @classmethod
    def execute_notebook(
        cls, nb: Any, kernel_name: str, output_path: str | None = None, **kwargs: Any
    ) -> Any:
        if output_path and output_path.startswith(WHOLE):
            nb.metadata.papermill["output_path"] = output_path[len(WHOLE) :]
        return super().execute_notebook(nb, kernel_name, output_path=output_path, **kwargs)

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: Any,
        kernel_name: str,
        log_output: bool = False,
        stdout_file: Any = None,
        stderr_file: Any = None,
        start_timeout: int = START_S,
        execution_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        folder = Path(kwargs.get("folder") or Path(nb_man.output_path or ".").resolve().parent)
        client = CasebookClient(
            nb_man,
            folder,
            kwargs.get("cell_s") or execution_timeout or 3600,
            kwargs.get("run_s") or 86400,
            kwargs.get("mark") or uuid.uuid4().hex,
            kwargs.get("adopted", False),
            kwargs.get("on_cell") or _no_progress,
            log_output=log_output,
            stdout_file=stdout_file,
            stderr_file=stderr_file,
        )
        kwargs.get("keep", []).append(client)
        client.execute()

    @classmethod
    def nb_kernel_name(cls, nb: Any, name: str | None = None) -> str:
        return "python3"

    @classmethod
    def nb_language(cls, nb: Any, language: str | None = None) -> str:
        return "python"


papermill_engines.register(NAME, CasebookEngine)
papermill_io.register(WHOLE, AtomicFiles())


def execute(
    source: Path,
    out: Path,
    parameters: dict[str, Any] | None = None,
    *,
    cell_s: float = 120,
    run_s: float = 600,
    mark: str = "",
    adopted: bool = False,
    on_cell: Callable[[int, int], None] = _no_progress,
) -> tuple[Any, tuple[str, ...]]:
    """Run the notebook ``source`` in a kernel of its own and keep it at ``out``, saved whole at every step.

    A cell may run for ``metadata.timeout`` seconds, else ``cell_s``; all of them together for ``run_s``. The kernel works in
    the folder of ``out`` and its fd 1 and 2 go to kernel.stderr there. ``adopted``: see ``kernel.sweep``.
    Returns the executed notebook and the processes that it left behind (ended by now). Raises RunFault.
    """
    clients: list[CasebookClient] = []
    out = out.resolve()
    error: Exception | None = None
    nb = None
    try:
        # papermill formats paths with the parameters.
        paths = [
            path.replace("{", "{{").replace("}", "}}")
            for path in (str(source.resolve()), f"{WHOLE}{out}")
        ]
        nb = papermill.execute_notebook(
            *paths,
            parameters or None,
            engine_name=NAME,
            progress_bar=False,
            kernel_name="python3",
            language="python",
            autosave_cell_every=AUTOSAVE_S,
            folder=out.parent,
            cell_s=cell_s,
            run_s=run_s,
            mark=mark,
            adopted=adopted,
            on_cell=on_cell,
            keep=clients,
        )
    except PapermillExecutionError as raised:
        error = raised
    except OSError as raised:
        error = RunFault("failed", f"the notebook cannot be saved: {raised.strerror or raised}")
    left = clients[0].left_behind if clients else ()
    fault = clients[0].fault if clients else None
    if fault is None and error is not None:
        fault = error if isinstance(error, RunFault) else RunFault("failed", named(error))
    if fault is not None:
        fault.left_behind = left
        raise fault from None
    return nb, left
