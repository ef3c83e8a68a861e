"""Markdown as HTML that cannot act: raw HTML stays text, links and pictures become words."""

from __future__ import annotations

import re

import mistune
from markupsafe import Markup, escape

PAGE_LEVEL = 2
"""Level of the page's heading above a notebook: those of its cells are below it."""
DEEPEST_LEVEL = 6  # HTML has h1 to h6


class Prose(mistune.HTMLRenderer):
    """Renders the Markdown of one notebook, cell by cell in order.

    A heading may be only one level deeper than the one before it, as screen readers expect, so
    the object remembers the level of the last one.
    """

    def __init__(self) -> None:
        super().__init__(escape=True)
        self._last_level = PAGE_LEVEL
        self._markdown = mistune.create_markdown(
            renderer=self, plugins=["table", "strikethrough"]
        )

    def html(self, source: str) -> Markup:
        """Markdown as HTML."""
        return Markup(str(self._markdown(source)))

    def heading(self, text: str, level: int, **_attrs: object) -> str:
        self._last_level = min(PAGE_LEVEL + level, self._last_level + 1, DEEPEST_LEVEL)
        return f"<h{self._last_level}>{text}</h{self._last_level}>\n"

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """The text of a link with its address beside it: a page that is passed on has no links."""
        address = str(escape(url))
        if address in ("", text):
            return text
        return f'{text} <span class="address">({address})</span>'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """The alt text of a picture, else its address: a page loads nothing."""
        words = url
        if text:
            words = re.sub("<[^>]*>", "", text)
        return f'<span class="address">[picture: {escape(words)}]</span>'

    def block_code(self, code: str, info: str | None = None) -> str:
        return _scrolled(f"<pre><code>{escape(code)}</code></pre>")

    def table(self, text: str) -> str:
        return _scrolled(f"<table>\n{text}</table>")

    def table_cell(
        self, text: str, align: str | None = None, head: bool = False
    ) -> str:
        tag = "td"
        if head:
            tag = "th"
        attribute = ""
        if align == "right":
            attribute = ' class="number"'
        return f"<{tag}{attribute}>{text}</{tag}>\n"


def _scrolled(html: str) -> str:
    """A part that may be wider than the page: it scrolls on its own, also by the keyboard."""
    return f'<div class="scroll" tabindex="0">{html}</div>\n'
