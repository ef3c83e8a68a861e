"""HTML of a notebook's output, of which anybody may be the author, made harmless for a page.

nh3 (Ammonia, which reads HTML as browsers do) keeps what is listed here: words, lists and tables.
Scripts, styles, frames, forms, pictures, links, classes and handlers are not.
"""

from __future__ import annotations

import re

import nh3

HTML_LIMIT_BYTES = 60_000
"""Longer HTML of an output is not shown, but the same output as text: a page has many outputs."""
TAGS = set(
    """b blockquote br caption code col colgroup dd del details div dl dt em hr i ins kbd li
    mark ol p pre s samp small span strong sub summary sup table tbody td tfoot th thead tr
    u ul var wbr""".split()
)
DROPPED = set(
    """applet area audio base button canvas embed form frame frameset head iframe input link
    map math meta noembed noframes noscript object option param plaintext portal script
    select source style svg template textarea title track video xmp""".split()
)
"""Tags that are taken out with everything inside them; of other unknown tags the words stay."""
# Columns or rows of a cell, below 1,000: a browser takes no more columns (colspan in the HTML
# standard); of rows it would take 65,534.
_SPAN = re.compile(r"[1-9][0-9]{0,2}")
# The place before a tag that begins a new line and is not kept: the words must not run together.
_BLOCK = re.compile(
    r"(?=<(?:h[1-6]|section|article|header|footer|main|nav|figure|address|center)\b)"
)


def _kept_attribute(_tag: str, name: str, value: str) -> str | None:
    """The value of an attribute of a table's cell as it is kept; None takes the attribute out.

    Kept are how far a cell spans (colspan, rowspan), and the class of cells with numbers.
    """
    if name == "class":
        is_kept = value == "number"
    else:
        is_kept = _SPAN.fullmatch(value) is not None
    if not is_kept:
        return None
    return value


CLEANER = nh3.Cleaner(
    tags=TAGS,
    clean_content_tags=DROPPED,
    attributes={tag: {"colspan", "rowspan", "class"} for tag in ("td", "th")},
    attribute_filter=_kept_attribute,
    url_schemes=set(),
    link_rel=None,
)


def clean_html(text: str) -> str:
    """The HTML without what could run, load something or change the page around it.

    Empty where no word is left. Raises ValueError above HTML_LIMIT_BYTES.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > HTML_LIMIT_BYTES:
        raise ValueError(f"HTML of {size} bytes; shown are at most {HTML_LIMIT_BYTES}")
    clean = CLEANER.clean(_BLOCK.sub("\n", text))
    words = re.sub(r"<[^>]*>|&[a-z]+;", "", clean)
    if not re.search(r"\w", words):
        return ""
    return clean.strip()
