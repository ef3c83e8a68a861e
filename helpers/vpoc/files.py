"""Profiles and levels of a file of trades as Parquet.

The tables are ``session, tick, price, volume`` and ``session, poc, val, vah, rule``.
"""

from __future__ import annotations

import io
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from helpers.look.files import write_atomic
from helpers.vpoc.counting import STRATEGIES, run, strategy_of
from helpers.vpoc.free import free_here
from helpers.vpoc.layout import Layout, survey
from helpers.vpoc.levels import by_rule
from helpers.vpoc.measure import measure
from helpers.vpoc.planner import ChunkPlan, plan, shape_of
from helpers.vpoc.store import write_store
from helpers.vpoc.ticks import to_price
from helpers.vpoc.trades import Array, Trades, TradesError

CHILD_S = 3600.0
"""Seconds for a file's trades under torch, which may be billions."""


@dataclass(frozen=True, eq=False)
class Profiles:
    """Trades with their ``counts``, an array [sessions, bins] whose rows ``layout`` describes.

    ``notes``: guesses, rows that were left out, and the plan, a sentence each.
    """

    trades: Trades
    layout: Layout
    counts: Array
    notes: tuple[str, ...]


def profiles_of(
    trades: Trades, strategy: str = "fused", device: str = "cpu"
) -> Profiles:
    """Count trades by a strategy, with the chunk that fits the free memory of this machine.

    Raises TradesError for a strategy that fails, and planner.NoRoomError where none fits.
    """
    check_strategy(strategy, device)
    layout = survey(trades)
    chosen = plan(strategy, shape_of(trades, layout), free_here())
    if strategy_of(strategy).torch:
        counts = _in_a_child(trades, device, chosen)
    else:
        counts = run(strategy, trades, layout, chosen.chunk_trades)
    return Profiles(trades, layout, counts, (*trades.notes, *layout.notes, chosen.says))


def check_strategy(strategy: str, device: str) -> None:
    """Raises TradesError for an unknown strategy, and for one that cannot run on that device."""
    if not strategy_of(strategy).torch and device != "cpu":
        others = [name for name, way in STRATEGIES.items() if way.torch]
        raise TradesError(
            f"{strategy} runs on the CPU: for {device} give one of {', '.join(others)}"
        )


def _in_a_child(trades: Trades, device: str, chosen: ChunkPlan) -> Array:
    """The counts by a strategy of torch. Raises TradesError where the child gives none."""
    with tempfile.TemporaryDirectory(prefix="casebook-trades-") as folder:
        measured = measure(
            chosen.strategy,
            write_store(Path(folder, "store"), trades),
            chunk_trades=chosen.chunk_trades,
            device=device,
            counts=True,
            limit_s=CHILD_S,
        )
    if measured.counts is None:
        why = f"{measured.status.replace('_', ' ')}: {measured.why}"
        raise TradesError(f"{chosen.strategy} on {device}: {why}")
    return measured.counts


def write(profiles: Profiles, out: Path, force: bool = False) -> tuple[Path, Path]:
    """Write OUT.profiles.parquet, with the ticks that have volume, and OUT.levels.parquet, with a
    row for each session and rule. Returns both paths.

    Raises FileExistsError where one exists already, unless ``force``.
    """
    tables = {
        out.with_name(f"{out.name}.profiles.parquet"): _profile_table(profiles),
        out.with_name(f"{out.name}.levels.parquet"): _level_table(profiles),
    }
    for path in tables:
        if path.exists() and not force:
            raise FileExistsError(f"{path} exists: give another name or force it")
    notes = {"notes": "\n".join(profiles.notes)}
    for path, table in tables.items():
        content = io.BytesIO()
        with_notes = table.replace_schema_metadata(notes)
        parquet.write_table(with_notes, content, compression="zstd")
        write_atomic(path, content.getvalue())
    profiles_path, levels_path = tables
    return profiles_path, levels_path


def _profile_table(profiles: Profiles) -> pa.Table:
    """A row for each session and tick with volume."""
    sessions, bins = np.nonzero(profiles.counts)
    ticks = (bins + profiles.layout.lows[sessions]).astype(np.int32)
    labels = pa.array(profiles.trades.labels, pa.string())
    return pa.table(
        {
            "session": labels.take(pa.array(sessions)),
            "tick": ticks,
            "price": to_price(ticks, profiles.trades.tick),
            "volume": profiles.counts[sessions, bins],
        }
    )


def _level_table(profiles: Profiles) -> pa.Table:
    """A row for each session and rule."""
    rows = by_rule(profiles.trades, profiles.counts, profiles.layout)
    number = pa.float64()
    schema = pa.schema(
        {
            "session": pa.string(),
            "poc": number,
            "val": number,
            "vah": number,
            "rule": pa.string(),
        }
    )
    cells = [{**asdict(row), "rule": str(row.rule)} for row in rows]
    return pa.Table.from_pylist(cells, schema)
