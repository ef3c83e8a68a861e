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
LABELS = {INJECTED: "Parameters of this run", PARAMETERS: "Parameters"}
UNFINISHED = {
    "failed": "This cell failed",
    "pending": "Not run",
    "running": "Running when it ended",
}
_MARKDOWN = re.compile(
    r"\s*(?:#{1,6} +(?P<heading>[^\n]*)\s*)?"
    r"(?:(?![-#|>`*\d])(?P<lead>.*?[.?!](?=\s|$)))?(?P<rest>.*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class ProseCell:
    """A cell of Markdown: its heading, its first sentence as plain words, and HTML.

    ``rest`` is without the heading and, where ``lead`` is all of it, the first sentence;
    ``whole`` is without the heading alone.
    """

    heading: str
    lead: str
    rest: Markup
    whole: Markup


@dataclass
class CodeCell:
    """A cell of code: its source, what became of it where it did not run to its end, its outputs,
    and what the kernel wrote last on stderr.
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

    ``last_words`` is what the kernel wrote to fd 2; it stands beneath the failed cell, or at
    the end where none failed. ``failing_cell`` counts the cells of the notebook as it was
    written, as a run's record does.
    """
    prose = Prose()
    number = -1
    pieces: list[ProseCell | CodeCell] = []
    failed: CodeCell | None = None
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if BANNER_TAG in tags:
            continue
        is_injected = INJECTED in tags
        if not is_injected:
            number += 1
        if cell.cell_type == "markdown":
            pieces.append(_prose_cell(clipped(uncoloured(cell.source), room), prose))
        elif cell.cell_type == "code":
            piece = _code_cell(cell, room, prose)
            pieces.append(piece)
            is_named = failed is None and number == failing_cell and not is_injected
            if is_named or piece.state == UNFINISHED["failed"]:
                failed = piece
    _add_last_words(pieces, failed, uncoloured(last_words).strip(), room)
    return pieces


def _prose_cell(source: str, prose: Prose) -> ProseCell:
    match = _MARKDOWN.match(source)
    heading, lead, rest = match.groups(default="") if match else ("", "", source)
    line = re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", " ".join(lead.split()))
    full_text = prose.html(lead + rest)
    # Also in a heading that is not shown: the levels of those after it depend on it.
    rest_html = prose.html(rest) if len(line) <= LONGEST_LINE else full_text
    return ProseCell(
        heading=heading.strip(), lead=one_line(line), rest=rest_html, whole=full_text
    )


def _code_cell(cell: NotebookNode, room: PageRoom, prose: Prose) -> CodeCell:
    tags = cell.metadata.get("tags", [])
    status = cell.metadata.get("papermill", {}).get("status", "")
    piece = CodeCell(
        code=clipped(uncoloured(cell.source).rstrip(), room),
        state=UNFINISHED.get(status, ""),
        label=next((LABELS[tag] for tag in LABELS if tag in tags), "Code"),
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
    """Put the kernel's last words beneath the failed cell, unless its error says them already."""
    if words and failed is None:
        failed = CodeCell(code="", state="")
        pieces.append(failed)
    if failed is None:
        return
    errors = [output.text for output in failed.outputs if output.kind == "error"]
    if not any(words in text for text in errors):
        failed.last_words = clipped(words, room, end=True)
