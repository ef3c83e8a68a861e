"""The kernel of one notebook, as its runner sees it: how it is started, stopped, and how it ended."""

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
STACKS_S = 0.3
STDERR = "kernel.stderr"
STACKS = "stacks/kernel.txt"


class OwnKernels(KernelSpecManager):
    """Knows one kernel: this interpreter.

    What is registered in the user's home or on the system is not looked at.
    """

    def get_kernel_spec(self, _kernel_name: str) -> KernelSpec:
        return KernelSpec(
            argv=list(kernel_process.ARGV),
            display_name="Python 3",
            language=LANGUAGE,
            interrupt_mode="signal",
        )


class NotebookKernel:
    """The kernel that executes a notebook in ``folder``, where its fd 1 and 2 go to kernel.stderr.

    ``stop`` holds the signal by which this process was asked to end it.
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
        """A manager that reaches the kernel over unix sockets: there is no TCP port that another
        process could take first. Raises OSError.
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
        """The kernel's environment, by which its processes are recognised."""
        self.stacks.parent.mkdir(exist_ok=True)
        return {
            **kernel_process.environment(),
            MARK: self.mark,
            kernel_process.STACKS: str(self.stacks),
            TRIALS_HERE: str(self.folder / TRIALS),
            "IPYTHONDIR": str(self._sockets),  # nothing of the user's home
        }

    def started(self, manager: AsyncKernelManager) -> None:
        """Keep the process that a manager has started: the manager forgets it when it has ended,
        and only the process says how it ended.
        """
        assert isinstance(manager.provisioner, LocalProvisioner)
        self._process = manager.provisioner.process

    def has_ended(self) -> bool:
        """Whether its process was started and has ended."""
        return self._process is not None and self._process.poll() is not None

    def has_ended_at_its_limit(self) -> bool:
        """As ``has_ended``; where an OOM kill was counted, it may still be giving its memory back,
        and is waited for.
        """
        assert self._process is not None
        if kernel_process.oom_kills() != self.ooms_before:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        return self.has_ended()

    def how_it_ended(self) -> tuple[str, str]:
        """(how it ended in words, the signal that killed it or nothing); only after it has ended."""
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
        """The end of what it wrote to fd 1 and 2."""
        return kernel_process.last_words(self.stderr)

    def write_stacks(self) -> None:
        """Write where a kernel hangs before it is stopped: its Python stacks, and where in the
        system each of its threads waits.
        """
        assert self._process is not None
        pid = self._process.pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
        kernel_process.write_threads(self.folder, [pid])
        time.sleep(STACKS_S)

    def _interrupt(self) -> None:
        """Interrupt the kernel; kill it after STOP_S, or at the second signal to this process.

        An exception instead could arrive in the middle of saving the notebook.
        """
        if self.stop.times > 1:
            self._signal(signal.SIGKILL)
            return
        self._signal(signal.SIGINT)
        self._killer = threading.Timer(STOP_S, self._signal, [signal.SIGKILL])
        self._killer.daemon = True
        self._killer.start()

    def _signal(self, number: int) -> None:
        """Signal its process group: jupyter_client starts a kernel in a session of its own."""
        if self._process is not None and self._process.poll() is None:
            signal_group(self._process.pid, number)

    def clean_up(self, adopted: bool) -> tuple[list[str], list[str]]:
        """End what it left behind: (processes that were ended, those that SIGKILL does not end)."""
        if self._killer:
            self._killer.cancel()
        ended, deaf = kernel_process.sweep(self.mark, adopted)
        if self.stacks.exists() and not self.stacks.stat().st_size:
            self.stacks.unlink()
            with suppress(OSError):  # not empty: the stacks of its threads lie there
                self.stacks.parent.rmdir()
        return ended, deaf
