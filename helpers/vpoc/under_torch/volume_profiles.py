"""Volume profiles by torch, by the strategies under study, on a CPU, a CUDA or a ROCm device:
what each needs at its peak.

A program; its options: ``folder`` (raw numbers and layout.json, as helpers/vpoc/trades.py
writes them), ``strategy``, ``device`` (cpu, cuda:1), ``chunk_trades``, ``sessions`` (the first
so many; null: all), ``repeats``, ``limit_bytes`` (RLIMIT_DATA beyond what is held before the
inputs are loaded; null: none) and ``out`` (a file for the raw result, or empty). Its one row:
status (ok, out_of_memory, failed, not_available), why, seconds of each repeat and peak_bytes.
All strategies give the same bits: sums of whole numbers do not depend on their order while the
type of the result counts them exactly.
"""

from __future__ import annotations

import bisect
import ctypes
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from helpers.trials.under_torch import frame
from helpers.trials.under_torch.device import Peak, gpu_trouble
from helpers.trials.under_torch.frame import Row, is_oom, one_line

ALIGN = 512
"""Bytes: the granule of torch's own allocator on a GPU, and enough for any vector load."""
EVERY = 4
"""Chunks between two cleanups."""


class Work:
    """The inputs on the device, cut after ``most_trades`` where that is given, and the layout
    of the result.
    """

    def __init__(self, torch: Any, spec: Row, most_trades: int | None = None):
        self.torch = torch
        self.folder = Path(spec["folder"])
        self.device = spec["device"]
        self.about = json.loads((self.folder / "layout.json").read_text())
        self.tick, self.bins = float(self.about["tick"]), int(self.about["bins"])
        self.kind = getattr(torch, self.about["counts"])
        self.sessions = min(spec["sessions"] or 1 << 62, len(self.about["labels"]))
        starts = self._read("starts", "int64", self.sessions + 1)
        self.starts: list[int] = starts.clamp(max=most_trades or 1 << 62).tolist()
        self.lows: list[int] = self._read("lows", "int32", self.sessions).tolist()
        self.chunk = max(1, int(spec["chunk_trades"]))
        self.trades = self.starts[-1]

    def load(self) -> None:
        self.price, self.volume = (
            self._read(name, self.about[name], self.trades).to(self.device)
            for name in ("price", "volume")
        )
        whole = self.volume.dtype == self.kind
        points = self.torch.float64 if self.price.dtype.is_floating_point else None
        self.kinds = [self.torch.int64, points, None if whole else self.kind]

    def _read(self, name: str, kind: str, count: int) -> Any:
        """The first ``count`` numbers of a file, read into a tensor: a mapping would count as
        private memory a second time.
        """
        tensor = self.torch.empty(count, dtype=getattr(self.torch, kind))
        path = self.folder / name
        size = count * tensor.element_size()
        at = 0
        view = memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
        with path.with_suffix(".bin").open("rb", buffering=0) as file:
            while at < size:
                got = file.readinto(view[at:])
                if not got:
                    raise OSError(f"{path} ends after {at} of {size} bytes")
                at += got
        return tensor

    def result(self) -> Any:
        return self.torch.zeros(self.sessions * self.bins, dtype=self.kind, device=self.device)

    def buffers(self, size: int) -> list[Any]:
        """Of ``size`` trades: index, points (float64 to divide in, of float prices alone),
        volumes (where they are converted).
        """
        return [k and self.torch.empty(size, dtype=k, device=self.device) for k in self.kinds]

    def chunks(self, size: int) -> list[tuple[int, int]]:
        return [(a, min(self.trades, a + size)) for a in range(0, self.trades, size)]

    def segments(self, a: int, b: int) -> list[tuple[int, int, int]]:
        """The sessions of trades ``a`` to ``b``: (session, first, last)."""
        first = bisect.bisect_right(self.starts, a) - 1
        last = bisect.bisect_left(self.starts, b)
        cuts = [(max(a, self.starts[s]), min(b, self.starts[s + 1])) for s in range(first, last)]
        return [(first + at, i, e) for at, (i, e) in enumerate(cuts) if i < e]

    def index(self, a: int, b: int, buffers: list[Any], row_bins: int) -> Any:
        """Where each trade counts, in a table whose rows are ``row_bins`` wide; 0: in the row
        of its own session.

        A launch for each session: 1014 take a GPU a few ms (computed), and no second index is
        needed.
        """
        price = self.price[a:b]
        into = buffers[0][: b - a]
        if price.dtype.is_floating_point:
            price = buffers[1][: b - a].copy_(price).div_(self.tick).round_()
        into.copy_(price)
        for s, i, e in self.segments(a, b):
            into[i - a : e - a].add_(s * row_bins - self.lows[s])
        return into

    def volumes(self, a: int, b: int, into: Any = None) -> Any:
        """The volumes in the type of the result; ``into`` is where they are converted."""
        part = self.volume[a:b]
        if part.dtype == self.kind:
            return part
        return part.to(self.kind) if into is None else into[: b - a].copy_(part)

    def counted(self, out: Any, buffers: list[Any]) -> Any:
        """Every trade counted in ``out``, as many at a time as the buffers hold."""
        for a, b in self.chunks(len(buffers[0])):
            index = self.index(a, b, buffers, self.bins)
            out.scatter_add_(0, index, self.volumes(a, b, buffers[2]))
        return out


