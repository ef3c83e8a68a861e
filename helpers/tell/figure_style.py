"""What things look like in every figure, and the colours where its reader's page is dark."""

from __future__ import annotations

from typing import NamedTuple

INK = "#1c2126"
MUTED = "#5c6670"
RULE = "#c4cad0"
PALE = "#eef1f4"
ACCENT = "#0072b2"
ALARM = "#bf4f00"
PENDING = "#9ecae1"
WINE = "#882255"
SERIES = (ACCENT, "#e69f00", "#009e73", "#cc79a7", "#56b4e9", WINE)
"""The colours of Okabe and Ito, which colour-blind readers can tell apart (Wong, Nature Methods
8:441, 2011), and a wine of Tol.
"""


class Look(NamedTuple):
    """The colours of a rectangle's face and edge, and its hatch as matplotlib spells it."""

    face: str = "none"
    edge: str = "none"
    hatch: str = ""


PALETTE = {
    "in use": Look(ACCENT),
    "small": Look("#56b4e9"),
    "awaiting": Look("#cc79a7", INK, "||||"),
    "stranded": Look("#e69f00", INK, "////"),
    "free": Look(PALE, MUTED),
    "reserved": Look(INK),
    "card": Look(ALARM),
    "pending": Look(PENDING, MUTED),
    "fails": Look("#f3c9ad", ALARM, "////"),
    "outside": Look("#8a949e", "white", "\\\\\\\\"),
    "other": Look("#8a949e", "white"),
    "unattributed": Look("white", INK, "xxxx"),
    "too much": Look("white", ALARM, "++++"),
    "not known": Look("none", RULE, "/////"),
    "picked": Look(WINE),
}
"""One look for one thing, in every figure: of memory, of blocks of the allocator, of answers."""

_DARK_OF_LIGHT = {
    "1c2126": "e4e7ea",
    "5c6670": "9aa4ae",
    "c4cad0": "4a525a",
    "eef1f4": "2c343b",
    "ffffff": "1a1e22",
    "bf4f00": "f08a45",
    "0072b2": "3b94d9",
    "882255": "b8557f",
    "f3c9ad": "55382a",
}
"""The ink, paper and alarm of a figure, and the colours too dark for a dark page, each with the
colour that replaces it there.
"""


def on_dark(colour: str) -> str:
    """The colour that replaces one on a dark page; the same one where none is listed for it."""
    dark = _DARK_OF_LIGHT.get(colour.removeprefix("#"))
    if dark is None:
        return colour
    return f"#{dark}"


def _dark_rules() -> str:
    """Rules of CSS that replace colours in an SVG of matplotlib, which writes them as
    ``style="fill: #1c2126; stroke: #5c6670"`` or ``fill="#1c2126"``.

    A rule looks for ``l: #1c2126``, the end of fill, or ``e: #1c2126``, the end of stroke: shorter,
    and enough, as no other property has a colour.
    """
    rules = []
    for light, dark in _DARK_OF_LIGHT.items():
        rules.append(
            f"[style*='l: #{light}'],[fill='#{light}']{{fill:#{dark}!important}}"
        )
        rules.append(f"[style*='e: #{light}']{{stroke:#{dark}!important}}")
    return "".join(rules)


DARK = _dark_rules()
SCHEME = f"@media(prefers-color-scheme:dark){{{DARK}}}"
"""The style of every figure: it has colours of its own where the reader's page is dark."""
