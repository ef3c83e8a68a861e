"""Figures of volume profiles: the chart a trader recognises, and what each way of counting costs.

Each has a twin in words (``..._alt``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from helpers.load.vpoc.profile import Levels, nodes
from helpers.load.vpoc.trades import Layout, Trades, to_price
from helpers.look.reading import MIB, show_bytes

from .sheet import ACCENT, ALARM, BODY, MUTED, SERIES, SMALL, drawn

MARKS = "os^DvP*X<>hd"
OUTSIDE = "#9ecae1"

Rows = Sequence[dict[str, Any]]


def _log(axes: Axes, x: str, y: str) -> None:
    """Both axes logarithmic, with plain numbers."""
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, axes: Axes, columns: int = 3) -> None:
    handles, labels = axes.get_legend_handles_labels()
    style: dict[str, Any] = {"fontsize": SMALL, "frameon": False, "ncols": columns}
    figure.legend(handles, labels, loc="outside lower left", **style)


def _words(
    axes: Axes, words: str, at: tuple[float, float], by: tuple[int, int], **how: Any
) -> None:
    """Small words a few points beside a place."""
    style = {"fontsize": SMALL, "ha": "right", **how}
    axes.annotate(words, at, xytext=by, textcoords="offset points", **style)


def _points(axes: Axes, rows: Rows, x: str, y: str, unit: float) -> None:
    """A mark of its own for each strategy; ``unit`` is what the values of ``y`` are divided by."""
    for number, row in enumerate(rows):
        mark, color = MARKS[number % len(MARKS)], SERIES[number % len(SERIES)]
        place = row[x] / MIB, row[y] / unit
        axes.plot(*place, mark, markersize=6, color=color, label=row["strategy"])


def _measured(rows: Rows, other: str) -> list[dict[str, Any]]:
    return [row for row in rows if row[other] and row["measured_bytes"]]


def profile_figure(
    trades: Trades, layout: Layout, counts: np.ndarray, found: Levels, session: int = 0
) -> Figure:
    """One session's volume at each price, its value area, POC, VAH and VAL, and high and low volume nodes."""
    row = counts[session, : layout.widths[session]]
    price = to_price(np.arange(len(row)) + int(layout.lows[session]), trades.tick)
    poc, val, vah = (float(level[session]) for level in found.prices(trades.tick))
    right = float(row.max(initial=1))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        inside = (price >= val) & (price <= vah)
        colors = np.where(inside, ACCENT, OUTSIDE)
        axes.barh(price, row, height=trades.tick * 0.9, color=colors, linewidth=0)
        for level, name in ((vah, "VAH"), (poc, "POC"), (val, "VAL")):
            color, style = (ALARM, "-") if name == "POC" else (MUTED, "--")
            axes.axhline(level, color=color, linewidth=1.2, linestyle=style)
            _words(axes, f"{name} {level:g}", (right, level), (0, 4), color=color)
        for at, mark, name in zip(nodes(row), ("k<", "kx"), ("HVN", "LVN"), strict=True):
            axes.plot(row[at], price[at], mark, markersize=4, label=name)
        axes.set(xlabel="volume", ylabel="price", xlim=(0, right * 1.15))
        title = f"Session {trades.labels[session]}: dark is the value area ({found.rule})"
        axes.set_title(title, fontsize=BODY, loc="left")
        _legend(figure, axes, 2)

    return drawn(draw, 4.2)


def profile_alt(
    trades: Trades, layout: Layout, counts: np.ndarray, found: Levels, session: int = 0
) -> str:
    """The profile in words."""
    row = counts[session, : layout.widths[session]]
    poc, val, vah = (float(level[session]) for level in found.prices(trades.tick))
    return (
        f"Volume profile of session {trades.labels[session]}: {int(row.sum())} contracts at {int((row > 0).sum())} prices; "
        f"POC {poc:g}, value area {val:g} to {vah:g} ({found.rule})."
    )


