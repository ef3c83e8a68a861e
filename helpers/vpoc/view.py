"""Volume profiles and what counting them costs, as tables and words."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.tell.shown import Shown
from helpers.tell.values import Column
from helpers.vpoc.files import Profiles
from helpers.vpoc.levels import USUAL, SessionLevels, level_rows, levels
from helpers.vpoc.planner import BOUNDS, ChunkPlan, ProfileShape
from helpers.vpoc.study import StrategyRow

LISTED = 20
LEVELS = ["POC", "VAL", "VAH"]
TIME = Column("time", "ms")
PEAKS = [Column("predicted peak", "bytes"), Column("measured peak", "bytes")]


def _prices(row: SessionLevels) -> list[str]:
    return [f"{price:g}" for price in (row.poc, row.val, row.vah)]


def usual_levels(profiles: Profiles) -> list[SessionLevels]:
    """Each session's levels under the usual rule."""
    return level_rows(profiles.trades, levels(profiles.counts, profiles.layout))


def levels_table(profiles: Profiles, name: str, written: Sequence[str] = ()) -> Shown:
    """The first sessions' levels under the usual rule, with all notes; ``name`` is the file's."""
    rows = usual_levels(profiles)
    below = []
    if len(rows) > LISTED:
        below.append(f"and {len(rows) - LISTED} more, in the file")
    below += ["", *(f"note: {note}" for note in profiles.notes)]
    below += [f"wrote {path}" for path in written]
    head = f"{name}: {len(rows)} sessions; {USUAL}"
    cells = [[row.session, *_prices(row)] for row in rows[:LISTED]]
    return Shown("", ["session", *LEVELS], cells, below, before=[head, ""])


def trades_words(profiles: Profiles) -> str:
    """The trades in one line, and what is to be said of them."""
    trades = profiles.trades
    layout = profiles.layout
    head = (
        f"{len(trades):,} trades in {trades.sessions} sessions, tick {trades.tick:g}, "
        f"{layout.bins} prices at most, counts as {layout.counts}"
    )
    return "\n".join([head, *trades.notes, *layout.notes])


def rules_table(rows: Sequence[SessionLevels]) -> Shown:
    """Levels under each rule: why another program's differ."""
    cells = [
        [row.session, row.rule.value_area, row.rule.tie, *_prices(row)] for row in rows
    ]
    head = ["session", "value area", "tie", *LEVELS]
    return Shown("One session's levels under each rule", head, cells)


def strategy_words(row: StrategyRow) -> str:
    """A strategy; one whose figures are not all measured says from what they are extrapolated."""
    if not row.sessions:
        return row.strategy
    few = "1 session" if row.sessions == 1 else f"{row.sessions} sessions"
    return f"{row.strategy}, extrapolated from {few}"


def _outcome(row: StrategyRow) -> str:
    return row.status.replace("_", " ")


def _equality(row: StrategyRow) -> str:
    if row.equal is None:
        return _outcome(row)
    return "same bits" if row.equal else "DIFFERS"


def strategies_table(rows: Sequence[StrategyRow]) -> Shown:
    """Each strategy: its time beside one read of the inputs, its predicted and measured peak,
    whether it counts the same.
    """
    cells = []
    for row in rows:
        times = f"{row.times_limit:,.1f}" if row.times_limit else None
        peaks = [row.predicted_bytes, row.measured_bytes]
        cells.append([strategy_words(row), row.seconds, times, *peaks, _equality(row)])
    head = ["strategy", TIME, "x one read of the inputs", *PEAKS, "counts"]
    notes = []
    if any(row.sessions for row in rows):
        notes = ["Extrapolated: in a straight line, as all at once does not fit."]
    return Shown("What each way of counting costs", head, cells, notes)


def chunks_table(rows: Sequence[StrategyRow]) -> Shown:
    """Time and peak at each chunk size, the quickest in the title; the memory model beside them."""
    cells = [
        [
            row.strategy,
            row.chunk_trades,
            row.seconds,
            row.predicted_bytes,
            row.measured_bytes,
        ]
        for row in rows
    ]
    title = "No chunk size was measured"
    timed = [(row.seconds, row) for row in rows if row.seconds]
    if timed:
        seconds, best = min(timed, key=lambda pair: pair[0])
        size = f"{best.chunk_trades:,} trades a chunk with {best.strategy}"
        title = f"Fastest on this machine: {size}, {1e3 * seconds:.1f} ms"
    return Shown(
        title, ["strategy", Column("trades a chunk", "1,000"), TIME, *PEAKS], cells
    )


def refusals_table(rows: Sequence[StrategyRow]) -> Shown:
    """Which strategies pass under which limit, and the allocator's own words."""
    cells = [
        [row.strategy, f"RLIMIT_DATA {row.limit_mib} MiB", _outcome(row), row.says]
        for row in rows
    ]
    head = ["strategy", "limit", "outcome", "says"]
    none = "Not run: provoke is off."
    return Shown("Strategies under hard limits", head, cells, none=none, widest=100)


def plans_table(
    plans: Sequence[tuple[str, ChunkPlan | str]], shape: ProfileShape
) -> Shown:
    """Each strategy's chunk and peak on the memory that is free, or why it has none."""
    cells: list[list[str | int | None]] = []
    for name, chosen in plans:
        if isinstance(chosen, str):
            cells.append([name, chosen, None, None])
            continue
        some = f"all {shape.trades:,}"
        if chosen.chunks > 1:
            some = f"{chosen.chunk_trades:,}"
        cells.append([name, some, chosen.peak_bytes, BOUNDS[chosen.bound]])
    head = ["strategy", "trades at a time", Column("peak", "bytes"), "why no more"]
    fitting = sum(isinstance(chosen, ChunkPlan) for _, chosen in plans)
    result = f"{fitting} of {len(plans)} ways have a chunk that fits"
    return Shown("Chunks on the memory that is free", head, cells, result=result)
