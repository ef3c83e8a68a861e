"""Trades as plain files in a folder: price, volume and session starts as raw numbers; layout.json says what they are.

Any program reads them without a library, maps them, or reads them piece by piece, so that a file may be larger than memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.load.vpoc.trades import Layout, Trades, TradesError, counts_type, survey

FILES = ("price", "volume", "starts", "lows", "widths")


@dataclass(frozen=True)
class Store:
    """Where the files are; ``trades`` maps them, ``layout`` is that of all sessions."""

    folder: Path
    trades: Trades
    layout: Layout


def write_store(folder: Path, parts: Iterable[Trades], bins: int | None = None) -> Store:
    """Write trades part by part, each of whole sessions, so that all of them need never be in memory. Returns the open store.

    Raises TradesError for parts of different types or ticks, FileExistsError where the folder already has trades.
    """
    folder.mkdir(parents=True, exist_ok=True)
    starts: list[np.ndarray] = [np.zeros(1, np.int64)]
    lows: list[np.ndarray] = []
    widths: list[np.ndarray] = []
    totals: list[np.ndarray] = []
    labels: list[str] = []
    notes: dict[str, None] = {}
    kind: tuple[str, str, float] | None = None
    with (folder / "price.bin").open("xb") as price, (folder / "volume.bin").open("xb") as volume:
        for part in parts:
            now = (str(part.price.dtype), str(part.volume.dtype), part.tick)
            if kind not in (None, now):
                raise TradesError(f"parts of {kind} and of {now}: expected one type and tick for all")
            kind = now
            layout = survey(part)
            np.ascontiguousarray(part.price).tofile(price)
            np.ascontiguousarray(part.volume).tofile(volume)
            starts.append(part.starts[1:] + starts[-1][-1])
            lows.append(layout.lows)
            widths.append(layout.widths)
            totals.append(layout.totals)
            labels += part.labels
            notes |= dict.fromkeys(part.notes)
    if kind is None:
        raise TradesError("no trades were given: expected at least one part")
    for name, values, dtype in (("starts", starts, np.int64), ("lows", lows, np.int32), ("widths", widths, np.int32)):
        np.concatenate(values).astype(dtype).tofile(folder / f"{name}.bin")
    whole = np.concatenate(totals)
    counts, wider = counts_type(kind[1], float(whole.max(initial=0)))
    about = {"price": kind[0], "volume": kind[1], "tick": kind[2], "counts": counts, "labels": labels,
             "bins": max(bins or 1, 1, int(max(w.max(initial=0) for w in widths))), "totals": whole.tolist(),
             "notes": list(notes), "wider": list(wider)}
    (folder / "layout.json").write_text(json.dumps(about))
    return open_store(folder)


def open_store(folder: Path) -> Store:
    """The store in a folder, its files mapped. Raises TradesError where a file is missing or cut short."""
    try:
        about = json.loads((folder / "layout.json").read_text())
        starts, lows, widths = (np.fromfile(folder / f"{name}.bin", kind)
                                for name, kind in (("starts", np.int64), ("lows", np.int32), ("widths", np.int32)))
    except (OSError, ValueError) as error:
        raise TradesError(f"{folder}: no store of trades ({error}): write it with write_store") from None
    arrays = []
    for name in ("price", "volume"):
        path, kind = folder / f"{name}.bin", np.dtype(about[name])
        have, need = path.stat().st_size, int(starts[-1]) * kind.itemsize
        if have != need:
            raise TradesError(f"{path}: {have} bytes, expected {need} for {int(starts[-1])} trades: the file was cut "
                              "short or is another one; write it again")
        arrays.append(np.memmap(path, kind, "r") if need else np.zeros(0, kind))
    trades = Trades(arrays[0], arrays[1], starts, about["tick"], tuple(about["labels"]), tuple(about["notes"]))
    totals = np.array(about["totals"], np.int64 if trades.volume.dtype.kind == "i" else np.float64)
    return Store(folder, trades, Layout(lows, widths, about["bins"], about["counts"], totals, tuple(about["wider"])))
