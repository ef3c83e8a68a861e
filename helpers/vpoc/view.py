"""Volume profiles and what counting them costs, as tables and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helpers.ground.units import show_bytes
from helpers.tell.shown import Column, Shown
from helpers.vpoc.answer import case_arithmetic
from helpers.vpoc.planner import BOUNDS, Plan, Shape
from helpers.vpoc.trades import Layout, Trades

LISTED = 20
NOT_PROVOKED = "Not run: provoke is off."
LEVELS = ("poc", "val", "vah")
Rows = Sequence[dict[str, Any]]


def _points(row: dict[str, Any]) -> list[str]:
    return [f"{row[name]:g}" for name in LEVELS]


def levels_text(answer: dict[str, Any]) -> Shown:
    """What the command vpoc answers for one file."""
    sessions = answer["sessions"]
    head = f"{answer['file']}: {len(sessions)} sessions; {answer['rule']}"
    below = [f"and {len(sessions) - LISTED} more, in the file"] * (len(sessions) > LISTED)
    below += ["", *(f"note: {note}" for note in answer["notes"])]
    below += [f"wrote {path}" for path in answer["written"]]
    rows = [[row["session"], *_points(row)] for row in sessions[:LISTED]]
    return Shown("", ["session", "POC", "VAL", "VAH"], rows, below, before=[head, ""])


def trades_words(trades: Trades, layout: Layout) -> str:
    """The trades in one line, and what is to be said of them."""
    head = f"{len(trades):,} trades in {trades.sessions} sessions, tick {trades.tick:g}, "
    head += f"{layout.bins} prices at most, counts as {layout.counts}"
    return "\n".join([head, *trades.notes, *layout.notes])


def rules_table(rows: Rows) -> Shown:
    """One session's levels under each rule: why does mine differ."""
    keys = ("session", "window", "value_area", "tie")
    cells = [[*(row[key] for key in keys), *_points(row)] for row in rows]
    head = ["session", "window", "value area", "tie", "POC", "VAL", "VAH"]
    return Shown("One session's levels under each rule", head, cells)


def _outcome(row: dict[str, Any]) -> str:
    return str(row["status"]).replace("_", " ")


def way(row: dict[str, Any]) -> str:
    """A strategy in words; one whose figures are not all measured says so, and from what they
    are extrapolated.
    """
    some = row.get("sessions")
    few = "1 session" if some == 1 else f"{some} sessions"
    return f"{row['strategy']}, extrapolated from {few}" if some else str(row["strategy"])


def strategies_table(rows: Rows) -> Shown:
    """Each strategy: its time beside one read of the inputs, its predicted and measured peak,
    whether it counts the same.
    """
    counts = {True: "same bits", False: "DIFFERS"}
    cells = []
    for row in rows:
        times = f"{row['times_limit']:,.1f}" if row["times_limit"] else None
        peaks = [row["predicted_bytes"], row["measured_bytes"]]
        same = counts.get(row["equal"], _outcome(row))
        cells.append([way(row), row["seconds"] or None, times, *peaks, same])
    sizes = [Column(name, "bytes") for name in ("predicted peak", "measured peak")]
    head = ["strategy", Column("time", "ms"), "x one read of the inputs", *sizes, "counts"]
    notes = ["Extrapolated: in a straight line, as all at once does not fit."]
    notes *= any(row.get("sessions") for row in rows)
    return Shown("What each way of counting costs", head, cells, notes)


def refusals_table(rows: Rows) -> Shown:
    """Which strategies pass under which limit, and the allocator's own words."""
    cells = [
        [row["strategy"], f"{row['limit']} {row['limit_mib']} MiB", _outcome(row), row["says"]]
        for row in rows
    ]
    head = ["strategy", "limit", "outcome", "says"]
    return Shown("Strategies under hard limits", head, cells, none=NOT_PROVOKED, widest=100)


def contention_table(rows: Rows) -> Shown:
    """The same trades in three orders: a slow step need not be memory."""
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    orders: dict[str, list[Any]] = {}
    for row in rows:
        cells = orders.setdefault(row["order"], [row["order"]])
        cells.append(row["seconds"] or row["status"])
    head = ["order", *(Column(name, "ms") for name in names)]
    return Shown("The same trades in three orders", head, list(orders.values()))


def heap_table(rows: Rows) -> Shown:
    """What the host's heap kept in each process, beside what was live at most."""
    peaks = [", ".join(map(show_bytes, row["peaks_bytes"])) or row["why"] for row in rows]
    cells = [[row["form"], row["live_bytes"], held] for row, held in zip(rows, peaks, strict=True)]
    head = ["form", Column("live", "bytes"), "held at most, a process each"]
    return Shown("What the host's heap kept", head, cells, none=NOT_PROVOKED, widest=None)


def case_table() -> Shown:
    """What the case study's explanation comes to, computed from its own numbers."""
    cells = [
        [row["claim"], row["computed"], f"{row['value']:.3g} {row['unit']}"]
        for row in case_arithmetic()
    ]
    head = ["the case says", "its own numbers", "give"]
    return Shown("The case's explanation in its own numbers", head, cells, widest=None)


def expectations_table(rows: Sequence[Sequence[Any]]) -> Shown:
    """What the case expects of its profiles beside what comes of it here, and how each figure
    is known.
    """
    head = ["the case expects", "here", "how that is known", "state"]
    return Shown("The case's expectations", head, [list(row) for row in rows], widest=None)


def plans_table(found: Sequence[tuple[str, Plan | str]], shape: Shape) -> Shown:
    """Each strategy's chunk and peak on the memory that is free, or that it does not fit."""
    cells: list[list[Any]] = []
    for name, made in found:
        if isinstance(made, Plan):
            some = f"{made.chunk_trades:,}" if made.chunks > 1 else f"all {shape.trades:,}"
            cells.append([name, some, made.peak_bytes, BOUNDS[made.bound]])
        else:
            cells.append([name, "does not fit", None, None])
    head = ["strategy", "trades at a time", Column("peak", "bytes"), "why no more"]
    return Shown("Chunks on the memory that is free", head, cells)
