"""What blows up and which chunk is right on a box: the memory it has free, the plan, and the verdict over both."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

from helpers.load.box import is_this_box
from helpers.load.vpoc.memory import Shape, predicted_bytes
from helpers.load.vpoc.planner import Free, Plan, PlanError, free_here, free_on, plan
from helpers.load.vpoc.strategies import STRATEGIES
from helpers.load.vpoc.trades import Store, Trades, survey, write_store
from helpers.look.bundle import Bundle
from helpers.look.gpus import gpus
from helpers.look.machine import machine
from helpers.look.reading import Reading, seen, show_bytes
from helpers.shapes import Evidence, Missing, NextStep, Verdict

USE = ("fused", "preallocated")


def free_of(bundle: Bundle) -> Free:
    """What a box has free for profiles: on its first GPU whose pool is known, else in its RAM."""
    for gpu in gpus(bundle):
        for pool in gpu.pools:
            if pool.total.ok and pool.used.ok:
                left = max(0, int(pool.total.value or 0) - int(pool.used.value or 0))
                return free_on(left, f"{gpu.pci}, {pool.layer}")
    if is_this_box(bundle):
        return free_here()
    available = machine(bundle).ram_available
    if available.ok:
        return Free(int(available.value or 0), "available RAM of the recorded box")
    total = machine(bundle).ram_total
    return Free(
        int(total.value or 0) // 2 if total.ok else 0,
        "half the RAM: what was available is not recorded",
    )


def stored(trades: Trades, bins: int = 1000) -> Store:
    """The trades in a folder of their own, for children to read, with at least so many prices a row; it goes with the store."""
    folder = tempfile.TemporaryDirectory(prefix="casebook-trades-")
    store = write_store(Path(folder.name, "store"), [trades], max(bins, survey(trades).bins))
    weakref.finalize(store, folder.cleanup)
    return store


def plans(
    shape: Shape, free: Free, names: Sequence[str] = tuple(STRATEGIES)
) -> list[tuple[str, Plan | str]]:
    """Each strategy with its plan on that memory, or why it does not fit."""
    found: list[tuple[str, Plan | str]] = []
    for name in names:
        try:
            found.append((name, plan(name, shape, free)))
        except PlanError as error:
            found.append((name, str(error)))
    return found


def verdict(shape: Shape, free: Free, measured: Sequence[dict[str, object]]) -> Verdict:
    """What blows up, what to use, and with which chunk."""
    all_at_once = {
        name: predicted_bytes(name, shape, shape.trades)
        for name in ("one_hot", "flat", "preallocated")
    }
    source = "memory model of the strategies"
    evidence = [
        Evidence(id="free", reading=seen(free.bytes, "bytes", free.says), says="what may be taken"),
        Evidence(
            id="result", reading=_bytes(shape.result_bytes, source), says="the profiles themselves"
        ),
        Evidence(
            id="one-hot",
            reading=_bytes(all_at_once["one_hot"], source),
            says="one-hot over all trades at once, for that result",
        ),
        Evidence(
            id="flat",
            reading=_bytes(all_at_once["flat"], source),
            says="an index for all trades at once",
        ),
    ]
    evidence += [
        Evidence(
            id=f"measured-{row['strategy']}",
            reading=_bytes(int(str(row["measured_bytes"])), "measured here"),
            says=f"{row['strategy']}, its peak beyond the inputs",
        )
        for row in measured
        if row["strategy"] in USE and row["measured_bytes"]
    ]
    against = [
        Evidence(
            id=f"unequal-{row['strategy']}",
            reading=seen(str(row["strategy"]), "text", "measured here"),
            says="gives other counts than the fused pass",
        )
        for row in measured
        if row.get("equal") is False
    ]
    name = "preallocated" if free.gpu else "fused"
    try:
        chosen = plan(name, shape, free)
    except PlanError as error:
        return Verdict(
            cause="true-capacity",
            state="aside",
            confidence="likely",
            summary=str(error),
            evidence=evidence,
            against=against,
            next_step=NextStep(
                what="Stream the file: one pass, a few MiB",
                command="python -m helpers vpoc FILE --tick SIZE --strategy stream_parquet",
            ),
        )
    blows = [
        words
        for words, size in (
            ("one-hot", all_at_once["one_hot"]),
            ("one index for all trades", all_at_once["flat"]),
        )
        if size > free.bytes
    ]
    head = "Nothing tried here would fill this memory"
    if blows:
        head = f"{' and '.join(blows)} would not fit {show_bytes(free.bytes)}"
    how = "this notebook with box = live"
    return Verdict(
        cause="true-capacity" if blows else "other",
        state="aside",
        confidence="likely",
        against=against,
        evidence=evidence,
        summary=f"{head[0].upper()}{head[1:]}; {chosen.says}.",
        missing=[]
        if measured
        else [Missing(reading="the strategies measured on this box", how=how)],
        next_step=NextStep(
            what=f"Count with {name}, {chosen.chunk_trades} trades at a time, into one buffer made once",
            command="python -m helpers vpoc FILE",
        ),
    )


def _bytes(value: int, source: str) -> Reading:
    return seen(value, "bytes", source)
