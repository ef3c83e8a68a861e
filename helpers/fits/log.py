"""A server's log as the inputs of a sheet: what it was given, what it took, how it ended."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from helpers.fits.servers import table
from helpers.fits.sheet import MOST, ServerFacts
from helpers.ground.units import printed_size, show_bytes
from helpers.look.message import Message
from helpers.look.messages import read_message

LINE_CHARS = 4000
"""Of a line; a form stands near its start."""


class Slot(NamedTuple):
    """Where the values of a key are gathered: ``how`` those of several lines become one (logs.json
    says it in ``about``; the last counts otherwise); ``printed`` ones are results, not inputs;
    ``stage`` is the part of a load that prints them, which a row has as ``at``.
    """

    key: str
    how: str
    printed: bool
    stage: int
    program: str


class LogReader:
    """The values that the lines of a log print, of its last load."""

    def __init__(self) -> None:
        self.rows = table("logs")
        self.forms = [
            (row["has"], re.compile(row["form"]), row) for row in self.rows["lines"]
        ]
        self.runs = re.compile(self.rows["runs"])
        self.host = re.compile(self.rows["host"])
        self.draft = re.compile(self.rows["beside"])
        self.slots: dict[Slot, dict[tuple[str, int], Any]] = {}
        """The values of each slot, by the device that a line names, and their place."""
        self.programs = Counter[str]()
        self.version = ""
        self.fits: bool | None = None
        self.last_lines = list[str]()
        self.draft_mark = ""
        """Set while a draft's own model or context is loaded, which counts beside the model's."""

    def feed(self, line: str) -> None:
        """Read one line."""
        self.last_lines.append(line)
        self._begin_anew(line)
        if self.draft.search(line):
            self.draft_mark = "draft"
        if self.runs.search(line):
            self.fits = True
            self.last_lines = []  # what failed before was tried again
        for words, form, row in self.forms:
            if words in line:
                match = form.search(line)
                if match:
                    self._take(match, row)

    def _begin_anew(self, line: str) -> None:
        """Forget what an earlier load printed, where the line begins another."""
        for words, program, stage in self.rows["again"]["words"]:
            if words not in line or (self.draft_mark and stage):
                continue
            self.slots = {
                slot: values
                for slot, values in self.slots.items()
                if slot.program != program or slot.stage < stage
            }
            if not stage:
                self.draft_mark = ""

    def _take(self, match: re.Match[str], row: dict[str, Any]) -> None:
        """Gather the value that a line of the row's form prints."""
        groups = [group for group in match.groups() if group]
        if not groups:
            return
        how = row.get("how", "last")
        # The host's buffers are no part of a sum over devices, nor a draft's of the model's.
        is_added = how in self.rows["added"]
        if is_added and self.host.search(groups[0]):
            return
        if self.draft_mark and not is_added:
            return
        self.programs[row["program"]] += 1
        self.version = row.get("until", self.version)
        slot = Slot(row["key"], how, "printed" in row, row.get("at", 1), row["program"])
        values = self.slots.setdefault(slot, {})
        device = ""
        place = len(values)
        if how in ("each", "cards"):
            device = groups[0] + self.draft_mark
            place = 0  # what a device prints again replaces what it printed before
        elif how == "rank" and len(groups) > 1:
            device = groups[0]
        values[(device, place)] = _value(groups[-1], row)

    def gathered(self, printed: bool) -> dict[str, Any]:
        """Each key with its value, of the results or of the inputs."""
        values = {}
        for slot, by_device in self.slots.items():
            if slot.printed is not printed:
                continue
            figures = list(by_device.values())
            value = figures[-1]
            if slot.how in ("each", "add"):
                value = sum(figures)
            elif slot.how in ("list", "cards"):
                value = figures
            elif slot.how == "rank":
                ranks = Counter[str]()
                for (rank, _), size in by_device.items():
                    ranks[rank] += size
                value = max(ranks.values())
            values[slot.key] = value
        return values


def read_log(lines: Iterable[str]) -> ServerFacts:
    """What a log says, of its last load. Raises ValueError where no line is a server's."""
    reader = LogReader()
    for line in lines:
        reader.feed(line[:LINE_CHARS])
    rows = reader.rows
    messages = read_message("".join(reader.last_lines)).messages
    failures = [message for message in messages if message.event in rows["failed"]]
    if not reader.programs and not failures:
        count = len(reader.last_lines)
        raise ValueError(f"no line of a server among {count}; {rows['expected']}")
    inputs = reader.gathered(printed=False)
    inputs["n_ctx_printed"] = inputs.get("n_ctx")
    log = ServerFacts(
        program="",
        inputs=inputs,
        version=reader.version,
        printed=reader.gathered(printed=True),
        fits=reader.fits,
        ran=reader.fits,
    )
    if log.printed.get("layers_on_gpu", MOST) < inputs.get("layers_model", 0):
        log.fits = False  # fewer than all run beside the card
    if reader.programs:
        log.program = reader.programs.most_common(1)[0][0]
    else:
        log.program = failures[-1].program
    if failures:
        _note_failure(log, failures[-1])
    if log.program == "SGLang":
        _note_pool(log)
    return log


def _note_pool(log: ServerFacts) -> None:
    """Add to a log of SGLang what its pool takes a token, and whether it holds what was asked for."""
    inputs = log.inputs
    halves = [inputs.pop(name, None) for name in ("k_printed", "v_printed")]
    if None not in halves:
        inputs["kv_printed"] = sum(halves)
    tokens = log.printed.get("tokens")
    if not tokens:
        return
    inputs["tokens_printed"] = tokens
    wanted = inputs.get("n_ctx")
    log.printed["context"] = min(tokens, wanted) if wanted else tokens
    if log.ran and wanted and wanted > tokens:
        log.fits = False
    left = inputs.get("free_at_end")
    if log.ran and left and inputs.get("kv_printed"):
        more = int(left * tokens / inputs["kv_printed"])
        log.notes.append(
            f"{show_bytes(left)} are free when it runs, and activations take of that: at most "
            f"{more:,} tokens more, by a higher --mem-fraction-static."
        )


def _note_failure(log: ServerFacts, failure: Message) -> None:
    """Add to a log how it ended, and what to change."""
    if failure.capacity:
        log.inputs.setdefault("card_total_bytes", failure.capacity.bytes)
    log.fits = False
    log.ran = False
    log.notes = [f"It ended in: {' '.join(failure.words.split())[:160]}"]
    advice = table("logs")["advice"].get(failure.row)
    if advice:
        log.notes.append(advice)


def _value(text: str, row: dict[str, Any]) -> float | str | list[int]:
    """What a row's last group says: sizes, a size in its unit, a word, or a number."""
    if row.get("unit") == "sizes":
        return [
            printed_size(size) for size in re.findall(r"\d+(?:\.\d+)? [KMGT]iB", text)
        ]
    if "unit" in row:
        return printed_size(text, row["unit"])
    text = text.replace(",", "")
    flags: dict[str, bool] = table("logs")["words"]
    if text in flags:
        return flags[text]
    if not re.fullmatch(r"[\d.]+", text):
        return text
    if "." in text:
        return float(text)
    return int(text)
