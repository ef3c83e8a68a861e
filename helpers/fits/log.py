"""A server's log as the inputs of a sheet: what the server was given, what it took, how it ended.

logs.json has a row for each line of a server that is read; its ``about`` explains them.
"""

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
"""Of a line that are read: the forms of logs.json match near its start."""
MOST_QUOTED = 160
"""Letters of the error with which a run ended: two lines of a terminal."""


class Slot(NamedTuple):
    """A figure that lines of a program print.

    - ``key``: its name among the inputs or the results
    - ``how``: how the values of several lines become one: "last", or a word that the ``about`` of
      logs.json explains
    - ``printed``: whether it is a result and no input
    - ``stage``: the part of a load in which it is printed, counted from 0 (``at`` in a row)
    """

    key: str
    how: str
    printed: bool
    stage: int
    program: str


class LogReader:
    """Reads a log line by line and keeps the values that its last load printed. A load is one
    attempt of a server to start with a model; servers may try several times, with less each time.
    """

    def __init__(self) -> None:
        self.rows = table("logs")
        self.forms = []
        """For each row of logs.json the words that its lines have, which are quick to look for, its
        form, and the row itself.
        """
        for row in self.rows["lines"]:
            self.forms.append((row["has"], re.compile(row["form"]), row))
        self.runs = re.compile(self.rows["runs"])
        self.host = re.compile(self.rows["host"])
        self.draft = re.compile(self.rows["beside"])
        self.slots: dict[Slot, dict[tuple[str, int], Any]] = {}
        """The values of each slot, by the device that a line names (empty where it names none) and
        a number: the place of the value among those of the slot, or 0 for the only one of a device.
        """
        self.programs = Counter[str]()
        """How many lines of each program were read."""
        self.version = ""
        self.fits: bool | None = None
        self.last_lines = list[str]()
        """The lines since the server last said that it runs."""
        self.draft_mark = ""
        """Not empty while the model or context of a draft (speculative decoding) is loaded."""

    def feed(self, line: str) -> None:
        """Read the next line."""
        self.last_lines.append(line)
        self._begin_anew(line)
        if self.draft.search(line):
            self.draft_mark = "draft"
        if self.runs.search(line):
            self.fits = True
            self.last_lines = []  # an earlier failure was of a load that was tried again
        for words, form, row in self.forms:
            if words in line:
                match = form.search(line)
                if match:
                    self._take(match, row)

    def _begin_anew(self, line: str) -> None:
        """Where the line begins another load, or an earlier stage of one again, forget what its
        program printed from that stage on.
        """
        for words, program, stage in self.rows["again"]["words"]:
            # The later stages of a draft begin no load of the model.
            if words not in line or (self.draft_mark and stage):
                continue
            kept = {}
            for slot, values in self.slots.items():
                if slot.program != program or slot.stage < stage:
                    kept[slot] = values
            self.slots = kept
            if not stage:
                self.draft_mark = ""

    def _take(self, match: re.Match[str], row: dict[str, Any]) -> None:
        """Keep the value that a line of the row's form prints. The last group of the form is the
        value; for the words each, cards and rank of ``how`` the first group is the device.
        """
        groups = [group for group in match.groups() if group]
        if not groups:
            return
        how = row.get("how", "last")
        # A draft's buffers are added to the model's; its other values are not the model's. The
        # host's buffers take nothing of the cards.
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
        """Each key with its value: of the results where ``printed`` is true, else of the inputs."""
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
            elif slot.how == "rank":  # each rank has a card: the fullest counts
                ranks = Counter[str]()
                for (rank, _), size in by_device.items():
                    ranks[rank] += size
                value = max(ranks.values())
            values[slot.key] = value
        return values


def read_log(lines: Iterable[str]) -> ServerFacts:
    """The facts that a log gives about its last load.

    The program is the one of most lines, or that of the last failure where no line of a server was
    read. Raises ValueError where there is neither.
    """
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
    # Sizes in the log are those of this context, whatever other one is asked about later.
    inputs["n_ctx_printed"] = inputs.get("n_ctx")
    # It ran if it said that it runs, unless a later failure says otherwise.
    log = ServerFacts(
        program="",
        inputs=inputs,
        version=reader.version,
        printed=reader.gathered(printed=True),
        fits=reader.fits,
        ran=reader.fits,
    )
    if log.printed.get("layers_on_gpu", MOST) < inputs.get("layers_model", 0):
        log.fits = False  # it runs, but some layers are on the CPU
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
    """Add to a log of SGLang the size of its pool and its tokens, whether it holds the context that
    was asked for, and a note about how many tokens more it could hold. Without tokens in the log
    only the size is added.
    """
    inputs = log.inputs
    # Some releases print the sizes of keys and of values apart.
    halves = [inputs.pop(name, None) for name in ("k_printed", "v_printed")]
    if None not in halves:
        inputs["kv_printed"] = sum(halves)
    tokens = log.printed.get("tokens")
    if not tokens:
        return
    inputs["tokens_printed"] = tokens
    wanted = inputs.get("n_ctx")
    log.printed["context"] = tokens
    if wanted and wanted < tokens:
        log.printed["context"] = wanted
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
    """Add to a log the error with which its run ended, and what to change, if that is known. The
    error replaces earlier notes, which are of a server that runs.
    """
    if failure.capacity:
        log.inputs.setdefault("card_total_bytes", failure.capacity.bytes)
    log.fits = False
    log.ran = False
    error = " ".join(failure.words.split())
    log.notes = [f"It ended in: {error[:MOST_QUOTED]}"]
    advice = table("logs")["advice"].get(failure.row)
    if advice:
        log.notes.append(advice)


def _value(text: str, row: dict[str, Any]) -> float | str | list[int]:
    """The value in the text of a row's last group: a list of sizes, a size in the row's unit, a
    flag, a number, or the text itself.
    """
    if row.get("unit") == "sizes":
        sizes = re.findall(r"\d+(?:\.\d+)? [KMGT]iB", text)
        return list(map(printed_size, sizes))
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
