"""A user's trades by session: CSV, Parquet or npz. Columns are guessed, the zone is asked for, bad rows are counted and kept
aside.

Sessions come from a column, or are cut at a stated time in a stated zone; windows such as RTH keep a part of the day. The
trade date of a CME session starts at 17:00 Chicago time of the evening before. RTH has two definitions in use, 08:30-15:00
(cash) and 08:30-15:15: say which. There is no table of holidays: a short session is a session.
"""

from __future__ import annotations

import csv as text_csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from helpers.load.vpoc.trades import (
    LEAST_PRICES,
    Array,
    Trades,
    TradesError,
    grid,
    guess_tick,
    tick_size,
    to_ticks,
    wrong_tick,
)

ZONE, CUT = "America/Chicago", "17:00"
WINDOWS = {"RTH 15:00": ("08:30", "15:00"), "RTH 15:15": ("08:30", "15:15")}
_NS = 1_000_000_000
_QUARTER = 900 * _NS
"""Zones change their offset on a quarter of an hour."""


def zone_of(name: str) -> ZoneInfo:
    """The time zone of that name. Raises TradesError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise TradesError(
            f"time zone {name!r} is not known here: give a name such as America/Chicago or UTC"
        ) from None


def _clock(text: str) -> time:
    try:
        return time.fromisoformat(text)
    except ValueError:
        raise TradesError(f"time of day {text!r}: expected HH:MM, such as 17:00") from None


def _by_quarter(times_ns: Array, offset_s: Any) -> Array:
    quarters, place = np.unique(times_ns // _QUARTER, return_inverse=True)
    return np.array([offset_s(int(q) * 900) for q in quarters], np.int64)[place] * _NS


def local_to_utc(times_ns: Array, zone: str) -> tuple[Array, int]:
    """Wall-clock times (ns since 1970 as the clock shows) as UTC, and how many stand in the hour that a clock shows twice.

    Of the two the earlier is taken; a time that the clock skipped in spring is read with the offset before.
    """
    tz, twice = zone_of(zone), set()

    def offset(seconds: int) -> int:
        wall = datetime(1970, 1, 1) + timedelta(seconds=seconds)
        first, second = (wall.replace(tzinfo=tz, fold=fold).utcoffset() for fold in (0, 1))
        assert first is not None and second is not None
        if first > second:
            twice.add(seconds // 900)
        return int(first.total_seconds())

    utc = times_ns - _by_quarter(times_ns, offset)
    return utc, int(np.isin(times_ns // _QUARTER, list(twice)).sum())


def utc_to_local(times_ns: Array, zone: str) -> Array:
    """UTC as the wall clock of a zone shows it, both in ns since 1970."""
    tz = zone_of(zone)

    def offset(seconds: int) -> int:
        shift = (
            (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds))
            .astimezone(tz)
            .utcoffset()
        )
        assert shift is not None
        return int(shift.total_seconds())

    return times_ns + _by_quarter(times_ns, offset)


def trade_dates(times_ns: Array, zone: str = ZONE, cut: str = CUT) -> Array:
    """The trade date of each UTC time, in days since 1970: the next day's from ``cut`` on; cut at 00:00, the day's own."""
    local = utc_to_local(times_ns, zone)
    at = _clock(cut)
    shift = (86400 - (at.hour * 3600 + at.minute * 60 + at.second)) % 86400
    return (local + shift * _NS) // (86400 * _NS)


def in_window(times_ns: Array, window: tuple[str, str], zone: str = ZONE) -> Array:
    """Whether each UTC time lies in the window of local times, its end not included; a window may span midnight."""
    begin, end = ((c.hour * 3600 + c.minute * 60 + c.second) * _NS for c in map(_clock, window))
    of_day = utc_to_local(times_ns, zone) % (86400 * _NS)
    return (
        (of_day >= begin) & (of_day < end) if begin <= end else (of_day >= begin) | (of_day < end)
    )


def group(
    price: Array, volume: Array, keys: Array, tick: float, notes: tuple[str, ...] = ()
) -> Trades:
    """Trades by session. ``keys`` that are text stand in the order in which they first come, numbers in their own.

    Trades that do not come session by session are sorted by it, their order within a session kept, and a note says so.
    """
    names, first, place = np.unique(keys, return_index=True, return_inverse=True)
    order = np.arange(len(names)) if names.dtype.kind in "iu" else np.argsort(np.argsort(first))
    rank = order[place]
    if len(rank) and (np.diff(rank) < 0).any():
        back = int((np.diff(rank) < 0).sum())
        notes += (f"the trades go back to an earlier session {back} times: sorted by session",)
        by = np.argsort(rank, kind="stable")
        price, volume, rank = price[by], volume[by], rank[by]
    labels = np.empty(len(names), object)
    labels[order] = names.astype(str)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rank, minlength=len(names)))]).astype(
        np.int64
    )
    return Trades(price, volume, starts, tick, tuple(map(str, labels)), notes)


def by_date(
    price: Array,
    volume: Array,
    times_ns: Array,
    tick: float,
    zone: str = ZONE,
    cut: str = CUT,
    notes: tuple[str, ...] = (),
) -> Trades:
    """Trades by trade date, labelled YYYY-MM-DD; times out of order are sorted, and a note counts them."""
    late = int((np.diff(times_ns) < 0).sum()) if len(times_ns) else 0
    if late:
        notes += (f"{late} trades are earlier than the one before them: sorted by time",)
        by = np.argsort(times_ns, kind="stable")
        price, volume, times_ns = price[by], volume[by], times_ns[by]
    trades = group(price, volume, trade_dates(times_ns, zone, cut), tick, notes)
    return replace(
        trades,
        labels=tuple(str(date(1970, 1, 1) + timedelta(days=int(label))) for label in trades.labels),
    )


COLUMNS = {
    "price": ("price", "last", "tradeprice", "lastprice", "px", "close"),
    "volume": ("volume", "size", "qty", "quantity", "vol", "lastsize", "lastvolume", "contracts"),
    "time": ("datetime", "timestamp", "time", "tsevent", "tsrecv", "date"),
    "session": ("session", "tradedate", "tradingday", "sessionid", "sessiondate"),
}
"""Names that a column goes by, in lower case without other characters; the first that is there counts."""
REASONS = (
    "price is no number",
    "volume is no number",
    "volume is negative",
    "volume is zero",
    "time cannot be read",
)
_EPOCH = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000), (0, 1_000_000_000))


@dataclass
class Aside:
    """Rows that are not counted: how many for each reason, and all of them in ``path`` (row, reason, the row as it was)."""

    path: Path
    counts: dict[str, int] = field(default_factory=dict)
    _writer: Any = None
    _file: Any = None

    def add(self, row: int, reason: str, values: list[Any]) -> None:
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", newline="")
            self._writer = text_csv.writer(self._file)
            self._writer.writerow(["row", "reason", "values"])
        self._writer.writerow([row, reason, *values])
        self.counts[reason] = self.counts.get(reason, 0) + 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{count} rows set aside in {self.path.name}: {reason}"
            for reason, count in self.counts.items()
        )


def read_trades(
    path: Path,
    tick: float | str | None = None,
    *,
    zone: str = "",
    cut: str = CUT,
    cut_zone: str = ZONE,
    window: tuple[str, str] | None = None,
    columns: dict[str, str] | None = None,
    aside: Path | None = None,
) -> Trades:
    """The trades of a file as int32 ticks and volumes, by session; ``notes`` say all that was guessed, counted or mended.

    ``tick``: a size or a product; guessed without one. ``zone``: that of times without one of their own. Sessions come from a
    session column, else are cut at ``cut`` in ``cut_zone``; ``window`` keeps a part of the day (RTH). ``columns``: names for
    price, volume, time, session. Bad rows go to ``aside`` (NAME.aside.csv beside the file). Raises TradesError or TickError.
    """
    if zone:
        zone_of(zone)
    bad = Aside(aside or path.with_name(path.name + ".aside.csv"))
    notes: list[str] = []
    try:
        parts = list(_tables(path, columns or {}, notes, bad))
        if not parts:
            raise TradesError(f"{path.name}: no rows")
        kept = [_sift(part, bad) for part in parts]
    finally:
        bad.close()
    price, volume = (np.concatenate([one[name] for one in kept]) for name in ("price", "volume"))
    if not len(price):
        raise TradesError(
            f"{path.name}: no good row is left ({'; '.join(bad.notes()) or 'the file has none'})"
        )
    size = _tick(path, price, tick, notes)
    notes += filter(None, [grid(price, size).note()])
    ticks, counted = to_ticks(price, size), _volumes(volume, notes)
    times = np.concatenate([one["time"] for one in kept]) if "time" in kept[0] else None
    keys = np.concatenate([one["session"] for one in kept]) if "session" in kept[0] else None
    said = (*bad.notes(), *notes)
    if times is None and keys is None:
        return Trades(
            ticks,
            counted,
            np.array([0, len(ticks)], np.int64),
            size,
            (path.stem,),
            (*said, "no session and no time column: all trades are one session"),
        )
    if times is not None and not all(one["aware"] for one in parts):
        if not zone:
            raise TradesError(
                f"{path.name}: its times have no zone: say which, such as zone=America/Chicago or zone=UTC"
            )
        times, twice = local_to_utc(times, zone)
        said += (
            f"{twice} times stand in the hour that the clock shows twice: the earlier is taken",
        ) * bool(twice)
    if window and times is None:
        raise TradesError(f"{path.name}: a window of the day needs a time column")
    if window and times is not None:
        keep = in_window(times, window, cut_zone)
        ticks, counted, times = ticks[keep], counted[keep], times[keep]
        keys = keys[keep] if keys is not None else None
    if keys is not None:
        return group(ticks, counted, keys, size, said)
    assert times is not None
    return by_date(ticks, counted, times, size, cut_zone, cut, said)


def _tick(path: Path, price: Array, tick: float | str | None, notes: list[str]) -> float:
    sample = price[:: max(1, len(price) // 200_000)]
    if tick is not None:
        size = tick_size(tick)
        notes += filter(None, [wrong_tick(sample, size)])
        return size
    found = guess_tick(sample)
    if found is None:
        raise TradesError(
            f"{path.name}: prices on no usual grid, or fewer than {LEAST_PRICES} different ones: give the tick"
        )
    notes.append(f"tick {found:g} guessed from the prices")
    return found


def _volumes(volume: Array, notes: list[str]) -> Array:
    if (volume == np.rint(volume)).all():
        most = float(volume.max(initial=0))
        if most >= 2**31:
            notes.append(f"a volume of {most:.0f} is beyond int32: volumes are int64")
        return volume.astype(np.int32 if most < 2**31 else np.int64)
    notes.append(
        "volumes have fractions: they are float64, and sums may differ in their last bit with the order"
    )
    return volume


def _sift(part: dict[str, Any], bad: Aside) -> dict[str, Array]:
    """The good rows of a part; the others go aside with the first reason that holds."""
    price, volume = part["price"], part["volume"]
    reason = np.full(len(price), -1, np.int8)
    tests = [~np.isfinite(price), ~np.isfinite(volume), volume < 0, volume == 0]
    if "time" in part:
        tests.append(part["time"] == np.iinfo(np.int64).min)
    for number, test in reversed(list(enumerate(tests))):
        reason[test] = number
    for row in np.flatnonzero(reason >= 0):
        bad.add(
            int(part["row"][row]), REASONS[reason[row]], [column[row] for column in part["raw"]]
        )
    good = reason < 0
    return {
        name: part[name][good] for name in ("price", "volume", "time", "session") if name in part
    }


def column_names(
    there: list[str], asked: dict[str, str], notes: list[str], path: Path
) -> dict[str, str]:
    """Which column has which role; ``asked`` names win. A note says what was found. Raises TradesError."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(there)}
    found = {}
    for role, names in COLUMNS.items():
        if role in asked:
            if asked[role] not in there:
                raise TradesError(
                    f"{path.name}: no column {asked[role]!r}; it has {', '.join(there)}"
                )
            found[role] = asked[role]
        elif hit := next((plain[name] for name in names if name in plain), None):
            found[role] = hit
    if missing := [role for role in ("price", "volume") if role not in found]:
        raise TradesError(
            f"{path.name}: no column looks like {' or '.join(missing)} among {', '.join(there)}: say which it is"
        )
    if {"open", "high", "low", "close"} <= set(plain) and found["price"] == plain["close"]:
        notes.append("these are bars, no trades: all of a bar's volume counts at its close")
    notes.append("columns: " + ", ".join(f"{role} is {name!r}" for role, name in found.items()))
    return found


