"""A user's trades by session, read by pyarrow from CSV or Parquet with named columns.

What is guessed and what is left out is counted and said in the notes of the trades.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import ChunkedArray, Table, compute, csv, parquet

from helpers.ground.units import MIB, plain, show_bytes
from helpers.look.files import opened
from helpers.look.parquet_head import check_parquet
from helpers.vpoc.sessions import by_date, chicago_ns, group, with_zone
from helpers.vpoc.ticks import (
    INT32_MOST,
    LEAST_PRICES,
    guess_tick,
    off_grid,
    tick_size,
    to_ticks,
    wrong_tick,
)
from helpers.vpoc.trades import Array, Trades, TradesError

FILE_LIMIT_BYTES = 16 << 30
"""Of one file of trades, which is held in memory."""
HEAD_BYTES = 1 << 16
MOST_COLUMNS = 500
MOST_ROWS_A_BYTE = 20
MOST_UNPACKED = 500
"""Prices and volumes that move take more than a bit of each row, however well they are packed."""
MOST_LISTED = 20
MOST_INSTRUMENTS = 100
"""Of one file, each with profiles of its own."""
PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
"""How files begin that gzip, bzip2, xz, zstd and zip made."""
COLUMNS = {
    "price": ("price", "last", "tradeprice", "lastprice", "px", "close"),
    "volume": (
        "volume",
        "size",
        "qty",
        "quantity",
        "vol",
        "lastsize",
        "lastvolume",
        "contracts",
    ),
    "time": ("datetime", "timestamp", "time", "tsevent", "tsrecv", "date"),
    "session": ("session", "tradedate", "tradingday", "sessionid", "sessiondate"),
    "instrument": (
        "symbol",
        "ticker",
        "instrument",
        "contract",
        "security",
        "sym",
        "instrumentid",
    ),
}
"""Names that a column goes by, in lower case without other characters; the first that a file has
counts.
"""
CLOCKS = [csv.ISO8601, "%m/%d/%Y %H:%M:%S"]
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
EPOCH_UNITS = (("s", 1e11), ("ms", 1e14), ("us", 1e17), ("ns", float("inf")))
"""The unit of a number of time since 1970, by what numbers of that unit stay below."""


def read_trades(
    path: Path,
    tick: float | str | None = None,
    *,
    zone: str = "",
    columns: Mapping[str, str] | None = None,
    instrument: str = "",
) -> Trades:
    """The trades of a file as int32 ticks and volumes, by session.

    ``tick``: a size or a product; guessed without one. ``zone``: that of times without one of
    their own. Sessions come from a session column, else they are CME trade dates. ``columns``:
    names for price, volume, time, session and instrument, or their places from 1 on, which a file
    without a header needs. ``instrument``: which of several to read. Raises TradesError in one
    line, for a file of several instruments without one, too.
    """
    trades = read_instruments(
        path, tick, zone=zone, columns=columns, instrument=instrument
    )
    if len(trades) > 1:
        listed = ", ".join(list(trades)[:MOST_LISTED])
        raise TradesError(
            f"{path.name}: {len(trades)} instruments ({listed}) make no one profile: "
            "say which, by instrument"
        )
    return next(iter(trades.values()))


def read_instruments(
    path: Path,
    tick: float | str | None = None,
    *,
    zone: str = "",
    columns: Mapping[str, str] | None = None,
    instrument: str = "",
) -> dict[str, Trades]:
    """The trades of each instrument of a file, as of ``read_trades``, by its name; one without a
    name where the file has no such column. Raises TradesError in one line.
    """
    notes: list[str] = []
    table = _table(path, columns or {}, notes)
    if "time" in table.column_names:
        place = table.column_names.index("time")
        times = _times(path, table["time"], zone, notes)
        table = table.set_column(place, "time", times)
    if "instrument" not in table.column_names:
        if instrument:
            raise TradesError(
                f"{path.name}: no column says the instrument: say which it is"
            )
        return {"": _trades(path, table, tick, notes)}
    names = compute.fill_null(table["instrument"].cast(pa.string()), "(none)")
    present = sorted(compute.unique(names).to_pylist())
    if tick is None:
        prices = table["price"].filter(compute.is_finite(table["price"]))
        common = guess_tick(np.asarray(prices[:200_000]))
    trades = {}
    for name in _chosen(path, present, instrument):
        rows = table.filter(compute.equal(names, name))
        size = tick
        prices = compute.count_distinct(rows["price"]).as_py()
        if tick is None and prices < LEAST_PRICES:
            size = common  # that of all instruments together
        about = f"instrument {plain(name)[:40]}"
        trades[name] = _trades(path, rows, size, [*notes, about])
    return trades


def _chosen(path: Path, present: list[str], instrument: str) -> list[str]:
    """The instruments to read, of those that are present. Raises TradesError."""
    if instrument in present:
        return [instrument]
    if instrument:
        listed = ", ".join(plain(name)[:40] for name in present[:MOST_LISTED])
        raise TradesError(
            f"{path.name}: no instrument {instrument!r:.60}; it has {listed}"
        )
    if len(present) > MOST_INSTRUMENTS:
        limit = f"more than {MOST_INSTRUMENTS} at once: say which, by instrument"
        raise TradesError(f"{path.name}: {len(present):,} instruments, {limit}")
    return present


def _trades(
    path: Path, table: Table, tick: float | str | None, notes: list[str]
) -> Trades:
    """The trades of a table whose columns have the names of their roles."""
    table = _good_rows(path, table, notes)
    price = np.asarray(table["price"])
    size = _tick(path, price, tick, notes)
    volume = _volumes(np.asarray(table["volume"]), notes)
    ticks = to_ticks(price, size)
    trades = Trades(
        price=ticks,
        volume=volume,
        starts=np.array([0, len(ticks)], np.int64),
        tick=size,
        labels=(path.stem,),
        notes=tuple(notes),
    )
    if "session" in table.column_names:
        return group(trades, _keys(table["session"]))
    if "time" in table.column_names:
        return by_date(trades, chicago_ns(table["time"]))
    return trades


def _table(path: Path, columns: Mapping[str, str], notes: list[str]) -> Table:
    """The columns of the file that have a role, each under the name of its role."""
    if path.suffix == ".npz":
        raise TradesError(
            f"{path.name}: .npz is no longer read; write CSV or Parquet instead"
        )
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            _bounded(path, size)
            is_parquet = path.suffix in (".parquet", ".pq")
            if is_parquet:
                check_parquet(file, size)
            else:
                options = _header_options(path, file, columns)
        if is_parquet:
            with parquet.ParquetFile(path) as table_file:
                metadata = table_file.metadata
                groups = map(metadata.row_group, range(metadata.num_row_groups))
                unpacked = sum(group.total_byte_size for group in groups)
                _bounded(path, unpacked)
                _check_packing(path, size, metadata.num_rows, unpacked)
                names = table_file.schema_arrow.names
                roles = column_names(names, columns, notes, path)
                table = table_file.read([*roles.values()])
        else:
            with csv.open_csv(path, read_options=options) as head:
                roles = column_names(head.schema.names, columns, notes, path)
            table = csv.read_csv(
                path, read_options=options, convert_options=_options(roles)
            )
        arrays = {role: table[name] for role, name in roles.items()}
        for role in ("price", "volume"):
            arrays[role] = arrays[role].cast(pa.float64())
    except TradesError:
        raise
    except (pa.ArrowException, OSError) as error:
        said = getattr(error, "strerror", None) or str(error)
        words = plain((said.splitlines() or [type(error).__name__])[0])[:200]
        expected = (
            "expected a whole CSV or Parquet file with numbers for price and volume"
        )
        raise TradesError(f"{path.name}: {words}: {expected}") from None
    return pa.table(arrays)


def _header_options(
    path: Path, file: BinaryIO, columns: Mapping[str, str]
) -> csv.ReadOptions:
    """How the first line of a text is read: as a header, or as a trade.

    Raises TradesError for more columns than trades have, and for a trade whose columns are not
    named by their places.
    """
    head = file.read(HEAD_BYTES)
    if head.startswith(PACKED):
        raise TradesError(f"{path.name}: it is packed; unpack it first")
    first = head.lstrip(b"\r\n").partition(b"\n")[0]
    count = first.count(b",") + 1
    if count > MOST_COLUMNS:
        seen = f"more than {MOST_COLUMNS} columns in its first {len(head):,} bytes"
        raise TradesError(
            f"{path.name}: {seen}: expected columns for time, price and volume"
        )
    cells = [
        cell.strip(' "') for cell in first.decode("utf-8-sig", "replace").split(",")
    ]
    is_trade = sum(bool(NUMBER.fullmatch(cell)) for cell in cells) >= 2
    if is_trade and not all(
        columns.get(role, "").isdigit() for role in ("price", "volume")
    ):
        places = (
            "name the columns by their places, such as time=1, price=2 and volume=3"
        )
        raise TradesError(
            f"{path.name}: its first line is a trade, no header: {places}"
        )
    return csv.ReadOptions(autogenerate_column_names=is_trade)


def _check_packing(path: Path, size: int, rows: int, unpacked: int) -> None:
    """Refuse a file that holds more than trades can be packed into its size. Raises TradesError."""
    if rows <= MOST_ROWS_A_BYTE * size and unpacked <= MOST_UNPACKED * size + MIB:
        return
    seen = f"{rows:,} rows and {show_bytes(unpacked)} in {show_bytes(size)}"
    raise TradesError(f"{path.name}: {seen}: trades take more room; write it anew")


def _options(roles: Mapping[str, str]) -> csv.ConvertOptions:
    """How a CSV is converted: numbers as float64, the times and sessions as pyarrow infers them."""
    kinds = {roles[role]: pa.float64() for role in ("price", "volume")}
    if "instrument" in roles:
        kinds[roles["instrument"]] = pa.dictionary(pa.int32(), pa.string())
    return csv.ConvertOptions(
        include_columns=[*roles.values()], column_types=kinds, timestamp_parsers=CLOCKS
    )


def _bounded(path: Path, size: int) -> None:
    if size > FILE_LIMIT_BYTES:
        limit = f"the limit of {show_bytes(FILE_LIMIT_BYTES)}: give it in parts, one a month"
        raise TradesError(
            f"{path.name}: {show_bytes(size)} of trades are above {limit}"
        )


def _named_column(name: str, names: Sequence[str]) -> str:
    """A column by its name, or by its number from 1 where none has that name."""
    if name not in names and name.isdigit() and 1 <= int(name) <= len(names):
        return names[int(name) - 1]
    return name


def column_names(
    names: Sequence[str], columns: Mapping[str, str], notes: list[str], path: Path
) -> dict[str, str]:
    """Which column has which role; those that ``columns`` names win, and a note says which.

    Raises TradesError.
    """
    plain_names = {
        re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(names)
    }
    listed = ", ".join(plain(name)[:40] for name in names[:MOST_LISTED])
    if len(names) > MOST_LISTED:
        listed += f" and {len(names) - MOST_LISTED} more"
    roles = {}
    for role, usual_names in COLUMNS.items():
        usual = [plain_names[name] for name in usual_names if name in plain_names]
        if role in columns:
            name = _named_column(columns[role], names)
            if name not in names:
                raise TradesError(f"{path.name}: no column {name!r}; it has {listed}")
            roles[role] = name
        elif usual:
            roles[role] = usual[0]
    missing = [role for role in ("price", "volume") if role not in roles]
    if missing:
        wanted_columns = f"{' or '.join(missing)} among {listed}"
        raise TradesError(
            f"{path.name}: no column looks like {wanted_columns}: say which it is"
        )
    is_bars = {"open", "high", "low", "close"} <= set(plain_names)
    if is_bars and roles["price"] == plain_names["close"]:
        notes.append(
            "these are bars, no trades: all of a bar's volume counts at its close"
        )
    notes.append(
        "columns: " + ", ".join(f"{role} is {name!r}" for role, name in roles.items())
    )
    if not {"time", "session"} & set(roles):
        notes.append("no session and no time column: all trades are one session")
    return roles


def _times(
    path: Path, column: ChunkedArray, zone: str, notes: list[str]
) -> ChunkedArray:
    """The time column in UTC; numbers are s, ms, us or ns since 1970, by their size."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    if pa.types.is_integer(column.type):
        largest = compute.max(compute.abs(column)).as_py() or 0
        unit = next(unit for unit, most in EPOCH_UNITS if largest < most)
        return column.cast(pa.timestamp(unit, "UTC"))
    if not pa.types.is_timestamp(column.type):
        expected = "expected times such as 2024-07-10T10:00:00Z in every row"
        raise TradesError(f"{path.name}: its times are not all readable; {expected}")
    if column.type.tz:
        return column
    if not zone:
        why = "its times have no zone: say which, such as zone=America/Chicago or zone=UTC"
        raise TradesError(f"{path.name}: {why}")
    return with_zone(column, zone, notes)


