"""One output of a notebook's cell; where there is no notebook, printed words."""

from __future__ import annotations

import sys
from dataclasses import replace

from helpers.tell.front_end import is_interactive
from helpers.tell.html_table import text_html
from helpers.tell.prose import one_line
from helpers.tell.shown import ABOUT, Shown


def display(
    view: object, data: dict[str, object] | None = None, again: bool = False
) -> None:
    """Show a view or words as one output of a cell. ``data`` holds the words in other forms, by
    MIME type; without it they are also HTML, and their first line is the main result (``says``).

    ``again`` marks what stands elsewhere on a page of the batch as well, so that the page leaves
    it out. Where there is no notebook, the view is printed; of a view with a figure its alt text.
    """
    if not _in_notebook():
        if isinstance(view, Shown) and view.draw is not None:
            view = view.alt
        print(view)
        return
    from IPython import display as front

    if isinstance(view, Shown):
        front.display(replace(view, again=again or view.again))
        return
    words = str(view)
    about: dict[str, object] = {}
    if again:
        about["again"] = True
    if data is None:
        data = {"text/html": text_html(words)}
        first_line = words.split("\n")[0]
        about["says"] = one_line(first_line)
    metadata = {}
    if about:
        metadata[ABOUT] = about
    front.display({**data, "text/plain": words}, raw=True, metadata=metadata)


def progress(words: str) -> None:
    """Show what is being done, in place of what the cell has shown so far; empty words clear it.

    Nothing is shown where nobody sits at the notebook: an executed notebook would keep it.
    """
    if is_interactive():
        from IPython.display import clear_output

        # With wait the front end clears only when the next output arrives, so nothing flickers.
        clear_output(wait=bool(words))
        print(words, end="", flush=True)


def _in_notebook() -> bool:
    """Whether this is a cell of IPython, without loading IPython to find out."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return get_ipython() is not None
