"""Figures of memory pools, holders and ledgers, drawn on a sheet measured in inches.

Each is a ``Shown`` whose rows are what is drawn, so its alt text comes from them; its title is
the answer. What is unknown is a short hatched stub with its reason, never a zero. A process has
one colour in every figure, and no figure says anything by colour alone. Nothing here opens a
window or keeps a figure alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from helpers.ground.shapes import Reading
from helpers.ground.units import plain, show_bytes
from helpers.judge.ledger_rows import MESSAGE, GpuLedger, LedgerRow
from helpers.look.gpus import Gpu, Pool
from helpers.tell.figure_style import ALARM, MUTED, PALETTE, SERIES, Look
from helpers.tell.shown import Shown
from helpers.tell.values import cell, size, size_or_zero

from . import sheet, tables
from .box import ledger_table

LOOKS = {
    "outside": PALETTE["outside"],
    "reserved": PALETTE["other"],
    "unattributed": PALETTE["unattributed"],
}
"""How the parts that are no process of this box look; a process has its own colour."""
HATCHES = ("", "||||", "////")
"""Parts of one process beside each other."""
MOST_BARS = 24
ROWS = 8
"""Rows of a ledger that have a piece of their own; the smallest processes beyond are taken
together.
"""


def pools(items: Iterable[Gpu | Pool]) -> Shown:
    """What each layer says of each memory pool, on one scale: the outline is the total, the
    filled part is in use.
    """
    listed = list(items)
    title = "No layer says how much of its memory is in use"
    fullest = _fullest(
        [pool for _, _, pools in tables.pools_of(listed) for pool in pools]
    )
    if fullest is not None:
        used = out_of(used_of(fullest) or 0, size_or_zero(fullest.total))
        title = f"Fullest: {fullest.layer}, {used} in use"
    draw = partial(_draw_pools, listed, title)
    view = tables.pools_table(listed).without("source")
    return replace(view, title=title, draw=draw, label="Memory by layer")


def _fullest(pools: list[Pool]) -> Pool | None:
    """The pool of which the largest share is in use; None where none is known to be in use."""
    fullest = None
    largest_share = 0.0
    for pool in pools:
        total = size(pool.total)
        used = used_of(pool)
        if total and used and used / total > largest_share:
            largest_share = used / total
            fullest = pool
    return fullest


def _draw_pools(items: list[Gpu | Pool], title: str) -> sheet.Drawing:
    groups = tables.pools_of(items)
    page = sheet.FigurePage(title)
    top = 0
    for _, _, pools in groups:
        for pool in pools:
            top = max(top, size_or_zero(pool.total), used_of(pool) or 0)
    for gpu, pci, pools in groups:
        driver = gpu.driver if gpu else ""
        page.heading(_name(gpu, pci), f"{pci}  {driver}".strip())
        if not pools:
            page.lines("No layer shows a pool of this GPU.")
        page.bars(map(_pool_bar, pools), top)
        page.y += 0.1
    page.footnote("Outline: total. Filled: in use. Hatched stub: not known. One scale.")
    return page.done()


def _name(gpu: Gpu | None, pci: str) -> str:
    if gpu and gpu.name.ok:
        return plain(gpu.name.show())
    return "GPU" if pci else "Host"


def _pool_bar(pool: Pool) -> sheet.Bar:
    """A pool's bar; below it where the figures came from, and why one is missing."""
    total = size(pool.total)
    used = used_of(pool)
    fills: list[tuple[float | None, Look]] = []
    if total is not None:
        fills.append((total, PALETTE["free"]))
    fills.append((used, PALETTE["not known"] if used is None else PALETTE["in use"]))
    readings = [reading for reading in (pool.total, pool.used) if reading.ok]
    small = []
    if readings:
        small.append(tables.one_source(readings))
    if not pool.total.ok:
        reason = pool.total.show()
        small.append(f"total {reason}" if readings else reason)
    if readings and used is None and pool.used.show() != pool.total.show():
        small.append("used " + pool.used.show())
    return sheet.Bar(pool.layer, _pool_words(pool), fills, small, "bold")


