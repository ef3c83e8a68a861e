"""Cuts what a cell prints: the notebook keeps the beginning and the end."""

from __future__ import annotations

from nbformat import NotebookNode
from nbformat.v4 import new_output

HEAD = 1 << 20
TAIL = 1 << 16
"""Characters kept of the beginning and of the end: a notebook of a few MB still opens quickly."""


class PrintedText:
    """The text that one cell prints: ``length`` characters so far, of which ``tail`` is the end of
    what comes after HEAD; ``stream`` is stdout or stderr, whichever came last.
    """

    def __init__(self) -> None:
        self.length = 0
        self.tail = ""
        self.stream = "stdout"

    def head(self, text: str, stream: str) -> str:
        """Take a newly printed text; returns the part of it that belongs to the first HEAD
        characters, mostly all.
        """
        room = max(0, HEAD - self.length)
        self.length += len(text)
        self.tail = (self.tail + text[room:])[-TAIL:]
        self.stream = stream
        return text[:room]

    def end(self) -> list[NotebookNode]:
        """The tail as an output, after a line that says how much is left out; no output if nothing
        was printed after HEAD.
        """
        if not self.tail:
            return []
        text = self.tail
        left_out = self.length - HEAD - len(self.tail)
        if left_out:
            text = f"\n[... {left_out:,} characters left out ...]\n{text}"
        return [new_output("stream", name=self.stream, text=text)]
