"""Volume profiles by torch, by the strategies under study, on a CPU, a CUDA or a ROCm device: what each needs at its peak.

    python -c "from helpers.torchside.volume_profiles import main; main()" '{"folder": ..., "strategy": "preallocated", ...}'

``folder`` holds raw numbers (price, volume, starts, lows, widths) and layout.json, as helpers/load/vpoc/trades.py writes them.
Further keys: ``device`` (cpu, cuda:1), ``chunk_trades``, ``sessions`` (the first so many), ``repeats``, ``limit_bytes``
(RLIMIT_DATA beyond what is held before the inputs are loaded), ``out`` (a file for the raw result). One JSON line out. All
strategies give the same bits: sums of whole numbers do not depend on their order while the type of the result counts them
exactly, which the layout sees to.
"""

from __future__ import annotations

import bisect
import ctypes
import gc
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from helpers.torchside.device import gpu_trouble, one_line

ALIGN = 512
"""Bytes: the granule of torch's own allocator on a GPU, and enough for any vector load."""
EVERY = 4
"""Chunks between two cleanups."""


class Work:
    """The inputs on the device, and the layout of the result."""

    def __init__(self, torch: Any, spec: dict[str, Any]):
        self.torch, self.folder = torch, Path(spec["folder"])
        self.about = json.loads((self.folder / "layout.json").read_text())
        self.device, self.kind = spec["device"], getattr(torch, self.about["counts"])
        self.tick, self.bins = float(self.about["tick"]), int(self.about["bins"])
        count = len(self.about["labels"])
        self.sessions = min(spec.get("sessions") or count, count)
        self.starts: list[int] = self._read("starts", "int64", self.sessions + 1).tolist()
        self.lows: list[int] = self._read("lows", "int32", self.sessions).tolist()
        self.chunk = max(1, int(spec["chunk_trades"]))
        self.trades = self.starts[-1]

    def cut(self, trades: int) -> None:
        """Leave only the first so many trades."""
        self.trades = min(self.trades, trades)
        self.starts = [min(start, self.trades) for start in self.starts]

    def load(self) -> None:
        self.price, self.volume = (
            self._read(name, self.about[name], self.trades).to(self.device)
            for name in ("price", "volume")
        )

    def _read(self, name: str, kind: str, count: int) -> Any:
        """The first ``count`` numbers of a file, read into a tensor: a mapping would count as private memory a second time."""
        tensor, path = self.torch.empty(count, dtype=getattr(self.torch, kind)), self.folder / name
        size, at = count * tensor.element_size(), 0
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

    def chunks(self, size: int) -> Any:
        return [(a, min(self.trades, a + size)) for a in range(0, self.trades, size)]

    def segments(self, a: int, b: int) -> list[tuple[int, int, int]]:
        """The sessions of trades ``a`` to ``b``: (session, first, last)."""
        s, found = bisect.bisect_right(self.starts, a) - 1, []
        while a < b:
            e = min(b, self.starts[s + 1])
            if a < e:
                found.append((s, a, e))
            a, s = e, s + 1
        return found

    def index(self, a: int, b: int, into: Any, points: Any, row: int = 0) -> Any:
        """Where each trade counts, as int64 in ``into``, from session ``row`` on; ``points``: float64 to divide in.

        A launch for each session: 1014 take a GPU a few ms (computed), and no second index is needed.
        """
        price = self.price[a:b]
        if price.dtype.is_floating_point:
            into.copy_(points.copy_(price).div_(self.tick).round_())
        else:
            into.copy_(price)
        for s, i, e in self.segments(a, b):
            into[i - a : e - a].add_((s - row) * self.bins - self.lows[s])
        return into

    def volumes(self, a: int, b: int, into: Any = None) -> Any:
        """The volumes in the type of the result; ``into`` is where they are converted."""
        part = self.volume[a:b]
        if part.dtype == self.kind:
            return part
        return part.to(self.kind) if into is None else into.copy_(part)

    def buffers(self, size: int) -> list[Any]:
        """Index, points (float prices alone) and volumes (where they are converted) of a chunk."""
        return [
            kind and self.torch.empty(size, dtype=kind, device=self.device)
            for kind in self.buffer_kinds()
        ]

    def buffer_kinds(self) -> list[Any]:
        floats, whole = self.price.dtype.is_floating_point, self.volume.dtype == self.kind
        return [
            self.torch.int64,
            self.torch.float64 if floats else None,
            None if whole else self.kind,
        ]


def _by_chunks(work: Work, out: Any, buffers: list[Any]) -> Any:
    for a, b in work.chunks(len(buffers[0])):
        index, points, volume = (one if one is None else one[: b - a] for one in buffers)
        out.scatter_add_(0, work.index(a, b, index, points), work.volumes(a, b, volume))
    return out


def preallocated(work: Work) -> Any:
    out = work.result()
    return _by_chunks(work, out, work.buffers(max(1, min(work.chunk, work.trades))))


def flat(work: Work) -> Any:
    out = work.result()
    return _by_chunks(work, out, work.buffers(max(1, work.trades)))


