"""Carries out the operations of a trace with tensors of bytes on one GPU, within a limit, and tells
what torch counted after each.

A program; its options are ``operations`` (a file), ``seconds``, ``limit_bytes`` and ``snapshot`` (a
path, or empty).

One operation is a line of JSON: alloc (id, size, stream), free, record_stream, empty_cache,
synchronize, reset_peak. Those that only a simulated device can do (foreign, fail_next, ...) are
counted and left out. An allocation that fails is counted, and its later free is skipped. Runs under
the user's own torch, CUDA or ROCm.

The limit is torch's own per-process memory fraction: the allocator refuses what a card of that size
would refuse. Library handles come on top.
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
"""Operations in one line to the parent, of about 20 kB."""
KEPT_FREE_BYTES = 256 * MIB
"""Free memory that is never taken: an estimate of what a driver no longer gives when the card is
nearly full.
"""
UNLIMITED = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
"""Under these variables torch takes each tensor from the driver, and its memory limit does not
hold.
"""
EVENTS_OF_AN_OPERATION = 8
EVENTS_BESIDE = 10_000
"""Room in torch's history: an allocation may free several segments, retry, and map memory; some
events come before the first operation.
"""


class Stress:
    """The live tensors by the ids of the operations, the streams by number, and how many operations
    were carried out and ran out of memory. ``plain`` has the operations without arguments.
    """

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
        """The stream of this number, made when it is first used."""
        if number not in self.streams:
            self.streams[number] = self.cuda.Stream(0)
        return self.streams[number]

    def do(self, op: Row) -> str:
        """Carry out one operation; returns ok, skipped or left_out. Raises torch's
        OutOfMemoryError.
        """
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
        """Carry out the operations while there is time; yields rows of (index, outcome, allocated
        and reserved bytes), and the end.
        """
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
    """Why nothing can be carried out here, in words; empty if it can."""
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
    """The bytes that may be held: those asked for, if they are free. They are always less than the
    card has, so that the fraction is below 1, with which garbage_collection_threshold works.
    """
    return max(0, min(asked_bytes, free_bytes - KEPT_FREE_BYTES, total_bytes - 1))


def work(spec: Row) -> Iterator[Row]:
    """Yields a row when all is ready, rows of operations, and the end."""
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
    # All of them first, so that reading takes no time of the run.
    with open(spec["operations"], encoding="utf-8") as lines:
        operations = [json.loads(line) for line in lines]
    device.limit_memory(most)
    if spec["snapshot"]:
        entries = EVENTS_OF_AN_OPERATION * len(operations) + EVENTS_BESIDE
        start_history(torch, entries, stacks=False)
    build = "cuda"
    if getattr(torch.version, "hip", None):
        build = "rocm"
    yield {
        "event": "ready",
        "torch": str(torch.__version__),
        "build": build,
        "device": torch.cuda.get_device_name(0),
        "total_bytes": total,
        "limit_bytes": most,
        "fraction": most / total,
    }
    stress = Stress(torch, spec)
    try:
        yield from stress.run(operations)
    except RuntimeError as error:
        # An error of the driver, which is not called again.
        yield {
            "event": "end",
            "status": "failed",
            "why": one_line(error),
            **stress.counts,
        }


def main() -> None:
    frame.run(work)
