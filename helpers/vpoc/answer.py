"""What blows up and which chunk is right on a box: the memory it has free, the plan, and the
verdict over both.
"""

from __future__ import annotations

import io
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from helpers.ground.shapes import Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.units import show_bytes
from helpers.look.bundle import Bundle, is_this_box
from helpers.look.files import write_atomic
from helpers.look.gpus import gpus
from helpers.look.machine import machine
from helpers.vpoc import histogram, planner
from helpers.vpoc import trades as of_trades
from helpers.vpoc.planner import BOUNDS, Free, Plan, Shape, free_here, plan, shape_of
from helpers.vpoc.reading import column_names, read_trades
from helpers.vpoc.study import measure
from helpers.vpoc.trades import Array, Layout, Store, Trades, TradesError, survey, write_store

USE = ("fused", "preallocated")


def free_of(bundle: Bundle) -> Free:
    """What a box has free for profiles: on its first GPU whose pool is known, else in its RAM."""
    for gpu in gpus(bundle):
        for pool in gpu.pools:
            if pool.total.ok and pool.used.ok:
                total = int(pool.total.value or 0)
                left = max(0, total - int(pool.used.value or 0))
                return planner.free_on(left, f"{gpu.pci}, {pool.layer}", total)
    if is_this_box(bundle):
        return free_here()
    ram = machine(bundle)
    if ram.ram_available.ok:
        return Free(int(ram.ram_available.value or 0), "available RAM of the recorded box")
    half = int(ram.ram_total.value or 0) // 2 if ram.ram_total.ok else 0
    return Free(half, "half the RAM: what was available is not recorded")


def stored(trades: Trades) -> Store:
    """The trades in a folder of their own, for children to read, with at least 1000 prices a
    row; it goes with the store.
    """
    folder = tempfile.TemporaryDirectory(prefix="casebook-trades-")
    store = write_store(Path(folder.name, "store"), [trades], max(1000, survey(trades).bins))
    weakref.finalize(store, folder.cleanup)
    return store


def plans(shape: Shape, free: Free) -> list[tuple[str, Plan | str]]:
    """Each strategy with its plan on that memory, or why it does not fit."""
    found: list[tuple[str, Plan | str]] = []
    for name in histogram.STRATEGIES:
        try:
            found.append((name, plan(name, shape, free)))
        except planner.NoRoomError as error:
            found.append((name, str(error)))
    return found


def way(free: Free) -> str:
    """The strategy to count with: the one that takes least, on a GPU the one whose buffers are
    made once.
    """
    return USE[free.gpu]


SESSIONS = 1014
BINS = 1000
"""Of the case: its trading days, and the prices of each."""
MOST_BYTES = 18 * 10**9
LEAST_SHARE = 0.75
MOST_SHARE = 0.85
MOST_S = 120
"""What the case expects: below 18 GB, 75 to 85 % of the card, at most 120 seconds."""


