"""What blows up, measured: strategies beside their model, hard limits, a heap that keeps what it does not use, contention.

Each function gives rows (dicts) for a table or a figure. Everything that may die runs in a child.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from helpers.load.vpoc.histogram import cuts, profiles, threads, together
from helpers.load.vpoc.memory import EXACT, LOWER_BOUND, predicted_bytes, shape_of
from helpers.load.vpoc.store import Store, write_store
from helpers.load.vpoc.strategies import NUMPY, TORCH
from helpers.load.vpoc.trades import Trades
from helpers.load.vpoc.trial import STREAMS, Measured, measure
from helpers.look.reading import MIB

LIMITS_MIB = (64, 256, 1024, 4096)
REFUSED = ("flat_bincount", "one_hot", "list_cat", "preallocated", "fused", "stream_mapped", "stream_read")
ONE_HOT_BYTES = 512 * MIB
"""What the one-hot strategy may take while it is measured; the rest is extrapolated and says so."""


def limit_s(trades: Trades, rounds: int = 10) -> float:
    """Seconds that one read of all price and volume bytes takes with every core, the best of ``rounds``: the physical limit."""
    from helpers.load.vpoc.kernels import total

    price, volume = (a.view(f"i{a.itemsize}") for a in (trades.price, trades.volume))
    at, best = cuts(len(trades), threads()), float("inf")
    for _ in range(rounds + 1):
        began = time.perf_counter()
        together([partial(total, price[a:b], volume[a:b]) for a, b in zip(at, at[1:], strict=False)])
        best = min(best, time.perf_counter() - began)
    return best


def strategies(store: Store, names: Sequence[str] = (*NUMPY, *STREAMS[:2], *TORCH), chunk_trades: int = 1 << 20,
               device: str = "cpu", repeats: int = 5) -> list[dict[str, Any]]:
    """The strategy table: seconds, times the limit, predicted and measured peak, equal or not. One-hot runs on as few sessions
    as fit ONE_HOT_BYTES, its figures extrapolated in a straight line (``sessions`` says how many ran)."""
    in_memory = replace(store.trades, price=np.array(store.trades.price), volume=np.array(store.trades.volume))
    limit, want = limit_s(in_memory), profiles(in_memory, store.layout)
    del in_memory
    shape, rows = shape_of(store.trades, store.layout), []
    for name in names:
        some, chunk, scale = None, chunk_trades, 1.0
        if name == "one_hot":
            chunk = max(1, ONE_HOT_BYTES // (24 * shape.bins))
            some = max(1, min(shape.sessions, int(np.searchsorted(store.trades.starts, chunk, side="right")) - 1))
            ran = max(1, int(store.trades.starts[some]))
            chunk, scale = ran, shape.trades / ran
        got = measure(name, store, chunk_trades=chunk, device=device if name in TORCH else "cpu",
                      repeats=1 if name == "one_hot" else repeats, counts=True, sessions=some)
        model = None if name == "stream_parquet" else predicted_bytes(name, shape, shape.trades if some else chunk)
        peak = None if got.peak_bytes is None else int(got.peak_bytes * scale)
        rows.append({"strategy": name, "status": got.status, "why": got.why, "device": got.device,
                     "seconds": None if got.best_s is None else got.best_s * scale,
                     "times_limit": None if got.best_s is None else got.best_s * scale / limit, "predicted_bytes": model,
                     "measured_bytes": peak, "equal": None if got.counts is None else
                     bool(np.array_equal(got.counts, want[:len(got.counts)])), "sessions": some or shape.sessions,
                     "model": "exact" if name in EXACT else "lower bound" if name in LOWER_BOUND else
                     "file pages not in it" if name == "stream_mapped" else "temporaries"})
    return rows


def chunk_curve(store: Store, chunks: Sequence[int], names: Sequence[str] = ("list_cat", "preallocated", "chunks_bincount"),
                device: str = "cpu", repeats: int = 3) -> list[dict[str, Any]]:
    """Time and peak, measured and predicted, at each chunk size."""
    shape = shape_of(store.trades, store.layout)
    return [{"strategy": name, "chunk_trades": chunk, "status": got.status, "seconds": got.best_s,
             "predicted_bytes": predicted_bytes(name, shape, chunk), "measured_bytes": got.peak_bytes}
            for name in names for chunk in chunks
            for got in [measure(name, store, chunk_trades=chunk, repeats=repeats,
                                device=device if name in TORCH else "cpu")]]


def refusals(store: Store, names: Sequence[str] = REFUSED, limits_mib: Sequence[int] = LIMITS_MIB,
             chunk_trades: int = 1 << 20) -> list[dict[str, Any]]:
    """Which strategies pass with at most so much private memory (RLIMIT_DATA), and what the allocator says to the others.

    Those that are no streams load their inputs within the limit, as the programs that fail do. One-hot takes all at once.
    """
    rows = []
    for name in names:
        for mib in limits_mib:
            got = measure(name, store, limit_bytes=mib * MIB, counts=True,
                          chunk_trades=len(store.trades) if name == "one_hot" else chunk_trades)
            rows.append({"strategy": name, "limit": "RLIMIT_DATA", "limit_mib": mib, "status": got.status, "says": got.why,
                         "seconds": got.best_s, "private_bytes": got.private_bytes,
                         "volume": None if got.counts is None else float(got.counts.sum(dtype=np.float64))})
    return rows


def cgroup_refusals(store: Store, names: Sequence[str] = ("flat_bincount", "stream_read"),
                    limit_mib: int = 512) -> list[dict[str, Any]]:
    """The same under a memory control group, where this user may make one: the kernel then kills instead of refusing."""
    rows = []
    for name in names:
        try:
            with _cgroup(limit_mib * MIB) as group:
                got = measure(name, store, cgroup=group, repeats=1)
        except OSError as error:
            got = Measured(name, "not_available", f"no memory control group can be made here: {error.strerror or error}")
        rows.append({"strategy": name, "limit": "cgroup", "limit_mib": limit_mib, "status": got.status, "says": got.why,
                     "seconds": got.best_s})
    return rows


@contextmanager
def _cgroup(limit_bytes: int) -> Iterator[Path]:
    """A memory control group below this process's own. Raises OSError where that is not allowed."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = next((path for _, kinds, path in lines if "memory" in kinds.split(",")), None)
    base, most = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes") if own is not None else
                  (Path("/sys/fs/cgroup"), "memory.max"))
    own = own if own is not None else next((path for number, _, path in lines if number == "0"), "/")
    group = base / own.lstrip("/") / f"casebook-{os.getpid()}"
    group.mkdir()
    try:
        (group / most).write_text(str(limit_bytes))
        if most == "memory.max" and (group / "memory.swap.max").exists():
            (group / "memory.swap.max").write_text("0")
        yield group
    finally:
        group.rmdir()


