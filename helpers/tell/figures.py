"""Figures of memory pools, holders and ledgers, drawn on a sheet measured in inches.

Each is a ``Shown`` whose rows are what is drawn, so its alt text comes from them; its title is
the answer. What is unknown is a short hatched stub with its reason, never a zero. A process has
one colour in every figure, and no figure says anything by colour alone. Nothing here opens a
window or keeps a figure alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from helpers.ground.shapes import Reading
from helpers.ground.units import plain, show_bytes
from helpers.judge.ledger_rows import MESSAGE, GpuLedger, LedgerRow
from helpers.look.gpus import Gpu, Pool
from helpers.tell.figure_style import ALARM, MUTED, PALETTE, SERIES, Look
from helpers.tell.shown import Shown
from helpers.tell.values import Column, cell, size, size_or_zero

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
"""Bars of a figure of a table's sizes: about one printed page."""
MOST_PIECES = 8
"""Pieces of a ledger's bar: more cannot be told apart. The smallest processes share the last."""
GAP = 0.1
"""Inches between a group of bars and the next."""


def pools(items: Iterable[Gpu | Pool]) -> Shown:
    """What each layer says of each memory pool, on one scale: the outline is the total, the
    filled part is in use.
    """
    listed = list(items)
    draw = partial(_draw_pools, listed)
    view = tables.pools_table(listed).without("source")
    return replace(
        view, title=_fullest_pool(listed), draw=draw, label="Memory by layer"
    )


def _fullest_pool(items: list[Gpu | Pool]) -> str:
    """The title of a figure of pools: the one of which the largest share is in use."""
    title = "No layer says how much of its memory is in use"
    largest_share = 0.0
    for _, _, pools in tables.pools_of(items):
        for pool in pools:
            total = size(pool.total)
            used = used_of(pool)
            if total and used and used / total > largest_share:
                largest_share = used / total
                title = f"Fullest: {pool.layer}, {out_of(used, total)} in use"
    return title


def _draw_pools(items: list[Gpu | Pool]) -> sheet.Drawing:
    """Draw the figure of ``pools``: a part for each GPU and for the host, a bar for each pool."""
    groups = tables.pools_of(items)
    page = sheet.FigurePage(_fullest_pool(items))
    most_bytes = 0
    for _, _, pools in groups:
        for pool in pools:
            for amount in (size(pool.total), used_of(pool)):
                if amount is not None:
                    most_bytes = max(most_bytes, amount)
    for gpu, pci, pools in groups:
        name = "Host"
        driver = ""
        if pci:
            name = "GPU"
        if gpu is not None:
            driver = gpu.driver
            if gpu.name.ok:
                name = plain(gpu.name.show())
        page.heading(name, f"{pci}  {driver}".strip())
        if not pools:
            page.lines("No layer shows a pool of this GPU.")
        page.bars(map(_pool_bar, pools), most_bytes)
        page.y += GAP
    page.footnote("Outline: total. Filled: in use. Hatched stub: not known. One scale.")
    return page.done()


def _pool_bar(pool: Pool) -> sheet.Bar:
    """A pool's bar; below it, in small letters, the source of its figures and why one is
    missing.
    """
    total = size(pool.total)
    used = used_of(pool)
    fills: list[tuple[float | None, Look]] = []
    if total is not None:
        fills.append((total, PALETTE["free"]))
    look = PALETTE["in use"]
    if used is None:
        look = PALETTE["not known"]
    fills.append((used, look))
    readings = [reading for reading in (pool.total, pool.used) if reading.ok]
    total_words = pool.total.show()
    # Small letters below the bar: the one source of what was read, then why the rest was not. The
    # same reason for both is said once.
    small = []
    if readings:
        small.append(tables.one_source(readings))
        if not pool.total.ok:
            small.append(f"total {total_words}")
        if used is None and pool.used.show() != total_words:
            small.append("used " + pool.used.show())
    else:
        small.append(total_words)
    return sheet.Bar(pool.layer, _pool_words(pool), fills, small, "bold")


def _pool_words(pool: Pool) -> str:
    """The words at the end of a pool's bar: how much of it is used, or only its total where that is
    not known.
    """
    total = size(pool.total)
    used = used_of(pool)
    total_words = cell(pool.total).words
    if used is None:
        return total_words
    if total is None:
        return f"{show_bytes(used)} used, total {total_words}"
    return f"{show_bytes(used)} of {total_words} used"


