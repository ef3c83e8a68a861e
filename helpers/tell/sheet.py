"""A sheet of paper on which figures are drawn, measured in inches from its upper left corner.

Everything has its place and its size, so no label overlaps another and none is smaller than 9
points. The font is DejaVu Sans, which comes with matplotlib. A bar of an unknown size has a dashed
edge and a hatch.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from helpers.ground.shapes import Reading
from helpers.tell.figure_style import ALARM, INK, MUTED, PALETTE, RULE, SCHEME, Look
from helpers.tell.values import cell, size
from helpers.tell.word_width import drawable, inches, wrap

STYLE = Path(__file__).with_name("casebook.mplstyle")
WIDTH = 4.0
WIDE = 10.0
"""Inches of a figure for a phone of 390 pixels, and for the column of a page on a desk."""
MARGIN = 0.08
BODY = 9.5
SMALL = 9.0
TITLE = 10.5
"""Sizes of words in points (1/72 inch). On the phone the smallest are 11 pixels high."""
FONTS = "DejaVu Sans,Verdana,sans-serif"
"""Verdana has letters of about the same width, so words still fit where DejaVu is missing."""
# Inches, chosen by eye.
LINE = 0.16
"""From one baseline of words to the next."""
BAR = 0.15
"""Height of a bar."""
STACKED = 0.24
"""Height of a bar of pieces."""
STUB = 0.6
"""Width of a bar of unknown length."""
SHORTEST = 0.02
"""Width of a bar that is not nothing, so that it can still be seen."""
WORDS_INDENT = 0.2
"""From the margin to the words of a piece: room for a square of its colour."""
MOST_LINES = 4
"""Lines of words beside a value; of more, the rest is cut."""
_page_width: ContextVar[float] = ContextVar("page_width", default=WIDTH)


@contextmanager
def page_width(width: float) -> Iterator[None]:
    """Figures that are drawn within the block are so many inches wide."""
    token = _page_width.set(width)
    try:
        yield
    finally:
        _page_width.reset(token)


class Bar(NamedTuple):
    """A line with ``words`` at its left and ``value`` at its right, and a bar below it. ``fills``
    are amounts with their looks, drawn one over the other from the left edge.

    An amount that is not known (None) is a stub. ``small`` are lines below the bar. ``weight`` and
    ``tone`` are the font weight and the colour of the words.
    """

    words: str
    value: str
    fills: Sequence[tuple[float | None, Look]]
    small: Sequence[str] = ()
    weight: str = "normal"
    tone: str = INK


class BarPiece(NamedTuple):
    """A piece of a stacked bar: its words, its bytes, or the reading that says why they are not
    known, and how it looks where they are known.
    """

    words: str
    amount: Reading | int
    look: Look

    @property
    def bytes(self) -> int | None:
        """Its bytes; None where they are not known."""
        if isinstance(self.amount, Reading):
            return size(self.amount)
        return self.amount

    @property
    def value(self) -> str:
        """Its bytes in words, or that they are not available."""
        return cell(self.amount, "bytes").words


class FigurePage:
    """A page below a title that states its answer. ``y`` is the place of the pen in inches from
    the top; it goes down with everything that is added.

    The page is as high as what is on it, so everything is drawn at the end, by ``done``. Distances
    without a name are inches, too, chosen by eye so that words and bars do not touch.
    """

    def __init__(self, title: str = "") -> None:
        self.width = _page_width.get()
        self.right = self.width - MARGIN
        self.y = MARGIN
        self._lowest = 0.0
        self._draws: list[Callable[[Figure, float], object]] = []
        """What draws each word and box, given the figure and the height of the page."""
        if title:
            for line in wrap(title, self.right - MARGIN, TITLE, "bold"):
                self.y += 0.17
                self.text(MARGIN, line, TITLE, weight="bold")
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
        """Words with their baseline at the pen; ``x`` is their left end, their right one where
        ``ha``, matplotlib's horizontal alignment, is "right".
        """
        y = self.y
        words = drawable(words)
        # Letters such as g reach a quarter of their size below the baseline.
        self._lowest = max(self._lowest, y + points / 72 / 4)

        def draw(figure: Figure, height: float) -> None:
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

        self._draws.append(draw)

    def box(
        self, x: float, width: float, height: float, look: Look, dy: float = 0.0
    ) -> None:
        """A rectangle: its left edge is at ``x``, its upper one ``dy`` inches below the pen."""
        y = self.y + dy
        self._lowest = max(self._lowest, y + height)
        hatch_colour = "#8a929b"
        if look.edge == "white":
            hatch_colour = "white"
        line: str | tuple[int, tuple[int, int]] = "solid"
        if look == PALETTE["not known"]:
            line = (0, (4, 3))  # dashes of 4 points with gaps of 3, from the start

        def draw(figure: Figure, page_height: float) -> None:
            rectangle = Rectangle(
                (x / self.width, 1 - (y + height) / page_height),
                max(width, 0) / self.width,
                height / page_height,
                transform=figure.transFigure,
                facecolor=look.face,
                edgecolor=look.edge,
                hatch=look.hatch or None,  # matplotlib warns about an empty one
                hatchcolor=hatch_colour,
                linestyle=line,
            )
            figure.add_artist(rectangle)

        self._draws.append(draw)

    def heading(self, title: str, small: str = "") -> None:
        """The title of a part of the page with small words at its right, and a rule below."""
        self.y += LINE
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
        """Words from ``x`` on beside other words, which take ``taken`` inches at the right end of
        the first line. They are wrapped, and cut after MOST_LINES; the pen goes down to their
        last line.
        """
        lines = wrap(words, self.right - x - taken - 0.2, BODY, weight)
        if len(lines) > MOST_LINES:
            lines = [*lines[: MOST_LINES - 1], "…"]
        for number, line in enumerate(lines):
            if number:
                self.y += LINE
            self.text(x, line, weight=weight, color=color)

    def lines(self, words: str, x: float = MARGIN, tone: str = MUTED) -> None:
        """Small words in lines, the first at the pen."""
        for line in wrap(words, self.right - x, SMALL):
            self.text(x, line, SMALL, tone)
            self.y += LINE

    def bars(self, bars: Iterable[Bar], top: float, mark: float | None = None) -> None:
        """Bars on one scale; ``top`` is the amount of the whole width. ``mark`` is the amount at
        which a line crosses each bar.
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
                # A line of 0.012 inches around the amount, 0.02 higher and lower than the bar.
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
        """One bar of pieces side by side, and below it a line of words for each piece, with a
        square of its colour.

        ``top`` is the amount of the whole width. A bar that was not ``measured`` is a stub; a piece
        of unknown size has only its words. ``mark`` is the amount at which a line crosses the bar.
        """
        scale = self.scale(top)
        x = MARGIN
        if not measured:
            self.box(MARGIN, STUB, STACKED, PALETTE["not known"])
        else:
            for piece in pieces:
                if piece.bytes is not None and piece.bytes > 0:
                    self.box(x, piece.bytes * scale, STACKED, piece.look)
                    x += piece.bytes * scale
        if mark is not None:
            self.box(MARGIN + mark * scale, 0.03, STACKED + 0.08, Look(ALARM), dy=-0.04)
        self.y += STACKED + 0.18
        for piece in pieces:
            look = piece.look
            if piece.bytes is None:
                look = PALETTE["not known"]
            self.box(MARGIN, 0.11, 0.11, look, dy=-0.10)
            self.text(self.right, piece.value, ha="right")
            taken = inches(piece.value, BODY)
            self.beside(piece.words, taken, x=MARGIN + WORDS_INDENT)
            self.y += 0.195

    def scale(self, top: float) -> float:
        """Inches for each unit of an amount, where ``top`` is the amount of the whole width."""
        return (self.right - MARGIN) / max(top, 1)

    def footnote(self, words: str) -> None:
        """What the marks of the figure mean, in small words below it."""
        self.y += 0.14
        self.lines(words)

    def done(self) -> Drawing:
        """The figure, as high as what is on the page."""
        height = self._lowest + MARGIN

        def draw_all(figure: Figure) -> None:
            for draw in self._draws:
                draw(figure, height)

        return drawn(draw_all, height, layout=None)


