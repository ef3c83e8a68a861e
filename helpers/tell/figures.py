"""Figures of memory pools, holders, ledgers and the kernel log, drawn on a sheet measured in inches.

Each is a ``Shown`` whose rows are what is drawn, so its alt text comes from them. What is unknown is an empty hatched stub with
its reason, never a zero. No figure says anything by colour alone. Nothing here opens a window or keeps a figure alive.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from helpers.judge.ledger import MESSAGE, GpuLedger, LedgerRow
from helpers.look.gpus import Gpu, Holder, Pool
from helpers.look.kernel_log import Event
from helpers.look.reading import MIB, Reading, not_available, seen, show_bytes

from .box import ledger_table
from .sheet import (
    ACCENT,
    ALARM,
    BODY,
    INK,
    MARGIN,
    MUTED,
    PALE,
    RIGHT,
    RULE,
    SERIES,
    SMALL,
    UNKNOWN,
    Bar,
    Look,
    Piece,
    Sheet,
    fit,
    inches,
    png,
    wrap,
)
from .shown import Column, Shown, cell, plain, size, words
from .tables import (
    NO_GPU,
    kind_words,
    one_each,
    one_source,
    pools_of,
    pools_table,
    since_boot,
    who,
)

NO_POOL = "No memory pool was found."
NO_EVENTS = "The kernel log holds no GPU or out-of-memory event."
NO_LEDGER = "Nothing says how much memory of a GPU is in use."
# One hue for the failing process, others beside it; hatches tell the kinds apart without colour.
LOOKS = {
    "process": (("#0072b2", ""), ("#56b4e9", "...."), ("#9ecae1", "")),
    "other_process": (("#009e73", ""), ("#66c2a5", "")),
    "outside": (("#e69f00", "\\\\\\\\"),),
    "reserved": (("#8a949e", ""),),
    "unattributed": (("white", "xxxx"),),
}
NOBODY, TOO_MUCH, FREE = Look("white", INK, "xxxx"), Look("white", ALARM, "++++"), Look(PALE, MUTED)
ROWS = 8
"""Rows of a ledger that have a piece of their own; the smallest processes beyond are taken together."""
SHORT_S = 0.03
"""The width of one event on the time line, in inches."""


def show(view: Shown | Figure, alt: str = "") -> None:
    """Show a view's figure in a notebook, with its words for those who cannot see it; elsewhere the words are printed.

    ``alt`` is for a figure that is no view.
    """
    from IPython import get_ipython
    from IPython.display import display

    alt = alt or (view.alt if isinstance(view, Shown) else "")
    if get_ipython() is None:
        print(alt)
        return
    figure: Any = view.draw() if isinstance(view, Shown) and view.draw else view
    data, width, height = png(figure)
    figure.clear()
    display(
        {"image/png": base64.b64encode(data).decode("ascii"), "text/plain": alt},
        raw=True,
        metadata={"image/png": {"alt": alt, "width": width, "height": height}},
    )


def pools(items: Iterable[Gpu | Pool]) -> Shown:
    """What each layer says of each memory pool, on one scale: the outline is the total, the filled part is in use."""
    listed = list(items)
    view = pools_table(listed, sources=False)
    title = "Memory pools of each layer as bars"
    return replace(view, title=title, none=NO_POOL, draw=partial(_draw_pools, listed))


def _draw_pools(items: list[Gpu | Pool]) -> Figure:
    sheet, groups = Sheet(), pools_of(items)
    amounts = [(size(pool.total), used_of(pool)) for _, _, pools in groups for pool in pools]
    top = max((amount or 0 for pair in amounts for amount in pair), default=0)
    for gpu, pci, listed in groups:
        sheet.heading(_title(gpu, pci), _subtitle(gpu, pci))
        if not listed:
            sheet.nothing("No layer gives a pool for it.")
        sheet.bars(map(_pool_bar, listed), top)
        sheet.y += 0.14
    if not groups:
        sheet.nothing(NO_POOL)
    elif any(amount is not None for pair in amounts for amount in pair):
        sheet.footnote(
            f"Outline: total. Filled: in use. Hatched: not known. One scale; the longest bar is {show_bytes(top)}."
        )
    else:
        sheet.footnote("Hatched: not known.")
    return sheet.done()


def _pool_bar(pool: Pool) -> Bar:
    """A pool's bar; below it where the figures came from, and why one is missing."""
    total, used = size(pool.total), used_of(pool)
    fills: list[tuple[float, Look]] = []
    if total is not None:
        fills.append((total, Look(PALE, MUTED, UNKNOWN if used is None else "")))
    if used is not None:
        fills.append((used, Look(ACCENT)))
    read = [r for r in (pool.total, pool.used) if r.ok]
    small = [one_source(read)] if read else []
    if not pool.total.ok:
        small.append(("total " if read else "") + pool.total.show())
    if read and used is None and pool.used.show() != pool.total.show():
        small.append("used " + pool.used.show())
    return Bar(pool.layer, _pool_words(pool), fills, small, "bold")


