"""One strategy in a process of its own: its time, its peak, its result, or the allocator's words under a hard limit."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from helpers.load.box import torch_interpreter
from helpers.load.child import watch
from helpers.load.vpoc.store import Store, open_store
from helpers.load.vpoc.strategies import NUMPY, TORCH, run
from helpers.load.vpoc.trades import Array, Trades

ROOT = Path(__file__).resolve().parents[3]
HERE = "from helpers.load.vpoc.trial import main; main()"
THERE = "from helpers.torchside.volume_profiles import main; main()"
STREAMS = ("stream_mapped", "stream_read", "stream_parquet")
ALL = (*NUMPY, *STREAMS, *TORCH)


@dataclass(frozen=True, eq=False)
class Measured:
    """How one strategy went. ``status``: ok, out_of_memory, failed, not_available, timed_out; ``why`` in the allocator's words.

    ``peak_bytes`` is what it took at most beyond the inputs (streams: beyond what was held before, mapped file pages counted
    too), ``private_bytes`` what it held of anonymous memory at its end. ``counts`` is there where it was asked for.
    """

    strategy: str
    status: str
    why: str = ""
    seconds: tuple[float, ...] = ()
    peak_bytes: int | None = None
    private_bytes: int | None = None
    counts: Array | None = None
    device: str = "cpu"
    torch: str = ""

    @property
    def best_s(self) -> float | None:
        return min(self.seconds, default=None)


def measure(strategy: str, store: Store, *, chunk_trades: int = 1 << 20, device: str = "cpu", repeats: int = 1,
            limit_bytes: int | None = None, counts: bool = False, limit_s: float = 120.0, parquet: Path | None = None,
            env: Mapping[str, str] | None = None, sessions: int | None = None, torch_python: str = "",
            cgroup: Path | None = None) -> Measured:
    """Run a strategy of ALL in a child. ``limit_bytes``: private memory (RLIMIT_DATA) beyond what the child holds beforehand,
    in which the inputs must fit too; ``cgroup``: a memory control group to put it in. Raises ValueError for an unknown name.
    """
    if strategy not in ALL:
        raise ValueError(f"strategy {strategy!r}: expected one of {', '.join(ALL)}")
    python = (torch_python or torch_interpreter()) if strategy in TORCH else sys.executable
    if not shutil.which(python):
        return Measured(strategy, "not_available", f"there is no Python at {python}", device=device)
    told: list[dict[str, Any]] = []

    def take(line: str) -> None:
        if line.startswith("{"):
            told.append(json.loads(line))

    with tempfile.TemporaryDirectory(prefix="casebook-profile-") as scratch:
        out = Path(scratch, "counts.bin")
        spec = {"strategy": strategy, "folder": str(store.folder.resolve()), "chunk_trades": chunk_trades,
                "device": "cuda:0" if device == "cuda" else device, "repeats": repeats, "limit_bytes": limit_bytes,
                "out": str(out) if counts else "", "sessions": sessions,
                "parquet": str(parquet.resolve()) if parquet else "", "cgroup": str(cgroup or "")}
        argv = [python, "-c", THERE if strategy in TORCH else HERE, json.dumps(spec)]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        ended = watch(argv, limit_s, env={**os.environ, "PYTHONPATH": path, **(env or {})}, cwd=scratch, on_line=take)
        if not told:
            words = (ended.last_words.splitlines() or ["it said nothing"])[-1][:300]
            status = "timed_out" if ended.how == "timed_out" else "out_of_memory" if ended.signal == "SIGKILL" else "failed"
            return Measured(strategy, status, f"{ended.signal or ended.how}: {words}", device=device)
        got = told[-1]
        count = store.trades.sessions if sessions is None else sessions
        found = np.fromfile(out, store.layout.counts).reshape(count, -1) if out.is_file() else None
    return Measured(strategy, got["status"], got.get("why", ""), tuple(got.get("seconds", ())), got.get("peak_bytes"),
                    got.get("private_bytes"), found, device, got.get("torch", ""))


def status_bytes(name: str) -> int:
    """A field of /proc/self/status, such as VmRSS, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


def reset_peak() -> int:
    """Let VmHWM start again from what is resident now, and return that (proc(5): clear_refs)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def carry_out(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The child's work, in this process: it sets a limit for good where one is asked for."""
    from helpers.load.vpoc.stream import parquet_batches, stream_mapped, stream_parquet, stream_read

    store, name = open_store(Path(spec["folder"])), spec["strategy"]
    if spec.get("sessions"):
        store = Store(store.folder, store.trades.take(0, spec["sessions"]), store.layout.take(0, spec["sessions"]))
    # Code, threads and tables that a first use brings, on a few trades.
    few = min(2000, len(store.trades))
    starts = np.minimum(store.trades.starts, few)
    small = Trades(np.array(store.trades.price[:few]), np.array(store.trades.volume[:few]), starts, store.trades.tick,
                   store.trades.labels)
    if name in NUMPY:
        run(name, small, store.layout, 1000)
    else:
        stream_read(Store(store.folder, small, store.layout))
        if name == "stream_parquet":
            next(parquet_batches(Path(spec["parquet"]), store.trades.tick, 1000))
    if spec.get("cgroup"):
        Path(spec["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
    if spec.get("limit_bytes"):
        most = status_bytes("VmData") + int(spec["limit_bytes"])
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    answer: dict[str, Any] = {"strategy": name}
    try:
        trades = store.trades
        if name in NUMPY:
            trades = Trades(np.array(trades.price), np.array(trades.volume), trades.starts, trades.tick, trades.labels)
        seconds, before, out = [], 0, np.zeros((0, 0))
        for repeat in range(max(1, int(spec.get("repeats", 1)))):
            del out
            before = before if repeat else reset_peak()
            began = time.perf_counter()
            if name == "stream_mapped":
                out = stream_mapped(store)
            elif name == "stream_read":
                out = stream_read(store)
            elif name == "stream_parquet":
                out = stream_parquet(Path(spec["parquet"]), trades.tick)[2]
            else:
                out = run(name, trades, store.layout, int(spec["chunk_trades"]))
            seconds.append(time.perf_counter() - began)
            if not repeat:
                answer.update(peak_bytes=status_bytes("VmHWM") - before, private_bytes=status_bytes("RssAnon"))
    except MemoryError as error:
        return {**answer, "status": "out_of_memory", "why": str(error) or "MemoryError"}
    except Exception as error:  # noqa: BLE001  numba and pyarrow have their own words for an allocation that failed
        words = f"{type(error).__name__}: {error}"
        oom = any(word in words.lower() for word in ("alloc", "memory"))
        return {**answer, "status": "out_of_memory" if oom else "failed", "why": words.splitlines()[0][:300]}
    if spec.get("out"):
        np.ascontiguousarray(out).tofile(spec["out"])
    return {**answer, "status": "ok", "seconds": seconds}


def main() -> None:
    print(json.dumps(carry_out(json.loads(sys.argv[1]))), flush=True)

