"""HTML of a notebook that nobody vouches for, made harmless.

It goes through nh3 (Ammonia, which reads it as browsers do): a list of what stays, everything else
goes. Left are words, lists and tables; scripts, styles, frames, forms, pictures, links, classes and
every handler go.
"""

from __future__ import annotations

import re

import nh3

HTML_LIMIT_BYTES = 60_000
"""Above it the text twin of an output is shown: a page has room for many outputs."""
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
"""What goes with everything inside it; other unknown tags leave their words."""
_SPAN = re.compile(r"[1-9][0-9]{0,2}")
_BLOCK = re.compile(
    r"(?=<(?:h[1-6]|section|article|header|footer|main|nav|figure|address|center)\b)"
)


def _kept_attribute(_tag: str, name: str, value: str) -> str | None:
    """How far a cell spans, and that it holds a number; nothing else."""
    is_kept = value == "number" if name == "class" else _SPAN.fullmatch(value)
    return value if is_kept else None


CLEANER = nh3.Cleaner(
    tags=TAGS,
    clean_content_tags=DROPPED,
    attributes={tag: {"colspan", "rowspan", "class"} for tag in ("td", "th")},
    attribute_filter=_kept_attribute,
    url_schemes=set(),
    link_rel=None,
)


def clean_html(text: str) -> str:
    """The HTML without what could act, reach out or disturb the page around it.

    Empty where no word is left. Raises ValueError where it is too long for a page.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > HTML_LIMIT_BYTES:
        raise ValueError(f"HTML of {size} bytes; shown are at most {HTML_LIMIT_BYTES}")
    clean = CLEANER.clean(_BLOCK.sub("\n", text))
    words = re.sub(r"<[^>]*>|&[a-z]+;", "", clean)
    if not re.search(r"\w", words):
        return ""
    return clean.strip()