def _good_rows(path: Path, table: Table, notes: list[str]) -> Table:
    """The rows that count; a note tells how many of the others are left out, and why."""
    price = table["price"]
    volume = table["volume"]
    tests = {
        "price is no number": compute.is_finite(price),
        "volume is no number": compute.is_finite(volume),
        "volume is negative": compute.greater_equal(volume, 0),
        "volume is zero": compute.not_equal(volume, 0),
    }
    if "time" in table.column_names:
        tests["time is missing"] = compute.is_valid(table["time"])
    rows = table.num_rows
    left_out = []
    keep = np.ones(rows, bool)
    for reason, column in tests.items():
        good = np.asarray(compute.fill_null(column, fill_value=False))
        count = int((keep & ~good).sum())
        if count:
            left_out.append(f"{count} rows left out: {reason}")
        keep &= good
    notes[:0] = left_out
    if not keep.any():
        why = "; ".join(left_out) or "the file has none"
        raise TradesError(f"{path.name}: no good row is left ({why})")
    return table.filter(pa.array(keep))


def _keys(column: ChunkedArray) -> Array:
    """The sessions' keys: whole numbers as they are, all else as text."""
    if pa.types.is_integer(column.type) and not column.null_count:
        return np.asarray(column)
    return np.asarray(column.cast(pa.string())).astype(str)


def _tick(
    path: Path, price: Array, tick: float | str | None, notes: list[str]
) -> float:
    """The tick size that was asked for, or the one that the prices have."""
    sample = price[:: max(1, len(price) // 200_000)]
    if tick is not None:
        size = tick_size(tick)
        remark = wrong_tick(sample, size)
    else:
        guess = guess_tick(sample)
        if guess is None:
            why = f"prices on no usual grid, or fewer than {LEAST_PRICES} different ones: give the tick"
            raise TradesError(f"{path.name}: {why}")
        size = guess
        remark = f"tick {size:g} guessed from the prices"
    notes += filter(None, (remark, off_grid(price, size)))
    return size


def _volumes(volume: Array, notes: list[str]) -> Array:
    """Volumes as int32, as int64 beyond it, or as float64 where they have fractions."""
    if (volume != np.rint(volume)).any():
        exact = "they are float64, and sums may differ in their last bit with the order"
        notes.append(f"volumes have fractions: {exact}")
        return volume
    most = float(volume.max(initial=0))
    if most <= INT32_MOST:
        return volume.astype(np.int32)
    notes.append(f"a volume of {most:.0f} is beyond int32: volumes are int64")
    return volume.astype(np.int64)
