"""The peak memory of each way of counting, beyond its inputs, and the chunk of trades that fits.

The peak is a formula, which is printed beside the measured peak. For preallocated and fused it is
exact to 1 MiB on a CPU (tested), because they allocate once. For the others it adds up their
temporaries; for list_cat it is a lower bound, because the host's heap keeps more.

A chunk has as many trades as fit the free memory, and no more than stay in the cache. It is counted
in trades, not in sessions, because neighbouring real sessions differ 8 to 1 in length.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from helpers.ground.units import MIB, show_bytes
from helpers.vpoc.counting import CHUNK_TRADES, STRATEGIES, strategy_of, threads
from helpers.vpoc.free import Free
from helpers.vpoc.kernels import LANES, STRIDE
from helpers.vpoc.layout import Layout
from helpers.vpoc.trades import Trades

SHARE = 0.8
"""The share of the free memory that may be taken; the rest is for other programs meanwhile, and for
what a heap rounds up.
"""
LEAST_TRADES = 1 << 16
"""In smaller chunks the calls cost more than the counting, so only memory makes a chunk smaller."""
GPU_CHUNK_BYTES = 64 * MIB
"""Enough for a GPU's full bandwidth (computed from launch time and bandwidth, not measured)."""
GPU_ROUNDING_BYTES = 4 * 20 * MIB
"""Each of four buffers may be rounded up to 20 MiB, torch's segment for requests of 1 to 10 MiB
(kLargeBuffer of its allocator, since 2.11 the default of large_segment_size_mb).
"""
PRICE_BYTES = 4
"""An int32."""
INDEX_BYTES = 8
"""An int64, as numpy and torch need it."""
BOUNDS = {
    "memory": "more would not fit",
    "cache": "more would leave the cache",
    "bandwidth": "more would be no quicker on a GPU (computed)",
    "all": "that is all of them",
}
"""Why a chunk is not larger, in words."""


@dataclass(frozen=True)
class ProfileShape:
    """The sizes that the formulas need, and numpy's names for the types of a volume and
    of a count.
    """

    trades: int
    sessions: int
    bins: int
    volume: str = "int32"
    counts: str = "int32"

    @property
    def count_bytes(self) -> int:
        """Of a single count."""
        return np.dtype(self.counts).itemsize

    @property
    def converted_bytes(self) -> int:
        """Of a volume's copy in the type of the counts; 0 where it has that type already."""
        if self.counts == self.volume:
            return 0
        return self.count_bytes

    @property
    def bytes_a_trade(self) -> int:
        """Of a trade's price and volume in the inputs."""
        return PRICE_BYTES + np.dtype(self.volume).itemsize

    @property
    def result_bytes(self) -> int:
        """Of the table of profiles."""
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
    """The temporaries for each trade of a chunk: an index, and a converted volume; of one_hot also
    a row of ``bins`` numbers.
    """
    index_and_volume = INDEX_BYTES + shape.converted_bytes
    if strategy != "one_hot":
        return index_and_volume
    # torch's one_hot is int64, and so is its product with whole volumes. For a product with float64
    # volumes torch first makes a float64 copy of it.
    one_hot_bytes = 8
    product_bytes = 8
    if shape.counts == "float64":
        product_bytes = 8 + 8
    return index_and_volume + shape.bins * (one_hot_bytes + product_bytes)


def predicted_bytes(
    strategy: str, shape: ProfileShape, chunk_trades: int = CHUNK_TRADES
) -> int:
    """The peak beyond the inputs in bytes, with chunks of so many trades where the strategy has
    chunks.

    Raises TradesError for an unknown name.
    """
    way = strategy_of(strategy)
    result = shape.result_bytes
    if strategy == "fused":
        # Of each thread: its private rows, and its shared row (counting.profiles).
        thread_bytes = (LANES * STRIDE + shape.bins) * shape.count_bytes
        return result + threads() * thread_bytes
    chunk = shape.trades
    if way.chunked:
        chunk = max(1, min(chunk_trades, shape.trades))
    counted = result + chunk * _trade_bytes(strategy, shape)
    if strategy != "list_cat":
        return counted
    # At the end its list and the joined result exist at once; before, a chunk has its own result.
    chunk_result = result * chunk // max(1, shape.trades)
    return max(2 * result, counted + chunk_result)