def _tables(
    path: Path, asked: dict[str, str], notes: list[str], bad: Aside
) -> Iterator[dict[str, Any]]:
    if path.suffix == ".npz":
        yield _npz(path, asked, notes)
        return
    from pyarrow import ArrowException, csv, parquet

    row, names = 0, None
    try:
        if path.suffix in (".parquet", ".pq"):
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(1 << 18):
                    names = names or column_names(batch.schema.names, asked, notes, path)
                    yield _part(batch, names, row)
                    row += batch.num_rows
            return

        def short(line: Any) -> str:
            bad.add(
                line.number or -1,
                f"{line.actual_columns} columns, expected {line.expected_columns}",
                [line.text],
            )
            return "skip"

        with path.open("rb") as raw:
            head = raw.readline().decode("utf-8-sig", "replace")
        there = next(text_csv.reader([head]), [])
        names = column_names(there, asked, notes, path)
        reader = csv.open_csv(
            path,
            csv.ReadOptions(use_threads=False, block_size=16 << 20),
            csv.ParseOptions(invalid_row_handler=short),
            csv.ConvertOptions(
                column_types=dict.fromkeys(there, "string"), strings_can_be_null=True
            ),
        )
        for batch in reader:
            yield _part(batch, names, row)
            row += batch.num_rows
    except (ArrowException, OSError) as error:
        words = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise TradesError(
            f"{path.name}: {words}: expected a whole CSV, Parquet or npz file"
        ) from None


