"""The sections of a page that a notebook becomes: one line each, unfolded where somebody looks."""

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
"""Parts of a notebook, by heading, that the head of a page says for all its notebooks."""
PARTS = {
    "Provenance": "Checked and fine, and where the facts come from",
    "Evidence": "",
}
"""Headings that stand on a page in other words."""
_SIZE = re.compile(r"[\d.]+ [KMGT]iB")


@dataclass
class Fold:
    """A section of a page: one line, under it prose, the outputs of some cells, and the
    ``cells`` whose code or state is shown.

    ``whole`` is the prose, ``rest`` is what of it follows ``lead``.
    """

    lead: str = ""
    rest: Markup = Markup("")
    whole: Markup = Markup("")
    outputs: list[PageOutput] = field(default_factory=list)
    cells: list[CodeCell] = field(default_factory=list)

    @property
    def label(self) -> str:
        """What the view in it is called; empty where none has a name."""
        return next((output.label for output in self.outputs if output.label), "")

    @property
    def title(self) -> str:
        return self.label or self.lead

    @property
    def prose(self) -> Markup:
        return self.whole if self.label else self.rest

    @property
    def is_words(self) -> bool:
        """Whether it is a sentence or two without a view of their own."""
        is_view = any(
            o.label or o.kind == "picture" or "<table" in o.html for o in self.outputs
        )
        return not (is_view or self.cells or self.label)

    @property
    def applies(self) -> bool:
        """Whether its views say anything of the box, or a cell has to be looked at."""
        return bool(self.cells) or all(output.applies for output in self.outputs)

    @property
    def state(self) -> str:
        """What became of it where it did not run to its end."""
        return next((cell.state for cell in self.cells if cell.state), "")

    @property
    def open(self) -> bool:
        """Whether it is shown at once: somebody has to look at it."""
        urgent = (UNFINISHED["failed"], UNFINISHED["running"])
        return any(cell.state in urgent or cell.last_words for cell in self.cells)

    @property
    def views(self) -> list[tuple[str, list[PageOutput]]]:
        """Its outputs, those of a figure and of its twin in words apart: a reader sees one of
        the two.
        """
        pictures = [output for output in self.outputs if output.kind == "picture"]
        rest = [output for output in self.outputs if output.kind != "picture"]
        if pictures and rest:
            return [("Figure", pictures), ("Table", rest)]
        return [("", self.outputs)]

    @property
    def says(self) -> str:
        """What it comes to, in a line: what the first of its outputs says of itself, else the
        words that it begins with.
        """
        return next(filter(None, map(_says, self.outputs)), "")


def folds(
    pieces: Iterable[ProseCell | CodeCell],
    shown_digests: set[str],
    only_what_applies: bool = False,
) -> list[Fold]:
    """The cells of a notebook under the lines that go before them.

    ``shown_digests`` are of outputs that the page around them shows already; they are not shown
    again, and what is shown is added. Neither are code that ran well, and the parts that the
    head of that page holds. Words that follow a view with a label belong to its row.
    """
    folding = _Folding(shown_digests)
    for piece in pieces:
        if isinstance(piece, ProseCell):
            folding.add_prose(piece)
        else:
            folding.add_code(piece)
    rows: list[Fold] = []
    for fold in (*folding.closed, folding.fold):
        if not (fold.outputs or fold.cells):
            continue
        if rows and rows[-1].label and fold.is_words:
            rows[-1].outputs += [PageOutput("prose", html=fold.whole), *fold.outputs]
        else:
            rows.append(fold)
    return [fold for fold in rows if fold.applies or not only_what_applies]


class _Folding:
    """Folds that are closed, and the one to which cells are added."""

    def __init__(self, shown_digests: set[str]) -> None:
        self.known = shown_digests
        self.closed: list[Fold] = []
        self.fold = Fold()
        self.part = ""
        """The last heading."""
        self.code_passed = False
        """Whether code went by since the last prose, also such that had nothing to show."""

    def add_prose(self, piece: ProseCell) -> None:
        """Add words to the fold, or begin another where cells stand in it."""
        if self.fold.outputs or self.fold.cells or self.code_passed:
            self.closed.append(self.fold)
            self.fold = Fold()
        self.code_passed = False
        if piece.heading:
            self.part = piece.heading
        self.fold.whole += piece.whole
        if self.fold.lead:
            self.fold.rest += piece.whole
            return
        self.fold.rest += piece.rest
        self.fold.lead = piece.lead
        if not piece.lead:
            self.fold.lead = PARTS.get(piece.heading, piece.heading)

    def add_code(self, piece: CodeCell) -> None:
        """Add the outputs of a cell that are new, and the cell where it did not run well."""
        self.code_passed = True
        outputs = piece.outputs
        if not piece.state:
            outputs = self._new(piece)
            if piece.outputs and not outputs and not self.fold.outputs:
                self.fold = Fold()
        is_wanted = bool(piece.state or piece.last_words)
        may_be_twin = self.closed and not is_wanted and not self.fold.outputs
        if may_be_twin and _are_twins(self.closed[-1].outputs, outputs):
            self.closed[-1].outputs += outputs
            self.fold = Fold()
            return
        if (outputs or is_wanted) and not self.fold.lead:
            self.fold.lead = piece.label
        self.fold.outputs += outputs
        if is_wanted:
            self.fold.cells.append(piece)

    def _new(self, piece: CodeCell) -> list[PageOutput]:
        """The outputs of a cell that the page does not show; it does from now on."""
        if self.part in SAID_ABOVE:
            return []
        new = []
        for output in piece.outputs:
            digest = hashlib.sha256(repr(output).encode("utf-8", "replace")).hexdigest()
            if not output.again and digest not in self.known:
                self.known.add(digest)
                new.append(output)
        return new


def _are_twins(figures: list[PageOutput], tables: list[PageOutput]) -> bool:
    """Whether tables have the label of the figure before them, or most of its sizes, and it most
    of theirs.
    """
    rows = _rows(tables)
    if any(output.kind != "picture" for output in figures):
        return False
    names = {output.label for output in (*figures, *tables)}
    if rows and len(names) == 1 and "" not in names:
        return True
    if len(rows) < 2:
        return False
    in_figures = set(_SIZE.findall("\n".join(output.alt for output in figures)))
    in_tables = set(_SIZE.findall("\n".join(rows)))
    return 2 * len(in_tables & in_figures) > max(len(in_tables), len(in_figures))


def _says(output: PageOutput) -> str:
    """What an output comes to, in a line."""
    if output.kind == "verdict":  # it has a headline
        return ""
    says = output.says or output.alt
    rows = _rows([output])
    if not says and rows:
        says = re.sub("<[^>]*>", " ", rows[0].replace("</td>", " "))
    lines = output.text.strip().splitlines()
    if not says and lines:
        says = lines[-1] if output.kind == "error" else lines[0]
    return one_line(unescape(says))


def _rows(outputs: Iterable[PageOutput]) -> list[str]:
    """The rows of the tables among outputs, without their headings."""
    tables = "".join(output.html for output in outputs if output.kind == "table")
    rows = []
    for body in re.findall("<tbody>(.*?)</tbody>", tables, re.DOTALL):
        rows += [row for row in body.split("<tr>")[1:] if "colspan" not in row]
    return rows