def used_of(pool: Pool) -> int | None:
    """Bytes of a pool that are in use: as its layer says it, or its total less what is free;
    None where neither is known.
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
    """The colour of each process of a box, by its process id. As many processes as SERIES has
    colours have one of their own, those that hold most; any further process shares one.

    Id 0 stands for the process of an error message, which may name none.
    """
    most_bytes = {0: 0}
    for book in books:
        for row in book.rows:
            if row.pid:
                most_so_far = most_bytes.get(row.pid, 0)
                most_bytes[row.pid] = max(most_so_far, size_or_zero(row.bytes))
    colour_of: dict[int, str] = {}
    largest_first = sorted(most_bytes, key=lambda pid: (-most_bytes[pid], pid))
    for pid in largest_first:
        # The id chooses where the search for an unused colour begins, so a process keeps its
        # colour when others come and go.
        start = pid % len(SERIES)
        preferred = SERIES[start:] + SERIES[:start]
        unused = [colour for colour in preferred if colour not in colour_of.values()]
        colour_of[pid] = unused[0] if unused else preferred[0]
    return colour_of


def _remaining_processes(readings: list[Reading]) -> sheet.BarPiece:
    """One piece for all processes that have none of their own: how many they are, and their sum."""
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
        """The ledger's total, or the sum of its pieces where that is larger."""
        sizes = [piece.bytes for piece in self.pieces]
        pieces = sum(amount for amount in sizes if amount is not None and amount > 0)
        return max(pieces, size_or_zero(self.book.used), size_or_zero(self.book.total))


def with_bars(view: Shown) -> Shown:
    """A view with a figure of its sizes, one bar for each row that has any. The first size of a row
    is the outline and the second one is filled; a single one is both. A view without sizes comes
    back as it was.
    """
    bars = []
    most_bytes = 0
    for row in view.cells[:MOST_BARS]:
        words, sizes = _words_and_sizes(row, view.columns)
        if sizes:
            most_bytes = max(most_bytes, *sizes)
            filled = sizes[0]
            if len(sizes) > 1:
                filled = sizes[1]
            fills = [(sizes[0], PALETTE["free"]), (filled, PALETTE["in use"])]
            sizes_in_words = ", ".join(map(show_bytes, sizes))
            bars.append(sheet.Bar(", ".join(words), sizes_in_words, fills))
    if not bars:
        return view
    return replace(view, draw=partial(_draw_bars, bars, most_bytes))


def _words_and_sizes(
    row: Sequence[object], columns: Sequence[Column]
) -> tuple[list[str], list[int]]:
    """The cells of a table's row that are words, without its source, and those that are sizes in
    bytes; other numbers are in neither.
    """
    words = []
    sizes = []
    for value, column in zip(row, columns):
        written = cell(value, column.unit)
        if written.number is False and column.name != "source":
            words.append(written.words)
        elif isinstance(value, Reading) and size(value) is not None:
            sizes.append(size_or_zero(value))
        elif isinstance(value, (int, float)) and column.unit == "bytes":
            sizes.append(int(value))
    return words, sizes


def _draw_bars(bars: list[sheet.Bar], most_bytes: int) -> sheet.Drawing:
    """Draw the figure of ``with_bars``."""
    page = sheet.FigurePage()
    page.bars(bars, most_bytes)
    return page.done()


def ledger(ledgers: Iterable[GpuLedger]) -> Shown:
    """One bar for each ledger, all on one scale: its pieces add up to what is in use, then comes
    what is free.

    The mark above a bar is at what its source says is in use; the title is the largest piece.
    """
    books = list(ledgers)
    colour_of = colours(books)
    # A message that names no process is of the failing one, which another ledger may name.
    colour_of[0] = colour_of[_failing_process(books)]
    bars = [_LedgerBar(book, pieces_of(book, colour_of)) for book in books]
    draw = partial(_draw_ledgers, bars)
    return replace(ledger_table(books), title=_largest_piece(bars), draw=draw)


def _failing_process(books: list[GpuLedger]) -> int:
    """The id of the process that failed; 0 where no ledger names it."""
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


