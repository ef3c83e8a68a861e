"""A papermill engine that tells the truth about a notebook whose kernel died, hung or was
interrupted.

Stock papermill 2.7.0 marks the cell that died, and those after it, as completed
(tests/test_papermill_contract.py watches for the release that stops doing so). Importing this
module registers the engine ``casebook``; ``execute`` is the way to use it. Only public methods
of papermill 2.7 and nbclient 0.11 are overridden; what each works around is in its docstring.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import papermill
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import (
    NBClientEngine,
    NotebookExecutionManager,
    papermill_engines,
)
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, papermill_io

from helpers.ground.child import signal_group, stacks_of
from helpers.ground.workbook_process import MARK, TRIALS_HERE
from helpers.look.files import write_atomic
from helpers.tell.notebook_cells import INJECTED

from . import kernel_process
from .notebook_file import NotebookError
from .record import in_words
from .resumption import TRIALS, finished_outputs

NAME = "casebook"
WHOLE = "casebook://"
"""Before a path: papermill saves that file whole or not at all.

Every other path stays with papermill's own handlers.
"""
AUTOSAVE_S = 5
START_S = 60
STOP_S = 3.0
STACKS_S = 0.3
OUTPUTS_S = 60
STREAM_HEAD = 1 << 20
STREAM_TAIL = 1 << 16
STDERR = "kernel.stderr"
STACKS = "stacks/kernel.txt"
THREADS = "stacks/threads.txt"
STOPPING = "--- what follows was written while the kernel was being stopped ---\n"
LANGUAGE = {
    "name": "python",
    "version": sys.version.split()[0],
    "mimetype": "text/x-python",
    "file_extension": ".py",
}


@dataclass(frozen=True)
class RunFault:
    """Why a notebook did not come to its end.

    ``state`` is failed (its own exception), died, timed_out, interrupted or stuck (not even
    SIGKILL ends it); ``cause`` is one line; ``signal`` names what killed the kernel or
    interrupted us; ``cell`` is the index in the source notebook, None outside of all cells;
    ``last_words`` is what the kernel last wrote to fd 1 and 2.
    """

    state: str
    cause: str
    signal: str = ""
    cell: int | None = None
    last_words: str = ""


@dataclass
class Execution:
    """What one execution of a notebook is given, and what came of it.

    A cell may run for ``cell_s`` seconds, all of them for ``run_s``. ``mark`` is in the
    environment of the kernel, by which its processes are recognised; ``adopted`` as of
    ``kernel_process.sweep``. ``earlier`` is the folder of the attempt that this one goes on from.
    ``on_cell`` hears which cell of how many begins. ``fault`` says why it stopped early;
    ``left_behind`` names the processes of the kernel that had to be ended, ``notes`` say where it
    went on.
    """

    folder: Path
    cell_s: float = 120
    run_s: float = 600
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    adopted: bool = False
    earlier: Path | None = None
    on_cell: Callable[[int, int], None] = lambda _cell, _cells: None
    fault: RunFault | None = None
    left_behind: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


class AtomicFiles(LocalHandler):
    """Saves notebooks whole or not at all; papermill itself rewrites the file in place."""

    def write(self, buf: str, path: str) -> None:
        write_atomic(Path(path.removeprefix(WHOLE)), buf)


class CasebookEngine(NBClientEngine):
    """The engine ``casebook``.

    Takes ``execution``, an Execution; without one it has the usual limits.
    """

    @classmethod
    def execute_notebook(
        cls,
        nb: NotebookNode,
        kernel_name: str,
        output_path: str | None = None,
        **kwargs: object,
    ) -> NotebookNode:
        if output_path and output_path.startswith(WHOLE):
            nb.metadata.papermill["output_path"] = output_path.removeprefix(WHOLE)
        return super().execute_notebook(
            nb, kernel_name, output_path=output_path, **kwargs
        )

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        _kernel_name: str,
        execution: Execution | None = None,
        **_options: object,
    ) -> None:
        folder = Path(nb_man.output_path or ".").resolve().parent
        CasebookClient(nb_man, execution or Execution(folder)).execute()

    @classmethod
    def nb_kernel_name(cls, _nb: NotebookNode, _name: str | None = None) -> str:
        return "python3"

    @classmethod
    def nb_language(cls, _nb: NotebookNode, _language: str | None = None) -> str:
        return "python"


papermill_engines.register(NAME, CasebookEngine)
papermill_io.register(WHOLE, AtomicFiles())


def execute(
    source: Path, out: Path, parameters: dict[str, Any] | None = None, **options: Any
) -> Execution:
    """Run the notebook ``source`` in a kernel of its own and keep it at ``out``, saved whole at
    every step.

    A cell may run for ``metadata.timeout`` seconds, else ``cell_s``; all of them together for
    ``run_s``. The kernel works in the folder of ``out`` and its fd 1 and 2 go to kernel.stderr
    there. ``options``: those of Execution. Its fault is returned, not raised.
    """
    out = out.resolve()
    execution = Execution(out.parent, **options)
    # papermill formats paths with the parameters.
    paths = [
        path.replace("{", "{{").replace("}", "}}")
        for path in (str(source.resolve()), f"{WHOLE}{out}")
    ]
    fault = None
    try:
        papermill.execute_notebook(
            *paths,
            parameters or None,
            engine_name=NAME,
            progress_bar=False,
            execution=execution,
            kernel_name="python3",
            language="python",
            autosave_cell_every=AUTOSAVE_S,
        )
    except PapermillExecutionError as raised:
        fault = RunFault("failed", in_words(raised))
    except OSError as raised:
        fault = RunFault(
            "failed", f"the notebook cannot be saved: {raised.strerror or raised}"
        )
    execution.fault = execution.fault or fault
    return execution


class OwnKernels(KernelSpecManager):
    """Knows one kernel: this interpreter.

    What is registered in the user's home or on the system is not looked at.
    """

    def get_kernel_spec(self, _kernel_name: str) -> KernelSpec:
        return KernelSpec(
            argv=list(kernel_process.ARGV),
            display_name="Python 3",
            language="python",
            interrupt_mode="signal",
        )


class CasebookClient(PapermillNotebookClient):
    """Runs the cells of an Execution, and writes into it what came of them."""

    def __init__(self, nb_man: NotebookExecutionManager, execution: Execution):
        super().__init__(
            nb_man,
            timeout_func=self._limit,
            startup_timeout=START_S,
            extra_arguments=["--IPKernelApp.capture_fd_output=False"],
            kernel_name="python3",
            coalesce_streams=True,
            iopub_timeout=OUTPUTS_S,
        )
        self.run = execution
        self.deadline = time.monotonic() + execution.run_s
        self.stderr = execution.folder / STDERR
        self.stacks = execution.folder / STACKS

        self.process: Any = None
        self.stopped = ""
        self.killer: threading.Timer | None = None
        self.ooms = kernel_process.oom_kills()
        self.sockets: Path | None = None
        self.streamed = 0
        self.tail = ""
        self.tail_name = "stdout"
        self.finished = self._finished(execution.earlier) if execution.earlier else {}

    def create_kernel_manager(self) -> AsyncKernelManager:
        """A manager of this interpreter's kernel over unix sockets: no TCP port to race for,
        nothing under the home folder.
        """
        self.sockets = kernel_process.short_folder(self.run.mark)
        self.km = AsyncKernelManager(
            kernel_name="python3",
            transport="ipc",
            connection_file=str(self.sockets / "k.json"),
            kernel_spec_manager=OwnKernels(),
            shutdown_wait_time=STOP_S,
        )
        return self.km

    def start_new_kernel(self, **kwargs: object) -> None:
        """Start the kernel and keep its process: papermill forgets it, and only it knows how
        the kernel ended.
        """
        super().start_new_kernel(**kwargs)
        assert isinstance(self.km.provisioner, LocalProvisioner)
        self.process = self.km.provisioner.process

    def execute(self, **kwargs: object) -> NotebookNode:
        """Run all cells.

        Returns normally also after a fault, so that papermill writes its banner and raises.
        """
        try:
            with open(self.stderr, "ab") as words, self._signals():
                self.km = self.create_kernel_manager()
                self.stacks.parent.mkdir(exist_ok=True)
                env = {
                    **kernel_process.environment(),
                    MARK: self.run.mark,
                    kernel_process.STACKS: str(self.stacks),
                    TRIALS_HERE: str(self.run.folder / TRIALS),
                    "IPYTHONDIR": str(self.sockets),
                }
                folder = str(self.run.folder)
                super().execute(
                    env=env, cwd=folder, stdout=words, stderr=words, **kwargs
                )
        except (RuntimeError, OSError) as error:
            self._never_ready(error)
        finally:
            self._clean_up()
        return self.nb

    def execute_cell(
        self, cell: NotebookNode, cell_index: int, *args: object, **kwargs: object
    ) -> NotebookNode:
        """Run one cell.

        Whatever stops it, it raises CellExecutionError, the one thing that papermill records as
        failed.
        """
        self.run.on_cell(cell_index, len(self.nb.cells))
        if self.stopped and cell.cell_type == "code":
            why = f"interrupted by {self.stopped} before"
            raise self._lost(cell, cell_index, "interrupted", why, self.stopped)
        if cell_index in self.finished:
            cell.outputs = self.finished[cell_index]
            return cell
        try:
            return super().execute_cell(cell, cell_index, *args, **kwargs)
        except CellExecutionError as error:
            state = "failed"
            cause = _raised(error)
            if self.stopped:
                state = "interrupted"
                cause = f"interrupted by {self.stopped}"
            self.run.fault = self._fault(cell_index, state, cause, self.stopped)
            raise
        except (DeadKernelError, CellTimeoutError) as error:
            if isinstance(error, CellTimeoutError) and not self._is_dead():
                self._dump_stacks()
                state = "timed_out"
                how = self._overran(cell, error)
                name = ""
            else:
                state = "died"
                (how, name) = self._how_it_ended()
                how += "; in"
            if self.stopped and state == "died":
                state = "interrupted"
                how = f"interrupted by {self.stopped}; in"
                name = self.stopped
            lost = self._lost(cell, cell_index, state, how, name)
        except KeyboardInterrupt:
            why = "interrupted by SIGINT in"
            lost = self._lost(cell, cell_index, "interrupted", why, "SIGINT")
        except (
            Exception
        ) as error:  # whatever breaks here, the cell must not read as completed
            why = f"the runner broke ({in_words(error)}) in"
            raise self._lost(cell, cell_index, "failed", why) from error
        finally:
            self._append_tail(cell)
        raise lost

    def _finished(self, earlier: Path) -> dict[int, list[Any]]:
        """What need not be executed again of the cells that an earlier attempt finished."""
        try:
            outputs = finished_outputs(earlier, self.nb)
        except NotebookError as error:
            self.run.notes.append(
                f"begun anew: its earlier notebook cannot be read: {error}"
            )
            return {}
        kept = f"; outputs of cells kept: {len(outputs)}" if outputs else ""
        self.run.notes.append(f"went on where attempt {earlier.name} stopped{kept}")
        return outputs

    def process_message(
        self, msg: dict[str, Any], cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Take one message of the kernel; of printed text only a cell's first 2**20 and last
        2**16 characters stay.
        """
        content = msg["content"]
        if msg["msg_type"] == "clear_output":
            self.streamed = 0
            self.tail = ""
        if msg["msg_type"] == "stream":
            text = content["text"]
            room = max(0, STREAM_HEAD - self.streamed)
            self.streamed += len(text)
            self.tail = (self.tail + text[room:])[-STREAM_TAIL:]
            self.tail_name = content["name"]
            if not room:
                return None
            content["text"] = text[:room]
        return super().process_message(msg, cell, cell_index)

    def wait_for_reply(
        self, _msg_id: str, _cell: NotebookNode | None = None
    ) -> dict[str, Any]:
        """papermill asks the kernel for its language at the end; a lost kernel never answers,
        and it is known.
        """
        language = {**LANGUAGE, **self.nb.metadata.get("language_info", {})}
        return {"content": {"language_info": language}}

    def _limit(self, cell: NotebookNode) -> float:
        return max(0.001, min(self._cell_limit(cell), self.deadline - time.monotonic()))

    def _cell_limit(self, cell: NotebookNode) -> float:
        return float(cell.metadata.get("timeout", self.run.cell_s))

    def _overran(self, cell: NotebookNode, error: CellTimeoutError) -> str:
        if time.monotonic() >= self.deadline:
            return f"the run passed its limit of {self.run.run_s:.3g} s in"
        if "IOPub" in str(error):
            return f"the output did not arrive within {OUTPUTS_S} s of the end of"
        return f"passed the limit of {self._cell_limit(cell):g} s of"

    def _how_it_ended(self) -> tuple[str, str]:
        code = self.process.returncode if self.process else 0
        words = kernel_process.last_words(self.stderr)
        how, name = kernel_process.how_it_ended(
            code, self.ooms, kernel_process.oom_kills(), words
        )
        return f"the kernel was {how}" if name else f"the kernel {how}", name

    def _is_dead(self) -> bool:
        """Whether a kernel at its limit has ended; where an OOM kill was counted, it may still
        be giving its memory back.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if kernel_process.oom_kills() == self.ooms else STOP_S)
        return self.process.returncode is not None

    def _fault(self, index: int, state: str, cause: str, name: str) -> RunFault:
        words = kernel_process.last_words(self.stderr)
        if state in ("timed_out", "interrupted"):
            with open(self.stderr, "a") as file:
                file.write(STOPPING)
        return RunFault(state, cause, name, self._source_index(index), words)

    def _source_index(self, index: int) -> int:
        """A cell's place in the source notebook, into which papermill has injected one cell."""
        tags = [cell.metadata.get("tags", []) for cell in self.nb.cells[: index + 1]]
        return max(0, index - sum(INJECTED in cell_tags for cell_tags in tags))

    def _lost(
        self, cell: NotebookNode, index: int, state: str, cause: str, name: str = ""
    ) -> Exception:
        """Write the fault of a cell into the notebook, and return what papermill records it by."""
        first = next(
            (line.strip() for line in cell.source.splitlines() if line.strip()), ""
        )
        first = first if len(first) <= 60 else first[:57] + "..."
        cause += f" cell {self._source_index(index)} ({first})"
        self.run.fault = fault = self._fault(index, state, cause, name)
        title = "".join(word.capitalize() for word in state.split("_"))
        lines = [f"{title}: {cause}"]
        if fault.last_words:
            lines += [
                f"Last words of the kernel ({STDERR}):",
                *fault.last_words.splitlines(),
            ]
        frames = kernel_process.where_it_stood(self.stacks)
        if frames:
            lines += [f"Where it stood, innermost first ({STACKS}):", *frames]
        cell.outputs.append(
            new_output("error", ename=title, evalue=cause, traceback=lines)
        )
        return CellExecutionError("\n".join(lines), title, cause)

    def _never_ready(self, error: Exception) -> None:
        """The kernel did not come up: say so at the first code cell, so that none reads as
        completed.
        """
        codes = [
            index
            for index, cell in enumerate(self.nb.cells)
            if cell.cell_type == "code"
        ]
        statuses = {cell.metadata.papermill.get("status") for cell in self.nb.cells}
        if not codes or statuses != {"pending"}:
            raise error
        state = "failed"
        how = f"the kernel was not ready: {in_words(error)}"
        name = ""
        if self.process is not None and self.process.poll() is not None:
            state = "died"
            (how, name) = self._how_it_ended()
        state = "interrupted" if self.stopped else state
        cell = self.nb.cells[codes[0]]
        self._lost(cell, codes[0], state, f"{how}; before", self.stopped or name)
        self.nb_man.cell_exception(cell, cell_index=codes[0])

    def _clean_up(self) -> None:
        if self.killer:
            self.killer.cancel()
        ended, deaf = kernel_process.sweep(self.run.mark, self.run.adopted)
        self.run.left_behind = tuple(ended)
        if deaf:
            fault = self.run.fault or RunFault("stuck", "every cell completed")
            cause = f"{fault.cause}; SIGKILL does not end {', '.join(deaf)}"
            self.run.fault = replace(fault, state="stuck", cause=cause)
        if self.sockets:
            shutil.rmtree(self.sockets, ignore_errors=True)
        if self.stacks.exists() and not self.stacks.stat().st_size:
            self.stacks.unlink()
            with suppress(OSError):  # not empty: the system's own view lies there
                self.stacks.parent.rmdir()

    def _dump_stacks(self) -> None:
        """Before a kernel that hangs is stopped: its Python stacks, and where in the system
        each of its threads waits.
        """
        pid = self.process.pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
        with suppress(OSError):
            (self.run.folder / THREADS).write_text(stacks_of(pid, [pid]) + "\n")
        time.sleep(STACKS_S)

    def _append_tail(self, cell: NotebookNode) -> None:
        if self.tail:
            left_out = self.streamed - STREAM_HEAD - len(self.tail)
            note = f"\n[... {left_out:,} characters left out ...]\n" if left_out else ""
            cell.outputs.append(
                new_output("stream", name=self.tail_name, text=note + self.tail)
            )
        self.streamed = 0
        self.tail = ""

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM to us stop the run: as an exception they could land in the middle
        of saving the notebook.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        again = bool(self.stopped)
        self.stopped = self.stopped or signal.Signals(number).name
        self._signal_kernel(signal.SIGKILL if again else signal.SIGINT)
        if not again:
            self.killer = threading.Timer(STOP_S, self._signal_kernel, [signal.SIGKILL])
            self.killer.daemon = True
            self.killer.start()

    def _signal_kernel(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            signal_group(
                self.process.pid, number
            )  # a session of its own: jupyter_client.launcher


def _raised(error: CellExecutionError) -> str:
    value = next(
        (line.strip() for line in str(error.evalue).splitlines() if line.strip()), ""
    )
    return f"{error.ename}: {value[:300]}" if value else str(error.ename)
