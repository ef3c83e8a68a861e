"""Executes the cells of a notebook one by one and records how each ended.

The client here replaces papermill's own, which marks the cell whose kernel died, and the cells
after it, as completed.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, Any

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output
from papermill.engines import NotebookExecutionManager

from helpers.tell.notebook_cells import INJECTED

from . import kernel_process
from .execution import Execution, RunFault
from .notebook_file import NotebookError
from .notebook_kernel import KERNEL, LANGUAGE, STACKS, STDERR, NotebookKernel
from .printed_text import PrintedText
from .record import in_words
from .resumption import finished_outputs

START_S = 60
"""The default of nbclient (startup_timeout): a kernel on a busy box may need most of it."""
OUTPUTS_S = 60
"""Time to send what a cell printed after it has ended: a kernel may have printed up to its
limit.
"""
STOPPING = "--- what follows was written while the kernel was being stopped ---\n"
LEAST_LIMIT_S = 0.001
"""A limit for a cell when no time is left: nbclient takes 0 for no limit."""
MOST_VALUE = 300  # letters of an exception's text in a cause
MOST_LINE = 60  # letters of a cell's first line in a cause


class CasebookClient(NotebookClient):
    """Runs the cells of an execution, and writes the result into it.

    ``papermill`` keeps the status and times of each cell in the notebook, and saves it. ``run`` is
    the execution, ``deadline`` the end of its time on the monotonic clock, ``printed`` what the
    current cell prints, and ``finished`` has the outputs of cells that are not executed again.
    """

    def __init__(self, papermill: NotebookExecutionManager, execution: Execution):
        super().__init__(
            papermill.nb,
            timeout_func=self._limit_s,
            startup_timeout=START_S,
            extra_arguments=["--IPKernelApp.capture_fd_output=False"],
            kernel_name=KERNEL,
            coalesce_streams=True,
            iopub_timeout=OUTPUTS_S,
            raise_on_iopub_timeout=True,
        )
        self.papermill = papermill
        self.run = execution
        self.kernel = NotebookKernel(execution.folder, execution.mark)
        self.deadline = time.monotonic() + execution.run_s
        self.printed = PrintedText()
        self.finished = self._finished()

    def _finished(self) -> dict[int, list[NotebookNode]]:
        """Outputs, by the cell's index, of cells that an earlier attempt finished and that are not
        executed again; notes in the execution what of the attempt is used.
        """
        earlier = self.run.earlier
        if earlier is None:
            return {}
        try:
            outputs = finished_outputs(earlier, self.nb)
        except NotebookError as error:
            why = f"its earlier notebook cannot be read: {error}"
            self.run.notes.append(f"begun anew: {why}")
            return {}
        note = f"went on where attempt {earlier.name} stopped"
        if outputs:
            note += f"; outputs of cells kept: {len(outputs)}"
        self.run.notes.append(note)
        return outputs

    def run_notebook(self) -> None:
        """Execute the cells until one fails, whose fault the execution then has, and end the
        kernel.

        Raises OSError if the notebook cannot be saved.
        """
        try:
            with self.kernel.stop.listening(), ExitStack() as until_the_end:
                try:
                    stderr = until_the_end.enter_context(open(self.kernel.stderr, "ab"))
                    self._start_kernel(stderr)
                    until_the_end.enter_context(self.setup_kernel())
                except (RuntimeError, OSError) as error:
                    self._record_that_no_kernel_started(error)
                else:
                    self._run_cells()
        finally:
            self._clean_up()

    def _start_kernel(self, stderr: IO[bytes]) -> None:
        """Start the process of the kernel, which need not answer yet."""
        manager = self.kernel.manager()
        self.km = manager
        self.start_new_kernel(
            env=self.kernel.environment(),
            cwd=str(self.run.folder),
            stdout=stderr,
            stderr=stderr,
        )
        self.kernel.started(manager)

    def _run_cells(self) -> None:
        """Run the cells in order, until one has a fault."""
        for index, cell in enumerate(self.nb.cells):
            self.papermill.cell_start(cell, index)
            self.run.on_cell(index, len(self.nb.cells))
            self.printed = PrintedText()
            fault = self._run_cell(cell, index)
            cell.get("outputs", []).extend(self.printed.end())
            if fault:
                self.run.fault = fault
                self.papermill.cell_exception(cell, index)
            self.papermill.cell_complete(cell, index)
            if fault:
                break
        self.nb.metadata.setdefault("language_info", {"name": LANGUAGE})
        self.set_widgets_metadata()

    def _run_cell(self, cell: NotebookNode, index: int) -> RunFault | None:
        """Run one cell; returns its fault, or None if it was completed."""
        stopped_by = self.kernel.stop.signal
        # A cell of text needs no kernel, and completes even now.
        if stopped_by and cell.cell_type == "code":
            why = f"interrupted by {stopped_by} before"
            return self._lost(cell, index, "interrupted", why, stopped_by)
        if index in self.finished:
            cell.outputs = self.finished[index]
            return None
        try:
            self.execute_cell(cell, index)
        except CellExecutionError as error:
            return self._raised(error, index)
        except DeadKernelError:
            return self._died(cell, index)
        except CellTimeoutError as error:
            if self.kernel.has_ended_at_its_limit():
                return self._died(cell, index)
            self.kernel.write_stacks()
            return self._lost(cell, index, "timed_out", self._overran(cell, error))
        except Exception as error:  # noqa: BLE001  whatever breaks here, the cell must not read as completed
            why = f"the runner broke ({in_words(error)}) in"
            return self._lost(cell, index, "failed", why)
        return None

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Take one message of the kernel for a cell (nbclient calls this), and keep only the
        beginning and the end of what is printed.
        """
        if msg["msg_type"] == "clear_output":
            self.printed = PrintedText()
        if msg["msg_type"] == "stream":
            content = msg["content"]
            content["text"] = self.printed.head(content["text"], content["name"])
            if not content[
                "text"
            ]:  # all of it comes after the head: it may be in the tail
                return None
        output = super().process_message(msg, cell, cell_index)
        self.papermill.autosave_cell()
        return output

    def _limit_s(self, cell: NotebookNode) -> float:
        """Seconds that a cell may run: its own limit, or what is left of the run's."""
        left_s = self.deadline - time.monotonic()
        return max(LEAST_LIMIT_S, min(self._cell_limit_s(cell), left_s))

    def _cell_limit_s(self, cell: NotebookNode) -> float:
        """The limit in the cell's metadata, else that of the plan."""
        return float(cell.metadata.get("timeout", self.run.cell_s))

    def _overran(self, cell: NotebookNode, error: CellTimeoutError) -> str:
        """Which limit was passed, as the beginning of a sentence that the cell's number ends: that
        of the run, that of nbclient for a cell's outputs after its end, or that of the cell.
        """
        if time.monotonic() >= self.deadline:
            return f"the run passed its limit of {self.run.run_s:.3g} s in"
        if "IOPub" in str(error):  # nbclient: "Timeout waiting for IOPub output"
            return f"the output did not arrive within {OUTPUTS_S} s of the end of"
        return f"passed the limit of {self._cell_limit_s(cell):g} s of"

    def _raised(self, error: CellExecutionError, index: int) -> RunFault:
        """The fault of a cell that raised an exception; nbclient has put it among the outputs."""
        stopped_by = self.kernel.stop.signal
        if stopped_by:
            cause = f"interrupted by {stopped_by}"
            return self._fault(index, "interrupted", cause, stopped_by)
        cause = str(error.ename)
        value = _first_line(str(error.evalue))
        if value:
            cause += f": {value[:MOST_VALUE]}"
        return self._fault(index, "failed", cause)

    def _died(self, cell: NotebookNode, index: int) -> RunFault:
        """The fault of a cell during which the kernel ended: killed by us, or by itself."""
        stopped_by = self.kernel.stop.signal
        if stopped_by:
            why = f"interrupted by {stopped_by}; in"
            return self._lost(cell, index, "interrupted", why, stopped_by)
        how, signal = self.kernel.how_it_ended()
        return self._lost(cell, index, "died", f"{how}; in", signal)

    def _lost(
        self, cell: NotebookNode, index: int, state: str, why: str, signal: str = ""
    ) -> RunFault:
        """The fault of a cell for which the kernel reports no exception; writes it below the cell.

        ``why`` is the beginning of a sentence that the number of the cell ends.
        """
        line = _first_line(cell.source)
        if len(line) > MOST_LINE:
            line = line[: MOST_LINE - 3] + "..."
        cause = f"{why} cell {self._source_index(index)} ({line})"
        fault = self._fault(index, state, cause, signal)
        title = state.title().replace("_", "")
        traceback = [f"{title}: {cause}"]
        if fault.last_words:
            traceback.append(f"Last words of the kernel ({STDERR}):")
            traceback += fault.last_words.splitlines()
        frames = kernel_process.where_it_stood(self.kernel.stacks)
        if frames:
            traceback.append(f"Where it stood, innermost first ({STACKS}):")
            traceback += frames
        error = new_output("error", ename=title, evalue=cause, traceback=traceback)
        cell.outputs.append(error)
        return fault

    def _fault(self, index: int, state: str, cause: str, signal: str = "") -> RunFault:
        """The fault with the kernel's last words; what a kernel prints while we stop it comes after
        a line that says so.
        """
        words = self.kernel.last_words()
        if state in ("timed_out", "interrupted"):
            with open(self.kernel.stderr, "a") as file:
                file.write(STOPPING)
        return RunFault(state, cause, signal, self._source_index(index), words)

    def _source_index(self, index: int) -> int:
        """The index of a cell in the source notebook. papermill has injected one cell into the
        executed one; that cell itself counts as the one before it, or as the first.
        """
        for cell in self.nb.cells[: index + 1]:
            if INJECTED in cell.metadata.get("tags", []):
                return max(0, index - 1)
        return index

    def _record_that_no_kernel_started(self, error: Exception) -> None:
        """Set the fault and write it below the first code cell, so that no cell reads as completed.

        The state is failed if the kernel did not answer, died if its process has ended, and
        interrupted, before both, if this process was asked to stop. Raises the error if the
        notebook has no code cell, below which it could be written.
        """
        kinds = [cell.cell_type for cell in self.nb.cells]
        if "code" not in kinds:
            raise error
        index = kinds.index("code")
        cell = self.nb.cells[index]
        state = "failed"
        how = f"the kernel was not ready: {in_words(error)}"
        signal = ""
        if self.kernel.has_ended():
            state = "died"
            how, signal = self.kernel.how_it_ended()
        if self.kernel.stop.signal:
            state = "interrupted"
            signal = self.kernel.stop.signal
        self.run.fault = self._lost(cell, index, state, f"{how}; before", signal)
        self.papermill.cell_exception(cell, index)

    def _clean_up(self) -> None:
        """End all processes of the kernel; if SIGKILL does not end one, the run is stuck."""
        ended, deaf = self.kernel.clean_up(self.run.adopted)
        self.run.left_behind = tuple(ended)
        if deaf:
            fault = self.run.fault
            if fault is None:
                fault = RunFault("stuck", "every cell completed")
            cause = f"{fault.cause}; SIGKILL does not end {', '.join(deaf)}"
            self.run.fault = replace(fault, state="stuck", cause=cause)


def _first_line(text: str) -> str:
    """The first line that is not blank, without blanks around it; empty if there is none."""
    lines = (line.strip() for line in text.splitlines())
    return next(filter(None, lines), "")