def _npz(path: Path, asked: dict[str, str], notes: list[str]) -> dict[str, Any]:
    from zipfile import BadZipFile

    try:
        with np.load(path, allow_pickle=False) as file:
            names = column_names(list(file.files), asked, notes, path)
            arrays = {role: np.atleast_1d(file[name]) for role, name in names.items()}
    except (BadZipFile, ValueError, OSError, EOFError) as error:
        raise TradesError(
            f"{path.name}: {str(error)[:200]}: expected a whole npz file; it may have been cut short"
        ) from None
    if len({len(one) for one in arrays.values()}) != 1:
        raise TradesError(
            f"{path.name}: its arrays differ in length: "
            + ", ".join(f"{k} {len(v)}" for k, v in arrays.items())
        )
    part: dict[str, Any] = {name: arrays[name].astype(np.float64) for name in ("price", "volume")}
    part |= {"row": np.arange(len(part["price"])), "raw": list(arrays.values()), "aware": False}
    if "session" in arrays:
        part["session"] = arrays["session"]
    if "time" in arrays:
        part["time"], part["aware"] = _times_of(arrays["time"]), arrays["time"].dtype.kind != "M"
    return part


def _part(batch: Any, names: dict[str, str], first: int) -> dict[str, Any]:
    """One batch of columns as arrays; what cannot be read as a number is NaN, as a time the least int64."""
    got = {role: batch.column(name) for role, name in names.items()}
    part: dict[str, Any] = {
        "row": np.arange(first + 1, first + 1 + batch.num_rows),
        "raw": [batch.column(i) for i in range(batch.num_columns)],
        "aware": False,
    }
    for role in ("price", "volume"):
        part[role] = _numbers(got[role])
    if "session" in got:
        column = got["session"].to_numpy(zero_copy_only=False)
        part["session"] = column if column.dtype.kind in "iu" else column.astype(str)
    if "time" in got:
        part["time"], part["aware"] = _times(got["time"])
    return part


