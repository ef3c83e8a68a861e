"""Figures of memory pools, holders and ledgers, drawn on a sheet measured in inches.

Each is a ``Shown`` whose rows are what is drawn, so its alt text comes from them; its title is
the answer. What is unknown is a short hatched stub with its reason, never a zero. A process has
one colour in every figure, and no figure says anything by colour alone. Nothing here opens a
window or keeps a figure alive.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from matplotlib.figure import Figure

from helpers.ground.shapes import Reading
from helpers.ground.units import plain, show_bytes
from helpers.judge.ledger import MESSAGE, GpuLedger, LedgerRow
from helpers.look.gpus import Gpu, Pool
from helpers.tell.shown import Shown
from helpers.tell.values import cell, size

from . import sheet, tables
from .box import ledger_table

LOOKS = {
    "outside": sheet.Look("#8a949e", "white", "\\\\\\\\"),
    "reserved": sheet.Look("#8a949e", "white"),
    "unattributed": sheet.Look("white", sheet.INK, "xxxx"),
}
"""How the parts that are no process of this box look; a process has its own colour."""
HATCHES = ("", "||||", "////")
"""Parts of one process beside each other."""
TOO_MUCH = sheet.Look("white", sheet.ALARM, "++++")
FREE = sheet.Look(sheet.PALE, sheet.MUTED)
ROWS = 8
"""Rows of a ledger that have a piece of their own; the smallest processes beyond are taken
together.
"""


def pools(items: Iterable[Gpu | Pool]) -> Shown:
    """What each layer says of each memory pool, on one scale: the outline is the total, the
    filled part is in use.
    """
    listed = list(items)
    every = [pool for _, _, own in tables.pools_of(listed) for pool in own]
    shares = [(used_of(pool) or 0) / (size(pool.total) or math.inf) for pool in every]
    share, most = max(zip(shares, every, strict=True), key=lambda pair: pair[0], default=(0, None))
    title = "No layer says how much of its memory is in use"
    if most is not None and share > 0:
        used = out_of(used_of(most) or 0, size(most.total) or 0)
        title = f"{used} in use: {most.layer} is fullest"
    draw = partial(_draw_pools, listed, title)
    view = tables.pools_table(listed).without("source")
    return replace(view, title=title, draw=draw)


def _draw_pools(items: list[Gpu | Pool], title: str) -> Figure:
    groups = tables.pools_of(items)
    page = sheet.Sheet(title)
    amounts = [(size(pool.total), used_of(pool)) for _, _, pools in groups for pool in pools]
    top = max((amount or 0 for pair in amounts for amount in pair), default=0)
    for gpu, pci, listed in groups:
        name = plain(gpu.name.show()) if gpu and gpu.name.ok else "GPU" if pci else "Host"
        page.heading(name, f"{pci}  {gpu.driver if gpu else ''}".strip())
        if not listed:
            page.lines("No layer gives a pool for it.")
        page.bars(map(_pool_bar, listed), top)
        page.y += 0.1
    page.footnote("Outline: total. Filled: in use. Hatched stub: not known. One scale.")
    return page.done()


def _pool_bar(pool: Pool) -> sheet.Bar:
    """A pool's bar; below it where the figures came from, and why one is missing."""
    total = size(pool.total)
    used = used_of(pool)
    fills: list[tuple[float | None, sheet.Look]] = [
        (total, sheet.Look(sheet.PALE, sheet.MUTED))
    ] * (total is not None)
    fills.append((used, sheet.NOT_KNOWN if used is None else sheet.Look(sheet.ACCENT)))
    read = [r for r in (pool.total, pool.used) if r.ok]
    small = [tables.one_source(read)] if read else []
    if not pool.total.ok:
        small.append(("total " if read else "") + pool.total.show())
    if read and used is None and pool.used.show() != pool.total.show():
        small.append("used " + pool.used.show())
    whole = cell(pool.total).words
    value = whole if used is None and total is None else f"{whole}, used: {cell(pool.used).words}"
    if used is not None:
        rest = f"used, total {whole}" if total is None else f"of {whole} used"
        value = f"{show_bytes(used)} {rest}"
    return sheet.Bar(pool.layer, value, fills, small, "bold")


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


def out_of(part: int, whole: int) -> str:
    """A part and its whole: ``21.13 of 23.99 GiB``, or ``6.09 MiB of 23.99 GiB``."""
    (number, unit), said = show_bytes(part).split(), show_bytes(whole)
    return f"{number} of {said}" if said.endswith(f" {unit}") else f"{number} {unit} of {said}"


def colours(books: Iterable[GpuLedger]) -> dict[int, str]:
    """The colour of each process of a box in every figure, by its number; the six that hold
    most differ.

    A message's process that no ledger names is number 0.
    """
    held = {0: 0}
    made = dict[int, str]()
    many = len(sheet.SERIES)
    for row in (row for book in books for row in book.rows):
        for pid in _pid(row):
            held[pid] = max(held.get(pid, 0), size(row.bytes) or 0)
    for pid in sorted(held, key=lambda pid: (-held[pid], pid)):
        ranked = [sheet.SERIES[(pid + step) % many] for step in range(many)]
        made[pid] = next((one for one in ranked if one not in made.values()), ranked[0])
    return made


