"""What tools print beside an error: their tables, read by the words of their heads, and the rest of
a text without them.

One reader for tables in boxes, in columns of blanks and in CSV. printed.json says what the head of
a column means, and which lines are a tool's although no head stands over them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from re import Pattern
from typing import NamedTuple

from helpers.ground.tables import data
from helpers.ground.units import Quantity, quantity
from helpers.look.squeezed_messages import blanked

MOST_LINES = 256
MISSES = 3
"""Lines that are no row, such as a rule or a second line of the head, before a table has ended."""
LEAST_HEADS = 4
"""Known heads that make a list of processes of a line which names no size."""
OF_PS = {"parent", "state"}
_BORDERS = str.maketrans("|│║┃", "    ")
_OF_A_BOX = re.compile(r"[\s=+|│║╒╞├╘╕╡┤╛╪╧╤─═-]*|\s*\|.*\|\s*")
_UNIT_APART = re.compile(
    r"(?<=\d) +(?=(?:[KMGT]?i?B|%|[mu]s|W|MHz|°C|[MG]b/s)(?![\w%/]))"
)
_CLIENT = re.compile(r"(\d) +(?:C\+G|M\+C|C|G)(?= )")
_HEAD = re.compile(r"(.*?)(?: ?[\[(]([KMGT]?i?B|bytes)[\])])?$")
_QUERY = re.compile(r".*--query-\S{1,40}?=(\S+).*")
_PS = re.compile(r"(?:^ *|[$#>;&|`(] *|sudo +)ps +(?P<options>[^|;\n`]{1,120})")
_PS_COLUMNS = re.compile(r"(?:(?<!\S)-?\w*o|--format)[ =]{0,2}['\"]?([\w%,:=]+)")
_PROMPT = r"(?:[^\n#$%]{0,80}[#$%] ?|\Z)"
_UNANSWERED = re.compile(
    r"^(?P<prompt>[^\n#$]{0,80}[#$] ?(?:sudo )?)"
    r"(?P<command>(?:fuser|lsof|ls) [^\n]*?(?:/dev/(?:kfd|dri|nvidia)|/sys/class/kfd/kfd/proc)[^\n]*)"
    rf"\n(?=\s*{_PROMPT})",
    re.MULTILINE,
)
_CONTAINER = re.compile(r"@[0-9a-f]{12}\b|\(container\)")
_DATE = re.compile(
    r"\b([A-Z][a-z]{2}) ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\b"
)
_STATE = re.compile(r"(?:[DIRSTtWXZ][<NLsl+]{0,5})?")
_SIZE = re.compile(
    r"(\d{1,20}(?:\.\d{1,9}(?!\d|B))?)(?:\.0B)?([KMGT]?i?B?|bytes)|N/A|UNKNOWN|\[[^\]]{1,40}\]",
    re.I,
)


class PrintedColumn(NamedTuple):
    """What a column means: pid, device, kind, name, or what of which pool a size is; the pool
    ``row`` where the label of the row says it. Then the unit of a bare number, the tool, and where
    it can be read.
    """

    means: str
    pool: str = ""
    unit: str = ""
    tool: str = ""
    source: str = ""


UNKNOWN = PrintedColumn("")


@dataclass(frozen=True)
class PrintedLine:
    """A line that a tool printed: the head of a table where it names the ``tool``, else a row.

    ``sizes`` are (what, pool, quantity; None: not measured). ``pid`` is None where the table lists
    no processes; ``parent`` and ``state`` are what ps says of it. ``when`` counts the tables under
    the same head before this one: the tool was asked again.
    """

    start: int = 0
    end: int = 0
    tool: str = ""
    name: str = ""
    device: str = ""
    pid: int | None = None
    parent: int | None = None
    state: str = ""
    sizes: tuple[tuple[str, str, Quantity | None], ...] = ()
    when: int = 0


def printed_lines(text: str) -> tuple[PrintedLine, ...]:
    """The heads and rows of every table in a text whose head is known, at most 256. Never raises."""
    return tuple(_lines_of_tables(text))[:MOST_LINES]


@lru_cache(8)
def split_printed(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A text without what tools printed into it, and that as (tool, output) pairs.

    The text keeps its length and its line breaks. What one tool printed more than once is one
    output.
    """
    lines = [*_lines_of_tools(text), *_lines_of_tables(text)]
    outputs: list[PrintedLine] = []
    for line in sorted(lines, key=lambda line: line.start):
        output = line
        if outputs and _are_of_a_box(text[outputs[-1].end : line.start]):
            output = outputs.pop()
        outputs.append(replace(output, end=max(output.end, line.end)))
    printed: dict[str, str] = {}
    for output in outputs:
        words = text[output.start : output.end]
        printed[output.tool] = printed.get(output.tool, "") + words + "\n"
    return without(text, outputs), tuple(printed.items())


