"""Trades by session, read by pyarrow from a user's file of CSV or Parquet with named columns.

The notes of the trades say what was guessed, and count what was left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import ChunkedArray, Table, compute, csv, parquet

from helpers.ground.units import MIB, plain, show_bytes
from helpers.look.files import opened
from helpers.look.parquet_head import check_parquet
from helpers.vpoc.columns import MOST_NAME, column_names, listed
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
"""The largest file of trades, which is read into memory."""
HEAD_BYTES = 1 << 16
"""Bytes in which the first line of a CSV must end."""
MOST_COLUMNS = 500
"""A file of trades has tens of columns; pyarrow takes memory for each."""
# A small Parquet file can claim an enormous table. Prices and volumes that change take more than a
# bit of each row, however well they are compressed.
MOST_ROWS_A_BYTE = 20
MOST_UNPACKED = 500
"""Times the size of the file."""
MOST_ERROR = 200
"""Characters of pyarrow's error, which may quote a row."""
MOST_INSTRUMENTS = 100
"""Instruments of a file that are read at once, each with profiles of its own."""
MOST_SAMPLED = 200_000
"""Prices from which the tick is guessed: all that a market trades at occur among so many."""
PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
"""The first bytes of files of gzip, bzip2, xz, zstd and zip."""
CLOCKS = [csv.ISO8601, "%m/%d/%Y %H:%M:%S"]
"""Forms of times in a CSV: ISO 8601, and that of American exports."""
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
EPOCH_UNITS = (("s", 1e11), ("ms", 1e14), ("us", 1e17), ("ns", float("inf")))
"""Units of a time since 1970, each with the number that it stays below until the year 5138."""


