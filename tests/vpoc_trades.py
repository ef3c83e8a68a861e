"""Trades for the tests of volume profiles, and their profiles by an obvious loop."""

from dataclasses import replace

import numpy as np

from helpers.load.vpoc.trades import ticks_of

TYPES = ("int32", "float32", "float64")


def as_type(trades, kind, tick=0.25):
    """The same trades with prices in points and volumes of a type; int32 stays ticks and whole volumes."""
    if kind == "int32":
        return replace(trades, tick=tick)
    return replace(
        trades,
        price=(trades.price * tick).astype(kind),
        volume=trades.volume.astype(kind),
        tick=tick,
    )


def slow_profiles(trades, layout):
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for s in range(trades.sessions):
        part = slice(trades.starts[s], trades.starts[s + 1])
        for tick, volume in zip(
            ticks_of(trades.price[part], trades.tick).tolist(),
            trades.volume[part].tolist(),
            strict=True,
        ):
            out[s, tick - layout.lows[s]] += volume
    return out


def parquet_of(trades, path):
    import pyarrow as pa
    from pyarrow import parquet

    keys = np.repeat(np.array(trades.labels), np.diff(trades.starts))
    parquet.write_table(
        pa.table({"session": keys, "price": trades.price, "volume": trades.volume}), path
    )
    return path
