"""Figures of the profiles as ratios within one run. Rounds in which others took the cores are dropped and counted."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from helpers.load.vpoc import sample
from helpers.load.vpoc.histogram import profiles, stream_mapped, stream_read, threads, together
from helpers.load.vpoc.profile import levels
from helpers.load.vpoc.strategies import case_histogram, run
from helpers.load.vpoc.study import measure, read_jobs
from helpers.load.vpoc.trades import Trades, survey, write_store
from helpers.look.reading import MIB

SESSIONS, TRADES, LONG, BINS = 1014, 20_000, 200_000, 1000
FOREIGN_CORES = 0.15
"""A round counts while others use less than this of the cores that this process may use."""


def _clocks() -> tuple[float, float, float]:
    """Seconds on the wall, of CPU that all processes have used (proc(5): /proc/stat, user and system), and this one."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    busy = sum(int(fields[i]) for i in (1, 2, 3, 6, 7, 8)) / 100
    return time.perf_counter(), busy, time.process_time()


def rounds(
    jobs: dict[str, Callable[[], Any]], count: int = 30, at_most_s: float = 120.0
) -> tuple[dict[str, list[float]], int]:
    """Seconds of each job in ``count`` interleaved rounds, and how many rounds were dropped for foreign load.

    Load is told in ticks of 10 ms, so it is judged over each ten rounds together. After ``at_most_s`` the least disturbed stay.
    """
    until, calm = time.perf_counter() + at_most_s, 0
    groups: list[tuple[float, list[dict[str, float]]]] = []
    while calm < count and time.perf_counter() < until:
        began, group = _clocks(), []
        for _ in range(10):
            took = {}
            for name, job in jobs.items():
                start = time.perf_counter()
                job()
                took[name] = time.perf_counter() - start
            group.append(took)
        wall, busy, own = (now - then for now, then in zip(_clocks(), began, strict=True))
        load = max(0.0, busy - own) / max(1e-9, wall)
        calm += len(group) * (load <= FOREIGN_CORES)
        groups.append((load, group))
    groups.sort(key=lambda pair: pair[0])
    every = [one for _, group in groups for one in group]
    return {name: [one[name] for one in every[:count]] for name in jobs}, len(every[count:])


def _row(
    name: str, value: float, unit: str, ratio_to: str, base: float, goal: str
) -> dict[str, Any]:
    about = {"name": name, "value": round(value, 3), "unit": unit, "ratio_to": ratio_to}
    machine = f"{platform.machine()}, {threads()} cores, Python {platform.python_version()}"
    return {**about, "ratio": round(value / base, 2), "goal": goal, "machine": machine}


def _long(sessions: int, trades: int) -> Iterator[Trades]:
    short = sample.generated(8, trades, 1)
    for first in range(0, sessions, 8):
        yield short.take(0, min(8, sessions - first))


def bench() -> list[dict[str, Any]]:
    """Rows of {name, value, unit, ratio_to, ratio, goal, machine}. The files take 1.6 GB for a while."""
    with tempfile.TemporaryDirectory(prefix="casebook-bench-") as folder:
        return [*in_memory(), *streams(Path(folder, "long"))]


def in_memory() -> list[dict[str, Any]]:
    """Rows for trades in memory."""
    some = sample.generated(SESSIONS, TRADES)
    layout = survey(some, max(BINS, survey(some).bins))
    counts, read = profiles(some, layout), read_jobs(some)
    fused_ms, dropped = rounds(
        {
            "limit": lambda: together(read),
            "fused": lambda: profiles(some, layout),
            "levels": lambda: levels(counts, layout),
        }
    )
    slow, _ = rounds(
        {
            "bincount": lambda: run("session_bincount", some, layout),
            "case": lambda: case_histogram(some),
        },
        3,
        20.0,
    )
    limit, fused, level = (1e3 * np.array(seconds) for seconds in fused_ms.values())
    bincount, case = (1e3 * min(seconds) for seconds in slow.values())
    with tempfile.TemporaryDirectory(prefix="casebook-bench-") as folder:
        peak = measure("fused", write_store(Path(folder, "small"), [some], BINS)).peak_bytes or 0
    best, middle = fused.min(), float(np.median(fused))
    paired = middle / float(np.median(fused / limit))
    head = f"fused, {SESSIONS} x {TRADES} int32, best of {len(fused)} ({dropped} rounds dropped)"
    result_mib, once = SESSIONS * BINS * 4 / MIB, "reading every byte once, best"
    return [
        _row(head, best, "ms", once, limit.min(), "<= 1.6 x"),
        _row(
            "the same, median of paired ratios",
            middle,
            "ms",
            "the limit of the same round",
            paired,
            "<= 2.0 x",
        ),
        _row("POC and value area of all sessions", level.min(), "ms", "fused", best, "< 5 ms"),
        _row("np.bincount a session", bincount, "ms", "fused", best, ">= 5 x"),
        _row("the case's np.histogram", case, "ms", "fused", best, ">= 30 x"),
        _row("its peak beyond inputs", peak / MIB, "MiB", "the result", result_mib, "<= 6 MiB"),
    ]


def streams(folder: Path) -> list[dict[str, Any]]:
    """Rows for files: trades written to ``folder`` (8 bytes each), streamed, and beside them the same trades in memory."""
    store = write_store(folder, _long(SESSIONS, LONG), BINS)
    inside = store.trades.in_memory()
    took, dropped = rounds(
        {
            "fused": lambda: profiles(inside, store.layout),
            "stream_read": lambda: stream_read(store),
            "stream_mapped": lambda: stream_mapped(store),
        },
        10,
        60.0,
    )
    base, *streamed = ((name, 1e3 * min(seconds)) for name, seconds in took.items())
    size = f"{SESSIONS} x {LONG}, {len(inside) * 8 / 1e9:.2f} GB ({dropped} rounds dropped)"
    peak = measure("stream_read", store, limit_bytes=64 * MIB).peak_bytes or 0
    result_mib = SESSIONS * BINS * 4 / MIB
    own = "stream_read, private memory at its peak"
    return [
        *(
            _row(f"{name}, {size}", ms, "ms", "the same in memory", base[1], "<= 8 x")
            for name, ms in streamed
        ),
        _row(own, peak / MIB, "MiB", "its result", result_mib, "<= 20 MiB"),
    ]
