"""What a server needs of a model, part by part; whether the sum fits what a card or a box can give;
and what is missing to say more.

Figures are ranges: there is a sheet at the low, the likely and the high end of them (sheet.py). The
high end takes the most memory, so what fits there certainly fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from helpers.fits import rules  # noqa: F401 -- the sheet's rules
from helpers.fits.arithmetic import whole
from helpers.fits.contexts import Contexts, contexts_of
from helpers.fits.servers import table
from helpers.fits.sheet import (
    ENDS,
    HIGH,
    LIKELY,
    LOW,
    RULES,
    Figure,
    ServerFacts,
    Sheet,
    checked,
)
from helpers.fits.solving import UNKNOWNS, solved
from helpers.fits.start import start_lines
from helpers.fits.ways import Way, ways_that_work
from helpers.ground.units import MIB

SHOWN_SOURCES = {
    "weights": ("model_bytes", "weights"),
    "kv_bytes": ("need_bytes", "kv_bytes"),
    "compute": ("activation_peak_bytes", "compute"),
    "context_bytes": ("non_torch_bytes", "context_bytes"),
}
"""For a figure that is a row: the figures whose sources say where it comes from, of which the first
that was worked out is shown. A row that is not named here shows its own source.
"""
# The rows of an answer, and the figure that each shows.
PARTS = {
    "weights": "weights",
    "vision": "projector_weights_bytes",
    "kv": "kv_bytes",
    "state": "state_bytes",
    "compute": "compute",
    "graphs": "cuda_graph_bytes",
    "context": "context_bytes",
    "others": "others_bytes",
    "reserve": "reserve",
}
LAYERED = ("weights", "kv_bytes", "state_bytes")
"""Figures of which the host keeps the part of the layers that stay with it."""
NEEDED = ("spare", "weights", "need_bytes", "compute", "ceiling")
"""Figures without which an answer says less; it names what they lack."""
# Figures of the cache that the JSON of an answer has.
CACHE = (
    "n_ctx",
    "full_token",
    "swa_token",
    "cells",
    "swa_cells",
    "need_bytes",
    "available",
    "blocks",
    "request_blocks",
    "request_tokens",
    "block_size",
)


class Total(TypedDict):
    """Bytes in three columns: as they are likely, and as they are where all rows together take the
    least and the most. A column is None where its bytes are not known.
    """

    bytes: int | None
    low_bytes: int | None
    high_bytes: int | None


class AnswerRow(Total):
    """The bytes of one part. ``part`` is a key of PARTS; ``source`` says where the bytes come from,
    or what is missing to know them.
    """

    part: str
    source: str


@dataclass
class FitsAnswer:
    """The answer; its fields are its JSON.

    - ``program``: the server; ``assumed`` where nobody named it
    - ``rows`` and their ``total``; with ``cards_alike``, each size is that of one of so many cards
    - ``ceiling_bytes``: what the card can give, with its source; ``spare_bytes``: what is left
    - ``fits``: yes, no, or None where it cannot be told; ``ran``: the same of the run that a log is
      of, None where no log was read
    - ``contexts``, ``solved`` (what each unknown may be at most), ``cache``: figures of the cache
    - ``start``: lines to paste; ``ways``: what would work where the model or context does not fit
    - ``missing``: what would have to be known to say more; ``notes``
    - ``incomplete``: which weights are not there, so that the sum is the least; ``cut_off``: how
      much is there of a file whose end is missing: the answer is about the whole file
    """

    program: str
    assumed: bool
    cards_alike: int
    rows: list[AnswerRow]
    total: Total
    ceiling_bytes: int | None
    ceiling_source: str
    fits: bool | None
    ran: bool | None
    spare_bytes: int | None
    contexts: Contexts
    solved: dict[str, float | None]
    start: list[str]
    ways: list[Way]
    missing: list[str]
    cache: dict[str, float | None]
    notes: list[str] = field(default_factory=list)
    incomplete: str = ""
    cut_off: str = ""


def answer(server: ServerFacts) -> FitsAnswer:
    """The answer for a server. What a log prints comes before what is computed.

    Ways out and lines to start with are only for a server that is planned, not for one of a log;
    the lines also need weights that are all here. Raises ValueError for inputs that cannot be
    meant.
    """
    inputs = checked(server.inputs)
    contexts = contexts_of(_sheets(server, inputs))
    if contexts.asked is None and contexts.counted is not None:
        inputs["n_ctx"] = contexts.counted  # the context that the rows are counted for
    sheets = _sheets(server, inputs)
    sheet = sheets[LIKELY]
    parts = _parts(server, sheet)
    figures = list(parts.values())
    columns = _columns(sheets, figures)
    rows = [_row(columns, part, figure) for part, figure in parts.items()]
    fits = _does_it_fit(server, sheets, contexts)
    printed = {name: size for name, size in server.printed.items() if name in UNKNOWNS}
    # A log that does not say how it ended has printed some unknowns nevertheless.
    is_planned = server.ran is None and not printed
    start: list[str] = []
    ways: list[Way] = []
    if is_planned:
        ways = ways_that_work(sheets, contexts, server.path)
    if is_planned and not server.cut_off and not server.incomplete:
        start = start_lines(server.path, sheet, contexts, changed={})
    return FitsAnswer(
        program=server.program,
        assumed=server.assumed,
        cards_alike=sheet.cards_alike,
        rows=rows,
        total=_total(columns, figures),
        ceiling_bytes=whole(sheet.value("ceiling")),
        ceiling_source=_ceiling_source(sheet),
        fits=fits,
        ran=server.ran,
        spare_bytes=whole(sheet.value("spare")),
        contexts=contexts,
        solved={**solved(sheet), "context": contexts.longest, **printed},
        start=start,
        ways=ways,
        missing=_missing_figures(server, sheets, contexts, fits),
        cache={name: sheet.value(name) for name in CACHE},
        notes=[*server.notes, *_notes(inputs)],
        incomplete=server.incomplete,
        cut_off=server.cut_off,
    )


def _parts(server: ServerFacts, sheet: Sheet) -> dict[str, str]:
    """The parts of what a model takes, each with the figure that counts it.

    A server with a pool fills it with all that is left. Where it will not start, nothing is filled,
    and the cache counts as what the context would take.
    """
    parts = dict(PARTS)
    if "projector_weights_bytes" not in sheet.inputs:
        del parts["vision"]
    if not sheet.is_pooled:
        return parts
    # A model's file names a path: its server is planned. For a log or a record only a pool that is
    # below 0 counts, as its own figures say how large it was.
    lacks_memory = server.path and sheet.value_or("spare", 0) < 0
    lacks_pool = server.ran is None and sheet.value_or("available", 0) < 0
    if lacks_memory or lacks_pool:
        parts["kv"] = "need_bytes"
    return parts


def _does_it_fit(
    server: ServerFacts, sheets: Mapping[str, Sheet], contexts: Contexts
) -> bool | None:
    """Whether the model fits: as a log says it; where no context is asked for, by whether one that
    is of use fits; else by the sum. None where that cannot be told.
    """
    fits = server.fits
    if fits is None and contexts.asked is None and contexts.longest is not None:
        fits = contexts.holds_a_model
    elif fits is None:
        fits = _fits_by_the_sum(sheets)
    if fits and server.incomplete:  # the weights that are not there may be too much
        return None
    return fits


def _fits_by_the_sum(sheets: Mapping[str, Sheet]) -> bool | None:
    """Whether the sum fits: yes where the most of it does, no where the least does not, None
    between them or where too little is known.
    """
    # What is left may be unknown at either end: then it proves neither a yes nor a no.
    if sheets[HIGH].value_or("spare", -1) >= 0:
        return True
    if sheets[LOW].value_or("spare", 0) < 0:
        return False
    # What is left is not known: it is too much, where weights and cache alone are.
    parts = ("weights", "need_bytes", "state_bytes")
    least_bytes = sum(sheets[LOW].value_or(name, 0) for name in parts)
    if least_bytes > sheets[LIKELY].value_or("ceiling", least_bytes):
        return False
    return None


def _missing_figures(
    server: ServerFacts,
    sheets: Mapping[str, Sheet],
    contexts: Contexts,
    fits: bool | None,
) -> list[str]:
    """What would have to be known to say more, in words: what the facts lack, what the figures of
    NEEDED lack, and a program that is not known.
    """
    sheet = sheets[LIKELY]
    if fits is None:
        sheet = sheets[HIGH]  # it also names the figures without an upper bound
    missing = [*server.missing, *_missing(sheet, *NEEDED)]
    has_spare = all(sheets[end].has("spare") for end in ENDS)
    if server.incomplete:
        missing.insert(0, server.incomplete)
    elif fits is None and contexts.longest is None and has_spare:
        missing.append(
            "what the server measures at start: at least it fits, at most it does not"
        )
    if not sheet.family:
        name = "(none)"
        if server.program:
            name = server.program[:40]
        missing.append(f"program {name}: not known, counted without rounding")
    return missing


def _ceiling_source(sheet: Sheet) -> str:
    """Where the ceiling comes from: the words that were given with it, else the source of its rule;
    empty where it is not known.
    """
    if "ceiling_words" in sheet.inputs:
        return sheet.text("ceiling_words")
    if sheet.has("ceiling"):
        return sheet.sources.get("ceiling", "")
    return ""


def _sheets(server: ServerFacts, inputs: Mapping[str, Figure]) -> dict[str, Sheet]:
    """The sheet of a server at each end of its ranges."""
    sheets = {}
    for end in ENDS:
        sheets[end] = Sheet(
            server.program, server.version, inputs, server.tags, end=end
        )
    return sheets


def _columns(sheets: Mapping[str, Sheet], figures: Sequence[str]) -> dict[str, Sheet]:
    """The sheet of each column of a Total, by the sums of these figures.

    What a server keeps free may become less as its buffers become more. Then the sum at the low end
    can be above the likely one, or that at the high end below it. In that case the column repeats
    the likely sheet, so that the three sums are in order. Sums within a MiB count as equal: figures
    are rounded by so much.
    """
    columns = dict.fromkeys(("bytes", "low_bytes", "high_bytes"), sheets[LIKELY])
    low, likely, high = (_sum(sheets[end], figures) for end in ENDS)
    if low is None or likely is None or low < likely + MIB:
        columns["low_bytes"] = sheets[LOW]
    if high is None or likely is None or high > likely - MIB:
        columns["high_bytes"] = sheets[HIGH]
    return columns


def _total(columns: Mapping[str, Sheet], figures: Sequence[str]) -> Total:
    """The sum of figures in each column."""
    return {
        "bytes": _sum(columns["bytes"], figures),
        "low_bytes": _sum(columns["low_bytes"], figures),
        "high_bytes": _sum(columns["high_bytes"], figures),
    }


def _sum(sheet: Sheet, figures: Sequence[str]) -> int | None:
    """The sum of figures in bytes; None where one of them is not known."""
    total = 0
    for figure in figures:
        size = _size(sheet, figure)
        if size is None:
            return None
        total += size
    return total


def _size(sheet: Sheet, figure: str) -> int | None:
    """The bytes that a figure takes on the cards, without layers that stay with the host; 0 for a
    figure below 0, such as a reserve that others have used up; None where they are not known.
    """
    size = sheet.value(figure)
    if size is None:
        return None
    if figure in LAYERED:
        size *= sheet.value_or("share_on_gpu", 1)
    return int(max(0, size))


def _row(columns: Mapping[str, Sheet], part: str, figure: str) -> AnswerRow:
    """A part with its bytes in each column, and its source or what it lacks.

    The source is the one at the low end: a figure without an upper bound is worked out there, too.
    """
    total = _total(columns, [figure])
    sheet = columns["low_bytes"]
    source = "as given"
    for name in SHOWN_SOURCES.get(figure, (figure,)):
        if name in sheet.sources:
            source = sheet.sources[name]
            break
    if (
        total["bytes"] is None
        and total["low_bytes"] is None
        and total["high_bytes"] is None
    ):
        source = f"missing: {', '.join(_missing(sheet, figure))}"
    return {"part": part, **total, "source": source}


def _missing(sheet: Sheet, *figures: str) -> list[str]:
    """What is missing to work out these figures, in words, each once."""
    says = []
    for figure in figures:
        lack = sheet.lacks(figure)
        if lack is not None and lack.says not in says:
            says.append(lack.says)
    return says


def _notes(inputs: Mapping[str, Figure]) -> list[str]:
    """Notes about the inputs: what others hold of the card, and the inputs that no rule reads."""
    notes = []
    if inputs.get("held_words"):
        notes.append(str(inputs["held_words"]))
    read = {*RULES, *table()["defaults"], *table()["read"].split()}
    # A figure of a header counts as read: every name in models.json is one, or is no input.
    read.update(re.findall(r"\w+", json.dumps(table("models"))))
    # Inputs may be anybody's JSON: names of 40 letters and a line of 200 are enough to find them.
    unread = [name[:40] for name in inputs if inputs[name] and name not in read]
    if unread:
        notes.append(f"not read, as no rule knows them: {', '.join(unread)[:200]}")
    return notes
