"""The cells of a notebook as a page shows them: prose, or code with its state and its outputs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from markupsafe import Markup

from .markdown_html import Prose
from .notebook_cells import INJECTED, PARAMETERS
from .page_output import PageOutput, page_output
from .page_room import PageRoom, clipped
from .prose import LONGEST_LINE, one_line, uncoloured

if TYPE_CHECKING:
    from nbformat import NotebookNode

BANNER_TAG = "papermill-error-cell-tag"
"""Tag of the cells that papermill puts into a notebook to say that it failed (papermill 2,
execute.py); a page says that itself.
"""
LABELS = {INJECTED: "Parameters of this run", PARAMETERS: "Parameters"}
UNFINISHED = {
    "failed": "This cell failed",
    "pending": "Not run",
    "running": "Running when it ended",
}
# A heading, a first sentence and the rest; no sentence begins with the mark of a list, heading,
# table, quotation or code. Each part may be missing, so every text matches.
_MARKDOWN = re.compile(
    r"\s*(?:#{1,6} +(?P<heading>[^\n]*)\s*)?"
    r"(?:(?![-#|>`*\d])(?P<lead>.*?[.?!](?=\s|$)))?(?P<rest>.*)",
    re.DOTALL,
)
# A link, of which the text is kept, and the marks of bold, italic and code.
_MARKS = re.compile(r"\[([^]]*)\]\([^)]*\)|[*`]")


@dataclass(frozen=True)
class ProseCell:
    """A cell of Markdown: its heading and its first sentence as plain words, the rest as HTML.

    ``lead`` is the first sentence in one line, cut where it is too long. ``whole`` is all but the
    heading. ``rest`` is what follows the first sentence; where that was cut it is ``whole``, so
    that nothing is lost.
    """

    heading: str
    lead: str
    rest: Markup
    whole: Markup


@dataclass
class CodeCell:
    """A cell of code: its source (``code``); why it did not run to its end (``state``, empty where
    it did); what a page calls it where no prose does (``label``); its outputs; and, for the cell
    that failed, what the kernel wrote last on stderr (``last_words``).
    """

    code: str
    state: str
    label: str = "After the last cell"
    outputs: list[PageOutput] = field(default_factory=list)
    last_words: str = ""


def cells(
    notebook: NotebookNode,
    room: PageRoom,
    last_words: str = "",
    failing_cell: int | None = None,
) -> list[ProseCell | CodeCell]:
    """What the page shows of each cell of a notebook of nbformat 4.

    ``last_words`` is what the kernel wrote to its standard error; it is shown below the failed
    cell, or at the end where none failed. ``failing_cell`` is the place of that cell in the
    notebook before papermill added cells, from 0, as a run's record has it.
    """
    prose = Prose()
    place = -1
    pieces: list[ProseCell | CodeCell] = []
    failed: CodeCell | None = None
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if BANNER_TAG in tags:
            continue
        is_injected = INJECTED in tags
        if not is_injected:  # papermill added that cell, so it has no place
            place += 1
        if cell.cell_type == "markdown":
            source = clipped(uncoloured(cell.source), room)
            pieces.append(_prose_cell(source, prose))
        elif cell.cell_type == "code":
            piece = _code_cell(cell, room, prose)
            pieces.append(piece)
            # A cell that papermill noted as failed counts before the one that the record names.
            is_named = failed is None and place == failing_cell and not is_injected
            if is_named or piece.state == UNFINISHED["failed"]:
                failed = piece
    _add_last_words(pieces, failed, uncoloured(last_words).strip(), room)
    return pieces


def _prose_cell(source: str, prose: Prose) -> ProseCell:
    """A cell of Markdown with its source in parts."""
    match = _MARKDOWN.match(source)
    assert match is not None
    heading, lead, rest = match.groups(default="")
    line = _MARKS.sub(r"\1", " ".join(lead.split()))
    whole_html = prose.html(lead + rest)
    rest_html = whole_html
    if len(line) <= LONGEST_LINE:
        rest_html = prose.html(rest)
    return ProseCell(heading.strip(), one_line(line), rest_html, whole_html)


def _code_cell(cell: NotebookNode, room: PageRoom, prose: Prose) -> CodeCell:
    """A cell of code with the state that papermill noted, and its outputs that can be shown. A cell
    without a note was not run by papermill, and counts as one that ran to its end.
    """
    status = cell.metadata.get("papermill", {}).get("status", "")
    label = "Code"
    for tag in cell.metadata.get("tags", []):
        label = LABELS.get(tag, label)
    piece = CodeCell(
        code=clipped(uncoloured(cell.source).rstrip(), room),
        state=UNFINISHED.get(status, ""),
        label=label,
    )
    for output in cell.outputs:
        shown = page_output(output, cell.metadata.get("alt"), room, prose)
        if shown:
            piece.outputs.append(shown)
    return piece


def _add_last_words(
    pieces: list[ProseCell | CodeCell],
    failed: CodeCell | None,
    words: str,
    room: PageRoom,
) -> None:
    """Put the kernel's last words below the failed cell, unless its error has them already.

    Where no cell failed, they become a piece of their own at the end.
    """
    if words and failed is None:
        failed = CodeCell(code="", state="")
        pieces.append(failed)
    if failed is None:
        return
    errors = [output.text for output in failed.outputs if output.kind == "error"]
    if not any(words in text for text in errors):
        failed.last_words = clipped(words, room, end=True)