def unanswered(text: str) -> tuple[str, ...]:
    """The commands in a copied shell that ask who has a GPU open, and were answered with nothing.

    Only root sees everybody's open files, and a container only its own; the kernel's list of
    compute processes is the same for all.
    """
    commands = []
    for match in _UNANSWERED.finditer(text):
        by_root = match["prompt"].rstrip().endswith(("#", "sudo"))
        sees_all = by_root and not _CONTAINER.search(match["prompt"])
        if sees_all or "/kfd/proc" in match["command"]:
            commands.append(match["command"].strip())
    return tuple(commands)


def without(text: str, lines: Iterable[PrintedLine]) -> str:
    """The text with blanks in place of lines, in their order."""
    spans = [(line.start, line.end) for line in lines]
    return blanked(text, spans)


def _are_of_a_box(between: str) -> bool:
    return all(map(_OF_A_BOX.fullmatch, between.splitlines()))


def _lines_of_tools(text: str) -> Iterator[PrintedLine]:
    """The lines that are a tool's by their form."""
    for row in data("look/printed")["lines"]:
        for match in re.finditer(rf"^[ \t>]*{row['form']}", text, re.MULTILINE):
            yield PrintedLine(*match.span(), tool=row["tool"])


def _lines_of_tables(text: str) -> Iterator[PrintedLine]:
    """The heads of tables and their rows, in the order of the text."""
    columns: tuple[PrintedColumn, ...] = ()
    is_csv = False
    misses = 0
    prints: Counter[tuple[PrintedColumn, ...]] = Counter()
    for match in re.finditer(r".*\S.*", text):
        line = _DATE.sub(r"\1-\2-\3-\4-\5", _UNIT_APART.sub("", match[0][:400]))
        head = _head(line) or _head_of_ps(line)
        printed = None
        if head:
            columns = head
            is_csv = "," in line and not _PS.search(line)
            prints[columns] += 1
            tool = next((column.tool for column in columns if column.tool), "a table")
            pools = tuple((column.means, column.pool, None) for column in columns)
            printed = PrintedLine(tool=tool, sizes=pools)
        elif columns:
            printed = _row(line, columns, is_csv)
        misses += 1
        if printed:
            misses = 0
            yield replace(
                printed, start=match.start(), end=match.end(), when=prints[columns] - 1
            )
        elif misses > MISSES:
            columns = ()


@lru_cache(1)
def _columns() -> dict[str, PrintedColumn]:
    """What each known head means."""
    return {
        head: PrintedColumn(*row) for head, row in data("look/printed")["heads"].items()
    }


@lru_cache(1)
def _anchors() -> Pattern[str]:
    """The heads that name a size or a process: one of them stands over every table."""
    words = [
        head for head, column in _columns().items() if column.pool or head == "PID"
    ]
    return re.compile("|".join(map(re.escape, words)))


@lru_cache(1)
def _heads() -> Pattern[str]:
    """A known head, the longest first, or a word."""
    heads = sorted(_columns(), key=len, reverse=True)
    return re.compile(rf"(?<!\S)(?:{'|'.join(map(re.escape, heads))})(?!\S)|\S+")