def _pool_words(pool: Pool) -> str:
    total = size(pool.total)
    used = used_of(pool)
    total_words = cell(pool.total).words
    if used is None:
        return total_words
    if total is None:
        return f"{show_bytes(used)} used, total {total_words}"
    return f"{show_bytes(used)} of {total_words} used"


def used_of(pool: Pool) -> int | None:
    """Bytes in use, or total less free where the layer gives only these; None where it is not
    known.
    """
    total = size(pool.total)
    used = size(pool.used)
    free = size(pool.free)
    if used is not None or total is None or free is None:
        return used
    return total - free


def out_of(part: int, total: int) -> str:
    """A part and its total: ``21.13 of 23.99 GiB``, or ``6.09 MiB of 23.99 GiB``."""
    number, unit = show_bytes(part).split()
    total_words = show_bytes(total)
    if total_words.endswith(f" {unit}"):
        return f"{number} of {total_words}"
    return f"{number} {unit} of {total_words}"


def colours(books: Iterable[GpuLedger]) -> dict[int, str]:
    """The colour of each process of a box in every figure, by its number; the six that hold
    most differ.

    A message's process that no ledger names is number 0.
    """
    most_bytes = {0: 0}
    for book in books:
        for row in book.rows:
            if row.pid:
                most_bytes[row.pid] = max(
                    most_bytes.get(row.pid, 0), size_or_zero(row.bytes)
                )
    colour_of: dict[int, str] = {}
    count = len(SERIES)
    for pid in sorted(most_bytes, key=lambda pid: (-most_bytes[pid], pid)):
        preferred = [SERIES[(pid + step) % count] for step in range(count)]
        unused = [colour for colour in preferred if colour not in colour_of.values()]
        colour_of[pid] = (unused or preferred)[0]
    return colour_of


def _remaining_processes(readings: list[Reading]) -> sheet.BarPiece:
    """The processes that have no piece of their own, as one."""
    name = f"{len(readings)} more processes"
    unknown = [reading for reading in readings if size(reading) is None]
    if unknown:
        name += f", {len(unknown)} not measured"
    return sheet.BarPiece(name, sum(map(size_or_zero, readings)), Look(MUTED, "white"))


@dataclass(frozen=True)
class _LedgerBar:
    """A ledger with the pieces of its bar."""

    book: GpuLedger
    pieces: list[sheet.BarPiece]

    @property
    def length_bytes(self) -> int:
        """Its total, or its parts where they are more."""
        parts = sum(
            piece.bytes for piece in self.pieces if piece.bytes and piece.bytes > 0
        )
        return max(parts, size_or_zero(self.book.used), size_or_zero(self.book.total))


def with_bars(view: Shown) -> Shown:
    """A view with a figure of its sizes, a bar a row: the first size is its outline, the second its filled part."""
    bars = []
    top = 0
    for row in view.cells[:MOST_BARS]:
        words = []
        sizes = []
        for value, column in zip(row, view.columns):
            written = cell(value, column.unit)
            if written.number is False and column.name != "source":
                words.append(written.words)
            elif column.unit == "bytes" and written.number:
                sizes.append(value)
            elif isinstance(value, Reading) and size(value) is not None:
                sizes.append(size_or_zero(value))
        if sizes:
            top = max(top, *sizes)
            outline = (sizes[0], PALETTE["free"])
            fills = [outline, (sizes[:2][-1], PALETTE["in use"])]
            sizes_in_words = ", ".join(map(show_bytes, sizes))
            bars.append(sheet.Bar(", ".join(words), sizes_in_words, fills))
    if not bars:
        return view
    return replace(view, draw=partial(_draw_bars, bars, top))


def _draw_bars(bars: list[sheet.Bar], top: int) -> sheet.Drawing:
    page = sheet.FigurePage()
    page.bars(bars, top)
    return page.done()


def ledger(ledgers: Iterable[GpuLedger]) -> Shown:
    """One bar a ledger, all on one scale, whose pieces add up to what is in use, then what is
    free.

    The mark above a bar stands at what its source says is in use; the title is the largest
    piece of all.
    """
    books = list(ledgers)
    colour_of = colours(books)
    colour_of[0] = colour_of[_failing_process(books)]
    bars = [_LedgerBar(book, pieces_of(book, colour_of)) for book in books]
    title = _largest_piece(bars)
    draw = partial(_draw_ledgers, bars, title)
    return replace(ledger_table(books), title=title, draw=draw)