def _pool_words(pool: Pool) -> str:
    total, used = cell(pool.total).words, used_of(pool)
    if used is None:
        return f"{total}, used: {cell(pool.used).words}" if pool.total.ok else total
    known = f"of {total} used" if pool.total.ok else f"used, total {total}"
    return f"{show_bytes(used)} {known}"


def used_of(pool: Pool) -> int | None:
    """Bytes in use, or total less free where the layer gives only these; None where it is not known."""
    total, used, free = size(pool.total), size(pool.used), size(pool.free)
    if used is not None or total is None or free is None:
        return used
    return total - free


def holders(gpus: Iterable[Gpu]) -> Shown:
    """Who holds each GPU's memory: one bar a GPU, a part for each process, one for what no process accounts for, one free."""
    listed = [(gpu, *parts_of(gpu)) for gpu in gpus]
    rows = [[_name(gpu), one.words, one.amount] for gpu, _, parts in listed for one in parts]
    unseen = [f"Not seen on {gpu.pci}: {spot}" for gpu, *_ in listed for spot in gpu.blind_spots]
    title, draw = "Holders of GPU memory as one bar a GPU", partial(_draw_holders, listed)
    columns = ["GPU", "part", Column("bytes", "bytes")]
    return Shown(title, columns, rows, unseen, none=NO_GPU, draw=draw)


def _draw_holders(listed: list[tuple[Gpu, Pool | None, list[Piece]]]) -> Figure:
    sheet = Sheet()
    for gpu, pool, parts in listed:
        sheet.heading(_title(gpu, gpu.pci), _subtitle(gpu, gpu.pci))
        whole = max(sum(one.held or 0 for one in parts), (size(pool.total) or 0) if pool else 0)
        total = f"of {pool.total.show()} by {pool.layer}" if pool else "the total is not available"
        sheet.y += 0.14
        sheet.lines("Held memory, " + total)
        sheet.y -= 0.07
        sheet.stacked(parts, whole)
        for spot in gpu.blind_spots:
            sheet.lines("Not seen: " + spot, MARGIN + 0.2)
            sheet.y += 0.02
        sheet.y += 0.16
    if not listed:
        sheet.nothing(NO_GPU)
    return sheet.done()


def parts_of(gpu: Gpu) -> tuple[Pool | None, list[Piece]]:
    """The pool whose use the holders explain best, and the parts of its bar: every byte of the pool stands in one."""
    own = one_each(gpu.holders)
    looks = [Look(color, "white") for color in SERIES]
    parts = [Piece(_holder_words(h), h.memory, look) for h, look in zip(own, looks, strict=False)]
    if own[len(SERIES) :]:
        parts.append(_together([h.memory for h in own[len(SERIES) :]]))
    parts.append(Piece("held, by no process seen here", gpu.unattributed, NOBODY))
    pool = _explained(gpu, sum(part.held or 0 for part in parts))
    return pool, [*parts, *_rest(pool, gpu, parts)] if pool else parts


def _explained(gpu: Gpu, held: int) -> Pool | None:
    """The pool whose use is nearest to what its holders hold; the first known where the rest is not measured."""
    known = [p for p in gpu.pools if size(p.total) is not None and used_of(p) is not None]
    drm = [pool for pool in known if pool.layer in ("sysfs VRAM", "sysfs GTT")]
    if gpu.integrated and len(drm) == 2:
        known.insert(0, _both(*drm))
    if size(gpu.unattributed) is None and known:
        return known[0]
    return min(known, key=lambda p: abs((used_of(p) or 0) - held), default=None)


def _rest(pool: Pool, gpu: Gpu, parts: list[Piece]) -> Iterable[Piece]:
    """What of the pool is left beside its holders: in use by nobody known, kept by the driver, free."""
    total, free = size(pool.total) or 0, size(pool.free)
    held = sum(part.held or 0 for part in parts)
    free = max(total - max(used_of(pool) or 0, held), 0) if free is None else free
    if (between := total - held - free) >= MIB:
        unknown = size(gpu.unattributed) is None
        name = "in use, by whom is not known" if unknown else "neither in use nor free"
        yield Piece(name, between, Look("white", MUTED, "..."))
    yield Piece("free", free, FREE)


def _both(one: Pool, other: Pool) -> Pool:
    """An integrated GPU takes memory from its carve-out and from the RAM alike: two pools, one use."""
    total = seen((size(one.total) or 0) + (size(other.total) or 0), "bytes", one.total.source)
    used = seen((used_of(one) or 0) + (used_of(other) or 0), "bytes", one.used.source)
    free = not_available("see the parts", "bytes", one.total.source)
    return Pool(one.pci, f"{one.layer} and {other.layer}", total, used, free)


