"""An executed notebook as a piece of a page, with only outputs that cannot act.

Rendered are text, Markdown, our verdicts, PNG pictures, and HTML and SVG as ``sanitise`` and
``svg`` leave them. JavaScript, widgets and attachments are named or dropped. Raw HTML in Markdown
is shown as text, a link as its words and address, so the page needs no network and runs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from .folds import folds
from .page_cells import cells
from .page_room import PageRoom
from .render import render

if TYPE_CHECKING:
    from nbformat import NotebookNode


def notebook_html(
    notebook: NotebookNode,
    room: PageRoom,
    last_words: str = "",
    failing_cell: int | None = None,
    shown_digests: set[str] | None = None,
    only_what_applies: bool = False,
) -> Markup:
    """The notebook as folded sections, without a page around them.

    ``only_what_applies`` leaves out what says nothing of its box; ``shown_digests`` are of what the
    page around it shows already, as of ``folds``; ``last_words`` and ``failing_cell`` are as of
    ``cells``.
    """
    if shown_digests is None:
        shown_digests = set()
    mark = len(shown_digests)
    pieces = cells(notebook, room, last_words, failing_cell)
    rows = folds(pieces, shown_digests, only_what_applies)
    return render("folds.html.j2", folds=rows, mark=mark)
