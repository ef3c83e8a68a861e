"""Figures of memory: every "name: number unit" that a tool, a log or a fact of a box states.

The names are data (figures.json): the form of each line is that of the program that prints it. Case
does not matter and a blank stands for any white space. ``{total}`` is a size (also ``used free limit
wanted reserved``), ``{free@ram}`` one of another pool than the row's, ``{device}`` an index;
``{gap}`` up to 24 characters without a digit, ``{_}`` the punctuation between a key and its value,
``{..40}`` up to 40 characters of the line, ``{...}`` up to 160 of any; ``<a|b>`` alternatives,
``<?x>`` optional; a leading ``*`` lets the first word be the end of a longer one. Sizes that a tool
prints with KB, MB or GB are binary. A number belongs to the first row that takes it.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from helpers.grammar import lazy
from helpers.look.bundle import Text

LONGEST, MOST, MOST_OF_ALL = 60_000, 64, 400
PAGE = 4096
NOT_MEASURED_BYTES = 1 << 62
"""NVML's 2**64 - 1 for "not available", printed as 17179869184.00 GiB, and what a negative number wraps to."""
_POWERS = {"k": 10, "m": 20, "g": 30, "t": 40}
HALF = "half of the RAM"
"""The text of a figure that was given in words; its bytes are None where the RAM is not known."""
WHAT = ("total", "used", "free", "limit", "wanted", "reserved")


@dataclass(frozen=True)
class Figure:
    """One size that one source states. ``bytes`` is None where the tool printed that it did not measure (N/A).

    ``what`` is one of WHAT. ``pool``: vram visible-vram gtt ttm kfd hsa runtime runtime-sum (HIP or CUDA) carveout stated
    vulkan opencl process weights ram ram-installed hostfree available swap commit cgroup. The true size lies within
    ``precision_bytes``: half of the last printed digit. ``origin``: tool, message, environment, bundle or narrative;
    ``when``: boot, start or now; ``hearsay``: described in words, a screenshot, or a narrative; ``filled``: no machine ever
    printed it. Figures of one printed line have the same ``line``, its place in the text.
    """

    what: str
    pool: str
    device: str
    bytes: int | None
    precision_bytes: int
    source: str
    origin: str
    when: str = "now"
    text: str = ""
    row: str = ""
    hearsay: bool = False
    filled: bool = False
    line: int = -1

    @property
    def read(self) -> bool:
        """Whether a machine printed it and nobody retold it."""
        return not (self.hearsay or self.filled)


_NUMBER = (
    r"[\[\"'(]{0,3}(?P<@w>(?P<@>-?\d{1,20}(?:,\d{3}){0,6}(?:\.\d{1,9})?) ?"
    r"(?P<@u>[kmgt](?:i?b(?:ytes?)?|i)?|bytes?|b|pages)?(?![\w%]|\.\d)"
    r"|half(?: of)?(?: the| all| total| system){0,2} (?:ram|memory)\b|\[?n/a\]?|not supported)[\]\"']{0,2}"
)
_PIECE = lazy(r"\\(.)|\{([^{}]{1,24})\}|<(\??)([^<>]{1,160})>|( +)|([^\\{}<> ]+)")
_GAPS = {
    "...": r"[\s\S]{0,160}?",
    "gap": r"[^\d\n]{0,24}?",
    "_": r"[\s\"':,={\[>-]{0,60}",
    "word": r"\"?[\w:./-]{1,40}\"?",
    "device": r"(?P<device>\d{1,3})",
    "pid": r"\b\d{1,9}\b",
    "share": r"[\d.]{1,12}",
    "other": r"\d[\w.]{0,20}",
}


