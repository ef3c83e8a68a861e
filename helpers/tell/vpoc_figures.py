"""Figures of volume profiles: the chart a trader recognises, and what each way of counting costs.

Each has a twin in words (``..._alt``).
"""

from __future__ import annotations

from collections.abc import Sequence
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


def _log(axes: Axes, x: str, y: str) -> None:
    """Both axes logarithmic, with plain numbers."""
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def profile_figure(
    trades: Trades, layout: Layout, counts: np.ndarray, found: Levels, session: int = 0
) -> Figure:
    """One session's volume at each price, its value area, POC, VAH and VAL, and high and low volume nodes."""
    row = counts[session, : layout.widths[session]]
    price = to_price(np.arange(len(row)) + int(layout.lows[session]), trades.tick)
    poc, val, vah = (float(level[session]) for level in found.prices(trades.tick))
    high, low = nodes(row)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        inside = (price >= val) & (price <= vah)
        axes.barh(
            price,
            row,
            height=trades.tick * 0.9,
            color=np.where(inside, ACCENT, "#9ecae1"),
            linewidth=0,
        )
        right = float(row.max(initial=1))
        for level, words, style in ((vah, "VAH", "--"), (poc, "POC", "-"), (val, "VAL", "--")):
            axes.axhline(
                level, color=ALARM if words == "POC" else MUTED, linewidth=1.2, linestyle=style
            )
            axes.annotate(
                f"{words} {level:g}",
                (right, level),
                xytext=(0, 4),
                textcoords="offset points",
                fontsize=SMALL,
                color=ALARM if words == "POC" else MUTED,
                ha="right",
            )
        axes.plot(
            [row[at] for at in high], [price[at] for at in high], "k<", markersize=4, label="HVN"
        )
        axes.plot(
            [row[at] for at in low], [price[at] for at in low], "kx", markersize=4, label="LVN"
        )
        axes.set(xlabel="volume", ylabel="price", xlim=(0, right * 1.15))
        axes.set_title(
            f"Session {trades.labels[session]}: dark is the value area ({found.rule})",
            fontsize=BODY,
            loc="left",
        )
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower left",
            ncols=2,
            fontsize=SMALL,
            frameon=False,
        )

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


def strategies_figure(rows: Sequence[dict[str, Any]], limit_s: float, free_bytes: int) -> Figure:
    """Time against peak memory of each strategy on log axes, with one read of the inputs and the free memory as limits."""
    ran = [row for row in rows if row["seconds"] and row["measured_bytes"]]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, row in enumerate(ran):
            axes.plot(
                row["measured_bytes"] / MIB,
                row["seconds"],
                MARKS[number % len(MARKS)],
                markersize=6,
                color=SERIES[number % len(SERIES)],
                label=row["strategy"],
            )
        axes.axhline(limit_s, color=MUTED, linestyle="--", linewidth=1)
        axes.annotate(
            "one read of the inputs",
            (0.99, limit_s),
            xycoords=("axes fraction", "data"),
            fontsize=SMALL,
            xytext=(0, 2),
            textcoords="offset points",
            color=MUTED,
            ha="right",
        )
        axes.axvline(free_bytes / MIB, color=ALARM, linewidth=1)
        axes.annotate(
            "free here",
            (free_bytes / MIB, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(-2, 0),
            textcoords="offset points",
            fontsize=SMALL,
            color=ALARM,
            ha="right",
            va="top",
            rotation=90,
        )
        _log(axes, "peak beyond the inputs, MiB", "seconds")
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower left",
            ncols=3,
            fontsize=SMALL,
            frameon=False,
        )

    return drawn(draw, 4.2)


def strategies_alt(rows: Sequence[dict[str, Any]], limit_s: float, free_bytes: int) -> str:
    """The same in words."""
    ran = [row for row in rows if row["seconds"] and row["measured_bytes"]]
    parts = [
        f"{row['strategy']} {row['seconds']:.3g} s and {show_bytes(row['measured_bytes'])}"
        for row in ran
    ]
    return (
        f"Time and peak memory of {len(ran)} strategies: {'; '.join(parts)}. One read of the inputs takes {limit_s:.3g} s; "
        f"{show_bytes(free_bytes)} are free."
    )


def curve_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Seconds and peak at each chunk size, a line a strategy; dashes are the memory model."""
    names = list(dict.fromkeys(row["strategy"] for row in rows))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(2, 1, sharex=True)
        for number, name in enumerate(names):
            mine = [row for row in rows if row["strategy"] == name and row["seconds"]]
            at = [row["chunk_trades"] for row in mine]
            look: dict[str, Any] = {
                "color": SERIES[number],
                "marker": MARKS[number],
                "markersize": 4,
            }
            left.plot(at, [row["seconds"] for row in mine], label=name, **look)
            right.plot(at, [row["measured_bytes"] / MIB for row in mine], **look)
            right.plot(
                at,
                [row["predicted_bytes"] / MIB for row in mine],
                "--",
                color=SERIES[number],
                linewidth=1,
            )
        _log(left, "", "seconds")
        _log(right, "trades a chunk", "peak, MiB")
        right.set_title("dashes: predicted", fontsize=SMALL, loc="left", color=MUTED)
        figure.legend(
            *left.get_legend_handles_labels(),
            loc="outside lower left",
            ncols=3,
            fontsize=SMALL,
            frameon=False,
        )

    return drawn(draw, 4.4)


def curve_alt(rows: Sequence[dict[str, Any]]) -> str:
    """The same in words: the best chunk of each strategy."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if (
            row["seconds"]
            and row["seconds"] < best.get(row["strategy"], {"seconds": float("inf")})["seconds"]
        ):
            best[row["strategy"]] = row
    return (
        "Chunk sizes tried: "
        + "; ".join(
            f"{name} fastest at {row['chunk_trades']} trades with {row['seconds']:.3g} s and "
            f"{show_bytes(row['measured_bytes'])}"
            for name, row in best.items()
        )
        + "."
    )


def predicted_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Predicted against measured peak on log axes; on the line the model is right."""
    ran = [row for row in rows if row["predicted_bytes"] and row["measured_bytes"]]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, row in enumerate(ran):
            axes.plot(
                row["predicted_bytes"] / MIB,
                row["measured_bytes"] / MIB,
                MARKS[number % len(MARKS)],
                color=SERIES[number % len(SERIES)],
                label=row["strategy"],
            )
        ends = [
            min((row["predicted_bytes"] for row in ran), default=MIB) / MIB / 2,
            max((row["predicted_bytes"] for row in ran), default=MIB) / MIB * 2,
        ]
        axes.plot(ends, ends, color=MUTED, linewidth=1)
        _log(axes, "predicted peak, MiB", "measured peak, MiB")
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower left",
            ncols=3,
            fontsize=SMALL,
            frameon=False,
        )

    return drawn(draw, 3.8)


def predicted_alt(rows: Sequence[dict[str, Any]]) -> str:
    """The same in words."""
    ran = [row for row in rows if row["predicted_bytes"] and row["measured_bytes"]]
    return (
        "Predicted and measured peak: "
        + "; ".join(
            f"{row['strategy']} {show_bytes(row['predicted_bytes'])} and {show_bytes(row['measured_bytes'])}"
            for row in ran
        )
        + "."
    )
