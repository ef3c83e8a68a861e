"""Panels over a table: the ledger, the remedies and the runs, each filtered, ordered, and one of its rows in full."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helpers.child import CHECKOUT
from helpers.judge.ledger import MESSAGE, GpuLedger, LedgerRow
from helpers.load.remedies import FixRow, FixStudy
from helpers.look.reading import show_bytes
from helpers.run.record import files_below, gone, read_batch
from helpers.run.shapes import STATES, Run
from helpers.tell import batches, figures, fixes, verdict
from helpers.tell.box import ledger_table
from helpers.tell.shown import Column, Shown, size

from .frame import Frame, Panel, Part, parts_html, text_html

ALL = "all"


def has_word(word: str, *texts: str) -> bool:
    """Whether a word stands in one of the texts, in any letter case."""
    return word.casefold() in " ".join(texts).casefold()


def choices(frame: Frame, words: str, codes: Sequence[str]) -> Any:
    """A choice of one code or all, the codes in words."""
    options = [(one.replace("_", " "), one) for one in dict.fromkeys([ALL, *codes])]
    return frame.field("Dropdown", words, ALL, options=options)


def table_and_row(
    frame: Frame,
    controls: Sequence[Any],
    view: Callable[[], tuple[Shown, list[tuple[str, str]]]],
    label: str,
    detail: Callable[[str], str],
) -> tuple[list[Any], Callable[..., None]]:
    """A table that follows its controls and one of its rows in full: the widgets, and what looks again.

    ``view`` gives the table and its rows as (words, key), ``detail`` what is known of a key, which is empty for no row.
    """
    one = frame.field("Dropdown", label, None, wide=True)
    listed, full = frame.widgets.HTML(), frame.widgets.HTML()

    def look() -> None:
        shown, rows = view()
        listed.value, one.options = shown._repr_html_(), rows
        one.index = 0 if rows else None
        read()

    def read() -> None:
        full.value = text_html(detail(one.value or ""))

    frame.changed(read, one)
    again = frame.changed(look, *controls)
    again()
    return [listed, one, full], again


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
        rows = [
            (book, row)
            for book in self.chosen()
            for row in book.rows
            if self.kind in (ALL, row.kind) and has_word(self.word, row.words, row.source)
        ]
        if self.order == "largest first":
            rows.sort(key=lambda pair: (size(pair[1].bytes) is None, -(size(pair[1].bytes) or 0)))
        elif self.order == "name":
            rows.sort(key=lambda pair: pair[1].words.casefold())
        return rows

    def says(self) -> str:
        """What the rows shown make of what each account says is in use, and what contradicts. Accounts are never added up."""
        said, rows = [], self.rows()
        for book in self.chosen():
            held = [size(row.bytes) for one, row in rows if one is book]
            made, unknown = show_bytes(sum(one or 0 for one in held)), held.count(None)
            words = f"{account_of(book)}: the rows shown make {made} of {book.used.show()} in use"
            words += f", {unknown} not measured" * bool(unknown)
            said.append(words + "".join(f"; contradiction: {one}" for one in book.contradictions))
        return ". ".join(said) or figures.NO_LEDGER

    def view(self) -> Shown:
        """The rows shown, as a table."""
        rows = [
            [account_of(book), row.kind.replace("_", " "), row.words, _held(row), row.source]
            for book, row in self.rows()
        ]
        columns = ["account", "kind", "held by", Column("bytes", "bytes"), "source"]
        return Shown(self.says(), columns, rows)

    def parts(self) -> list[Part]:
        """Every row, and what they make."""
        return [ledger_table(self.books), self.says()]


def _held(row: LedgerRow) -> Any:
    held = size(row.bytes)
    return row.bytes if held is None else held


def account_of(book: GpuLedger) -> str:
    """A ledger in words: who counts, on which GPU."""
    who = "message" if book.account == MESSAGE else "driver"
    return f"{who} {book.pci}".strip()


def build_ledger(frame: Frame, browser: Browser) -> Sequence[Any]:
    """Four controls, the rows, what they make, and the bars of the account."""
    books = browser.books
    account = choices(frame, "Account", [account_of(book) for book in books])
    kind = choices(frame, "Kind", [row.kind for book in books for row in book.rows])
    word = frame.field("Text", "With the word", "", placeholder="process or source")
    order = frame.field("Dropdown", "Order", ORDERS[0], options=ORDERS)
    listed, bars = frame.widgets.HTML(), frame.widgets.HTML()

    def look() -> None:
        now = Browser(books, account.value, kind.value, word.value.strip(), order.value)
        listed.value = now.view()._repr_html_()

    def draw() -> None:
        bars.value = parts_html([figures.ledger(Browser(books, account.value).chosen())])

    frame.changed(draw, account)()
    frame.changed(look, account, kind, word, order)()
    return [account, kind, word, order, listed, bars]


def _effect(row: FixRow, what: str) -> float:
    effect = row.memory if what == "memory" else row.time
    return effect.ratio if effect else float("inf")


FIX_ORDERS: dict[str, Callable[[FixRow], Any]] = {
    "verdict": lambda row: (fixes.ORDER.index(row.verdict), row.says),
    "remedy": lambda row: row.says.casefold(),
    "memory, best first": lambda row: _effect(row, "memory"),
    "time, best first": lambda row: _effect(row, "time"),
}


@dataclass(frozen=True)
class Sorter:
    """The fix table of a study, and what of it is shown in which order."""

    study: FixStudy
    order: str = "verdict"
    verdict: str = ALL
    word: str = ""

    def rows(self) -> list[FixRow]:
        """The rows shown. What was not measured stands after what was."""
        rows = [
            row
            for row in self.study.rows
            if self.verdict in (ALL, row.verdict)
            and has_word(self.word, row.remedy, row.says, row.argued, row.predicted, *row.claims)
        ]
        return sorted(rows, key=FIX_ORDERS[self.order])

    def view(self) -> tuple[Shown, list[tuple[str, str]]]:
        """The rows shown as a table, and each remedy with its name."""
        rows = self.rows()
        cells = [
            [row.says, row.verdict.replace("_", " "), fixes.expected(row), row.measured]
            for row in rows
        ]
        columns = ["remedy", "verdict", "predicted or argued", "measured"]
        title = f"{len(rows)} of {len(self.study.rows)} remedies"
        return Shown(title, columns, cells), [(row.says, row.remedy) for row in rows]

    def detail(self, remedy: str) -> str:
        """All that is known of one remedy, nothing cut."""
        row = next((row for row in self.study.rows if row.remedy == remedy), None)
        if row is None:
            return "No remedy is shown."
        said = {
            "verdict": row.verdict.replace("_", " "),
            "predicted": row.predicted,
            "measured": row.measured,
            "argued": row.argued,
            "claims": ", ".join(row.claims),
        }
        lines = (textwrap.indent(f"{name}: {told}", "  ") for name, told in said.items() if told)
        return "\n".join([row.says, *lines])

    def parts(self) -> list[Part]:
        """The whole table."""
        return [fixes.fixes_table(self.study)]


def build_remedies(frame: Frame, sorter: Sorter) -> Sequence[Any]:
    """Order, verdict and word, the table, and one remedy in full."""
    there = {row.verdict for row in sorter.study.rows}
    order = frame.field("Dropdown", "Order", sorter.order, options=list(FIX_ORDERS))
    verdicts = choices(frame, "Verdict", [one for one in fixes.ORDER if one in there])
    word = frame.field("Text", "With the word", "", placeholder="such as expandable")
    controls = [order, verdicts, word]

    def view() -> tuple[Shown, list[tuple[str, str]]]:
        asked = {"order": order.value, "verdict": verdicts.value, "word": word.value.strip()}
        return replace(sorter, **asked).view()

    (listed, one, full), _ = table_and_row(frame, controls, view, "In full", sorter.detail)
    return [*controls, one, full, listed]


@dataclass(frozen=True)
class Runs:
    """A folder of batches, and the one begun with. A bad record is named beside those that could be read."""

    folder: Path
    batch: str = ""

    def batches(self) -> list[str]:
        """Names of the batches, newest first: folders with the record of a run below them."""
        below = {path.parent.parent.name for path in self.folder.glob("*/*/run.json")}
        return sorted(below, reverse=True)

    def view(self, batch: str, state: str = ALL) -> tuple[Shown, list[tuple[str, str]]]:
        """The runs of a batch, of one state or all, as a table, and their names."""
        columns = ("notebook", "box", "state", "answer, or why not", Column("took", "s"))
        if not batch:
            none = "No batch lies below outputs yet: make diagnose writes one."
            return Shown(none, columns, []), []
        seen = read_batch(self.folder / batch)
        runs = [run for run in seen.runs if state in (ALL, run.state)]
        unread = [f"not readable: {line}" for line in seen.unreadable]
        title = "; ".join([f"{batch}: {batches.counted(seen) or 'no run'}", *unread])
        names = [(run.run_id, run.run_id) for run in runs]
        return Shown(title, columns, list(map(_run_row, runs))), names

    def detail(self, batch: str, run_id: str) -> str:
        """One run in full: state and cause, its verdict, and its files."""
        runs = read_batch(self.folder / batch).runs if batch and run_id else []
        run = next((run for run in runs if run.run_id == run_id), None)
        if run is None:
            return ""
        cause, end = (
            run.cause or gone(run),
            "No verdict.\n" + "\n".join(run.last_words.splitlines()[-8:]),
        )
        head = (
            f"{run.run_id} on {run.box}: {run.state.replace('_', ' ')}{', ' * bool(cause)}{cause}"
        )
        files = [f"  {batch}/{run_id}/{name}" for name in files_below(self.folder / batch / run_id)]
        said = verdict.as_text(run.verdict) if run.verdict else end.rstrip("\n")
        return "\n".join([head, "", said, "", "Files", *files])

    def parts(self) -> list[Part]:
        """The batch as a table."""
        return [batches.runs_table(str(self.folder / self.batch) if self.batch else "")]


def _run_row(run: Run) -> list[Any]:
    """A run as a row of the table."""
    answer = run.verdict.short if run.verdict else run.cause or gone(run)
    name, state = run.notebook.removesuffix(".ipynb"), run.state.replace("_", " ")
    return [name, run.box, state, answer, run.seconds]


def build_runs(frame: Frame, runs: Runs) -> Sequence[Any]:
    """The batch, the state and the run, and what that run says."""
    names = runs.batches()
    first = runs.batch if runs.batch in names else next(iter(names), None)
    which = frame.field("Dropdown", "Batch", first, options=names)
    state = choices(frame, "State", STATES)
    (listed, one, full), look = table_and_row(
        frame,
        [which, state],
        lambda: runs.view(which.value or "", state.value),
        "Run",
        lambda run_id: runs.detail(which.value or "", run_id),
    )

    def again() -> None:
        kept, which.options = which.value, runs.batches()
        which.value = kept if kept in which.options else next(iter(which.options), None)
        look()

    tip = "look for new batches and runs"
    return [frame.row(which, frame.button("Read again", again, tip)), state, listed, one, full]


def runs_of(batch: str = "") -> Runs:
    """The folder that a batch lies in, or the outputs of this checkout."""
    folder = Path(batch).absolute()
    return Runs(folder.parent, folder.name) if batch else Runs(CHECKOUT / "outputs")


ledger = Panel("Ledger browser", lambda books: Browser(tuple(books)), build_ledger)
remedies = Panel("Fix table", Sorter, build_remedies)
runs = Panel("Run browser", runs_of, build_runs)
