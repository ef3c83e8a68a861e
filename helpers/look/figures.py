"""Figures of memory: every "name: number unit" that a tool, a log or a fact of a box states.

The names are data (figures.json): the form of each line is that of the program that prints it.
Case does not matter and a blank stands for any white space. ``{total}`` is a size (also ``used
free limit wanted reserved``), ``{free@ram}`` one of another pool than the row's, ``{device}``
an index; ``{gap}`` up to 24 characters without a digit, ``{_}`` the punctuation between a key
and its value, ``{..40}`` up to 40 characters of the line, ``{...}`` up to 160 of any; ``<a|b>``
alternatives, ``<?x>`` optional; a leading ``*`` lets the first word be the end of a longer one.
Sizes that a tool prints with KB, MB or GB are binary. A number belongs to the first row that
takes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

from helpers.ground.tables import data, lazy
from helpers.ground.units import GIB, MIB, near, quantity, show_bytes
from helpers.ground.units import NOT_MEASURED_BYTES as NOT_MEASURED_BYTES
from helpers.look.bundle import Text
from helpers.look.parts import APU, CARD, UNIFIED, UNKNOWN, is_card_size

LONGEST = 60_000
MOST = 64
MOST_OF_ALL = 400
PAGE = 4096
HALF = "half of the RAM"
"""The text of a figure that was given in words; its bytes are None where the RAM is not known."""
WHAT = ("total", "used", "free", "limit", "wanted", "reserved")


@dataclass(frozen=True)
class Figure:
    """One size that one source states.

    ``bytes`` is None where the tool printed that it did not measure (N/A).

    ``what`` is one of WHAT. ``pool``: vram visible-vram gtt ttm kfd hsa runtime runtime-sum
    (HIP or CUDA) carveout stated vulkan opencl process weights ram ram-installed hostfree
    available swap commit cgroup. The true size lies within ``precision_bytes``: half of the
    last printed digit. ``origin``: tool, message, environment, bundle or narrative; ``when``:
    boot, start or now; ``hearsay``: described in words, a screenshot, or a narrative. Figures
    of one printed line have the same ``line``, its place in the text.
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
    return tuple(data("ground/figures"))


class _Row:
    """A row of figures.json: ``fields`` are (group, what, pool), ``guard`` words (of each group
    one) that follow each other.
    """

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
        """Whether a text in lower case can hold the form at all: its words stand there in their
        order.
        """
        at = 0
        for words in self.guard:
            found = [(low.find(word, at), len(word)) for word in words]
            at = min((start + length for start, length in found if start >= 0), default=-1)
            if at < 0:
                return False
        return True

    def is_of(self, name: str) -> bool:
        """Whether a source's name is one that the row is for: a word of it, or with ``=`` the
        whole name.
        """
        words = ((word, word[:1] == "=") for word in self.of)
        return not self.of or any(name == w[1:] if whole else w in name for w, whole in words)


@lru_cache(maxsize=1)
def _rows() -> tuple[_Row, ...]:
    return tuple(map(_Row, rows()))


def _guard(form: str) -> Iterator[tuple[str, ...]]:
    """The plain words of a form in their order, and of each choice that must be made the
    longest word of each branch.
    """
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
    """Every figure of (origin, source, text) triples.

    A tool's name is the source, and may itself be the figure's name.

    Never raises; a text of any size costs linear time, and at most its first 60,000 characters
    are read.
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
    low = body.lower()
    name = source.lower()
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
    start = body.rfind("\n", 0, match.start()) + 1
    end = body.find("\n", match.end())
    line = body[max(start, match.start() - 200) : (end if end >= 0 else len(body))][:500]
    return origin == "narrative" or bool(_DESCRIBED.search(source) or _DESCRIBED.search(line))


def _figure(
    row: _Row, match: re.Match[str], field: tuple[str, str, str], blank: Figure
) -> Figure | None:
    group, what, pool = field
    number = match.group(group)
    unit = match.group(group + "u") or ""
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
    """(bytes, half of the last printed digit) of a size; ``default`` is the unit where none is
    printed. None: it is none.
    """
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
    heads = ([at for at, c in enumerate(r) if c.lower().startswith(row.column)] for r in lines)
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
    """Figures of the same source, pool and device: of the same line, or where each is one size
    only.
    """
    place = (figure.source, figure.pool, figure.device)
    same = [f for f in figures if (f.source, f.pool, f.device) == place and f.bytes is not None]
    wanted = [f for f in same if f.what == what]
    lined = [f for f in wanted if f.line == figure.line]
    sizes = {f.bytes for f in same if f.what == figure.what}
    once = len(sizes) == 1 and len({f.bytes for f in wanted}) == 1
    return lined or (wanted if once else [])


def lone_free(figures: Iterable[Figure]) -> list[Figure]:
    """What a runtime calls free in sources that give no total of their own, so that another's
    total is its total.
    """
    known = [f for f in figures if f.pool == "runtime"]
    whole = {f.source for f in known if f.what == "total"}
    return [f for f in known if f.what == "free" and f.bytes is not None and f.source not in whole]


def figures_of_message(message: object) -> tuple[Figure, ...]:
    """The runtime's figures of an out-of-memory message: any object with Quantities named
    capacity, free and process.
    """
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


# What figures of one thing say of each other: equal, half, a sum, above what can be, free
# beside used, and the rest. Pure.
#
# RELATIONS names each relation with its meaning. A relation is hard where none of its figures
# was retold; nothing here decides a cause. Tolerances come from the printed digits, and from
# what layers are known to round (units.ROUNDED, HALF_SHARE).

HALF_SHARE = 0.03
"""MemTotal grows a little after TTM took half of it, so half the RAM is met less exactly."""
LOWER_SHARE = 0.05
"""A runtime keeps up to 5 % of a card from its total (firmware, ECC)."""
INSTALLED_SHARE = 0.06
"""What firmware and kernel take of the RAM that was bought, before MemTotal."""
BUSY_BYTES = 512 * MIB
WORD_BYTES = 4 * GIB
"""What 32 bits hold: Windows' AdapterRAM gives it, or up to 1 MiB less, for every larger card
(Win32_VideoController).
"""
RELATIONS: dict[str, str] = data("ground/relations")
"""Each relation's name and what it means."""


