"""A sheet of paper measured in inches on which figures are drawn, and how much room words take
on it.

Everything has its place and its size, so no label overlaps another and none is smaller than 8
pt. The font is DejaVu Sans, which comes with matplotlib; what is unknown has a dashed edge and
a hatch as well as its words.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle

from helpers.ground.shapes import Reading
from helpers.ground.units import plain
from helpers.tell.figure_style import ALARM, INK, MUTED, PALETTE, RULE, SCHEME, Look
from helpers.tell.values import cell, size

STYLE = Path(__file__).with_name("casebook.mplstyle")
WIDTH = 4.0
WIDE = 10.0
MARGIN = 0.08
BODY = 9.5
SMALL = 9.0
TITLE = 10.5
"""Inches and points: a figure is drawn for a phone of 390 pixels, where its smallest words are 11
pixels high, and for the column of a desk, which is ``WIDE``.
"""
FONTS = "DejaVu Sans,Verdana,sans-serif"
BAR = 0.15
STACKED = 0.24
STUB = 0.6
LONGEST_WORD = 200
"""The height of a bar and of a stacked one, and the width of a bar that is not known, in inches;
and letters that are tried of a word that is too long.
"""
_page_width: ContextVar[float] = ContextVar("page_width", default=WIDTH)


@contextmanager
def page_width(width: float) -> Iterator[None]:
    """Figures that are drawn meanwhile are so many inches wide."""
    token = _page_width.set(width)
    try:
        yield
    finally:
        _page_width.reset(token)


class Bar(NamedTuple):
    """A line of words with a bar below it: ``fills`` are (amount, look), each from the left
    edge over the one before.

    An amount of None is a short hatched stub, for what is not known has no length. ``small``
    are lines below the bar.
    """

    words: str
    value: str
    fills: Sequence[tuple[float | None, Look]]
    small: Sequence[str] = ()
    weight: str = "normal"
    tone: str = INK


class BarPiece(NamedTuple):
    """A piece of a stacked bar: its words, its bytes or why they are not known, and how it
    looks where they are.
    """

    words: str
    amount: Reading | int
    look: Look

    @property
    def bytes(self) -> int | None:
        """Its bytes; None where they are not known."""
        return size(self.amount) if isinstance(self.amount, Reading) else self.amount

    @property
    def value(self) -> str:
        return cell(self.amount, "bytes").words


class FigurePage:
    """A page under a title that states its answer; ``y`` is the pen's place in inches from the
    top, as the page grows downwards.

    Marks are laid on it when it is done.
    """

    def __init__(self, title: str = "") -> None:
        self.width = _page_width.get()
        self.right = self.width - MARGIN
        self.y = MARGIN
        self._lowest = 0.0
        self._marks: list[Callable[[Figure, float], object]] = []
        for line in filter(None, wrap(title, self.right - MARGIN, TITLE, "bold")):
            self.y += 0.17
            self.text(MARGIN, line, TITLE, weight="bold")
        if title:
            self.y += 0.06

    def text(
        self,
        x: float,
        words: str,
        points: float = BODY,
        color: str = INK,
        weight: str = "normal",
        ha: str = "left",
    ) -> None:
        """Words whose baseline is at the pen; none of them acts as markup."""
        y = self.y
        words = drawable(words)
        self._lowest = max(self._lowest, y + points / 72 / 4)

        def mark(figure: Figure, height: float) -> None:
            figure.text(
                x / self.width,
                1 - y / height,
                words,
                va="baseline",
                fontsize=points,
                color=color,
                weight=weight,
                ha=ha,
            )

        self._marks.append(mark)

    def box(
        self, x: float, width: float, height: float, look: Look, dy: float = 0.0
    ) -> None:
        """A rectangle whose upper left corner is at the pen."""
        y = self.y + dy
        self._lowest = max(self._lowest, y + height)
        dashed = (0, (4, 3))

        def mark(figure: Figure, total: float) -> None:
            rectangle = Rectangle(
                (x / self.width, 1 - (y + height) / total),
                max(width, 0) / self.width,
                height / total,
                transform=figure.transFigure,
                facecolor=look.face,
                edgecolor=look.edge,
                hatch=look.hatch or None,
                hatchcolor="white" if look.edge == "white" else "#8a929b",
                linestyle=dashed if look == PALETTE["not known"] else "solid",
            )
            figure.add_artist(rectangle)

        self._marks.append(mark)

    def heading(self, title: str, small: str = "") -> None:
        """What a part of the page is about, with something small beside it and a rule below."""
        self.y += 0.16
        self.text(self.right, small, SMALL, ha="right", color=MUTED)
        self.beside(title, inches(small, SMALL), weight="bold")
        self.y += 0.09
        self.box(MARGIN, self.right - MARGIN, 0.008, Look(RULE))
        self.y += 0.06

    def beside(
        self,
        words: str,
        taken: float,
        x: float = MARGIN,
        weight: str = "normal",
        color: str = INK,
    ) -> None:
        """Words beside something of a width, in as many lines as they need, four at most; the
        pen goes down to the last.
        """
        lines = wrap(words, self.right - x - taken - 0.2, BODY, weight)
        if len(lines) > 4:
            lines = [*lines[:3], "…"]
        for number, line in enumerate(lines):
            if number:
                self.y += 0.16
            self.text(x, line, weight=weight, color=color)

    def lines(self, words: str, x: float = MARGIN, tone: str = MUTED) -> None:
        """Small words, wrapped, down from the pen."""
        for line in wrap(words, self.right - x, SMALL):
            self.text(x, line, SMALL, tone)
            self.y += 0.16

    def bars(self, bars: Iterable[Bar], top: float, mark: float | None = None) -> None:
        """Bars on one scale, on which ``top`` is the whole width; ``mark`` is a line at an
        amount on each, which crosses no words.
        """
        scale = self.scale(top)
        for bar in bars:
            self.y += 0.17
            self.text(self.right, bar.value, ha="right", weight=bar.weight)
            taken = inches(bar.value, BODY, bar.weight)
            self.beside(bar.words, taken, weight=bar.weight, color=bar.tone)
            self.y += 0.06
            for amount, look in bar.fills:
                self.box(MARGIN, _length(amount, scale), BAR, look)
            if mark is not None:
                x = MARGIN + min(mark, top) * scale - 0.006
                self.box(x, 0.012, BAR + 0.04, Look(ALARM), dy=-0.02)
            self.y += BAR
            if bar.small:
                self.y += 0.15
            for line in bar.small:
                self.lines(line)
            self.y += 0.04

    def stacked(
        self,
        pieces: Sequence[BarPiece],
        top: float,
        measured: bool = True,
        mark: float | None = None,
    ) -> None:
        """One bar of pieces side by side, and a line of words for each below it.

        A piece of unknown size is in the words alone; a bar that was not ``measured`` is a stub.
        ``mark`` is a line at an amount.
        """
        scale = self.scale(top)
        x = MARGIN
        if not measured:
            self.box(MARGIN, STUB, STACKED, PALETTE["not known"])
        else:
            for piece in pieces:
                if piece.bytes and piece.bytes > 0:
                    self.box(x, piece.bytes * scale, STACKED, piece.look)
                    x += piece.bytes * scale
        if mark is not None:
            self.box(MARGIN + mark * scale, 0.03, STACKED + 0.08, Look(ALARM), dy=-0.04)
        self.y += STACKED + 0.18
        for piece in pieces:
            look = PALETTE["not known"] if piece.bytes is None else piece.look
            self.box(MARGIN, 0.11, 0.11, look, dy=-0.10)
            self.text(self.right, piece.value, ha="right")
            self.beside(piece.words, inches(piece.value, BODY), x=MARGIN + 0.2)
            self.y += 0.195

    def scale(self, top: float) -> float:
        """Inches for each unit of an amount, where ``top`` is the whole width."""
        return (self.right - MARGIN) / max(top, 1)

    def footnote(self, words: str) -> None:
        """What the marks of the figure mean."""
        self.y += 0.14
        self.lines(words)

    def done(self) -> Drawing:
        """The figure, as high as what was laid on it."""
        height = self._lowest + MARGIN

        def draw(figure: Figure) -> None:
            for mark in self._marks:
                mark(figure, height)

        return drawn(draw, height, layout=None)


def _length(amount: float | None, scale: float) -> float:
    """How long the bar of an amount is; the smallest that is not nothing can still be seen."""
    if amount is None:
        return STUB
    return max(amount * scale, 0.02) if amount else 0.0


class Drawing(Figure):
    """A figure that gives its picture."""

    def picture(self) -> tuple[bytes, int, int]:
        """It as a PNG at twice its size on screen, and its width and height there.

        24 colours keep notebooks small. The figure is emptied, so that nothing of it is kept.
        """
        from PIL import Image

        buffer = io.BytesIO()
        with matplotlib.rc_context(fname=STYLE):
            self.savefig(buffer, format="png", metadata={"Software": None})
        self.clear()
        picture = Image.open(buffer).convert("RGB")
        small = io.BytesIO()
        few = picture.quantize(24, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        # The quantizer averages the paper with its neighbours; without this it would be a grey
        # card on a white page.
        palette = few.getpalette() or []
        few.putpalette([255 if value > 250 else value for value in palette])
        few.save(small, format="PNG", optimize=True)
        return small.getvalue(), picture.width // 2, picture.height // 2

    def svg(self) -> str:
        """It as an SVG, which is dark where its reader's page is.

        Its text is text. What matplotlib says twice or to more digits than a screen has is left
        out.
        """
        buffer = io.StringIO()
        plain_text: Any = {"svg.fonttype": "none", "svg.hashsalt": "casebook"}
        with matplotlib.rc_context(plain_text, fname=STYLE):
            self.savefig(buffer, format="svg", metadata={"Date": None})
        text = re.sub(
            r"<metadata>.*?</metadata>|<[?!][^>]*>", "", buffer.getvalue(), flags=re.S
        )
        text = re.sub(r" font-family: 'DejaVu Sans';| id=\"[\w.]+_\d+\"", "", text)
        text = re.sub(r"<[^>]+>", _short, text)
        text = re.sub(r">\s+<", "><", text)
        text = re.sub(
            r"<style.*?</style>", lambda _: f"<style>{SCHEME}</style>", text, count=1
        )
        return text.strip().replace("<svg", f"<svg font-family='{FONTS}'", 1)


def _short(tag: re.Match[str]) -> str:
    """A tag of an SVG with numbers of two decimals, on one line, and without turning by nothing."""
    less = re.sub(r"(\.\d\d)\d+", r"\1", " ".join(tag[0].split()))
    return re.sub(r' transform="rotate\(-0 [^"]*"', "", less)


def drawn(
    draw: Callable[[Figure], None],
    height: float,
    layout: Literal["constrained"] | None = "constrained",
) -> Drawing:
    """A figure in the house's style and width that ``draw`` fills; ``height`` in inches.

    For axes, else see ``FigurePage``.
    """
    with matplotlib.rc_context(fname=STYLE):
        figure = Drawing(figsize=(_page_width.get(), height), layout=layout)
        FigureCanvasAgg(figure)
        draw(figure)
    return figure


def width_of(axes: Axes) -> float:
    """How wide the figure of axes is, in inches."""
    return float(axes.figure.bbox.width / axes.figure.dpi)


def titled(axes: Axes, title: str) -> None:
    """The title of axes, in the one place and size that all have; a long one in several lines."""
    width = width_of(axes)
    lines = []
    for part in title.splitlines():
        lines += wrap(part, width * 0.8, BODY)
    axes.set_title("\n".join(lines), fontsize=BODY, loc="left")


def legend(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int = 1
) -> None:
    """What the marks of a figure with axes mean, below it."""
    figure.legend(
        handles,
        labels,
        ncols=columns,
        loc="outside lower left",
        fontsize=SMALL,
        frameon=False,
    )


def annotated(
    axes: Axes,
    words: str,
    at: tuple[float, float],
    by: tuple[float, float],
    color: str,
    **placement: object,
) -> None:
    """Small words beside a point of axes, ``by`` points of 1/72 inch away from it.

    ``placement`` are further arguments of matplotlib's ``Axes.annotate``, such as ``ha``.
    """
    further: dict[str, Any] = placement
    axes.annotate(
        words,
        at,
        xytext=by,
        textcoords="offset points",
        fontsize=SMALL,
        color=color,
        **further,
    )


def drawable(words: str) -> str:
    """Words with what the font lacks replaced by a question mark, so that no name from a box
    makes drawing warn or fail.
    """
    return "".join(char if _glyph(char) else "?" for char in plain(words))


@lru_cache(maxsize=4096)
def _glyph(char: str) -> bool:
    return get_font(findfont("DejaVu Sans")).get_char_index(ord(char)) != 0


@lru_cache(maxsize=4096)
def inches(words: str, points: float, weight: str = "normal") -> float:
    """How wide the words are."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
    font.set_size(
        20 * points, 72
    )  # large, so that no letter is rounded to whole pixels
    font.set_text(drawable(words), 0.0)
    return float(font.get_width_height()[0]) / 64 / 72 / 20


def fit(words: str, room: float, points: float, weight: str = "normal") -> str:
    """The words, or as much of their start as has room, with an ellipsis."""
    words = drawable(words)
    if inches(words, points, weight) <= room:
        return words
    words = words[:LONGEST_WORD]
    while words and inches(f"{words}…", points, weight) > room:
        words = words[:-1]
    return f"{words}…"


def wrap(words: str, room: float, points: float, weight: str = "normal") -> list[str]:
    """Lines that fit, broken at spaces; a single long word is cut."""
    lines = [""]
    for word in drawable(words).split():
        longer = f"{lines[-1]} {word}".strip()
        if inches(longer, points, weight) <= room:
            lines[-1] = longer
        else:
            lines[-1:] = [*filter(None, lines[-1:]), fit(word, room, points, weight)]
    return lines
