"""Trades for the tests of volume profiles, their profiles by an obvious loop, and files of them."""

from dataclasses import replace

import numpy as np

from helpers.load.vpoc import sample
from helpers.load.vpoc.trades import from_sessions, ticks_of

TYPES = ("int32", "float32", "float64")
CHICAGO = "America/Chicago"


def as_type(trades, kind, tick=0.25):
    """The same trades with prices in points and volumes of a type; int32 stays ticks and whole volumes."""
    if kind == "int32":
        return replace(trades, tick=tick)
    price, volume = (trades.price * tick).astype(kind), trades.volume.astype(kind)
    return replace(trades, price=price, volume=volume, tick=tick)


def slow_profiles(trades, layout):
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for s in range(trades.sessions):
        part = slice(trades.starts[s], trades.starts[s + 1])
        ticks = ticks_of(trades.price[part], trades.tick).tolist()
        for tick, volume in zip(ticks, trades.volume[part].tolist(), strict=True):
            out[s, tick - layout.lows[s]] += volume
    return out


def parquet_of(trades, path):
    import pyarrow as pa
    from pyarrow import parquet

    keys = np.repeat(np.array(trades.labels), np.diff(trades.starts))
    columns = {"session": keys, "price": trades.price, "volume": trades.volume}
    parquet.write_table(pa.table(columns), path)
    return path


def lines(path, rows, header="time,price,volume"):
    """A file of text with these rows."""
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def minutes(count=20, day="2024-07-10 ", price=5000.0, zone=""):
    """Rows of a trade a minute from ten o'clock on, each a tick of ES higher and one contract larger."""
    return [
        f"{day}{10 + i // 60:02d}:{i % 60:02d}:00.{i:03d}{zone},{price + i * 0.25},{i + 1}"
        for i in range(count)
    ]


def ragged(sessions, trades, seed=0):
    """Generated sessions whose lengths differ up to 8 to 1, as neighbouring real ones do."""
    whole, lengths = sample.generated(sessions, trades, seed), np.random.default_rng(seed)
    ends = lengths.integers(trades // 8, trades + 1, sessions)
    parts = [whole.session(s) for s in range(sessions)]
    cut = [(price[:end], volume[:end]) for (price, volume), end in zip(parts, ends, strict=True)]
    return from_sessions(cut, whole.tick)
