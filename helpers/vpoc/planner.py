"""What does a way of counting need at its peak, beyond its inputs, and how many trades at a
time are right here?

The peak is told in closed form, to print beside what was measured. A preallocated chunk, an
arena and the fused pass are exact to 1 MiB on a CPU (tested): what they take they take once.
The others are what their temporaries add up to; list and cat is a lower bound, since the host's
heap keeps more (see the study). A chunk is as many trades as fit the free memory, and no more
than the cache likes; trades are counted, not sessions: neighbouring real sessions differ 8 to 1
in length.
"""

from __future__ import annotations

import resource
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.ground.child import field
from helpers.ground.units import KIB, MIB, show_bytes
from helpers.look.bundle import BundleWriter
from helpers.look.files import read
from helpers.look.machine import FILES, cgroup_files, machine
from helpers.vpoc.histogram import BLOCK_TRADES, STRATEGIES, threads
from helpers.vpoc.trades import Layout, Trades

_KERNEL_ROWS = 8 * 1040
SHARE = 0.8
"""Of the free memory; the rest is for what others take meanwhile, and for a heap's own rounding."""
LEAST_TRADES = 1 << 16
"""Below this the calls cost more than the counting; memory goes before it."""
GPU_CHUNK_BYTES = 64 * MIB
"""Ample for a GPU's full bandwidth (computed from launch time and bandwidth, not measured)."""


@dataclass(frozen=True)
class Shape:
    """The sizes that the model needs, and the types of a volume and of a count; a price is int32."""

    trades: int
    sessions: int
    longest: int
    bins: int
    volume: str = "int32"
    counts: str = "int32"

    @property
    def count_bytes(self) -> int:
        return np.dtype(self.counts).itemsize

    @property
    def converted_bytes(self) -> int:
        """Of a volume in the type of the counts, where that is another type."""
        return self.count_bytes if self.counts != self.volume else 0

    @property
    def bytes_a_trade(self) -> int:
        return 4 + np.dtype(self.volume).itemsize

    @property
    def result_bytes(self) -> int:
        return self.sessions * self.bins * self.count_bytes


def shape_of(trades: Trades, layout: Layout) -> Shape:
    """The shape of these trades under this layout."""
    longest = int(np.diff(trades.starts).max(initial=0))
    kinds = trades.volume.dtype.name, layout.counts
    return Shape(len(trades), trades.sessions, longest, layout.bins, *kinds)


def _per_trade_bytes(strategy: str, shape: Shape) -> int:
    """What each trade of a chunk costs while the chunk is counted."""
    if strategy.endswith("_bincount"):
        return 16
    if strategy.startswith("session_"):
        return (20 if strategy == "session_histogram" else 4) + shape.converted_bytes
    # one_hot is int64. Times whole volumes the product is int64 too; times others it is theirs,
    # and torch copies the int64 to that type first.
    product = 2 * shape.count_bytes if shape.counts == "float64" else 8
    hot = shape.bins * (8 + product) if strategy == "one_hot" else 0
    return hot + 8 + shape.converted_bytes