def _head(line: str) -> tuple[PrintedColumn, ...]:
    """The columns of a line that is the head of a table: it names a size and whose it is, or a
    process and much of it, and most of its words are known.
    """
    if not _anchors().search(line):
        return ()
    line = _QUERY.sub(r"\1", line)
    heads = _heads().findall(line.translate(_BORDERS))
    if "," in line:
        heads = [head.strip() for head in line.split(",")]
    columns = tuple(map(_column, heads))
    known_columns = [column for column in columns if column is not UNKNOWN]
    meanings = {column.means or column.pool for column in known_columns} - {""}
    has_size = any(column.pool for column in known_columns)
    is_list = "pid" in meanings and (
        len(known_columns) >= LEAST_HEADS or bool(meanings & OF_PS)
    )
    if "," not in line and 2 * len(known_columns) < len(heads):
        return ()
    if is_list or (has_size and len(meanings) >= 2):
        return columns
    return ()


def _head_of_ps(line: str) -> tuple[PrintedColumn, ...]:
    """The columns that a command line asks of ps, whose rows often come through grep without a
    head.
    """
    command = _PS.search(line)
    if command is None:
        return ()
    options = command["options"]
    asked_for = ",".join(_PS_COLUMNS.findall(options))
    of_ps = data("look/printed")["ps"]
    if asked_for:
        words = [re.split("[:=]", word)[0] for word in asked_for.split(",")]
        heads = [of_ps["heads"].get(word, word.upper()) for word in words]
    else:
        forms = (
            row["columns"] for row in of_ps["options"] if re.match(row["form"], options)
        )
        heads = next(forms, "").split()
    if "PID" not in heads:
        return ()
    return tuple(map(_column, heads))


def _column(head: str) -> PrintedColumn:
    words, unit = _HEAD.findall(head)[0]
    column = _columns().get(words, UNKNOWN)
    if unit:
        return column._replace(unit=unit)
    return column


def _row(
    line: str, columns: tuple[PrintedColumn, ...], is_csv: bool
) -> PrintedLine | None:
    """A line as a row of the table; None where a cell is not what its column holds."""
    values: dict[str, str] = {}
    sizes = []
    cells = _cells(line, columns, is_csv)
    for column, cell in zip(columns, cells):  # noqa: B905 - Python 3.8
        values.setdefault(column.means, cell)
        if not column.pool:
            continue
        size = _SIZE.fullmatch(cell)
        if size is None:
            return None
        means = (column.means, column.pool)
        if column.pool == "row":
            means = data("look/printed")["labels"].get(values.get("name"), means)
        measured = None
        if size[1]:
            measured = quantity(size[1], size[2] or column.unit)
        sizes.append((*means, measured))
    pid = values.get("pid", "0")
    parent = values.get("parent", "0")
    if not values or not re.fullmatch(r"\d{1,10} \d{1,10}", f"{pid} {parent}"):
        return None
    state = values.get("state", "")
    if not _STATE.fullmatch(state):
        return None
    return PrintedLine(
        name=values.get("name", ""),
        device=re.sub(r"\D", "", values.get("device", "")),
        pid=int(pid) if "pid" in values else None,
        parent=int(parent) if "parent" in values else None,
        state=state,
        sizes=tuple(sizes),
    )


def _cells(line: str, columns: tuple[PrintedColumn, ...], is_csv: bool) -> list[str]:
    """The cells of a line, one for each column; none where it has not so many."""
    meanings = [column.means for column in columns]
    if is_csv:
        separator = ", "
        cells = [cell.strip() for cell in line.translate(_BORDERS).split(",")]
    else:
        separator = " "
        if "kind" not in meanings:
            line = _CLIENT.sub(r"\1", line)
        cells = line.translate(_BORDERS).split()
    if "name" in meanings:
        # A name may hold blanks and commas, every other cell is one word; of two names the last.
        first = len(meanings) - 1 - meanings[::-1].index("name")
        last = len(cells) - (len(columns) - first - 1)
        if first <= last:
            cells[first:last] = [separator.join(cells[first:last])]
    if len(cells) != len(columns):
        return []
    return cells
