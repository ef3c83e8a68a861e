"""Carry out a trace's operations for real: plain tensors of bytes on one GPU, never more than a limit, and what torch counted.

    python stress.py --limit-bytes N --seconds S [--snapshot PATH] [--rows] [OPERATIONS]

reads one operation a line as JSON (a file, or stdin): alloc (id, size, stream), free, record_stream, empty_cache, synchronize,
reset_peak. Those that only a fake device can do (foreign, fail_next, ...) are counted and left out. An allocation that fails is
told and its later free skipped, as under the test oracle. Runs under the user's own torch, CUDA or ROCm; JSON lines out.

The limit is torch's own per-process memory fraction, so the allocator refuses what a card of that size would refuse. With a
fraction below 1 garbage_collection_threshold is at work where the settings name one. Library handles come on top.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any, TextIO

if not __package__:
    sys.path[0] = str(
        Path(__file__).resolve().parents[2]
    )  # run as a file: the checkout instead of this folder

from helpers.torchside.device import MIB, Device, gpu_trouble, one_line

ROWS_AT_ONCE = 500
KEPT_FREE_BYTES = 256 * MIB
"""Of what is free, left alone also where a limit is asked for: an estimate of what a driver near its end does not give."""
DEFAULT_SHARE = 0.8


class Stress:
    """The live tensors, the streams by number, and what happened so far."""

    def __init__(self, torch: Any, until: float):
        self.torch, self.until = torch, until
        self.live: dict[Any, Any] = {}
        self.streams: dict[int, Any] = {0: torch.cuda.default_stream(0)}
        self.counts = {"done": 0, "ooms": 0, "skipped": 0}
        self.left_out: dict[str, int] = {}

    def stream(self, number: int) -> Any:
        if number not in self.streams:
            self.streams[number] = self.torch.cuda.Stream(0)
        return self.streams[number]

    def do(self, op: dict[str, Any]) -> str:
        """Carry out one operation: ok, oom, skipped or left_out."""
        kind, cuda = op["op"], self.torch.cuda
        if kind == "alloc":
            try:
                with cuda.stream(self.stream(op.get("stream", 0))):
                    self.live[op["id"]] = self.torch.empty(
                        op["size"], dtype=self.torch.uint8, device="cuda:0"
                    )
            except cuda.OutOfMemoryError as error:
                self.message = one_line(error)
                return "oom"
        elif kind in ("free", "record_stream"):
            if op["id"] not in self.live:
                return "skipped"
            if kind == "free":
                del self.live[op["id"]]
            else:
                self.live[op["id"]].record_stream(self.stream(op["stream"]))
        elif kind == "empty_cache":
            cuda.empty_cache()
        elif kind == "synchronize":
            cuda.synchronize(0)
        elif kind == "reset_peak":
            cuda.reset_peak_memory_stats(0)
        else:
            return "left_out"
        return "ok"

    def run(self, operations: list[dict[str, Any]], tell: Any, rows: bool, snapshot: str) -> str:
        """All operations, or those for which there is time: ok or time. Tells the first failed allocation, and rows."""
        batch: list[list[Any]] = []
        status = "ok"
        for i, op in enumerate(operations):
            if time.monotonic() >= self.until:
                status = "time"
                break
            out = self.do(op)
            self.counts["done"] += 1
            if out == "oom":
                self.counts["ooms"] += 1
                if self.counts["ooms"] == 1:
                    tell(
                        event="oom",
                        i=i,
                        id=op["id"],
                        size_bytes=op["size"],
                        message=self.message,
                        stats=self.stats(),
                        snapshot=write_snapshot(self.torch, oom_path(snapshot)),
                    )
            elif out == "skipped":
                self.counts["skipped"] += 1
            elif out == "left_out":
                self.left_out[op["op"]] = self.left_out.get(op["op"], 0) + 1
            if rows:
                now = self.torch.cuda.memory_stats_as_nested_dict(0)
                batch.append(
                    [
                        i,
                        out,
                        *(
                            now[name]["all"]["current"]
                            for name in ("allocated_bytes", "reserved_bytes")
                        ),
                    ]
                )
                if len(batch) == ROWS_AT_ONCE:
                    tell(event="rows", rows=batch)
                    batch = []
        if batch:
            tell(event="rows", rows=batch)
        return status

    def stats(self) -> dict[str, int]:
        return dict(self.torch.cuda.memory_stats(0))


def trouble(torch: Any) -> str:
    """Why nothing can be stressed here, or empty. Caching turned off is one: then neither limit nor statistics hold."""
    why = gpu_trouble(torch)
    if why[0]:
        return ": ".join(filter(None, why))
    for name in ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"):
        if name in os.environ:
            return f"{name} is set, so that torch would not keep to the limit"
    backend = getattr(torch.cuda, "get_allocator_backend", lambda: "native")()
    return "" if backend == "native" else f"the allocator is {backend}, which keeps no segments"


def limit(free_bytes: int, total_bytes: int, asked_bytes: int | None) -> int:
    """The most that may be held: what was asked for, as far as it is free; by default 80 % of what is free."""
    if asked_bytes is None:
        return int(DEFAULT_SHARE * free_bytes)
    return max(0, min(asked_bytes, free_bytes - KEPT_FREE_BYTES, total_bytes - 1))


def record_history(torch: Any, entries: int) -> str:
    """Turn memory history on without stacks; empty, or why this torch cannot. The arguments changed in torch 2.1."""
    record = getattr(torch.cuda.memory, "_record_memory_history", None)
    if record is None:
        return "this torch has no memory history"
    try:
        record("all", context=None, max_entries=entries)
    except TypeError:
        try:
            record(True, trace_alloc_max_entries=entries)
        except TypeError as error:
            return f"this torch's memory history takes other arguments: {one_line(error)}"
    return ""


def oom_path(path: str) -> str:
    """Where the snapshot at the first failed allocation goes: NAME.oom.pickle beside NAME.pickle."""
    return str(Path(path).with_suffix(".oom" + Path(path).suffix)) if path else ""


def write_snapshot(torch: Any, path: str) -> str:
    """Write torch's memory snapshot as a pickle of plain values; the path, or empty where none was asked for."""
    if not path:
        return ""
    taken = torch.cuda.memory._snapshot()
    part = Path(path + ".part")
    with part.open("wb") as file:
        pickle.dump(taken, file)
    part.replace(path)
    return path


