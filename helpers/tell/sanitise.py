"""Outputs of a notebook that nobody vouches for, made harmless: HTML and SVG that cannot act or
reach out, text cut to a size.

HTML goes through nh3 (Ammonia, which reads it as browsers do): a list of what stays, everything
else goes. Left are words, lists and tables; scripts, styles, frames, forms, pictures, links,
classes and every handler go. An SVG keeps what draws and, of styles, the one of our own
figures, and is shown as a picture of its own (``<img>``), where a browser runs no script and
loads nothing (SVG Integration, "secure animated mode").
"""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import nh3

from helpers.batch.notebook import VERDICT
from helpers.tell.figure_style import SCHEME

TEXT_LIMIT = 12_000
"""Characters shown of one cell or stream; the rest is in the notebook beside the page."""
HTML_LIMIT_BYTES = 60_000
PICTURE_LIMIT_BYTES = 3_000_000
"""Above it an output's text twin is shown: a page has room for many outputs."""
MOST_BYTES = {
    "text/html": HTML_LIMIT_BYTES,
    "image/png": PICTURE_LIMIT_BYTES,
    "image/svg+xml": PICTURE_LIMIT_BYTES,
}
SHOWN = (VERDICT, "image/svg+xml", "image/png", "text/html", "text/markdown", "text/plain")
"""Kinds of data that a page can show, the first of them first."""
TAGS = set(
    """b blockquote br caption code col colgroup dd del details div dl dt em hr i ins kbd li mark ol p pre s samp
    small span strong sub summary sup table tbody td tfoot th thead tr u ul var wbr""".split()
)
DROPPED = set(
    """applet area audio base button canvas embed form frame frameset head iframe input link map math meta
    noembed noframes noscript object option param plaintext portal script select source style svg template textarea title track
    video xmp""".split()
)
"""What goes with everything inside it; other unknown tags leave their words."""
_SPAN = re.compile(r"[1-9][0-9]{0,2}")


CLEANER = nh3.Cleaner(
    tags=TAGS,
    clean_content_tags=DROPPED,
    attributes={tag: {"colspan", "rowspan", "class"} for tag in ("td", "th")},
    # How far a cell spans, and that it holds a number.
    attribute_filter=lambda tag, name, value: (
        value if (value == "number" if name == "class" else _SPAN.fullmatch(value)) else None
    ),
    url_schemes=set(),
    link_rel=None,
)
_BLOCK = re.compile(
    r"(?=<(?:h[1-6]|section|article|header|footer|main|nav|figure|address|center)\b)"
)
SVG = "http://www.w3.org/2000/svg"
_SVG_TAGS = frozenset(
    """svg g path rect circle ellipse line polyline polygon text tspan defs clipPath linearGradient
    radialGradient stop use marker symbol mask pattern""".split()
)
_SVG_NAMES = re.compile(
    "(?:id|d|x|y|x1|x2|y1|y2|r|rx|ry|cx|cy|dx|dy|fx|fy|width|height|viewBox|preserveAspectRatio|transform|points|offset|version"
    "|clip-path|clip-rule|mask|opacity|color|style|gradient(?:Units|Transform)|clipPathUnits|spreadMethod|ref[XY]|orient"
    "|(?:fill|stroke|stop|font|text|dominant|alignment|marker|letter|word|baseline)(?:-[a-z]+)*|pattern(?:Units|Transform)"
    "|marker(?:Units|Width|Height)|mask(?:Units|ContentUnits))"
)
_OUTSIDE = re.compile(
    r"url\s*\(\s*(?![\"']?#)|@|\\|&|javascript|expression|data:|//|image(?:-set)?\s*\(",
    re.IGNORECASE,
)


def clean_html(text: str) -> str:
    """The HTML without what could act, reach out or disturb the page around it; nothing where
    no word is left.

    Raises ValueError where it is too long for a page.
    """
    if _size(text) > HTML_LIMIT_BYTES:
        raise ValueError(f"HTML of {_size(text)} bytes; shown are at most {HTML_LIMIT_BYTES}")
    clean = CLEANER.clean(_BLOCK.sub("\n", text))
    return clean.strip() if re.search(r"\w", re.sub(r"<[^>]*>|&[a-z]+;", "", clean)) else ""


