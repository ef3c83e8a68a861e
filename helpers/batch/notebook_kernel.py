"""The kernel of one notebook: how its runner starts and stops it, and finds out how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from helpers.ground.child import signal_group
from helpers.ground.workbook_process import MARK, TRIALS_HERE

from . import kernel_process
from .resumption import TRIALS
from .stop import Stop

KERNEL = "python3"
LANGUAGE = "python"
STOP_S = 3.0
"""Time for the ``finally`` blocks of an interrupted kernel before it is killed."""
STACKS_S = 0.3
"""faulthandler writes the stacks of a kernel within this time after SIGUSR2."""
STDERR = "kernel.stderr"
STACKS = "stacks/kernel.txt"


class OwnKernels(KernelSpecManager):
    """Knows one kernel: this interpreter. Kernels registered on the system are not used."""

    def get_kernel_spec(self, _kernel_name: str) -> KernelSpec:
        """How jupyter_client starts the kernel, whatever name is asked for."""
        return KernelSpec(
            argv=list(kernel_process.ARGV),
            display_name="Python 3",
            language=LANGUAGE,
            interrupt_mode="signal",
        )


class NotebookKernel:
    """The kernel that executes a notebook in ``folder``; its stdout and stderr go to kernel.stderr
    there.

    ``mark`` identifies its processes. ``stop`` holds the signal that asked this process to stop,
    and ``ooms_before`` the OOM kills that the cgroup had counted before its start.
    """

    def __init__(self, folder: Path, mark: str):
        self.folder = folder
        self.mark = mark
        self.stderr = folder / STDERR
        self.stacks = folder / STACKS
        self.stop = Stop(self._interrupt)
        self.ooms_before = kernel_process.oom_kills()
        self._process: subprocess.Popen[bytes] | None = None
        self._killer: threading.Timer | None = None
        self._sockets: Path | None = None

    def manager(self) -> AsyncKernelManager:
        """The manager of jupyter_client that starts the kernel. Raises OSError.

        It uses unix sockets: a TCP port could be taken by another process before the kernel binds
        it.
        """
        self._sockets = kernel_process.short_folder(self.mark)
        return AsyncKernelManager(
            kernel_name=KERNEL,
            transport="ipc",
            connection_file=str(self._sockets / "k.json"),
            kernel_spec_manager=OwnKernels(),
            shutdown_wait_time=STOP_S,
        )

    def environment(self) -> dict[str, str]:
        """The kernel's environment; its mark identifies the processes that inherit it."""
        self.stacks.parent.mkdir(exist_ok=True)
        return {
            **kernel_process.environment(),
            MARK: self.mark,
            kernel_process.STACKS: str(self.stacks),
            TRIALS_HERE: str(self.folder / TRIALS),
            "IPYTHONDIR": str(self._sockets),  # nothing of the user's home
        }

    def started(self, manager: AsyncKernelManager) -> None:
        """Keep the process that the manager has started: the manager drops it when it has ended,
        and its exit status is needed then.
        """
        assert isinstance(manager.provisioner, LocalProvisioner)
        self._process = manager.provisioner.process

    def has_ended(self) -> bool:
        """Whether its process was started and has ended."""
        return self._process is not None and self._process.poll() is not None

    def has_ended_at_its_limit(self) -> bool:
        """As ``has_ended``, for a kernel that did not answer in time. If the OOM killer was at
        work, waits for its end: a killed process frees its memory first.
        """
        assert self._process is not None
        if kernel_process.oom_kills() != self.ooms_before:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        return self.has_ended()

    def how_it_ended(self) -> tuple[str, str]:
        """(how it ended, in words; the signal that killed it, or empty). Only after it has
        ended.
        """
        assert self._process is not None
        how, signal_name = kernel_process.how_it_ended(
            self._process.returncode,
            self.ooms_before,
            kernel_process.oom_kills(),
            self.last_words(),
        )
        if signal_name:
            how = f"was {how}"
        return f"the kernel {how}", signal_name

    def last_words(self) -> str:
        """The end of what it wrote to stdout and stderr."""
        return kernel_process.last_words(self.stderr)

    def write_stacks(self) -> None:
        """Write where a hung kernel stands, before it is stopped: its Python stacks (faulthandler
        writes them on SIGUSR2), and where in the system each of its threads waits.
        """
        assert self._process is not None
        pid = self._process.pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
        kernel_process.write_threads(self.folder, [pid])
        time.sleep(STACKS_S)

    def _interrupt(self) -> None:
        """Called at each signal to this process: interrupt the kernel, and kill it after STOP_S or
        at the second signal.

        No exception is raised here: it could interrupt the saving of the notebook.
        """
        if self.stop.times > 1:
            self._signal(signal.SIGKILL)
            return
        self._signal(signal.SIGINT)
        self._killer = threading.Timer(STOP_S, self._signal, [signal.SIGKILL])
        self._killer.daemon = True
        self._killer.start()

    def _signal(self, number: int) -> None:
        """Send a signal to its process group, which is its own: jupyter_client starts a kernel in a
        new session.
        """
        if self._process is not None and self._process.poll() is None:
            signal_group(self._process.pid, number)

    def clean_up(self, adopted: bool) -> tuple[list[str], list[str]]:
        """Kill the processes that are left of it: (those that were killed, those that SIGKILL does
        not end), each as "name (pid)". ``adopted`` is as of ``kernel_process.sweep``.
        """
        if self._killer:
            self._killer.cancel()
        ended, deaf = kernel_process.sweep(self.mark, adopted)
        # faulthandler's file is empty if nothing was wrong: only a file with stacks is kept.
        if self.stacks.exists() and not self.stacks.stat().st_size:
            self.stacks.unlink()
            with suppress(OSError):  # not empty: the stacks of its threads lie there
                self.stacks.parent.rmdir()
        return ended, deaf
