"""Figures of the profiles as ratios within one run: what is compared takes turns, so that other load falls on both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench import row

from helpers.ground.units import MIB
from helpers.vpoc.counting import profiles, run, together
from helpers.vpoc.layout import survey
from helpers.vpoc.levels import levels
from helpers.vpoc.measure import measure
from helpers.vpoc.store import write_store
from helpers.vpoc.study import read_jobs
from helpers.vpoc.trades import Array, generated

SESSIONS = 1014
TRADES = 20_000
BINS = 1000
RESULT_MIB = SESSIONS * BINS * 4 / MIB


def rounds(count: int, *jobs: Callable[[], Any]) -> Array:
    """Milliseconds of each job (a row) in each of ``count`` rounds of all of them."""
    found = []
    for _ in range(count):
        for job in jobs:
            began = time.perf_counter()
            job()
            found.append(1e3 * (time.perf_counter() - began))
    return np.array(found).reshape(count, len(jobs)).T


def in_memory(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows for trades in memory; ``folder`` takes a copy for a child."""
    some = generated(SESSIONS, TRADES)
    layout = survey(some, max(BINS, survey(some).bins))
    counts = profiles(some, layout)
    read = read_jobs(some)
    limit, fused, level = rounds(
        30, lambda: together(read), lambda: profiles(some, layout), lambda: levels(counts, layout)
    )
    chunked = rounds(3, lambda: run("chunked", some, layout)).min()
    peak = measure("fused", write_store(folder / "store", some, BINS)).peak_bytes or math.nan
    best = fused.min()
    middle = float(np.median(fused))
    paired = middle / float(np.median(fused / limit))
    head = f"fused, {SESSIONS} x {TRADES} int32, best of {len(fused)}"
    once = "reading every byte once"
    yield row(head, best, "ms", f"{once}, best", limit.min(), "<= 1.6 x")
    name = "the same, median of paired ratios"
    yield row(name, middle, "ms", f"{once} in the same round", paired, "<= 2.0 x")
    name = "POC and value area of all sessions"
    yield row(name, level.min(), "ms", "fused", best, "< 5 ms")
    yield row("np.add.at by chunks", chunked, "ms", "fused", best, ">= 2 x")
    yield row("its peak beyond inputs", peak / MIB, "MiB", "the result", RESULT_MIB, "<= 6 MiB")
