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

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from helpers.grammar import data, lazy
from helpers.look.bundle import Text
from helpers.units import NOT_MEASURED_BYTES as NOT_MEASURED_BYTES
from helpers.units import quantity

LONGEST, MOST, MOST_OF_ALL = 60_000, 64, 400
PAGE = 4096
HALF = "half of the RAM"
"""The text of a figure that was given in words; its bytes are None where the RAM is not known."""
WHAT = ("total", "used", "free", "limit", "wanted", "reserved")


@dataclass(frozen=True)
class Figure:
    """One size that one source states. ``bytes`` is None where the tool printed that it did not measure (N/A).

    ``what`` is one of WHAT. ``pool``: vram visible-vram gtt ttm kfd hsa runtime runtime-sum (HIP or CUDA) carveout stated
    vulkan opencl process weights ram ram-installed hostfree available swap commit cgroup. The true size lies within
    ``precision_bytes``: half of the last printed digit. ``origin``: tool, message, environment, bundle or narrative;
    ``when``: boot, start or now; ``hearsay``: described in words, a screenshot, or a narrative. Figures of one printed line
    have the same ``line``, its place in the text.
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
    line: int = -1


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


def rows() -> tuple[dict[str, Any], ...]:
    """The table as it is written: id, form, pool, unit, example, reads, source."""
    return tuple(data("figures"))


class _Row:
    """A row of figures.json: ``fields`` are (group, what, pool), ``guard`` words (of each group one) that follow each other."""

    def __init__(self, row: dict[str, Any]):
        self.id: str = row["id"]
        self.unit: str = row.get("unit", "")
        self.of = tuple(word.lower() for word in row.get("of", ()))
        self.each: bool = row.get("each", False)
        self.when: str = row.get("when", "now")
        self.column: str = row.get("column", "").lower()
        self.hearsay: bool = row.get("hearsay", False)
        form: str = row["form"]
        self.fields = [("", row["what"], row["pool"])] if self.column else []
        source = _source(form.lstrip("*"), row["pool"], self.fields)
        behind = (
            r"(?<![\w.-])" if form[:1].isalnum() else r"(?<![\w.,-])" if form[:1] == "{" else ""
        )
        self.pattern = lazy(behind + source, re.IGNORECASE) if form else None
        self.guard = [(self.column,)] if self.column else list(_guard(form.lstrip("*")))

    def among(self, low: str) -> bool:
        """Whether a text in lower case can hold the form at all: its words stand there in their order."""
        at = 0
        for words in self.guard:
            found = [(low.find(word, at), len(word)) for word in words]
            at = min((start + length for start, length in found if start >= 0), default=-1)
            if at < 0:
                return False
        return True

    def is_of(self, name: str) -> bool:
        """Whether a source's name is one that the row is for: a word of it, or with ``=`` the whole name."""
        words = ((word, word[:1] == "=") for word in self.of)
        return not self.of or any(name == w[1:] if whole else w in name for w, whole in words)


@lru_cache(maxsize=1)
def _rows() -> tuple[_Row, ...]:
    return tuple(map(_Row, rows()))


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
_CELL = lazy(r"(\d{1,20}(?:\.\d{1,9})?) ?([A-Za-z]{0,5})|\[?N/A\]?")
_ROUGHLY = lazy(r"(?:~|≈|about|roughly|around|some|approx\w{0,8}\.?|almost|nearly) ?$", re.I)


def figures_of(texts: Iterable[tuple[str, str, str]]) -> tuple[Figure, ...]:
    """Every figure of (origin, source, text) triples. A tool's name is the source, and may itself be the figure's name.

    Never raises; a text of any size costs linear time, and at most its first 60,000 characters are read.
    """
    found: list[Figure] = []
    for origin, source, text in texts:
        found += _of_text(origin, source, text[:LONGEST])
        if len(found) > MOST_OF_ALL:
            break
    ram = next((f.bytes for f in found if f.pool in ("ram", "ram-installed") and f.bytes), None)
    known = []
    for figure in found[:MOST_OF_ALL]:
        if figure.precision_bytes == -1:  # half of the RAM, in words
            precision = ram // 50 if ram else 0
            half = ram // 2 if ram else None
            figure = replace(figure, bytes=half, precision_bytes=precision, hearsay=True)
        known.append(figure)
    return tuple(known)


