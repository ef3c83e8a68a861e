"""The rows of what a server needs, their sum against what a card or a box can give, and what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers.fits import rules  # noqa: F401 -- the sheet's rules
from helpers.fits.contexts import Contexts, contexts_of
from helpers.fits.servers import table
from helpers.fits.sheet import (
    ENDS,
    HIGH,
    LIKELY,
    LOW,
    RULES,
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
    "need_bytes": ("need_bytes",),
    "state_bytes": ("state_bytes",),
    "compute": ("activation_peak_bytes", "compute"),
    "cuda_graph_bytes": ("cuda_graph_bytes",),
    "context_bytes": ("non_torch_bytes", "context_bytes"),
    "others_bytes": ("others_bytes",),
    "reserve": ("reserve",),
}
"""Of each figure that is a row: the first of these that was worked out says where it comes from."""
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


@dataclass
class FitsAnswer:
    """What fits: the rows (bytes as they are likely, and where all rows together take the least and
    the most, None where nothing says so; source) and their ``total``, their ceiling, yes, no or None, the contexts, what
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
    rows: list[dict[str, Any]]
    total: dict[str, int | None]
    ceiling_bytes: int | None
    ceiling_source: str
    fits: bool | None
    ran: bool | None
    spare_bytes: int | None
    contexts: Contexts
    solved: dict[str, Any]
    start: list[str]
    ways: list[Way]
    missing: list[str]
    cache: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    incomplete: str = ""
    cut_off: str = ""


def answer(server: ServerFacts) -> FitsAnswer:
    """The rows, the sum, yes or no, and what is solved for; what a log says comes before what
    is computed. Raises ValueError.
    """
    inputs = checked(server.inputs)
    contexts = contexts_of(_sheets(server, inputs))
    if contexts.asked is None and contexts.served is not None:
        inputs = {**inputs, "n_ctx": contexts.served}
    sheets = _sheets(server, inputs)
    sheet = sheets[LIKELY]
    parts = _parts(server, sheet)
    ends = _ends_by_sum(sheets, list(parts.values()))
    rows = [_row(ends, part, figure) for part, figure in parts.items()]
    spare = {end: sheets[end].value("spare") for end in ENDS}
    ceiling = sheet.value("ceiling")
    verdict = server.fits
    if verdict is None and contexts.asked is None and contexts.longest is not None:
        verdict = contexts.holds_a_model
    elif verdict is None:
        verdict = _verdict(spare, ceiling, sheets[LOW])
    if server.incomplete and verdict:
        verdict = None
    is_between = (
        verdict is None and contexts.longest is None and None not in spare.values()
    )
    missing = _missing_figures(
        server, sheets[HIGH] if verdict is None else sheet, is_between
    )
    source = inputs.get("ceiling_words") or ""
    if not source and ceiling is not None:
        source = sheet.sources.get("ceiling", "")
    printed = {name: size for name, size in server.printed.items() if name in UNKNOWNS}
    figures = {**solved(sheet), "context": contexts.longest, **printed}
    start: list[str] = []
    ways: list[Way] = []
    if server.ran is None and not printed:
        if not server.cut_off and not server.incomplete:
            start = start_lines(server.path, sheet, contexts)
        ways = ways_that_work(sheets, contexts, server.path)
    return FitsAnswer(
        program=server.program,
        assumed=server.assumed,
        cards_alike=sheet.cards_alike,
        rows=rows,
        total={name: _sum(sheet, list(parts.values())) for name, sheet in ends.items()},
        ceiling_bytes=None if ceiling is None else int(ceiling),
        ceiling_source=source,
        fits=verdict,
        ran=server.ran,
        spare_bytes=None if spare[LIKELY] is None else int(spare[LIKELY]),
        contexts=contexts,
        solved=figures,
        start=start,
        ways=ways,
        missing=missing,
        cache={name: sheet.value(name) for name in CACHE},
        notes=[
            *server.notes,
            *filter(None, [inputs.get("held_words")]),
            *_unread(inputs),
        ],
        incomplete=server.incomplete,
        cut_off=server.cut_off,
    )