def arena(work: Work) -> Any:
    """The same buffers, cut one after the other from one slab of bytes, each aligned."""
    torch, size, out = work.torch, max(1, min(work.chunk, work.trades)), work.result()
    widths = [
        size * torch.empty(0, dtype=kind).element_size() if kind else 0
        for kind in work.buffer_kinds()
    ]
    room = sum(-(-width // ALIGN) * ALIGN for width in widths)
    slab, at = torch.empty(room, dtype=torch.uint8, device=work.device), 0
    buffers = []
    for number, kind in enumerate(work.buffer_kinds()):
        width = widths[number]
        buffers.append(slab[at : at + width].view(kind) if kind else None)
        at += -(-width // ALIGN) * ALIGN
    return _by_chunks(work, out, buffers)


def list_cat(work: Work, tidy: Any = None) -> Any:
    """Each chunk of whole sessions makes temporaries and a result; the results wait in a list for one cat."""
    torch, kept, s, chunk = work.torch, [], 0, 0
    while s < work.sessions:
        last = s + 1
        while last < work.sessions and work.starts[last + 1] - work.starts[s] <= work.chunk:
            last += 1
        a, b = work.starts[s], work.starts[last]
        price = work.price[a:b]
        ticks = (price.double() / work.tick).round() if price.dtype.is_floating_point else price
        index = torch.empty(b - a, dtype=torch.int64, device=work.device)
        for one, i, e in work.segments(a, b):
            index[i - a : e - a] = ticks[i - a : e - a] - (work.lows[one] - (one - s) * work.bins)
        row = torch.zeros((last - s) * work.bins, dtype=work.kind, device=work.device)
        kept.append(row.scatter_add_(0, index, work.volumes(a, b)))
        s, chunk = last, chunk + 1
        if tidy is not None and chunk % EVERY == 0:
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
    """A row of ``bins`` numbers for every trade: 1 where it traded. Times its volume, summed over the trades."""
    torch, out = work.torch, work.result()
    table = out.view(-1, work.bins)
    for a, b in work.chunks(work.chunk):
        index = work.index(a, b, *work.buffers(b - a)[:2])
        for s, i, e in work.segments(a, b):
            index[i - a : e - a].sub_(s * work.bins)
        spread = torch.nn.functional.one_hot(index, work.bins) * work.volumes(a, b)[:, None]
        for s, i, e in work.segments(a, b):
            table[s] += spread[i - a : e - a].sum(0).to(work.kind)
        del spread
    return out


def dataloader(work: Work) -> Any:
    from torch.utils.data import DataLoader, Dataset

    class Profiles(Dataset):
        """Every session's profile, computed once at its start, on the CPU."""

        def __init__(self) -> None:
            self.rows = []
            for s in range(work.sessions):
                a, b = work.starts[s], work.starts[s + 1]
                index, points, _ = work.buffers(b - a)
                row = work.torch.zeros(work.bins, dtype=work.kind, device=work.device)
                row.scatter_add_(0, work.index(a, b, index, points, s), work.volumes(a, b))
                self.rows.append(row.cpu())

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

    out = work.result().view(-1, work.bins)
    at = 0
    for batch in DataLoader(Profiles(), batch_size=64):
        out[at : at + len(batch)] = batch.to(work.device)
        at += len(batch)
    return out


STRATEGIES = {
    one.__name__: one for one in (one_hot, flat, list_cat, preallocated, arena, cleanup, dataloader)
}


def status_bytes(name: str) -> int:
    """A field of /proc/self/status, such as VmRSS."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def measured(torch: Any, work: Work, strategy: Any, repeats: int) -> dict[str, Any]:
    """The result, the seconds of each repeat, and the peak of the first one beyond what was held before it."""
    cuda = torch.cuda if work.device != "cpu" else None
    figures: dict[str, Any] = {"seconds": []}
    for repeat in range(repeats):
        gc.collect()
        if cuda:
            cuda.synchronize()
            cuda.empty_cache()
            cuda.reset_peak_memory_stats()
            before = cuda.memory_allocated()
        else:  # the peak starts again from what is resident (proc(5))
            Path("/proc/self/clear_refs").write_text("5")
            before = status_bytes("VmRSS")
        began = time.perf_counter()
        figures["out"] = None  # the result of the repeat before does not count
        figures["out"] = strategy(work)
        if cuda:
            cuda.synchronize()
        figures["seconds"].append(time.perf_counter() - began)
        if not repeat:
            peak = cuda.max_memory_allocated() if cuda else status_bytes("VmHWM")
            figures["peak_bytes"] = peak - before
    return figures


def carry_out(spec: dict[str, Any]) -> dict[str, Any]:
    """One strategy: how it went, with its figures or why it failed."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001  a broken torch raises anything: ImportError, OSError of a library, NameError
        why = f"torch cannot be imported: {one_line(error)}"
        return {"status": "not_available", "why": why}
    if spec["device"] != "cpu":
        why = ": ".join(filter(None, gpu_trouble(torch)))
        if why:
            return {"status": "not_available", "why": why}
        torch.cuda.set_device(spec["device"])
    strategy, work = STRATEGIES[spec["strategy"]], Work(torch, spec)
    # Threads, code and tables that a first use brings: on the first sessions, before anything is measured.
    few = Work(torch, {**spec, "sessions": 2, "chunk_trades": min(work.chunk, 1000)})
    few.cut(2000)
    few.load()
    strategy(few)
    # Torch's threads start with the first large operation, each with a stack of 8 MiB of address space.
    torch.ones(1 << 18).add_(1)
    del few
    try:
        if spec.get("limit_bytes"):
            most = status_bytes("VmData") + int(spec["limit_bytes"])
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        work.load()
        answer = measured(torch, work, strategy, max(1, int(spec.get("repeats", 1))))
        out = answer.pop("out")
        if spec.get("out"):
            kept = torch.from_file(spec["out"], shared=True, size=out.numel(), dtype=out.dtype)
            kept.copy_(out.reshape(-1))
        return {**answer, "status": "ok"}
    except (MemoryError, RuntimeError) as error:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
        words = str(error) or type(error).__name__
        refused = (
            isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or "allocate" in words
        )
        return {"status": "out_of_memory" if refused else "failed", "why": one_line(error)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answers.write(json.dumps(carry_out(json.loads(sys.argv[1]))) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
