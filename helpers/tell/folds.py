"""A notebook as folds of a page: sections of one line each, which a reader unfolds.

A label is the title that a view gives itself (``Shown.label``). A digest is a hash of an output, by
which one that a page shows already is recognised.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import unescape

from markupsafe import Markup

from .page_cells import UNFINISHED, CodeCell, ProseCell
from .page_output import PageOutput
from .prose import one_line

SAID_ABOVE = ("Machine", "Verdict", "Next step", "What speaks against it")
"""Headings of notebooks whose parts are left out: the head of the page says them once for all."""
PARTS = {
    "Provenance": "Checked and fine, and where the facts come from",
    "Evidence": "",
}
"""Headings that a page words otherwise; under an empty one, each view has its own label."""
_SIZE = re.compile(r"[\d.]+ [KMGT]iB")  # as show_bytes writes sizes from 1 KiB on


@dataclass
class Fold:
    """A section of a page: one line, and under it prose, the outputs of some cells, and the
    ``cells`` that did not run well, with their code or state.

    ``whole`` is its prose, ``lead`` the first sentence of that, or its heading where no sentence is
    first, and ``rest`` what follows ``lead``.
    """

    lead: str = ""
    rest: Markup = Markup("")
    whole: Markup = Markup("")
    outputs: list[PageOutput] = field(default_factory=list)
    cells: list[CodeCell] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The label of its first output that has one; empty where none has."""
        return next((output.label for output in self.outputs if output.label), "")

    @property
    def title(self) -> str:
        """The line of the section."""
        return self.label or self.lead

    @property
    def prose(self) -> Markup:
        """The prose under its line, without what the line says."""
        if self.label:
            return self.whole
        return self.rest

    @property
    def is_words(self) -> bool:
        """Whether it is only a sentence or two: it has no label, and no table, figure or cell to
        look at.
        """
        if self.cells or self.label:
            return False
        kinds = {output.kind for output in self.outputs}
        has_table = any("<table" in output.html for output in self.outputs)
        return "picture" not in kinds and not has_table

    @property
    def applies(self) -> bool:
        """Whether it is about this box: all its outputs say something of the box (see
        ``shown.ABOUT``), or a cell has to be looked at.
        """
        return bool(self.cells) or all(output.applies for output in self.outputs)

    @property
    def state(self) -> str:
        """Why it did not run to its end, in words; empty where it did."""
        return next((cell.state for cell in self.cells if cell.state), "")

    @property
    def open(self) -> bool:
        """Whether the section is unfolded at first, because somebody has to look at it."""
        urgent = (UNFINISHED["failed"], UNFINISHED["running"])
        return any(cell.state in urgent or cell.last_words for cell in self.cells)

    @property
    def views(self) -> list[tuple[str, list[PageOutput]]]:
        """Its outputs in pairs of a heading and the outputs under it. A figure and the table of the
        same numbers are two pairs, of which a reader sees one at a time; otherwise there is one
        pair with an empty heading.
        """
        pictures = [output for output in self.outputs if output.kind == "picture"]
        rest = [output for output in self.outputs if output.kind != "picture"]
        if pictures and rest:
            return [("Figure", pictures), ("Table", rest)]
        return [("", self.outputs)]

    @property
    def says(self) -> str:
        """Its main result in a line, from its first output that has one; empty where none has."""
        return next(filter(None, map(_says, self.outputs)), "")


def folds(
    pieces: Iterable[ProseCell | CodeCell],
    shown_digests: set[str],
    only_what_applies: bool = False,
) -> list[Fold]:
    """The cells of a notebook as folds. Prose begins a fold, and the cells of code below it belong
    to it.

    ``shown_digests`` are the digests of the outputs that the page shows already: these outputs are
    left out, and the digests of the new ones are added to the set. Left out are also code that ran
    well, and the parts that the head of the page says. A fold of words alone joins the fold before
    it where that has a label. ``only_what_applies`` leaves out folds that say nothing about the
    box.
    """
    folding = _Folding(shown_digests)
    for piece in pieces:
        if isinstance(piece, ProseCell):
            folding.add_prose(piece)
        else:
            folding.add_code(piece)
    listed: list[Fold] = []
    for fold in (*folding.closed, folding.fold):
        if not (fold.outputs or fold.cells):  # prose about something that is left out
            continue
        if listed and listed[-1].label and fold.is_words:
            prose = PageOutput("prose", html=fold.whole)
            listed[-1].outputs += [prose, *fold.outputs]
        else:
            listed.append(fold)
    if only_what_applies:
        return [fold for fold in listed if fold.applies]
    return listed


