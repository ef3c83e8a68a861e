"""How much of a notebook a page holds: bytes of the whole page, characters of one text."""

from __future__ import annotations

from dataclasses import dataclass

TEXT_LIMIT = 12_000
"""Characters shown of one cell or stream, some 200 lines: more than somebody reads on a page. The
rest is in the notebook beside it.
"""
NOTE_LENGTH = 200
"""Characters kept free for the line that says what is missing."""
MARKUP_BYTES = 300
"""Tags around one text on a page, at most; within it, escapes can double its bytes."""
NO_ROOM = "left out to keep the page small; it is in notebook.ipynb"


@dataclass
class PageRoom:
    """The bytes that a page has left.

    What finds no room is named instead of shown, so that no notebook makes a page too large for
    a browser.
    """

    bytes_left: int

    def take(self, size: int) -> bool:
        """Take so many bytes, if they are left; whether they were."""
        if size > self.bytes_left:
            return False
        self.bytes_left -= size
        return True


def clipped(text: str, room: PageRoom, end: bool = False) -> str:
    """Text as ``cut_text`` cuts it (``end``: keep its end), or a note where the page has no room
    for it. The room is taken from ``room``, twice the bytes of the text for its escapes.
    """
    short = cut_text(text.strip("\n"), end)
    if not short or room.take(2 * _bytes_of(short) + MARKUP_BYTES):
        return short
    return f"[{NO_ROOM}]"


def cut_text(text: str, end: bool = False, limit: int = TEXT_LIMIT) -> str:
    """The start of a text (its end, where ``end`` is true) in at most ``limit`` characters, cut
    where a line ends, with a line that says how much is missing.
    """
    if len(text) <= limit:
        return text
    room = limit - NOTE_LENGTH
    if end:
        kept = text[-room:]
        whole_lines = kept.partition("\n")[2]
    else:
        kept = text[:room]
        whole_lines = kept.rpartition("\n")[0]
    if whole_lines:  # none where one line is longer than all that is shown
        kept = whole_lines
    kept = kept.strip("\n")
    note = (
        f"[{len(text) - len(kept)} characters left out; they are in notebook.ipynb: "
        f"{_bytes_of(kept)} of {_bytes_of(text)} bytes are shown]"
    )
    if end:
        return f"{note}\n{kept}"
    return f"{kept}\n{note}"


def _bytes_of(text: str) -> int:
    """Bytes of a text in UTF-8, in which pages are written."""
    return len(text.encode("utf-8", "replace"))
