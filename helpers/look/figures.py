"""Reads figures of memory, every size that a text, a tool's output or a fact of a box states."""

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
from helpers.look.printed import PrintedLine, printed_lines, without

LONGEST = 60_000
"""Letters of a text that are read."""
MOST_OF_ONE_FORM = 64
MOST_OF_ALL = 400
"""Figures of one form, and of all texts: chosen far above what people post; more are slow to
compare.
"""
PAGE = 4096
"""The page size of x86, in which TTM's limits are printed; a text does not name another."""
LINE_BEFORE = 200
LONGEST_LINE = 500
"""Letters of a line before a figure, and of the line, in which a word such as "screenshot" counts.
"""
ROCMINFO_PRECISION_BYTES = 512
"""rocminfo prints whole KiB."""


@dataclass(frozen=True)
class Figure:
    """One size that one source states.

    ``bytes`` is None if the tool printed that it did not measure it (N/A). The true size lies
    within ``precision_bytes`` of it: half a unit of the last printed digit.

    ``measure`` is total, used, free, limit, wanted or reserved. ``pool`` is the memory: vram
    visible-vram gtt ttm kfd hsa runtime (HIP or CUDA) runtime-sum (of all devices) carveout stated
    vulkan process process-gtt process-ram process-rss slab torch torch-later (read after the
    failure) weights ram ram-installed hostfree available swap commit cgroup bar (BAR1 of PCIe).
    ``pid`` and ``name`` are those of the process that the size is about.

    ``origin`` is tool, message, environment or bundle; ``hearsay``: a person describes an output or
    has a screenshot of it. Figures of one printed line have the same ``line``, its place in the
    text. ``when`` is 0 for what a source printed first, 1 if it printed the same again.
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
        """Its bytes, 0 if they were not measured."""
        if self.bytes is None:
            return 0
        return self.bytes

    def of_size(self, measure: str, pool: str, size: Quantity | None) -> Figure:
        """The figure of a size from the same line of the same source; None: not measured."""
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
    """A figure of which only the source is known so far; ``of_size`` adds the rest."""
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
"""Words by which a person says that a figure is not copied from an output."""


def figures_of(texts: Iterable[tuple[str, str, str]]) -> tuple[Figure, ...]:
    """Every figure in texts, each given as (origin, source, text); a source is the name of a tool,
    or of the figure itself, as in "gpu_memory: 24 GiB".

    Never raises. Takes linear time and reads at most LONGEST letters of a text.
    """
    figures: list[Figure] = []
    for origin, source, text in texts:
        figures += _StatedText(origin, source, text[:LONGEST]).figures()
        if len(figures) > MOST_OF_ALL:
            break
    return tuple(figures[:MOST_OF_ALL])


class _StatedText:
    """The text of one source. ``taken`` has the places of the numbers that a form has read, since a
    number belongs to the first form that it fits; ``prints`` counts how often a form was printed
    for a device.
    """

    def __init__(self, origin: str, source: str, text: str):
        self.origin = origin
        self.source = source
        self.text = text
        self.taken: set[int] = set()
        self.prints: Counter[tuple[str, str]] = Counter()

    def figures(self) -> Iterator[Figure]:
        """The figures of rocminfo's agents, then those of tables, then those of forms."""
        agents = self._pools_of_agents()
        yield from agents
        lines = printed_lines(self.text)
        yield from self._of_tables(lines)
        body = f"{self.source}: {without(self.text, lines)}"
        lower = body.lower()
        source = self.source.lower()
        for form in figure_forms():
            if not form.among(lower) or not form.is_of(source):
                continue
            # The form reads the same pools, and those of the CPU with them.
            if agents and form.id == "rocminfo-pool":
                continue
            yield from self._matches(form, body)

    def _of_tables(self, lines: Iterable[PrintedLine]) -> Iterator[Figure]:
        """The sizes in the rows of printed tables; a line with a tool is the head of a table."""
        devices: Counter[int] = Counter()
        for row in [line for line in lines if not line.tool]:
            device = row.device
            if not device and any(pool == "vram" for _, pool, _ in row.sizes):
                # A table without indices has a row for each device; ``when`` tells tables apart.
                device = str(devices[row.when])
                devices[row.when] += 1
            figure = replace(
                _without_size(self.source, self.origin, row="table", device=device),
                line=row.start,
                pid=row.pid,
                name=row.name,
                when=row.when,
            )
            for measure, pool, size in row.sizes:
                yield figure.of_size(measure, pool, size)

    def _matches(self, form: FigureForm, body: str) -> Iterator[Figure]:
        """The figures of a form, except those whose numbers are taken."""
        for ordinal, match in enumerate(form.pattern.finditer(body)):
            if ordinal == MOST_OF_ONE_FORM:
                return
            places = {match.start(size.group) for size in form.sizes}
            places.discard(-1)  # a size of another branch of the form
            if self.taken & places:
                continue
            figures = self._of_match(form, ordinal, match)
            if figures:
                self.taken |= places
                yield from figures

    def _of_match(
        self, form: FigureForm, ordinal: int, match: re.Match[str]
    ) -> list[Figure]:
        """The figures of one match; none if one of its numbers is no size. ``ordinal``: how many
        matches of the form came before it.
        """
        device = match.groupdict(default="").get("device", "")
        if not device and form.each:
            device = str(ordinal)
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
            # Words for "not measured" fill the group that has all of it, and not the number's.
            printed_size = None
            if match[size.group] is not None:
                printed_size = self._quantity(form, match, size)
                if printed_size is None:
                    return []
            figures.append(place.of_size(size.measure, size.pool, printed_size))
        self.prints[form.id, device] += 1
        return figures

    def _is_described(self, match: re.Match[str]) -> bool:
        """Whether the source or the line of a match says that it is a description."""
        if _DESCRIBED.search(self.source):
            return True
        body = match.string
        start = body.rfind("\n", 0, match.start()) + 1
        end = body.find("\n", match.end())
        if end < 0:
            end = len(body)
        line = body[max(start, match.start() - LINE_BEFORE) : end]
        return _DESCRIBED.search(line[:LONGEST_LINE]) is not None

    def _quantity(
        self, form: FigureForm, match: re.Match[str], size: Size
    ) -> Quantity | None:
        """The size in a match; None if its number is no size."""
        unit = match.groupdict(default="")[size.group + "unit"]
        may_be_a_name = size.pool == "stated" or self.source == "gpu"
        if may_be_a_name and "b" not in unit.lower():
            return None  # 890M is the name of a GPU, 890MB is not
        if not unit:
            unit = form.unit
        return _signed_quantity(match[size.group], unit)

    def _pools_of_agents(self) -> list[Figure]:
        """The pools of rocminfo's GPU agents, read by its own reader: the CPU's pools look the
        same.
        """
        if "Agent" not in self.text or "Pool" not in self.text:
            return []
        from helpers.look import rocm  # few texts need it

        figures: list[Figure] = []
        for agent in rocm.parse_agents(Text(self.text, "ok", "", self.source, "")):
            if agent.kind == "gpu" and agent.memory.ok:
                device = str(len(figures))
                place = _without_size(self.source, self.origin, device=device)
                size = Quantity(agent.memory.bytes, ROCMINFO_PRECISION_BYTES, text="")
                figures.append(place.of_size("total", "hsa", size))
        return figures


