"""Which column of a file of trades has which role: price, volume, time, session, instrument."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.ground.units import plain
from helpers.vpoc.trades import TradesError

COLUMNS = {
    "price": "price last tradeprice lastprice px close".split(),
    "volume": "volume size qty quantity vol lastsize lastvolume contracts".split(),
    "time": "datetime timestamp time tsevent tsrecv date".split(),
    "session": "session tradedate tradingday sessionid sessiondate".split(),
    "instrument": "symbol ticker instrument contract security sym instrumentid".split(),
}
"""By the role of a column its usual names, in lower case and only letters and digits; the first
that a file has is taken.
"""
MOST_LISTED = 20
"""Names of columns or instruments in a message."""
MOST_NAME = 40
"""Characters of a name in a message."""


def listed(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return ", ".join(plain(name)[:MOST_NAME] for name in names[:MOST_LISTED])


def _named_column(name: str, names: Sequence[str]) -> str:
    """The column that ``name`` means: one of that name, else the one at that place, from 1 on."""
    if name in names or not name.isdigit():
        return name
    place = int(name)
    if 1 <= place <= len(names):
        return names[place - 1]
    return name


def column_names(
    names: Sequence[str], columns: Mapping[str, str], notes: list[str], path: Path
) -> dict[str, str]:
    """The names of a file's columns by their roles: those in ``columns``, else by their usual
    names.

    A note lists them. Raises TradesError where price or volume is missing.
    """
    # Of several columns with the same letters the first is taken, so it is entered last.
    by_letters = {
        re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(names)
    }
    present = listed(names)
    if len(names) > MOST_LISTED:
        present += f" and {len(names) - MOST_LISTED} more"
    roles = {}
    for role, usual_names in COLUMNS.items():
        usual = [by_letters[name] for name in usual_names if name in by_letters]
        if role in columns:
            name = _named_column(columns[role], names)
            if name not in names:
                raise TradesError(f"{path.name}: no column {name!r}; it has {present}")
            roles[role] = name
        elif usual:
            roles[role] = usual[0]
    missing = [role for role in ("price", "volume") if role not in roles]
    if missing:
        wanted_columns = f"{' or '.join(missing)} among {present}"
        raise TradesError(
            f"{path.name}: no column looks like {wanted_columns}: say which it is"
        )
    has_bars = {"open", "high", "low", "close"} <= by_letters.keys()
    if has_bars and roles["price"] == by_letters["close"]:
        notes.append(
            "these are bars, no trades: all of a bar's volume counts at its close"
        )
    taken = ", ".join(f"{role} is {name!r}" for role, name in roles.items())
    notes.append(f"columns: {taken}")
    if "time" not in roles and "session" not in roles:
        notes.append("no session and no time column: all trades are one session")
    return roles