def preallocated(work: Work) -> Any:
    out = work.result()
    return work.counted(out, work.buffers(max(1, min(work.chunk, work.trades))))


def flat(work: Work) -> Any:
    out = work.result()
    return work.counted(out, work.buffers(max(1, work.trades)))


def arena(work: Work) -> Any:
    """The same buffers, cut one after the other from one slab of bytes, each aligned."""
    torch = work.torch
    size = max(1, min(work.chunk, work.trades))
    out = work.result()
    kinds = [kind for kind in work.kinds if kind]
    widths = [size * torch.empty(0, dtype=kind).element_size() for kind in kinds]
    rooms = [-(-width // ALIGN) * ALIGN for width in widths]
    slab = torch.empty(sum(rooms), dtype=torch.uint8, device=work.device)
    parts = iter(zip(slab.split(rooms), widths))  # noqa: B905 -- Python 3.9 has no strict
    return work.counted(out, [kind and _cut(*next(parts), kind) for kind in work.kinds])


def _cut(part: Any, width: int, kind: Any) -> Any:
    """The first ``width`` bytes of a part of the slab, as numbers of a kind."""
    return part[:width].view(kind)


def list_cat(work: Work, tidy: Callable[[], None] | None = None) -> Any:
    """Each chunk of whole sessions makes temporaries and a result; the results wait in a list
    for one cat.
    """
    torch = work.torch
    kept = []
    s = 0
    while s < work.sessions:
        last = s + 1
        while last < work.sessions and work.starts[last + 1] - work.starts[s] <= work.chunk:
            last += 1
        a = work.starts[s]
        b = work.starts[last]
        price = work.price[a:b]
        ticks = (price.double() / work.tick).round() if price.dtype.is_floating_point else price
        index = torch.empty(b - a, dtype=torch.int64, device=work.device)
        for one, i, e in work.segments(a, b):
            index[i - a : e - a] = ticks[i - a : e - a] - (work.lows[one] - (one - s) * work.bins)
        row = torch.zeros((last - s) * work.bins, dtype=work.kind, device=work.device)
        kept.append(row.scatter_add_(0, index, work.volumes(a, b)))
        s = last
        if tidy is not None and len(kept) % EVERY == 0:
            del price, ticks, index, row
            tidy()
    return torch.cat(kept) if kept else work.result()


def cleanup(work: Work) -> Any:
    def tidy() -> None:
        gc.collect()
        if work.device != "cpu":
            work.torch.cuda.empty_cache()

    return list_cat(work, tidy)


def one_hot(work: Work) -> Any:
    """A row of ``bins`` numbers for every trade: 1 where it traded.

    Times its volume, summed over the trades.
    """
    out = work.result()
    table = out.view(-1, work.bins)
    for a, b in work.chunks(work.chunk):
        index = work.index(a, b, [*work.buffers(b - a)[:2], None], 0)
        spread = work.torch.nn.functional.one_hot(index, work.bins) * work.volumes(a, b)[:, None]
        for s, i, e in work.segments(a, b):
            table[s] += spread[i - a : e - a].sum(0).to(work.kind)
        del spread
    return out


def dataloader(work: Work) -> Any:
    """Every session's profile computed first and kept on the host, then loaded in batches of 64."""
    from torch.utils.data import DataLoader

    rows = []
    for a, b in zip(work.starts, work.starts[1:]):  # noqa: B905 -- Python 3.9 has no strict
        row = work.torch.zeros(work.bins, dtype=work.kind, device=work.device)
        index = work.index(a, b, work.buffers(b - a), 0)
        rows.append(row.scatter_add_(0, index, work.volumes(a, b)).cpu())
    out = work.result().view(-1, work.bins)
    at = 0
    for batch in DataLoader(rows, batch_size=64):  # type: ignore[arg-type]
        out[at : at + len(batch)] = batch.to(work.device)
        at += len(batch)
    return out


STRATEGIES = {
    one.__name__: one for one in (one_hot, flat, list_cat, preallocated, arena, cleanup, dataloader)
}


def measured(work: Work, strategy: Callable[[Work], Any], repeats: int) -> Row:
    """The result, the seconds of each repeat, and the peak of the first one beyond what was
    held before it.
    """
    cuda = work.torch.cuda if work.device != "cpu" else None
    found: Row = {"seconds": []}
    for repeat in range(repeats):
        found["out"] = None  # the result of the repeat before does not count
        gc.collect()
        if cuda:
            cuda.synchronize()
            cuda.empty_cache()
        peak = Peak(work.torch, work.device)
        began = time.perf_counter()
        found["out"] = strategy(work)
        if cuda:
            cuda.synchronize()
        found["seconds"].append(time.perf_counter() - began)
        if not repeat:
            most = peak.figures()
            found["peak_bytes"] = most["peak_bytes"] - most["start_bytes"]
    return found


def work(spec: Row) -> Iterator[Row]:
    """One strategy: how it went, with its figures or why it failed."""
    try:
        torch = frame.import_torch()
        why = "" if spec["device"] == "cpu" else ": ".join(filter(None, gpu_trouble(torch)))
    except frame.NoTorch as error:
        why = f"torch cannot be imported: {error}"
    if why:
        yield {"status": "not_available", "why": why}
        return
    if spec["device"] != "cpu":
        torch.cuda.set_device(spec["device"])
    strategy = STRATEGIES[spec["strategy"]]
    whole = Work(torch, spec)
    # Threads, code and tables that a first use brings: on the first sessions, before anything
    # is measured.
    few = Work(torch, {**spec, "sessions": 2, "chunk_trades": min(whole.chunk, 1000)}, 2000)
    few.load()
    strategy(few)
    # Torch's threads start with the first large operation, each with a stack of 8 MiB of
    # address space.
    torch.ones(1 << 18).add_(1)
    del few
    try:
        if spec["limit_bytes"]:
            frame.limit_host(spec["limit_bytes"])
        whole.load()
        answer = measured(whole, strategy, max(1, spec["repeats"]))
        out = answer.pop("out")
        if spec["out"]:
            kept = torch.from_file(spec["out"], shared=True, size=out.numel(), dtype=out.dtype)
            kept.copy_(out.reshape(-1))
        answer["status"] = "ok"
    except (MemoryError, RuntimeError) as error:
        frame.lift_host_limit()
        status = "out_of_memory" if is_oom(torch, error) else "failed"
        answer = {"status": status, "why": one_line(error)}
    yield answer


def main() -> None:
    frame.run(work)
