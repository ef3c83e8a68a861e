"""Volume profiles by torch, by the strategies under study, on a CPU, a CUDA or a ROCm device:
what each needs at its peak.

A program; its options: ``folder`` (raw numbers and layout.json, as helpers/vpoc/store.py
writes them), ``strategy``, ``device`` (cpu, cuda:1), ``chunk_trades``, ``sessions`` (the first
so many; null: all), ``repeats``, ``limit_bytes`` (RLIMIT_DATA beyond what is held before the
inputs are loaded; null: none) and ``out`` (a file for the raw result, or empty). Its one row:
status (ok, out_of_memory, failed, not_available), why, seconds of each repeat and peak_bytes.
All strategies give the same bits: sums of whole numbers do not depend on their order while the
type of the result counts them exactly.
"""

from __future__ import annotations

import bisect
import gc
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from helpers.trials.under_torch import frame
from helpers.trials.under_torch.device import Peak, gpu_trouble
from helpers.trials.under_torch.frame import Row, is_oom, one_line

if TYPE_CHECKING:
    from torch import Tensor


class Work:
    """The inputs on the device, cut after ``most_trades`` where that is given, and the layout
    of the result.
    """

    def __init__(self, torch: ModuleType, spec: Row, most_trades: int | None = None):
        self.torch = torch
        self.folder = Path(spec["folder"])
        self.device = spec["device"]
        self.about = json.loads((self.folder / "layout.json").read_text())
        self.bins = int(self.about["bins"])
        self.kind = getattr(torch, self.about["counts"])
        self.sessions = self.about["sessions"]
        if spec["sessions"]:
            self.sessions = min(spec["sessions"], self.sessions)
        starts = self._read("starts", "int64", self.sessions + 1)
        if most_trades is not None:
            starts = starts.clamp(max=most_trades)
        self.starts: list[int] = starts.tolist()
        self.lows: list[int] = self._read("lows", "int32", self.sessions).tolist()
        self.trades = self.starts[-1]
        self.chunk = max(1, int(spec["chunk_trades"]))

    def load(self) -> None:
        """Read the prices and volumes to the device."""
        self.price = self._read("price", "int32", self.trades).to(self.device)
        self.volume = self._read("volume", self.about["volume"], self.trades).to(
            self.device
        )

    def _read(self, name: str, kind: str, count: int) -> Tensor:
        """The first ``count`` numbers of a file, read: a mapping would count as private memory a
        second time.
        """
        dtype = getattr(self.torch, kind)
        if not count:
            empty: Tensor = self.torch.empty(0, dtype=dtype)
            return empty
        content = bytearray(count * dtype.itemsize)
        with (self.folder / f"{name}.bin").open("rb") as file:
            size = file.readinto(content)
        if size < len(content):
            raise OSError(f"{file.name} ends after {size} of {len(content)} bytes")
        numbers: Tensor = self.torch.frombuffer(content, dtype=dtype)
        return numbers

    def result(self) -> Tensor:
        size = self.sessions * self.bins
        zeros: Tensor = self.torch.zeros(size, dtype=self.kind, device=self.device)
        return zeros

    def chunks(self, size: int) -> list[tuple[int, int]]:
        """The first and the end of each chunk of ``size`` trades."""
        return [(a, min(self.trades, a + size)) for a in range(0, self.trades, size)]

    def segments(self, a: int, b: int) -> list[tuple[int, int, int]]:
        """The sessions of trades ``a`` to ``b``: (session, first, last)."""
        first = bisect.bisect_right(self.starts, a) - 1
        last = bisect.bisect_left(self.starts, b)
        cuts = [
            (s, max(a, self.starts[s]), min(b, self.starts[s + 1]))
            for s in range(first, last)
        ]
        return [(s, i, e) for s, i, e in cuts if i < e]

    def index(self, a: int, b: int, into: Tensor, row_bins: int) -> Tensor:
        """Where each trade counts, in a table whose rows are ``row_bins`` wide; 0: in the row
        of its own session.

        A launch for each session: 1014 take a GPU a few ms (computed), and no second index is
        needed.
        """
        into.copy_(self.price[a:b])
        for s, i, e in self.segments(a, b):
            into[i - a : e - a].add_(s * row_bins - self.lows[s])
        return into

    def volumes(self, a: int, b: int) -> Tensor:
        """The volumes in the type of the result."""
        return self.volume[a:b].to(self.kind)

    def counted(self, size: int) -> Tensor:
        """Every trade counted, ``size`` at a time, by buffers that are made once."""
        out = self.result()
        index = self.torch.empty(size, dtype=self.torch.int64, device=self.device)
        converted = None
        if self.volume.dtype != self.kind:
            converted = self.torch.empty(size, dtype=self.kind, device=self.device)
        for a, b in self.chunks(size):
            volume = self.volume[a:b]
            if converted is not None:
                volume = converted[: b - a].copy_(volume)
            out.scatter_add_(0, self.index(a, b, index[: b - a], self.bins), volume)
        return out


