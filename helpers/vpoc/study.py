"""What blows up, measured: strategies beside their model, hard limits, a heap that keeps what
it does not use, contention.

Each runs in a process of its own: its time, its peak, its result, or the allocator's words
under a hard limit. Each function gives rows (dicts) for a table or a figure.
"""

from __future__ import annotations

import gc
import json
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from helpers.ground.child import field, json_row, program, watch
from helpers.ground.units import KIB, MIB
from helpers.trials.targets import environment, torch_interpreter
from helpers.vpoc.histogram import (
    NUMPY,
    TORCH,
    parts,
    profiles,
    run,
    stream_read,
    threads,
    together,
)
from helpers.vpoc.planner import predicted_bytes, shape_of
from helpers.vpoc.trades import Array, Store, Trades, open_store, write_store

HERE = "helpers.vpoc.study"
THERE = "helpers.vpoc.under_torch.volume_profiles"
ALL = (*NUMPY, "stream_read", *TORCH)


@dataclass(frozen=True, eq=False)
class Measured:
    """How one strategy went.

    ``status``: ok, out_of_memory, failed, not_available, timed_out; ``why`` in the allocator's
    words.

    ``peak_bytes`` is what it took at most beyond the inputs (streams: beyond what was held
    before, mapped file pages counted too). ``counts`` is there where it was asked for.
    """

    strategy: str
    status: str
    why: str = ""
    device: str = "cpu"
    seconds: tuple[float, ...] = ()
    peak_bytes: int | None = None
    counts: Array | None = None

    @property
    def best_s(self) -> float | None:
        return min(self.seconds, default=None)

    def row(self, **more: Any) -> dict[str, Any]:
        """As the tables have it, with what more they show."""
        about = {"strategy": self.strategy, "status": self.status}
        return {**about, "seconds": self.best_s, "measured_bytes": self.peak_bytes, **more}


def measure(
    strategy: str,
    store: Store,
    *,
    chunk_trades: int = 1 << 20,
    device: str = "cpu",
    repeats: int = 1,
    limit_bytes: int | None = None,
    counts: bool = False,
    limit_s: float = 120.0,
    env: Mapping[str, str] | None = None,
    sessions: int | None = None,
    torch_python: str = "",
) -> Measured:
    """Run a strategy of ALL in a child, one of torch's on ``device``.

    ``limit_bytes``: private memory (RLIMIT_DATA) beyond what the child holds beforehand, in
    which the inputs must fit too. Raises ValueError for an unknown name.
    """
    if strategy not in ALL:
        raise ValueError(f"strategy {strategy!r}: expected one of {', '.join(ALL)}")
    torch = strategy in TORCH
    python = (torch_python or torch_interpreter()) if torch else sys.executable
    device = {"cuda": "cuda:0"}.get(device, device) if torch else "cpu"
    failed = partial(Measured, strategy, device=device)
    if not shutil.which(python):
        return failed("not_available", f"there is no Python at {python}")
    answers: list[dict[str, Any]] = []

    def take(line: str) -> None:
        row = json_row(line)
        answers.extend([row] if "status" in row else [])

    with tempfile.TemporaryDirectory(prefix="casebook-profile-") as scratch:
        out = Path(scratch, "counts.bin")
        spec: dict[str, Any] = {
            "strategy": strategy,
            "folder": str(store.folder.resolve()),
            "device": device,
        }
        spec |= {"chunk_trades": chunk_trades, "repeats": repeats, "limit_bytes": limit_bytes}
        spec |= {"out": str(out) if counts else "", "sessions": sessions}
        argv = program(python, THERE if torch else HERE, json.dumps(spec))
        ended = watch(argv, limit_s, env=environment(more=env), cwd=scratch, on_line=take)
        if not answers:
            killed = "out_of_memory" if ended.signal == "SIGKILL" else "failed"
            status = "timed_out" if ended.how == "timed_out" else killed
            return failed(status, f"{ended.signal or ended.how}: {ended.last_line}")
        answer = answers[-1]
        found = None
        if out.is_file():
            found = np.fromfile(out, store.layout.counts).reshape(-1, store.layout.bins)
    why = answer.get("why", "")
    seconds = tuple(answer.get("seconds", ()))
    peak = answer.get("peak_bytes")
    return Measured(strategy, answer["status"], why, device, seconds, peak, found)


