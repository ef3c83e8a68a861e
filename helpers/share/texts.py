"""The texts of a subject that are not shared until a person ticks them, each with its place."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.ground.shapes import Verdict
from helpers.look.bundle import Bundle

from . import public

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from helpers.batch.shapes import Run

COMMITTED = Path(__file__).with_name("committed.txt")
"""Digests of the texts in the workbook's own notebooks, which anybody can read already."""
DIGITS = 16
"""Hexadecimal digits of each: 64 bits, so no other text has the same by chance."""
IN_WORDS = ("text/markdown", "text/plain", "text/html")
"""Kinds of an output's data that a person can read, the most readable first."""
RECORD_TEXTS = "cause last_words gate quarantined node box notebook preset".split()
"""Fields of a run's record that may have a person's words in them."""
HEADING = re.compile(r"^#{1,6} +(.*\w.*)$", re.MULTILINE)
SOURCE = "source of a cell"
OUTPUT = "output of a cell"
PARAMETER = "parameter"


@dataclass(frozen=True)
class SharedText:
    """A text that may have a person's words in it: its kind, and its place, such as "run 2, cell
    3".
    """

    kind: str
    where: str
    text: str
    original: str = ""
    """The whole of which the text is a part; empty where it is the whole."""

    @cached_property
    def digest(self) -> str:
        """The sha256 of the whole text."""
        original = self.original
        if not original:
            original = self.text
        return hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_committed(self) -> bool:
        """Whether a notebook of the workbook has exactly this text; also true of an empty text.

        An output without words, such as a figure, has an ``original`` and is not empty.
        """
        is_empty = not self.text.strip() and not self.original
        if is_empty:
            return True
        return self.digest[:DIGITS] in committed()


@cache
def committed() -> frozenset[str]:
    """The first DIGITS of the digest of each text in the workbook's own notebooks."""
    return frozenset(COMMITTED.read_text("ascii").split())


def of_notebook(notebook: NotebookNode, place: str = "") -> Iterator[SharedText]:
    """The headings, sources and outputs of a notebook that are not the workbook's own."""
    for number, cell in enumerate(notebook.cells, 1):
        is_ours = SharedText(SOURCE, "", cell.source).is_committed
        if cell.cell_type == "markdown" and not is_ours:
            for heading in HEADING.findall(cell.source):
                yield SharedText("heading", f"{place}cell {number}", heading)
    yield from (text for text in all_of(notebook, place) if not text.is_committed)


def all_of(notebook: NotebookNode, place: str = "") -> Iterator[SharedText]:
    """Every source and every output of a notebook."""
    for number, cell in enumerate(notebook.cells, 1):
        where = f"{place}cell {number}"
        yield SharedText(SOURCE, where, cell.source)
        for output in cell.get("outputs", []):
            yield _of_output(output, where)


def _of_output(output: NotebookNode, where: str = "") -> SharedText:
    """An output as a text: what was printed, a traceback, or the most readable form of its data."""
    data = output.get("data", {})
    if output.output_type == "stream":
        words = output.text
    elif output.output_type == "error":
        words = "\n".join(output.traceback)
        if not words:
            words = f"{output.ename}: {output.evalue}"
    else:
        readable = [data[kind] for kind in IN_WORDS if kind in data]
        words = next(iter(readable), "(without words)")
    # The number of an execution differs from run to run.
    original = json.dumps({**output, "execution_count": None}, sort_keys=True)
    return SharedText(OUTPUT, where, "".join(words), original)


def own_part(notebook: NotebookNode) -> NotebookNode:
    """A copy of a notebook with the workbook's own cells and outputs alone."""
    part = copy.copy(notebook)
    part.cells = []
    for cell in notebook.cells:
        if not SharedText(SOURCE, "", cell.source).is_committed:
            continue
        own_cell = type(cell)(cell)
        if cell.cell_type == "code":
            outputs = [row for row in cell.outputs if _of_output(row).is_committed]
            own_cell.outputs = outputs
        own_cell.metadata = {}  # it may hold a person's words, and no digest covers it
        part.cells.append(own_cell)
    return part


def of_run(run: Run, place: str) -> Iterator[SharedText]:
    """The texts of a record of a run."""
    texts = [str(getattr(run, name)) for name in RECORD_TEXTS]
    for text in [*texts, *run.notes]:
        # The page shows these names anyway.
        is_public = public.notebook(text) or public.box(text)
        if text and not is_public:
            yield SharedText("text of a record", place, text)
    for name, value in run.parameters.items():
        if not public.parameter(value):
            yield SharedText(PARAMETER, place, f"{name} = {value!r}")
    for name in run.files:
        yield SharedText("name of a file", place, name)
    if run.verdict:
        yield from of_verdict(run.verdict, place)


def of_verdict(verdict: Verdict, place: str) -> Iterator[SharedText]:
    """The texts of a verdict: its title, summary, sentences, readings that are texts, and next
    step.
    """
    evidence = [*verdict.evidence, *verdict.against]
    step = verdict.next_step
    texts = [verdict.title, verdict.summary, step.what, step.command]
    texts += [row.says for row in evidence]
    values = [row.reading.value for row in evidence]
    texts += [value for value in values if isinstance(value, str)]
    texts += [row.reading for row in verdict.missing]
    texts += [row.how for row in verdict.missing]
    return (SharedText("text of a verdict", place, text) for text in texts if text)


def of_bundle(bundle: Bundle) -> Iterator[SharedText]:
    """The items of a bundle that hold any text: those whose source public.source does not name.

    Items of a named source have a known form, and the page has their facts as tables.
    """
    for number, item in enumerate(bundle.items, 1):
        text = bundle.read(item.source).text
        if text.strip() and not public.source(item.source):
            item_text = f"{item.source}:\n{text}"
            yield SharedText("item of the bundle", f"item {number}", item_text)
