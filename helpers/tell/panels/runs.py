"""The run browser: every batch below outputs, each run with its true state, what it answered and the files it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.run.kernel import CHECKOUT
from helpers.run.record import files_below, gone, read_batch
from helpers.run.shapes import STATES, Run
from helpers.tell import batches, verdict
from helpers.tell.tables import duration

from .frame import Frame, present, table_html, text_html

NAME = "Run browser"
ALL = "all"
HEAD = ("notebook", "box", "state", "answer, or why not", "took")


@dataclass(frozen=True)
class Runs:
    """A folder of batches. Reading never raises for a bad record: it is named beside those that could be read."""

    folder: Path = CHECKOUT / "outputs"

    def batches(self) -> list[str]:
        """Names of the batches, newest first: folders with the record of a run below them."""
        return sorted(
            {path.parent.parent.name for path in self.folder.glob("*/*/run.json")}, reverse=True
        )

    def runs(self, batch: str, state: str = ALL) -> list[Run]:
        """The runs of a batch, of one state or all."""
        return (
            [run for run in read_batch(self.folder / batch).runs if state in (ALL, run.state)]
            if batch
            else []
        )

    def says(self, batch: str) -> str:
        """A batch in one line, unreadable records named."""
        if not batch:
            return "No batch lies below outputs yet: make diagnose writes one."
        seen = read_batch(self.folder / batch)
        counts = ", ".join(
            f"{count} {state.replace('_', ' ')}" for state, count in seen.counts.items()
        )
        return "; ".join(
            [
                f"{batch}: {counts or 'no run'}",
                *(f"not readable: {line}" for line in seen.unreadable),
            ]
        )

    def detail(self, batch: str, run: Run) -> str:
        """One run in full: state and cause, its verdict, and its files."""
        cause, folder = run.cause or gone(run), self.folder / batch / run.run_id
        end = (
            verdict.as_text(run.verdict)
            if run.verdict
            else "\n".join(["No verdict.", *run.last_words.splitlines()[-8:]])
        )
        return "\n".join(
            [
                f"{run.run_id} on {run.box}: {run.state.replace('_', ' ')}{', ' * bool(cause)}{cause}",
                "",
                end,
                "",
                "Files",
                *(f"  {batch}/{run.run_id}/{name}" for name in files_below(folder)),
            ]
        )


def row_of(run: Run) -> list[str]:
    """A run as a row of the table."""
    answer = run.verdict.short if run.verdict else run.cause or gone(run)
    return [
        run.notebook.removesuffix(".ipynb"),
        run.box,
        run.state.replace("_", " "),
        answer,
        duration(run.seconds) if run.seconds is not None else "",
    ]


def build(frame: Frame, runs: Runs, batch: str) -> Sequence[Any]:
    """The batch, the state and the run, and what that run says."""
    names = runs.batches()
    which = frame.field(
        "Dropdown", "Batch", batch if batch in names else next(iter(names), None), options=names
    )
    state = frame.field(
        "Dropdown", "State", ALL, options=[(one.replace("_", " "), one) for one in (ALL, *STATES)]
    )
    one = frame.field("Dropdown", "Run", None)
    listed, detail = frame.widgets.HTML(), frame.widgets.HTML()

    def look() -> None:
        found = runs.runs(which.value or "", state.value)
        listed.value = table_html(map(row_of, found), HEAD, runs.says(which.value or ""))
        one.options = [run.run_id for run in found]
        one.index = 0 if found else None
        read()

    def read() -> None:
        found = [run for run in runs.runs(which.value or "") if run.run_id == one.value]
        detail.value = text_html(runs.detail(which.value, found[0])) if found else ""

    def again() -> None:
        kept, which.options = which.value, runs.batches()
        which.value = kept if kept in which.options else next(iter(which.options), None)
        look()

    frame.changed(read, one)
    frame.changed(look, which, state)()
    return [
        frame.widgets.HBox(
            [which, frame.button("Read again", again, "look for new batches and runs")]
        ),
        state,
        listed,
        one,
        detail,
    ]


def show(batch: str = "") -> None:
    """The panel over the folder that the batch lies in, or over outputs; where nobody is there, the batch as a table."""
    runs = Runs(Path(batch).absolute().parent) if batch else Runs()
    present(
        NAME,
        lambda: [batches.runs_table(batch)],
        lambda frame: build(frame, runs, Path(batch).name),
    )
