"""Volume profiles by torch, by the strategies under study, on a CPU, a CUDA or a ROCm device: what each needs at its peak.

    python -c "from helpers.torchside.volume_profiles import main; main()" '{"folder": ..., "strategy": "preallocated", ...}'

``folder`` holds raw numbers (price, volume, starts, lows, widths) and layout.json, as helpers/load/vpoc/store.py writes them.
Further keys: ``device`` (cpu, cuda, cuda:1), ``chunk_trades``, ``sessions`` (the first so many), ``every`` (cleanup's cadence),
``repeats``, ``limit_bytes`` (RLIMIT_DATA beyond what is held before the inputs are loaded), ``out`` (a file for the raw
result). One JSON line out. All strategies give the same bits: sums of whole numbers do not depend on their order while the
type of the result counts them exactly, which the layout sees to.
"""

from __future__ import annotations

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


class Work:
    """The inputs on the device, and the layout of the result."""

    def __init__(self, torch: Any, spec: dict[str, Any]):
        self.torch, folder = torch, Path(spec["folder"])
        about = json.loads((folder / "layout.json").read_text())
        self.device = spec.get("device", "cpu")
        self.tick, self.bins = float(about["tick"]), int(about["bins"])
        self.kind = getattr(torch, about["counts"])
        starts = self._read(folder / "starts.bin", torch.int64, len(about["labels"]) + 1)
        self.sessions = min(spec.get("sessions") or len(about["labels"]), len(about["labels"]))
        self.starts: list[int] = starts[: self.sessions + 1].tolist()
        self.lows: list[int] = self._read(
            folder / "lows.bin", torch.int32, len(about["labels"])
        ).tolist()
        self.chunk = max(1, int(spec.get("chunk_trades") or 1 << 20))
        self.every = max(1, int(spec.get("every") or 4))
        self.trades = self.starts[-1]
        self._files = [
            (folder / f"{name}.bin", getattr(torch, about[name])) for name in ("price", "volume")
        ]

    def load(self) -> None:
        self.price, self.volume = (
            self._read(path, kind, self.trades).to(self.device) for path, kind in self._files
        )

    def _read(self, path: Path, kind: Any, count: int) -> Any:
        """The first ``count`` numbers of a file, read into a tensor: a mapping would count as private memory a second time."""
        tensor = self.torch.empty(count, dtype=kind)
        size = count * tensor.element_size()
        if not size:
            return tensor
        view, at = memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B"), 0
        with path.open("rb", buffering=0) as file:
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
        import bisect

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

    def buffers(self, size: int) -> tuple[Any, Any, Any]:
        """Index, points (float prices alone) and volumes (where they are converted) of a chunk."""
        empty = lambda kind: self.torch.empty(size, dtype=kind, device=self.device)  # noqa: E731
        return (
            empty(self.torch.int64),
            empty(self.torch.float64) if self.price.dtype.is_floating_point else None,
            None if self.volume.dtype == self.kind else empty(self.kind),
        )


def _cut(buffer: Any, size: int) -> Any:
    return None if buffer is None else buffer[:size]


def _by_chunks(work: Work, index: Any, points: Any, volume: Any, out: Any) -> Any:
    for a, b in work.chunks(len(index)):
        n = b - a
        out.scatter_add_(
            0, work.index(a, b, index[:n], _cut(points, n)), work.volumes(a, b, _cut(volume, n))
        )
    return out


def preallocated(work: Work) -> Any:
    out = work.result()
    return _by_chunks(work, *work.buffers(max(1, min(work.chunk, work.trades))), out)


def flat(work: Work) -> Any:
    out = work.result()
    return _by_chunks(work, *work.buffers(max(1, work.trades)), out)