def strategies_figure(rows: Rows, limit_s: float, free_bytes: int) -> Figure:
    """Time against peak memory of each strategy on log axes, with one read of the inputs and the free memory as limits."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _points(axes, _measured(rows, "seconds"), "measured_bytes", "seconds", 1)
        axes.axhline(limit_s, color=MUTED, linestyle="--", linewidth=1)
        across, up = ("axes fraction", "data"), ("data", "axes fraction")
        read = "one read of the inputs"
        _words(axes, read, (0.99, limit_s), (0, 2), xycoords=across, color=MUTED)
        free = free_bytes / MIB
        axes.axvline(free, color=ALARM, linewidth=1)
        how: dict[str, Any] = {"xycoords": up, "color": ALARM, "va": "top", "rotation": 90}
        _words(axes, "free here", (free, 0.98), (-2, 0), **how)
        _log(axes, "peak beyond the inputs, MiB", "seconds")
        _legend(figure, axes)

    return drawn(draw, 4.2)


def strategies_alt(rows: Rows, limit_s: float, free_bytes: int) -> str:
    """The same in words."""
    parts = [
        f"{row['strategy']} {row['seconds']:.3g} s and {show_bytes(row['measured_bytes'])}"
        for row in _measured(rows, "seconds")
    ]
    return (
        f"Time and peak memory of {len(parts)} strategies: {'; '.join(parts)}. One read of the inputs takes {limit_s:.3g} s; "
        f"{show_bytes(free_bytes)} are free."
    )


def _by_strategy(rows: Rows) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name in dict.fromkeys(row["strategy"] for row in rows):
        yield name, [row for row in rows if row["strategy"] == name and row["seconds"]]


def curve_figure(rows: Rows) -> Figure:
    """Seconds and peak at each chunk size, a line a strategy; dashes are the memory model."""

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        for number, (name, mine) in enumerate(_by_strategy(rows)):
            at = [row["chunk_trades"] for row in mine]
            look: dict[str, Any] = {"marker": MARKS[number], "markersize": 4}
            look["color"] = color = SERIES[number]
            upper.plot(at, [row["seconds"] for row in mine], label=name, **look)
            lower.plot(at, [row["measured_bytes"] / MIB for row in mine], **look)
            model = [row["predicted_bytes"] / MIB for row in mine]
            lower.plot(at, model, "--", color=color, linewidth=1)
        _log(upper, "", "seconds")
        _log(lower, "trades a chunk", "peak, MiB")
        lower.set_title("dashes: predicted", fontsize=SMALL, loc="left", color=MUTED)
        _legend(figure, upper)

    return drawn(draw, 4.4)


def curve_alt(rows: Rows) -> str:
    """The same in words: the best chunk of each strategy."""
    best = (min(mine, key=lambda row: row["seconds"]) for _, mine in _by_strategy(rows) if mine)
    parts = [
        f"{row['strategy']} fastest at {row['chunk_trades']} trades with {row['seconds']:.3g} s and "
        f"{show_bytes(row['measured_bytes'])}"
        for row in best
    ]
    return f"Chunk sizes tried: {'; '.join(parts)}."


def predicted_figure(rows: Rows) -> Figure:
    """Predicted against measured peak on log axes; on the line the model is right."""
    ran = _measured(rows, "predicted_bytes")
    predicted = [row["predicted_bytes"] / MIB for row in ran] or [1]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _points(axes, ran, "predicted_bytes", "measured_bytes", MIB)
        ends = [min(predicted) / 2, max(predicted) * 2]
        axes.plot(ends, ends, color=MUTED, linewidth=1)
        _log(axes, "predicted peak, MiB", "measured peak, MiB")
        _legend(figure, axes)

    return drawn(draw, 3.8)


def predicted_alt(rows: Rows) -> str:
    """The same in words."""
    parts = [
        f"{row['strategy']} {show_bytes(row['predicted_bytes'])} and {show_bytes(row['measured_bytes'])}"
        for row in _measured(rows, "predicted_bytes")
    ]
    return f"Predicted and measured peak: {'; '.join(parts)}."
