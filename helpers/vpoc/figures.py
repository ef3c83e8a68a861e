"""Figures: a volume profile as traders draw it, and the time and memory of each way of counting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from helpers.ground.units import MIB, show_bytes
from helpers.tell.figure_style import ACCENT, ALARM, MUTED, PENDING, SERIES
from helpers.tell.sheet import annotated, drawn, legend, titled
from helpers.tell.shown import Shown
from helpers.vpoc.counting import STRATEGIES
from helpers.vpoc.files import Profiles
from helpers.vpoc.levels import levels
from helpers.vpoc.study import StrategyRow
from helpers.vpoc.ticks import to_price
from helpers.vpoc.view import PEAKS, TIME, strategy_words

MARKS = dict(zip(STRATEGIES, "os^DvP", strict=True))
"""A marker of matplotlib for each strategy, so that colours are not needed to tell them apart."""
COLOURS = dict(zip(STRATEGIES, SERIES, strict=False))
BAR_SHARE = 0.9
"""The height of a bar as a share of a tick, so that neighbours do not touch."""
RIGHT_EDGE = 1.4
"""The end of the axis as a multiple of the largest volume: the names of the levels are
beyond it.
"""
NAMES_END = 1.38
"""Where these names end."""


class Point(NamedTuple):
    """A row that was measured, with its time and its peak."""

    seconds: float
    peak_bytes: int
    row: StrategyRow


def _size_label(mib: float, _: float) -> str:
    """A tick's label on an axis in MiB, as matplotlib asks for it."""
    return show_bytes(round(mib * MIB)).replace(".00", "")


def profile(profiles: Profiles, session: int = 0) -> Shown:
    """One session's volume at each price, its value area, POC, VAH and VAL."""
    layout = profiles.layout
    trades = profiles.trades
    row = profiles.counts[session, : layout.widths[session]]
    session_levels = levels(profiles.counts, layout)
    price = to_price(np.arange(len(row)) + int(layout.lows[session]), trades.tick)
    of_all_sessions = session_levels.prices(trades.tick)
    poc, val, vah = (float(level[session]) for level in of_all_sessions)
    marked = {"VAH": vah, "POC": poc, "VAL": val}
    title = (
        f"Session {trades.labels[session]}: POC {poc:g}, value area {val:g} to {vah:g}"
    )
    prices = int((row > 0).sum())
    traded = f"{int(row.sum())} contracts at {prices} prices; {session_levels.rule}"
    draw = partial(drawn, partial(_draw_profile, row, price, marked, title), 4.2)
    return Shown(title, ["level", "price"], list(marked.items()), [traded], draw=draw)


def _draw_profile(
    row: np.ndarray,
    price: np.ndarray,
    marked: dict[str, float],
    title: str,
    figure: Figure,
) -> None:
    """A bar for the volume of each price, and a line for each of the ``marked`` levels."""
    axes = figure.subplots()
    largest = float(row.max(initial=1))
    inside = (price >= marked["VAL"]) & (price <= marked["VAH"])
    tick = 1.0
    if len(price) > 1:
        tick = price[1] - price[0]
    colours = np.where(inside, ACCENT, PENDING)
    axes.barh(price, row, height=BAR_SHARE * tick, color=colours, linewidth=0)
    for name, level in marked.items():
        colour = MUTED
        style = "--"
        if name == "POC":
            colour = ALARM
            style = "-"
        axes.axhline(level, color=colour, linewidth=1.2, linestyle=style)
        place = (largest * NAMES_END, level)
        annotated(axes, f"{name} {level:g}", place, (0, 3), colour, ha="right")
    axes.set(
        xlabel="contracts traded; dark: the value area",
        ylabel="price",
        xlim=(0, largest * RIGHT_EDGE),
    )
    titled(axes, title)


def strategies(rows: Sequence[StrategyRow], limit_s: float, free_bytes: int) -> Shown:
    """The time and the peak memory of each strategy, as a table and a figure.

    Limits in the figure are ``limit_s``, the seconds of one read of the inputs, and ``free_bytes``.
    """
    points = [
        Point(row.seconds, row.measured_bytes, row)
        for row in rows
        if row.seconds and row.measured_bytes
    ]
    points.sort(key=lambda point: point.seconds)
    cells = []
    for point in points:
        cells.append([strategy_words(point.row), point.seconds, point.peak_bytes])
    title = "No strategy was measured"
    if points:
        best = points[0]
        times = f"{best.seconds / limit_s:.1f} x one read of the inputs"
        peak = show_bytes(best.peak_bytes)
        title = f"{best.row.strategy} is fastest: {times}, {peak} at its peak"
    free = show_bytes(free_bytes)
    note = f"one read of the inputs takes {1e3 * limit_s:.2f} ms; {free} are free"
    draw_points = partial(_draw_strategies, points, limit_s, free_bytes, title)
    draw = partial(drawn, draw_points, 4.4)
    return Shown(title, ["strategy", TIME, PEAKS[1]], cells, [note], draw=draw)


def _draw_strategies(
    points: Sequence[Point], limit_s: float, free_bytes: int, title: str, figure: Figure
) -> None:
    """A marker for each strategy on logarithmic axes, hollow where its figures are extrapolated,
    and a line for each limit.
    """
    axes = figure.subplots()
    free_mib = free_bytes / MIB
    for point in points:
        row = point.row
        colour = COLOURS[row.strategy]
        fill = colour
        if row.sessions:  # extrapolated
            fill = "none"
        axes.plot(
            point.peak_bytes / MIB,
            point.seconds,
            marker=MARKS[row.strategy],
            markersize=6,
            linestyle="none",
            color=colour,
            markerfacecolor=fill,
            label=strategy_words(row).replace(" from ", "\nfrom "),
        )
    axes.axhline(limit_s, color=MUTED, linestyle="--", linewidth=1)
    annotated(
        axes,
        "one read of the inputs",
        (0.99, limit_s),
        (0, 2),
        MUTED,
        xycoords=("axes fraction", "data"),
        ha="right",
    )
    axes.axvline(free_mib, color=ALARM, linewidth=1)
    annotated(
        axes,
        "free here",
        (free_mib, 0.98),
        (-2, 0),
        ALARM,
        xycoords=("data", "axes fraction"),
        va="top",
        ha="right",
        rotation=90,
    )
    axes.set(xscale="log", yscale="log", xlabel="peak beyond the inputs", ylabel="time")
    axes.xaxis.set_major_locator(LogLocator(2, (1,), numticks=5))
    axes.xaxis.set_major_formatter(_size_label)
    axes.yaxis.set_major_formatter("{x:g} s")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    titled(axes, title)
    handles, labels = axes.get_legend_handles_labels()
    legend(figure, handles, labels, columns=2)
