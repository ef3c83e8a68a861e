"""What a program asked of torch's allocator: its memory history, started in the program itself
and kept where it matters.

The history starts when the program first uses CUDA or ROCm, never before: the recorder takes no
context by itself. A snapshot is kept at the first out-of-memory (also one that the program
catches), at the end, on SIGUSR1 and SIGTERM, and after a quiet spell, with the stacks of all
threads. Nothing here raises into the program or writes to its output.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from . import allocator_variables
from .cells import cells
from .history import start_history, write_snapshot
from .idle_checkpointing import idle_checkpointing
from .keepers import keepers_of
from .listener import Listener
from .peaks_before_reset import PeaksBeforeReset
from .private_files import replacing
from .quiet_watch import QuietWatch
from .step_sources import running_part_of_step

DEFAULT_EVENTS = 200_000
NOT_AVAILABLE = "GPU memory history: not available because "


def words(error: BaseException) -> str:
    """An error's type and text, cut to what fits a note."""
    return f"{type(error).__name__}: {error}"[:300]


class Recorder:
    """The recorder of one process.

    ``base`` is the path that its files begin with; ``facts`` is what ``base``.json holds.
    """

    def __init__(
        self,
        base: str,
        max_events: int = DEFAULT_EVENTS,
        hang_after_s: float | None = None,
        whole_program: bool = True,
    ):
        self.base = base
        self.max_events = max_events
        self.whole_program = whole_program
        self.torch: Any = None
        self.open = True
        self.history = False
        self._is_fork = False
        self._peaks = PeaksBeforeReset()
        self.facts: dict[str, Any] = {
            "python": sys.executable,
            "ended": "",
            "torch": {},
            "devices": [],
            "signals": {},
            "notes": [],
            "allocator_variables": {
                "import": allocator_variables.present(),
                "assignments": allocator_variables.ASSIGNMENTS,
            },
            **nothing_yet(),
        }
        self._lock = threading.RLock()
        self._hang = QuietWatch(base, hang_after_s or 0)
        self._listener = Listener(self._on_signal)
        if whole_program:
            atexit.register(self.finish, "exit")
            self.facts["argv"] = list(getattr(sys, "orig_argv", sys.argv))
        os.register_at_fork(after_in_child=self._forked)
        self._rehearsed = "CASEBOOK_REHEARSE" in os.environ
        if self._rehearsed:
            self._hang.poll_s = min(1.0, self._hang.poll_s)
        if hang_after_s:
            self._listener.attend(self._tick)
        if whole_program:
            self._write()  # a setting that torch cannot read ends the process while it is imported

    def note(self, sentence: str) -> None:
        """Keep a sentence about this recording, once."""
        if sentence and sentence not in self.facts["notes"]:
            self.facts["notes"].append(sentence)

    def torch_failed(self, error: BaseException) -> None:
        """The program's own import of torch raised."""
        self.note(f"{NOT_AVAILABLE}import torch failed: {words(error)}"[:300])
        self._write()

    def torch_imported(self, module: ModuleType) -> None:
        """From here on there is a torch to record."""
        if self.torch is not None:
            return
        self.torch = sys.modules.get("torch", module)
        try:
            self._attach()
        except Exception as error:  # noqa: BLE001 - private calls of torch; the program must run whatever they raise
            self.note(f"{NOT_AVAILABLE}{words(error)}")
        self._write()

    def _attach(self) -> None:
        """Note which torch this is, and wait for its first use of a GPU."""
        torch = self.torch
        version = torch.version
        about = {
            "version": str(torch.__version__),
            "cuda": version.cuda,
            "hip": getattr(version, "hip", None),
        }
        self.facts["torch"] = about
        if self.whole_program:
            self.note(self._listener.listen())
            os._exit = self._finishing(os._exit, "os._exit")
            os.execv = self._finishing(os.execv, "exec")
            os.execve = self._finishing(os.execve, "exec")
        if about["cuda"] is None and about["hip"] is None:
            self.note(NOT_AVAILABLE + "this torch is a CPU build")
        else:
            # Runs inside the program's own first use of the GPU, or at once where that has
            # been (torch/cuda/__init__.py).
            torch.cuda._lazy_call(self._start_history)

    def _start_history(self) -> None:
        if not self.open or self.history:
            return
        self.facts["allocator_variables"]["start"] = allocator_variables.present()
        try:
            why = start_history(self.torch, self.max_events)
            if why:
                self.note(NOT_AVAILABLE + why)
                return
            self.history = True
            if self.whole_program:
                self._peaks.watch(self.torch)
            self.torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        except Exception as error:  # noqa: BLE001 - by release and backend (cudaMallocAsync) anything; the program must go on
            missing = NOT_AVAILABLE
            if self.history:
                missing = "out-of-memory cannot be observed: "
            self.note(missing + words(error))
        if self.whole_program:
            self.note(self._listener.listen())
            self._listener.attend(self._tick)
        self._write()

    def _out_of_memory(
        self, device: int, size: int, device_total: int, device_free: int
    ) -> None:
        self.facts["ooms"] += 1
        if self.facts["ooms"] == 1 and self.open:
            self._look_for_keepers()
            self._look(
                "idle_checkpointing",
                lambda: idle_checkpointing(self.torch),
                "its gradient checkpointing could not be looked at",
            )
            self._look(
                "part_of_step",
                running_part_of_step,
                "which part of a step runs could not be found out",
            )
            self.keep(
                "oom", device=device, size_bytes=size, device_free_bytes=device_free
            )

    def _look_for_keepers(self) -> None:
        """Which names of the program keep the tensors of the card, while they still do."""
        why_not = "who keeps the tensors could not be found out"
        self._look("keepers", lambda: keepers_of(self.torch), why_not)
        self._look("cells", cells, why_not)

    def _look(self, fact: str, look: Callable[[], object], why_not: str) -> None:
        """Keep what a look at the program's own objects and sources says."""
        try:
            self.facts[fact] = look()
        except Exception as error:  # noqa: BLE001 - these are of any kind; the program must go on
            self.note(f"{why_not}: {words(error)}")

    def keep(self, reason: str, **more: int) -> None:
        """Keep a snapshot now; what went wrong stands in its entry.

        Without a history there is nothing to keep.
        """
        if not self.history:
            return
        with self._lock:
            entry: dict[str, Any] = {"reason": reason, "at": time.time(), **more}
            self.facts["snapshots"].append(entry)
            count = sum(
                snapshot["reason"] == reason for snapshot in self.facts["snapshots"]
            )
            number = "" if count == 1 else str(count)
            try:
                self._keep_snapshot(entry, f"{self.base}-{reason}{number}.pickle")
                self.facts["devices"] = self._devices()
            except Exception as error:  # noqa: BLE001 - a full disk, a sick driver: the program goes on
                entry["why_not"] = words(error)
            self._write()

    def _keep_snapshot(self, entry: dict[str, Any], path: str) -> None:
        snapshot = write_snapshot(self.torch, path)
        lengths = [len(trace) for trace in snapshot.get("device_traces", [])]
        cut = max(lengths, default=0) >= self.max_events
        entry.update(file=os.path.basename(path), events=sum(lengths), cut=cut)
        if cut:
            self.note(
                f"the ring buffer of {self.max_events} events was full: the start of the trace is "
                "cut; a larger --max-events keeps more"
            )

    def _devices(self) -> list[dict[str, Any]]:
        """The allocator's counters of each device."""
        cuda = self.torch.cuda
        fraction = getattr(cuda, "get_per_process_memory_fraction", lambda index: None)
        devices = []
        for index in range(cuda.device_count()):
            card = cuda.get_device_properties(index)
            stats = cuda.memory_stats(index)
            stats.update(self._peaks.highest(index, stats))
            kept = {
                name: value
                for name, value in stats.items()
                if ".all." in name or name.startswith("num_")
            }
            devices.append(
                {
                    "index": index,
                    "name": card.name,
                    "total_bytes": card.total_memory,
                    "fraction": fraction(index),
                    "stats": kept,
                }
            )
        return devices

    def finish(self, reason: str) -> None:
        """Keep what there is, once."""
        if not self.open or (self._is_fork and not self.history):
            return
        self.open = False
        self._hang.end()
        self.facts["ended"] = reason
        about = self.facts["torch"]
        if self.history and self._rehearsed and not self.facts["ooms"]:
            self._look_for_keepers()
        if self.history:
            self.keep(reason)
        elif about.get("cuda") or about.get("hip"):
            self.note(NOT_AVAILABLE + "the program never used the GPU")
        self.facts["signals"] = self._listener.owners()
        self._write()

    def _finishing(
        self, leave: Callable[..., NoReturn], reason: str
    ) -> Callable[..., NoReturn]:
        """A function that leaves this process, with the recording finished before it is called."""

        @functools.wraps(leave)
        def finish_first(first: str | bytes | int, *rest: object) -> NoReturn:
            if reason != "exec" or os.access(first, os.X_OK):
                self.finish(reason)
            leave(first, *rest)

        return finish_first

    def _on_signal(self, number: int, ends: bool) -> None:
        if ends:
            self.finish("SIGTERM")
            return
        name = signal.Signals(number).name
        if name == "SIGUSR1":
            self._hang.write_stacks(name)
        self.keep(name)

    def _tick(self) -> QuietWatch:
        torch = None
        if self.history:
            torch = self.torch
        hang = None
        try:
            if self.open and self._hang.after_s:
                hang = self._hang.newly_quiet(torch)
        except Exception as error:  # noqa: BLE001 - a sick driver, a full disk: watching ends, the program goes on
            self._hang.end()
            self.note(f"the watch for hangs ended: {words(error)}")
            return self._hang
        if self._rehearsed:
            self._write_peaks()
        if hang is not None:
            self.facts["hangs"].append(hang)
            self._write()
            self.keep("hang")
            self._hang.forget_own_writes()
        return self._hang

    def _write_peaks(self) -> None:
        """The counters so far: a process that is killed outright has no last word."""
        if self.open and self.history and self._lock.acquire(blocking=False):
            try:
                self.facts["devices"] = self._devices()
                self._write()
                self._hang.forget_own_writes()
            except Exception as error:  # noqa: BLE001 - a torch whose counters differ: the program goes on
                self.note(f"the counters could not be read: {words(error)}")
            finally:
                self._lock.release()

    def _forked(self) -> None:
        """In a forked child: a process of its own.

        A CUDA that the parent has started cannot be used there.
        """
        self._listener.forget()
        self.open = self.open and not self.history
        self._is_fork = True
        self.history = False
        self._lock = threading.RLock()
        self.base = own_base(os.path.dirname(self.base))
        self._hang = QuietWatch(self.base, 0)
        forked = "forked from a recorded process; its quiet spells are not watched"
        self.facts |= {**nothing_yet(), "notes": [forked]}

    def _write(self) -> None:
        self.facts["allocator_variables"]["end"] = allocator_variables.present()
        try:
            with replacing(self.base + ".json") as file:
                # At once: the program's own thread may add a fact meanwhile.
                file.write(json.dumps(self.facts, default=str))
        except OSError:
            self.open = False  # the folder went away: there is nowhere to record to


def nothing_yet() -> dict[str, Any]:
    """Which process this is, and that nothing of it was kept so far."""
    return {
        "pid": os.getpid(),
        "snapshots": [],
        "ooms": 0,
        "hangs": [],
    }


def own_base(folder: str) -> str:
    """What the files of this process begin with: no other process has the same, nor a later one
    of its number.
    """
    return os.path.join(folder, f"{os.getpid()}-{time.time_ns():x}")


@functools.cache
def from_environment() -> Recorder:
    """The recorder that CASEBOOK_RECORD asks for, one per process."""
    options = json.loads(os.environ["CASEBOOK_RECORD"])
    return Recorder(
        own_base(options["folder"]),
        max_events=options["max_events"],
        hang_after_s=options["hang_after_s"],
    )
