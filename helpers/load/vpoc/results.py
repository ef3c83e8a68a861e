"""Profiles and levels of a user's files as Parquet: ``session, tick, price, volume`` and ``session, poc, val, vah, rule``."""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from helpers.load.vpoc.histogram import COLUMNS, stream_parquet
from helpers.load.vpoc.planner import Plan, free_here, plan, shape_of
from helpers.load.vpoc.profile import RULES, levels
from helpers.load.vpoc.reading import column_names, read_trades
from helpers.load.vpoc.strategies import NUMPY, STRATEGIES, TORCH, run
from helpers.load.vpoc.study import measure
from helpers.load.vpoc.trades import (
    Array,
    Layout,
    Trades,
    TradesError,
    survey,
    tick_size,
    to_price,
    write_store,
)
from helpers.look.files import write_atomic

CHILD_S = 3600.0


@dataclass(frozen=True, eq=False)
class Result:
    """Profiles of one file. ``notes`` are everything a reader must know: guesses, rows set aside, promotions, the plan."""

    trades: Trades
    layout: Layout
    counts: Array
    notes: tuple[str, ...]


def profile_file(
    path: Path,
    tick: float | str | None = None,
    strategy: str = "fused",
    device: str = "cpu",
    **reading: Any,
) -> Result:
    """Read a file and count it by a strategy, torch's included, with the chunk that fits here.

    Raises TradesError or TickError for a file that cannot be used, NoRoomError where the strategy would not fit.
    """
    if strategy == "stream_parquet":
        return _streamed(path, tick, reading.get("columns") or {})
    if strategy not in STRATEGIES:
        expected = f"expected stream_parquet or one of {', '.join(STRATEGIES)}"
        raise TradesError(f"strategy {strategy!r}: {expected}")
    if strategy in NUMPY and device != "cpu":
        others = f"for {device} give one of {', '.join(TORCH)}"
        raise TradesError(f"{strategy} runs on the CPU: {others}")
    trades = read_trades(path, tick, **reading)
    layout = survey(trades)
    chosen = plan(strategy, shape_of(trades, layout), free_here())
    if strategy in NUMPY:
        counts = run(strategy, trades, layout, chosen.chunk_trades)
    else:
        counts = _in_a_child(trades, layout, device, chosen)
    return Result(trades, layout, counts, (*trades.notes, *layout.notes, chosen.says))


def _streamed(path: Path, tick: float | str | None, asked: dict[str, str]) -> Result:
    """A Parquet file with a session column, a batch in memory at a time."""
    from pyarrow import ArrowException, parquet

    try:
        there = parquet.read_schema(path).names
    except (ArrowException, OSError) as error:
        why = f"stream_parquet streams Parquet files: {str(error).splitlines()[0][:200]}"
        raise TradesError(f"{path.name}: {why}") from None
    notes: list[str] = []
    found = column_names(there, asked, notes, path)
    if "session" not in found or tick is None:
        why = "streaming needs a session column and the tick size: load the file to guess"
        raise TradesError(f"{path.name}: {why}")
    size, columns = tick_size(tick), [found[role] for role in COLUMNS]
    labels, layout, counts = stream_parquet(path, size, columns=columns)
    empty, starts = np.zeros(0, np.int32), np.zeros(len(labels) + 1, np.int64)
    trades = Trades(empty, empty, starts, size, labels, (*notes, *layout.notes))
    return Result(trades, layout, counts, trades.notes)


def _in_a_child(trades: Trades, layout: Layout, device: str, chosen: Plan) -> Array:
    how: dict[str, Any] = {"chunk_trades": chosen.chunk_trades, "limit_s": CHILD_S}
    with tempfile.TemporaryDirectory(prefix="casebook-trades-") as folder:
        store = write_store(Path(folder, "store"), [trades], layout.bins)
        got = measure(chosen.strategy, store, device=device, counts=True, **how)
    if got.counts is None:
        why = f"{got.status.replace('_', ' ')}: {got.why}"
        raise TradesError(f"{chosen.strategy} on {device}: {why}")
    return got.counts


def write(result: Result, out: Path, force: bool = False) -> tuple[Path, Path]:
    """Write OUT.profiles.parquet (occupied ticks alone) and OUT.levels.parquet, every rule a row for each session.

    Raises FileExistsError unless ``force``.
    """
    import pyarrow as pa
    from pyarrow import parquet

    names = (f"{out.name}.{name}.parquet" for name in ("profiles", "levels"))
    profiles, table = map(out.with_name, names)
    for path in (profiles, table):
        if path.exists() and not force:
            raise FileExistsError(f"{path} exists: give another name or force it")
    trades, layout, counts = result.trades, result.layout, result.counts
    sessions, bins = np.nonzero(counts)
    ticks = (bins + layout.lows[sessions]).astype(np.int32)
    labels = pa.array(trades.labels, pa.string()).take(pa.array(sessions))
    rows = {"session": labels, "tick": ticks, "price": to_price(ticks, trades.tick)}
    found: dict[str, list[Any]] = {name: [] for name in ("session", "poc", "val", "vah", "rule")}
    for rule in RULES:
        prices = levels(counts, layout, rule).prices(trades.tick)
        rows_of: list[Any] = [trades.labels, *prices, [str(rule)] * trades.sessions]
        for column, values in zip(found.values(), rows_of, strict=True):
            column.extend(values)
    notes = {"notes": "\n".join(result.notes)}
    tables = pa.table({**rows, "volume": counts[sessions, bins]}), pa.table(found)
    for path, one in zip((profiles, table), tables, strict=True):
        content = io.BytesIO()
        parquet.write_table(one.replace_schema_metadata(notes), content, compression="zstd")
        write_atomic(path, content.getvalue())
    return profiles, table