@dataclass(frozen=True)
class _Row:
    """A row of figures.json: ``fields`` are (group, what, pool), ``guard`` words (of each group one) that follow each other."""

    id: str
    source: str
    fields: tuple[tuple[str, str, str], ...]
    guard: tuple[tuple[str, ...], ...]
    unit: str
    of: tuple[str, ...]
    each: bool
    when: str
    column: str
    hearsay: bool

    @property
    def pattern(self) -> re.Pattern[str]:
        """The form's pattern, compiled when a text first has the guard."""
        return _pattern(self.source)

    def among(self, low: str) -> bool:
        """Whether a text in lower case can hold the form at all: its words stand there in their order."""
        at = 0
        for words in self.guard:
            found = [(low.find(word, at), len(word)) for word in words]
            at = min((start + length for start, length in found if start >= 0), default=-1)
            if at < 0:
                return False
        return True


@lru_cache(1024)
def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(source, re.IGNORECASE)


@lru_cache(maxsize=1)
def rows() -> tuple[dict[str, Any], ...]:
    """The table as it is written: id, form, pool, unit, example, reads, source."""
    return tuple(json.loads(pkgutil.get_data("helpers", "figures.json") or b"[]"))


@lru_cache(maxsize=1)
def _rows() -> tuple[_Row, ...]:
    return tuple(_compiled(row) for row in rows())


def _compiled(row: dict[str, Any]) -> _Row:
    fields: list[tuple[str, str, str]] = []
    form = row["form"]
    if row.get("column"):
        fields.append(("", row["what"], row["pool"]))
    source = _source(form.lstrip("*"), row["pool"], fields)
    if form[:1].isalnum():
        source = r"(?<![\w.-])" + source
    elif form[:1] == "{":
        source = r"(?<![\w.,-])" + source
    return _Row(
        row["id"],
        source if form else "",
        tuple(fields),
        ((row["column"].lower(),),) if row.get("column") else tuple(_guard(form.lstrip("*"))),
        row.get("unit", ""),
        tuple(word.lower() for word in row.get("of", ())),
        row.get("each", False),
        row.get("when", "now"),
        row.get("column", ""),
        row.get("hearsay", False),
    )


def _guard(form: str) -> Iterator[tuple[str, ...]]:
    """The plain words of a form in their order, and of each choice that must be made the longest word of each branch."""
    for _, _, optional, inner, _, plain in _PIECE.findall(form):
        if plain:
            yield (plain.lower(),)
        elif inner and not optional:
            parts = [[piece[5] for piece in _PIECE.findall(part)] for part in inner.split("|")]
            longest = [max(words, key=len, default="").lower() for words in parts]
            if all(longest):
                yield tuple(longest)


def _source(form: str, pool: str, fields: list[tuple[str, str, str]]) -> str:
    out = []
    for escaped, name, optional, inner, blank, plain in _PIECE.findall(form):
        if name in _GAPS:
            out.append(_GAPS[name])
        elif name.startswith(".."):
            out.append(rf"[^\n]{{0,{int(name[2:])}}}?")
        elif name:
            what, _, other = name.partition("@")
            fields.append((f"f{len(fields)}", what, other or pool))
            out.append(_NUMBER.replace("@", fields[-1][0]))
        elif inner:
            options = "|".join(_source(part, pool, fields) for part in inner.split("|"))
            out.append(f"(?:{options}){optional}")
        else:
            out.append(r"\s{0,40}" if blank else re.escape(escaped or plain))
    return "".join(out)


_DESCRIBED = lazy(r"described|description|screenshot|in words|from memory|picture", re.I)
_ROUGHLY = lazy(r"(?:~|≈|about|roughly|around|some|approx\w{0,8}\.?|almost|nearly) ?$", re.I)


