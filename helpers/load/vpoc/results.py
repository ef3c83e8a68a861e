"""Profiles and levels of a user's files as Parquet: ``session, tick, price, volume`` and ``session, poc, val, vah, rule``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from helpers.load.vpoc.memory import shape_of
from helpers.load.vpoc.planner import Free, Plan, free_here, plan
from helpers.load.vpoc.profile import TIES, VALUE_AREAS, Rule, levels
from helpers.load.vpoc.reading import column_names, read_trades
from helpers.load.vpoc.strategies import NUMPY, STRATEGIES, run, stream_parquet
from helpers.load.vpoc.trades import Array, Layout, Trades, TradesError, survey, tick_size, to_price


@dataclass(frozen=True, eq=False)
class Result:
    """Profiles of one file. ``notes`` are everything a reader must know: guesses, rows set aside, promotions, the plan."""

    trades: Trades
    layout: Layout
    counts: Array
    plan: Plan
    notes: tuple[str, ...]


def profile_file(
    path: Path,
    tick: float | str | None = None,
    strategy: str = "fused",
    device: str = "cpu",
    free: Free | None = None,
    **reading: Any,
) -> Result:
    """Read a file and count it by a strategy, torch's included, with the chunk that fits here.

    Raises TradesError or TickError for a file that cannot be used, PlanError where the strategy would not fit.
    """
    if strategy == "stream_parquet":
        return _streamed(path, tick, free or free_here())
    if strategy not in STRATEGIES:
        raise TradesError(
            f"strategy {strategy!r}: expected stream_parquet or one of {', '.join(STRATEGIES)}"
        )
    trades = read_trades(path, tick, **reading)
    layout = survey(trades)
    chosen = plan(strategy, shape_of(trades, layout), free or free_here())
    if strategy in NUMPY:
        if device != "cpu":
            raise TradesError(
                f"{strategy} runs on the CPU: for {device} give one of "
                f"{', '.join(name for name in STRATEGIES if name not in NUMPY)}"
            )
        counts = run(strategy, trades, layout, chosen.chunk_trades)
    else:
        counts = _in_a_child(trades, layout, strategy, device, chosen)
    return Result(trades, layout, counts, chosen, (*trades.notes, *layout.notes, chosen.says))


def _streamed(path: Path, tick: float | str | None, free: Free) -> Result:
    """A Parquet file with a session column, a batch in memory at a time."""
    from pyarrow import ArrowException, parquet

    try:
        there = parquet.read_schema(path).names
    except (ArrowException, OSError) as error:
        raise TradesError(
            f"{path.name}: stream_parquet streams Parquet files: {str(error).splitlines()[0][:200]}"
        ) from None
    notes: list[str] = []
    found = column_names(there, {}, notes, path)
    if "session" not in found or tick is None:
        raise TradesError(
            f"{path.name}: streaming needs a session column and the tick size: load the file to guess"
        )
    size = tick_size(tick)
    labels, layout, counts = stream_parquet(
        path, size, columns=(found["session"], found["price"], found["volume"])
    )
    empty = np.zeros(0, np.int32)
    trades = Trades(
        empty, empty, np.zeros(len(labels) + 1, np.int64), size, labels, (*notes, *layout.notes)
    )
    return Result(
        trades,
        layout,
        counts,
        Plan("stream_parquet", 1 << 16, 1, "all", counts.nbytes, free),
        trades.notes,
    )


def _in_a_child(trades: Trades, layout: Layout, strategy: str, device: str, chosen: Plan) -> Array:
    import tempfile

    from helpers.load.vpoc.study import measure
    from helpers.load.vpoc.trades import write_store

    with tempfile.TemporaryDirectory(prefix="casebook-trades-") as folder:
        got = measure(
            strategy,
            write_store(Path(folder, "store"), [trades], layout.bins),
            device=device,
            counts=True,
            chunk_trades=chosen.chunk_trades,
            limit_s=3600.0,
        )
    if got.counts is None:
        raise TradesError(f"{strategy} on {device}: {got.status.replace('_', ' ')}: {got.why}")
    return got.counts


def write(
    result: Result, out: Path, rules: Sequence[Rule] = (), force: bool = False
) -> tuple[Path, Path]:
    """Write OUT.profiles.parquet (occupied ticks alone) and OUT.levels.parquet, every rule a row for each session.

    Raises FileExistsError unless ``force``.
    """
    import pyarrow as pa
    from pyarrow import parquet

    profiles, table = (
        out.with_name(f"{out.name}.{name}.parquet") for name in ("profiles", "levels")
    )
    for path in (profiles, table):
        if path.exists() and not force:
            raise FileExistsError(f"{path} exists: give another name or force it")
    sessions, bins = np.nonzero(result.counts)
    ticks = (bins + result.layout.lows[sessions]).astype(np.int32)
    labels = pa.array(result.trades.labels, pa.string())
    rows = pa.table(
        {
            "session": labels.take(pa.array(sessions)),
            "tick": ticks,
            "price": to_price(ticks, result.trades.tick),
            "volume": result.counts[sessions, bins],
        }
    )
    found: dict[str, list[Any]] = {name: [] for name in ("session", "poc", "val", "vah", "rule")}
    for rule in rules or [Rule(tie, area) for area in VALUE_AREAS for tie in TIES]:
        for label, *level in zip(
            result.trades.labels,
            *levels(result.counts, result.layout, rule).prices(result.trades.tick),
            strict=True,
        ):
            for name, value in zip(found, (label, *map(float, level), str(rule)), strict=True):
                found[name].append(value)
    notes = {"notes": "\n".join(result.notes)}
    for path, what in ((profiles, rows), (table, pa.table(found))):
        part = path.with_name(path.name + ".part")
        parquet.write_table(what.replace_schema_metadata(notes), part, compression="zstd")
        part.replace(path)
    return profiles, table
