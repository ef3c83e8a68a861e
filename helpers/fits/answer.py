"""The rows of what a server needs, their sum against what a card or a box can give, and each
unknown solved for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.fits.model import json_file, named, wrong
from helpers.fits.sheet import ENDS, HIGH, LIKELY, LOW, Given, Sheet, checked, table
from helpers.ground.units import halved
from helpers.judge.ceilings import ceilings
from helpers.look.bundle import Bundle
from helpers.look.gpus import gpus
from helpers.look.parts import UNIFIED


@dataclass
class Answer:
    """What fits: the rows (bytes as they are likely, the least and most they may be, None where
    nothing says so; source), their ceiling, yes, no or None, what each open unknown may be,
    and what is missing to say more. Its fields are its JSON.
    """

    program: str
    rows: list[dict[str, Any]]
    ceiling_bytes: int | None
    ceiling_source: str
    fits: bool | None
    spare_bytes: int | None
    solved: dict[str, Any]
    missing: list[str]
    cache: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def read_inputs(path: Path) -> Given:
    """Program, version, architecture and inputs of a record, and nothing else of it.

    Raises ValueError in one line.
    """
    record = json_file(path)
    inputs = record.get("inputs")
    tags = record.get("architecture") or ()
    if not isinstance(inputs, dict) or not isinstance(record.get("program"), str):
        raise wrong(path, list(record)[:6], "program, version, architecture and inputs, an object")
    tags = list(map(str, tags if isinstance(tags, list) else (tags,)))
    of = table("models")
    inputs = {**named(inputs, of["config"]), **named(inputs, of["options"]), **inputs}
    return Given(record["program"], inputs, tags, str(record.get("version") or ""))


def cards_of(bundle: Bundle, alike: int = 0) -> dict[str, Any]:
    """What each GPU of a box can give, by the judgement that ``ttm`` makes, and what others
    hold of it now, as inputs.

    ``alike``: for a server that takes the same of so many cards, the freest of them and what is
    held of the fullest of those.
    """
    found = []
    stacks = ceilings(bundle)
    if any(one.kind in ("card", "other vendor") for one in stacks):  # an APU beside it is idle
        stacks = tuple(one for one in stacks if one.kind != "apu")
    for stack, gpu in ((s, g) for s in stacks for g in gpus(bundle) if g.pci == s.pci):
        own = (one for one in gpu.pools if "GTT" not in one.layer or stack.kind == "apu")
        known = [one for one in own if one.total.ok]
        numbers = stack.numbers
        pool = max(known, key=lambda one: one.total.bytes, default=None)
        size = stack.decision.binding_bytes or (pool.total.bytes if pool else 0)
        used = pool.used.bytes if pool and pool.used.ok else 0
        if numbers.kind == UNIFIED and numbers.ram and numbers.available is not None:
            size = numbers.ram
            used = numbers.ram - numbers.available
        if size:
            layer = stack.decision.binding or (pool.layer if pool else "RAM")
            found.append((size, used, f"{stack.name or stack.pci}: {layer}"))
    if not found:
        raise ValueError(f"{bundle.box}: seen no GPU memory; expected --gpu or --capacity")
    if alike:
        found = sorted(found, key=lambda one: one[1] - one[0])[:alike]
    sizes, held, words = zip(*found, strict=True)
    cards = {"card_total_bytes": list(sizes), "others_bytes": max(held) if alike else sum(held)}
    return {**cards, "ceiling_words": "; ".join(words)}


def answer(given: Given) -> Answer:
    """The rows, the sum, yes or no, and what is solved for; what a log says comes before what
    is computed. Raises ValueError.
    """
    program = given.program
    inputs = checked(given.inputs)
    ends = {end: Sheet(program, given.version, inputs, given.tags, end) for end in ENDS}
    sheet = ends[LIKELY]
    least = ends[LOW]
    rows = [_part(ends, *row) for row in table()["parts"] if sheet.value(row[1]) is not False]
    spare = {end: one.value("spare") for end, one in ends.items()}
    fits = given.fits
    ceiling = sheet.value("ceiling")
    known = sum(least.value(name) or 0 for name in ("weights", "need_bytes", "state_bytes"))
    if fits is None and spare[HIGH] is not None and spare[HIGH] >= 0:
        fits = True
    elif fits is None and ((spare[LOW] or 0) < 0 or (ceiling is not None and known > ceiling)):
        fits = False
    missing = given.missing + _missing(sheet if fits is not None else ends[HIGH], *table()["asks"])
    if fits is None and None not in spare.values():
        missing.append("what the server measures at start: at least it fits, at most it does not")
    if not sheet.family:
        missing.append(f"program {program[:40] or '(none)'}: not known, counted without rounding")
    cache = {name: sheet.value(name) for name in table()["cache"]}
    left, top = (one if one is None else int(one) for one in (spare[LIKELY], ceiling))
    says = inputs.get("ceiling_words") or sheet.sources.get("ceiling", "") * (top is not None)
    made = {**solved(sheet), **{k: v for k, v in given.printed.items() if k in table()["solved"]}}
    names = set(re.findall(r"\w+", json.dumps([table(), table("models")])))
    unread = ", ".join(n[:40] for n in inputs if inputs[n] and n not in names)[:200]
    notes = [*given.notes, *([f"not read, as no rule knows them: {unread}"] if unread else [])]
    return Answer(program, rows, top, says, fits, left, made, missing, cache, notes)


def _part(ends: Mapping[str, Sheet], part: str, formula: str, shown: list[str]) -> dict[str, Any]:
    sheet = ends[LOW]
    values = [one.value(formula) for one in ends.values()]
    sizes = [None if value is None else max(0, int(value)) for value in values]
    known = [size for size in sizes if size is not None]
    least = min(known, default=None)
    most = None if None in sizes else max(known)
    row = {"part": part, "bytes": sizes[1], "low_bytes": least, "high_bytes": most}
    source = next((sheet.sources[one] for one in shown if one in sheet.sources), "as given")
    return {**row, "source": source if known else f"missing: {', '.join(_missing(sheet, formula))}"}


def _missing(sheet: Sheet, *formulas: str) -> list[str]:
    """What nothing gives of the names that formulas need, in words, each once."""
    found = [why for why in map(sheet.lacks, formulas) if why]
    return list(dict.fromkeys(why.why or table()["words"].get(why.name, why.name) for why in found))


def solved(sheet: Sheet) -> dict[str, Any]:
    """Each unknown that the inputs allow to solve, in the steps in which the program rounds;
    None where they do not.
    """
    found: dict[str, Any] = {}
    for unknown, how in table()["solved"].items():
        known, name = (sheet.value(how.get(key, "nothing")) for key in ("is", "name"))
        found[unknown] = None if known is None else max(0, known if "scale" in how else int(known))
        if known is None and name:
            found[unknown] = _solved(sheet, name, how)
    return found


def _solved(sheet: Sheet, name: str, how: Mapping[str, Any]) -> float | None:
    """The most of an unknown that leaves something spare, or the ``least``; 0 where none does,
    None where that is not known.
    """
    scale = how.get("scale", 1)
    per = how.get("per")
    most = int(sheet.value(how["most"]) or 0)
    step = max(1, int(sheet.value(how.get("step", "1")) or 1))
    whole = (sheet.value(per or "nothing") or 0) / (sheet.value(name) or 1)

    def room(count: int) -> Any:
        changed = {name: count * scale, **({per: whole * count} if per else {})}
        spare = sheet.at(changed).value("spare")
        return None if spare is None else bool(spare >= 0)

    if not most or (per and not whole) or room(step) is None or room(most) is None:
        return None
    if how.get("least"):
        return round(halved(room, most, 0)[0] * scale, 4) if room(most) else None
    if room(most):
        return most
    return halved(room, step, -(-most // step) * step, step)[0] if room(step) else 0