def figures_of(
    texts: Iterable[tuple[str, str, str]], page_bytes: int = PAGE, filled: bool = False
) -> tuple[Figure, ...]:
    """Every figure of (origin, source, text) triples. A tool's name is the source, and may itself be the figure's name.

    Never raises; a text of any size costs linear time, and at most its first 60,000 characters are read.
    """
    found: list[Figure] = []
    for origin, source, text in texts:
        found += _of_text(origin, source, text[:LONGEST], page_bytes)
        if len(found) > MOST_OF_ALL:
            break
    ram = next((f.bytes for f in found if f.pool in ("ram", "ram-installed") and f.bytes), None)
    known = []
    for figure in found[:MOST_OF_ALL]:
        if figure.precision_bytes == -1:  # half of the RAM, in words
            precision = ram // 50 if ram else 0
            half = ram // 2 if ram else None
            figure = replace(figure, bytes=half, precision_bytes=precision, hearsay=True)
        known.append(replace(figure, filled=filled) if filled else figure)
    return tuple(known)


def _of_text(origin: str, source: str, text: str, page: int) -> Iterator[Figure]:
    body = f"{source}: {text}"
    low, name = body.lower(), source.lower()
    taken: set[int] = set()
    agents = _agents(origin, source, text)
    yield from agents
    for row in _rows():
        if not row.among(low) or (row.of and not _among(row.of, name)):
            continue
        if row.column:
            yield from _columns(row, origin, source, text, page)
        if not row.source or (agents and row.id == "rocminfo-pool"):
            continue
        for ordinal, match in enumerate(row.pattern.finditer(body)):
            if ordinal == MOST:
                break
            device = match.groupdict().get("device") or (str(ordinal) if row.each else "")
            spans = [(group, match.start(group)) for group, _, _ in row.fields]
            if any(at in taken for _, at in spans if at >= 0):
                continue
            given = [field for field in row.fields if match.group(field[0] + "w") is not None]
            read = [_figure(row, match, field, (origin, source, device), page) for field in given]
            if all(figure is not None for figure in read):
                taken.update(at for _, at in spans)
                told = row.hearsay or _hearsay(origin, source, body, match)
                line = match.start()
                yield from (
                    replace(f, hearsay=told, line=line) for f in read if f and f.what in WHAT
                )


def _among(of: tuple[str, ...], name: str) -> bool:
    """Whether a source's name is one that the row is for: a word of it, or with ``=`` the whole name."""
    return any(name == word[1:] if word[:1] == "=" else word in name for word in of)


def _hearsay(origin: str, source: str, body: str, match: re.Match[str]) -> bool:
    start, end = body.rfind("\n", 0, match.start()) + 1, body.find("\n", match.end())
    line = body[max(start, match.start() - 200) : (end if end >= 0 else len(body))][:500]
    return origin == "narrative" or bool(_DESCRIBED.search(source) or _DESCRIBED.search(line))


