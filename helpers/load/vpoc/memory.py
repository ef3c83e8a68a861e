"""What does a strategy need at its peak, beyond its inputs? In closed form, to print beside what was measured.

A preallocated chunk, an arena and the fused pass are exact to 1 MiB on a CPU (tested): what they take they take once. The
others are what their temporaries add up to; list and cat is a lower bound, since the host's heap keeps more (see the study).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helpers.load.vpoc.histogram import threads
from helpers.load.vpoc.trades import Layout, Trades

EXACT = ("fused", "fused_one_thread", "preallocated", "arena")
LOWER_BOUND = ("list_cat", "cleanup", "dataloader")
_KERNEL_ROWS = 8 * 1040
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Shape:
    """The sizes that the model needs, and the types of a price (int32 where it is ticks), a volume and a count."""

    trades: int
    sessions: int
    longest: int
    bins: int
    price: str = "int32"
    volume: str = "int32"
    counts: str = "int32"

    @property
    def floats(self) -> bool:
        return self.price != "int32"

    @property
    def converted_bytes(self) -> int:
        """Of a volume in the type of the counts, where that is another type."""
        return size_of(self.counts) if self.counts != self.volume else 0

    @property
    def result_bytes(self) -> int:
        return self.sessions * self.bins * size_of(self.counts)

    @property
    def bytes_a_trade(self) -> int:
        return size_of(self.price) + size_of(self.volume)


def size_of(kind: str) -> int:
    return np.dtype(kind).itemsize


def shape_of(trades: Trades, layout: Layout) -> Shape:
    """The shape of these trades under this layout."""
    return Shape(
        len(trades),
        trades.sessions,
        int(np.diff(trades.starts).max(initial=0)),
        layout.bins,
        str(trades.price.dtype),
        str(trades.volume.dtype),
        layout.counts,
    )


def per_trade_bytes(strategy: str, shape: Shape) -> int:
    """What each trade of a chunk costs while the chunk is counted."""
    index = 8 + 8 * shape.floats + shape.converted_bytes
    if strategy in ("preallocated", "arena", "flat"):
        return index
    if strategy in LOWER_BOUND:
        return index + 8 * shape.floats
    if strategy == "one_hot":
        # one_hot is int64. Times whole volumes the product is int64 too; times others it is theirs, and torch copies the
        # int64 to that type first.
        return (
            shape.bins * (8 + 2 * size_of(shape.counts) if shape.counts.startswith("float") else 16)
            + index
        )
    if strategy in ("flat_bincount", "chunks_bincount", "session_bincount"):
        return 16 if shape.volume != "float64" else 8 + 4 * shape.floats
    if strategy == "session_histogram":
        return 20 + shape.converted_bytes
    if strategy == "session_add_at":
        return 4 + shape.converted_bytes
    return 0


def predicted_bytes(
    strategy: str, shape: Shape, chunk_trades: int = 1 << 20, workers: int = 0
) -> int:
    """The peak beyond the inputs. Raises ValueError for a strategy without a model."""
    chunk = max(1, min(chunk_trades, shape.trades))
    result, row = shape.result_bytes, shape.bins * size_of(shape.counts)
    each = per_trade_bytes(strategy, shape)
    if strategy in ("fused", "fused_one_thread", "stream_mapped", "stream_read"):
        many = 1 if strategy == "fused_one_thread" else workers or threads()
        block = _BLOCK * shape.bytes_a_trade if strategy == "stream_read" else 0
        return result + many * (
            (_KERNEL_ROWS + shape.bins) * size_of(shape.counts) + 16384 * shape.floats + block
        )
    if strategy in ("preallocated", "arena", "one_hot"):
        return result + chunk * each
    if strategy == "flat":
        return result + shape.trades * each
    if strategy == "dataloader":
        return 2 * result + shape.longest * (8 + 8 * shape.floats)
    if strategy in LOWER_BOUND:
        rows = -(-chunk // max(1, shape.longest))
        return max(2 * result, result + chunk * each + rows * row)
    if strategy == "flat_bincount":
        return shape.trades * each + 8 * shape.sessions * shape.bins
    if strategy == "chunks_bincount":
        rows = chunk * shape.sessions // max(1, shape.trades) + 2
        return result + chunk * each + rows * shape.bins * (8 + size_of(shape.counts))
    if strategy.startswith("session_"):
        return result + shape.longest * each + 8 * shape.bins
    raise ValueError(f"strategy {strategy!r} has no model of its memory")


def case_arithmetic(
    sessions: int = 1014, bins: int = 1000, bars: int = 1380
) -> list[dict[str, str | float]]:
    """What the case study's own numbers come to: ``bars``: one-minute bars of a Globex session."""
    cells = sessions * bars * bins
    return [
        {
            "claim": "volume histograms need large contiguous blocks",
            "computed": "sessions x bins x 4 bytes",
            "value": sessions * bins * 4 / 1e6,
            "unit": "MB",
        },
        {
            "claim": "the pool needs 10 to 15 GB",
            "computed": "of 10 GB that matrix is",
            "value": 100 * sessions * bins * 4 / 1e10,
            "unit": "%",
        },
        {
            "claim": "chunk_size=50 is 20 % of the sessions",
            "computed": "50 of them are",
            "value": 100 * 50 / sessions,
            "unit": "%",
        },
        {
            "claim": "a bug of ROCm fills the card",
            "computed": "one-minute bars: one_hot x float volume, 12 bytes a cell",
            "value": cells * 12 / 1e9,
            "unit": "GB",
        },
        {
            "claim": "a bug of ROCm fills the card",
            "computed": "the same with a float copy, 16 bytes",
            "value": cells * 16 / 1e9,
            "unit": "GB",
        },
    ]