def predicted_bytes(strategy: str, shape: Shape, chunk_trades: int = 1 << 20) -> int:
    """The peak beyond the inputs."""
    chunk = max(1, min(chunk_trades, shape.trades))
    result = shape.result_bytes
    count = shape.count_bytes
    each = _per_trade_bytes(strategy, shape)
    if strategy in ("fused", "fused_one_thread", "stream_read"):
        many = 1 if strategy == "fused_one_thread" else threads()
        block = BLOCK_TRADES * shape.bytes_a_trade if strategy == "stream_read" else 0
        return result + many * (_KERNEL_ROWS + shape.bins) * count + block
    if strategy in ("preallocated", "arena", "one_hot"):
        return result + chunk * each
    if strategy == "flat":
        return result + shape.trades * each
    if strategy == "dataloader":
        return 2 * result + shape.longest * 8
    if strategy in ("list_cat", "cleanup"):
        rows = -(-chunk // max(1, shape.longest))
        return max(2 * result, result + chunk * each + rows * shape.bins * count)
    if strategy == "flat_bincount":
        return shape.trades * each + 8 * shape.sessions * shape.bins
    if strategy == "chunks_bincount":
        rows = chunk * shape.sessions // max(1, shape.trades) + 2
        return result + chunk * each + rows * shape.bins * (8 + count)
    return result + shape.longest * each + 8 * shape.bins  # a session at a time


BOUNDS = {
    "memory": "more would not fit",
    "cache": "more would leave the cache",
    "bandwidth": "it keeps a GPU busy (computed)",
    "all": "that is all of them",
}
"""Why a chunk is no larger, in words."""


class NoRoomError(ValueError):
    """What is to be counted does not fit, whatever the chunk: one line with what would."""


@dataclass(frozen=True)
class Free:
    """Free memory and the limit that says so; ``cache_bytes`` is the last cache's size (0: not
    known, or a GPU), ``card_bytes`` the whole of a GPU's memory (0: not known, or none).
    """

    bytes: int
    says: str
    cache_bytes: int = 0
    gpu: bool = False
    card_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """``chunk_trades`` trades at a time; ``bound``: a name of BOUNDS. ``says`` is the sentence."""

    strategy: str
    chunk_trades: int
    chunks: int
    bound: str
    peak_bytes: int
    free: Free

    @property
    def take(self) -> str:
        """The size of chunk to take."""
        many = f"{self.chunks} chunks" if self.chunks > 1 else "one chunk"
        return f"{self.chunk_trades:,} trades at a time, in {many}"

    @property
    def says(self) -> str:
        return (
            f"{self.strategy}: {self.take} ({BOUNDS[self.bound]}); at most {show_bytes(self.peak_bytes)} beyond the inputs; "
            f"{show_bytes(self.free.bytes)} free ({self.free.says})"
        )


def plan(strategy: str, shape: Shape, free: Free, inputs_resident: bool = True) -> Plan:
    """The chunk for a strategy.

    ``inputs_resident``: the inputs already take their memory, so that ``free`` is without them.

    Raises NoRoomError where not even one trade at a time would fit; for a strategy that takes
    all at once that is all trades.
    """
    inputs = 0 if inputs_resident else shape.trades * shape.bytes_a_trade
    budget = int(free.bytes * SHARE) - inputs
    trades = max(1, shape.trades)
    chunked = STRATEGIES[strategy].chunked

    def peak(chunk: int) -> int:
        # A GPU reserves in pieces of 2 MiB, and 20 MiB for the middling sizes: every buffer may
        # be rounded up to that.
        return predicted_bytes(strategy, shape, chunk) + 4 * 20 * MIB * free.gpu

    need = peak(1 if chunked else trades)
    if need > budget:
        what = "one trade at a time" if chunked else "all trades at once, as it does,"
        raise NoRoomError(
            f"{strategy} with {what} needs {need / MIB:.1f} MiB and {max(0, budget) / MIB:.1f} MiB may be taken "
            f"({free.says}): stream the file with stream_read, or count fewer sessions at a time"
        )
    if not chunked:
        return Plan(strategy, trades, 1, "all", need, free)
    fits = bisect_right(range(1, trades + 1), budget, key=peak)
    fast = GPU_CHUNK_BYTES if free.gpu else free.cache_bytes // 2
    each = _per_trade_bytes(strategy, shape) + 4
    liked = max(LEAST_TRADES, fast // each) if fast else trades
    enough = "bandwidth" if free.gpu else "cache"
    bound = enough if fits > liked else "all" if fits == trades else "memory"
    chunk = min(fits, liked)
    return Plan(strategy, chunk, -(-trades // chunk), bound, peak(chunk), free)


def free_here(root: Path = Path("/")) -> Free:
    """What this process may still take: the least of available RAM, its control groups' rest,
    and RLIMIT_DATA and RLIMIT_AS.
    """
    writer = BundleWriter("this box", "live", "", "")
    for source in {*FILES, *cgroup_files(root)}:
        content, status, why = read(str(root), source)
        writer.add("file", source, content, status=status, why=why)
    facts = machine(writer.bundle())
    rests = [(int(facts.ram_available.value or 0), "available RAM")] * facts.ram_available.ok
    for limit, says in (
        (facts.cgroup_limit, "the memory control group's rest"),
        (facts.cgroup_high, "the control group's rest up to memory.high"),
    ):
        if limit.ok and facts.cgroup_used.ok:
            rests.append((int(limit.value or 0) - int(facts.cgroup_used.value or 0), says))
    for name, used in (("RLIMIT_DATA", "VmData:"), ("RLIMIT_AS", "VmSize:")):
        most = resource.getrlimit(getattr(resource, name))[0]
        if most != resource.RLIM_INFINITY:
            held = (field("/proc/self/status", used) or 0) * KIB
            rests.append((most - held, f"{name}'s rest"))
    least, says = min(rests, default=(0, "nothing says how much memory is free"))
    return Free(max(0, least), says, cache_bytes(root))


def free_on(device_free_bytes: int, device: str, card_bytes: int = 0) -> Free:
    """Free memory of a GPU, as torch or the driver tells it."""
    return Free(device_free_bytes, f"free on {device}", 0, True, card_bytes)


def cache_bytes(root: Path = Path("/")) -> int:
    """The size of the last level of cache that the first core has; 0 where the kernel does not
    tell.
    """
    sizes = []
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit():
            sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
    return max(sizes, default=0)