def _together(readings: list[Reading]) -> Piece:
    """The processes that have no piece of their own, as one."""
    held, unknown = sum(size(r) or 0 for r in readings), sum(size(r) is None for r in readings)
    name = f"{len(readings)} more processes" + f", {unknown} not measured" * bool(unknown)
    return Piece(name, held, Look(MUTED, "white"))


def _holder_words(holder: Holder) -> str:
    odd = {"Z": "zombie", "D": "waits in the kernel"}.get(holder.state[:1], "")
    extra = ", ".join(word for word in (odd, holder.note) if word)
    return f"{holder.name or 'unnamed'} ({holder.pid})" + (f": {extra}" if extra else "")


def ledger(ledgers: Iterable[GpuLedger]) -> Shown:
    """One bar a ledger, all on one scale, whose pieces add up to what is in use, then what is free.

    The mark above a bar stands at what its source says is in use.
    """
    books = list(ledgers)
    view, draw = ledger_table(books), partial(_draw_ledgers, books)
    title = "What is in use of GPU memory as one bar a source"
    return replace(view, title=title, none=NO_LEDGER, draw=draw)


def pieces_of(book: GpuLedger) -> list[Piece]:
    """The pieces of one ledger's bar, in order: its rows, the smallest processes taken together, then what is free.

    The pieces that are known and not negative make the bar; a negative one says how much was counted too often.
    """
    others = [row for row in book.rows if row.kind == "other_process"]
    room = max(1, ROWS - (len(book.rows) - len(others)))
    ranked = sorted(others, key=lambda row: -(size(row.bytes) or 0))
    few = ranked[room:] if len(book.rows) > ROWS else []
    count: dict[str, int] = {}
    kept = [row for row in book.rows if row not in few]
    pieces = [_row_piece(row, count) for row in kept]
    if few:
        after = max(n for n, row in enumerate(kept, 1) if row.kind == "other_process")
        pieces.insert(after, _together([row.bytes for row in few]))
    total, used = size(book.total), size(book.used)
    if total is not None and used is not None and total > used:
        pieces.append(Piece(book.left, total - used, FREE))
    return pieces


def _row_piece(row: LedgerRow, count: dict[str, int]) -> Piece:
    """A row as a piece; ``count`` holds how many of each kind went before, so that neighbours of a kind differ."""
    looks, held = LOOKS[row.kind], size(row.bytes)
    if held is not None and held < 0:
        return Piece(row.words, held, TOO_MUCH)
    face, hatch = looks[count.get(row.kind, 0) % len(looks)]
    if held is not None:
        count[row.kind] = count.get(row.kind, 0) + 1
    return Piece(row.words, row.bytes, Look(face, INK if hatch else "white", hatch))


def _draw_ledgers(books: list[GpuLedger]) -> Figure:
    sheet, drawn = Sheet(), [(book, pieces_of(book)) for book in books]
    top = max((_width(*one) for one in drawn), default=0) or 1
    for book, pieces in drawn:
        used = size(book.used)
        sheet.heading(
            "In use, says the " + ("error message" if book.account == MESSAGE else "driver"),
            book.pci,
        )
        sheet.y += 0.15
        sheet.lines(_in_use(book))
        if used is not None:
            at = MARGIN + used * (RIGHT - MARGIN) / top
            sheet.box(at - 0.012, 0.024, 0.05, Look(INK), dy=-0.03)
        sheet.y += 0.03
        sheet.stacked(pieces, top, known=used is not None)
        for line, tone in (
            *(("Contradiction: " + line, ALARM) for line in book.contradictions),
            *((line, MUTED) for line in book.notes),
        ):
            sheet.lines(line, MARGIN + 0.2, tone)
            sheet.y += 0.03
        sheet.y += 0.14
    if not books:
        sheet.nothing(NO_LEDGER)
    return sheet.done()


def _width(book: GpuLedger, pieces: list[Piece]) -> int:
    parts = sum(piece.held for piece in pieces if piece.held and piece.held > 0)
    return max(parts, size(book.used) or 0, size(book.total) or 0)


def _in_use(book: GpuLedger) -> str:
    if not book.used.ok:
        return f"In use: {book.used.show()}"
    total = f" of {book.total.show()}" if book.total.ok else ""
    slack = (
        f"give or take {show_bytes(book.tolerance_bytes)}"
        if book.tolerance_bytes
        else "to the byte"
    )
    return f"{book.used.show()}{total}, {slack}; {one_source([book.used])}"


