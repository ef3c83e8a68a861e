"""Trades for the tests of volume profiles, their profiles by an obvious loop, and files of them."""

from dataclasses import replace

import numpy as np

from helpers.vpoc.trades import from_sessions, generated

VOLUMES = ("int32", "int64", "float64")
CHICAGO = "America/Chicago"


def with_volumes(trades, kind):
    """The same trades with volumes of a type."""
    return replace(trades, volume=trades.volume.astype(kind))


def session_of(trades, number):
    """Ticks and volumes of one session."""
    part = slice(trades.starts[number], trades.starts[number + 1])
    return trades.price[part], trades.volume[part]


def slow_profiles(trades, layout):
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for s in range(trades.sessions):
        ticks, volumes = session_of(trades, s)
        for tick, volume in zip(ticks.tolist(), volumes.tolist(), strict=True):
            out[s, tick - layout.lows[s]] += volume
    return out


def parquet_of(trades, path, points=False):
    """A Parquet file of the trades, their prices in ticks or in points."""
    import pyarrow as pa
    from pyarrow import parquet

    keys = np.repeat(np.array(trades.labels), np.diff(trades.starts))
    price = trades.price * trades.tick if points else trades.price
    columns = {"session": keys, "price": price, "volume": trades.volume}
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
    whole = generated(sessions, trades, seed)
    lengths = np.random.default_rng(seed)
    ends = lengths.integers(trades // 8, trades + 1, sessions)
    parts = [session_of(whole, s) for s in range(sessions)]
    cut = [(price[:end], volume[:end]) for (price, volume), end in zip(parts, ends, strict=True)]
    return from_sessions(cut, whole.tick)