def _figure(
    row: _Row,
    match: re.Match[str],
    field: tuple[str, str, str],
    place: tuple[str, str, str],
    page: int,
) -> Figure | None:
    group, what, pool = field
    origin, source, device = place
    number = match.group(group)
    if number is None:
        is_half = bool(re.search(r"half", match.group(), re.I))
        text = HALF if is_half else "N/A"
        return Figure(
            what, pool, device, None, -1 if is_half else 0, source, origin, row.when, text, row.id
        )
    unit = match.group(group + "u") or ""
    got = size(number, unit, row.unit, page)
    if got is None or (
        (pool == "stated" or source == "gpu") and "b" not in unit.lower()
    ):  # 890M is a name
        return None
    rough = bool(
        _ROUGHLY.search(match.string[max(0, match.start(group) - 12) : match.start(group)])
    )
    precision = max(got[1], got[0] // 20) if rough else got[1]
    text = f"{number} {match.group(group + 'u') or row.unit}"
    return Figure(what, pool, device, got[0], precision, source, origin, row.when, text, row.id)


def size(number: str, unit: str, default: str = "", page: int = PAGE) -> tuple[int, int] | None:
    """(bytes, half of the last printed digit) of a printed size; None where no unit is known. KB, MB, GB are binary.

    A number of more than nine digits with a default of MiB or more was bytes: a person left the unit out.
    """
    unit = (unit or default).lower()
    digits = number.replace(",", "")
    if unit == "pages":
        scale = page
    elif unit in ("b", "byte", "bytes"):
        scale = 1
    elif unit[:1] in _POWERS:
        scale = 1 << _POWERS[unit[0]]
    else:
        return None
    decimals = len(digits.partition(".")[2])
    value = int(float(digits) * scale) if decimals else int(digits) * scale
    exact = scale == 1 or unit == "pages"
    return value, 0 if exact else scale // (2 * 10**decimals) + 1


def _agents(origin: str, source: str, text: str) -> list[Figure]:
    """The pools of rocminfo's GPU agents: the CPU's pools have the same form."""
    if origin == "narrative" or "Agent" not in text or "Pool" not in text:
        return []
    found: list[Figure] = []
    from helpers.look import rocminfo

    for agent in rocminfo.parse_agents(Text(text, "ok", "", source, "")):
        if agent.kind == "gpu" and agent.memory.ok:
            value = int(agent.memory.value or 0)
            found.append(Figure("total", "hsa", str(len(found)), value, 512, source, origin))
    return found


def _columns(row: _Row, origin: str, source: str, text: str, page: int) -> Iterator[Figure]:
    """A CSV table: the column whose head begins with the row's name; each line is a device."""
    lines = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()[: 4 * MOST]]
    _, what, pool = row.fields[0]
    at, width = -1, 0
    for ordinal, cells in enumerate(lines):
        if at < 0:
            at = next(
                (n for n, c in enumerate(cells) if c.lower().startswith(row.column.lower())), -1
            )
            start, width = ordinal + 1, len(cells)
            at = at if width > 1 else -1
            continue
        match = (
            re.fullmatch(r"(\d{1,20}(?:\.\d{1,9})?) ?([A-Za-z]{0,5})|\[?N/A\]?", cells[at])
            if len(cells) == width
            else None
        )
        if match is None:
            return
        got = size(match[1], match[2], row.unit, page) if match[1] else (None, 0)
        if got is not None:
            device = str(ordinal - start)
            yield Figure(
                what, pool, device, got[0], got[1], source, origin, row.when, cells[at], row.id
            )


def beside(figure: Figure, figures: Iterable[Figure], what: str) -> list[Figure]:
    """Figures of the same source, pool and device: of the same line, or where each is one size only."""
    place = (figure.source, figure.pool, figure.device)
    same = [f for f in figures if (f.source, f.pool, f.device) == place and f.bytes is not None]
    wanted = [f for f in same if f.what == what]
    lined = [f for f in wanted if f.line == figure.line]
    sizes = {f.bytes for f in same if f.what == figure.what}
    once = len(sizes) == 1 and len({f.bytes for f in wanted}) == 1
    return lined or (wanted if once else [])


def lone_free(figures: Iterable[Figure]) -> list[Figure]:
    """What a runtime calls free in sources that give no total of their own, so that another's total is its total."""
    known = [f for f in figures if f.pool == "runtime"]
    whole = {f.source for f in known if f.what == "total"}
    return [f for f in known if f.what == "free" and f.bytes is not None and f.source not in whole]


def figures_of_message(message: object, source: str = "error text") -> tuple[Figure, ...]:
    """The runtime's figures of an out-of-memory message: any object with Quantities named capacity, free and process."""
    found: list[Figure] = []
    device = getattr(message, "device", None)
    places = (
        ("capacity", "total", "runtime"),
        ("free", "free", "runtime"),
        ("process", "used", "process"),
    )
    for field, what, pool in places:
        size = getattr(message, field, None)
        if size is not None:
            where = "" if device is None else str(device)
            printed = (size.bytes, size.precision_bytes, source, "message", "now", size.text)
            found.append(Figure(what, pool, where, *printed, row="message"))
    return tuple(found)
