"""Runs the cells of one notebook in a kernel of its own and knows how it ended.

Only public methods of papermill 2.7 and nbclient 0.11 are overridden; what each works around is in its docstring.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat.v4 import new_output
from papermill.clientwrap import PapermillNotebookClient

from . import kernel
from .notebook import INJECTED

START_S, STOP_S, OUTPUTS_S = 60, 3.0, 60
STREAM_HEAD, STREAM_TAIL = 1 << 20, 1 << 16
STDERR, STACKS, THREADS = "kernel.stderr", "stacks/kernel.txt", "stacks/threads.txt"


class RunFault(Exception):
    """A notebook that did not come to its end.

    ``state`` is failed (its own exception), died, timed_out, interrupted or stuck (not even SIGKILL ends it); ``cause`` is
    one line; ``signal`` names what killed the kernel or interrupted us; ``cell`` is the index in the source notebook, None
    outside of all cells; ``last_words`` is what the kernel last wrote to fd 1 and 2; ``left_behind`` names the processes that
    had to be ended.
    """

    def __init__(
        self,
        state: str,
        cause: str,
        signal: str = "",
        cell: int | None = None,
        last_words: str = "",
    ):
        super().__init__(cause)
        self.state, self.cause, self.signal, self.cell, self.last_words = (
            state,
            cause,
            signal,
            cell,
            last_words,
        )
        self.left_behind: tuple[str, ...] = ()


class OwnKernels(KernelSpecManager):
    """Knows one kernel: this interpreter. What is registered in the user's home or on the system is not looked at."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(
            argv=list(kernel.ARGV),
            display_name="Python 3",
            language="python",
            interrupt_mode="signal",
        )