@dataclass(frozen=True)
class Relation:
    """One relation (a name of RELATIONS) with its figures, in words with the numbers.

    ``hard``: no figure was retold.
    """

    name: str
    figures: tuple[Figure, ...]
    says: str
    hard: bool


if TYPE_CHECKING:
    Found = Iterator[tuple[str, tuple[Figure, ...]]]
RUNTIME = ("runtime", "hsa")
DRIVER = ("kfd", "ttm", "gtt", "vram", "carveout")


class _Book:
    """Figures sorted for asking."""

    def __init__(self, figures: Iterable[Figure], kind: str, sizes: tuple[int, ...], hip: bool):
        figures = tuple(figures)
        self.all = [f for f in figures if f.bytes is not None]
        self.blank = [f for f in figures if f.bytes is None]
        self.kind = kind
        self.sizes = sizes
        self.hip = hip

    def of(self, what: str, *pools: str) -> list[Figure]:
        found = [f for f in self.all if f.what == what and (not pools or f.pool in pools)]
        return [f for f in found if abs(_b(f)) < NOT_MEASURED_BYTES]

    def totals(self, *pools: str) -> list[Figure]:
        """Totals and live limits of pools, the figures read before those retold."""
        return sorted(self.of("total", *pools) + self.of("limit", *pools), key=lambda f: f.hearsay)

    @property
    def ram(self) -> Figure | None:
        return next(iter(self.totals("ram") or self.totals("ram-installed")), None)

    @property
    def installed(self) -> int | None:
        """The RAM that was bought: as stated, or MemTotal and a carve-out with it, at least."""
        stated = self.totals("ram-installed")
        linux = max((_b(f) for f in self.totals("ram")), default=0)
        carved = max((_b(f) for f in self.totals("carveout", "vram")), default=0)
        most = int((linux + carved) / (1 - INSTALLED_SHARE))
        return _b(stated[0]) if stated else (most or None)


def _b(figure: Figure) -> int:
    return figure.bytes or 0


def relations(
    figures: Iterable[Figure], kind: str = UNKNOWN, sizes: Iterable[int] = (), hip: bool = False
) -> list[Relation]:
    """Every relation between the figures, each name at most once for one set of sources.

    ``kind`` is gpu_kind's answer, ``sizes`` the memory sizes (GiB) of the cards named, ``hip``
    whether ROCm's runtime gave the runtime's figures.
    """
    book = _Book(figures, kind, tuple(sizes), hip)
    found: dict[tuple[Any, ...], Relation] = {}
    for name, of in (pair for rule in _RULES for pair in rule(book)):
        key = (name, *sorted({(f.source, f.pool, f.what) for f in of}))
        says = f"{RELATIONS[name]}: " + ", ".join(map(_words, of))
        says = says[:1].upper() + says[1:]
        found.setdefault(key, Relation(name, of, says, not any(f.hearsay for f in of)))
    return list(found.values())


def _words(figure: Figure) -> str:
    value = figure.text if figure.bytes is None else show_bytes(figure.bytes)
    device = f" of device {figure.device}" if figure.device else ""
    return f"{figure.pool} {figure.what}{device} {value} ({figure.source})"


