"""What a way of counting needs at its peak, beyond its inputs, and how many trades at a time fit.

The peak is told in closed form, to print beside what was measured. A preallocated chunk and the
fused pass are exact to 1 MiB on a CPU (tested): what they take they take once. The others are
what their temporaries add up to; list and cat is a lower bound, since the host's heap keeps
more. A chunk is as many trades as fit the free memory, and no more than the cache likes; trades
are counted, not sessions: neighbouring real sessions differ 8 to 1 in length.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from helpers.ground.units import MIB, show_bytes
from helpers.vpoc.counting import STRATEGIES, strategy_of, threads
from helpers.vpoc.free import Free
from helpers.vpoc.kernels import LANES, STRIDE
from helpers.vpoc.layout import Layout
from helpers.vpoc.trades import Trades

SHARE = 0.8
"""Of the free memory; the rest is for what others take meanwhile, and for a heap's own rounding."""
LEAST_TRADES = 1 << 16
"""Below this the calls cost more than the counting; memory goes before it."""
GPU_CHUNK_BYTES = 64 * MIB
"""Ample for a GPU's full bandwidth (computed from launch time and bandwidth, not measured)."""
GPU_ROUNDING_BYTES = 4 * 20 * MIB
"""A GPU's allocator reserves in pieces of 2 MiB, and 20 MiB for the middling sizes: each of four
buffers may be rounded up to that.
"""
BOUNDS = {
    "memory": "more would not fit",
    "cache": "more would leave the cache",
    "bandwidth": "more would be no quicker on a GPU (computed)",
    "all": "that is all of them",
}
"""Why a chunk is no larger, in words."""


@dataclass(frozen=True)
class ProfileShape:
    """The sizes that the model needs, and the types of a volume and of a count; a price is int32."""

    trades: int
    sessions: int
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


def shape_of(trades: Trades, layout: Layout) -> ProfileShape:
    """The shape of these trades under this layout."""
    return ProfileShape(
        trades=len(trades),
        sessions=trades.sessions,
        bins=layout.bins,
        volume=trades.volume.dtype.name,
        counts=layout.counts,
    )


def _trade_bytes(strategy: str, shape: ProfileShape) -> int:
    """What each trade of a chunk costs while the chunk is counted: an int64 index, a volume."""
    plain = 8 + shape.converted_bytes
    if strategy != "one_hot":
        return plain
    # one_hot is int64. Times whole volumes the product is int64 too; times others it is theirs,
    # and torch copies the int64 to that type first.
    product = 2 * shape.count_bytes if shape.counts == "float64" else 8
    return plain + shape.bins * (8 + product)


def predicted_bytes(
    strategy: str, shape: ProfileShape, chunk_trades: int = 1 << 20
) -> int:
    """The peak beyond the inputs, in bytes. Raises TradesError for an unknown name."""
    way = strategy_of(strategy)
    result = shape.result_bytes
    if strategy == "fused":
        private_row = (LANES * STRIDE + shape.bins) * shape.count_bytes
        return result + threads() * private_row
    chunk = shape.trades
    if way.chunked:
        chunk = max(1, min(chunk_trades, shape.trades))
    counted = result + chunk * _trade_bytes(strategy, shape)
    if strategy != "list_cat":
        return counted
    chunk_result = result * chunk // max(1, shape.trades)
    return max(2 * result, counted + chunk_result)


class NoRoomError(ValueError):
    """What is to be counted does not fit, whatever the chunk: one line with what would."""


@dataclass(frozen=True)
class ChunkPlan:
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
            f"{self.strategy}: {self.take}; {BOUNDS[self.bound]}. "
            f"It needs at most {show_bytes(self.peak_bytes)} beyond the inputs; {self.free.words}"
        )


def plan(strategy: str, shape: ProfileShape, free: Free) -> ChunkPlan:
    """The chunk for a strategy, beside inputs that take their memory already.

    Raises NoRoomError where not even one trade at a time would fit; for a strategy that takes
    all at once that is all trades.
    """
    budget = int(free.bytes * SHARE)
    trades = max(1, shape.trades)
    rounding = GPU_ROUNDING_BYTES if free.gpu else 0

    def peak(chunk: int) -> int:
        return predicted_bytes(strategy, shape, chunk) + rounding

    chunked = strategy_of(strategy).chunked
    need = peak(1) if chunked else peak(trades)
    if need > budget:
        way = "one trade at a time" if chunked else "all trades at once, as it does,"
        raise NoRoomError(
            f"{strategy} with {way} needs {show_bytes(need)} and {show_bytes(budget)} "
            f"may be taken ({free.says}): count fewer sessions at a time"
        )
    chunk = trades
    bound = "all"
    if chunked:
        fits = bisect_right(range(1, trades + 1), budget, key=peak)
        chunk = min(fits, _liked_trades(strategy, shape, free))
        if chunk < fits:
            bound = "bandwidth" if free.gpu else "cache"
        elif chunk < trades:
            bound = "memory"
    return ChunkPlan(
        strategy=strategy,
        chunk_trades=chunk,
        chunks=-(-trades // chunk),
        bound=bound,
        peak_bytes=peak(chunk),
        free=free,
    )


def _liked_trades(strategy: str, shape: ProfileShape, free: Free) -> int:
    """The trades of a chunk that keeps a GPU busy or stays in the cache; all where neither says."""
    quick_bytes = GPU_CHUNK_BYTES if free.gpu else free.cache_bytes // 2
    if not quick_bytes:
        return max(1, shape.trades)
    return max(LEAST_TRADES, quick_bytes // (_trade_bytes(strategy, shape) + 4))


def runs_on(strategy: str, free: Free) -> bool:
    """Whether a strategy can use that memory: only those of torch run on a GPU."""
    return strategy_of(strategy).torch or not free.gpu


def plans(shape: ProfileShape, free: Free) -> list[tuple[str, ChunkPlan | str]]:
    """Each strategy with its plan on that memory, or why there is none."""
    rows: list[tuple[str, ChunkPlan | str]] = []
    for name in STRATEGIES:
        if not runs_on(name, free):
            rows.append((name, "runs on the CPU alone"))
            continue
        try:
            rows.append((name, plan(name, shape, free)))
        except NoRoomError:
            rows.append((name, "does not fit"))
    return rows
