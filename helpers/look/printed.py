"""Reads the tables that tools print, by the words of their heads, and gives the rest of a text
without them: people paste both with an error.

It is one reader for tables in boxes, in columns of blanks and in CSV. printed.json has the meanings
of the heads of columns, and the lines of tools that need no head.
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
"""Lines of tables that are read of one text."""
LONGEST_LINE = 400
"""Letters of a line that are read."""
MISSES = 3
"""Lines that are no row, such as a rule or a second line of the head, before a table has ended."""
LEAST_HEADS = 4
"""Known heads by which a line without a size is the head of a list of processes."""
OF_PS = {"parent", "state"}
"""Meanings that only the heads of ps have, of which one is enough."""
_BORDERS = str.maketrans("|│║┃", "    ")
_OF_A_BOX = re.compile(r"[\s=+|│║╒╞├╘╕╡┤╛╪╧╤─═-]*|\s*\|.*\|\s*")
# The blank in "512 MiB", which would make two cells of one.
_UNIT_APART = re.compile(
    r"(?<=\d) +(?=(?:[KMGT]?i?B|%|[mu]s|W|MHz|°C|[MG]b/s)(?![\w%/]))"
)
# The type of a process in nvidia-smi, behind its number.
_CLIENT = re.compile(r"(\d) +(?:C\+G|M\+C|C|G)(?= )")
# A head and its unit, as in "memory.used [MiB]".
_HEAD = re.compile(r"(.*?)(?: ?[\[(]([KMGT]?i?B|bytes)[\])])?$")
# A command line of nvidia-smi, whose columns may stand for the head of its answer.
_QUERY = re.compile(r".*--query-\S{1,40}?=(\S+).*")
# A command line of ps, at the start of a line or behind a prompt, another command or sudo.
_PS = re.compile(r"(?:^ *|[$#>;&|`(] *|sudo +)ps +(?P<options>[^|;\n`]{1,120})")
# The columns that its options name: -o pid,ppid or --format=pid,ppid.
_PS_COLUMNS = re.compile(r"(?:(?<!\S)-?\w*o|--format)[ =]{0,2}['\"]?([\w%,:=]+)")
_PROMPT = r"(?:[^\n#$%]{0,80}[#$%] ?|\Z)"
# A command about who has a GPU open, below which the next prompt or the end of the text comes.
_UNANSWERED = re.compile(
    r"^(?P<prompt>[^\n#$]{0,80}[#$] ?(?:sudo )?)"
    r"(?P<command>(?:fuser|lsof|ls) [^\n]*?(?:/dev/(?:kfd|dri|nvidia)|/sys/class/kfd/kfd/proc)[^\n]*)"
    rf"\n(?=\s*{_PROMPT})",
    re.MULTILINE,
)
# The host name of a Docker container is the start of its id.
_CONTAINER = re.compile(r"@[0-9a-f]{12}\b|\(container\)")
# "Mon Nov 30 13:30:33 2026" of ps -o lstart, five words in one column.
_DATE = re.compile(
    r"\b([A-Z][a-z]{2}) ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\b"
)
# PROCESS STATE CODES of ps(1), or nothing.
_STATE = re.compile(r"(?:[DIRSTtWXZ][<NLsl+]{0,5})?")
# Groups: the number, its unit; both None for the words for "not measured".
_SIZE = re.compile(
    r"(\d{1,20}(?:\.\d{1,9}(?!\d|B))?)(?:\.0B)?([KMGT]?i?B?|bytes)|N/A|UNKNOWN|\[[^\]]{1,40}\]",
    re.I,
)


class PrintedColumn(NamedTuple):
    """What a column means: pid, device, kind, name, parent, state, or the measure of a size (total,
    used, ...) in a pool of memory. The pool ``row`` means that the label of the row says both.
    ``unit`` is that of a number without one, ``tool`` the one that prints the head, ``source``
    where that can be read.
    """

    means: str
    pool: str = ""
    unit: str = ""
    tool: str = ""
    source: str = ""


UNKNOWN = PrintedColumn("")


@dataclass(frozen=True)
class PrintedLine:
    """A line that a tool printed, from ``start`` to ``end`` in the text: the head of a table if it
    has a ``tool``, else a row.

    ``sizes`` are (measure, pool, quantity), with None for a quantity that was not measured. ``pid``
    is None if the table lists no processes; ``parent`` and ``state`` are those of ps. ``when`` is
    how many tables with the same head came before: the tool was asked again.
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
    """The heads and rows of the tables in a text whose heads are known, at most MOST_LINES. Never
    raises.
    """
    return tuple(_lines_of_tables(text))[:MOST_LINES]