def _parts(server: ServerFacts, sheet: Sheet) -> dict[str, str]:
    """The parts of what a model takes, each with the figure that counts it."""
    parts = dict(PARTS)
    if not sheet.is_given("projector_weights_bytes"):
        del parts["vision"]
    if not sheet.is_pooled:
        return parts
    is_refused = server.path and (sheet.value("spare") or 0) < 0
    if is_refused or (server.ran is None and (sheet.value("available") or 0) < 0):
        parts["kv"] = "need_bytes"  # no pool is filled: what the context would take
    return parts


def _missing_figures(server: ServerFacts, sheet: Sheet, is_between: bool) -> list[str]:
    """What is not known, in words. ``is_between``: it fits at least, and does not at most."""
    missing = [*server.missing, *_missing(sheet, *ASKS)]
    if server.incomplete:
        missing.insert(0, server.incomplete)
    elif is_between:
        missing.append(
            "what the server measures at start: at least it fits, at most it does not"
        )
    if not sheet.family:
        name = server.program[:40] or "(none)"
        missing.append(f"program {name}: not known, counted without rounding")
    return missing


def _sheets(server: ServerFacts, inputs: dict[str, Any]) -> dict[str, Sheet]:
    return {
        end: Sheet(server.program, server.version, inputs, server.tags, end=end)
        for end in ENDS
    }


def _ends_by_sum(
    sheets: Mapping[str, Sheet], figures: Sequence[str]
) -> dict[str, Sheet]:
    """The sheets of the columns: the likely one, and those of the least and the most in all.

    What a server keeps free may fall as its buffers grow: then the likely sum is at an end.
    """
    low, likely, high = (_sum(sheets[end], figures) for end in ENDS)
    is_least = low is None or likely is None or low < likely + MIB
    is_most = high is None or likely is None or high > likely - MIB
    return {
        "bytes": sheets[LIKELY],
        "low_bytes": sheets[LOW if is_least else LIKELY],
        "high_bytes": sheets[HIGH if is_most else LIKELY],
    }


def _sum(sheet: Sheet, figures: Sequence[str]) -> int | None:
    """The sum of the rows; None where one of them is not known."""
    sizes = [_size(sheet, figure) for figure in figures]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _size(sheet: Sheet, figure: str) -> int | None:
    """The bytes of a row on the cards: of layers that stay with the host, nothing."""
    size = sheet.value(figure)
    if size is None:
        return None
    share = (sheet.value("share_on_gpu") or 1) if figure in LAYERED else 1
    return int(max(0, size) * share)


def _verdict(spare: Mapping[str, Any], ceiling: Any, least: Sheet) -> bool | None:
    """Yes where the most fits, no where the least does not, None between them."""
    if spare[HIGH] is not None and spare[HIGH] >= 0:
        return True
    if spare[LOW] is not None and spare[LOW] < 0:
        return False
    parts = [
        least.value(name) or 0 for name in ("weights", "need_bytes", "state_bytes")
    ]
    return False if ceiling is not None and sum(parts) > ceiling else None


def _row(ends: Mapping[str, Sheet], part: str, figure: str) -> dict[str, Any]:
    """A part with its bytes in each column, and its source or what it lacks."""
    sizes = {name: _size(sheet, figure) for name, sheet in ends.items()}
    sheet = ends["low_bytes"]
    source = "as given"
    for name in SHOWN_SOURCES.get(figure, ()):
        if name in sheet.sources:
            source = sheet.sources[name]
            break
    if all(size is None for size in sizes.values()):
        source = f"missing: {', '.join(_missing(sheet, figure))}"
    return {"part": part, **sizes, "source": source}


def _missing(sheet: Sheet, *figures: str) -> list[str]:
    """What nothing gives of that which figures need, in words, each once."""
    words = table()["words"]
    lacks = [why for why in map(sheet.lacks, figures) if why]
    return list(
        dict.fromkeys(why.why or words.get(why.name, why.name) for why in lacks)
    )


def _unread(inputs: Mapping[str, Any]) -> Sequence[str]:
    """A note of the inputs that no rule reads."""
    names = {*RULES, *table()["defaults"], *table()["read"].split()}
    names.update(re.findall(r"\w+", json.dumps(table("models"))))
    unread = [name[:40] for name in inputs if inputs[name] and name not in names]
    if not unread:
        return ()
    return (f"not read, as no rule knows them: {', '.join(unread)[:200]}",)
