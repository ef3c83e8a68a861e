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
import importlib
import inspect
import json
import os
import pickle
import signal
import sys
import threading
import time
from typing import Any

from .cpu_profile import STEPS, CpuProfile
from .frame import replacing
from .listener import HangWatch, Listener

DEFAULT_EVENTS = 200_000
NOT_AVAILABLE = "GPU memory history: not available because "
NO_CPU_TRACE = "CPU trace: not available because "


def start_history(torch: Any, events: int, stacks: bool = True) -> str:
    """Turn torch's memory history on; empty, or why this torch has none.

    The arguments changed in torch 2.1.
    """
    record = getattr(torch.cuda.memory, "_record_memory_history", None)
    names = inspect.signature(record).parameters if record else {}
    if record and "trace_alloc_max_entries" in names:  # 2.0
        record(True, trace_alloc_max_entries=events, trace_alloc_record_context=stacks)
    elif record and ("args" in names or "max_entries" in names):  # since 2.1
        how: Any = {"context": "all", "stacks": "python"} if stacks else {"context": None}
        record(enabled="all", max_entries=events, **how)
    else:
        return f"torch {torch.__version__} records no events; 2.0 is the first that does"
    return ""


def write_snapshot(torch: Any, path: str) -> dict[str, Any]:
    """torch's memory snapshot, written to ``path`` as a pickle of plain values; the snapshot.

    Raises OSError, RuntimeError.
    """
    snapshot = torch.cuda.memory._snapshot()
    # Protocol 5, the default of Python 3.14, is one that MemoryViz does not read (pytorch issue
    # 183842).
    with replacing(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    return snapshot


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
        cpu_profile: bool = False,
        whole_program: bool = True,
    ):
        self.base = base
        self.max_events = max_events
        self.whole_program = whole_program
        self.torch: Any = None
        self.open = True
        self.history = False
        self._is_fork = False
        self.facts: dict[str, Any] = {"python": sys.executable, "ended": "", "torch": {}}
        self.facts |= {"devices": [], "signals": {}, "notes": [], **nothing_yet()}
        self._cpu_profile = cpu_profile
        self._profile: CpuProfile | None = None
        self._lock = threading.RLock()
        self._hang = HangWatch(base, hang_after_s or 0)
        self._listener = Listener(self._on_signal, self._stop_profile)
        if whole_program:
            atexit.register(self.finish, "exit")
            self.facts["argv"] = list(getattr(sys, "orig_argv", sys.argv))
        os.register_at_fork(after_in_child=self._forked)
        self._peaks = "CASEBOOK_REHEARSE" in os.environ
        if self._peaks:
            self._hang.poll_s = min(1.0, self._hang.poll_s)
        if hang_after_s:
            self._listener.attend(self._tick)

    def note(self, sentence: str) -> None:
        if sentence and sentence not in self.facts["notes"]:
            self.facts["notes"].append(sentence)

    def torch_failed(self, error: BaseException) -> None:
        """The program's own import of torch raised."""
        self.note(f"{NOT_AVAILABLE}import torch failed: {words(error)}"[:300])
        self._write()

    def torch_imported(self, module: Any) -> None:
        """From here on there is a torch to record."""
        if self.torch is not None:
            return
        self.torch = torch = sys.modules.get("torch", module)
        try:
            facts = {"version": str(torch.__version__), "cuda": torch.version.cuda}
            facts |= {"hip": getattr(torch.version, "hip", None)}
            self.facts["torch"] = {**facts, "git": getattr(torch.version, "git_version", None)}
            if self.whole_program:
                self.note(self._listener.listen())
                os._exit = self._kept(os._exit, "os._exit")
                os.execv, os.execve = (self._kept(one, "exec") for one in (os.execv, os.execve))
            if facts["cuda"] is None and facts["hip"] is None:
                self.note(NOT_AVAILABLE + "this torch is a CPU build")
            else:
                # Runs inside the program's own first use of the GPU, or at once where that has
                # been (torch/cuda/__init__.py).
                torch.cuda._lazy_call(self._start_history)
            if self._cpu_profile:
                self._start_profile()
        except Exception as error:  # noqa: BLE001 - private calls of torch; the program must run whatever they raise
            self.note(f"{NOT_AVAILABLE}{words(error)}")
        self._write()

    # The GPU: torch's memory history.

    def _start_history(self) -> None:
        if not self.open or self.history:
            return
        try:
            why = start_history(self.torch, self.max_events)
            if why:
                self.note(NOT_AVAILABLE + why)
                return
            self.history = True
            self.torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        except Exception as error:  # noqa: BLE001 - by release and backend (cudaMallocAsync) anything; the program must go on
            missing = "out-of-memory cannot be observed: " if self.history else NOT_AVAILABLE
            self.note(missing + words(error))
        if self.whole_program:
            self.note(self._listener.listen())
            self._listener.attend(self._tick)
        self._write()

    def _out_of_memory(self, device: int, size: int, device_total: int, device_free: int) -> None:
        self.facts["ooms"] += 1
        if self.facts["ooms"] == 1 and self.open:
            self.keep("oom", device=device, size_bytes=size, device_free_bytes=device_free)

    def keep(self, reason: str, **more: Any) -> None:
        """Keep a snapshot now; what went wrong stands in its entry.

        Without a history there is nothing to keep.
        """
        if not self.history:
            return
        with self._lock:
            entry: dict[str, Any] = {"reason": reason, "at": time.time(), **more}
            self.facts["snapshots"].append(entry)
            number = sum(one["reason"] == reason for one in self.facts["snapshots"])
            path = f"{self.base}-{reason}{'' if number == 1 else number}.pickle"
            try:
                snapshot = write_snapshot(self.torch, path)
                lengths = [len(trace) for trace in snapshot.get("device_traces", [])]
                cut = max(lengths, default=0) >= self.max_events
                entry.update(file=os.path.basename(path), events=sum(lengths), cut=cut)
                if cut:
                    self.note(
                        f"the ring buffer of {self.max_events} events was full: the start of the trace is cut; a larger "
                        "--max-events keeps more"
                    )
                self.facts["devices"] = self._devices()
            except Exception as error:  # noqa: BLE001 - a full disk, a sick driver: the program goes on
                entry["why_not"] = words(error)
            self._write()

    def _devices(self) -> list[dict[str, Any]]:
        """The allocator's counters of each device; under which settings it works is kept beside
        them.
        """
        cuda = self.torch.cuda
        devices = []
        fraction = getattr(cuda, "get_per_process_memory_fraction", lambda index: None)
        for index in range(cuda.device_count()):
            card = cuda.get_device_properties(index)
            stats = cuda.memory_stats(index)
            device = {"index": index, "name": card.name, "total_bytes": card.total_memory}
            kept = [name for name in stats if ".all." in name or name.startswith("num_")]
            device |= {"fraction": fraction(index), "stats": {name: stats[name] for name in kept}}
            devices.append(device)
        settings = getattr(self.torch._C, "_accelerator_getAllocatorSettings", lambda: None)()
        backend = getattr(cuda, "get_allocator_backend", lambda: None)()
        endings = ("_CONF", "_CACHING")
        names = [n for n in os.environ if n.startswith("PYTORCH_")]
        given = {name: os.environ[name] for name in names if name.endswith(endings)}
        self.facts["allocator"] = {"backend": backend, "settings": settings, "environment": given}
        return devices

    # The CPU: the profiler.

    def _start_profile(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.note(NO_CPU_TRACE + "torch was imported outside of the main thread")
            return
        steps = STEPS if self.whole_program else None
        self._profile = CpuProfile(self.torch, self.base + ".jsonl", self.max_events, steps)
        self._profile.when_stopped = self._profiled
        self._profile.start()

    def _profiled(self, result: dict[str, Any]) -> None:
        self.facts["cpu_trace"] = result
        self._write()

    def _stop_profile(self) -> None:
        if self._profile is not None and self._profile.result is None:
            try:
                self._profiled(self._profile.stop())
            except Exception as error:  # noqa: BLE001 - the program may have stopped the one profiler that there is
                self.note(NO_CPU_TRACE + words(error))

    # The end, and signals.

    def finish(self, how: str) -> None:
        """Keep what there is, once."""
        if not self.open or (self._is_fork and not self.history):
            return
        self.open = False
        self._hang.end()
        self.facts["ended"] = how
        self._stop_profile()
        if self.history:
            self.keep(how)
        elif self.facts["torch"].get("cuda") or self.facts["torch"].get("hip"):
            self.note(NOT_AVAILABLE + "the program never used the GPU")
        self.facts["signals"] = self._listener.ours()
        self._write()

    def _kept(self, leave: Any, how: str) -> Any:
        @functools.wraps(leave)
        def kept(first: Any, *rest: Any) -> None:
            if how != "exec" or os.access(first, os.X_OK):
                self.finish(how)
            leave(first, *rest)

        return kept

    def _on_signal(self, number: int, ends: bool) -> None:
        if ends:
            self.finish("SIGTERM")
            return
        name = signal.Signals(number).name
        if name == "SIGUSR1":
            self._hang.stacks(name)
        self.keep(name)

    def _tick(self) -> HangWatch:
        try:
            watched = self.open and self._hang.after_s
            hang = self._hang.tick(self.torch if self.history else None) if watched else None
        except Exception as error:  # noqa: BLE001 - a sick driver, a full disk: watching ends, the program goes on
            self._hang.end()
            self.note(f"the watch for hangs ended: {words(error)}")
            return self._hang
        if self._peaks:
            self._write_peaks()
        if hang is not None:
            self.facts["hangs"].append(hang)
            self._write()
            self.keep("hang")
            self._hang.forget_own_writes()
        return self._hang

    def _write_peaks(self) -> None:
        """The counters so far: who is killed outright has no last word."""
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
        self._profile = None
        self._lock = threading.RLock()
        self.base = own_base(os.path.dirname(self.base))
        self._hang = HangWatch(self.base, 0)
        forked = "forked from a recorded process; quiet spells of it are not watched"
        self.facts |= {**nothing_yet(), "notes": [forked]}

    def _write(self) -> None:
        try:
            with replacing(self.base + ".json") as file:
                json.dump(self.facts, file, default=str)
        except OSError:
            self.open = False  # the folder went away: there is nowhere to record to


def nothing_yet() -> dict[str, Any]:
    """Which process this is, and that nothing of it was kept so far."""
    about: dict[str, Any] = {"pid": os.getpid(), "parent_pid": os.getppid()}
    return {**about, "snapshots": [], "ooms": 0, "hangs": [], "cpu_trace": None}


def own_base(folder: str) -> str:
    """What the files of this process begin with: no other process, nor a later one of its
    number, has the same.
    """
    return os.path.join(folder, f"{os.getpid()}-{time.time_ns():x}")


@functools.cache
def from_environment() -> Recorder:
    """The recorder that CASEBOOK_RECORD asks for, one per process."""
    asked = json.loads(os.environ["CASEBOOK_RECORD"])
    return Recorder(own_base(asked.pop("folder")), **asked)


class Recording:
    """``with recording(out) as r``: what the block asked for.

    After it, ``r.trace`` is the file (None: there is none, and ``r.notes`` say why), and
    ``r.facts`` everything else.

    On a GPU it is a snapshot (.pickle) with the history of the block, at the first
    out-of-memory where there was one; on the CPU the profiler's trace (.jsonl) of this thread.
    ``out`` gets that ending whatever it has.
    """

    def __init__(self, out: str | os.PathLike[str], max_events: int, hang_after_s: float | None):
        base = os.path.splitext(os.path.abspath(os.fspath(out)))[0]
        self._torch = torch = importlib.import_module("torch")
        cpu = not torch.cuda.is_available()
        self._recorder = Recorder(base, max_events, hang_after_s, cpu, whole_program=False)
        self.facts = self._recorder.facts
        self.trace: str | None = None

    @property
    def notes(self) -> list[str]:
        return list(self.facts["notes"]) + list((self.facts["cpu_trace"] or {}).get("notes", []))

    def __enter__(self) -> Recording:
        self._recorder.torch_imported(self._torch)
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.finish("exit")
        # Where the whole program is being recorded, its history goes on.
        if self._recorder.history and "CASEBOOK_RECORD" not in os.environ:
            self._torch.cuda.memory._record_memory_history(enabled=None)
        snapshots = [one for one in reversed(self.facts["snapshots"]) if "file" in one]
        kept = {one["reason"]: one["file"] for one in snapshots}
        name = kept.get("oom") or kept.get("exit") or (self.facts["cpu_trace"] or {}).get("file")
        self.trace = os.path.join(os.path.dirname(self._recorder.base), name) if name else None