def _signed_quantity(number: str, unit: str) -> Quantity | None:
    """A size in bytes or pages, which may be negative, as rocm-smi prints one that overflowed; None
    for other words.
    """
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
    """The figures with that measure that belong to ``figure``: of the same source, pool and device,
    and of the same line; or of any line if the source has one size for each of the two measures.
    """
    place = (figure.source, figure.pool, figure.device)
    same_place = []
    for other in figures:
        has_place = (other.source, other.pool, other.device) == place
        if has_place and other.bytes is not None:
            same_place.append(other)
    measured = [other for other in same_place if other.measure == measure]
    same_line = [other for other in measured if other.line == figure.line]
    if same_line:
        return same_line
    sizes = {other.bytes for other in same_place if other.measure == figure.measure}
    measured_sizes = {other.bytes for other in measured}
    if len(sizes) == 1 and len(measured_sizes) == 1:
        return measured
    return []


def lone_free(figures: Iterable[Figure]) -> list[Figure]:
    """What a runtime calls free, from sources that have no total of the runtime: they belong to the
    total of another source.
    """
    of_runtime = [figure for figure in figures if figure.pool == "runtime"]
    with_total = {figure.source for figure in of_runtime if figure.measure == "total"}
    alone = []
    for figure in of_runtime:
        is_measured_free = figure.measure == "free" and figure.bytes is not None
        if is_measured_free and figure.source not in with_total:
            alone.append(figure)
    return alone


def figures_of_message(message: Message) -> tuple[Figure, ...]:
    """The figures of an out-of-memory message: of the runtime's memory, and of the process."""
    device = ""
    if message.device is not None:
        device = str(message.device)
    place = _without_size("error text", "message", row="message", device=device)
    figures = []
    for measure, pool, size in (
        ("total", "runtime", message.capacity),
        ("free", "runtime", message.free),
        ("used", "process", message.process),
    ):
        if size is not None:
            figures.append(place.of_size(measure, pool, size))
    return tuple(figures)
