"""What a training step asks of the CPU allocator: a trace of real allocations and frees, made by torch's own profiler.

Order, sizes and lifetimes are those of the real step, temporaries of C++ included. It is "structure true, workspace blind":
no cuBLAS, cuDNN or MIOpen workspace, no kernel of a GPU, no streams. The profiler sees the thread that started it and the
backward pass of that thread, no other thread (measured, torch 2.13).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

LABEL = "structure true, workspace blind"
# Later steps repeat the first ones, and the profiler keeps every event in host memory until it is stopped.
STEPS = 5
FRAMES = 6


class CpuProfile:
    """One profile, from ``start`` to ``stop``; ``stop`` must be called by the thread that started it.

    With ``steps`` it stops itself after so many optimizer steps (torch >= 2.1 tells them; before that, it does not).
    """

    def __init__(
        self,
        torch: Any,
        out: str,
        max_events: int,
        steps: int | None = None,
        when_stopped: Callable[[dict[str, Any]], None] = lambda result: None,
    ):
        self.torch, self.out, self.max_events, self.steps, self.when_stopped = (
            torch,
            out,
            max_events,
            steps,
            when_stopped,
        )
        self.result: dict[str, Any] | None = None
        self._profile: Any = None
        self._step_times_ns: list[int] = []
        self._hook: Any = None

    def start(self) -> None:
        """Raises RuntimeError where this torch was built without the profiler, or where one is already running."""
        self._before = live_tensors(self.torch)
        self._hook = self._count_steps()
        self._profile = self.torch.autograd.profiler.profile(use_kineto=True, profile_memory=True)
        self._profile.__enter__()

    def _count_steps(self) -> Any:
        register = getattr(
            importlib.import_module("torch.optim.optimizer"),
            "register_optimizer_step_post_hook",
            None,
        )
        if register is None:
            return None

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._step_times_ns.append(time.time_ns())
            if self.steps is not None and len(self._step_times_ns) >= self.steps:
                self.when_stopped(self.stop())

        return register(after_step)

    def stop(self) -> dict[str, Any]:
        """End the profile and write the trace, once; ``{file, events, notes}``."""
        if self.result is not None:
            return self.result
        self.result = {"file": os.path.basename(self.out), "events": 0, "notes": []}
        if self._hook is not None:
            self._hook.remove()
        self._profile.__exit__(None, None, None)
        allocations = cpu_allocations(
            self.torch, self._profile.kineto_results.experimental_event_tree()
        )
        header, rows = trace_rows(allocations, self._before, self._step_times_ns, self.max_events)
        job: dict[str, Any] = {
            "conf": "",
            "vram": None,
            "fraction": None,
            "policy": "firstfit",
            "foreign": 0,
            "env": {},
            "label": LABEL,
            "device": "cpu",
        }
        header = {"job": job, "torch": str(self.torch.__version__), "label": LABEL, **header}
        if self.steps is not None and len(self._step_times_ns) >= self.steps:
            header["notes"].append(
                f"the trace ends after {self.steps} optimizer steps; later ones repeat them"
            )
        with open(self.out + ".part", "w", encoding="utf-8") as lines:
            for row in [header, *rows]:
                lines.write(json.dumps(row) + "\n")
        os.replace(self.out + ".part", self.out)
        self.result.update(events=len(rows), notes=header["notes"])
        return self.result


def live_tensors(torch: Any) -> dict[int, int]:
    """Address and bytes of every CPU storage that Python can reach now, also of gradients that no Python object names."""
    found: dict[int, int] = {}
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    while tensors:
        tensor = tensors.pop()
        try:
            if tensor.is_leaf and tensor.grad is not None:
                tensors.append(tensor.grad)
            if tensor.device.type == "cpu" and tensor.layout == torch.strided:
                storage = (
                    tensor.untyped_storage()
                    if hasattr(tensor, "untyped_storage")
                    else tensor.storage()
                )
                size = storage.nbytes()
                if size and storage.data_ptr():
                    found[storage.data_ptr()] = size
        except (RuntimeError, NotImplementedError, AttributeError, TypeError):
            continue  # a tensor without memory of its own: meta, fake, functional, a subclass that forbids it
    return found


def cpu_allocations(torch: Any, tree: Iterable[Any]) -> list[tuple[int, int, int, int, list[str]]]:
    """Every allocation event of a profiler's event tree in order of time: address, bytes (negative: freed), the profiler's own
    total after it, time in ns, and the operators that it happened in, innermost first."""
    allocation = torch._C._profiler._EventType.Allocation
    found, todo = [], list(tree)
    while todo:
        node = todo.pop()
        todo.extend(node.children)
        if node.tag == allocation and str(node.extra_fields.device).partition(":")[0] == "cpu":
            fields = node.extra_fields
            frames: list[str] = []
            outer = node.parent
            while outer is not None and len(frames) < FRAMES:
                frames.append(str(outer.name if isinstance(outer.name, str) else outer.name()))
                outer = outer.parent
            found.append(
                (
                    int(fields.ptr or 0),
                    int(fields.alloc_size),
                    int(fields.total_allocated),
                    int(node.start_time_ns),
                    int(node.id) if hasattr(node, "id") else 0,
                    frames,
                )
            )
    found.sort(key=lambda one: (one[3], one[4]))
    return [(address, size, total, when, frames) for address, size, total, when, _, frames in found]


def trace_rows(
    allocations: list[tuple[int, int, int, int, list[str]]],
    before: dict[int, int],
    step_times_ns: list[int],
    max_events: int,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header's part and the trace's lines, in the oracle's form: every free names an allocation of the trace.

    What was live before is allocated first: one allocation per storage, and one lump for what only the profiler knew of. A free
    of an unknown address is left out and counted. An address given out twice had a free that the profiler did not see (another
    thread's): it is put in before the second, and counted.
    """
    rows: list[dict[str, Any]] = []
    live: dict[int, tuple[int, int]] = {}
    notes: list[str] = []
    known = allocations[0][2] - allocations[0][1] if allocations else 0
    for address, size in before.items():
        rows.append({"op": "alloc", "id": len(rows) + 1, "size": size, "stream": 0, "before": True})
        live[address] = (len(rows), size)
    lump = known - sum(before.values())
    if lump > 0:
        rows.append({"op": "alloc", "id": len(rows) + 1, "size": lump, "stream": 0, "before": True})
        notes.append(
            f"{lump} bytes were live before the trace that no Python tensor holds: one allocation stands for them"
        )
    if before:
        notes.append(
            f"{len(before)} tensors of {sum(before.values())} bytes were live before the trace; each is allocated at "
            "its start, and freed only where the profiler saw that its address was free again"
        )
    start, next_id, net = len(rows), len(rows) + 1, 0
    orphans: list[int] = []
    inferred = 0
    steps, times = [], list(step_times_ns)
    for address, size, _, when, frames in allocations:
        if len(rows) - start >= max_events:
            notes.append(
                f"cut after {max_events} events of {len(allocations)}; a larger --max-events keeps more"
            )
            break
        while times and times[0] <= when:
            steps.append(len(rows))
            times.pop(0)
        if size > 0:
            if address in live:
                inferred += address not in before
                rows.append({"op": "free", "id": live.pop(address)[0], "time_ns": when})
            rows.append(
                {
                    "op": "alloc",
                    "id": next_id,
                    "size": size,
                    "stream": 0,
                    "time_ns": when,
                    "frames": frames,
                }
            )
            live[address] = (next_id, size)
            next_id, net = next_id + 1, net + size
        elif size < 0 and address in live:
            rows.append({"op": "free", "id": live.pop(address)[0], "time_ns": when})
            net += size
        elif size < 0:
            orphans.append(-size)
    if orphans:
        notes.append(
            f"{len(orphans)} frees of {sum(orphans)} bytes are left out: they were allocated before the trace"
        )
    if inferred:
        notes.append(
            f"{inferred} frees were not seen (another thread's); each stands before the next use of its address"
        )
    return {
        "notes": notes,
        "live_before": start,
        "steps": steps + [len(rows)] * len(times),
        "orphans": len(orphans),
        "inferred_frees": inferred,
        "net_bytes": net,
        "profiler_net_bytes": allocations[-1][2] - known if allocations else 0,
    }, rows