class NoRoomError(ValueError):
    """The trades do not fit with any chunk; the message is one line that says what to do."""


@dataclass(frozen=True)
class ChunkPlan:
    """How to count: ``chunk_trades`` trades at a time, in so many ``chunks``.

    ``bound``: why a chunk is not larger, a key of BOUNDS. ``peak_bytes``: beyond the inputs.
    """

    strategy: str
    chunk_trades: int
    chunks: int
    bound: str
    peak_bytes: int
    free: Free

    @property
    def take(self) -> str:
        """The chunk in words."""
        chunks = "one chunk"
        if self.chunks > 1:
            chunks = f"{self.chunks} chunks"
        return f"{self.chunk_trades:,} trades at a time, in {chunks}"

    @property
    def says(self) -> str:
        """The plan in two sentences."""
        return (
            f"{self.strategy}: {self.take}; {BOUNDS[self.bound]}. "
            f"It needs at most {show_bytes(self.peak_bytes)} beyond the inputs; {self.free.words}"
        )


def plan(strategy: str, shape: ProfileShape, free: Free) -> ChunkPlan:
    """The chunk for a strategy; the inputs are in memory already.

    Raises NoRoomError where its smallest chunk does not fit: one trade, or all trades of a strategy
    without chunks.
    """
    budget = int(free.bytes * SHARE)
    trades = max(1, shape.trades)
    rounding = 0
    if free.gpu:
        rounding = GPU_ROUNDING_BYTES

    def peak(chunk: int) -> int:
        return predicted_bytes(strategy, shape, chunk) + rounding

    chunked = strategy_of(strategy).chunked
    smallest = trades
    way = "all trades at once, as it does,"
    if chunked:
        smallest = 1
        way = "one trade at a time"
    need = peak(smallest)
    if need > budget:
        raise NoRoomError(
            f"{strategy} with {way} needs {show_bytes(need)} and {show_bytes(budget)} "
            f"may be taken ({free.says}): count fewer sessions at a time"
        )
    chunk = trades
    bound = "all"
    if chunked:
        # The largest chunk within the budget: the peak grows with the chunk.
        fits = bisect_right(range(1, trades + 1), budget, key=peak)
        quick, why_quick = _quick_chunk(strategy, shape, free)
        chunk = min(fits, quick)
        if chunk < fits:
            bound = why_quick
        elif chunk < trades:
            bound = "memory"
    return ChunkPlan(
        strategy=strategy,
        chunk_trades=chunk,
        chunks=math.ceil(trades / chunk),
        bound=bound,
        peak_bytes=peak(chunk),
        free=free,
    )


def _quick_chunk(strategy: str, shape: ProfileShape, free: Free) -> tuple[int, str]:
    """The largest chunk that does not cost time, in trades, and why a larger one would: a key of
    BOUNDS.

    It keeps a GPU busy, or takes half of the CPU's cache, with the rest for the table of counts.
    All trades where the size of the cache is unknown.
    """
    # The bandwidth of a GPU bounds its chunk, the cache that of a CPU.
    if free.gpu:
        quick_bytes = GPU_CHUNK_BYTES
        bound = "bandwidth"
    else:
        quick_bytes = free.cache_bytes // 2
        bound = "cache"
    if not quick_bytes:
        return max(1, shape.trades), bound
    trade_bytes = _trade_bytes(strategy, shape) + PRICE_BYTES
    return max(LEAST_TRADES, quick_bytes // trade_bytes), bound


def runs_on(strategy: str, free: Free) -> bool:
    """Whether a strategy can use that memory: on a GPU only those of torch can."""
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
