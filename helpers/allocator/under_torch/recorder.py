"""Records what a program asks of torch's allocator: starts torch's memory history in the program
itself, and keeps snapshots of it at the moments that matter.

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
"""Of a device's ring buffer, a choice: many steps of most programs, and a replay of seconds. torch
itself would keep all events, in the memory of the host.
"""
NOT_AVAILABLE = "GPU memory history: not available because "
LONGEST_NOTE = 300
REHEARSAL_POLL_S = 1.0
"""A rehearsal that is killed has the counters of so many seconds before."""


def words(error: BaseException) -> str:
    """An error's type and text, cut to the length of a note."""
    return f"{type(error).__name__}: {error}"[:LONGEST_NOTE]


class Recorder:
    """The recorder of one process.

    ``base``: the path with which the names of its files begin. ``facts``: the content of
    ``base``.json, which recorded_processes.py reads. ``whole_program``: False where it records only
    a block of the program; it then leaves signals and the end of the process alone. ``open``: the
    recording has not finished. ``history``: torch keeps events.
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
        self._lock = threading.RLock()  # of the snapshots and the files
        self._hang = QuietWatch(base, hang_after_s or 0)
        self._listener = Listener(self._on_signal)
        if whole_program:
            atexit.register(self.finish, "exit")
            self.facts["argv"] = list(getattr(sys, "orig_argv", sys.argv))
        os.register_at_fork(after_in_child=self._forked)
        self._rehearsed = "CASEBOOK_REHEARSE" in os.environ
        if self._rehearsed:  # its counters are written at each look (_write_peaks)
            self._hang.poll_s = min(REHEARSAL_POLL_S, self._hang.poll_s)
        if hang_after_s:
            self._listener.attend(self._tick)
        if whole_program:
            self._write()  # a setting that torch cannot read ends the process in the import

    def note(self, sentence: str) -> None:
        """Keep a sentence about this recording, once."""
        if sentence and sentence not in self.facts["notes"]:
            self.facts["notes"].append(sentence)

    def torch_failed(self, error: BaseException) -> None:
        """The program's own import of torch raised."""
        self.note(f"{NOT_AVAILABLE}import torch failed: {words(error)}"[:LONGEST_NOTE])
        self._write()

    def torch_imported(self, module: ModuleType) -> None:
        """The program has imported torch: prepare to record it, once."""
        if self.torch is not None:
            return
        # a module may replace itself there
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
            # Called in the program's own first use of the GPU, or now if that was before
            # (torch/cuda/__init__.py).
            torch.cuda._lazy_call(self._start_history)

    def _start_history(self) -> None:
        """Start torch's memory history at the first use of a GPU, once; where that fails, note why."""
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
            # The history is on where the call that failed came after it: snapshots are still kept.
            if self.history:
                self.note(f"out-of-memory cannot be observed: {words(error)}")
            else:
                self.note(NOT_AVAILABLE + words(error))
        if self.whole_program:
            self.note(self._listener.listen())
            self._listener.attend(self._tick)
        self._write()

    def _out_of_memory(
        self, device: int, size: int, device_total: int, device_free: int
    ) -> None:
        """torch calls this when a request has failed, before it raises; sizes are in bytes. At the
        first out-of-memory it looks at the objects of the program, while they still have what they
        keep, and keeps a snapshot. Later ones are only counted: the program may catch any number.
        """
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
        """Keep which names of the program keep the tensors of the card."""
        why_not = "who keeps the tensors could not be found out"
        self._look("keepers", lambda: keepers_of(self.torch), why_not)
        self._look("cells", cells, why_not)

    def _look(self, fact: str, look: Callable[[], object], why_not: str) -> None:
        """Keep as a fact what ``look`` finds in the program's own objects and sources. Where it
        raises, a note says why; ``why_not`` begins the note.
        """
        try:
            self.facts[fact] = look()
        except Exception as error:  # noqa: BLE001 - these are of any kind; the program must go on
            self.note(f"{why_not}: {words(error)}")

    def keep(self, reason: str, **more: int) -> None:
        """Keep a snapshot now, and ``more`` in its entry; does nothing without a history.

        Where it fails, ``why_not`` of the entry says why.
        """
        if not self.history:
            return
        with self._lock:
            entry: dict[str, Any] = {"reason": reason, "at": time.time(), **more}
            self.facts["snapshots"].append(entry)
            reasons = [snapshot["reason"] for snapshot in self.facts["snapshots"]]
            name = reason
            if reasons.count(reason) > 1:
                name += str(reasons.count(reason))
            try:
                self._keep_snapshot(entry, f"{self.base}-{name}.pickle")
                self.facts["devices"] = self._devices()
            except Exception as error:  # noqa: BLE001 - a full disk, a sick driver: the program goes on
                entry["why_not"] = words(error)
            self._write()

    def _keep_snapshot(self, entry: dict[str, Any], path: str) -> None:
        """Write a snapshot; ``entry`` gets its file, how many events it has, and whether the ring
        buffer was full, so that earlier events were cut off.
        """
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
        """A row for each device, with the allocator's counters: those over all pools (".all." in
        torch's names) and those that begin with "num_". Peaks include the ones that the program has
        reset.
        """
        cuda = self.torch.cuda
        # Older releases have no such function: the fraction is None then.
        fraction = getattr(cuda, "get_per_process_memory_fraction", lambda index: None)
        devices = []
        for index in range(cuda.device_count()):
            card = cuda.get_device_properties(index)
            stats = cuda.memory_stats(index)
            stats.update(self._peaks.highest(index, stats))
            shown = {
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
                    "stats": shown,
                }
            )
        return devices

    def finish(self, reason: str) -> None:
        """End the recording, once, and keep what there is; ``reason``: how the process ends, one of
        recorded_processes.ORDER. A forked child that has used no GPU itself has nothing to keep.
        """
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
        """A function that finishes the recording and then calls ``leave``, a function of ``os``
        that ends the program in this process. ``reason``: "os._exit" or "exec".

        An exec of a file that cannot be run raises, and the program goes on, so that the recording
        is not finished then.
        """

        @functools.wraps(leave)
        def finish_first(first: str | bytes | int, *rest: object) -> NoReturn:
            if reason != "exec" or os.access(first, os.X_OK):
                self.finish(reason)
            leave(first, *rest)

        return finish_first

    def _on_signal(self, number: int, ends: bool) -> None:
        """Keep what a signal asks for: SIGUSR1 stacks and a snapshot, SIGTERM a snapshot. ``ends``:
        the process ends after this SIGTERM, since the program does not handle it, so the recording
        ends, too.
        """
        if ends:
            self.finish("SIGTERM")
            return
        name = signal.Signals(number).name
        if name == "SIGUSR1":
            self._hang.write_stacks(name)
        self.keep(name)

    def _tick(self) -> QuietWatch:
        """Called by the recorder's thread: keep a snapshot if the program hangs now, and in a
        rehearsal the counters. Returns the watch, which may have ended.
        """
        torch = None  # without a history no GPU was used, and nothing is counted there
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
        """Keep the counters so far: a process that is killed cannot write them at its end. Does
        nothing while another thread keeps a snapshot, which writes them itself.
        """
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
        """In a forked child: begin anew, with files of its own.

        A child cannot use a GPU that its parent has used. So the child of a process with a history
        records nothing; any other may use the GPU first, and then has a history of its own.
        """
        self._listener.forget()
        self.open = self.open and not self.history
        self._is_fork = True
        self.history = False
        # a thread of the parent may have held the old one
        self._lock = threading.RLock()
        self.base = own_base(os.path.dirname(self.base))
        self._hang = QuietWatch(self.base, 0)
        forked = "forked from a recorded process; its quiet spells are not watched"
        self.facts |= {**nothing_yet(), "notes": [forked]}

    def _write(self) -> None:
        """Write the facts so far to ``base``.json."""
        self.facts["allocator_variables"]["end"] = allocator_variables.present()
        try:
            with replacing(self.base + ".json") as file:
                # Not json.dump, which reads the facts while it writes: another thread may add one.
                file.write(json.dumps(self.facts, default=str))
        except OSError:
            self.open = False  # the folder went away: there is nowhere to record to


def nothing_yet() -> dict[str, Any]:
    """The facts of a process of which nothing was kept so far."""
    return {
        "pid": os.getpid(),
        "snapshots": [],
        "ooms": 0,
        "hangs": [],
    }


def own_base(folder: str) -> str:
    """The path with which the files of this process begin. The time tells it from a later process
    of the same number.
    """
    return os.path.join(folder, f"{os.getpid()}-{time.time_ns():x}")


@functools.cache
def from_environment() -> Recorder:
    """The recorder of this process, with the options in CASEBOOK_RECORD (record.environment)."""
    options = json.loads(os.environ["CASEBOOK_RECORD"])
    return Recorder(
        own_base(options["folder"]),
        max_events=options["max_events"],
        hang_after_s=options["hang_after_s"],
    )
