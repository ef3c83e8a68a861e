"""What blows up, measured: strategies beside their model, hard limits, a heap that keeps what it does not use, contention.

Each runs in a process of its own: its time, its peak, its result, or the allocator's words under a hard limit. Each function
gives rows (dicts) for a table or a figure.
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

from helpers.child import field, json_row, program, watch
from helpers.load.box import torch_interpreter
from helpers.load.targets import environment
from helpers.load.vpoc.histogram import cuts, profiles, threads, together
from helpers.load.vpoc.memory import EXACT, LOWER_BOUND, predicted_bytes, shape_of
from helpers.load.vpoc.strategies import NUMPY, TORCH, run
from helpers.load.vpoc.trades import Array, Store, Trades, open_store, write_store
from helpers.look.reading import MIB

HERE, THERE = "helpers.load.vpoc.study", "helpers.torchside.volume_profiles"
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
    parquet: Path | None = None,
    env: Mapping[str, str] | None = None,
    sessions: int | None = None,
    torch_python: str = "",
) -> Measured:
    """Run a strategy of ALL in a child. ``limit_bytes``: private memory (RLIMIT_DATA) beyond what the child holds beforehand,
    in which the inputs must fit too. Raises ValueError for an unknown name.
    """
    if strategy not in ALL:
        raise ValueError(f"strategy {strategy!r}: expected one of {', '.join(ALL)}")
    python = (torch_python or torch_interpreter()) if strategy in TORCH else sys.executable
    if not shutil.which(python):
        return Measured(strategy, "not_available", f"there is no Python at {python}", device=device)
    told: list[dict[str, Any]] = []

    def take(line: str) -> None:
        row = json_row(line)
        told.extend([row] if "status" in row else [])

    with tempfile.TemporaryDirectory(prefix="casebook-profile-") as scratch:
        out = Path(scratch, "counts.bin")
        spec = {
            "strategy": strategy,
            "folder": str(store.folder.resolve()),
            "chunk_trades": chunk_trades,
            "device": "cuda:0" if device == "cuda" else device,
            "repeats": repeats,
            "limit_bytes": limit_bytes,
            "out": str(out) if counts else "",
            "sessions": sessions,
            "parquet": str(parquet.resolve()) if parquet else "",
        }
        argv = program(python, THERE if strategy in TORCH else HERE, json.dumps(spec))
        ended = watch(argv, limit_s, env=environment(more=env), cwd=scratch, on_line=take)
        if not told:
            status = (
                "timed_out"
                if ended.how == "timed_out"
                else "out_of_memory"
                if ended.signal == "SIGKILL"
                else "failed"
            )
            return Measured(
                strategy, status, f"{ended.signal or ended.how}: {ended.last_line}", device=device
            )
        got = told[-1]
        count = store.trades.sessions if sessions is None else sessions
        found = np.fromfile(out, store.layout.counts).reshape(count, -1) if out.is_file() else None
    return Measured(
        strategy,
        got["status"],
        got.get("why", ""),
        tuple(got.get("seconds", ())),
        got.get("peak_bytes"),
        got.get("private_bytes"),
        found,
        device,
        got.get("torch", ""),
    )


def status_bytes(name: str) -> int:
    """A field of /proc/self/status, such as VmRSS, in bytes."""
    kib = field("/proc/self/status", f"{name}:")
    if kib is None:
        raise OSError(f"/proc/self/status has no {name}")
    return kib * 1024


def reset_peak() -> int:
    """Let VmHWM start again from what is resident now, and return that (proc(5): clear_refs)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def carry_out(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The child's work, in this process: it sets a limit for good where one is asked for."""
    from helpers.load.vpoc.strategies import (
        parquet_batches,
        stream_mapped,
        stream_parquet,
        stream_read,
    )

    store, name = open_store(Path(spec["folder"])), spec["strategy"]
    if spec.get("sessions"):
        store = Store(
            store.folder,
            store.trades.take(0, spec["sessions"]),
            store.layout.take(0, spec["sessions"]),
        )
    # Code, threads and tables that a first use brings, on a few trades.
    few = min(2000, len(store.trades))
    starts = np.minimum(store.trades.starts, few)
    small = Trades(
        np.array(store.trades.price[:few]),
        np.array(store.trades.volume[:few]),
        starts,
        store.trades.tick,
        store.trades.labels,
    )
    if name in NUMPY:
        run(name, small, store.layout, 1000)
    else:
        stream_read(Store(store.folder, small, store.layout))
        if name == "stream_parquet":
            next(parquet_batches(Path(spec["parquet"]), store.trades.tick, 1000))
    if spec.get("limit_bytes"):
        most = status_bytes("VmData") + int(spec["limit_bytes"])
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    answer: dict[str, Any] = {"strategy": name}
    try:
        trades = store.trades
        if name in NUMPY:
            trades = Trades(
                np.array(trades.price),
                np.array(trades.volume),
                trades.starts,
                trades.tick,
                trades.labels,
            )
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
                answer.update(
                    peak_bytes=status_bytes("VmHWM") - before, private_bytes=status_bytes("RssAnon")
                )
    except MemoryError as error:
        return {**answer, "status": "out_of_memory", "why": str(error) or "MemoryError"}
    except Exception as error:  # noqa: BLE001  numba and pyarrow have their own words for an allocation that failed
        words = f"{type(error).__name__}: {error}"
        oom = any(word in words.lower() for word in ("alloc", "memory"))
        return {
            **answer,
            "status": "out_of_memory" if oom else "failed",
            "why": words.splitlines()[0][:300],
        }
    if spec.get("out"):
        np.ascontiguousarray(out).tofile(spec["out"])
    return {**answer, "status": "ok", "seconds": seconds}


def main() -> None:
    print(json.dumps(carry_out(json.loads(sys.argv[1]))), flush=True)


LIMITS_MIB = (64, 256, 1024, 4096)
REFUSED = (
    "flat_bincount",
    "one_hot",
    "list_cat",
    "preallocated",
    "fused",
    "stream_mapped",
    "stream_read",
)
ONE_HOT_BYTES = 512 * MIB
"""What the one-hot strategy may take while it is measured; the rest is extrapolated and says so."""


def limit_s(trades: Trades, rounds: int = 10) -> float:
    """Seconds that one read of all price and volume bytes takes with every core, the best of ``rounds``: the physical limit."""
    from helpers.load.vpoc.kernels import total

    price, volume = (a.view(f"i{a.itemsize}") for a in (trades.price, trades.volume))
    at, best = cuts(len(trades), threads()), float("inf")
    for _ in range(rounds + 1):
        began = time.perf_counter()
        together(
            [partial(total, price[a:b], volume[a:b]) for a, b in zip(at, at[1:], strict=False)]
        )
        best = min(best, time.perf_counter() - began)
    return best


def strategies(
    store: Store,
    names: Sequence[str] = (*NUMPY, *STREAMS[:2], *TORCH),
    chunk_trades: int = 1 << 20,
    device: str = "cpu",
    repeats: int = 5,
) -> list[dict[str, Any]]:
    """The strategy table: seconds, times the limit, predicted and measured peak, equal or not. One-hot runs on as few sessions
    as fit ONE_HOT_BYTES, its figures extrapolated in a straight line (``sessions`` says how many ran)."""
    in_memory = replace(
        store.trades, price=np.array(store.trades.price), volume=np.array(store.trades.volume)
    )
    limit, want = limit_s(in_memory), profiles(in_memory, store.layout)
    del in_memory
    shape, rows = shape_of(store.trades, store.layout), []
    for name in names:
        some, chunk, scale = None, chunk_trades, 1.0
        if name == "one_hot":
            chunk = max(1, ONE_HOT_BYTES // (24 * shape.bins))
            some = max(
                1,
                min(
                    shape.sessions,
                    int(np.searchsorted(store.trades.starts, chunk, side="right")) - 1,
                ),
            )
            ran = max(1, int(store.trades.starts[some]))
            chunk, scale = ran, shape.trades / ran
        got = measure(
            name,
            store,
            chunk_trades=chunk,
            device=device if name in TORCH else "cpu",
            repeats=1 if name == "one_hot" else repeats,
            counts=True,
            sessions=some,
        )
        model = (
            None
            if name == "stream_parquet"
            else predicted_bytes(name, shape, shape.trades if some else chunk)
        )
        peak = None if got.peak_bytes is None else int(got.peak_bytes * scale)
        rows.append(
            {
                "strategy": name,
                "status": got.status,
                "why": got.why,
                "device": got.device,
                "seconds": None if got.best_s is None else got.best_s * scale,
                "times_limit": None if got.best_s is None else got.best_s * scale / limit,
                "predicted_bytes": model,
                "measured_bytes": peak,
                "equal": None
                if got.counts is None
                else bool(np.array_equal(got.counts, want[: len(got.counts)])),
                "sessions": some or shape.sessions,
                "model": "exact"
                if name in EXACT
                else "lower bound"
                if name in LOWER_BOUND
                else "file pages not in it"
                if name == "stream_mapped"
                else "temporaries",
            }
        )
    return rows


def chunk_curve(
    store: Store,
    chunks: Sequence[int],
    names: Sequence[str] = ("list_cat", "preallocated", "chunks_bincount"),
    device: str = "cpu",
    repeats: int = 3,
) -> list[dict[str, Any]]:
    """Time and peak, measured and predicted, at each chunk size."""
    shape = shape_of(store.trades, store.layout)
    return [
        {
            "strategy": name,
            "chunk_trades": chunk,
            "status": got.status,
            "seconds": got.best_s,
            "predicted_bytes": predicted_bytes(name, shape, chunk),
            "measured_bytes": got.peak_bytes,
        }
        for name in names
        for chunk in chunks
        for got in [
            measure(
                name,
                store,
                chunk_trades=chunk,
                repeats=repeats,
                device=device if name in TORCH else "cpu",
            )
        ]
    ]


def refusals(
    store: Store,
    names: Sequence[str] = REFUSED,
    limits_mib: Sequence[int] = LIMITS_MIB,
    chunk_trades: int = 1 << 20,
) -> list[dict[str, Any]]:
    """Which strategies pass with at most so much private memory (RLIMIT_DATA), and what the allocator says to the others.

    Those that are no streams load their inputs within the limit, as the programs that fail do. One-hot takes all at once.
    """
    rows = []
    for name in names:
        for mib in limits_mib:
            got = measure(
                name,
                store,
                limit_bytes=mib * MIB,
                counts=True,
                chunk_trades=len(store.trades) if name == "one_hot" else chunk_trades,
            )
            rows.append(
                {
                    "strategy": name,
                    "limit": "RLIMIT_DATA",
                    "limit_mib": mib,
                    "status": got.status,
                    "says": got.why,
                    "seconds": got.best_s,
                    "private_bytes": got.private_bytes,
                    "volume": None
                    if got.counts is None
                    else float(got.counts.sum(dtype=np.float64)),
                }
            )
    return rows


def fragmentation(
    store: Store, processes: int = 5, chunk_trades: int = 20_000
) -> list[dict[str, Any]]:
    """A heap that holds far more than it uses: list and cat, over several processes, since runs differ.

    The control is the same program with MALLOC_MMAP_THRESHOLD_=65536, so that each temporary is a mapping of its own and goes
    back at once; and the same arithmetic into buffers made once. This is the host's heap (glibc); it says nothing of a GPU's.
    """
    model = predicted_bytes("list_cat", shape_of(store.trades, store.layout), chunk_trades)
    rows = []
    for label, name, env in (
        ("list and cat", "list_cat", {}),
        (
            "list and cat, MALLOC_MMAP_THRESHOLD_=65536",
            "list_cat",
            {"MALLOC_MMAP_THRESHOLD_": "65536"},
        ),
        ("preallocated", "preallocated", {}),
    ):
        runs = [measure(name, store, chunk_trades=chunk_trades, env=env) for _ in range(processes)]
        peaks = sorted(run.peak_bytes for run in runs if run.peak_bytes is not None)
        rows.append(
            {
                "form": label,
                "processes": len(peaks),
                "live_bytes": model
                if name == "list_cat"
                else predicted_bytes(name, shape_of(store.trades, store.layout), chunk_trades),
                "median_bytes": int(statistics.median(peaks)) if peaks else None,
                "peaks_bytes": peaks,
                "why": next((run.why for run in runs if run.status != "ok"), ""),
            }
        )
    return rows


def orders(trades: Trades, seed: int = 0) -> Iterator[tuple[str, Trades]]:
    """The same trades as traded, shuffled within each session, and all of a session at one price."""
    rng = np.random.default_rng(seed)
    bounds = list(zip(trades.starts.tolist(), trades.starts[1:].tolist(), strict=False))
    order = np.concatenate([rng.permutation(b - a) + a for a, b in bounds])
    first = np.array([trades.price[a] if a < b else 0 for a, b in bounds], trades.price.dtype)
    yield "as traded", trades
    yield "shuffled", replace(trades, price=trades.price[order], volume=trades.volume[order])
    yield "one price", replace(trades, price=np.repeat(first, np.diff(trades.starts)))


def contention(
    trades: Trades,
    names: Sequence[str] = ("fused", "session_add_at", "session_bincount", "preallocated"),
    device: str = "cpu",
    repeats: int = 5,
) -> list[dict[str, Any]]:
    """Seconds of each strategy for each of the orders: a hang need not be memory. Torch's strategies run on ``device``."""
    rows = []
    for label, these in orders(trades):
        with tempfile.TemporaryDirectory(prefix="casebook-order-") as folder:
            store = write_store(Path(folder, "store"), [these])
            for name in names:
                got = measure(
                    name, store, repeats=repeats, device=device if name in TORCH else "cpu"
                )
                rows.append(
                    {
                        "order": label,
                        "strategy": name,
                        "device": got.device,
                        "status": got.status,
                        "seconds": got.best_s,
                    }
                )
    return rows
