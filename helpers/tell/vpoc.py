"""Volume profiles and what counting them costs, as tables and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from helpers.load.vpoc.memory import Shape, case_arithmetic
from helpers.load.vpoc.planner import Plan
from helpers.load.vpoc.profile import Levels
from helpers.load.vpoc.trades import Layout, Trades
from helpers.look.reading import show_bytes

from .tables import table

LISTED = 20


def level_rows(trades: Trades, found: Levels) -> list[dict[str, Any]]:
    """POC, VAL and VAH of every session with volume, in points."""
    rows = zip(trades.labels, found.there, *found.prices(trades.tick), strict=True)
    return [
        {"session": label, "poc": float(poc), "val": float(val), "vah": float(vah)}
        for label, there, poc, val, vah in rows
        if there
    ]


def levels_text(told: dict[str, Any]) -> str:
    """What the command vpoc answers for one file."""
    rows = [
        [row["session"], f"{row['poc']:g}", f"{row['val']:g}", f"{row['vah']:g}"]
        for row in told["sessions"][:LISTED]
    ]
    more = len(told["sessions"]) - len(rows)
    lines = [
        f"{told['file']}: {len(told['sessions'])} sessions; {told['rule']}",
        "",
        table(rows, ["session", "POC", "VAL", "VAH"]),
        *([f"and {more} more, in the file"] if more > 0 else []),
        "",
    ]
    return "\n".join(
        [
            *lines,
            *(f"note: {note}" for note in told["notes"]),
            *(f"wrote {path}" for path in told["written"]),
        ]
    )


def trades_words(trades: Trades, layout: Layout) -> str:
    """The trades in one line, and what is to be said of them."""
    head = (
        f"{len(trades):,} trades in {trades.sessions} sessions, tick {trades.tick:g}, {layout.bins} prices at most, "
        f"counts as {layout.counts}"
    )
    return "\n".join([head, *trades.notes, *layout.notes])


def rules_table(rows: Sequence[dict[str, Any]]) -> str:
    """One session's levels under each rule: why does mine differ."""
    return table(
        [
            [
                row["session"],
                row["window"],
                row["value_area"],
                row["tie"],
                f"{row['poc']:g}",
                f"{row['val']:g}",
                f"{row['vah']:g}",
            ]
            for row in rows
        ],
        ["session", "window", "value area", "tie", "POC", "VAL", "VAH"],
    )


def strategies_table(rows: Sequence[dict[str, Any]], times: bool = True) -> str:
    """Each strategy: time, times the limit, predicted and measured peak, and whether it counts the same."""
    shown = []
    for row in rows:
        equal = {True: "same bits", False: "DIFFERS", None: row["status"].replace("_", " ")}[
            row["equal"]
        ]
        timed = [
            f"{1e3 * row['seconds']:.1f} ms" if row["seconds"] else None,
            f"{row['times_limit']:.1f}" if row["times_limit"] else None,
        ]
        shown.append(
            [
                row["strategy"],
                *(timed if times else []),
                _size(row["predicted_bytes"]),
                *([_size(row["measured_bytes"])] if times else []),
                equal,
            ]
        )
    head = (
        ["strategy", "time", "x limit", "predicted", "measured", "counts"]
        if times
        else ["strategy", "predicted", "counts"]
    )
    return table(shown, head)


def refusals_table(rows: Sequence[dict[str, Any]]) -> str:
    """Which strategies pass under which limit, and the allocator's own words."""
    shown = [
        [
            row["strategy"],
            f"{row['limit']} {row['limit_mib']} MiB",
            row["status"].replace("_", " "),
            row["says"] or None,
        ]
        for row in rows
    ]
    return table(shown, ["strategy", "limit", "outcome", "says"], widest=100)


def contention_table(rows: Sequence[dict[str, Any]]) -> str:
    """The same trades in three orders: a slow step need not be memory."""
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    orders = list(dict.fromkeys(row["order"] for row in rows))
    at = {(row["order"], row["strategy"]): row for row in rows}
    shown = [
        [
            order,
            *(
                f"{1e3 * at[order, name]['seconds']:.1f} ms"
                if at[order, name]["seconds"]
                else at[order, name]["status"]
                for name in names
            ),
        ]
        for order in orders
    ]
    return table(shown, ["order", *names])


def heap_table(rows: Sequence[dict[str, Any]]) -> str:
    """What the host's heap kept in each process, beside what was live at most."""
    shown = [
        [
            row["form"],
            show_bytes(row["live_bytes"]),
            ", ".join(map(show_bytes, row["peaks_bytes"])) or row["why"],
        ]
        for row in rows
    ]
    return table(shown, ["form", "live", "held at most, a process each"], widest=None)


def case_table() -> str:
    """What the case study's explanation comes to, computed from its own numbers."""
    return table(
        [
            [row["claim"], row["computed"], f"{row['value']:.3g} {row['unit']}"]
            for row in case_arithmetic()
        ],
        ["the case says", "its own numbers", "give"],
        widest=None,
    )


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


def _size(value: int | None) -> str | None:
    return None if value is None else show_bytes(value)