class _Folding:
    """The folds of a notebook while its cells are added: those that are closed, and the one to
    which the next cell is added.
    """

    def __init__(self, shown_digests: set[str]) -> None:
        self.shown_digests = shown_digests
        self.closed: list[Fold] = []
        self.fold = Fold()
        self.last_heading = ""
        self.code_passed = False
        """Whether a cell of code followed the last prose, even one that had nothing to show."""

    def add_prose(self, piece: ProseCell) -> None:
        """Add prose to the open fold; where code followed the prose in that, close it and begin
        another one.
        """
        if self.fold.outputs or self.fold.cells or self.code_passed:
            self.closed.append(self.fold)
            self.fold = Fold()
        self.code_passed = False
        if piece.heading:
            self.last_heading = piece.heading
        self.fold.whole += piece.whole
        if self.fold.lead:
            self.fold.rest += piece.whole
            return
        self.fold.rest += piece.rest
        self.fold.lead = piece.lead
        if not piece.lead:
            self.fold.lead = PARTS.get(piece.heading, piece.heading)

    def add_code(self, piece: CodeCell) -> None:
        """Add the new outputs of a cell to the open fold, and the cell itself where it did not run
        well. A table with the numbers of the figure before it joins that figure's fold, without the
        prose between them.
        """
        self.code_passed = True
        outputs = piece.outputs
        # Of a cell that did not run to its end everything is shown, even once more.
        if not piece.state:
            outputs = self._new_outputs(piece)
            if piece.outputs and not outputs and not self.fold.outputs:
                # The page shows these outputs already, so the prose above them goes, too.
                self.fold = Fold()
        ran_badly = bool(piece.state or piece.last_words)
        may_be_twin = self.closed and not ran_badly and not self.fold.outputs
        if may_be_twin and _are_twins(self.closed[-1].outputs, outputs):
            self.closed[-1].outputs += outputs
            self.fold = Fold()
            return
        if (outputs or ran_badly) and not self.fold.lead:
            self.fold.lead = piece.label
        self.fold.outputs += outputs
        if ran_badly:
            self.fold.cells.append(piece)

    def _new_outputs(self, piece: CodeCell) -> list[PageOutput]:
        """The outputs of a cell that the page does not show yet; their digests are kept."""
        if self.last_heading in SAID_ABOVE:
            return []
        new = []
        for output in piece.outputs:
            content = repr(output).encode("utf-8", "replace")
            digest = hashlib.sha256(content).hexdigest()
            if not output.again and digest not in self.shown_digests:
                self.shown_digests.add(digest)
                new.append(output)
        return new


def _are_twins(figures: list[PageOutput], tables: list[PageOutput]) -> bool:
    """Whether ``tables`` show the numbers of ``figures``, the outputs before them: all have the
    same label, or more than half of the sizes are in both. False where the outputs before are not
    all figures.
    """
    rows = _table_rows(tables)
    if any(output.kind != "picture" for output in figures):
        return False
    labels = {output.label for output in (*figures, *tables)}
    if rows and len(labels) == 1 and "" not in labels:
        return True
    if len(rows) < 2:  # the sizes of a single row may be the same by chance
        return False
    in_figures = set(_SIZE.findall("\n".join(output.alt for output in figures)))
    in_tables = set(_SIZE.findall("\n".join(rows)))
    return 2 * len(in_tables & in_figures) > max(len(in_tables), len(in_figures))


def _says(output: PageOutput) -> str:
    """The main result of an output in a line: its own words for it, else its alt text, the first
    row of its table, or a line of its text; empty for a verdict and where there is none of these.
    """
    if output.kind == "verdict":  # it has a headline
        return ""
    says = output.says or output.alt
    rows = _table_rows([output])
    if not says and rows:
        says = re.sub("<[^>]*>", " ", rows[0].replace("</td>", " "))
    lines = output.text.strip().splitlines()
    if not says and lines:
        says = lines[0]
        if output.kind == "error":  # a traceback ends with the error
            says = lines[-1]
    return one_line(unescape(says))


def _table_rows(outputs: Iterable[PageOutput]) -> list[str]:
    """The HTML of each row of the tables among outputs, without headings and without rows that
    are one cell of words (colspan).
    """
    tables = "".join(output.html for output in outputs if output.kind == "table")
    rows = []
    for body in re.findall("<tbody>(.*?)</tbody>", tables, re.DOTALL):
        rows += [row for row in body.split("<tr>")[1:] if "colspan" not in row]
    return rows
