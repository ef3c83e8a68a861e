"""One way of counting in a process of its own: its time, its peak, its result, or the
allocator's words under a hard limit.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np

from helpers.ground.child import json_row, program, watch
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.targets import environment
from helpers.trials.under_torch import frame
from helpers.vpoc.counting import profiles, run, strategy_of, threads
from helpers.vpoc.store import TradeStore, open_store
from helpers.vpoc.trades import Array
from helpers.vpoc.under_torch.volume_profiles import measured

HERE = "helpers.vpoc.measure"
UNDER_TORCH = "helpers.vpoc.under_torch.volume_profiles"


class MeasureOrder(TypedDict):
    """What a child is asked to do.

    ``limit_bytes`` is of private memory (RLIMIT_DATA) beyond what it holds beforehand, in which
    the inputs must fit too; ``sessions`` the first so many (None: all; torch alone); ``out`` a
    file for the raw counts, or empty.
    """

    strategy: str
    folder: str
    device: str
    chunk_trades: int
    repeats: int
    limit_bytes: int | None
    sessions: int | None
    out: str


@dataclass(frozen=True, eq=False)
class Measured:
    """How one strategy went.

    ``status``: ok, out_of_memory, failed, not_available, timed_out; ``why`` in the allocator's
    words. ``peak_bytes`` is what it took at most beyond the inputs. ``counts`` is kept where it
    was asked for.
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


def measure(
    strategy: str,
    store: TradeStore,
    *,
    chunk_trades: int = 1 << 20,
    device: str = "cpu",
    repeats: int = 1,
    limit_bytes: int | None = None,
    counts: bool = False,
    limit_s: float = 120.0,
    sessions: int | None = None,
    torch_python: str = "",
) -> Measured:
    """Run a strategy in a child, one of torch's on ``device``; limits and sessions as of Order.

    ``torch_python`` is the interpreter that owns torch, the one of the set-up where it is empty.
    Raises TradesError for an unknown name.
    """
    python = sys.executable
    module = HERE
    if not strategy_of(strategy).torch:
        device = "cpu"
    else:
        module = UNDER_TORCH
        python = torch_python or torch_interpreter()
        if device == "cuda":
            device = "cuda:0"
    failed = Measured(strategy, "failed", device=device)
    if not shutil.which(python):
        return replace(
            failed, status="not_available", why=f"there is no Python at {python}"
        )
    replies: list[frame.Row] = []

    def take(line: str) -> None:
        row = json_row(line)
        if "status" in row:
            replies.append(row)

    with tempfile.TemporaryDirectory(prefix="casebook-profile-") as scratch:
        out = Path(scratch, "counts.bin")
        order: MeasureOrder = {
            "strategy": strategy,
            "folder": str(store.folder.resolve()),
            "device": device,
            "chunk_trades": chunk_trades,
            "repeats": repeats,
            "limit_bytes": limit_bytes,
            "sessions": sessions,
            "out": str(out) if counts else "",
        }
        argv = program(python, module, json.dumps(order))
        ended = watch(argv, limit_s, env=environment(), cwd=scratch, on_line=take)
        if not replies:
            status = "timed_out" if ended.how == "timed_out" else "failed"
            if ended.signal == "SIGKILL" and status == "failed":
                status = "out_of_memory"
            why = f"{ended.signal or ended.how}: {ended.last_line}"
            return replace(failed, status=status, why=why)
        table = None
        if out.is_file():
            table = np.fromfile(out, store.layout.counts).reshape(-1, store.layout.bins)
    reply = replies[-1]
    return replace(
        failed,
        status=reply["status"],
        why=reply.get("why", ""),
        seconds=tuple(reply.get("seconds", ())),
        peak_bytes=reply.get("peak_bytes"),
        counts=table,
    )


def work(order: MeasureOrder) -> Iterator[frame.Row]:
    """The child's work for ``fused`` and ``chunked``: one row, how it went or why it failed."""
    store = open_store(Path(order["folder"]))
    name = order["strategy"]
    # Code, threads and tables that a first use brings, on a few trades: the stack of a thread
    # that began later would count as what the strategy takes.
    few = store.trades.in_memory(2000)
    profiles(few, store.layout, threads())
    run(name, few, store.layout, 1000)
    try:
        if order["limit_bytes"]:
            frame.limit_host(order["limit_bytes"])
        trades = store.trades.in_memory()
        count = partial(run, name, trades, store.layout, order["chunk_trades"])
        row = measured(count, None, "cpu", max(1, order["repeats"]))
        table = row.pop("out")
        if order["out"]:
            table.tofile(order["out"])
        row["status"] = "ok"
    except (
        MemoryError,
        RuntimeError,
    ) as error:  # RuntimeError: no room for a thread's stack
        row = {"status": "out_of_memory", "why": frame.one_line(error)}
    yield row


def main() -> None:
    frame.run(work)
