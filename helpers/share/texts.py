"""The texts of what is shared that stay at home until a person ticks them, each with its place."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from helpers.batch.shapes import Run
from helpers.ground.shapes import Verdict
from helpers.look.bundle import Bundle

from . import public

COMMITTED = Path(__file__).with_name("committed.txt")
"""Digests of what the workbook's own notebooks hold, which anybody can read already."""
DIGITS = 16
IN_WORDS = ("text/markdown", "text/plain", "text/html")
"""Kinds of data of which a person can judge what they say, the best first."""
RECORD_TEXTS = "cause last_words gate quarantined node box notebook preset".split()


@dataclass(frozen=True)
class Text:
    """A text that may hold a person's words: its kind, and its place without a name."""

    kind: str
    where: str
    text: str
    whole: str = ""
    """All that stands at home, where the text is a part of it."""

    @cached_property
    def digest(self) -> str:
        """The sha256 of what stands at home."""
        whole = self.whole or self.text
        return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


@cache
def committed() -> frozenset[str]:
    """The digests of the texts that the workbook's own notebooks hold."""
    return frozenset(COMMITTED.read_text("ascii").split())


def is_committed(text: Text) -> bool:
    """Whether it stands in a notebook of the workbook, character by character."""
    return not (text.whole or text.text).strip() or text.digest[:DIGITS] in committed()


def counted(texts: Iterable[Text]) -> Counter[str]:
    """How many texts stay at home, by kind."""
    return Counter(text.kind for text in texts)


def of_notebook(notebook: Any) -> Iterator[Text]:
    """The sources and outputs of a notebook that are not the workbook's own."""
    return (text for text in all_of(notebook) if not is_committed(text))


def all_of(notebook: Any) -> Iterator[Text]:
    """Every source and every output of a notebook."""
    for number, cell in enumerate(notebook.cells, 1):
        where = f"cell {number}"
        yield Text("source of a cell", where, cell.source)
        for output in cell.get("outputs", []):
            yield of_output(output, where)


def of_output(output: Any, where: str = "") -> Text:
    """An output as a text: what it printed, its traceback, or the words of its data."""
    whole = json.dumps({**output, "execution_count": None}, sort_keys=True)
    kind = "output of a cell"
    if output.output_type == "stream":
        return Text(kind, where, str(output.text), whole)
    if output.output_type == "error":
        lines = output.traceback or [f"{output.ename}: {output.evalue}"]
        return Text(kind, where, "\n".join(lines), whole)
    data = output.get("data", {})
    words = next((data[name] for name in IN_WORDS if name in data), "(a picture without words)")
    return Text(kind, where, "".join(words), whole)


def own_part(notebook: Any) -> Any:
    """A copy of a notebook with the workbook's own cells and outputs alone."""
    part = copy.copy(notebook)
    part.cells = []
    for cell in notebook.cells:
        if not is_committed(Text("", "", cell.source)):
            continue
        kept = type(cell)(cell)
        if cell.cell_type == "code":
            kept.outputs = [row for row in cell.outputs if is_committed(of_output(row))]
        kept.metadata = {}
        part.cells.append(kept)
    return part


def of_run(run: Run, place: str) -> Iterator[Text]:
    """The texts of a record of a run."""
    texts = [str(getattr(run, name)) for name in RECORD_TEXTS]
    for text in [*texts, *run.notes]:
        is_public = public.notebook(text) or public.box(text) or text in public.presets()
        if text and not is_public:
            yield Text("text of a record", place, text)
    for name, value in run.parameters.items():
        if not public.parameter(value):
            yield Text("parameter", place, f"{name} = {value!r}")
    for name in run.files:
        yield Text("name of a file", place, name)
    if run.verdict:
        yield from of_verdict(run.verdict, place)


def of_verdict(verdict: Verdict, place: str) -> Iterator[Text]:
    """What a verdict says in words: its title, summary, sentences, readings and next step."""
    evidence = [*verdict.evidence, *verdict.against]
    texts = [verdict.title, verdict.summary, *(row.says for row in evidence)]
    texts += [str(row.reading.value) for row in evidence if not public.number(row.reading)]
    texts += [verdict.next_step.what, verdict.next_step.command]
    texts += [f"{row.reading}: {row.how}" for row in verdict.missing]
    for text in dict.fromkeys(filter(None, texts)):
        yield Text("text of a verdict", place, text)


def of_bundle(bundle: Bundle) -> Iterator[Text]:
    """The items of a bundle whose form is not known."""
    for number, item in enumerate(bundle.items, 1):
        text = bundle.read(item.source).text
        if text.strip() and not public.source(item.source):
            yield Text("item of the bundle", f"item {number}", f"{item.source}:\n{text}")
