"""What a training step asks of the CPU allocator: a trace of real allocations and frees, made
by torch's own profiler.

Order, sizes and lifetimes are those of the real step, temporaries of C++ included. What only a
GPU has is not in it: no workspace of cuBLAS, cuDNN or MIOpen, nothing that its kernels ask for,
no streams. The profiler sees the thread that started it and the backward pass of that thread,
no other thread (measured, torch 2.13).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from .frame import replacing

LABEL = "recorded on a CPU, without any device library's workspace"
# Measured with an encoder of four layers (torch 2.13 and 2.14, 2026-11): attention on a CPU
# kept 33 to 68 % more than on a card.
PATHS = "a GPU may take other operators, attention above all, and need less or more; `rehearse` takes the GPU's"
# The profiler keeps every event in host memory until it is stopped.
STEPS = 5
FRAMES = 6
LINES = 8
"""Of an allocation: the innermost operators that it happened in, and the innermost lines of the
program's own files.
"""
JOB: dict[str, Any] = {"conf": "", "vram": None, "fraction": None, "policy": "firstfit"}
JOB |= {"foreign": 0, "env": {}, "label": LABEL, "device": "cpu"}
Allocation = tuple[int, int, int, int, list[str]]
"""Address, bytes (negative: freed), the profiler's own total after it, time in ns, and the
operators, then the program's lines, that it happened in, innermost first.
"""


class CpuProfile:
    """One profile, from ``start`` to ``stop``; ``stop`` must be called by the thread that
    started it.

    With ``steps`` it stops itself after so many optimizer steps (torch >= 2.1 tells them;
    before that, it does not).
    """

    def __init__(self, torch: Any, out: str, max_events: int, steps: int | None = None):
        self.torch = torch
        self.out = out
        self.max_events = max_events
        self.steps = steps
        self.when_stopped: Callable[[dict[str, Any]], None] = lambda result: None
        self.result: dict[str, Any] | None = None
        self._step_times_ns: list[int] = []
        self._lines = CallLines(torch)

    def start(self) -> None:
        """Raises RuntimeError where this torch was built without the profiler, or where one is
        already running.
        """
        self._before = live_tensors(self.torch)
        module = importlib.import_module("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        self._hook = register and register(self._after_step)
        self._profile = self.torch.autograd.profiler.profile(use_kineto=True, profile_memory=True)
        self._profile.__enter__()
        self._no_lines = self._lines.start()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._step_times_ns.append(time.time_ns())
        if self._full():
            self.when_stopped(self.stop())

    def _full(self) -> bool:
        return self.steps is not None and len(self._step_times_ns) >= self.steps

    def stop(self) -> dict[str, Any]:
        """End the profile and write the trace, once; ``{file, events, notes}``."""
        if self.result is not None:
            return self.result
        self.result = {"file": os.path.basename(self.out), "events": 0, "notes": []}
        if self._hook is not None:
            self._hook.remove()
        self._lines.stop()
        self._profile.__exit__(None, None, None)
        tree = self._profile.kineto_results.experimental_event_tree()
        allocations = cpu_allocations(self.torch, tree)
        header, rows = trace_rows(allocations, self._before, self._step_times_ns, self.max_events)
        if self._full():
            header["notes"].append(f"the trace ends after {self.steps} optimizer steps")
        if self._no_lines:
            header["notes"].append(self._no_lines)
        about = {"job": JOB, "torch": str(self.torch.__version__), "label": LABEL}
        with replacing(self.out) as lines:
            for row in [{**about, **header}, *rows]:
                lines.write(json.dumps(row) + "\n")
        self.result.update(events=len(rows), notes=header["notes"])
        return self.result


def live_tensors(torch: Any) -> dict[int, int]:
    """Address and bytes of every CPU storage that Python can reach now, also of gradients that
    no Python object names.
    """
    found: dict[int, int] = {}
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    while tensors:
        tensor = tensors.pop()
        try:
            if tensor.is_leaf and tensor.grad is not None:
                tensors.append(tensor.grad)
            if tensor.device.type == "cpu" and tensor.layout == torch.strided:
                whole = getattr(tensor, "untyped_storage", tensor.storage)  # torch 2.0
                storage = whole()
                size = storage.nbytes()
                if size and storage.data_ptr():
                    found[storage.data_ptr()] = size
        except (RuntimeError, NotImplementedError, AttributeError, TypeError):
            continue  # a tensor without memory of its own: meta, fake, functional, a subclass that forbids it
    return found


def cpu_allocations(torch: Any, tree: Iterable[Any]) -> list[Allocation]:
    """Every allocation event of a profiler's event tree in order of time."""
    kind = torch._C._profiler._EventType.Allocation
    found: list[tuple[tuple[int, int], Allocation]] = []
    todo = list(tree)
    while todo:
        node = todo.pop()
        todo.extend(node.children)
        if node.tag != kind or str(node.extra_fields.device).partition(":")[0] != "cpu":
            continue
        fields = node.extra_fields
        when = int(node.start_time_ns)
        outer = node.parent
        operators: list[str] = []
        lines: list[str] = []
        while outer is not None:
            name = str(outer.name if isinstance(outer.name, str) else outer.name())
            (lines if MARK.match(name) else operators).append(name)
            outer = outer.parent
        frames = operators[:FRAMES] + lines[:LINES]
        sizes = int(fields.alloc_size), int(fields.total_allocated)
        order = when, int(getattr(node, "id", 0))
        found.append((order, (int(fields.ptr or 0), *sizes, when, frames)))
    return [allocation for _, allocation in sorted(found, key=lambda one: one[0])]


