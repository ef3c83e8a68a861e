"""An output of a cell as a page shows it: one kind of data, the first that cannot act."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from markupsafe import Markup

from helpers.ground.contract import as_dict, from_json
from helpers.ground.shapes import VERDICT_MIME, Verdict
from helpers.ground.units import plain
from helpers.tell.chart import FIGURE_MIME, Chart
from helpers.tell.shown import ABOUT, Shown

from .box import ELSEWHERE
from .markdown_html import Prose
from .page_room import NO_ROOM, PageRoom, clipped
from .prose import uncoloured
from .render import verdict_html
from .sanitise import clean_html
from .svg import clean_svg

if TYPE_CHECKING:
    from nbformat import NotebookNode

KINDS = (
    VERDICT_MIME,
    "image/svg+xml",
    "image/png",
    "text/html",
    "text/markdown",
    "text/plain",
)
"""Kinds of data that a page can show, the first of them first."""
FIGURE_BYTES = 2_000_000
NO_WORDS = "A figure without a description"


@dataclass(frozen=True)
class PageOutput:
    """What a page shows of an output.

    ``kind`` is stdout, stderr or error of a ``text``, else picture, table, prose or verdict, of
    which ``html`` is the markup and ``picture`` the data of an image. ``phone`` is the picture for
    a narrow screen, ``chart`` its data for the page's script, ``note`` what that leaves out.
    ``says`` is what it comes to in a line, where its view says so; ``again``, ``label`` and
    ``applies`` as of ``shown.ABOUT``.
    """

    kind: str
    text: str = ""
    html: Markup = Markup("")
    picture: str = ""
    alt: str = ""
    width: int = 0
    height: int = 0
    phone: PageOutput | None = None
    chart: str = ""
    note: str = ""
    says: str = ""
    again: bool = False
    label: str = ""
    applies: bool = True

    @property
    def is_text(self) -> bool:
        """Whether it is text as a program printed it."""
        return self.kind in ("stdout", "stderr", "error")


def page_output(
    output: NotebookNode, alt: str | None, room: PageRoom, prose: Prose
) -> PageOutput | None:
    """What a page shows of an output of nbformat; None where it has nothing that is safe.

    ``alt`` are the words that its cell's metadata has for a picture.
    """
    shown = _shown(output, alt, room, prose)
    if shown is None:
        return None
    about = output.get("metadata", {}).get(ABOUT)
    if not isinstance(about, dict):
        return shown
    return replace(
        shown,
        says=str(about.get("says") or ""),
        again=about.get("again") is True,
        label=str(about.get("label") or ""),
        applies=about.get("applies") is not False,
    )


def _shown(
    output: NotebookNode, alt: str | None, room: PageRoom, prose: Prose
) -> PageOutput | None:
    if output.output_type == "stream":
        kind = "stderr" if output.name == "stderr" else "stdout"
        return PageOutput(kind, text=clipped(_passed_on(uncoloured(output.text)), room))
    if output.output_type == "error":
        trace = "\n".join(output.traceback)
        if not trace:
            trace = f"{output.ename}: {output.evalue}"
        return PageOutput("error", text=clipped(uncoloured(trace), room, end=True))
    data = output.get("data", {})
    verdict = _verdict(data.get(VERDICT_MIME))
    if verdict and room.take(4 * len(json.dumps(as_dict(verdict)))):
        return PageOutput("verdict", html=verdict_html(verdict))
    words = _passed_on(uncoloured(_text(data.get("text/plain", ""))))
    picture = _picture(output, alt, words, room)
    if picture:
        return picture
    table = _table(data, room)
    if table:
        return table
    if "text/markdown" in data:
        source = uncoloured(_text(data["text/markdown"]))
        return PageOutput("prose", html=prose.html(clipped(source, room)))
    if not words.strip():
        hidden = [kind for kind in data if kind not in KINDS]
        words = "\n".join(_not_shown(plain(kind), data[kind]) for kind in hidden)
    if not words:
        return None
    return PageOutput("stdout", text=clipped(words, room))


def _picture(
    output: NotebookNode, alt: str | None, words: str, room: PageRoom
) -> PageOutput | None:
    """The drawing of an output, or why it is not there; None where it has none."""
    data = output.get("data", {})
    about = output.get("metadata", {}).get("image/png", {})
    if not isinstance(about, dict):
        about = {}
    twin = "" if words.startswith("<Figure") else words
    alt = plain(about.get("alt") or alt or twin or NO_WORDS)
    if "image/svg+xml" in data:
        drawing = drawing_of(_text(data["image/svg+xml"]), alt)
        if drawing and room.take(len(drawing.picture)):
            return _answering(drawing, data.get(FIGURE_MIME), room)
    if "image/png" in data:
        return _png(_text(data["image/png"]), alt, room)
    return None


def _answering(drawing: PageOutput, data: object, room: PageRoom) -> PageOutput:
    """A drawing with the one for a phone and with its chart, where its output has them and the
    page has room.
    """
    if not isinstance(data, dict):
        return drawing
    phone = drawing_of(_text(data.get("narrow", "")), drawing.alt)
    if phone and room.take(len(phone.picture)):
        drawing = replace(drawing, phone=phone)
    if "chart" not in data:
        return drawing
    try:
        chart = from_json(Chart, data["chart"])
    except ValueError:
        return drawing
    script_data = chart.for_script()
    if not room.take(len(script_data) + 6 * script_data.count('"')):
        return replace(drawing, note=f"The blocks of this figure are {NO_ROOM}.")
    return replace(drawing, chart=script_data, note=chart.note)


def figure_of(view: Shown) -> PageOutput | None:
    """The figure of a view as a page shows it; None where it cannot be drawn."""
    figure = view.figure_data()
    drawing = drawing_of(figure["wide"], view.alt)
    return drawing and _answering(drawing, figure, PageRoom(FIGURE_BYTES))


def drawing_of(svg: str, alt: str) -> PageOutput | None:
    """A drawing with its words, of what draws in an SVG; None where it is none."""
    drawing = clean_svg(svg)
    if drawing is None:
        return None
    clean, width, height = drawing
    encoded = base64.b64encode(clean.encode()).decode()
    picture = f"image/svg+xml;base64,{encoded}"
    return PageOutput("picture", picture=picture, alt=alt, width=width, height=height)


def _png(encoded: str, alt: str, room: PageRoom) -> PageOutput:
    """A PNG with its words and its size; the words alone where it is no PNG or finds no room."""
    encoded = "".join(encoded.split())
    size = png_size(encoded)
    if size is None:
        words = f"A picture that is not a PNG is left out. {alt}"
        return PageOutput("stdout", text=clipped(words, room))
    if not room.take(len(encoded) + len(alt) + 200):
        return PageOutput("stdout", text=f"This picture is {NO_ROOM}. {alt}")
    width, height = size
    picture = f"image/png;base64,{encoded}"
    return PageOutput("picture", picture=picture, alt=alt, width=width, height=height)


def png_size(encoded: str) -> tuple[int, int] | None:
    """Width and height in pixels of a base64 PNG, None where it is anything else."""
    # Here, as it takes a while to load, and most pictures of a page are SVG.
    from PIL import Image

    try:
        raw = io.BytesIO(base64.b64decode(encoded, validate=True))
        with Image.open(raw, "r", ["PNG"]) as picture:
            return picture.width, picture.height
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError):
        return None


def _table(data: Mapping[str, object], room: PageRoom) -> PageOutput | None:
    """The HTML of an output, cleaned; None where it has none, or too much of it."""
    if "text/html" not in data:
        return None
    try:
        html = plain(clean_html(_passed_on(_text(data["text/html"]))), keep="\n\t")
    except ValueError:  # too long: its text twin is shown
        return None
    if not html or not room.take(2 * len(html.encode())):
        return None
    return PageOutput("table", html=Markup(html))


def _verdict(data: object) -> Verdict | None:
    try:
        return from_json(Verdict, data)
    except ValueError:
        return None


def _passed_on(text: str) -> str:
    """A text without the line that only who runs the notebook needs."""
    return re.sub(rf"{ELSEWHERE}.*\n", "", text)


def _text(data: object) -> str:
    return "".join(map(str, data)) if isinstance(data, list) else str(data)


def _not_shown(kind: str, content: object) -> str:
    """The line that stands for data which no page shows."""
    text = content if isinstance(content, str) else json.dumps(content)
    return f"[{kind} is not shown here: {len(text.encode('utf-8', 'replace'))} bytes]"