def read_trades(
    path: Path,
    tick: float | str | None = None,
    *,
    zone: str = "",
    columns: Mapping[str, str] | None = None,
    instrument: str = "",
) -> Trades:
    """The trades of a file as int32 ticks and volumes, by session.

    ``tick``: a size, or a product such as ES; guessed by default. ``zone``: of times that name no
    zone. ``columns``: the names of columns by role (columns.COLUMNS), or their places from 1 on,
    which a file without a header needs. ``instrument``: which of several to read. Sessions are
    those of a session column, else CME trade dates. Raises TradesError in one line, also for a file
    with several instruments if none is named.
    """
    trades = read_instruments(
        path, tick, zone=zone, columns=columns, instrument=instrument
    )
    if len(trades) > 1:
        raise TradesError(
            f"{path.name}: {len(trades)} instruments ({listed([*trades])}) make no one "
            "profile: say which, by instrument"
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
    """The trades of each instrument of a file, by its name; see ``read_trades``.

    A file without a column for it has one instrument, whose name is empty. Raises TradesError in
    one line.
    """
    if columns is None:
        columns = {}
    notes: list[str] = []
    table = _table(path, columns, notes)
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
        common_tick = guess_tick(np.asarray(prices[:MOST_SAMPLED]))
    trades = {}
    for name in _chosen(path, present, instrument):
        rows = table.filter(compute.equal(names, name))
        size = tick  # None: _trades guesses it from the instrument's own prices
        different_prices = compute.count_distinct(rows["price"]).as_py()
        if tick is None and different_prices < LEAST_PRICES:
            size = common_tick  # of all instruments together
        about = f"instrument {plain(name)[:MOST_NAME]}"
        trades[name] = _trades(path, rows, size, [*notes, about])
    return trades


def _chosen(path: Path, present: list[str], instrument: str) -> list[str]:
    """The instruments to read: the named one, else all that are present. Raises TradesError."""
    if instrument in present:
        return [instrument]
    if instrument:
        raise TradesError(
            f"{path.name}: no instrument {instrument!r:.60}; it has {listed(present)}"
        )
    if len(present) > MOST_INSTRUMENTS:
        limit = f"more than {MOST_INSTRUMENTS} at once: say which, by instrument"
        raise TradesError(f"{path.name}: {len(present):,} instruments, {limit}")
    return present


def _trades(
    path: Path, table: Table, tick: float | str | None, notes: list[str]
) -> Trades:
    """The trades of a table whose columns are named by their roles, by session."""
    table = _good_rows(path, table, notes)
    price = np.asarray(table["price"])
    size = _tick(path, price, tick, notes)
    volume = _volumes(np.asarray(table["volume"]), notes)
    ticks = to_ticks(price, size)
    trades = Trades(  # in one session
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
    """The columns of the file that have a role, named by it; price and volume as float64.

    Raises TradesError.
    """
    if path.suffix == ".npz":
        raise TradesError(
            f"{path.name}: .npz is no longer read; write CSV or Parquet instead"
        )
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            _refuse_large(path, size)
            if path.suffix in (".parquet", ".pq"):
                check_parquet(file, size)
                table, roles = _of_parquet(path, size, columns, notes)
            else:
                options = _header_options(path, file, columns)
                table, roles = _of_csv(path, options, columns, notes)
        arrays = {role: table[name] for role, name in roles.items()}
        for role in ("price", "volume"):
            arrays[role] = arrays[role].cast(pa.float64())
    except TradesError:
        raise
    except (pa.ArrowException, OSError) as error:
        why = getattr(error, "strerror", None) or str(error)
        first_line = next(iter(why.splitlines()), type(error).__name__)
        seen = plain(first_line)[:MOST_ERROR]
        expected = (
            "expected a whole CSV or Parquet file with numbers for price and volume"
        )
        raise TradesError(f"{path.name}: {seen}: {expected}") from None
    return pa.table(arrays)


def _of_parquet(
    path: Path, size: int, columns: Mapping[str, str], notes: list[str]
) -> tuple[Table, dict[str, str]]:
    """The columns of a Parquet file of ``size`` bytes that have a role, and their names by role."""
    with parquet.ParquetFile(path) as table_file:
        metadata = table_file.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        unpacked_bytes = sum(group.total_byte_size for group in groups)
        _refuse_large(path, unpacked_bytes)
        _check_packing(path, size, metadata.num_rows, unpacked_bytes)
        names = table_file.schema_arrow.names
        roles = column_names(names, columns, notes, path)
        return table_file.read([*roles.values()]), roles


def _of_csv(
    path: Path, options: csv.ReadOptions, columns: Mapping[str, str], notes: list[str]
) -> tuple[Table, dict[str, str]]:
    """The columns of a CSV that have a role, and their names by role."""
    with csv.open_csv(path, read_options=options) as head:
        roles = column_names(head.schema.names, columns, notes, path)
    table = csv.read_csv(path, read_options=options, convert_options=_options(roles))
    return table, roles


def _header_options(
    path: Path, file: BinaryIO, columns: Mapping[str, str]
) -> csv.ReadOptions:
    """Whether the first line of a CSV is a header or a trade, as options for pyarrow.

    Raises TradesError for more than MOST_COLUMNS, for a compressed file, and for a trade if
    ``columns`` does not name price and volume by their places.
    """
    head = file.read(HEAD_BYTES)
    if head.startswith(PACKED):
        raise TradesError(f"{path.name}: it is packed; unpack it first")
    line, _, _ = head.lstrip(b"\r\n").partition(b"\n")
    cells = line.decode("utf-8-sig", "replace").split(",")
    if len(cells) > MOST_COLUMNS:
        seen = f"more than {MOST_COLUMNS} columns in its first {len(head):,} bytes"
        raise TradesError(
            f"{path.name}: {seen}: expected columns for time, price and volume"
        )
    numbers = [cell for cell in cells if NUMBER.fullmatch(cell.strip(' "'))]
    # A trade has a price and a volume; the names of a header may include one number. A trade in the
    # first line is accepted only where price and volume are named by their places.
    is_trade = len(numbers) >= 2
    named = [columns.get(role, "") for role in ("price", "volume")]
    if is_trade and not all(name.isdigit() for name in named):
        advice = (
            "name the columns by their places, such as time=1, price=2 and volume=3"
        )
        raise TradesError(
            f"{path.name}: its first line is a trade, no header: {advice}"
        )
    return csv.ReadOptions(autogenerate_column_names=is_trade)


def _check_packing(path: Path, size: int, rows: int, unpacked: int) -> None:
    """Raises TradesError for a file with more rows, or more bytes, than trades of its size can
    have.
    """
    has_plausible_rows = rows <= MOST_ROWS_A_BYTE * size
    has_plausible_size = unpacked <= MOST_UNPACKED * size + MIB  # tiny files pack well
    if has_plausible_rows and has_plausible_size:
        return
    seen = f"{rows:,} rows and {show_bytes(unpacked)} in {show_bytes(size)}"
    raise TradesError(f"{path.name}: {seen}: trades take more room; write it anew")


def _options(roles: Mapping[str, str]) -> csv.ConvertOptions:
    """How pyarrow converts a CSV: prices and volumes to float64; types of times and sessions are
    inferred.
    """
    kinds = {roles[role]: pa.float64() for role in ("price", "volume")}
    if "instrument" in roles:
        kinds[roles["instrument"]] = pa.dictionary(pa.int32(), pa.string())
    return csv.ConvertOptions(
        include_columns=[*roles.values()], column_types=kinds, timestamp_parsers=CLOCKS
    )


def _refuse_large(path: Path, size: int) -> None:
    """Raises TradesError for more bytes than FILE_LIMIT_BYTES."""
    if size > FILE_LIMIT_BYTES:
        limit = f"the limit of {show_bytes(FILE_LIMIT_BYTES)}: give it in parts, one a month"
        raise TradesError(
            f"{path.name}: {show_bytes(size)} of trades are above {limit}"
        )


def _times(
    path: Path, column: ChunkedArray, zone: str, notes: list[str]
) -> ChunkedArray:
    """The time column as timestamps with a zone. Numbers are s, ms, us or ns since 1970, by their
    size.

    ``zone``: of timestamps without one. Raises TradesError where there is none.
    """
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    if pa.types.is_integer(column.type):
        largest = compute.max(compute.abs(column)).as_py()
        if largest is None:  # all are missing
            largest = 0
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
    """The rows with a price, a positive volume and a time. Notes count the others by their reason.

    Raises TradesError where no row is left.
    """
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
        count = int((keep & ~good).sum())  # a row counts for its first reason
        if count:
            left_out.append(f"{count} rows left out: {reason}")
        keep &= good
    notes[:0] = left_out  # before all other notes
    if not keep.any():
        why = "the file has none"
        if left_out:
            why = "; ".join(left_out)
        raise TradesError(f"{path.name}: no good row is left ({why})")
    return table.filter(pa.array(keep))


def _keys(column: ChunkedArray) -> Array:
    """The session column as keys for ``group``: whole numbers as they are, all else as text."""
    if pa.types.is_integer(column.type) and not column.null_count:
        return np.asarray(column)
    return np.asarray(column.cast(pa.string())).astype(str)


def _tick(
    path: Path, price: Array, tick: float | str | None, notes: list[str]
) -> float:
    """The tick size that was asked for, else the one that the prices have; notes on prices off its
    grid.

    Raises TradesError where none can be guessed.
    """
    sample = price[:: max(1, len(price) // MOST_SAMPLED)]
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