def _of_text(origin: str, source: str, text: str) -> Iterator[Figure]:
    body = f"{source}: {text}"
    low, name = body.lower(), source.lower()
    claims: set[int] = set()
    agents = _agents(origin, source, text)
    yield from agents
    for row in _rows():
        if not row.among(low) or not row.is_of(name):
            continue
        blank = Figure("", "", "", None, 0, source, origin, row.when, row=row.id)
        if row.column:
            yield from _columns(row, blank, text)
        if row.pattern is None or (agents and row.id == "rocminfo-pool"):
            continue
        for ordinal, match in enumerate(row.pattern.finditer(body)):
            if ordinal == MOST:
                break
            device = match.groupdict().get("device") or (str(ordinal) if row.each else "")
            places = {match.start(group) for group, _, _ in row.fields} - {-1}
            if claims & places:
                continue
            line = match.start()
            hearsay = row.hearsay or _hearsay(origin, source, body, match)
            blank = replace(blank, device=device, hearsay=hearsay, line=line)
            given = [field for field in row.fields if match.group(field[0] + "w") is not None]
            read = [_figure(row, match, field, blank) for field in given]
            if None not in read:
                claims |= places
                yield from (figure for figure in read if figure and figure.what in WHAT)


def _hearsay(origin: str, source: str, body: str, match: re.Match[str]) -> bool:
    start, end = body.rfind("\n", 0, match.start()) + 1, body.find("\n", match.end())
    line = body[max(start, match.start() - 200) : (end if end >= 0 else len(body))][:500]
    return origin == "narrative" or bool(_DESCRIBED.search(source) or _DESCRIBED.search(line))


def _figure(
    row: _Row, match: re.Match[str], field: tuple[str, str, str], blank: Figure
) -> Figure | None:
    group, what, pool = field
    number, unit = match.group(group), match.group(group + "u") or ""
    blank = replace(blank, what=what, pool=pool)
    if number is None:
        half = bool(re.search(r"half", match.group(), re.I))
        return replace(blank, precision_bytes=-half, text=HALF if half else "N/A")
    read = _size(number, unit, row.unit)
    if read is None:
        return None
    if (pool == "stated" or blank.source == "gpu") and "b" not in unit.lower():
        return None  # 890M is a name
    start = match.start(group)
    rough = _ROUGHLY.search(match.string[max(0, start - 12) : start])
    size, hidden = read
    hidden = max(hidden, size // 20) if rough else hidden
    return replace(blank, bytes=size, precision_bytes=hidden, text=f"{number} {unit or row.unit}")


def _size(number: str, unit: str, default: str = "") -> tuple[int, int] | None:
    """(bytes, half of the last printed digit) of a size; ``default`` is the unit where none is printed. None: it is none."""
    unit = (unit or default).lower()
    if unit == "pages":
        return int(number.replace(",", "")) * PAGE, 0
    size = quantity(number.lstrip("-"), unit, commas=True) if unit else None
    sign = -1 if number[:1] == "-" else 1
    return (sign * size.bytes, size.precision_bytes) if size else None


def _agents(origin: str, source: str, text: str) -> list[Figure]:
    """The pools of rocminfo's GPU agents: the CPU's pools have the same form."""
    if origin == "narrative" or "Agent" not in text or "Pool" not in text:
        return []
    found: list[Figure] = []
    from helpers.look import rocm

    for agent in rocm.parse_agents(Text(text, "ok", "", source, "")):
        if agent.kind == "gpu" and agent.memory.ok:
            value = int(agent.memory.value or 0)
            found.append(Figure("total", "hsa", str(len(found)), value, 512, source, origin))
    return found


def _columns(row: _Row, blank: Figure, text: str) -> Iterator[Figure]:
    """A CSV table: the column whose head begins with the row's name; each line is a device."""
    lines = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()[: 4 * MOST]]
    heads = (
        [at for at, c in enumerate(cells) if c.lower().startswith(row.column)] for cells in lines
    )
    places = ((line, at[0]) for line, at in enumerate(heads) if at and len(lines[line]) > 1)
    head, at = next(places, (len(lines), 0))
    _, what, pool = row.fields[0]
    for ordinal, cells in enumerate(lines[head + 1 :]):
        match = _CELL.fullmatch(cells[at]) if len(cells) == len(lines[head]) else None
        if match is None:
            return
        size = _size(match[1], match[2], row.unit) if match[1] else (None, 0)
        if size is not None:
            figure = replace(blank, what=what, pool=pool, device=str(ordinal), text=cells[at])
            yield replace(figure, bytes=size[0], precision_bytes=size[1])


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


def figures_of_message(message: object) -> tuple[Figure, ...]:
    """The runtime's figures of an out-of-memory message: any object with Quantities named capacity, free and process."""
    found: list[Figure] = []
    device = getattr(message, "device", None)
    where = "" if device is None else str(device)
    for field, what, pool in (
        ("capacity", "total", "runtime"),
        ("free", "free", "runtime"),
        ("process", "used", "process"),
    ):
        size = getattr(message, field, None)
        if size is not None:
            printed = (size.bytes, size.precision_bytes, "error text", "message", "now", size.text)
            found.append(Figure(what, pool, where, *printed, row="message"))
    return tuple(found)