def expectations(store: Store, free: Free) -> list[list[Any]]:
    """What the case expects of its profiles, what comes of it, how that is known, and the
    state: a row each.

    The plan is for the box's memory; its chunk is measured on this machine's CPU.
    """
    shape = shape_of(store.trades, store.layout)
    most_s = MOST_S
    why = "not measured because"
    many = f"{shape.trades:,} trades"
    here = "measured on this machine's CPU"
    asks = f"{SESSIONS:,} sessions of {BINS:,} prices"
    size = (shape.sessions, shape.bins)
    alike = "as in the case" if size == (SESSIONS, BINS) else "another size"
    rows: list[list[Any]] = [
        [asks, "{:,} of {:,}, {}".format(*size, many), "the trades above", alike]
    ]
    try:
        chosen = plan(way(free), shape, free)
    except planner.NoRoomError as error:
        return [*rows, ["which chunk", None, str(error), "not met"]]
    rows.append(["which chunk", f"{chosen.strategy}: {chosen.take}", BOUNDS[chosen.bound], None])
    inputs = shape.trades * shape.bytes_a_trade
    states = {True: "met", False: "not met"}
    peak = inputs + chosen.peak_bytes
    model = "closed form, its trades included"
    rows.append(["below 18 GB", show_bytes(peak), model, states[peak < MOST_BYTES]])
    part = peak / max(1, free.card_bytes)
    of = f"{model}, of {show_bytes(free.card_bytes)}"
    state = "less is needed" if part < LEAST_SHARE else states[part <= MOST_SHARE]
    told = [f"{part:.1%}", of, state]
    none = [None, None, f"{why} this box tells the size of no card"]
    rows.append(["75 to 85 % of the card", *(told if free.card_bytes else none)])
    got = measure(chosen.strategy, store, chunk_trades=chosen.chunk_trades, repeats=3)
    if not got.best_s or got.peak_bytes is None:
        return [*rows, ["at most 120 s", None, None, f"{why} {got.why or got.status}"]]
    long = most_s * shape.trades / shape.sessions / got.best_s / 1e6
    line = f"extrapolated in a straight line from {many}"
    return [
        *rows,
        ["at most 120 s", f"{got.best_s:.2g} s", here, states[got.best_s <= most_s]],
        ["its peak beyond the trades", show_bytes(got.peak_bytes), here, None],
        [f"{most_s} s would do for", f"{long:,.1f} million trades a session", line, None],
    ]


def verdict(shape: Shape, free: Free, measured: Sequence[dict[str, Any]]) -> Verdict:
    """What blows up, what to use, and with which chunk. ``measured``: rows of study.strategies."""
    model = "memory model of the strategies"
    one_hot, flat = (planner.predicted_bytes(n, shape, shape.trades) for n in ("one_hot", "flat"))
    hot_says = "one-hot over all trades at once, for that result"
    figures = [
        ("free", free.bytes, free.says, "what may be taken"),
        ("result", shape.result_bytes, model, "the profiles themselves"),
        ("one-hot", one_hot, model, hot_says),
        ("flat", flat, model, "an index for all trades at once"),
    ]
    for name, size in ((row["strategy"], row["measured_bytes"]) for row in measured):
        if name in USE and size:
            says = f"{name}, its peak beyond the inputs in chunks as measured"
            figures.append((f"measured-{name}", size, "measured here", says))
    large = {"one-hot": one_hot, "one index for all trades": flat}
    blows = [name for name, size in large.items() if size > free.bytes]
    unequal = [str(row["strategy"]) for row in measured if row.get("equal") is False]
    differs = "gives other counts than the fused pass"
    missing = []
    if not measured:
        what = "the strategies measured on this box"
        how = "this notebook with box = live"
        missing = [Missing(reading=what, how=how)]
    name = way(free)
    command = "python3 -m helpers vpoc FILE"
    head = "Nothing tried here would fill this memory"
    if blows:
        words = f"{' and '.join(blows)} would not fit {show_bytes(free.bytes)}"
        head = words[0].upper() + words[1:]
    try:
        chosen = plan(name, shape, free)
        summary = f"{head}; {chosen.says}."
        step = f"Count with {name}: {chosen.take}"
        title = f"Take {chosen.take}: {name} then needs {show_bytes(chosen.peak_bytes)}"
    except planner.NoRoomError as error:
        title = "Not even one trade at a time fits"
        summary = str(error)
        step = "Stream the file: one pass, a few MiB"
        missing = []
        blows = ["the result"]
        command = f"{command} --tick SIZE --strategy stream_parquet"
    return Verdict(
        cause="true-capacity" if blows else "other",
        state="aside",
        title=title,
        confidence="likely",
        summary=summary,
        evidence=[
            Evidence(id=id, reading=seen(size, "bytes", source), says=says)
            for id, size, source, says in figures
        ],
        against=[
            Evidence(id=f"unequal-{one}", reading=seen(one, "text", "measured here"), says=differs)
            for one in unequal
        ],
        missing=missing,
        next_step=NextStep(what=step, command=command),
    )


