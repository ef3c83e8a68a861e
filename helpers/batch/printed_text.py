"""What one cell prints, of which a notebook keeps the beginning and the end."""

from __future__ import annotations

from nbformat import NotebookNode
from nbformat.v4 import new_output

HEAD = 1 << 20
TAIL = 1 << 16
"""Characters that are kept of the beginning and of the end."""


class PrintedText:
    """Counts what a cell prints, and holds the end of what is too much for the notebook."""

    def __init__(self) -> None:
        self.length = 0
        self.tail = ""
        self.stream = "stdout"

    def head(self, text: str, stream: str) -> str:
        """The part of a newly printed text that still belongs to the beginning; mostly all of it."""
        room = max(0, HEAD - self.length)
        self.length += len(text)
        self.tail = (self.tail + text[room:])[-TAIL:]
        self.stream = stream
        return text[:room]

    def end(self) -> list[NotebookNode]:
        """The end of the text as an output, with how much is missing before it; none if all is kept."""
        if not self.tail:
            return []
        text = self.tail
        left_out = self.length - HEAD - len(self.tail)
        if left_out:
            text = f"\n[... {left_out:,} characters left out ...]\n{text}"
        return [new_output("stream", name=self.stream, text=text)]
