"""Figures of memory: every "name: number unit" that a tool, a log or a fact of a box states."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from helpers.ground.tables import lazy
from helpers.ground.units import Quantity, quantity
from helpers.look.bundle import Text
from helpers.look.figure_forms import FigureForm, Size, figure_forms
from helpers.look.message import Message
from helpers.look.printed import printed_lines, without

LONGEST = 60_000
MOST_OF_ONE_FORM = 64
MOST_OF_ALL = 400
PAGE = 4096


@dataclass(frozen=True)
class Figure:
    """One size that one source states.

    ``bytes`` is None where the tool printed that it did not measure (N/A).

    ``measure`` is total, used, free, limit, wanted or reserved. ``pool``: vram visible-vram gtt ttm
    kfd hsa runtime (HIP or CUDA) runtime-sum (of all devices) carveout stated vulkan process
    process-gtt process-ram process-rss slab torch torch-later (read after the failure) weights ram
    ram-installed hostfree available swap commit cgroup bar (BAR1 of PCIe). The true size lies
    within ``precision_bytes``: half of the last printed digit. ``origin``: tool, message,
    environment or bundle; ``hearsay``: a description or a screenshot of an output. Figures of one
    printed line have the same ``line``, its place in the text. ``pid`` and ``name``: whose it is;
    ``when``: 0 for what a source printed first, 1 where it printed the same again.
    """

    measure: str
    pool: str
    device: str
    bytes: int | None
    precision_bytes: int
    source: str
    origin: str
    text: str = ""
    row: str = ""
    hearsay: bool = False
    line: int = -1
    pid: int | None = None
    name: str = ""
    when: int = 0

    @property
    def size(self) -> int:
        """Its bytes, 0 where they were not measured."""
        return self.bytes or 0

    def of_size(self, measure: str, pool: str, size: Quantity | None) -> Figure:
        """A figure of the same place, with what it measures and its size; None: not measured."""
        figure = replace(self, measure=measure, pool=pool, text="N/A")
        if size is None:
            return figure
        return replace(
            figure,
            bytes=size.bytes,
            precision_bytes=size.precision_bytes,
            text=size.text,
        )


def _without_size(source: str, origin: str, row: str = "", device: str = "") -> Figure:
    """A figure of which only the place is known."""
    return Figure(
        measure="",
        pool="",
        device=device,
        bytes=None,
        precision_bytes=0,
        source=source,
        origin=origin,
        row=row,
    )


_DESCRIBED = lazy(
    r"described|description|screenshot|in words|from memory|picture", re.I
)


def figures_of(texts: Iterable[tuple[str, str, str]]) -> tuple[Figure, ...]:
    """Every figure of (origin, source, text) triples.

    A tool's name is the source, and may itself be the figure's name.

    Never raises; a text of any size costs linear time, and at most its first 60,000 characters
    are read.
    """
    figures: list[Figure] = []
    for origin, source, text in texts:
        figures += _StatedText(origin, source, text[:LONGEST]).figures()
        if len(figures) > MOST_OF_ALL:
            break
    return tuple(figures[:MOST_OF_ALL])


class _StatedText:
    """What one source states; a number belongs to the first form that takes it."""

    def __init__(self, origin: str, source: str, text: str):
        self.origin = origin
        self.source = source
        self.text = text
        self.body = f"{source}: {text}"
        """What the forms are looked for in."""
        self.taken: set[int] = set()
        self.prints: Counter[tuple[str, str]] = Counter()

    def figures(self) -> Iterator[Figure]:
        agents = self._pools_of_agents()
        yield from agents
        yield from self._of_tables()
        lower = self.body.lower()
        source = self.source.lower()
        for form in figure_forms():
            if not form.among(lower) or not form.is_of(source):
                continue
            if agents and form.id == "rocminfo-pool":
                continue
            yield from self._matches(form)

    def _of_tables(self) -> Iterator[Figure]:
        """The sizes of printed tables, whose rows no form reads."""
        lines = printed_lines(self.text)
        self.body = f"{self.source}: {without(self.text, lines)}"
        devices: Counter[int] = Counter()
        for row in [line for line in lines if not line.tool]:
            device = row.device
            if not device and any(pool == "vram" for _, pool, _ in row.sizes):
                device = str(devices[row.when])
                devices[row.when] += 1
            figure = replace(
                _without_size(self.source, self.origin, "table", device),
                line=row.start,
                pid=row.pid,
                name=row.name,
                when=row.when,
            )
            for measure, pool, size in row.sizes:
                yield figure.of_size(measure, pool, size)

    def _matches(self, form: FigureForm) -> Iterator[Figure]:
        for ordinal, match in enumerate(form.pattern.finditer(self.body)):
            if ordinal == MOST_OF_ONE_FORM:
                return
            places = {match.start(size.group) for size in form.sizes} - {-1}
            if self.taken & places:
                continue
            figures = self._of_match(form, ordinal, match)
            if figures:
                self.taken |= places
                yield from figures

    def _of_match(
        self, form: FigureForm, ordinal: int, match: re.Match[str]
    ) -> list[Figure]:
        """The figures of one printed line; none where one of its numbers is no size."""
        device = match.groupdict().get("device")
        if not device:
            device = str(ordinal) if form.each else ""
        place = replace(
            _without_size(self.source, self.origin, form.id, device),
            hearsay=self._is_described(match),
            line=match.start(),
            when=self.prints[form.id, device],
        )
        figures = []
        for size in form.sizes:
            if match[size.group + "printed"] is None:
                continue
            printed_size = None
            if match[size.group] is not None:
                printed_size = self._quantity(form, match, size)
                if printed_size is None:
                    return []
            figures.append(place.of_size(size.measure, size.pool, printed_size))
        self.prints[form.id, device] += 1
        return figures

    def _is_described(self, match: re.Match[str]) -> bool:
        if _DESCRIBED.search(self.source):
            return True
        start = self.body.rfind("\n", 0, match.start()) + 1
        end = self.body.find("\n", match.end())
        if end < 0:
            end = len(self.body)
        line = self.body[max(start, match.start() - 200) : end][:500]
        return _DESCRIBED.search(line) is not None

    def _quantity(
        self, form: FigureForm, match: re.Match[str], size: Size
    ) -> Quantity | None:
        """A number that a form has found; None where it is no size."""
        unit = match[size.group + "unit"]
        may_be_a_name = size.pool == "stated" or self.source == "gpu"
        if may_be_a_name and (not unit or "b" not in unit.lower()):
            return None  # 890M is a name
        if not unit:
            unit = form.unit
        return _signed_quantity(match[size.group], unit)

    def _pools_of_agents(self) -> list[Figure]:
        """The pools of rocminfo's GPU agents: the CPU's pools have the same form."""
        if "Agent" not in self.text or "Pool" not in self.text:
            return []
        from helpers.look import rocm

        figures: list[Figure] = []
        for agent in rocm.parse_agents(Text(self.text, "ok", "", self.source, "")):
            if agent.kind == "gpu" and agent.memory.ok:
                device = str(len(figures))
                place = _without_size(self.source, self.origin, device=device)
                size = Quantity(agent.memory.bytes, precision_bytes=512, text="")
                figures.append(place.of_size("total", "hsa", size))
        return figures


def _signed_quantity(number: str, unit: str) -> Quantity | None:
    """A size with a sign, in bytes or pages; None where it is none."""
    printed = f"{number} {unit}"
    if unit.lower() == "pages":
        return Quantity(int(number.replace(",", "")) * PAGE, 0, printed)
    if not unit:
        return None
    size = quantity(number.lstrip("-"), unit, commas=True)
    if size is None:
        return None
    size = replace(size, text=printed)
    if number.startswith("-"):
        return replace(size, bytes=-size.bytes)
    return size


def beside(figure: Figure, figures: Iterable[Figure], measure: str) -> list[Figure]:
    """Figures of the same source, pool and device: of the same line, or where each is one size
    only.
    """
    place = (figure.source, figure.pool, figure.device)
    same_place = [
        other
        for other in figures
        if (other.source, other.pool, other.device) == place and other.bytes is not None
    ]
    wanted = [other for other in same_place if other.measure == measure]
    same_line = [other for other in wanted if other.line == figure.line]
    if same_line:
        return same_line
    sizes = {other.bytes for other in same_place if other.measure == figure.measure}
    wanted_sizes = {other.bytes for other in wanted}
    if len(sizes) == 1 and len(wanted_sizes) == 1:
        return wanted
    return []


def lone_free(figures: Iterable[Figure]) -> list[Figure]:
    """What a runtime calls free in sources that give no total of their own, so that another's
    total is its total.
    """
    of_runtime = [figure for figure in figures if figure.pool == "runtime"]
    with_total = {figure.source for figure in of_runtime if figure.measure == "total"}
    return [
        figure
        for figure in of_runtime
        if figure.measure == "free"
        and figure.bytes is not None
        and figure.source not in with_total
    ]


def figures_of_message(message: Message) -> tuple[Figure, ...]:
    """The runtime's figures of an out-of-memory message."""
    device = "" if message.device is None else str(message.device)
    place = _without_size("error text", "message", row="message", device=device)
    sizes = (
        ("total", "runtime", message.capacity),
        ("free", "runtime", message.free),
        ("used", "process", message.process),
    )
    return tuple(
        place.of_size(measure, pool, size)
        for measure, pool, size in sizes
        if size is not None
    )
