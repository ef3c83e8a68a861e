"""Volume profiles and what counting them costs, as tables and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helpers.load.vpoc.answer import case_arithmetic
from helpers.load.vpoc.planner import Plan, Shape
from helpers.load.vpoc.trades import Layout, Trades
from helpers.look.reading import show_bytes

from .tables import table

LISTED = 20
LEVELS = ("poc", "val", "vah")


def _points(row: dict[str, Any]) -> list[str]:
    return [f"{row[name]:g}" for name in LEVELS]


def levels_text(answer: dict[str, Any]) -> str:
    """What the command vpoc answers for one file."""
    sessions = answer["sessions"]
    rows = [[row["session"], *_points(row)] for row in sessions[:LISTED]]
    head = f"{answer['file']}: {len(sessions)} sessions; {answer['rule']}"
    lines = [head, "", table(rows, ["session", "POC", "VAL", "VAH"])]
    if len(sessions) > LISTED:
        lines.append(f"and {len(sessions) - LISTED} more, in the file")
    notes = [f"note: {note}" for note in answer["notes"]]
    return "\n".join([*lines, "", *notes, *(f"wrote {path}" for path in answer["written"])])


def trades_words(trades: Trades, layout: Layout) -> str:
    """The trades in one line, and what is to be said of them."""
    head = (
        f"{len(trades):,} trades in {trades.sessions} sessions, tick {trades.tick:g}, {layout.bins} prices at most, "
        f"counts as {layout.counts}"
    )
    return "\n".join([head, *trades.notes, *layout.notes])


def rules_table(rows: Sequence[dict[str, Any]]) -> str:
    """One session's levels under each rule: why does mine differ."""
    keys = ("session", "window", "value_area", "tie")
    shown = [[*(row[key] for key in keys), *_points(row)] for row in rows]
    return table(shown, ["session", "window", "value area", "tie", "POC", "VAL", "VAH"])


def _ms(seconds: float | None) -> str | None:
    return f"{1e3 * seconds:.1f} ms" if seconds else None


def _size(value: int | None) -> str | None:
    return None if value is None else show_bytes(value)


def strategies_table(rows: Sequence[dict[str, Any]], times: bool = True) -> str:
    """Each strategy: predicted peak, whether it counts the same, and with ``times`` what was measured of time and peak."""
    shown: list[list[str | None]] = []
    for row in rows:
        predicted, measured = _size(row["predicted_bytes"]), _size(row["measured_bytes"])
        counts = {True: "same bits", False: "DIFFERS"}.get(row["equal"], _outcome(row))
        limits = f"{row['times_limit']:.1f}" if row["times_limit"] else None
        timed = [_ms(row["seconds"]), limits, predicted, measured]
        shown.append([row["strategy"], *(timed if times else [predicted]), counts])
    head = ["time", "x limit", "predicted", "measured"] if times else ["predicted"]
    return table(shown, ["strategy", *head, "counts"])


def _outcome(row: dict[str, Any]) -> str:
    return str(row["status"]).replace("_", " ")


def refusals_table(rows: Sequence[dict[str, Any]]) -> str:
    """Which strategies pass under which limit, and the allocator's own words."""
    shown = [
        [
            row["strategy"],
            f"{row['limit']} {row['limit_mib']} MiB",
            _outcome(row),
            row["says"] or None,
        ]
        for row in rows
    ]
    return table(shown, ["strategy", "limit", "outcome", "says"], widest=100)


def contention_table(rows: Sequence[dict[str, Any]]) -> str:
    """The same trades in three orders: a slow step need not be memory."""
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    shown: dict[str, list[str]] = {}
    for row in rows:
        cells = shown.setdefault(row["order"], [row["order"]])
        cells.append(_ms(row["seconds"]) or row["status"])
    return table(list(shown.values()), ["order", *names])


def heap_table(rows: Sequence[dict[str, Any]]) -> str:
    """What the host's heap kept in each process, beside what was live at most."""
    shown = []
    for row in rows:
        peaks = ", ".join(map(show_bytes, row["peaks_bytes"])) or row["why"]
        shown.append([row["form"], show_bytes(row["live_bytes"]), peaks])
    return table(shown, ["form", "live", "held at most, a process each"], widest=None)


def case_table() -> str:
    """What the case study's explanation comes to, computed from its own numbers."""
    shown = [
        [row["claim"], row["computed"], f"{row['value']:.3g} {row['unit']}"]
        for row in case_arithmetic()
    ]
    return table(shown, ["the case says", "its own numbers", "give"], widest=None)


def plans_table(found: Sequence[tuple[str, Plan | str]], shape: Shape) -> str:
    """Each strategy's chunk and peak on the memory that is free, or that it does not fit."""
    rows: list[list[str | None]] = []
    for name, made in found:
        if isinstance(made, Plan):
            some = f"{made.chunk_trades:,}" if made.chunks > 1 else f"all {shape.trades:,}"
            rows.append([name, some, show_bytes(made.peak_bytes), made.bound])
        else:
            rows.append([name, "does not fit", None, None])
    return table(rows, ["strategy", "trades at a time", "peak", "bound by"])