def _failing_process(books: list[GpuLedger]) -> int:
    """The number of the process that a message is of; 0 where none is named."""
    for book in books:
        for row in book.rows:
            if row.kind == "process" and row.pid:
                return row.pid
    return 0


def _largest_piece(bars: list[_LedgerBar]) -> str:
    """The title of a figure of ledgers: its largest piece that is in use."""
    title = "Nothing is known to be in use"
    largest = 0
    for bar in bars:
        for piece in bar.pieces:
            if piece.look != PALETTE["free"] and piece.bytes and piece.bytes > largest:
                largest = piece.bytes
                words = piece.words.replace(": ", ", ")
                title = f"{out_of(largest, bar.length_bytes)}: {words}"
    return title


def _draw_ledgers(bars: list[_LedgerBar], title: str) -> sheet.Drawing:
    page = sheet.FigurePage(title)
    top = max([1, *(bar.length_bytes for bar in bars)])
    for bar in bars:
        book = bar.book
        used = size(book.used)
        source = "error message" if book.account == MESSAGE else book.account
        page.heading(f"In use, says the {source}", book.place)
        page.y += 0.16
        page.lines(_in_use(book))
        if used is not None:
            x = sheet.MARGIN + used * page.scale(top)
            page.box(x - 0.012, 0.024, 0.05, PALETTE["reserved"], dy=-0.05)
        page.stacked(bar.pieces, top, measured=used is not None)
        for line in book.contradictions:
            _note(page, f"Contradiction: {line}", ALARM)
        for line in book.notes:
            _note(page, line, MUTED)
        page.y += 0.1
    return page.done()


def _note(page: sheet.FigurePage, line: str, tone: str) -> None:
    page.lines(line, sheet.MARGIN + 0.2, tone)
    page.y += 0.03


def _in_use(book: GpuLedger) -> str:
    if not book.used.ok:
        return f"In use: {book.used.show()}"
    total = f" of {book.total.show()}" if book.total.ok else ""
    slack = "to the byte"
    if book.tolerance_bytes:
        slack = f"give or take {show_bytes(book.tolerance_bytes)}"
    return f"{book.used.show()}{total}, {slack}; {tables.one_source([book.used])}"


def pieces_of(book: GpuLedger, colour_of: Mapping[int, str]) -> list[sheet.BarPiece]:
    """The pieces of one ledger's bar, in order: its rows, the smallest processes taken
    together, then what is free.

    The pieces that are measured and not negative make the bar; a negative one says how much was
    counted too often. ``colour_of`` has the colour of each process, under 0 of the one that a
    message is of.
    """
    smallest = _smallest_processes(book)
    left_to_the_rest = {id(row) for row in smallest}
    pieces = []
    pieces_of_process: Counter[int] = Counter()
    place_of_rest = 0
    for row in book.rows:
        if id(row) in left_to_the_rest:
            continue
        look = LOOKS.get(row.kind)
        if look is None:
            hatch = HATCHES[pieces_of_process[row.pid] % len(HATCHES)]
            look = Look(colour_of[row.pid], "white", hatch)
        if size_or_zero(row.bytes) < 0:
            look = PALETTE["too much"]
        pieces_of_process[row.pid] += 1
        pieces.append(sheet.BarPiece(row.words, row.bytes, look))
        if row.kind == "other_process":
            place_of_rest = len(pieces)
    if smallest:
        pieces.insert(
            place_of_rest, _remaining_processes([row.bytes for row in smallest])
        )
    total = size(book.total)
    used = size(book.used)
    if total is not None and used is not None and total > used:
        pieces.append(sheet.BarPiece(book.left, total - used, PALETTE["free"]))
    return pieces


def _smallest_processes(book: GpuLedger) -> list[LedgerRow]:
    """The rows for which a bar has no room: the smallest of many other processes."""
    if len(book.rows) <= ROWS:
        return []
    others = [row for row in book.rows if row.kind == "other_process"]
    room = max(1, ROWS - (len(book.rows) - len(others)))
    others.sort(key=lambda row: size_or_zero(row.bytes), reverse=True)
    return others[room:]
