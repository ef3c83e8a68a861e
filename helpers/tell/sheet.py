"""A sheet of paper measured in inches on which figures are drawn, and how much room words take on it.

Everything has its place and its size, so no label overlaps another and none is smaller than 8 pt. The font is DejaVu Sans,
which comes with matplotlib; the colours are from the Okabe-Ito set, which colour-blind readers can tell apart (Wong, Nature
Methods 8:441, 2011); what is unknown has a dashed edge and a hatch as well as its words.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle

from .tables import plain

STYLE = Path(__file__).with_name("casebook.mplstyle")
INK, MUTED, RULE, PALE, ACCENT, ALARM = (
    "#1c2126",
    "#5c6670",
    "#c4cad0",
    "#eef1f4",
    "#0072b2",
    "#d55e00",
)
SERIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
WIDTH, MARGIN = 5.2, 0.12
BODY, SMALL, TITLE = 9.0, 8.0, 11.0
UNKNOWN = "/////"
STEPS_S = (
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    21600,
    43200,
    86400,
    172800,
    604800,
    2592000,
    31536000,
)


class Look(NamedTuple):
    """How a box is filled, edged and hatched."""

    face: str = "none"
    edge: str = "none"
    hatch: str = ""


class Sheet:
    """A page that grows downwards; ``y`` is the pen's place in inches from the top. Marks are laid on it when it is done."""

    def __init__(self) -> None:
        self.y = MARGIN
        self._lowest = 0.0
        self._marks: list[Callable[[Figure, float], object]] = []

    def text(
        self,
        x: float,
        words: str,
        points: float = BODY,
        color: str = INK,
        weight: str = "normal",
        ha: str = "left",
        dy: float = 0.0,
    ) -> None:
        y, words = self.y + dy, drawable(words)
        self._lowest = max(self._lowest, y + points / 72 / 4)
        self._marks.append(
            lambda figure, height: figure.text(
                x / WIDTH,
                1 - y / height,
                words,
                fontsize=points,
                color=color,
                weight=weight,
                ha=ha,
                va="baseline",
            )
        )

    def box(self, x: float, width: float, height: float, look: Look, dy: float = 0.0) -> None:
        y, unknown = self.y + dy, look.hatch == UNKNOWN
        self._lowest = max(self._lowest, y + height)
        style: Any = (0, (4, 3)) if unknown else "solid"
        self._marks.append(
            lambda figure, total: figure.add_artist(
                Rectangle(
                    (x / WIDTH, 1 - (y + height) / total),
                    max(width, 0) / WIDTH,
                    height / total,
                    facecolor=look.face,
                    edgecolor=look.edge,
                    hatch=look.hatch or None,
                    linestyle=style,
                    transform=figure.transFigure,
                )
            )
        )

    def heading(self, title: str, small: str) -> None:
        """A title with something small beside it and a rule below."""
        wide = WIDTH - 2 * MARGIN
        self.y += 0.14
        self.text(WIDTH - MARGIN, small, ha="right", color=MUTED)
        self.text(
            MARGIN,
            fit(title, wide - inches(small, BODY) - 0.2, TITLE, "bold"),
            TITLE,
            weight="bold",
        )
        self.y += 0.09
        self.box(MARGIN, wide, 0.008, Look(RULE))
        self.y += 0.06

    def nothing(self, words: str) -> None:
        """The words that stand where there is nothing to draw."""
        self.y += 0.2
        self.text(MARGIN, words, color=MUTED)
        self.y += 0.1

    def time_axis(self, left: float, right: float, end: float) -> None:
        """Seconds since the boot from ``left`` to ``right``, with at most six labels at round times."""
        step = next((s for s in STEPS_S if end / s <= 5), end / 5)
        self.y, taken = self.y + 0.2, left
        for i in range(int(end / step) + 1):
            x, seconds = left + i * step / end * (right - left), i * step
            unit, name = next(
                ((u, n) for u, n in ((86400, "d"), (3600, "h"), (60, "min")) if seconds >= u),
                (1, "s"),
            )
            words = f"{seconds / unit:g} {name}" if i else "boot"
            wide = inches(words, SMALL)
            self.box(x, 0.008, 0.04, Look(MUTED), dy=-0.13)
            start = min(max(x - wide / 2, left), WIDTH - MARGIN - wide)
            if start >= taken:
                self.text(start, words, SMALL, MUTED)
                taken = start + wide + 0.08

    def done(self) -> Figure:
        height = self._lowest + MARGIN
        with matplotlib.rc_context(fname=STYLE):
            figure = Figure(figsize=(WIDTH, height))
            FigureCanvasAgg(figure)
            for mark in self._marks:
                mark(figure, height)
        return figure


def drawn(draw: Callable[[Figure], None], height: float) -> Figure:
    """A figure with axes in the house's style and width; ``height`` in inches."""
    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
    return figure


def png(figure: Figure) -> tuple[bytes, int, int]:
    """The figure as a PNG at twice its size on screen, and its width and height there. 128 colours keep pages small."""
    from PIL import Image

    buffer = io.BytesIO()
    with matplotlib.rc_context(fname=STYLE):
        figure.savefig(buffer, format="png", metadata={"Software": None})
    picture = Image.open(buffer).convert("RGB")
    small = io.BytesIO()
    few = picture.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    # The quantizer averages the paper with its neighbours; without this it would be a grey card on a white page.
    few.putpalette([255 if value > 250 else value for value in few.getpalette() or []])
    few.save(small, format="PNG", optimize=True)
    return small.getvalue(), picture.width // 2, picture.height // 2


def drawable(words: str) -> str:
    """Words with what the font lacks replaced by a question mark, so that no name from a box makes drawing warn or fail."""
    return "".join(char if _glyph(char) else "?" for char in plain(words))


@lru_cache(maxsize=4096)
def _glyph(char: str) -> bool:
    return get_font(findfont("DejaVu Sans")).get_char_index(ord(char)) != 0


@lru_cache(maxsize=4096)
def inches(words: str, points: float, weight: str = "normal") -> float:
    """How wide the words are."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
    font.set_size(points, 72)
    font.set_text(drawable(words), 0.0)
    return float(font.get_width_height()[0]) / 64 / 72


def fit(words: str, room: float, points: float, weight: str = "normal") -> str:
    """The words, or as much of their start as has room, with an ellipsis."""
    words = drawable(words)
    if inches(words, points, weight) <= room:
        return words
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if inches(words[:middle] + "…", points, weight) <= room
            else (low, middle - 1)
        )
    return words[:low] + "…"


def wrap(words: str, room: float, points: float) -> list[str]:
    """Lines that fit, broken at spaces; a single long word is cut."""
    lines = [""]
    for word in drawable(words).split():
        longer = f"{lines[-1]} {word}".strip()
        if inches(longer, points) <= room:
            lines[-1] = longer
        elif lines[-1]:
            lines.append(fit(word, room, points))
        else:
            lines[-1] = fit(word, room, points)
    return lines