def _same_device(left: Figure, right: Figure) -> bool:
    return not left.device or not right.device or left.device == right.device


def _one_total(book: _Book) -> Found:
    totals = book.totals(*RUNTIME, *DRIVER, "vulkan", "opencl")
    for left, right in combinations(totals[:40], 2):
        if not _same_device(left, right):
            continue
        if left.pool != right.pool:
            if near(left, right):
                yield "equal", (left, right)
        elif left.source != right.source and not near(left, right, LOWER_SHARE):
            yield "totals-differ", (left, right)


def _shares_of_ram(book: _Book) -> Found:
    for figure in book.blank:
        if figure.text == HALF:
            yield "half-of-ram", (figure,)
    if book.kind == CARD or book.kind == UNIFIED or book.ram is None:
        return
    ram = book.ram
    installed = book.installed or 0
    for total in book.totals("runtime", "hsa", "kfd", "ttm", "gtt"):
        if book.kind != APU and (total.pool in ("ttm", "gtt") or not book.hip):
            continue
        half = _b(ram) // 2
        bought = ram.pool == "ram-installed" and _b(total) <= half
        if near(total, half, HALF_SHARE) or (bought and _b(total) >= (1 - INSTALLED_SHARE) * half):
            yield "half-of-ram", (total, ram)
        for block in book.totals("carveout", "vram"):
            rest = (installed - _b(block)) // 2
            if _b(block) > 1.5 * _b(total) and (1 - INSTALLED_SHARE) * rest <= _b(total) <= rest:
                yield "half-of-rest", (total, block, ram)


def _sums(book: _Book) -> Found:
    if book.kind == CARD:
        return
    for block in book.totals("vram", "carveout"):
        for gtt in book.totals("gtt"):
            if _b(block) <= 0.01 * _b(gtt):
                continue
            for total in book.totals("runtime", "hsa", "vulkan", "runtime-sum", "vram", "gtt"):
                if total not in (block, gtt) and near(total, _b(block) + _b(gtt), 0.005):
                    yield "sum", (total, block, gtt)


def _beyond(book: _Book) -> Found:
    most = max(book.sizes, default=0) * GIB if book.kind == CARD else 0
    if book.kind in (APU, UNIFIED):
        most = book.installed or 0
    elif not most:
        most = max((_b(f) for f in book.of("total", "stated")), default=0)
    for total in book.totals("vram", "visible-vram") if book.kind == CARD else ():
        if min(book.sizes, default=0) > 4 and near(total, WORD_BYTES, 0.001):
            yield "wrapped", (total,)
    for figure in (f for f in book.all if f.what in ("total", "used", "free")):
        size = _b(figure)
        bounded = figure.pool in ("runtime", "hsa", "kfd", "vram", "gtt", "vulkan")
        if size < 0 or abs(size) >= NOT_MEASURED_BYTES:
            yield "wrapped", (figure,)
        elif most and bounded and size > 1.02 * most:
            if not (figure.pool == "gtt" and book.kind == CARD):
                yield "above-hardware", (figure,)
    for total in book.totals("runtime") if book.hip and book.kind == UNKNOWN else ():
        if _b(total) > 256 * MIB and not is_card_size(_b(total), "AMD"):
            yield "no-card-size", (total,)
    pools = book.of("used", "vram", "gtt") + book.totals("vram", "gtt")
    for low, high in (sorted(pair, key=_b) for pair in combinations(pools, 2)):
        if (low.what, low.pool) == (high.what, high.pool) and low.source != high.source:
            lost = _b(high) - _b(low)
            if lost and _b(low) < 4 * GIB <= _b(high) and near(lost % (4 * GIB), 0, 0):
                yield "wrapped", (low, high)


def _rest(book: _Book) -> Found:
    for total in book.totals("runtime", "vram", "gtt", "ram", "visible-vram"):
        others = lone_free(book.all) if total.pool == "runtime" else []
        for free in beside(total, book.all, "free") or others:
            if _b(free) > _b(total) and not near(free, total, 0):
                yield "free-above-total", (free, total)
            elif near(free, total, 0.001):
                pools = (total.pool, "vram", "process", "gtt")
                use = [f for f in book.of("used", *pools) if _same_device(f, total)]
                use = [f for f in use if _b(f) > max(64 * MIB, 4 * free.precision_bytes)]
                if use:
                    yield "free-is-total", (free, total, use[0])
        for used in beside(total, book.all, "used"):
            if _b(used) > _b(total) and not near(used, total, 0.02):
                yield "used-above-total", (used, total)
            held = sum(_b(f) for f in list(beside(total, book.all, "reserved"))[:1])
            for free in beside(total, book.all, "free"):
                rest = _b(total) - _b(used) - held
                if total.pool != "ram" and abs(rest - _b(free)) > max(0.03 * _b(total), 64 * MIB):
                    yield "rest-differs", (total, used, free)