def status_bytes(name: str) -> int:
    """A field of /proc/self/status, such as VmRSS, in bytes."""
    kib = field("/proc/self/status", f"{name}:")
    if kib is None:
        raise OSError(f"/proc/self/status has no {name}")
    return kib * KIB


def carry_out(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The child's work, in this process: it sets a limit for good where one is asked for."""
    store = open_store(Path(spec["folder"]))
    name = spec["strategy"]
    chunk = spec["chunk_trades"]
    if some := spec["sessions"]:
        store = Store(store.folder, store.trades.take(0, some), store.layout.take(0, some))
    # Code, threads and tables that a first use brings, on a few trades.
    few = store.trades.in_memory(2000)
    if name in NUMPY:
        run(name, few, store.layout, 1000)
    else:
        stream_read(Store(store.folder, few, store.layout))
    if spec["limit_bytes"]:
        most = status_bytes("VmData") + int(spec["limit_bytes"])
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    answer: dict[str, Any] = {"strategy": name, "status": "ok", "seconds": []}
    try:
        trades = store.trades.in_memory() if name in NUMPY else store.trades
        before = 0
        out = np.zeros((0, 0))
        for repeat in range(max(1, int(spec["repeats"]))):
            del out
            gc.collect()
            if not repeat:  # VmHWM starts again from what is resident now (proc(5): clear_refs)
                Path("/proc/self/clear_refs").write_text("5")
                before = status_bytes("VmRSS")
            began = time.perf_counter()
            counted = name in NUMPY
            out = run(name, trades, store.layout, chunk) if counted else stream_read(store)
            answer["seconds"].append(time.perf_counter() - began)
            if not repeat:
                answer["peak_bytes"] = status_bytes("VmHWM") - before
    except MemoryError as error:
        return {**answer, "status": "out_of_memory", "why": str(error) or "MemoryError"}
    except Exception as error:  # noqa: BLE001  numba and pyarrow have their own words for an allocation that failed
        words = f"{type(error).__name__}: {error}"
        refused = any(word in words.lower() for word in ("alloc", "memory"))
        status = "out_of_memory" if refused else "failed"
        return {**answer, "status": status, "why": words.splitlines()[0][:300]}
    if spec["out"]:
        np.ascontiguousarray(out).tofile(spec["out"])
    return answer


def main() -> None:
    print(json.dumps(carry_out(json.loads(sys.argv[1]))), flush=True)


ONE_HOT_BYTES = 512 * MIB
"""What the one-hot strategy may take while it is measured; the rest is extrapolated and says so."""


def limit_s(trades: Trades) -> float:
    """Seconds that one read of all price and volume bytes takes with every core, the best of
    eleven: the physical limit.
    """
    best = float("inf")
    jobs = read_jobs(trades)
    for _ in range(11):
        began = time.perf_counter()
        together(jobs)
        best = min(best, time.perf_counter() - began)
    return best


def read_jobs(trades: Trades) -> list[Any]:
    """One for each core: together they read every byte of price and volume once."""
    from helpers.vpoc.kernels import total

    price, volume = (a.view(f"i{a.itemsize}") for a in (trades.price, trades.volume))
    return [partial(total, price[a:b], volume[a:b]) for a, b in parts(len(trades), threads())]


def strategies(
    store: Store, names: Sequence[str] = ALL, chunk_trades: int = 1 << 20, repeats: int = 5
) -> list[dict[str, Any]]:
    """The strategy table: seconds, times the limit, predicted and measured peak, equal or not.

    One-hot runs on as few sessions as fit ONE_HOT_BYTES, its figures extrapolated in a straight
    line; ``sessions`` says from how many.
    """
    in_memory = store.trades.in_memory()
    limit = limit_s(in_memory)
    want = profiles(in_memory, store.layout)
    del in_memory
    shape = shape_of(store.trades, store.layout)
    starts = store.trades.starts
    rows = []
    for name in names:
        some = None
        chunk = chunk_trades
        scale = 1.0
        how_often = repeats
        if name == "one_hot":
            fits = np.searchsorted(starts, ONE_HOT_BYTES // (24 * shape.bins), side="right") - 1
            some = max(1, min(shape.sessions, int(fits)))
            how_often = 1
            chunk = max(1, int(starts[some]))
            scale = shape.trades / chunk
        how: dict[str, Any] = {"chunk_trades": chunk, "repeats": how_often, "sessions": some}
        got = measure(name, store, counts=True, **how)
        seconds = got.best_s
        peak = got.peak_bytes
        found = got.counts
        equal = None if found is None else bool(np.array_equal(found, want[: len(found)]))
        row = got.row(predicted_bytes=predicted_bytes(name, shape, shape.trades if some else chunk))
        row["seconds"] = None if seconds is None else seconds * scale
        row["times_limit"] = None if seconds is None else seconds * scale / limit
        row["measured_bytes"] = None if peak is None else int(peak * scale)
        rows.append({**row, "equal": equal, "sessions": some})
    return rows


def chunk_curve(
    store: Store, chunks: Sequence[int], names: Sequence[str], repeats: int = 3
) -> list[dict[str, Any]]:
    """Time and peak, measured and predicted, at each chunk size."""
    shape = shape_of(store.trades, store.layout)
    rows = []
    for name, chunk in ((name, chunk) for name in names for chunk in chunks):
        got = measure(name, store, chunk_trades=chunk, repeats=repeats)
        model = predicted_bytes(name, shape, chunk)
        rows.append(got.row(chunk_trades=chunk, predicted_bytes=model))
    return rows


def refusals(store: Store, names: Sequence[str], limits_mib: Sequence[int]) -> list[dict[str, Any]]:
    """Which strategies pass with at most so much private memory (RLIMIT_DATA), and what the
    allocator says to the others.

    Those that are no streams load their inputs within the limit, as the programs that fail do.
    One-hot takes all at once.
    """
    rows = []
    for name, mib in ((name, mib) for name in names for mib in limits_mib):
        chunk = len(store.trades) if name == "one_hot" else 1 << 20
        got = measure(name, store, limit_bytes=mib * MIB, chunk_trades=chunk)
        rows.append(got.row(limit="RLIMIT_DATA", limit_mib=mib, says=got.why))
    return rows


HEAPS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("list and cat", "list_cat", {}),
    ("list and cat, MALLOC_MMAP_THRESHOLD_=65536", "list_cat", {"MALLOC_MMAP_THRESHOLD_": "65536"}),
    ("preallocated", "preallocated", {}),
)


def fragmentation(
    store: Store, processes: int = 5, chunk_trades: int = 20_000
) -> list[dict[str, Any]]:
    """A heap that holds far more than it uses: list and cat, over several processes, since runs
    differ.

    The control is the same program with MALLOC_MMAP_THRESHOLD_=65536, so that each temporary is
    a mapping of its own and goes back at once; and the same arithmetic into buffers made once.
    This is the host's heap (glibc); it says nothing of a GPU's.
    """
    shape = shape_of(store.trades, store.layout)
    rows = []
    for form, name, env in HEAPS:
        runs = [measure(name, store, chunk_trades=chunk_trades, env=env) for _ in range(processes)]
        peaks = sorted(one.peak_bytes for one in runs if one.peak_bytes is not None)
        row: dict[str, Any] = {"form": form, "processes": len(peaks), "peaks_bytes": peaks}
        row["live_bytes"] = predicted_bytes(name, shape, chunk_trades)
        row["median_bytes"] = int(statistics.median(peaks)) if peaks else None
        rows.append({**row, "why": next((one.why for one in runs if one.status != "ok"), "")})
    return rows


def orders(trades: Trades) -> Iterator[tuple[str, Trades]]:
    """The same trades as traded, shuffled within each session, and all of a session at one price."""
    rng = np.random.default_rng(0)
    bounds = list(zip(trades.starts.tolist(), trades.starts[1:].tolist(), strict=False))
    order = np.concatenate([rng.permutation(b - a) + a for a, b in bounds])
    first = np.array([trades.price[a] if a < b else 0 for a, b in bounds], trades.price.dtype)
    yield "as traded", trades
    yield "shuffled", replace(trades, price=trades.price[order], volume=trades.volume[order])
    yield "one price", replace(trades, price=np.repeat(first, np.diff(trades.starts)))


def contention(trades: Trades, names: Sequence[str], repeats: int = 5) -> list[dict[str, Any]]:
    """Seconds of each strategy for each of the orders: a hang need not be memory."""
    rows = []
    for order, these in orders(trades):
        with tempfile.TemporaryDirectory(prefix="casebook-order-") as folder:
            store = write_store(Path(folder, "store"), [these])
            got = [measure(name, store, repeats=repeats) for name in names]
        rows += [one.row(order=order) for one in got]
    return rows
