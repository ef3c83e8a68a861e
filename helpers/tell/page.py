"""An executed notebook as a piece of a page that runs nothing of it and needs no network.

A page shows text, Markdown, verdicts, PNG pictures, and what ``sanitise`` and ``svg`` keep of
HTML and SVG. JavaScript and widgets are named, attachments left out. Raw HTML in Markdown is
shown as text, a link as its words and address.
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

    ``cells`` explains ``last_words`` and ``failing_cell``, ``folds`` the last two parameters.
    """
    if shown_digests is None:  # a page of one notebook: nothing is shown elsewhere
        shown_digests = set()
    # It grows with each notebook of a page, so ids of HTML made from it occur once on the page.
    mark = len(shown_digests)
    pieces = cells(notebook, room, last_words, failing_cell)
    rows = folds(pieces, shown_digests, only_what_applies)
    return render("folds.html.j2", folds=rows, mark=mark)