class Arena:
    """One slab of bytes, and typed tensors cut from it one after the other, each aligned. MemoryError when it is full."""

    def __init__(self, torch: Any, size_bytes: int, device: str):
        self.slab, self.used, self.torch = (
            torch.empty(size_bytes, dtype=torch.uint8, device=device),
            0,
            torch,
        )

    def take(self, count: int, kind: Any) -> Any:
        size = count * self.torch.empty(0, dtype=kind).element_size()
        if self.used + size > len(self.slab):
            raise MemoryError(
                f"the arena has {len(self.slab) - self.used} of {len(self.slab)} bytes left, {size} asked for"
            )
        cut = self.slab[self.used : self.used + size].view(kind)
        self.used += -(-size // ALIGN) * ALIGN
        return cut

    def reset(self) -> None:
        """All of it may be taken again; nothing is cleared."""
        self.used = 0


def arena(work: Work) -> Any:
    torch, size = work.torch, max(1, min(work.chunk, work.trades))
    floats, wider = work.price.dtype.is_floating_point, work.volume.dtype != work.kind
    kinds = [torch.int64] + [torch.float64] * floats + [work.kind] * wider
    rounded = sum(
        -(-size * torch.empty(0, dtype=kind).element_size() // ALIGN) * ALIGN for kind in kinds
    )
    out, pool = work.result(), Arena(torch, rounded, work.device)
    for a, b in work.chunks(size):
        pool.reset()
        n = b - a
        index, points = pool.take(n, torch.int64), pool.take(n, torch.float64) if floats else None
        volume = pool.take(n, work.kind) if wider else None
        out.scatter_add_(0, work.index(a, b, index, points), work.volumes(a, b, volume))
    return out


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
        if tidy is not None and chunk % work.every == 0:
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
                self.rows.append(
                    row.scatter_add_(
                        0, work.index(a, b, index, points, s), work.volumes(a, b)
                    ).cpu()
                )

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
    """Seconds of each repeat, and the peak of the first one beyond what was held before it."""
    gpu = work.device != "cpu"
    seconds, figures = [], {}
    for repeat in range(repeats):
        gc.collect()
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        else:
            Path("/proc/self/clear_refs").write_text(
                "5"
            )  # the peak starts again from what is resident (proc(5))
            before = status_bytes("VmRSS"), 0
        began = time.perf_counter()
        out = strategy(work)
        if gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        if not repeat:
            peak = torch.cuda.max_memory_allocated() if gpu else status_bytes("VmHWM")
            figures = {
                "peak_bytes": peak - before[0],
                "held_after_bytes": (
                    torch.cuda.memory_allocated() if gpu else status_bytes("VmRSS")
                )
                - before[0],
            }
            if gpu:
                figures["peak_reserved_bytes"] = torch.cuda.max_memory_reserved() - before[1]
    return {"seconds": seconds, "out": out, **figures}


def main() -> None:
    spec = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer: dict[str, Any] = {"strategy": spec["strategy"], "device": spec.get("device", "cpu")}
    try:
        import torch
    except Exception as error:  # noqa: BLE001  a broken torch raises anything: ImportError, OSError of a library, NameError
        answer.update(status="not_available", why=f"torch cannot be imported: {one_line(error)}")
        answers.write(json.dumps(answer) + "\n")
        return
    why = "" if answer["device"] == "cpu" else ": ".join(filter(None, gpu_trouble(torch)))
    if why:
        answers.write(json.dumps({**answer, "status": "not_available", "why": why}) + "\n")
        return
    answer.update(
        torch=str(torch.__version__),
        device_name=answer["device"]
        if answer["device"] == "cpu"
        else torch.cuda.get_device_name(answer["device"]),
    )
    if answer["device"] != "cpu":
        torch.cuda.set_device(answer["device"])
    strategy = STRATEGIES[spec["strategy"]]
    work = Work(torch, spec)
    # Threads, code and tables that a first use brings: on the first sessions, before anything is measured.
    small = Work(torch, {**spec, "sessions": 2})
    small.chunk = min(small.chunk, 1000)
    small.trades = min(small.trades, 2000)
    small.starts = [min(start, small.trades) for start in small.starts]
    small.load()
    strategy(small)
    # Torch's threads start with the first large operation, each with a stack of 8 MiB of address space.
    torch.ones(1 << 18).add_(1)
    del small
    try:
        if spec.get("limit_bytes"):
            most = status_bytes("VmData") + int(spec["limit_bytes"])
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        work.load()
        got = measured(torch, work, strategy, max(1, int(spec.get("repeats", 1))))
        out = got.pop("out")
        if spec.get("out"):
            torch.from_file(spec["out"], shared=True, size=out.numel(), dtype=out.dtype).copy_(
                out.reshape(-1)
            )
        answer.update(got, status="ok")
    except (MemoryError, RuntimeError) as error:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
        words = str(error) or type(error).__name__
        oom = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or "allocate" in words
        answer.update(status="out_of_memory" if oom else "failed", why=one_line(error))
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