def _length(amount: float | None, scale: float) -> float:
    """Inches of the bar of an amount: STUB for one that is not known, 0 for nothing, and at least
    SHORTEST for any other.
    """
    if amount is None:
        return STUB
    if not amount:
        return 0.0
    return max(amount * scale, SHORTEST)


class Drawing(Figure):
    """A figure that can be written as a picture for a notebook or a page."""

    def picture(self) -> tuple[bytes, int, int]:
        """The figure as a PNG, and its width and height on screen in pixels, half of the PNG's.

        The figure is emptied, so that nothing of it is kept in memory.
        """
        from PIL import Image

        buffer = io.BytesIO()
        with matplotlib.rc_context(fname=STYLE):
            self.savefig(buffer, format="png", metadata={"Software": None})
        self.clear()
        picture = Image.open(buffer).convert("RGB")
        # 24 colours keep notebooks small and still smooth the edges of letters.
        few = picture.quantize(24, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        # The quantizer averages the paper with its neighbours, which makes a grey card on a white
        # page: what is nearly white becomes white.
        palette = few.getpalette()
        if palette is not None:
            few.putpalette([_white_if_nearly(value) for value in palette])
        small = io.BytesIO()
        few.save(small, format="PNG", optimize=True)
        return small.getvalue(), picture.width // 2, picture.height // 2

    def svg(self) -> str:
        """The figure as an SVG with its words as text, dark where its reader's page is dark, and
        without what matplotlib writes and no browser needs.
        """
        buffer = io.StringIO()
        with matplotlib.rc_context(fname=STYLE):
            matplotlib.rcParams["svg.fonttype"] = "none"  # words stay text
            # Ids come from this salt, else from chance: the same figure is the same text.
            matplotlib.rcParams["svg.hashsalt"] = "casebook"
            self.savefig(buffer, format="svg", metadata={"Date": None})
        head = r"<metadata>.*?</metadata>|<[?!][^>]*>"  # also comments and the XML declaration
        text = re.sub(head, "", buffer.getvalue(), flags=re.S)
        # The font is named once for the whole figure; nothing refers to ids such as patch_1.
        text = re.sub(r" font-family: 'DejaVu Sans';| id=\"[\w.]+_\d+\"", "", text)
        text = re.sub(r"<[^>]+>", _short_tag, text)
        text = re.sub(r">\s+<", "><", text)
        style = f"<style>{SCHEME}</style>"
        text = re.sub(r"<style.*?</style>", style, text, count=1)
        return text.strip().replace("<svg", f"<svg font-family='{FONTS}'", 1)


def _white_if_nearly(value: int) -> int:
    """One of the three values of a colour, from 0 to 255."""
    if value > 250:
        return 255
    return value


def _short_tag(tag: re.Match[str]) -> str:
    """A tag of an SVG in one line, with two decimals, which is below a pixel, and without a
    rotation by nothing.
    """
    in_one_line = " ".join(tag[0].split())
    rounded = re.sub(r"(\.\d\d)\d+", r"\1", in_one_line)
    return re.sub(r' transform="rotate\(-0 [^"]*"', "", rounded)


def drawn(
    draw: Callable[[Figure], None],
    height: float,
    layout: Literal["constrained"] | None = "constrained",
) -> Drawing:
    """A figure that ``draw`` fills, in the style of casebook.mplstyle; ``height`` is in inches.

    Figures with axes use this; others are a ``FigurePage``.
    """
    with matplotlib.rc_context(fname=STYLE):
        figure = Drawing(figsize=(_page_width.get(), height), layout=layout)
        FigureCanvasAgg(figure)
        draw(figure)
    return figure


def width_of(axes: Axes) -> float:
    """The width of the figure that axes belong to, in inches."""
    return float(axes.figure.bbox.width / axes.figure.dpi)


def titled(axes: Axes, title: str) -> None:
    """Give axes their title, at the left and of one size in all figures; a long one is wrapped."""
    width = 0.8 * width_of(axes)  # the labels of the vertical axis take the rest
    lines = []
    for part in title.splitlines():
        lines += wrap(part, width, BODY)
    axes.set_title("\n".join(lines), fontsize=BODY, loc="left")


def legend(
    figure: Figure, handles: Sequence[Artist], labels: Sequence[str], columns: int = 1
) -> None:
    """Say below a figure with axes what its lines and areas (``handles``) mean."""
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
    """Write small words beside the point ``at`` of axes, ``by`` points (1/72 inch) away from it.

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