def _between_sources(book: _Book) -> Found:
    for what, name in (("used", "used-differs"), ("free", "frees-differ")):
        for pair in combinations(book.of(what, "runtime", "vram", "gtt")[:40], 2):
            low, high = sorted(pair, key=_b)
            alike = low.pool == high.pool or what == "free"
            if alike and low.source != high.source and _same_device(low, high):
                if _b(high) > 1.5 * _b(low) and _b(high) - _b(low) > 2 * GIB:
                    yield name, (low, high)
    unmeasured = [f for f in book.blank if f.text != HALF]
    for blank in unmeasured + [f for f in book.all if f.bytes == 0 and f.pool != "swap"]:
        others = {"vram": ("vram", "runtime", "process")}.get(blank.pool, (blank.pool, "process"))
        for other in book.of(blank.what) + book.of("used", "process"):
            same = blank.pool == "process" or other.pool in others
            if same and blank.source != other.source and _b(other) > BUSY_BYTES:
                if _same_device(blank, other):
                    yield "not-measured", (blank, other)
                    break


def _runtime_and_driver(book: _Book) -> Found:
    drivers = [f for f in book.totals(*DRIVER) if book.kind != CARD or f.pool in ("vram", "kfd")]
    for total in book.totals(*RUNTIME):
        for driver in drivers:
            if not _same_device(total, driver) or (driver.pool == "gtt" and book.kind == UNKNOWN):
                continue
            below = _b(total) <= _b(driver)
            carved = not below and driver.pool in ("vram", "carveout") and book.kind == APU
            if not near(total, driver, LOWER_SHARE) and not carved:
                yield f"runtime-{'below' if below else 'above'}-driver", (total, driver)
    live = {f.pool: f for f in book.totals("gtt", "ttm")}
    runtime = next(iter(book.totals(*RUNTIME)), None)
    for wanted in book.of("wanted", "ttm", "gtt"):
        seen = live.get(wanted.pool)
        if seen is not None and not near(wanted, seen, 0.0001):
            yield "wanted-not-live", (wanted, seen)
        elif any(near(wanted, reached) for reached in book.totals("vulkan", "kfd")):
            continue  # a limit that another interface reaches is live
        elif runtime is not None and _b(wanted) > 1.3 * _b(runtime):
            yield "wanted-not-live", (wanted, runtime)
    for need in book.of("wanted", "runtime"):
        for free in book.of("free", "runtime"):
            if need.source == free.source and need.origin == "tool" and _b(need) < _b(free):
                yield "fits-by-figures", (need, free)


def _cards(book: _Book) -> Found:
    sources = {f.source for f in book.of("used", "vram", "runtime")}
    for source in sorted(sources):
        own = [f for f in book.of("used", "vram", "runtime") if f.source == source]
        pairs = [(f, t) for f in own for t in beside(f, book.all, "total") if _b(t) > 0]
        pairs = list({used.device: (used, total) for used, total in pairs if used.device}.values())
        busy = [(f, total) for f, total in pairs if _b(f) > max(BUSY_BYTES, 0.05 * _b(total))]
        full = [used for used, total in pairs if _b(used) > 0.9 * _b(total)]
        idle = [used for used, total in pairs if _b(used) < 0.05 * _b(total)]
        if full and idle:
            yield "some-full", (full[0], idle[0])
        if len(busy) < 2:
            continue
        uses = [_b(u) for u, _ in busy]
        sizes = [_b(t) for _, t in busy]
        shares = [_b(u) / _b(t) for u, t in busy]
        alike = max(shares) - min(shares) < 0.02
        same = max(uses) // 500 + 2 * busy[0][0].precision_bytes
        first = tuple(used for used, _ in busy[:4])
        if max(sizes) > 1.1 * min(sizes) and alike and min(shares) > 0.3:
            yield "equal-fractions", first
        if len(busy) >= 3 and max(uses) - min(uses) <= same:
            yield "equal-amounts", first


def _page_cache(book: _Book) -> Found:
    if book.kind != UNIFIED:
        return
    for available in book.of("free", "available"):
        for bare in book.of("free", "runtime") + book.of("free", "hostfree"):
            if _b(available) > 1.5 * _b(bare) and _b(available) - _b(bare) > 2 * GIB:
                yield "cache-counted-as-used", (bare, available)
                break


_RULES: tuple[Callable[[_Book], Found], ...] = (
    _one_total,
    _shares_of_ram,
    _sums,
    _beyond,
    _rest,
    _between_sources,
    _runtime_and_driver,
    _cards,
    _page_cache,
)