def read_operations(lines: TextIO) -> list[dict[str, Any]]:
    """Every line before the first one is carried out, so that reading is not part of the run."""
    return [op for op in map(json.loads, filter(str.strip, lines)) if "op" in op]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("operations", nargs="?", help="file of JSON lines; stdin without it")
    parser.add_argument(
        "--limit-bytes", type=int, help="hold at most this much; 80 %% of what is free without it"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument(
        "--snapshot",
        default="",
        metavar="PATH",
        help="write torch's memory snapshot here at the end",
    )
    parser.add_argument(
        "--rows",
        action="store_true",
        help="tell allocated and reserved bytes after every operation",
    )
    asked = parser.parse_args()
    # Only the lines of this program reach the parent's pipe; what libraries print on stdout goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        import torch
    except Exception as error:  # noqa: BLE001  a broken torch raises anything: ImportError, OSError of a library, NameError
        tell(
            event="end",
            status="not_available",
            why=f"torch cannot be imported: {type(error).__name__}: {one_line(error)}",
        )
        return
    why = trouble(torch)
    if why:
        tell(event="end", status="not_available", why=why)
        return
    with open(asked.operations, encoding="utf-8") if asked.operations else sys.stdin as lines:
        operations = read_operations(lines)
    device = Device(torch, {"device": "cuda:0", "pci": ""})
    total, free = torch.cuda.get_device_properties(0).total_memory, device.free_bytes()
    most = limit(free, total, asked.limit_bytes)
    if most < MIB:
        tell(
            event="end", status="not_available", why=f"only {free // MIB} MiB of this GPU are free"
        )
        return
    device.limit_memory(most)
    history = (
        record_history(torch, 8 * len(operations) + 10_000)
        if asked.snapshot
        else "no snapshot was asked for"
    )
    tell(
        event="ready",
        torch=str(torch.__version__),
        build="rocm" if getattr(torch.version, "hip", None) else "cuda",
        device=torch.cuda.get_device_name(0),
        total_bytes=total,
        free_bytes=free,
        limit_bytes=most,
        fraction=most / total,
        history=history,
    )
    stress, began = Stress(torch, time.monotonic() + asked.seconds), time.monotonic()
    end: dict[str, Any] = {}
    try:
        end["status"] = stress.run(operations, tell, asked.rows, asked.snapshot)
    except RuntimeError as error:  # an error of the driver: no further call into it
        tell(event="end", status="failed", why=one_line(error), **stress.counts)
        return
    end.update(
        seconds=round(time.monotonic() - began, 3),
        stats=stress.stats(),
        left_out=stress.left_out,
        streams={number: stream.cuda_stream for number, stream in stress.streams.items()},
    )
    end["snapshot"] = write_snapshot(torch, asked.snapshot)
    tell(event="end", why="", **end, **stress.counts)


if __name__ == "__main__":
    main()
