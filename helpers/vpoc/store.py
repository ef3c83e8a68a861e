"""Trades as plain files of numbers, so that a child of any Python counts the same ones."""

from __future__ import annotations

import json
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.vpoc.layout import Layout, survey
from helpers.vpoc.trades import Trades

LEAST_BINS = 1000
"""The width of a stored table at least, in ticks: that of case study 001, so
measurements compare.
"""


@dataclass(frozen=True)
class TradeStore:
    """A folder with trades; ``trades`` may be mapped from it, ``layout`` is that of all
    sessions.
    """

    folder: Path
    trades: Trades
    layout: Layout


def write_store(folder: Path, trades: Trades, bins: int | None = None) -> TradeStore:
    """Write the trades to a new folder. ``bins`` is as of ``layout.survey``."""
    folder.mkdir(parents=True)
    layout = survey(trades, bins)
    trades.price.tofile(folder / "price.bin")
    trades.volume.tofile(folder / "volume.bin")
    trades.starts.tofile(folder / "starts.bin")
    layout.lows.tofile(folder / "lows.bin")
    about = {
        "sessions": trades.sessions,
        "volume": trades.volume.dtype.name,
        "tick": trades.tick,
        "counts": layout.counts,
        "bins": layout.bins,
    }
    (folder / "layout.json").write_text(json.dumps(about))
    return TradeStore(folder, trades, layout)


def open_store(folder: Path) -> TradeStore:
    """The store that ``write_store`` wrote, with mapped files; sessions are labelled by their
    numbers.
    """
    about = json.loads((folder / "layout.json").read_text())
    starts = np.fromfile(folder / "starts.bin", np.int64)
    trades = Trades(
        price=np.memmap(folder / "price.bin", np.int32, "r"),
        volume=np.memmap(folder / "volume.bin", about["volume"], "r"),
        starts=starts,
        tick=about["tick"],
        labels=tuple(map(str, range(about["sessions"]))),
    )
    return TradeStore(folder, trades, survey(trades, about["bins"]))


def stored(trades: Trades) -> TradeStore:
    """The trades in a temporary folder, which is deleted when the store is no longer used."""
    folder = tempfile.TemporaryDirectory(prefix="casebook-trades-")
    bins = max(LEAST_BINS, survey(trades).bins)
    store = write_store(Path(folder.name, "store"), trades, bins)
    weakref.finalize(store, folder.cleanup)
    return store
