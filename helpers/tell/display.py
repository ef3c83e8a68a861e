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
    """Show a view, or words with ``data``, the same in other forms, as one output of a cell.

    ``again`` marks what stands elsewhere on a page of the batch as well, so that the page leaves
    it out. Where there is no notebook the view is printed, a figure in its words.
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
        about["says"] = one_line(words.split("\n")[0])
    metadata = {ABOUT: about} if about else {}
    front.display({**data, "text/plain": words}, raw=True, metadata=metadata)


def progress(words: str) -> None:
    """What is being done, in place of what the cell has shown so far, where somebody sits at the
    notebook; no words take it away.
    """
    if is_interactive():
        from IPython.display import clear_output

        clear_output(wait=bool(words))
        print(words, end="", flush=True)


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return get_ipython() is not None