class CasebookClient(PapermillNotebookClient):
    """Runs the cells. ``fault`` says why it stopped early; ``left_behind`` which processes of the kernel had to be ended."""

    def __init__(
        self,
        nb_man: Any,
        folder: Path,
        cell_s: float,
        run_s: float,
        mark: str,
        adopted: bool,
        on_cell: Callable[[int, int], None],
        **options: Any,
    ):
        super().__init__(
            nb_man,
            timeout_func=self._limit,
            startup_timeout=START_S,
            iopub_timeout=OUTPUTS_S,
            coalesce_streams=True,
            kernel_name="python3",
            extra_arguments=["--IPKernelApp.capture_fd_output=False"],
            **options,
        )
        self.folder, self.cell_s, self.run_s, self.mark, self.adopted = (
            folder,
            cell_s,
            run_s,
            mark,
            adopted,
        )
        self.on_cell = on_cell
        self.deadline = time.monotonic() + run_s
        self.fault: RunFault | None = None
        self.left_behind: tuple[str, ...] = ()
        self.process: Any = None
        self.stopped = ""
        self.killer: threading.Timer | None = None
        self.ooms = kernel.oom_kills()
        self.sockets: Path | None = None
        self.streamed, self.tail, self.tail_name = 0, "", "stdout"

    def create_kernel_manager(self) -> AsyncKernelManager:
        """A manager of this interpreter's kernel over unix sockets: no TCP port to race for, nothing under the home folder."""
        self.sockets = kernel.short_folder(self.mark)
        self.km = AsyncKernelManager(
            kernel_name="python3",
            transport="ipc",
            connection_file=str(self.sockets / "k.json"),
            kernel_spec_manager=OwnKernels(),
            shutdown_wait_time=STOP_S,
        )
        return self.km

    def start_new_kernel(self, **kwargs: Any) -> None:
        """Start the kernel and keep its process: papermill forgets it, and only it knows how the kernel ended."""
        super().start_new_kernel(**kwargs)
        assert isinstance(self.km.provisioner, LocalProvisioner)
        self.process = self.km.provisioner.process

    def execute(self, **kwargs: Any) -> Any:
        """Run all cells. Returns normally also after a fault, so that papermill writes its banner and raises."""
        try:
            with open(self.folder / STDERR, "ab") as words, self._signals():
                self.km = self.create_kernel_manager()
                (self.folder / STACKS).parent.mkdir(exist_ok=True)
                environment = {
                    **kernel.environment(),
                    kernel.MARK: self.mark,
                    "IPYTHONDIR": str(self.sockets),
                    kernel.STACKS: str(self.folder / STACKS),
                }
                super().execute(
                    env=environment, cwd=str(self.folder), stdout=words, stderr=words, **kwargs
                )
        except (RuntimeError, OSError) as error:
            self._never_ready(error)
        finally:
            self._clean_up()
        return self.nb

    def execute_cell(self, cell: Any, cell_index: int, *args: Any, **kwargs: Any) -> Any:
        """Run one cell. Whatever stops it, it raises CellExecutionError, the one thing that papermill records as failed."""
        self.on_cell(cell_index, len(self.nb.cells))
        if self.stopped and cell.cell_type == "code":
            raise self._lost(
                cell,
                cell_index,
                "interrupted",
                f"interrupted by {self.stopped} before",
                self.stopped,
            )
        try:
            return super().execute_cell(cell, cell_index, *args, **kwargs)
        except CellExecutionError as error:
            ended = (
                ("interrupted", f"interrupted by {self.stopped}")
                if self.stopped
                else ("failed", _said(error))
            )
            self.fault = self._fault(cell_index, *ended, self.stopped)
            raise
        except DeadKernelError:
            state, (how, name) = "died", self._how_it_ended()
            if self.stopped:
                state, how, name = "interrupted", f"interrupted by {self.stopped}", self.stopped
            raise self._lost(cell, cell_index, state, f"{how}; in", name) from None
        except CellTimeoutError as error:
            self._dump_stacks()
            raise self._lost(
                cell, cell_index, "timed_out", self._overran(cell, error), ""
            ) from None
        except KeyboardInterrupt:
            raise self._lost(
                cell, cell_index, "interrupted", "interrupted by SIGINT in", "SIGINT"
            ) from None
        except Exception as error:  # whatever breaks here, the cell must not read as completed
            raise self._lost(
                cell, cell_index, "failed", f"the runner broke ({named(error)}) in", ""
            ) from error
        finally:
            self._append_tail(cell)

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        """Take one message of the kernel; of printed text only a cell's first 2**20 and last 2**16 characters stay."""
        content = msg["content"]
        if msg["msg_type"] == "clear_output":
            self.streamed, self.tail = 0, ""
        if msg["msg_type"] == "stream":
            text, room = content["text"], max(0, STREAM_HEAD - self.streamed)
            self.streamed += len(text)
            self.tail, self.tail_name = (self.tail + text[room:])[-STREAM_TAIL:], content["name"]
            if not room:
                return None
            content["text"] = text[:room]
        return super().process_message(msg, cell, cell_index)

    def wait_for_reply(self, msg_id: str, cell: Any = None) -> dict[str, Any]:
        """papermill asks the kernel for its language at the end; a lost kernel never answers, and it is known."""
        language = {
            "name": "python",
            "version": sys.version.split()[0],
            "mimetype": "text/x-python",
            "file_extension": ".py",
        }
        return {
            "content": {"language_info": {**language, **self.nb.metadata.get("language_info", {})}}
        }

    def _limit(self, cell: Any) -> float:
        return max(0.001, min(self._cell_limit(cell), self.deadline - time.monotonic()))

    def _cell_limit(self, cell: Any) -> float:
        return float(cell.metadata.get("timeout", self.cell_s))

    def _overran(self, cell: Any, error: CellTimeoutError) -> str:
        if time.monotonic() >= self.deadline:
            return f"the run passed its limit of {self.run_s:.3g} s in"
        if "IOPub" in str(error):
            return f"the output did not arrive within {OUTPUTS_S} s of the end of"
        return f"passed the limit of {self._cell_limit(cell):g} s of"

    def _how_it_ended(self) -> tuple[str, str]:
        how, name = kernel.how_it_ended(
            self.process.returncode if self.process else 0,
            self.ooms,
            kernel.oom_kills(),
            kernel.last_words(self.folder / STDERR),
        )
        return f"the kernel was {how}" if name else f"the kernel {how}", name

    def _fault(self, index: int, state: str, cause: str, name: str) -> RunFault:
        words = kernel.last_words(self.folder / STDERR)
        if state in ("timed_out", "interrupted"):
            with open(self.folder / STDERR, "a") as file:
                file.write("--- what follows was written while the kernel was being stopped ---\n")
        return RunFault(state, cause, name, self._source_index(index), words)

    def _source_index(self, index: int) -> int:
        """A cell's place in the source notebook, into which papermill has injected one cell."""
        return max(
            0,
            index
            - sum(INJECTED in cell.metadata.get("tags", []) for cell in self.nb.cells[: index + 1]),
        )

    def _lost(self, cell: Any, index: int, state: str, cause: str, name: str) -> CellExecutionError:
        first = next((line.strip() for line in cell.source.splitlines() if line.strip()), "")
        cause += f" cell {self._source_index(index)} ({first if len(first) <= 60 else first[:57] + '...'})"
        self.fault = self._fault(index, state, cause, name)
        title = "".join(word.capitalize() for word in state.split("_"))
        lines = [f"{title}: {cause}"]
        if self.fault.last_words:
            lines += [f"Last words of the kernel ({STDERR}):", *self.fault.last_words.splitlines()]
        if stood := kernel.where_it_stood(self.folder / STACKS):
            lines += [f"Where it stood, innermost first ({STACKS}):", *stood]
        cell.outputs.append(new_output("error", ename=title, evalue=cause, traceback=lines))
        return CellExecutionError("\n".join(lines), title, cause)

    def _never_ready(self, error: Exception) -> None:
        """The kernel did not come up: say so at the first code cell, so that none reads as completed."""
        index = next((i for i, c in enumerate(self.nb.cells) if c.cell_type == "code"), None)
        if index is None or any(
            c.metadata.papermill.get("status") != "pending" for c in self.nb.cells
        ):
            raise error
        dead = self.process is not None and self.process.poll() is not None
        how, name = (
            self._how_it_ended() if dead else (f"the kernel was not ready: {named(error)}", "")
        )
        state = "interrupted" if self.stopped else "died" if dead else "failed"
        self._lost(self.nb.cells[index], index, state, f"{how}; before", self.stopped or name)
        self.nb_man.cell_exception(self.nb.cells[index], cell_index=index)

    def _clean_up(self) -> None:
        if self.killer:
            self.killer.cancel()
        ended, there = kernel.sweep(self.mark, self.adopted)
        self.left_behind = tuple(ended)
        if there:
            was = self.fault or RunFault("stuck", "every cell completed")
            self.fault = RunFault(
                "stuck",
                f"{was.cause}; SIGKILL does not end {', '.join(there)}",
                was.signal,
                was.cell,
                was.last_words,
            )
        if self.sockets:
            shutil.rmtree(self.sockets, ignore_errors=True)
        stacks = self.folder / STACKS
        if stacks.exists() and not stacks.stat().st_size:
            stacks.unlink()
            with suppress(OSError):  # not empty: the system's own view lies there
                stacks.parent.rmdir()

    def _dump_stacks(self) -> None:
        """Before a kernel that hangs is stopped: its Python stacks, and where in the system each of its threads waits."""
        from helpers.child import stacks_of

        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR2)
        with suppress(OSError):
            (self.folder / THREADS).write_text(
                stacks_of(self.process.pid, [self.process.pid]) + "\n"
            )
        time.sleep(0.3)

    def _append_tail(self, cell: Any) -> None:
        if self.tail:
            left_out = self.streamed - STREAM_HEAD - len(self.tail)
            note = f"\n[... {left_out:,} characters left out ...]\n" if left_out else ""
            cell.outputs.append(new_output("stream", name=self.tail_name, text=note + self.tail))
        self.streamed, self.tail = 0, ""

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM to us stop the run: as an exception they could land in the middle of saving the notebook."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: Any) -> None:
        again, self.stopped = bool(self.stopped), self.stopped or signal.Signals(number).name
        self._signal_kernel(signal.SIGKILL if again else signal.SIGINT)
        if not again:
            self.killer = threading.Timer(STOP_S, self._signal_kernel, [signal.SIGKILL])
            self.killer.daemon = True
            self.killer.start()

    def _signal_kernel(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(
                    self.process.pid, number
                )  # a session of its own: see jupyter_client.launcher


def _said(error: CellExecutionError) -> str:
    value = next((line.strip() for line in str(error.evalue).splitlines() if line.strip()), "")
    return f"{error.ename}: {value[:300]}" if value else str(error.ename)


def named(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