def preallocated(work: Work) -> Tensor:
    return work.counted(max(1, min(work.chunk, work.trades)))


def flat(work: Work) -> Tensor:
    return work.counted(max(1, work.trades))


def list_cat(work: Work) -> Tensor:
    """Each chunk of whole sessions makes temporaries and a result; the results wait in a list
    for one cat.
    """
    torch = work.torch
    kept = []
    s = 0
    while s < work.sessions:
        last = s + 1
        while (
            last < work.sessions
            and work.starts[last + 1] - work.starts[s] <= work.chunk
        ):
            last += 1
        a = work.starts[s]
        b = work.starts[last]
        ticks = work.price[a:b]
        index = torch.empty(b - a, dtype=torch.int64, device=work.device)
        for session, i, e in work.segments(a, b):
            row_start = (session - s) * work.bins - work.lows[session]
            index[i - a : e - a] = ticks[i - a : e - a] + row_start
        row = torch.zeros((last - s) * work.bins, dtype=work.kind, device=work.device)
        kept.append(row.scatter_add_(0, index, work.volumes(a, b)))
        s = last
    if not kept:
        return work.result()
    joined: Tensor = torch.cat(kept)
    return joined


def one_hot(work: Work) -> Tensor:
    """A row of ``bins`` numbers for every trade: 1 where it traded, times its volume, summed."""
    out = work.result()
    table = out.view(-1, work.bins)
    for a, b in work.chunks(work.chunk):
        empty = work.torch.empty(b - a, dtype=work.torch.int64, device=work.device)
        index = work.index(a, b, empty, 0)
        spread = (
            work.torch.nn.functional.one_hot(index, work.bins)
            * work.volumes(a, b)[:, None]
        )
        for s, i, e in work.segments(a, b):
            table[s] += spread[i - a : e - a].sum(0).to(work.kind)
        del spread
    return out


STRATEGIES = {way.__name__: way for way in (one_hot, flat, list_cat, preallocated)}


def measured(
    count: Callable[[], object], torch: ModuleType | None, device: str, repeats: int
) -> Row:
    """What ``count`` returns (``out``), the seconds of each repeat, and the peak of the first one
    beyond what was held before it. ``torch`` is asked of a GPU alone.
    """
    cuda = torch.cuda if torch and device != "cpu" else None
    answer: Row = {"seconds": []}
    for repeat in range(repeats):
        answer["out"] = None  # the result of the repeat before does not count
        gc.collect()
        if cuda:
            cuda.synchronize()
            cuda.empty_cache()
        peak = Peak(torch, device)
        began = time.perf_counter()
        answer["out"] = count()
        if cuda:
            cuda.synchronize()
        answer["seconds"].append(time.perf_counter() - began)
        if repeat == 0:
            most = peak.figures()
            answer["peak_bytes"] = most["peak_bytes"] - most["start_bytes"]
    return answer


def work(spec: Row) -> Iterator[Row]:
    """One strategy: how it went, with its figures or why it failed."""
    try:
        torch = frame.import_torch()
        why = ""
        if spec["device"] != "cpu":
            why = ": ".join(filter(None, gpu_trouble(torch)))
    except frame.NoTorch as error:
        why = f"torch cannot be imported: {error}"
    if why:
        yield {"status": "not_available", "why": why}
        return
    if spec["device"] != "cpu":
        torch.cuda.set_device(spec["device"])
    strategy = STRATEGIES[spec["strategy"]]
    work = Work(torch, spec)
    # Threads, code and tables that a first use brings: on the first sessions, before anything
    # is measured.
    few = Work(
        torch, {**spec, "sessions": 2, "chunk_trades": min(work.chunk, 1000)}, 2000
    )
    few.load()
    strategy(few)
    # Torch's threads start with the first large operation, each with a stack of 8 MiB of
    # address space.
    torch.ones(1 << 18).add_(1)
    del few
    try:
        if spec["limit_bytes"]:
            frame.limit_host(spec["limit_bytes"])
        work.load()
        answer = measured(
            partial(strategy, work), torch, work.device, max(1, spec["repeats"])
        )
        out = answer.pop("out")
        if spec["out"]:
            kept = torch.from_file(
                spec["out"], shared=True, size=out.numel(), dtype=out.dtype
            )
            kept.copy_(out.reshape(-1))
        answer["status"] = "ok"
    except (MemoryError, RuntimeError) as error:
        frame.lift_host_limit()
        status = "out_of_memory" if is_oom(torch, error) else "failed"
        answer = {"status": status, "why": one_line(error)}
    yield answer


def main() -> None:
    frame.run(work)
