"""The ledger browser: every byte in use by each source that counts it, filtered, ordered and traced to its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from helpers.judge.ledger import MESSAGE, GpuLedger, LedgerRow
from helpers.tell import ledger_figure
from helpers.tell.tables import gib, size

from .frame import Frame, picture_html, present, table_html

NAME = "Ledger browser"
ALL = "all"
ORDERS = ("as in the bar", "largest first", "name")


@dataclass(frozen=True)
class Browser:
    """Ledgers and what of them is shown: one account or all, one kind or all, rows with a word, in an order."""

    books: tuple[GpuLedger, ...]
    account: str = ALL
    kind: str = ALL
    word: str = ""
    order: str = ORDERS[0]

    def chosen(self) -> tuple[GpuLedger, ...]:
        """The ledgers of the account."""
        return tuple(book for book in self.books if self.account in (ALL, account_of(book)))

    def rows(self) -> list[tuple[GpuLedger, LedgerRow]]:
        """The rows shown. What was not measured stands last by size: it is not zero."""
        found = [
            (book, row)
            for book in self.chosen()
            for row in book.rows
            if self.kind in (ALL, row.kind)
            and self.word.casefold() in f"{row.words} {row.source}".casefold()
        ]
        if self.order == "largest first":
            found.sort(key=lambda pair: (size(pair[1].bytes) is None, -(size(pair[1].bytes) or 0)))
        elif self.order == "name":
            found.sort(key=lambda pair: pair[1].words.casefold())
        return found

    def says(self) -> str:
        """What the rows shown make of what each account says is in use, and what contradicts. Accounts are never added up."""
        said, rows = [], self.rows()
        for book in self.chosen():
            held = [size(row.bytes) for one, row in rows if one is book]
            said.append(
                f"{account_of(book)}: the rows shown make {gib(sum(one or 0 for one in held))} of "
                f"{book.used.show()} in use"
                + f", {held.count(None)} not measured" * (None in held)
                + "".join(f"; contradiction: {words}" for words in book.contradictions)
            )
        return ". ".join(said) or ledger_figure.NO_LEDGER


def account_of(book: GpuLedger) -> str:
    """A ledger in words: who counts, on which GPU."""
    return " ".join(filter(None, ["message" if book.account == MESSAGE else "driver", book.pci]))


def build(frame: Frame, browser: Browser) -> Sequence[Any]:
    """Four controls, the rows, what they make, and the bars of the account."""
    books = browser.books
    account = frame.field(
        "Dropdown", "Account", ALL, options=[ALL, *dict.fromkeys(map(account_of, books))]
    )
    kinds = dict.fromkeys(row.kind for book in books for row in book.rows)
    kind = frame.field(
        "Dropdown", "Kind", ALL, options=[(one.replace("_", " "), one) for one in (ALL, *kinds)]
    )
    word = frame.field("Text", "With the word", "", placeholder="process or source")
    order = frame.field("Dropdown", "Order", ORDERS[0], options=ORDERS)
    listed, bars = frame.widgets.HTML(), frame.widgets.HTML()

    def look() -> None:
        now = Browser(books, account.value, kind.value, word.value.strip(), order.value)
        rows = [
            [
                account_of(book),
                row.kind.replace("_", " "),
                row.words,
                row.bytes.show() if size(row.bytes) is None else gib(size(row.bytes)),
                row.source,
            ]
            for book, row in now.rows()
        ]
        listed.value = table_html(
            rows, ["account", "kind", "held by", "bytes", "source"], now.says()
        )

    def draw() -> None:
        chosen = Browser(books, account.value).chosen()
        bars.value = picture_html(
            ledger_figure.ledger_figure(chosen), ledger_figure.ledger_alt(chosen)
        )

    frame.changed(draw, account)()
    frame.changed(look, account, kind, word, order)()
    return [account, kind, word, order, listed, bars]


def show(books: Sequence[GpuLedger]) -> None:
    """The panel, or the table where nobody is there."""
    browser = Browser(tuple(books))
    present(
        NAME,
        lambda: [ledger_figure.ledger_table(books), browser.says()],
        lambda frame: build(frame, browser),
    )
