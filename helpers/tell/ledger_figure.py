"""The ledgers of a box drawn: one bar a source, whose pieces add up to what is in use, then what is free.

Each piece has its line of words below the bar. What was not measured is an empty hatched piece in the list, never a zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.figure import Figure

from helpers.judge.ledger import MESSAGE, GpuLedger, LedgerRow
from helpers.look.reading import show_bytes

from .box import ledger_table as ledger_table
from .holders import short
from .sheet import (
    ALARM,
    BODY,
    INK,
    MARGIN,
    MUTED,
    PALE,
    RULE,
    SMALL,
    UNKNOWN,
    WIDTH,
    Look,
    Sheet,
    fit,
    inches,
    wrap,
)
from .tables import gib, one_source, plain, size

NO_LEDGER = "Nothing says how much memory of a GPU is in use."
# One hue for the failing process, others beside it; hatches tell the kinds apart without colour.
LOOKS = {
    "process": (("#0072b2", ""), ("#56b4e9", "...."), ("#9ecae1", "")),
    "other_process": (("#009e73", ""), ("#66c2a5", "")),
    "outside": (("#e69f00", "\\\\\\\\"),),
    "reserved": (("#8a949e", ""),),
    "unattributed": (("white", "xxxx"),),
}
TOO_MUCH = Look("white", ALARM, "++++")
FREE = Look(PALE, MUTED)
ROWS = 8


class Piece(NamedTuple):
    """A piece of a bar: its words, its bytes where they are known, how it looks, its value in words."""

    words: str
    held: int | None
    look: Look
    value: str


def pieces_of(book: GpuLedger) -> list[Piece]:
    """The pieces of one ledger's bar, in order: its rows, the smallest taken together, then what is free.

    The pieces that are known and not negative make the bar; a negative one says how much was counted too often.
    """
    seen_kinds: dict[str, int] = {}
    rows, rest = list(book.rows), []
    if len(rows) > ROWS:
        kept = [row for row in rows if row.kind != "other_process"]
        others = sorted(
            (row for row in rows if row.kind == "other_process"),
            key=lambda r: -(size(r.bytes) or 0),
        )
        room = max(1, ROWS - len(kept))
        rest = others[room:]
        rows = [row for row in rows if row not in rest]
    found = []
    for row in rows:
        if rest and row.kind not in ("process", "other_process"):
            found.append(_together(rest))
            rest = []
        found.append(_piece(row, seen_kinds))
    if rest:
        found.append(_together(rest))
    total, used = size(book.total), size(book.used)
    if total is not None and used is not None and total > used:
        found.append(Piece(book.left, total - used, FREE, gib(total - used)))
    return found


def _together(rows: list[LedgerRow]) -> Piece:
    held, unknown = (
        sum(size(row.bytes) or 0 for row in rows),
        sum(size(row.bytes) is None for row in rows),
    )
    value = gib(held) + (f" and {unknown} unknown" if unknown else "")
    return Piece(f"{len(rows)} more processes", held, Look(MUTED, "white"), value)


def _piece(row: LedgerRow, seen_kinds: dict[str, int]) -> Piece:
    held = size(row.bytes)
    if held is None:
        return Piece(row.words, None, Look(edge=RULE, hatch=UNKNOWN), short(row.bytes))
    if held < 0:
        return Piece(row.words, held, TOO_MUCH, gib(held))
    looks = LOOKS[row.kind]
    face, hatch = looks[seen_kinds.get(row.kind, 0) % len(looks)]
    seen_kinds[row.kind] = seen_kinds.get(row.kind, 0) + 1
    return Piece(row.words, held, Look(face, INK if hatch else "white", hatch), gib(held))


def ledger_figure(ledgers: Iterable[GpuLedger]) -> Figure:
    """One bar a ledger, all on one scale; the mark above a bar stands at what its source says is in use."""
    sheet, right = Sheet(), WIDTH - MARGIN
    listed = list(ledgers)
    drawn = [(book, pieces_of(book)) for book in listed]
    top = max((_width(book, pieces) for book, pieces in drawn), default=0) or 1
    scale = (right - MARGIN) / top
    for book, pieces in drawn:
        sheet.heading(_title(book), book.pci)
        sheet.y += 0.15
        for line in wrap(_in_use(book), right - MARGIN, SMALL):
            sheet.text(MARGIN, line, SMALL, MUTED)
            sheet.y += 0.14
        used = size(book.used)
        if used is not None:
            sheet.box(MARGIN + used * scale - 0.012, 0.024, 0.05, Look(INK), dy=-0.03)
        sheet.y += 0.03
        if used is None:
            sheet.box(MARGIN, right - MARGIN, 0.24, Look(edge=RULE, hatch=UNKNOWN))
        x = MARGIN
        for piece in pieces:
            if piece.held is not None and piece.held > 0 and used is not None:
                sheet.box(x, piece.held * scale, 0.24, piece.look)
                x += piece.held * scale
        sheet.y += 0.42
        for piece in pieces:
            sheet.box(MARGIN, 0.11, 0.11, piece.look, dy=-0.10)
            sheet.text(right, piece.value, ha="right")
            room = right - MARGIN - 0.4 - inches(piece.value, BODY)
            for number, line in enumerate(_two_lines(piece.words, room)):
                sheet.y += 0.15 if number else 0.0
                sheet.text(MARGIN + 0.2, line)
            sheet.y += 0.185
        for mark, said, tone in (
            ("Contradiction: ", book.contradictions, ALARM),
            ("", book.notes, MUTED),
        ):
            for words in said:
                for line in wrap(mark + words, right - MARGIN - 0.2, SMALL):
                    sheet.text(MARGIN + 0.2, line, SMALL, tone)
                    sheet.y += 0.14
                sheet.y += 0.03
        sheet.y += 0.14
    if not listed:
        sheet.nothing(NO_LEDGER)
    return sheet.done()


def _width(book: GpuLedger, pieces: list[Piece]) -> int:
    parts = sum(piece.held for piece in pieces if piece.held and piece.held > 0)
    return max(parts, size(book.used) or 0, size(book.total) or 0)


def _two_lines(words: str, room: float) -> list[str]:
    lines = wrap(words, room, BODY)
    return lines if len(lines) <= 2 else [lines[0], fit(lines[1] + " …", room - 0.1, BODY)]


def _title(book: GpuLedger) -> str:
    return "In use, says the " + ("error message" if book.account == MESSAGE else "driver")


def _in_use(book: GpuLedger) -> str:
    if not book.used.ok:
        return f"In use: {book.used.show()}"
    total = f" of {gib(size(book.total))}" if size(book.total) is not None else ""
    exact = (
        "to the byte"
        if book.tolerance_bytes == 0
        else f"give or take {show_bytes(book.tolerance_bytes)}"
    )
    return f"{gib(size(book.used))}{total}, {exact}; {one_source([book.used])}"


def ledger_alt(ledgers: Iterable[GpuLedger]) -> str:
    """The ledger figure in words."""
    said = []
    for book in ledgers:
        parts = (
            ", ".join(f"{plain(piece.words)} {piece.value}" for piece in pieces_of(book))
            or "no part is known"
        )
        against = "".join(f"; contradiction: {plain(words)}" for words in book.contradictions)
        said.append(
            f"{_title(book)}{' on ' + book.pci if book.pci else ''}, {_in_use(book)}: {parts}{against}"
        )
    return (
        "What is in use of GPU memory as one bar a source. " + ". ".join(said) + "."
        if said
        else NO_LEDGER
    )