def case_arithmetic() -> list[dict[str, Any]]:
    """What the case study's own numbers come to; a Globex session has 1380 one-minute bars."""
    bars = 1380
    result = SESSIONS * BINS * 4
    cells = SESSIONS * bars * BINS
    bug = "a bug of ROCm fills the card"
    one_hot = "one-minute bars: one_hot x float volume"
    blocks = "volume histograms need large contiguous blocks"
    rows: tuple[tuple[str, str, float, str], ...] = (
        (blocks, "sessions x bins x 4 bytes", result / 1e6, "MB"),
        ("the pool needs 10 to 15 GB", "of 10 GB that matrix is", 100 * result / 1e10, "%"),
        ("chunk_size=50 is 20 % of the sessions", "50 of them are", 100 * 50 / SESSIONS, "%"),
        (bug, f"{one_hot}, 12 bytes a cell", cells * 12 / 1e9, "GB"),
        (bug, "the same with a float copy, 16 bytes", cells * 16 / 1e9, "GB"),
    )
    return [dict(zip(("claim", "computed", "value", "unit"), row, strict=True)) for row in rows]


# Profiles and levels of a user's files as Parquet: ``session, tick, price, volume`` and
# ``session, poc, val, vah, rule``.

CHILD_S = 3600.0


@dataclass(frozen=True, eq=False)
class Result:
    """Profiles of one file.

    ``notes`` are everything a reader must know: guesses, rows set aside, promotions, the plan.
    """

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

    Raises TradesError or TickError for a file that cannot be used, planner.NoRoomError where
    the strategy would not fit.
    """
    if strategy == "stream_parquet":
        return _streamed(path, tick, reading.get("columns") or {})
    if strategy not in histogram.STRATEGIES:
        expected = f"expected stream_parquet or one of {', '.join(histogram.STRATEGIES)}"
        raise TradesError(f"strategy {strategy!r}: {expected}")
    if strategy in histogram.NUMPY and device != "cpu":
        others = f"for {device} give one of {', '.join(histogram.TORCH)}"
        raise TradesError(f"{strategy} runs on the CPU: {others}")
    trades = read_trades(path, tick, **reading)
    layout = survey(trades)
    chosen = plan(strategy, shape_of(trades, layout), free_here())
    if strategy in histogram.NUMPY:
        counts = histogram.run(strategy, trades, layout, chosen.chunk_trades)
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
    size = of_trades.tick_size(tick)
    columns = [found[role] for role in histogram.COLUMNS]
    labels, layout, counts = histogram.stream_parquet(path, size, columns=columns)
    empty = np.zeros(0, np.int32)
    starts = np.zeros(len(labels) + 1, np.int64)
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
    """Write OUT.profiles.parquet (occupied ticks alone) and OUT.levels.parquet, every rule a
    row for each session.

    Raises FileExistsError unless ``force``.
    """
    import pyarrow as pa
    from pyarrow import parquet

    names = (f"{out.name}.{name}.parquet" for name in ("profiles", "levels"))
    profiles, table = map(out.with_name, names)
    for path in (profiles, table):
        if path.exists() and not force:
            raise FileExistsError(f"{path} exists: give another name or force it")
    trades = result.trades
    layout = result.layout
    counts = result.counts
    sessions, bins = np.nonzero(counts)
    ticks = (bins + layout.lows[sessions]).astype(np.int32)
    labels = pa.array(trades.labels, pa.string()).take(pa.array(sessions))
    rows = {"session": labels, "tick": ticks, "price": of_trades.to_price(ticks, trades.tick)}
    found: dict[str, list[Any]] = {name: [] for name in ("session", "poc", "val", "vah", "rule")}
    for rule in histogram.RULES:
        prices = histogram.levels(counts, layout, rule).prices(trades.tick)
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
