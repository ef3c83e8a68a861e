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
from .page_room import MARKUP_BYTES, NO_ROOM, PageRoom, clipped
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
"""MIME types of the data that a page can show, from the most telling to the least."""
FIGURE_BYTES = 2_000_000
"""Room for a figure that stands on a page by itself, with its chart (see chart.MOST_BLOCKS)."""
NO_WORDS = "A figure without a description"


@dataclass(frozen=True)
class PageOutput:
    """What a page shows of an output. Its ``kind`` says which of the other fields are filled:

    - stdout, stderr or error: ``text``
    - table, prose or verdict: ``html``
    - picture: ``picture``, a MIME type and data as a data URL takes them, with its ``alt`` text and
      its ``width`` and ``height`` in pixels; ``phone``, the picture for a narrow screen; ``chart``,
      its data for the page's script, and ``note``, what the chart leaves out

    ``shown.ABOUT`` explains ``says``, ``again``, ``label`` and ``applies``.
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

    ``alt`` are the words for a picture in the metadata of its cell, None where it has none.
    """
    if output.output_type == "stream":
        return _printed(output, room)
    if output.output_type == "error":
        trace = "\n".join(output.traceback)
        if not trace:
            trace = f"{output.ename}: {output.evalue}"
        return PageOutput("error", text=clipped(uncoloured(trace), room, end=True))
    shown = _displayed(output, alt, room, prose)
    if shown is None:
        return None
    about = output.get("metadata", {}).get(ABOUT)
    if not isinstance(about, dict):
        return shown
    return replace(
        shown,
        says=_text_of_key(about, "says"),
        again=about.get("again") is True,
        label=_text_of_key(about, "label"),
        applies=about.get("applies") is not False,
    )


def _text_of_key(about: Mapping[str, object], key: str) -> str:
    """A text in an output's metadata; empty where there is none."""
    text = about.get(key)
    if not isinstance(text, str):
        return ""
    return text


def _printed(output: NotebookNode, room: PageRoom) -> PageOutput:
    """What a cell printed."""
    words = _without_warning(uncoloured(output.text))
    kind = "stdout"
    if output.name == "stderr":
        kind = "stderr"
    return PageOutput(kind, text=clipped(words, room))


def _displayed(
    output: NotebookNode, alt: str | None, room: PageRoom, prose: Prose
) -> PageOutput | None:
    """What a cell displayed: the first kind of its data, in the order of KINDS, that is safe and
    for which the page has room. Where there is none, it is a line for each kind that no page shows,
    and None where there is none of these either.
    """
    data = output.get("data", {})
    verdict = _verdict(data.get(VERDICT_MIME))
    # An upper bound: the markup of recorded verdicts is up to 1.6 times as long as their data,
    # and escapes of a text can make it longer.
    if verdict and room.take(4 * len(json.dumps(as_dict(verdict)))):
        return PageOutput("verdict", html=verdict_html(verdict))
    words = _without_warning(uncoloured(_text(data.get("text/plain", ""))))
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
    """The picture of an output, or words that say why it is not shown; None where it has none. An
    SVG that is not harmless or too large gives way to the PNG.

    ``words`` is the output as text. The alt text is the first one there is: that of the output, the
    cell's (``alt``), ``words``.
    """
    data = output.get("data", {})
    about = output.get("metadata", {}).get("image/png", {})
    candidates = [alt]
    if isinstance(about, dict):
        candidates.insert(0, about.get("alt"))
    # matplotlib's own words say nothing of the figure
    if not words.startswith("<Figure"):
        candidates.append(words)
    alt = plain(next(filter(None, candidates), NO_WORDS))
    if "image/svg+xml" in data:
        drawing = drawing_of(_text(data["image/svg+xml"]), alt)
        if drawing and room.take(len(drawing.picture)):
            return _with_phone_and_chart(drawing, data.get(FIGURE_MIME), room)
    if "image/png" in data:
        return _png(_text(data["image/png"]), alt, room)
    return None


def _with_phone_and_chart(
    drawing: PageOutput, data: object, room: PageRoom
) -> PageOutput:
    """A drawing with the one for a phone and with its chart, where ``data`` of FIGURE_MIME has
    them and the page has room. A chart without room is named in a note; one of another form is left
    out.
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
    # In an attribute of HTML each quotation mark becomes &quot;.
    if not room.take(len(script_data) + 6 * script_data.count('"')):
        return replace(drawing, note=f"The blocks of this figure are {NO_ROOM}.")
    return replace(drawing, chart=script_data, note=chart.note)


def figure_of(view: Shown) -> PageOutput | None:
    """The figure of a view as a page shows it; None where it cannot be drawn."""
    figure = view.figure_data()
    drawing = drawing_of(figure["wide"], view.alt)
    if drawing is None:
        return None
    return _with_phone_and_chart(drawing, figure, PageRoom(FIGURE_BYTES))


def drawing_of(svg: str, alt: str) -> PageOutput | None:
    """A picture of the parts of an SVG that draw, and nothing else of it; None where the text is
    no SVG.
    """
    drawing = clean_svg(svg)
    if drawing is None:
        return None
    clean, width, height = drawing
    encoded = base64.b64encode(clean.encode()).decode()
    picture = f"image/svg+xml;base64,{encoded}"
    return PageOutput("picture", picture=picture, alt=alt, width=width, height=height)


def _png(encoded: str, alt: str, room: PageRoom) -> PageOutput:
    """A PNG with its alt text; that text alone where it is no PNG or the page has no room."""
    encoded = "".join(encoded.split())
    size = png_size(encoded)
    if size is None:
        words = f"A picture that is not a PNG is left out. {alt}"
        return PageOutput("stdout", text=clipped(words, room))
    if not room.take(len(encoded) + len(alt) + MARKUP_BYTES):
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
    """The HTML of an output, cleaned; None where it has none, no word of it is left, or it is too
    long: then the output is shown as text.
    """
    if "text/html" not in data:
        return None
    source = _without_warning(_text(data["text/html"]))
    try:
        html = plain(clean_html(source), keep="\n\t")
    except ValueError:  # longer than HTML_LIMIT_BYTES
        return None
    # Counted twice, so that tables leave room for the text and pictures of a page.
    if not html or not room.take(2 * len(html.encode())):
        return None
    return PageOutput("table", html=Markup(html))


def _verdict(data: object) -> Verdict | None:
    """The verdict in an output's data; None where it has none, or one of another form."""
    try:
        return from_json(Verdict, data)
    except ValueError:
        return None


def _without_warning(text: str) -> str:
    """A text without the warning that the box is another machine, which is for the person who
    runs the notebook.
    """
    return re.sub(rf"{ELSEWHERE}.*\n", "", text)


def _text(data: object) -> str:
    """Text of a notebook, which may be kept as a list of its lines."""
    if isinstance(data, list):
        return "".join(map(str, data))
    return str(data)


def _not_shown(kind: str, content: object) -> str:
    """The line in place of data that no page shows."""
    text = content
    if not isinstance(text, str):
        text = json.dumps(content)
    size = len(text.encode("utf-8", "replace"))
    return f"[{kind} is not shown here: {size} bytes]"
