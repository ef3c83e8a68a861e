"""A program that counts volume profiles by one of torch's strategies, on a CPU, a CUDA or a ROCm
device, and measures its time and peak memory.

Its options are those of helpers/vpoc/measure.py (MeasureOrder), as JSON. It prints one row: status
(ok, out_of_memory, failed, not_available), why, the seconds of each repeat, and peak_bytes.

All strategies give the same bits: sums of whole numbers do not depend on their order as long as the
type of the result has all of their digits.
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
    """The inputs of a store on a device, and the layout of the result.

    ``spec``: the options of this program. ``most_trades``: use only the first so many.
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
        """The first ``count`` numbers of a file. They are read, because the limit on private memory
        counts a private mapping too.
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
        """A flat table of zeros, with ``bins`` counts for each session."""
        size = self.sessions * self.bins
        zeros: Tensor = self.torch.zeros(size, dtype=self.kind, device=self.device)
        return zeros

    def chunks(self, size: int) -> list[tuple[int, int]]:
        """The first trade of each chunk of ``size`` trades, and the one after its last."""
        firsts = range(0, self.trades, size)
        return [(first, min(self.trades, first + size)) for first in firsts]

    def segments(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """The parts of sessions in a chunk of trades: the session, its first trade in the chunk,
        and the one after its last.
        """
        first_session = bisect.bisect_right(self.starts, first) - 1
        end_session = bisect.bisect_left(self.starts, end)
        segments = []
        for session in range(first_session, end_session):
            begins = max(first, self.starts[session])
            ends = min(end, self.starts[session + 1])
            if begins < ends:
                segments.append((session, begins, ends))
        return segments

    def index(self, first: int, end: int, into: Tensor, row_bins: int) -> Tensor:
        """Write the index of each trade of a chunk to ``into``, for a flat table whose rows have
        ``row_bins`` counts; 0: the index within the row of its session.

        This launches a kernel for each session: 1014 take a GPU a few ms (computed), and no second
        index is needed.
        """
        into.copy_(self.price[first:end])
        for session, begins, ends in self.segments(first, end):
            of_session = into[begins - first : ends - first]
            of_session.add_(session * row_bins - self.lows[session])
        return into

    def volumes(self, first: int, end: int) -> Tensor:
        """The volumes of a chunk in the type of the result."""
        return self.volume[first:end].to(self.kind)

    def counted(self, size: int) -> Tensor:
        """The profiles, counted in chunks of ``size`` trades with buffers that are
        allocated once.
        """
        out = self.result()
        index = self.torch.empty(size, dtype=self.torch.int64, device=self.device)
        converted = None
        if self.volume.dtype != self.kind:
            converted = self.torch.empty(size, dtype=self.kind, device=self.device)
        for first, end in self.chunks(size):
            volume = self.volume[first:end]
            if converted is not None:
                volume = converted[: end - first].copy_(volume)
            chunk_index = self.index(first, end, index[: end - first], self.bins)
            out.scatter_add_(0, chunk_index, volume)
        return out


def preallocated(work: Work) -> Tensor:
    """In chunks, with buffers that are allocated once."""
    return work.counted(max(1, min(work.chunk, work.trades)))


def flat(work: Work) -> Tensor:
    """All trades at once, with one index."""
    return work.counted(max(1, work.trades))


def list_cat(work: Work) -> Tensor:
    """In chunks of whole sessions, each with temporaries and a result of its own; the results are
    kept in a list and joined at the end.
    """
    torch = work.torch
    results = []
    session = 0
    while session < work.sessions:
        end_session = _end_of_chunk(work, session)
        first = work.starts[session]
        end = work.starts[end_session]
        ticks = work.price[first:end]
        index = torch.empty(end - first, dtype=torch.int64, device=work.device)
        for segment_session, begins, ends in work.segments(first, end):
            row = segment_session - session
            to_index = row * work.bins - work.lows[segment_session]
            index[begins - first : ends - first] = (
                ticks[begins - first : ends - first] + to_index
            )
        size = (end_session - session) * work.bins
        result = torch.zeros(size, dtype=work.kind, device=work.device)
        results.append(result.scatter_add_(0, index, work.volumes(first, end)))
        session = end_session
    if not results:
        return work.result()
    joined: Tensor = torch.cat(results)
    return joined


def _end_of_chunk(work: Work, session: int) -> int:
    """The session after the last that fits a chunk from ``session`` on; a chunk has at
    least one.
    """
    end = session + 1
    while end < work.sessions:
        trades = work.starts[end + 1] - work.starts[session]
        if trades > work.chunk:
            break
        end += 1
    return end


def one_hot(work: Work) -> Tensor:
    """In chunks, with a row of ``bins`` numbers for each trade: its volume at its tick,
    and zeros.
    """
    torch = work.torch
    out = work.result()
    table = out.view(-1, work.bins)
    for first, end in work.chunks(work.chunk):
        empty = torch.empty(end - first, dtype=torch.int64, device=work.device)
        index = work.index(first, end, empty, 0)
        ticks = torch.nn.functional.one_hot(index, work.bins)
        spread = ticks * work.volumes(first, end)[:, None]
        del ticks
        for session, begins, ends in work.segments(first, end):
            of_session = spread[begins - first : ends - first]
            table[session] += of_session.sum(0).to(work.kind)
        del spread
    return out


STRATEGIES = {way.__name__: way for way in (one_hot, flat, list_cat, preallocated)}


def measured(
    count: Callable[[], object], torch: ModuleType | None, device: str, repeats: int
) -> Row:
    """Call ``count`` several times, and measure it.

    Returns its last result as ``out``, the ``seconds`` of each repeat, and ``peak_bytes``: the most
    memory of the first repeat beyond that before it. ``torch`` is needed only for a GPU.
    """
    cuda = None
    if torch and device != "cpu":
        cuda = torch.cuda
    answer: Row = {"seconds": []}
    for repeat in range(repeats):
        answer["out"] = None  # an earlier result must not add to the peak
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
    """Measure one strategy. Yields one row: its figures, or why it failed."""
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
    # A first use on a few trades loads code and starts threads, which would count as the
    # strategy's.
    few_trades = {**spec, "sessions": 2, "chunk_trades": min(work.chunk, 1000)}
    few = Work(torch, few_trades, most_trades=2000)
    few.load()
    strategy(few)
    # Torch starts its threads for an operation on more than 32,768 elements
    # (at::internal::GRAIN_SIZE), each with a stack of 8 MiB of address space.
    torch.ones(1 << 18).add_(1)
    del few
    try:
        if spec["limit_bytes"]:
            frame.limit_host(spec["limit_bytes"])
        work.load()
        count = partial(strategy, work)
        answer = measured(count, torch, work.device, max(1, spec["repeats"]))
        out = answer.pop("out")
        if spec["out"]:
            # A file that is mapped as a tensor, so that the counts are written without a copy.
            file = torch.from_file(
                spec["out"], shared=True, size=out.numel(), dtype=out.dtype
            )
            file.copy_(out.reshape(-1))
        answer["status"] = "ok"
    except (MemoryError, RuntimeError) as error:
        frame.lift_host_limit()
        status = "failed"
        if is_oom(torch, error):
            status = "out_of_memory"
        answer = {"status": status, "why": one_line(error)}
    yield answer


def main() -> None:
    frame.run(work)
