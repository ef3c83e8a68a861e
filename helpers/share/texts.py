"""The texts of what is shared that stay at home until a person ticks them, each with its place."""

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
"""Digests of what the workbook's own notebooks hold, which anybody can read already."""
DIGITS = 16
IN_WORDS = ("text/markdown", "text/plain", "text/html")
"""Kinds of data of which a person can judge what they say, the best first."""
RECORD_TEXTS = "cause last_words gate quarantined node box notebook preset".split()
HEADING = re.compile(r"^#{1,6} +(.*\w.*)$", re.MULTILINE)
SOURCE = "source of a cell"
OUTPUT = "output of a cell"
PARAMETER = "parameter"


@dataclass(frozen=True)
class SharedText:
    """A text that may hold a person's words: its kind, and its place without a name."""

    kind: str
    where: str
    text: str
    original: str = ""
    """All that stands at home, where the text is a part of it."""

    @cached_property
    def digest(self) -> str:
        """The sha256 of what stands at home."""
        original = self.original or self.text
        return hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_committed(self) -> bool:
        """Whether it stands in a notebook of the workbook, character by character."""
        is_empty = not self.text.strip() and not self.original
        return is_empty or self.digest[:DIGITS] in committed()


@cache
def committed() -> frozenset[str]:
    """The digests of the texts that the workbook's own notebooks hold."""
    return frozenset(COMMITTED.read_text("ascii").split())


def of_notebook(notebook: NotebookNode, place: str = "") -> Iterator[SharedText]:
    """The headings, sources and outputs of a notebook that are not the workbook's own."""
    for number, cell in enumerate(notebook.cells, 1):
        if (
            cell.cell_type == "markdown"
            and not SharedText(SOURCE, "", cell.source).is_committed
        ):
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
    """An output as a text: what it printed, its traceback, or the words of its data."""
    data = output.get("data", {})
    if output.output_type == "stream":
        words = output.text
    elif output.output_type == "error":
        words = "\n".join(output.traceback) or f"{output.ename}: {output.evalue}"
    else:
        words = next(
            (data[kind] for kind in IN_WORDS if kind in data), "(without words)"
        )
    original = json.dumps({**output, "execution_count": None}, sort_keys=True)
    return SharedText(OUTPUT, where, "".join(words), original)


def own_part(notebook: NotebookNode) -> NotebookNode:
    """A copy of a notebook with the workbook's own cells and outputs alone."""
    part = copy.copy(notebook)
    part.cells = []
    for cell in notebook.cells:
        if not SharedText(SOURCE, "", cell.source).is_committed:
            continue
        kept = type(cell)(cell)
        if cell.cell_type == "code":
            kept.outputs = [row for row in cell.outputs if _of_output(row).is_committed]
        kept.metadata = {}
        part.cells.append(kept)
    return part


def of_run(run: Run, place: str) -> Iterator[SharedText]:
    """The texts of a record of a run."""
    for text in [*(str(getattr(run, name)) for name in RECORD_TEXTS), *run.notes]:
        if text and not public.notebook(text) and not public.box(text):
            yield SharedText("text of a record", place, text)
    for name, value in run.parameters.items():
        if not public.parameter(value):
            yield SharedText(PARAMETER, place, f"{name} = {value!r}")
    for name in run.files:
        yield SharedText("name of a file", place, name)
    if run.verdict:
        yield from of_verdict(run.verdict, place)


def of_verdict(verdict: Verdict, place: str) -> Iterator[SharedText]:
    """What a verdict says in words: its title, summary, sentences, readings and next step."""
    evidence = [*verdict.evidence, *verdict.against]
    texts = [
        verdict.title,
        verdict.summary,
        verdict.next_step.what,
        verdict.next_step.command,
    ]
    texts += [row.says for row in evidence]
    texts += [
        row.reading.value for row in evidence if isinstance(row.reading.value, str)
    ]
    texts += [row.reading for row in verdict.missing]
    texts += [row.how for row in verdict.missing]
    return (SharedText("text of a verdict", place, text) for text in texts if text)


def of_bundle(bundle: Bundle) -> Iterator[SharedText]:
    """The items of a bundle whose form is not known."""
    for number, item in enumerate(bundle.items, 1):
        text = bundle.read(item.source).text
        if text.strip() and not public.source(item.source):
            yield SharedText(
                "item of the bundle", f"item {number}", f"{item.source}:\n{text}"
            )
