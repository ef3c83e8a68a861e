"""How much of a notebook a page has room for: bytes left on the page, characters of one text."""

from __future__ import annotations

from dataclasses import dataclass

TEXT_LIMIT = 12_000
"""Characters shown of one cell or stream; the rest is in the notebook beside the page."""
NOTE_LENGTH = 200
"""Characters kept free for the line that says what is missing."""
NO_ROOM = "left out to keep the page small; it is in notebook.ipynb"


@dataclass
class PageRoom:
    """Bytes left on the page.

    What finds no room is named instead of shown, so a page never grows without end.
    """

    left: int

    def take(self, size: int) -> bool:
        """Whether so many bytes are left; then they are taken."""
        if size > self.left:
            return False
        self.left -= size
        return True


def clipped(text: str, room: PageRoom, end: bool = False) -> str:
    """Text as ``cut_text`` leaves it, where the page has room for it with its markup."""
    short = cut_text(text.strip("\n"), end)
    if not short or room.take(2 * _size(short) + 300):
        return short
    return f"[{NO_ROOM}]"


def cut_text(text: str, end: bool = False, limit: int = TEXT_LIMIT) -> str:
    """Text of at most ``limit`` characters, its start or its end, with a line that says what is
    missing.

    It is cut where a line ends.
    """
    if len(text) <= limit:
        return text
    room = limit - NOTE_LENGTH
    if end:
        kept = text[-room:]
        kept = kept.partition("\n")[2] or kept
    else:
        kept = text[:room]
        kept = kept.rpartition("\n")[0] or kept
    kept = kept.strip("\n")
    note = (
        f"[{len(text) - len(kept)} characters left out; they are in notebook.ipynb: "
        f"{_size(kept)} of {_size(text)} bytes are shown]"
    )
    return f"{note}\n{kept}" if end else f"{kept}\n{note}"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
