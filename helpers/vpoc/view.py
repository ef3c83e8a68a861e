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
"""Sessions of a table; the file has all."""
LEVELS = ["POC", "VAL", "VAH"]
TIME = Column("time", "ms")
PEAKS = [Column("predicted peak", "bytes"), Column("measured peak", "bytes")]


def _prices(row: SessionLevels) -> list[str]:
    """The cells of the columns LEVELS."""
    return [f"{price:g}" for price in (row.poc, row.val, row.vah)]


def usual_levels(profiles: Profiles) -> list[SessionLevels]:
    """Each session's levels under the usual rule."""
    return level_rows(profiles.trades, levels(profiles.counts, profiles.layout))


def levels_table(profiles: Profiles, name: str, written: Sequence[str] = ()) -> Shown:
    """The first sessions' levels under the usual rule, with all notes.

    ``name``: of the file. ``written``: the files with all of them.
    """
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
    """The trades in one line, and their notes."""
    trades = profiles.trades
    layout = profiles.layout
    head = (
        f"{len(trades):,} trades in {trades.sessions} sessions, tick {trades.tick:g}, "
        f"{layout.bins} prices at most, counts as {layout.counts}"
    )
    return "\n".join([head, *trades.notes, *layout.notes])


def rules_table(rows: Sequence[SessionLevels]) -> Shown:
    """One session's levels under each rule, which is why other programs show other levels."""
    cells = [
        [row.session, row.rule.value_area, row.rule.tie, *_prices(row)] for row in rows
    ]
    head = ["session", "value area", "tie", *LEVELS]
    return Shown("One session's levels under each rule", head, cells)


def strategy_words(row: StrategyRow) -> str:
    """A strategy's name, and from how many sessions its figures are extrapolated, if they are."""
    if not row.sessions:
        return row.strategy
    sessions = f"{row.sessions} sessions"
    if row.sessions == 1:
        sessions = "1 session"
    return f"{row.strategy}, extrapolated from {sessions}"


def _outcome(row: StrategyRow) -> str:
    return row.status.replace("_", " ")


def _equality(row: StrategyRow) -> str:
    """Whether the counts are those of the fused pass; the outcome where there are none."""
    if row.equal is None:
        return _outcome(row)
    if row.equal:
        return "same bits"
    return "DIFFERS"


def strategies_table(rows: Sequence[StrategyRow]) -> Shown:
    """Each strategy: its time, also as a multiple of one read of the inputs, its predicted and
    measured peak, and whether its counts are right.
    """
    cells = []
    for row in rows:
        times = None
        if row.times_limit:
            times = f"{row.times_limit:,.1f}"
        peaks = [row.predicted_bytes, row.measured_bytes]
        cells.append([strategy_words(row), row.seconds, times, *peaks, _equality(row)])
    head = ["strategy", TIME, "x one read of the inputs", *PEAKS, "counts"]
    notes = []
    if any(row.sessions for row in rows):
        notes = ["Extrapolated: in a straight line, as all at once does not fit."]
    return Shown("What each way of counting costs", head, cells, notes)


def chunks_table(rows: Sequence[StrategyRow]) -> Shown:
    """The time, the predicted and the measured peak at each chunk size; the fastest is in the
    title.
    """
    cells = []
    for row in rows:
        peaks = [row.predicted_bytes, row.measured_bytes]
        cells.append([row.strategy, row.chunk_trades, row.seconds, *peaks])
    title = "No chunk size was measured"
    timed = [(row.seconds, row) for row in rows if row.seconds]
    if timed:
        seconds, best = min(timed, key=lambda pair: pair[0])
        size = f"{best.chunk_trades:,} trades a chunk with {best.strategy}"
        title = f"Fastest on this machine: {size}, {1e3 * seconds:.1f} ms"
    head = ["strategy", Column("trades a chunk", "1,000"), TIME, *PEAKS]
    return Shown(title, head, cells)


def refusals_table(rows: Sequence[StrategyRow]) -> Shown:
    """Which strategies finish under which limit, and the error of the allocator for the others."""
    cells = []
    for row in rows:
        limit = f"RLIMIT_DATA {row.limit_mib} MiB"
        cells.append([row.strategy, limit, _outcome(row), row.says])
    head = ["strategy", "limit", "outcome", "says"]
    none = "Not run: provoke is off."
    return Shown("Strategies under hard limits", head, cells, none=none, widest=100)


def plans_table(
    plans: Sequence[tuple[str, ChunkPlan | str]], shape: ProfileShape
) -> Shown:
    """Each strategy's chunk and peak on the free memory, or why it has none."""
    cells: list[list[str | int | None]] = []
    for name, chosen in plans:
        if isinstance(chosen, str):
            cells.append([name, chosen, None, None])
            continue
        at_a_time = f"all {shape.trades:,}"
        if chosen.chunks > 1:
            at_a_time = f"{chosen.chunk_trades:,}"
        why_no_more = BOUNDS[chosen.bound]
        cells.append([name, at_a_time, chosen.peak_bytes, why_no_more])
    head = ["strategy", "trades at a time", Column("peak", "bytes"), "why no more"]
    fitting = sum(isinstance(chosen, ChunkPlan) for _, chosen in plans)
    result = f"{fitting} of {len(plans)} ways have a chunk that fits"
    return Shown("Chunks on the memory that is free", head, cells, result=result)
