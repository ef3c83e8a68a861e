"""Figures of volume profiles: the chart a trader recognises, and what each way of counting
costs; each has its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from helpers.ground.units import MIB, show_bytes
from helpers.tell.sheet import ACCENT, ALARM, INK, MUTED, SERIES, annotated, drawn, legend, titled
from helpers.tell.shown import Column, Shown
from helpers.vpoc.histogram import STRATEGIES, Levels, nodes
from helpers.vpoc.trades import Layout, Trades, to_price

from .view import way

MARKS = "os^DvP*X<>hdp8H"
OUTSIDE = "#9ecae1"
TIME = Column("time", "ms")
PEAK = Column("measured peak", "bytes")
MODEL = Column("predicted peak", "bytes")
Rows = Sequence[dict[str, Any]]


def _log(axes: Axes, x: str, y: str) -> None:
    """Both axes logarithmic, with a few plain numbers; time has its unit, all else is a size in
    MiB.
    """
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    sizes = lambda mib, _: show_bytes(round(mib * MIB)).replace(".00", "")  # noqa: E731
    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        low, high = axis.get_view_interval()
        base = 10 if name == "time" else 2
        few = LogLocator(base, (1,) if base == 2 or high > 200 * low else (1, 2, 5), numticks=5)
        axis.set_major_locator(MaxNLocator(4) if high < 6 * low else few)
        axis.set_major_formatter("{x:g} s" if name == "time" else sizes)
        axis.set_minor_formatter(NullFormatter())


def _look(strategy: str) -> dict[str, Any]:
    """The mark and the colour of a strategy, the same in every figure."""
    names = [*STRATEGIES, strategy]
    number = names.index(strategy)
    return {"marker": MARKS[number % len(MARKS)], "color": SERIES[number % len(SERIES)]}


def _keyed(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """The legend of what has a label."""
    legend(figure, *axes.get_legend_handles_labels(), columns)


def _points(axes: Axes, rows: Rows, x: str, y: str, unit: float) -> None:
    """A mark of its own for each strategy over MiB of ``x``; ``unit`` is what the values of
    ``y`` are divided by.
    """
    for row in rows:
        style: Any = {"linestyle": "none", "markersize": 6, **_look(row["strategy"])}
        hollow: Any = {"markerfacecolor": "none"} if row.get("sessions") else {}
        label = way(row).replace(" from ", "\nfrom ")
        axes.plot(row[x] / MIB, row[y] / unit, label=label, **style, **hollow)


def _measured(rows: Rows, *names: str) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[name] for name in ("measured_bytes", *names))]


def profile(
    trades: Trades, layout: Layout, counts: np.ndarray, found: Levels, session: int = 0
) -> Shown:
    """One session's volume at each price, its value area, POC, VAH and VAL, and high and low
    volume nodes.
    """
    row = counts[session, : layout.widths[session]]
    price = to_price(np.arange(len(row)) + int(layout.lows[session]), trades.tick)
    poc, val, vah = (float(level[session]) for level in found.prices(trades.tick))
    levels = {"VAH": vah, "POC": poc, "VAL": val}
    title = f"Session {trades.labels[session]}: POC {poc:g}, value area {val:g} to {vah:g}"
    traded = f"{int(row.sum())} contracts at {int((row > 0).sum())} prices; {found.rule}"
    draw = partial(drawn, partial(_draw_profile, row, price, levels, title), 4.2)
    return Shown(title, ["level", "price"], list(levels.items()), [traded], draw=draw)


def _draw_profile(
    row: np.ndarray, price: np.ndarray, levels: dict[str, float], title: str, figure: Figure
) -> None:
    axes = figure.subplots()
    right = float(row.max(initial=1))
    inside = (price >= levels["VAL"]) & (price <= levels["VAH"])
    high = (price[1] - price[0]) * 0.9 if len(price) > 1 else 0.9
    colors = np.where(inside, ACCENT, OUTSIDE)
    axes.barh(price, row, height=high, color=colors, linewidth=0)
    for name, level in levels.items():
        color, style = (ALARM, "-") if name == "POC" else (MUTED, "--")
        axes.axhline(level, color=color, linewidth=1.2, linestyle=style)
        annotated(axes, f"{name} {level:g}", (right * 1.38, level), (0, 3), color, ha="right")
    for at, mark, name in zip(nodes(row), "<x", ("HVN", "LVN"), strict=True):
        axes.plot(row[at], price[at], mark, color=INK, markersize=4, label=f"{name}: volume node")
    axes.set(xlabel="contracts traded; dark: the value area", ylabel="price", xlim=(0, right * 1.4))
    titled(axes, title)
    _keyed(figure, axes)


def strategies(rows: Rows, limit_s: float, free_bytes: int) -> Shown:
    """Time against peak memory of each strategy, with one read of the inputs and the free
    memory as limits.
    """
    ran = sorted(_measured(rows, "seconds"), key=lambda row: row["seconds"])
    title = "No strategy was measured"
    if ran:
        first = ran[0]
        times = ran[0]["seconds"] / limit_s
        title = f"{first['strategy']} is fastest: {times:.1f} x one read of the inputs, "
        title += f"{show_bytes(first['measured_bytes'])} at its peak"
    cells = [[way(one), one["seconds"], one["measured_bytes"]] for one in ran]
    note = f"one read of the inputs takes {1e3 * limit_s:.2f} ms; {show_bytes(free_bytes)} are free"
    draw = partial(drawn, partial(_draw_strategies, ran, limit_s, free_bytes, title), 4.4)
    return Shown(title, ["strategy", TIME, PEAK], cells, [note], draw=draw)


def _draw_strategies(
    ran: Rows, limit_s: float, free_bytes: int, title: str, figure: Figure
) -> None:
    axes = figure.subplots()
    free = free_bytes / MIB
    _points(axes, ran, "measured_bytes", "seconds", 1)
    axes.axhline(limit_s, color=MUTED, linestyle="--", linewidth=1)
    place: Any = {"xycoords": ("axes fraction", "data"), "ha": "right"}
    annotated(axes, "one read of the inputs", (0.99, limit_s), (0, 2), MUTED, **place)
    axes.axvline(free, color=ALARM, linewidth=1)
    place = {"xycoords": ("data", "axes fraction"), "va": "top", "ha": "right", "rotation": 90}
    annotated(axes, "free here", (free, 0.98), (-2, 0), ALARM, **place)
    _log(axes, "peak beyond the inputs", "time")
    titled(axes, title)
    _keyed(figure, axes)


def curve(rows: Rows) -> Shown:
    """Time and peak at each chunk size, a line a strategy, and the size to take; dashes are the
    memory model.
    """
    ran = _measured(rows, "seconds")
    names = dict.fromkeys(row["strategy"] for row in ran)
    lines = {name: [row for row in ran if row["strategy"] == name] for name in names}
    title = "No chunk size was measured"
    least = ""
    if ran:
        best = min(ran, key=lambda row: row["seconds"])
        title = f"Fastest on this machine: {best['chunk_trades']:,} trades a chunk with {best['strategy']}, "
        title += f"{1e3 * best['seconds']:.1f} ms and {show_bytes(best['measured_bytes'])}"
        low = min(ran, key=lambda row: row["measured_bytes"])
        least = f"Least memory: {low['chunk_trades']:,} trades with {low['strategy']}"
    keys = ("strategy", "chunk_trades", "seconds", "measured_bytes", "predicted_bytes")
    cells = [[row[key] for key in keys] for row in ran]
    draw = partial(drawn, partial(_draw_curve, lines, title, least), 4.6)
    return Shown(title, ["strategy", "trades a chunk", TIME, PEAK, MODEL], cells, draw=draw)


def _draw_curve(lines: Mapping[str, Rows], title: str, least: str, figure: Figure) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True)
    for name, mine in lines.items():
        at = [row["chunk_trades"] for row in mine]
        look = {"markersize": 4, **_look(name)}
        upper.plot(at, [row["seconds"] for row in mine], label=name, **look)
        lower.plot(at, [row["measured_bytes"] / MIB for row in mine], **look)
        model = [row["predicted_bytes"] / MIB for row in mine]
        lower.plot(at, model, "--", color=look["color"], linewidth=1)
    _log(lower, "trades a chunk", "peak; dashes: predicted")
    chunks = sorted({row["chunk_trades"] for mine in lines.values() for row in mine})
    lower.set_xticks(chunks, [f"{chunk / 1000:,.0f}k" for chunk in chunks])
    upper.set(ylabel="time", ylim=(0, None))
    upper.yaxis.set_major_formatter("{x:g} s")
    titled(upper, title)
    titled(lower, least)
    _keyed(figure, upper)


def predicted(rows: Rows) -> Shown:
    """Predicted against measured peak; on the line the model is right."""
    ran = _measured(rows, "predicted_bytes")
    sizes = [(row["predicted_bytes"], row["measured_bytes"]) for row in ran]
    both = [pair for row, pair in zip(ran, sizes, strict=True) if not row.get("sessions")]
    far = max((max(pair) / min(pair) for pair in both), default=1)
    title = "No strategy was measured"
    if ran:
        title = f"Measured peaks are within {far:.2f} times of the predicted ones"
    cells = [[way(row), *pair] for row, pair in zip(ran, sizes, strict=True)]
    draw = partial(drawn, partial(_draw_predicted, ran, title), 4.0)
    return Shown(title, ["strategy", MODEL, PEAK], cells, draw=draw)


def _draw_predicted(ran: Rows, title: str, figure: Figure) -> None:
    axes = figure.subplots()
    sizes = [row["predicted_bytes"] / MIB for row in ran] or [1]
    _points(axes, ran, "predicted_bytes", "measured_bytes", MIB)
    ends = [min(sizes) / 2, max(sizes) * 2]
    axes.plot(ends, ends, color=MUTED, linewidth=1)
    _log(axes, "predicted peak", "measured peak")
    titled(axes, title)
    _keyed(figure, axes)