def timeline(events: Iterable[Event], log: Reading | None = None) -> Shown:
    """What the kernel log says about the GPUs in this boot and the one before: a row a kind, worst kinds on top.

    ``log`` says where the log was read from, or why it was not: no event seen in a log not read is not "no event".
    """
    none = NO_EVENTS
    if log is not None and not log.ok:
        none = f"The kernel log was not read ({log.show()}), so no event here proves nothing."
    boots: list[tuple[str, list[Event]]] = []
    listed, rows, worst = list(events), [], []
    for boot, title in ((-1, "Boot before"), (0, "This boot")):
        if here := [e for e in listed if e.boot == boot]:
            boots.append((title, here))
            rows += [[title, _kind(kind), _count(here, kind)] for kind in _kinds(here)]
            worst += [f"{title}, the first of the worst: {_about(e)}" for e in _worst(here)[:1]]
    columns, draw = ["boot", "kind", "lines"], partial(_draw_timeline, boots, none)
    return Shown("Kernel log events on a time line", columns, rows, worst, none=none, draw=draw)


def _draw_timeline(boots: list[tuple[str, list[Event]]], none: str) -> Figure:
    sheet, left = Sheet(), 2.0
    for title, here in boots:
        moments = [_seconds(when) for e in here for when in (e.when, e.until)]
        end = max((at for at in moments if at is not None), default=0) or 1.0
        alarms, count = _worst(here), _count(here)
        sheet.heading(title, f"{count} line{'s' * (count != 1)}")
        for kind in _kinds(here):
            sheet.y += 0.2
            many = str(_count(here, kind))
            sheet.text(left - 0.14, many, ha="right")
            sheet.text(MARGIN, fit(_kind(kind), left - MARGIN - 0.3 - inches(many, BODY), BODY))
            marks = [(_seconds(e.when), e) for e in here if e.kind == kind]
            if all(at is None for at, _ in marks):
                sheet.text(left, "the log gives no seconds since boot", SMALL, MUTED)
                continue
            sheet.box(left, RIGHT - left, 0.008, Look(RULE), dy=-0.035)
            for at, e in marks:
                if at is not None:
                    scale = (RIGHT - left - SHORT_S) / end
                    wide = (max(_seconds(e.until) or at, at) - at) * scale + SHORT_S
                    look = Look(ALARM if any(e is alarm for alarm in alarms) else ACCENT)
                    sheet.box(left + at * scale, wide, 0.15, look, dy=-0.11)
        if any(at is not None for at in moments):
            sheet.time_axis(left, RIGHT - SHORT_S, end)
        sheet.y += 0.3
        for e in alarms:
            sheet.box(MARGIN, 0.03, 0.15, Look(ALARM), dy=-0.11)
            text = f"{since_boot(e.when)}  {_kind(e.kind)}: {_about(e)}"
            lines = wrap(text, RIGHT - MARGIN - 0.2, SMALL)
            for line in lines if len(lines) <= 3 else [*lines[:2], lines[2] + "…"]:
                sheet.text(MARGIN + 0.14, line, SMALL)
                sheet.y += 0.15
            sheet.y += 0.03
        sheet.y += 0.12
    if not boots:
        sheet.nothing(none)
    return sheet.done()


def _title(gpu: Gpu | None, pci: str) -> str:
    return plain(gpu.name.show()) if gpu and gpu.name.ok else "GPU" if pci else "Host"


def _subtitle(gpu: Gpu | None, pci: str) -> str:
    return "  ".join(part for part in (pci, gpu.driver if gpu else "") if part)


def _name(gpu: Gpu) -> str:
    return f"{_title(gpu, gpu.pci)} ({gpu.pci})"


def _seconds(when: Reading) -> float | None:
    value = when.value
    if not when.ok or isinstance(value, str) or value is None or not math.isfinite(value):
        return None
    return max(float(value), 0.0)


def _kinds(events: list[Event]) -> list[str]:
    """The kinds of the events, worst first; one that has no words is last."""
    order = list(kind_words())
    return sorted(
        {e.kind for e in events},
        key=lambda kind: (order.index(kind) if kind in order else len(order), kind),
    )


def _count(events: list[Event], kind: str = "") -> int:
    """Lines of the log of a kind, or of all."""
    return sum(e.count for e in events if kind in ("", e.kind))


def _worst(events: list[Event]) -> list[Event]:
    """The first event of each of the three worst kinds: what came later is often its echo. Harmless kinds have no worst."""
    bad = {row["kind"] for row in words("events") if not row.get("harmless")}
    there = [kind for kind in _kinds(events) if kind in bad]
    return [next(e for e in events if e.kind == kind) for kind in there[:3]]


def _kind(kind: str) -> str:
    return kind_words().get(kind) or plain(kind).replace("_", " ")


def _about(event: Event) -> str:
    named = who(event)
    text = (f"{named}: " if named else "") + " ".join(event.text[:600].split())
    return plain(f"{text} ({event.meaning})" if event.meaning else text)