def trace_rows(
    allocations: list[Allocation], before: dict[int, int], step_times_ns: list[int], max_events: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header's part and the trace's lines, in the oracle's form: every free names an
    allocation of the trace.

    What was live before is allocated first: one allocation per storage, and one lump for what
    only the profiler knew of. A free of an unknown address is left out and counted. An address
    given out twice had a free that the profiler did not see (another thread's): it is put in
    before the second, and counted.
    """
    rows: list[dict[str, Any]] = []
    live: dict[int, int] = {}
    made = 0

    def alloc(size: int, **more: Any) -> int:
        nonlocal made
        made += 1
        rows.append({"op": "alloc", "id": made, "size": size, "stream": 0, **more})
        return made

    def free(address: int, when: int) -> None:
        rows.append({"op": "free", "id": live.pop(address), "time_ns": when})

    known = allocations[0][2] - allocations[0][1] if allocations else 0
    held = sum(before.values())
    notes = [PATHS]
    for address, size in before.items():
        live[address] = alloc(size, before=True)
    if known > held:
        alloc(known - held, before=True)
        lump = f"{known - held} bytes were live before the trace that no Python tensor holds"
        notes.append(f"{lump}: one allocation stands for them")
    if before:
        notes.append(
            f"{len(before)} tensors of {held} bytes were live before the trace; each is allocated at its start, and freed "
            "only where the profiler saw that its address was free again"
        )
    start = len(rows)
    net = 0
    inferred = 0
    orphans: list[int] = []
    steps = []
    times = list(step_times_ns)
    for address, size, _, when, frames in allocations:
        if len(rows) - start >= max_events:
            cut = f"cut after {max_events} events of {len(allocations)}"
            notes.append(f"{cut}; a larger --max-events keeps more")
            break
        while times and times[0] <= when:
            steps.append(len(rows))
            times.pop(0)
        if size > 0:
            if address in live:
                inferred += address not in before
                free(address, when)
            live[address] = alloc(size, time_ns=when, frames=frames)
            net += size
        elif address in live and size < 0:
            free(address, when)
            net += size
        elif size < 0:
            orphans.append(-size)
    if orphans:
        left_out = f"{len(orphans)} frees of {sum(orphans)} bytes are left out"
        notes.append(f"{left_out}: they were allocated before the trace")
    if inferred:
        unseen = f"{inferred} frees were not seen (another thread's)"
        notes.append(f"{unseen}; each stands before the next use of its address")
    return {
        "notes": notes,
        "live_before": start,
        "steps": steps + [len(rows)] * len(times),
        "orphans": len(orphans),
        "inferred_frees": inferred,
        "net_bytes": net,
        "profiler_net_bytes": allocations[-1][2] - known if allocations else 0,
    }, rows


# Which line of the program's own files runs, as marks in torch's CPU profile: ``train.py:82 step``.
#
# The profiler knows operators, not lines. While it runs, each line of the program's own files
# is a range of its own around what that line calls, so that every allocation lies in one. Files
# of packages and of the standard library are not traced.

MARK = re.compile(r"[^/]*:\d+ ")
"""What the name of such a range looks like, and of nothing else that the profiler records."""
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^<(?!stdin|ipython)")


class CallLines:
    """From ``start`` to ``stop``, in the thread that calls them.

    It steps aside for a debugger or a coverage tool.
    """

    def __init__(self, torch: Any):
        self._range = getattr(torch._C._profiler, "_RecordFunctionFast", None)  # since torch 2.1
        places = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
        self._others = tuple(map(os.path.join, (*places, sysconfig.get_path("stdlib")), ("",) * 3))
        self._own: dict[str, bool] = {}
        self._open: list[tuple[FrameType, Any]] = []

    def start(self) -> str:
        """Empty, or why there will be no lines."""
        if self._range is None or sys.gettrace() is not None:
            why = "this torch has no such ranges" if self._range is None else "a tracer is at work"
            return f"the trace has no lines of the program, because {why}"
        os.register_at_fork(after_in_child=lambda: sys.settrace(None))
        sys.settrace(self._call)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frame.f_trace = self._call(frame, "call", None)
            frame = frame.f_back
        return ""

    def stop(self) -> None:
        """No more ranges."""
        if sys.gettrace() == self._call:
            sys.settrace(None)
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in self._own:
            other = _INSTALLED.search(file) or file.startswith(self._others)
            self._own[file] = not other
        return self._line if self._own[file] else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event in ("line", "return") and self._open and self._open[-1][0] is frame:
            self._open.pop()[1].__exit__(None, None, None)
        if event == "line" and sys.gettrace() == self._call and self._range is not None:
            code = frame.f_code
            name = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"
            entered = self._range(name)
            entered.__enter__()
            self._open.append((frame, entered))
        return self._line
