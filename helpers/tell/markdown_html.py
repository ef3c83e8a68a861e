"""Markdown as HTML that cannot act: raw HTML stays text, links and pictures become words."""

from __future__ import annotations

import re

import mistune
from markupsafe import Markup, escape

DEEPEST_HEADING = 6


class Prose(mistune.HTMLRenderer):
    """Renders the Markdown of one notebook, cell by cell in order.

    Headings start at level 3, and one may go only a level deeper than the one before, so the
    object remembers it.
    """

    def __init__(self) -> None:
        super().__init__(escape=True)
        self._level = 2
        self._markdown = mistune.create_markdown(
            renderer=self, plugins=["table", "strikethrough"]
        )

    def html(self, source: str) -> Markup:
        """Markdown as HTML."""
        return Markup(str(self._markdown(source)))

    def heading(self, text: str, level: int, **_attrs: object) -> str:
        self._level = min(level + 2, self._level + 1, DEEPEST_HEADING)
        return f"<h{self._level}>{text}</h{self._level}>\n"

    def link(self, text: str, url: str, title: str | None = None) -> str:
        address = str(escape(url))
        if address in ("", text):
            return text
        return f'{text} <span class="address">({address})</span>'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        words = escape(re.sub("<[^>]*>", "", text)) if text else escape(url)
        return f'<span class="address">[picture: {words}]</span>'

    def block_code(self, code: str, info: str | None = None) -> str:
        return f'<div class="scroll" tabindex="0"><pre><code>{escape(code)}</code></pre></div>\n'

    def table(self, text: str) -> str:
        return f'<div class="scroll" tabindex="0"><table>\n{text}</table></div>\n'

    def table_cell(
        self, text: str, align: str | None = None, head: bool = False
    ) -> str:
        tag = "th" if head else "td"
        kind = ' class="number"' if align == "right" else ""
        return f"<{tag}{kind}>{text}</{tag}>\n"
