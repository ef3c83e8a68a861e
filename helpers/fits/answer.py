"""The rows of what a server needs, their sum against what a card or a box can give, and what is missing."""

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
"""Of figures that are rows: the first of these that was worked out says where it comes from; of
others they themselves.
"""
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
"""The rows of an answer, and the figure that each shows."""
LAYERED = ("weights", "kv_bytes", "state_bytes")
"""Figures of which a part stays with the host where layers do."""
ASKS = ("spare", "weights", "need_bytes", "compute", "ceiling")
"""Figures of which an answer says what they lack."""
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
"""Figures of the cache that an answer holds."""


class Total(TypedDict):
    """Bytes as they are likely, and where all rows together take the least and the most; None where
    nothing says so.
    """

    bytes: int | None
    low_bytes: int | None
    high_bytes: int | None


class AnswerRow(Total):
    """What one part takes, and where that comes from or what it lacks."""

    part: str
    source: str


@dataclass
class FitsAnswer:
    """What fits: the ``rows`` and their ``total``, their ceiling, yes, no or None, the contexts, what
    each open unknown may be, what is missing to say more, and which weights are not there
    (``incomplete``), so that the sum is the least. Of a file whose end is not here (``cut_off``
    says how much is) the answer is that of the whole file, and nothing starts it yet.

    ``assumed``: nobody named the server. ``cards_alike``: all sizes are those of one of so many
    cards. ``ran``: how a log ended. ``start``: lines to paste;
    ``ways``: what would work where the model or the context does not fit. Its fields are its JSON.
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
    """The rows, the sum, yes or no, and what is solved for; what a log says comes before what
    is computed. Raises ValueError.
    """
    inputs = checked(server.inputs)
    contexts = contexts_of(_sheets(server, inputs))
    if contexts.asked is None and contexts.counted is not None:
        inputs["n_ctx"] = contexts.counted
    sheets = _sheets(server, inputs)
    sheet = sheets[LIKELY]
    parts = _parts(server, sheet)
    figures = list(parts.values())
    columns = _columns(sheets, figures)
    rows = [_row(columns, part, figure) for part, figure in parts.items()]
    fits = _does_it_fit(server, sheets, contexts)
    printed = {name: size for name, size in server.printed.items() if name in UNKNOWNS}
    start: list[str] = []
    ways: list[Way] = []
    if server.ran is None and not printed:
        if not server.cut_off and not server.incomplete:
            start = start_lines(server.path, sheet, contexts, changed={})
        ways = ways_that_work(sheets, contexts, server.path)
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
    """The parts of what a model takes, each with the figure that counts it."""
    parts = dict(PARTS)
    if "projector_weights_bytes" not in sheet.inputs:
        del parts["vision"]
    if not sheet.is_pooled:
        return parts
    is_refused = server.path and sheet.value_or("spare", 0) < 0
    if is_refused or (server.ran is None and sheet.value_or("available", 0) < 0):
        parts["kv"] = "need_bytes"  # no pool is filled: what the context would take
    return parts


def _does_it_fit(
    server: ServerFacts, sheets: Mapping[str, Sheet], contexts: Contexts
) -> bool | None:
    """As a log says it, else by the context or by the sum; None where that cannot be told."""
    fits = server.fits
    if fits is None and contexts.asked is None and contexts.longest is not None:
        fits = contexts.holds_a_model
    elif fits is None:
        fits = _fits_by_the_sum(sheets)
    if fits and server.incomplete:
        return None
    return fits


def _fits_by_the_sum(sheets: Mapping[str, Sheet]) -> bool | None:
    """Yes where the most fits, no where the least does not, None between them."""
    if sheets[HIGH].value_or("spare", -1) >= 0:
        return True
    if sheets[LOW].value_or("spare", 0) < 0:
        return False
    parts = ("weights", "need_bytes", "state_bytes")
    least_bytes = sum(sheets[LOW].value_or(name, 0) for name in parts)
    is_too_much = least_bytes > sheets[LIKELY].value_or("ceiling", least_bytes)
    return False if is_too_much else None


def _missing_figures(
    server: ServerFacts,
    sheets: Mapping[str, Sheet],
    contexts: Contexts,
    fits: bool | None,
) -> list[str]:
    """What is not known, in words."""
    sheet = sheets[HIGH if fits is None else LIKELY]
    missing = [*server.missing, *_missing(sheet, *ASKS)]
    has_spare = all(sheets[end].has("spare") for end in ENDS)
    if server.incomplete:
        missing.insert(0, server.incomplete)
    elif fits is None and contexts.longest is None and has_spare:
        missing.append(
            "what the server measures at start: at least it fits, at most it does not"
        )
    if not sheet.family:
        name = server.program[:40] or "(none)"
        missing.append(f"program {name}: not known, counted without rounding")
    return missing


def _ceiling_source(sheet: Sheet) -> str:
    """What the ceiling is: in the words that were given with it, else by its rule; empty where it
    is not known.
    """
    if "ceiling_words" in sheet.inputs:
        return sheet.text("ceiling_words")
    if sheet.has("ceiling"):
        return sheet.sources.get("ceiling", "")
    return ""


def _sheets(server: ServerFacts, inputs: Mapping[str, Figure]) -> dict[str, Sheet]:
    return {
        end: Sheet(server.program, server.version, inputs, server.tags, end=end)
        for end in ENDS
    }


def _columns(sheets: Mapping[str, Sheet], figures: Sequence[str]) -> dict[str, Sheet]:
    """The sheets of the columns: the likely one, and those of the least and the most in all.

    What a server keeps free may fall as its buffers grow: then the likely sum is at an end.
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
    """The sum of the rows; None where one of them is not known."""
    total = 0
    for figure in figures:
        size = _size(sheet, figure)
        if size is None:
            return None
        total += size
    return total


def _size(sheet: Sheet, figure: str) -> int | None:
    """The bytes of a row on the cards: of layers that stay with the host, nothing."""
    size = sheet.value(figure)
    if size is None:
        return None
    if figure in LAYERED:
        size *= sheet.value_or("share_on_gpu", 1)
    return int(max(0, size))


def _row(columns: Mapping[str, Sheet], part: str, figure: str) -> AnswerRow:
    """A part with its bytes in each column, and its source or what it lacks."""
    total = _total(columns, [figure])
    sheet = columns["low_bytes"]
    source = "as given"
    for name in SHOWN_SOURCES.get(figure, (figure,)):
        if name in sheet.sources:
            source = sheet.sources[name]
            break
    if set(total.values()) == {None}:
        source = f"missing: {', '.join(_missing(sheet, figure))}"
    return {"part": part, **total, "source": source}


def _missing(sheet: Sheet, *figures: str) -> list[str]:
    """What nothing gives of that which figures need, in words, each once."""
    lacks = filter(None, map(sheet.lacks, figures))
    return list(dict.fromkeys(lack.says for lack in lacks))


def _notes(inputs: Mapping[str, Figure]) -> list[str]:
    """What the inputs say of memory that others hold, and which of them no rule reads."""
    notes = []
    if inputs.get("held_words"):
        notes.append(str(inputs["held_words"]))
    read = {*RULES, *table()["defaults"], *table()["read"].split()}
    read.update(re.findall(r"\w+", json.dumps(table("models"))))
    unread = [name[:40] for name in inputs if inputs[name] and name not in read]
    if unread:
        notes.append(f"not read, as no rule knows them: {', '.join(unread)[:200]}")
    return notes
