"""An SVG of a notebook, of which anybody may be the author, made harmless for a page.

Only elements that draw are kept, and the style of our own figures. A page shows it as a picture
(``<img>``), in which a browser runs no script and loads nothing (SVG Integration, "secure animated
mode").
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from helpers.tell.figure_style import SCHEME

SVG = "http://www.w3.org/2000/svg"
DEEPEST = 60
"""Elements within each other, far more than a figure has: the function that copies them calls
itself, and Python allows about 1,000 calls within each other.
"""
LARGEST_PIXELS = 20_000
"""A wider or higher picture is refused: no figure is so large."""
# Elements that draw, or are parts of what draws.
_TAGS = frozenset(
    """svg g path rect circle ellipse line polyline polygon text tspan defs clipPath linearGradient
    radialGradient stop use marker symbol mask pattern""".split()
)
# Attributes that say where and how an element draws; none of them can name a script.
_NAMES = re.compile(
    "(?:id|d|x|y|x1|x2|y1|y2|r|rx|ry|cx|cy|dx|dy|fx|fy|width|height|viewBox|preserveAspectRatio"
    "|transform|points|offset|version|clip-path|clip-rule|mask|opacity|color|style"
    "|gradient(?:Units|Transform)|clipPathUnits|spreadMethod|ref[XY]|orient"
    "|(?:fill|stroke|stop|font|text|dominant|alignment|marker|letter|word|baseline)(?:-[a-z]+)*"
    "|pattern(?:Units|Transform)|marker(?:Units|Width|Height)|mask(?:Units|ContentUnits))"
)
# Values that could load something or hide that they do: a url() other than #id, escapes, images.
_OUTSIDE = re.compile(
    r"url\s*\(\s*(?![\"']?#)|@|\\|&|javascript|expression|data:|//|image(?:-set)?\s*\(",
    re.IGNORECASE,
)


def clean_svg(text: str) -> tuple[str, int, int] | None:
    """The SVG with only what draws, and its width and height in pixels.

    None where the text is no SVG, where nothing in it draws, and where it has no size or too large
    a one.
    """
    from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped, unused-ignore]
    from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped, unused-ignore]

    try:
        root: ElementTree.Element = fromstring(text)
    except (ElementTree.ParseError, DefusedXmlException, ValueError):
        return None
    clean = _drawing(root)
    size = _size(root)
    if clean is None or clean.tag != "svg" or size is None or not len(clean):
        return None
    width, height = size
    clean.set("xmlns", SVG)
    clean.set("width", str(width))
    clean.set("height", str(height))
    return ElementTree.tostring(clean, encoding="unicode"), width, height


def _drawing(
    element: ElementTree.Element, depth: int = 0
) -> ElementTree.Element | None:
    """A copy of an element with its harmless attributes and the elements in it that draw; None
    where it does not draw itself, or lies deeper than DEEPEST. The style of our own figures is
    kept, too, if it is exactly that.
    """
    # ElementTree writes a name with its namespace in front: {http://www.w3.org/2000/svg}path.
    space, _, name = str(element.tag).rpartition("}")
    if space not in ("", "{" + SVG) or depth > DEEPEST:
        return None
    is_our_style = name == "style" and element.text == SCHEME and not len(element)
    if name not in _TAGS and not is_our_style:
        return None
    clean = ElementTree.Element(name)
    clean.text = element.text
    clean.tail = element.tail
    for key, value in element.attrib.items():
        bare = key.rpartition("}")[2]
        if bare == "href" and re.fullmatch(r"#[\w.:-]+", value):
            clean.set("href", value)  # to an element of the same SVG
        elif _NAMES.fullmatch(key) and not _OUTSIDE.search(value):
            clean.set(key, value)
    for child in element:
        drawing = _drawing(child, depth + 1)
        if drawing is not None:
            clean.append(drawing)
    return clean


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    """Width and height in pixels from the viewBox, which every program that draws figures writes;
    None where there is none, or it is too large.
    """
    view_box = root.get("viewBox", "").replace(",", " ")
    try:
        _, _, width, height = map(float, view_box.split())
    except ValueError:
        return None
    if 0 < width < LARGEST_PIXELS and 0 < height < LARGEST_PIXELS:
        return round(width), round(height)
    return None