def fragmentation(store: Store, processes: int = 5, chunk_trades: int = 20_000) -> list[dict[str, Any]]:
    """A heap that holds far more than it uses: list and cat, over several processes, since runs differ.

    The control is the same program with MALLOC_MMAP_THRESHOLD_=65536, so that each temporary is a mapping of its own and goes
    back at once; and the same arithmetic into buffers made once. This is the host's heap (glibc); it says nothing of a GPU's.
    """
    model = predicted_bytes("list_cat", shape_of(store.trades, store.layout), chunk_trades)
    rows = []
    for label, name, env in (("list and cat", "list_cat", {}),
                             ("list and cat, MALLOC_MMAP_THRESHOLD_=65536", "list_cat", {"MALLOC_MMAP_THRESHOLD_": "65536"}),
                             ("preallocated", "preallocated", {})):
        runs = [measure(name, store, chunk_trades=chunk_trades, env=env) for _ in range(processes)]
        peaks = sorted(run.peak_bytes for run in runs if run.peak_bytes is not None)
        rows.append({"form": label, "processes": len(peaks), "live_bytes": model if name == "list_cat" else
                     predicted_bytes(name, shape_of(store.trades, store.layout), chunk_trades),
                     "median_bytes": int(statistics.median(peaks)) if peaks else None, "peaks_bytes": peaks,
                     "why": next((run.why for run in runs if run.status != "ok"), "")})
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


def contention(trades: Trades, names: Sequence[str] = ("fused", "session_add_at", "session_bincount", "preallocated"),
               device: str = "cpu", repeats: int = 5) -> list[dict[str, Any]]:
    """Seconds of each strategy for each of the orders: a hang need not be memory. Torch's strategies run on ``device``."""
    rows = []
    for label, these in orders(trades):
        with tempfile.TemporaryDirectory(prefix="casebook-order-") as folder:
            store = write_store(Path(folder, "store"), [these])
            for name in names:
                got = measure(name, store, repeats=repeats, device=device if name in TORCH else "cpu")
                rows.append({"order": label, "strategy": name, "device": got.device, "status": got.status,
                             "seconds": got.best_s})
    return rows