def _numbers(column: Any) -> Array:
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = compute.utf8_trim_whitespace(column)
        fine = compute.match_substring_regex(
            column, r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
        )
        column = compute.if_else(fine, column, pa.scalar(None, column.type))
    values = compute.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float64)


def _times(column: Any) -> tuple[Array, bool]:
    """Times as ns since 1970, and whether they carry their zone: then they are UTC, else the wall clock's."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_timestamp(column.type):
        return _times_of(
            column.cast(pa.timestamp("ns", column.type.tz)).to_numpy(zero_copy_only=False)
        ), bool(column.type.tz)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return _times_of(column.to_numpy(zero_copy_only=False)), True
    column = compute.utf8_trim_whitespace(column)
    # 09/01/2013 becomes 2013-09-01; a day alone, or a T between day and time, is read too.
    column = compute.replace_substring_regex(column, r"^(\d{1,2})/(\d{1,2})/(\d{4})", r"\3-\1-\2")
    column = compute.replace_substring_regex(column, r"^(\d{4})-(\d)-", r"\1-0\2-")
    column = compute.replace_substring_regex(column, r"^(\d{4}-\d\d)-(\d)([ T]|$)", r"\1-0\2\3")
    zone = r"(Z|[+-]\d\d:?\d\d)"
    plain = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?"
    aware = bool(compute.any(compute.match_substring_regex(column, plain + zone + "$")).as_py())
    digits = compute.match_substring_regex(column, r"^\d{9,20}$")
    if compute.all(compute.fill_null(digits, True)).as_py():
        return _times_of(
            compute.cast(column, pa.int64(), safe=False).to_numpy(zero_copy_only=False)
        ), True
    fine = compute.match_substring_regex(column, plain + (zone if aware else "") + "$")
    kept = compute.if_else(fine, column, pa.scalar(None, column.type))
    try:
        cast = compute.cast(kept, pa.timestamp("ns", "UTC" if aware else None))
    except pa.ArrowInvalid:
        # A day such as February 30 among them: one at a time, the readable ones kept.
        cast = pa.array(
            [_one(text, pa.timestamp("ns", "UTC" if aware else None)) for text in kept.to_pylist()]
        )
    return _times_of(cast.to_numpy(zero_copy_only=False)), aware


def _one(text: str | None, kind: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return pa.scalar(None, kind)


def _times_of(values: Array) -> Array:
    """datetime64 or numbers since 1970 (s, ms, us or ns, by their size) as int64 ns; the least int64 where there is none."""
    least = np.iinfo(np.int64).min
    if values.dtype.kind == "M":
        return values.astype("datetime64[ns]").astype(np.int64)
    numbers = np.asarray(values, np.float64 if values.dtype.kind == "f" else np.int64)
    good = np.isfinite(numbers)
    size = float(np.median(np.abs(numbers[good]))) if good.any() else 0.0
    factor = next(factor for above, factor in _EPOCH if size >= above)
    return np.where(good, np.where(good, numbers, 0) * factor, least).astype(np.int64)
