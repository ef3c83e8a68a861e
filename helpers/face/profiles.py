"""Volume profiles of trades, what each way of counting them costs, and the chunk that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from helpers.face.box import Box, as_box
from helpers.face.diagnosis import Answer
from helpers.face.result import Result
from helpers.ground.units import MIB, parse_size
from helpers.tell.shown import Shown
from helpers.vpoc import answer, counting, figures, panel, study, view
from helpers.vpoc.files import Profiles
from helpers.vpoc.free import Free, free_of, free_on
from helpers.vpoc.levels import by_rule
from helpers.vpoc.planner import plans, shape_of
from helpers.vpoc.reading import read_trades
from helpers.vpoc.store import stored
from helpers.vpoc.trades import Trades, generated

CHUNK_TRADES = 1 << 18
"""Trades that are counted at once when ways of counting are compared: with it, a chunk's columns
and indices take a few MiB, little beside the tables.
"""


class CountingCosts(Result):
    """What each way of counting took on this machine, each in a process of its own.

    ``rows`` have the seconds, the peaks in bytes, and whether the counts are the same as those of
    the fused pass (see helpers/vpoc/counting.py).
    """

    def __init__(
        self, rows: Sequence[study.StrategyRow], limit_s: float, free: Free
    ) -> None:
        self.rows = rows
        self.limit_s = limit_s
        self.free = free

    @property
    def view(self) -> Shown:
        return figures.strategies(self.rows, self.limit_s, self.free.bytes)

    @property
    def details(self) -> Shown:
        """The peak in closed form beside the measured one, and whether the counts are the same."""
        return view.strategies_table(self.rows)


class VolumeProfiles(Result):
    """The profile of each session, and the memory that a box has free for counting it.

    ``profiles`` holds the trades and the table of counts; ``free`` the memory.
    """

    def __init__(self, trades: Trades, free: Free, name: str) -> None:
        self.store = stored(trades)
        counts = counting.profiles(trades, self.store.layout)
        notes = (*trades.notes, *self.store.layout.notes)
        self.profiles = Profiles(trades, self.store.layout, counts, notes)
        self.free = free
        self.shape = shape_of(trades, self.store.layout)
        self.name = name

    @property
    def view(self) -> Shown:
        return view.levels_table(self.profiles, self.name)

    @property
    def words(self) -> str:
        """The free memory, the trades, and notes about them, a line each."""
        return f"{self.free.words}\n{view.trades_words(self.profiles)}"

    def chart(self, session: int = 0) -> Shown:
        """One session's volume at each price, with its point of control and value area."""
        self._check(session)
        return figures.profile(self.profiles, session)

    def rules(self, session: int = 0) -> Shown:
        """One session's levels under each rule: why another program gives others."""
        self._check(session)
        profiles = self.profiles
        label = profiles.trades.labels[session]
        rows = by_rule(profiles.trades, profiles.counts, profiles.layout)
        return view.rules_table([row for row in rows if row.session == label])

    def _check(self, session: int) -> None:
        """Raises ValueError where there is no session with that number."""
        count = self.shape.sessions
        if not 0 <= session < count:
            raise ValueError(
                f"session {session}: expected a number from 0 to {count - 1}"
            )

    @property
    def plans(self) -> Shown:
        """The chunk for each way of counting on the memory that is free, in closed form."""
        return view.plans_table(plans(self.shape, self.free), self.shape)

    def panel(self) -> None:
        """Show the chunk planner for other sizes and memory, or its static twin."""
        panel.PANEL.show(self.shape, self.free)

    def measure(self, strategies: Sequence[str], repeats: int = 3) -> CountingCosts:
        """Count by each of the ways in a process of its own on this machine."""
        limit = study.limit_s(self.profiles.trades)
        rows = study.strategies(self.store, limit, strategies, CHUNK_TRADES, repeats)
        return CountingCosts(rows, limit, self.free)

    def chunk_curve(self, chunks: Sequence[int], strategies: Sequence[str]) -> Shown:
        """Time and peak on this machine for each number of trades a chunk."""
        return view.chunks_table(study.chunk_curve(self.store, chunks, strategies))

    def under_limit(self, strategies: Sequence[str], beyond_mib: int = 16) -> Shown:
        """Which ways of counting finish with so many MiB of private memory beyond the trades."""
        # The trades in MiB, rounded up; the limit is beyond them, since they are loaded within it.
        inputs_mib = -(-self.shape.trades * self.shape.bytes_a_trade // MIB)
        rows = study.refusals(self.store, strategies, inputs_mib + beyond_mib)
        return view.refusals_table(rows)

    def verdict(self, costs: CountingCosts | None = None, sessions: int = 0) -> Answer:
        """Which ways of counting run out of memory, and which chunk to take.

        ``costs``: measured ones beside the computed ones. ``sessions``: for so many sessions like
        these; 0: for these themselves.
        """
        shape = self.shape
        if sessions:
            trades = shape.trades * sessions // shape.sessions
            shape = replace(shape, trades=trades, sessions=sessions)
        rows: Sequence[study.StrategyRow] = ()
        if costs:
            rows = costs.rows
        return Answer(answer.verdict_on_chunks(shape, self.free, rows), sources=False)


def volume_profiles(
    trades: str = "generated",
    *,
    box: Box | str = "live",
    free: str = "",
    tick: float | str | None = None,
    zone: str = "",
    columns: Mapping[str, str] | None = None,
    instrument: str = "",
    sessions: int = 1014,
    per_session: int = 20_000,
    seed: int = 0,
) -> VolumeProfiles:
    """Volume profiles of a file of trades, or of generated ones, and the chunk that fits a box.

    ``trades`` is a CSV or Parquet file, or ``generated``: so many ``sessions`` of ``per_session``
    trades from ``seed``, by default as many as in case study 001. ``tick``, ``zone``, ``columns``
    and ``instrument`` are as for the command `casebook vpoc`. ``free`` is the memory of a card,
    such as ``20GiB``, in place of what the box has free. Raises ValueError in one line.
    """
    if trades == "generated":
        ticks = generated(sessions, per_session, seed)
    else:
        ticks = read_trades(
            Path(trades), tick, zone=zone, columns=columns, instrument=instrument
        )
    if free:
        size = parse_size(free)
        return VolumeProfiles(ticks, free_on(size, f"a card of {free}"), trades)
    return VolumeProfiles(ticks, free_of(as_box(box).facts), trades)
