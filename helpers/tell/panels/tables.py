"""Panels over a table: the ledger, the remedies and the runs, each chosen from by its codes and by a word, one row in full.

The order is the table's own business: a click on a heading sorts by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helpers.child import CHECKOUT
from helpers.judge.ledger import MESSAGE, GpuLedger
from helpers.load.remedies import FixStudy
from helpers.look.reading import show_bytes
from helpers.run.record import files_below, gone, read_batch
from helpers.run.shapes import Run
from helpers.tell import batches, figures, fixes, verdict
from helpers.tell.box import ledger_table
from helpers.tell.shown import Column, Shown, cell, size

from .frame import Frame, Panel, Part, parts_html, text_html

ALL = "all"


@dataclass(frozen=True)
class Rows:
    """A table to choose rows from by the codes of some columns; ``says`` is its title over the rows with these numbers.

    ``detail`` is what is known of one row.
    """

    table: Shown
    codes: tuple[str, ...]
    says: Callable[[list[int]], str]
    detail: Callable[[int], str] | None = None

    def options(self, name: str) -> tuple[str, ...]:
        """What a column may be chosen by: all, or one of its codes."""
        return tuple(dict.fromkeys([ALL, *(row[name] for row in self.table.rows)]))

    def chosen(self, word: str = "", **codes: str) -> list[int]:
        """The numbers of the rows that have these codes and hold the word, in any letter case."""
        return [
            number
            for number, row in enumerate(self.table.rows)
            if all(code in (ALL, row[name]) for name, code in codes.items())
            and word.casefold() in " ".join(cell(one).words for one in row.values()).casefold()
        ]

    def view(self, numbers: list[int]) -> Shown:
        """The rows with these numbers."""
        cells = [self.table.cells[number] for number in numbers]
        return replace(self.table, title=self.says(numbers), cells=cells)


def build_rows(
    frame: Frame, rows: Callable[[], Rows], *above: Any
) -> tuple[list[Any], Callable[..., None]]:
    """The controls over rows, the table and one row in full; and what looks again. ``above`` are controls ``rows`` reads."""
    first = rows()
    choices = {
        name: frame.field("Dropdown", name.capitalize(), ALL, options=first.options(name))
        for name in first.codes
    }
    word = frame.field("Text", "With the word", "", placeholder="in any column")
    one = frame.field("Dropdown", "In full", None, wide=True)
    listed, full = frame.widgets.HTML(), frame.widgets.HTML()

    def look() -> None:
        now = rows()
        for name, choice in choices.items():
            if choice.options != now.options(name):
                kept, choice.options = choice.value, now.options(name)
                choice.value = kept if kept in choice.options else ALL
        codes = {name: choice.value for name, choice in choices.items()}
        numbers = now.chosen(word.value.strip(), **codes)
        listed.value = now.view(numbers).html()
        one.options = [(cell(now.table.cells[number][0]).words, number) for number in numbers]
        one.index = 0 if numbers else None
        read()

    def read() -> None:
        detail = rows().detail
        full.value = text_html(detail(one.value)) if detail and one.value is not None else ""

    frame.changed(read, one)
    again = frame.changed(look, *above, *choices.values(), word)
    again()
    return [*choices.values(), word, listed, *([one, full] if first.detail else [])], again


@dataclass(frozen=True)
class Browser:
    """The ledgers of a box and of a message, row by row."""

    books: tuple[GpuLedger, ...]

    def rows(self) -> Rows:
        """Every row of every account."""
        listed = [(book, row) for book in self.books for row in book.rows]
        cells = [
            [account_of(b), row.kind.replace("_", " "), row.words, row.bytes, row.source]
            for b, row in listed
        ]
        columns = ["account", "kind", "held by", Column("bytes", "bytes"), "source"]
        return Rows(Shown("", columns, cells), ("account", "kind"), self.says)

    def says(self, numbers: list[int] | None = None) -> str:
        """What the rows shown make of what each account says is in use, and what contradicts. Accounts are never added up."""
        listed = [(book, row) for book in self.books for row in book.rows]
        shown = listed if numbers is None else [listed[number] for number in numbers]
        said = []
        for book in self.books:
            held = [size(row.bytes) for one, row in shown if one is book]
            if held:
                made, unknown = show_bytes(sum(one or 0 for one in held)), held.count(None)
                words = (
                    f"{account_of(book)}: the rows shown make {made} of {book.used.show()} in use"
                )
                words += f", {unknown} not measured" * bool(unknown)
                words += "".join(f"; contradiction: {one}" for one in book.contradictions)
                said.append(words)
        return ". ".join(said) or ("No row is shown." if self.books else figures.NO_LEDGER)

    def parts(self) -> list[Part]:
        """Every row, and what they make."""
        return [ledger_table(self.books), self.says()]


def account_of(book: GpuLedger) -> str:
    """A ledger in words: who counts, on which GPU."""
    who = "message" if book.account == MESSAGE else "driver"
    return f"{who} {book.pci}".strip()


def build_ledger(frame: Frame, browser: Browser) -> Sequence[Any]:
    """The controls, the rows, what they make, and the bars of the account."""
    controls, _ = build_rows(frame, browser.rows)
    bars, account = frame.widgets.HTML(), controls[0]

    def draw() -> None:
        books = [book for book in browser.books if account.value in (ALL, account_of(book))]
        bars.value = parts_html([figures.ledger(books)])

    frame.changed(draw, account)()
    return [*controls, bars]


@dataclass(frozen=True)
class Remedies:
    """The fix table of a study, and all that is known of one remedy."""

    study: FixStudy

    def rows(self) -> Rows:
        """Every remedy, those that help first."""
        count, listed = len(self.study.rows), fixes.ranked(self.study)
        return Rows(
            fixes.fixes_table(self.study),
            ("on this box",),
            lambda numbers: f"{len(numbers)} of {count} remedies",
            lambda number: fixes.in_full(listed[number]),
        )

    def parts(self) -> list[Part]:
        """How many help and harm: the table itself stands above."""
        return [f"{fixes.counted(self.study)}: to be chosen from by hand in JupyterLab."]


def build_remedies(frame: Frame, table: Remedies) -> Sequence[Any]:
    """The verdict and the word, the table, and one remedy in full."""
    return build_rows(frame, table.rows)[0]


@dataclass(frozen=True)
class Runs:
    """A folder of batches, and the one begun with. A bad record is named beside those that could be read."""

    folder: Path
    batch: str = ""

    def batches(self) -> list[str]:
        """Names of the batches, newest first: folders with the record of a run below them."""
        below = {path.parent.parent.name for path in self.folder.glob("*/*/run.json")}
        return sorted(below, reverse=True)

    def rows(self, batch: str) -> Rows:
        """The runs of a batch."""
        columns = ("run", "notebook", "box", "state", "answer, or why not", Column("took", "s"))
        title = "No batch lies below outputs yet: make diagnose writes one."
        runs: Sequence[Run] = ()
        if batch:
            seen = read_batch(self.folder / batch)
            runs, unread = seen.runs, [f"not readable: {line}" for line in seen.unreadable]
            title = "; ".join([f"{batch}: {batches.counted(seen) or 'no run'}", *unread])
        table = Shown(title, columns, list(map(_run_row, runs)))
        return Rows(table, ("state",), lambda _: title, lambda number: self.in_full(runs[number]))

    def in_full(self, run: Run) -> str:
        """One run: state and cause, its verdict or its last words, and its files."""
        cause, folder = run.cause or gone(run), f"{run.batch_id}/{run.run_id}"
        head = (
            f"{run.run_id} on {run.box}: {run.state.replace('_', ' ')}{', ' * bool(cause)}{cause}"
        )
        end = "\n".join(["No verdict.", *run.last_words.splitlines()[-8:]])
        said = verdict.as_text(run.verdict) if run.verdict else end
        files = [f"  {folder}/{name}" for name in files_below(self.folder / folder)]
        return "\n".join([head, "", said, "", "Files", *files])

    def parts(self) -> list[Part]:
        """The batch as a table."""
        return [batches.runs_table(str(self.folder / self.batch) if self.batch else "")]


def _run_row(run: Run) -> list[Any]:
    """A run as a row of the table."""
    answer = run.verdict.short if run.verdict else run.cause or gone(run)
    name, state = run.notebook.removesuffix(".ipynb"), run.state.replace("_", " ")
    return [run.run_id, name, run.box, state, answer, run.seconds]


def build_runs(frame: Frame, runs: Runs) -> Sequence[Any]:
    """The batch, the state and the run, and what that run says."""
    names = runs.batches()
    first = runs.batch if runs.batch in names else next(iter(names), None)
    which = frame.field("Dropdown", "Batch", first, options=names)
    controls, look = build_rows(frame, lambda: runs.rows(which.value or ""), which)

    def again() -> None:
        kept, which.options = which.value, runs.batches()
        which.value = kept if kept in which.options else next(iter(which.options), None)
        look()

    tip = "look for new batches and runs"
    return [frame.row(which, frame.button("Read again", again, tip)), *controls]


def runs_of(batch: str = "") -> Runs:
    """The folder that a batch lies in, or the outputs of this checkout."""
    folder = Path(batch).absolute()
    return Runs(folder.parent, folder.name) if batch else Runs(CHECKOUT / "outputs")


BROWSE = (
    "In JupyterLab the rows of every account are chosen from and sorted here, each with its source."
)
ledger = Panel("Ledger browser", lambda books: Browser(tuple(books)), build_ledger, brief=BROWSE)
remedies = Panel("Fix table", Remedies, build_remedies)
runs = Panel("Run browser", runs_of, build_runs)