def clean_svg(text: str) -> tuple[str, int, int] | None:
    """The SVG with what draws and nothing else, its width and height in pixels; None where it
    is none that can be read.
    """
    from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped, unused-ignore]
    from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped, unused-ignore]

    try:
        root = fromstring(text)
    except (ElementTree.ParseError, DefusedXmlException, ValueError):
        return None
    new = _drawing(root)
    size = _svg_size(root)
    if new is None or new.tag != "svg" or size is None or not len(new):
        return None
    new.set("xmlns", SVG)
    new.set("width", str(size[0]))
    new.set("height", str(size[1]))
    return ElementTree.tostring(new, encoding="unicode"), *size


def _drawing(old: Any, depth: int = 0) -> ElementTree.Element | None:
    space, _, name = str(old.tag).rpartition("}")
    unseen = "fill-opacity: 0.00" in old.get("style", "")  # it is there for a mouse
    ours = name == "style" and old.text == SCHEME and not len(old)
    if unseen or not (ours or name in _SVG_TAGS) or space not in ("", "{" + SVG) or depth > 60:
        return None
    new = ElementTree.Element(name)
    new.text = old.text
    new.tail = old.tail
    for key, value in old.attrib.items():
        bare = key.rpartition("}")[2]
        if bare == "href" and re.fullmatch(r"#[\w.:-]+", value):
            new.set("href", value)
        elif key == bare and _SVG_NAMES.fullmatch(key) and not _OUTSIDE.search(value):
            new.set(key, value)
    for child in old:
        drawing = _drawing(child, depth + 1)
        if drawing is not None:
            new.append(drawing)
    return new


def _svg_size(root: Any) -> tuple[int, int] | None:
    sizes = [root.get("width", ""), root.get("height", "")]
    if not all(re.match(r"[0-9.]+(?!.*%)", size) for size in sizes):
        sizes = root.get("viewBox", "").replace(",", " ").split()[2:4]
    try:
        width, height = (round(float(re.sub(r"[^0-9.].*", "", size))) for size in sizes)
    except ValueError:
        return None
    return (width, height) if 0 < width < 20_000 and 0 < height < 20_000 else None


def cut_text(text: str, end: bool = False, limit: int = TEXT_LIMIT) -> str:
    """Text of at most ``limit`` characters, its start or its end, with a line that says what is
    missing.

    Cut where a line or word ends, so that no half of a name is left that nothing would recognise.
    """
    if len(text) <= limit:
        return text
    piece = text[200 - limit :] if end else text[: limit - 200]
    breaks = [match.start() for match in re.finditer(r"\n", piece)]
    breaks = breaks or [match.start() for match in re.finditer(r"[\s,;]", piece)]
    kept = piece
    if breaks and end and breaks[0] < 2000:
        kept = piece[breaks[0] :]
    elif breaks and not end and breaks[-1] > len(piece) - 2000:
        kept = piece[: breaks[-1]]
    kept = kept.strip("\n")
    note = (
        f"[{len(text) - len(kept)} characters left out; they are in notebook.ipynb: "
        f"{_size(kept)} of {_size(text)} bytes are shown]"
    )
    return f"{note}\n{kept}" if end else f"{kept}\n{note}"


def cut_notebook(nb: Any) -> None:
    """Cut a notebook, in place, to what a page shows of it: texts to their limit, and no
    widgets, attachments or large data.
    """
    nb.metadata.pop("widgets", None)
    for cell in nb.cells:
        cell.source = cut_text(cell.source)
        cell.pop("attachments", None)
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = cut_text(output.text)
            elif output.output_type == "error":
                output.traceback = [cut_text("\n".join(map(str, output.traceback)), end=True)]
            else:
                _cut_data(output.data)


def _cut_data(data: dict[str, Any]) -> None:
    left_out = []
    for kind, content in list(data.items()):
        if isinstance(content, str) and kind in ("text/plain", "text/markdown"):
            data[kind] = cut_text(content)
        elif kind not in SHOWN or _size(str(content)) > MOST_BYTES.get(kind, 1 << 40):
            del data[kind]
            left_out.append(not_shown(kind, content))
    if left_out and not set(data) & set(SHOWN[:3]):
        data["text/plain"] = "\n".join([data.get("text/plain", ""), *left_out]).strip()


def not_shown(kind: str, content: Any) -> str:
    """The line that stands for data which no page shows."""
    words = content if isinstance(content, str) else json.dumps(content)
    return f"[{kind} is not shown here: {_size(words)} bytes]"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
