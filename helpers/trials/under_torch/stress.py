"""Carry out a trace's operations for real: plain tensors of bytes on one GPU, never more than a
limit, and what torch counted.

A program; its options: ``operations`` (a file), ``seconds``, ``limit_bytes`` and ``snapshot`` (a
path, or empty). Allocated and reserved bytes are told after every operation.

One operation is a line of JSON: alloc (id, size, stream), free, record_stream, empty_cache,
synchronize, reset_peak. Those that only a fake device can do (foreign, fail_next, ...) are
counted and left out. An allocation that fails is counted and its later free skipped, as under
the test oracle. Runs under the user's own torch, CUDA or ROCm.

The limit is torch's own per-process memory fraction, so the allocator refuses what a card of
that size would refuse. With a fraction below 1 garbage_collection_threshold is at work where
the settings name one. Library handles come on top.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from helpers.allocator.under_torch.history import start_history, write_snapshot
from helpers.trials.under_torch import frame
from helpers.trials.under_torch.device import Device, gpu_trouble
from helpers.trials.under_torch.frame import MIB, Row, one_line

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import Stream

ROWS_AT_ONCE = 500
KEPT_FREE_BYTES = 256 * MIB
"""Of what is free, left alone also where a limit is asked for: an estimate of what a driver
near its end does not give.
"""
# With these torch's memory limit does not hold: it asks the driver for every tensor.
UNLIMITED = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")


class Stress:
    """The live tensors, the streams by number, and what happened so far."""

    def __init__(self, torch: ModuleType, spec: Row):
        self.torch = torch
        self.cuda = torch.cuda
        self.spec = spec
        self.live: dict[object, Tensor] = {}
        self.streams: dict[int, Stream] = {0: torch.cuda.default_stream(0)}
        self.counts = {"done": 0, "ooms": 0}
        self.plain = {
            "empty_cache": torch.cuda.empty_cache,
            "synchronize": partial(torch.cuda.synchronize, 0),
            "reset_peak": partial(torch.cuda.reset_peak_memory_stats, 0),
        }

    def stream(self, number: int) -> Stream:
        if number not in self.streams:
            self.streams[number] = self.cuda.Stream(0)
        return self.streams[number]

    def do(self, op: Row) -> str:
        """Carry out one operation: ok, skipped or left_out. Raises torch's OutOfMemoryError."""
        kind = op["op"]
        ident = op.get("id")
        if kind == "alloc":
            with self.cuda.stream(self.stream(op.get("stream", 0))):
                self.live[ident] = self.torch.empty(
                    op["size"], dtype=self.torch.uint8, device="cuda:0"
                )
        elif kind in ("free", "record_stream") and ident not in self.live:
            return "skipped"
        elif kind == "free":
            del self.live[ident]
        elif kind == "record_stream":
            self.live[ident].record_stream(self.stream(op["stream"]))
        elif kind in self.plain:
            self.plain[kind]()
        else:
            return "left_out"
        return "ok"

    def run(self, operations: list[Row]) -> Iterator[Row]:
        """All operations, or those for which there is time: rows, and the end."""
        began = time.monotonic()
        batch = []
        status = "ok"
        for index, op in enumerate(operations):
            if time.monotonic() >= began + self.spec["seconds"]:
                status = "time"
                break
            try:
                outcome = self.do(op)
            except self.cuda.OutOfMemoryError:
                outcome = "oom"
                self.counts["ooms"] += 1
            self.counts["done"] += 1
            now = self.cuda.memory_stats_as_nested_dict(0)
            allocated = now["allocated_bytes"]["all"]["current"]
            reserved = now["reserved_bytes"]["all"]["current"]
            batch.append([index, outcome, allocated, reserved])
            if len(batch) == ROWS_AT_ONCE:
                yield {"event": "rows", "rows": batch}
                batch = []
        yield {"event": "rows", "rows": batch}
        if self.spec["snapshot"]:
            write_snapshot(self.torch, self.spec["snapshot"])
        stats = dict(self.cuda.memory_stats(0))
        yield {"event": "end", "status": status, **self.counts, "stats": stats}


def trouble(torch: ModuleType) -> str:
    """Why nothing can be stressed here, or empty."""
    why = ": ".join(filter(None, gpu_trouble(torch)))
    if why:
        return why
    for name in UNLIMITED:
        if name in os.environ:
            return f"{name} is set, so that torch would not keep to the limit"
    backend = getattr(torch.cuda, "get_allocator_backend", lambda: "native")()
    if backend != "native":
        return f"the allocator is {backend}, which keeps no segments"
    return ""


def limit(free_bytes: int, total_bytes: int, asked_bytes: int) -> int:
    """The most that may be held: what was asked for, as far as it is free."""
    return max(0, min(asked_bytes, free_bytes - KEPT_FREE_BYTES, total_bytes - 1))


def work(spec: Row) -> Iterator[Row]:
    """ready, rows, and the end."""
    try:
        torch = frame.import_torch()
        why = trouble(torch)
    except frame.NoTorch as error:
        why = f"torch cannot be imported: {error}"
    if not why:
        device = Device(torch, {"device": "cuda:0", "pci": ""})
        total = torch.cuda.get_device_properties(0).total_memory
        free = device.free_bytes()
        most = limit(free, total, spec["limit_bytes"])
        if most < MIB:
            why = f"only {free // MIB} MiB of this GPU are free"
    if why:
        yield {"event": "end", "status": "not_available", "why": why}
        return
    # Before the first one is carried out, so that reading is not part of the run.
    with open(spec["operations"], encoding="utf-8") as lines:
        operations = [json.loads(line) for line in lines]
    device.limit_memory(most)
    if spec["snapshot"]:
        start_history(torch, 8 * len(operations) + 10_000, stacks=False)
    yield {
        "event": "ready",
        "torch": str(torch.__version__),
        "build": "rocm" if getattr(torch.version, "hip", None) else "cuda",
        "device": torch.cuda.get_device_name(0),
        "total_bytes": total,
        "limit_bytes": most,
        "fraction": most / total,
    }
    stress = Stress(torch, spec)
    try:
        yield from stress.run(operations)
    except RuntimeError as error:
        # An error of the driver: no further call into it.
        yield {
            "event": "end",
            "status": "failed",
            "why": one_line(error),
            **stress.counts,
        }


def main() -> None:
    frame.run(work)
