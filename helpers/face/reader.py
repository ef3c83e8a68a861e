"""A panel that reads an error text."""

from __future__ import annotations

from helpers.tell.panels import questions


def message_reader(message: str = "", box: str = "") -> None:
    """Show a field for an error text with its sums and its verdict, or the same without the field.

    ``box`` is a name as ``open_box`` takes it; empty for the text alone.
    """
    questions.reader.show(message, box)
