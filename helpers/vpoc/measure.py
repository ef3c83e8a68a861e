"""One way of counting, measured in a process of its own: its time, peak and counts, or the error of
the allocator under a hard limit.
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

from helpers.ground.child import Ended, json_row, program, watch
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.targets import environment
from helpers.trials.under_torch import frame
from helpers.vpoc.counting import CHUNK_TRADES, profiles, run, strategy_of, threads
from helpers.vpoc.store import TradeStore, open_store
from helpers.vpoc.trades import Array
from helpers.vpoc.under_torch.volume_profiles import measured

HERE = "helpers.vpoc.measure"
UNDER_TORCH = "helpers.vpoc.under_torch.volume_profiles"


class MeasureOrder(TypedDict):
    """What a child has to do.

    ``folder``: of a TradeStore. ``limit_bytes``: the private memory (RLIMIT_DATA) that it may take
    beyond what it has at the start, the inputs included (None: no limit). ``sessions``: count only
    the first so many (None: all; only ways of torch can). ``out``: a file for the raw counts, or
    empty.
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
    """The result of measuring one strategy.

    ``status``: ok, out_of_memory, failed, not_available or timed_out; ``why``: the error.
    ``seconds`` are those of each repeat. ``peak_bytes``: the most memory beyond the inputs.
    ``counts``: only if they were asked for.
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
        """The seconds of the fastest repeat; None where none ended."""
        return min(self.seconds, default=None)


def measure(
    strategy: str,
    store: TradeStore,
    *,
    chunk_trades: int = CHUNK_TRADES,
    device: str = "cpu",
    repeats: int = 1,
    limit_bytes: int | None = None,
    counts: bool = False,
    limit_s: float = 120.0,
    sessions: int | None = None,
    torch_python: str = "",
) -> Measured:
    """Run a strategy in a child; one of torch's runs on ``device``.

    ``counts``: return the counts too. ``limit_s``: seconds for the child. ``limit_bytes`` and
    ``sessions`` are as of MeasureOrder. ``torch_python``: the interpreter that has torch, by
    default that of the set-up. Raises TradesError for an unknown name.
    """
    if strategy_of(strategy).torch:
        module = UNDER_TORCH
        python = torch_python or torch_interpreter()
    else:
        module = HERE
        python = sys.executable
        device = "cpu"
    if device == "cuda":  # a result names the very card
        device = "cuda:0"
    failed = Measured(strategy, "failed", device=device)
    if not shutil.which(python):
        why = f"there is no Python at {python}"
        return replace(failed, status="not_available", why=why)
    replies: list[frame.Row] = []

    def take(line: str) -> None:
        row = json_row(line)
        if "status" in row:
            replies.append(row)

    with tempfile.TemporaryDirectory(prefix="casebook-profile-") as scratch:
        out = Path(scratch, "counts.bin")
        out_or_none = ""
        if counts:
            out_or_none = str(out)
        order: MeasureOrder = {
            "strategy": strategy,
            "folder": str(store.folder.resolve()),
            "device": device,
            "chunk_trades": chunk_trades,
            "repeats": repeats,
            "limit_bytes": limit_bytes,
            "sessions": sessions,
            "out": out_or_none,
        }
        argv = program(python, module, json.dumps(order))
        ended = watch(argv, limit_s, env=environment(), cwd=scratch, on_line=take)
        if not replies:
            status = _status_without_reply(ended)
            why = f"{ended.signal or ended.how}: {ended.last_line}"
            return replace(failed, status=status, why=why)
        table = None
        if out.is_file():
            # a child that failed, or was not asked for counts, writes none
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


def _status_without_reply(ended: Ended) -> str:
    """Why a child printed no row: timed_out, out_of_memory or failed."""
    if ended.how == "timed_out":
        return "timed_out"
    if ended.signal == "SIGKILL":
        # Only the kernel's OOM killer sends it here.
        return "out_of_memory"
    return "failed"


def work(order: MeasureOrder) -> Iterator[frame.Row]:
    """The child's work for ``fused`` and ``chunked``. Yields one row: its figures, or why it
    failed.
    """
    store = open_store(Path(order["folder"]))
    name = order["strategy"]
    # A first use on a few trades compiles code and starts threads; otherwise these, and the stacks
    # of the threads, would count as the strategy's.
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
    except (MemoryError, RuntimeError) as error:
        # RuntimeError: there was no memory for a thread's stack.
        row = {"status": "out_of_memory", "why": frame.one_line(error)}
    yield row


def main() -> None:
    frame.run(work)