def _together(readings: list[Reading]) -> sheet.Piece:
    """The processes that have no piece of their own, as one."""
    held = sum(size(r) or 0 for r in readings)
    unknown = sum(size(r) is None for r in readings)
    name = f"{len(readings)} more processes" + f", {unknown} not measured" * bool(unknown)
    return sheet.Piece(name, held, sheet.Look(sheet.MUTED, "white"))


def ledger(ledgers: Iterable[GpuLedger]) -> Shown:
    """One bar a ledger, all on one scale, whose pieces add up to what is in use, then what is
    free.

    The mark above a bar stands at what its source says is in use; the title is the largest
    piece of all.
    """
    books = list(ledgers)
    of = colours(books)
    own = [pid for book in books for row in book.rows if row.kind == "process" for pid in _pid(row)]
    of[0] = of[(own or [0])[0]]
    bars = [(book, pieces_of(book, of)) for book in books]
    held = [(p.held or 0, p.words, _whole(*bar)) for bar in bars for p in bar[1] if p.look != FREE]
    most, what, whole = max(held, key=lambda row: row[0], default=(0, "", 0))
    title = "Nothing is known to be in use"
    if most > 0:
        title = f"{out_of(most, whole)}: {what.replace(': ', ', ')}"
    view = ledger_table(books)
    draw = partial(_draw_ledgers, bars, title)
    return replace(view, title=title, draw=draw)


def _draw_ledgers(bars: list[tuple[GpuLedger, list[sheet.Piece]]], title: str) -> Figure:
    page = sheet.Sheet(title)
    top = max((_whole(*bar) for bar in bars), default=0) or 1
    for book, pieces in bars:
        used = size(book.used)
        source = "error message" if book.account == MESSAGE else "driver"
        page.heading(f"In use, says the {source}", book.pci)
        page.y += 0.16
        page.lines(_in_use(book))
        if used is not None:
            at = sheet.MARGIN + used * (sheet.RIGHT - sheet.MARGIN) / top
            page.box(at - 0.012, 0.024, 0.05, sheet.Look(sheet.INK), dy=-0.05)
        page.stacked(pieces, top, known=used is not None)
        below = [(f"Contradiction: {line}", sheet.ALARM) for line in book.contradictions]
        for line, tone in [*below, *((line, sheet.MUTED) for line in book.notes)]:
            page.lines(line, sheet.MARGIN + 0.2, tone)
            page.y += 0.03
        page.y += 0.1
    return page.done()


def _whole(book: GpuLedger, pieces: list[sheet.Piece]) -> int:
    """What a bar is out of: its total, or its parts where they are more."""
    parts = sum(piece.held for piece in pieces if piece.held and piece.held > 0)
    return max(parts, size(book.used) or 0, size(book.total) or 0)


def _in_use(book: GpuLedger) -> str:
    if not book.used.ok:
        return f"In use: {book.used.show()}"
    total = f" of {book.total.show()}" if book.total.ok else ""
    far = book.tolerance_bytes
    slack = f"give or take {show_bytes(far)}" if far else "to the byte"
    return f"{book.used.show()}{total}, {slack}; {tables.one_source([book.used])}"


def _pid(row: LedgerRow) -> list[int]:
    """The process that a row names, if any."""
    return [int(number) for number in re.findall(r"\((\d+)\)", row.words)[:1]]


def pieces_of(book: GpuLedger, of: Mapping[int, str]) -> list[sheet.Piece]:
    """The pieces of one ledger's bar, in order: its rows, the smallest processes taken
    together, then what is free.

    The pieces that are known and not negative make the bar; a negative one says how much was
    counted too often. ``of`` has the colour of each process, under 0 of the one that a message
    calls this one.
    """
    others = [row for row in book.rows if row.kind == "other_process"]
    room = max(1, ROWS - (len(book.rows) - len(others)))
    ranked = sorted(others, key=lambda row: -(size(row.bytes) or 0))
    few = ranked[room:] if len(book.rows) > ROWS else []
    kept = [row for row in book.rows if all(row is not one for one in few)]
    pids = [(_pid(row) or [0])[0] for row in kept]
    pieces = []
    for at, (row, pid) in enumerate(zip(kept, pids, strict=True)):
        look = LOOKS.get(row.kind) or sheet.Look(
            of[pid], "white", HATCHES[pids[:at].count(pid) % 3]
        )
        look = look if (size(row.bytes) or 0) >= 0 else TOO_MUCH
        pieces.append(sheet.Piece(row.words, row.bytes, look))
    if few:
        after = max(n for n, row in enumerate(kept, 1) if row.kind == "other_process")
        pieces.insert(after, _together([row.bytes for row in few]))
    total = size(book.total)
    used = size(book.used)
    if total is not None and used is not None and total > used:
        pieces.append(sheet.Piece(book.left, total - used, FREE))
    return pieces