@lru_cache(8)
def split_printed(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A text with blanks in place of what tools printed into it, and (tool, output) for each of
    these tools. All outputs of one tool are joined.
    """
    lines = [*_lines_of_tools(text), *_lines_of_tables(text)]
    # A line goes on with the output before it if there are only borders of a table between them.
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
    """The commands in a copied shell that ask which processes have a GPU open, and printed nothing.

    Only those that would have seen every process: root outside a container sees all open files,
    and everybody sees the kernel's list of compute processes.
    """
    commands = []
    for match in _UNANSWERED.finditer(text):
        by_root = match["prompt"].rstrip().endswith(("#", "sudo"))
        sees_all = by_root and not _CONTAINER.search(match["prompt"])
        if sees_all or "/kfd/proc" in match["command"]:
            commands.append(match["command"].strip())
    return tuple(commands)


def without(text: str, lines: Iterable[PrintedLine]) -> str:
    """The text with blanks in place of lines, which are given in their order."""
    spans = [(line.start, line.end) for line in lines]
    return blanked(text, spans)


def _are_of_a_box(between: str) -> bool:
    """Whether lines are empty, borders, or other lines within the borders of a box."""
    return all(map(_OF_A_BOX.fullmatch, between.splitlines()))


def _lines_of_tools(text: str) -> Iterator[PrintedLine]:
    """The lines that are a tool's by their form."""
    for row in data("look/printed")["lines"]:
        for match in re.finditer(rf"^[ \t>]*{row['form']}", text, re.MULTILINE):
            yield PrintedLine(*match.span(), tool=row["tool"])


def _lines_of_tables(text: str) -> Iterator[PrintedLine]:
    """The heads of tables and their rows, in the order of the text. ``columns`` are those of the
    table that is open.
    """
    columns: tuple[PrintedColumn, ...] = ()
    is_csv = False
    misses = 0
    prints: Counter[tuple[PrintedColumn, ...]] = Counter()
    for match in re.finditer(r".*\S.*", text):
        line = _UNIT_APART.sub("", match[0][:LONGEST_LINE])
        line = _DATE.sub(r"\1-\2-\3-\4-\5", line)
        head = _head(line)
        if not head:
            head = _head_of_ps(line)
        printed = None
        if head:
            columns = head
            is_csv = "," in line and not _PS.search(line)
            prints[columns] += 1
            tools = [column.tool for column in columns if column.tool]
            pools = tuple((column.means, column.pool, None) for column in columns)
            printed = PrintedLine(tool=next(iter(tools), "a table"), sizes=pools)
        elif columns:
            printed = _row(line, columns, is_csv)
        # Before the first head no table is open, so misses mean nothing there.
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
    """The column of each known head."""
    heads = data("look/printed")["heads"]
    return {head: PrintedColumn(*row) for head, row in heads.items()}


@lru_cache(1)
def _anchors() -> Pattern[str]:
    """The heads that name a size or a process: every table has one of them."""
    columns = _columns().items()
    words = [head for head, column in columns if column.pool or head == "PID"]
    return re.compile("|".join(map(re.escape, words)))


@lru_cache(1)
def _heads() -> Pattern[str]:
    """A known head, which may have blanks, or any other word; of two heads the longer first, since
    the first alternative that fits is taken.
    """
    heads = sorted(_columns(), key=len, reverse=True)
    any_head = "|".join(map(re.escape, heads))
    return re.compile(rf"(?<!\S)(?:{any_head})(?!\S)|\S+")


def _head(line: str) -> tuple[PrintedColumn, ...]:
    """The columns of a line if it is the head of a table, else none.

    It is one if it names a size and something else, or a process with LEAST_HEADS columns in all or
    one that only ps has. In columns of blanks half of the words must be known.
    """
    if not _anchors().search(line):
        return ()
    line = _QUERY.sub(r"\1", line)
    is_csv = "," in line
    heads = _heads().findall(line.translate(_BORDERS))
    if is_csv:
        heads = [head.strip() for head in line.split(",")]
    columns = tuple(map(_column, heads))
    known_columns = [column for column in columns if column is not UNKNOWN]
    meanings = {column.means for column in known_columns}
    meanings.update(column.pool for column in known_columns if not column.means)
    meanings.discard("")
    if not is_csv and 2 * len(known_columns) < len(heads):
        return ()
    has_size = any(column.pool for column in known_columns)
    has_many = len(known_columns) >= LEAST_HEADS
    is_list = "pid" in meanings and (has_many or not meanings.isdisjoint(OF_PS))
    if is_list or (has_size and len(meanings) >= 2):
        return columns
    return ()


def _head_of_ps(line: str) -> tuple[PrintedColumn, ...]:
    """The columns that a command line asks of ps: people pipe its rows through grep, which takes
    the head away. None for another line, and without a column of process numbers.
    """
    command = _PS.search(line)
    if command is None:
        return ()
    heads = _heads_of_ps(command["options"])
    if "PID" not in heads:
        return ()
    return tuple(map(_column, heads))


def _heads_of_ps(options: str) -> list[str]:
    """The heads that ps prints with these options: those of the columns that they name (pid:10=ID
    names pid), or of a form of output such as aux.
    """
    of_ps = data("look/printed")["ps"]
    named = ",".join(_PS_COLUMNS.findall(options))
    if named:
        columns = [re.split("[:=]", word)[0] for word in named.split(",")]
        return [of_ps["heads"].get(column, column.upper()) for column in columns]
    for row in of_ps["options"]:
        if re.match(row["form"], options):
            return list(row["columns"].split())
    return []


def _column(head: str) -> PrintedColumn:
    """The column with that head, which may name its unit."""
    words, unit = _HEAD.findall(head)[0]
    column = _columns().get(words, UNKNOWN)
    if unit:
        return column._replace(unit=unit)
    return column


def _row(
    line: str, columns: tuple[PrintedColumn, ...], is_csv: bool
) -> PrintedLine | None:
    """A line as a row of the table; None if a cell does not fit its column."""
    values: dict[str, str] = {}
    sizes = []
    cells = _cells(line, columns, is_csv)
    for column, cell in zip(columns, cells):  # noqa: B905 - Python 3.8
        values.setdefault(column.means, cell)
        if not column.pool:
            continue
        size = _SIZE.fullmatch(cell)
        if size is None:  # text below the table, which happens to have as many words
            return None
        measure_and_pool = (column.means, column.pool)
        if column.pool == "row":
            labels = data("look/printed")["labels"]
            measure_and_pool = labels.get(values.get("name"), measure_and_pool)
        measured = None
        if size[1]:
            unit = size[2]
            if not unit:
                unit = column.unit
            measured = quantity(size[1], unit)
        sizes.append((*measure_and_pool, measured))
    state = values.get("state", "")
    numbers = [values[key] for key in ("pid", "parent") if key in values]
    has_numbers = all(re.fullmatch(r"\d{1,10}", number) for number in numbers)
    if not values or not has_numbers or not _STATE.fullmatch(state):
        return None
    return PrintedLine(
        name=values.get("name", ""),
        device=re.sub(r"\D", "", values.get("device", "")),
        pid=_number(values.get("pid")),
        parent=_number(values.get("parent")),
        state=state,
        sizes=tuple(sizes),
    )


def _number(digits: str | None) -> int | None:
    if digits is None:
        return None
    return int(digits)


def _cells(line: str, columns: tuple[PrintedColumn, ...], is_csv: bool) -> list[str]:
    """The cells of a line, one for each column; empty if their number is another one."""
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
        # A name may have blanks and commas; every other cell is one word. So the name, of two the
        # last one, is everything before the cells of the columns behind it.
        columns_behind = meanings[::-1].index("name")
        first = len(meanings) - 1 - columns_behind
        end = len(cells) - columns_behind
        if first <= end:
            cells[first:end] = [separator.join(cells[first:end])]
    if len(cells) != len(columns):
        return []
    return cells
