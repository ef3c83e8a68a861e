"""A server's log as the inputs of a sheet: what it was given, what it printed that it took, how it ended and what to change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from helpers.fits.sheet import MOST, Given, table
from helpers.look.messages import read_message
from helpers.units import printed_size


def read_log(lines: Iterable[str]) -> Given:
    """What a log says, of its last load. Raises ValueError where no line is a server's."""
    log, known, programs, kept = Given("", {}), table("logs"), Counter[str](), list[str]()
    seen: dict[tuple[str, str, bool, int, str], dict[Any, Any]] = {}
    runs, host, draft = (re.compile(known[one]) for one in ("runs", "host", "beside"))
    forms = [(row["has"], re.compile(row["form"]), row) for row in known["lines"]]
    beside = ""  # a draft's own model or context is taken beside the model's
    for line in (raw[:4000] for raw in lines):
        kept.append(line)
        for words, program, at in known["again"]["words"]:
            if words in line and not (beside and at):
                seen = {k: spot for k, spot in seen.items() if k[-1] != program or k[3] < at}
                beside = beside if at else ""
        beside = "draft" if draft.search(line) else beside
        if runs.search(line):
            log.fits, kept = True, []  # what failed before was tried again
        for _, form, row in [one for one in forms if one[0] in line]:
            match, how = form.search(line), row.get("how", "last")
            groups = [group for group in match.groups() if group] if match else []
            if groups and not (host.search(groups[0]) if how in known["added"] else beside):
                programs[row["program"]] += 1
                log.version = row.get("until", log.version)
                key = (row["key"], how, "printed" in row, row.get("at", 1), row["program"])
                spot, named = seen.setdefault(key, {}), how in ("each", "cards")
                spot[groups[0] + beside if named else len(spot)] = _value(groups[-1], row)
    for (name, how, printed, *_), spot in seen.items():
        values, many = list(spot.values()), how in ("list", "cards")
        whole = sum(values) if how in ("each", "add") else values if many else values[-1]
        (log.printed if printed else log.inputs)[name] = whole
    log.inputs["n_ctx_printed"] = log.inputs.get("n_ctx")
    found = [one for one in read_message(kept).messages if one.event in known["failed"]]
    if not programs and not found:
        raise ValueError(f"no line of a server among {len(kept)}; {known['expected']}")
    held = log.printed.get("layers_on_gpu", MOST)  # fewer than all run beside the card
    log.fits = log.fits if held >= log.inputs.get("layers_model", 0) else False
    log.program = programs.most_common(1)[0][0] if programs else found[-1].program
    for last in found[-1:]:
        log.inputs = {"card_total_bytes": last.capacity and last.capacity.bytes, **log.inputs}
        words, advice = " ".join(last.words.split())[:160], known["advice"].get(last.row)
        log.fits, log.notes = False, [f"It ended in: {words}", *([advice] if advice else [])]
    return log


def _value(text: str, row: dict[str, Any]) -> Any:
    """What a row's last group says: sizes, a size in its unit, a word, or a number."""
    if row.get("unit") == "sizes":
        return [printed_size(one) for one in re.findall(r"\d+(?:\.\d+)? [KMGT]iB", text)]
    if "unit" in row:
        return printed_size(text, row["unit"])
    text, words = text.replace(",", ""), table("logs")["words"]
    is_word = text in words or not re.fullmatch(r"[\d.]+", text)
    return words.get(text, text) if is_word else float(text) if "." in text else int(text)