def _draw_ledgers(bars: list[_LedgerBar]) -> sheet.Drawing:
    """Draw the figure of ``ledger``: a part for each ledger, with its bar and its notes."""
    page = sheet.FigurePage(_largest_piece(bars))
    most_bytes = max([1, *(bar.length_bytes for bar in bars)])
    for bar in bars:
        book = bar.book
        used = size(book.used)
        source = book.account
        if source == MESSAGE:
            source = "error message"
        page.heading(f"In use, says the {source}", book.place)
        page.y += sheet.LINE
        page.lines(_in_use(book))
        if used is not None:
            # The mark: a stroke of 0.024 by 0.05 inches that stands on the bar.
            x = sheet.MARGIN + used * page.scale(most_bytes)
            page.box(x - 0.012, 0.024, 0.05, PALETTE["reserved"], dy=-0.05)
        page.stacked(bar.pieces, most_bytes, measured=used is not None)
        for line in book.contradictions:
            _note(page, f"Contradiction: {line}", ALARM)
        for line in book.notes:
            _note(page, line, MUTED)
        page.y += GAP
    return page.done()


def _note(page: sheet.FigurePage, line: str, colour: str) -> None:
    """Write a line below a bar, indented as the words of its pieces are."""
    page.lines(line, sheet.MARGIN + sheet.WORDS_INDENT, colour)
    page.y += 0.03


def _in_use(book: GpuLedger) -> str:
    """The line below a ledger's heading: what is in use, how exactly that is known, and from
    where.
    """
    words = book.used.show()
    if not book.used.ok:
        return f"In use: {words}"
    if book.total.ok:
        words += f" of {book.total.show()}"
    slack = "to the byte"
    if book.tolerance_bytes:
        slack = f"give or take {show_bytes(book.tolerance_bytes)}"
    return f"{words}, {slack}; {tables.one_source([book.used])}"


def pieces_of(book: GpuLedger, colour_of: Mapping[int, str]) -> list[sheet.BarPiece]:
    """The pieces of one ledger's bar, in order: its rows, then what is free. The smallest processes
    are one piece together, which comes behind those of the other processes.

    A negative piece says how much was counted too often; it takes no room in the bar.
    ``colour_of`` has the colour of each process by its id, and under 0 that of the process of an
    error message.
    """
    without_piece = _smallest_processes(book)
    pieces = []
    pieces_of_process: Counter[int] = Counter()
    end_of_processes = 0
    for row in book.rows:
        if any(row is small for small in without_piece):
            continue
        look = _row_look(row, colour_of, pieces_of_process[row.pid])
        pieces.append(sheet.BarPiece(row.words, row.bytes, look))
        pieces_of_process[row.pid] += 1
        if row.kind == "other_process":
            end_of_processes = len(pieces)
    if without_piece:
        rest = _remaining_processes([row.bytes for row in without_piece])
        pieces.insert(end_of_processes, rest)
    total = size(book.total)
    used = size(book.used)
    if total is not None and used is not None and total > used:
        pieces.append(sheet.BarPiece(book.left, total - used, PALETTE["free"]))
    return pieces


def _row_look(row: LedgerRow, colour_of: Mapping[int, str], pieces_before: int) -> Look:
    """How the piece of a ledger's row looks. Pieces of one process have its colour and differ by
    their hatch: ``pieces_before`` is how many pieces the process has already.
    """
    if size_or_zero(row.bytes) < 0:
        return PALETTE["too much"]
    if row.kind in LOOKS:
        return LOOKS[row.kind]
    hatch = HATCHES[pieces_before % len(HATCHES)]
    return Look(colour_of[row.pid], "white", hatch)


def _smallest_processes(book: GpuLedger) -> list[LedgerRow]:
    """The rows without a piece of their own, in a ledger with more than MOST_PIECES rows: the
    smallest of the processes other than the failing one. Rows of all other kinds keep theirs, and
    at least one process does.
    """
    if len(book.rows) <= MOST_PIECES:
        return []
    processes = [row for row in book.rows if row.kind == "other_process"]
    further_rows = len(book.rows) - len(processes)
    room = max(1, MOST_PIECES - further_rows)
    processes.sort(key=lambda row: size_or_zero(row.bytes), reverse=True)
    return processes[room:]
