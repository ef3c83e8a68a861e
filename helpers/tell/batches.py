"""A batch in tables: what every run came to, what the runs answered, and the verdict that leads. Also many nights of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from helpers.look.bundle import Bundle
from helpers.run.record import BatchView, gone, read_batch
from helpers.shapes import Verdict

from .tables import plain, table

NO_BATCH = "no batch: this report stands on the box alone"
OUTPUTS = Path(__file__).resolve().parents[2] / "outputs"
MOST_ROWS = 60
"""A table for a person; of a larger batch it holds what did not answer, and the page of the batch has the rest."""


def runs_table(batch: str) -> str:
    """Each run with its true state and, where it did not answer, why. Without a batch one line that says so."""
    if not batch:
        return NO_BATCH
    view = read_batch(Path(batch))
    shown = (
        view.runs
        if len(view.runs) <= MOST_ROWS
        else [run for run in view.runs if run.state != "answered"]
    )
    rows = [
        [run.notebook, run.box, run.state.replace("_", " "), run.cause or gone(run)]
        for run in shown[:MOST_ROWS]
    ]
    more = (
        [f"and {len(shown) - MOST_ROWS} more that did not answer"] if len(shown) > MOST_ROWS else []
    )
    counts = [
        ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in view.counts.items())
    ]
    unread = [f"Not readable: {line}" for line in view.unreadable]
    return "\n".join(
        [
            *(counts if shown is not view.runs else []),
            table(rows, ["notebook", "box", "state", "why"], widest=80),
            *more,
            *unread,
        ]
    )


def answers_table(batch: str) -> str:
    """What the runs that answered say: cause, confidence, and one sentence. Those that say the same share a row."""
    if not batch:
        return NO_BATCH
    said: dict[tuple[str, ...], int] = {}
    for run in _answered(batch):
        row = (run.notebook, *about(run.verdict), run.verdict.summary)
        said[row] = said.get(row, 0) + 1
    columns = ["notebook", "cause", "confidence", "in a sentence"]
    if max(said.values(), default=1) == 1:
        return table(list(said), columns, widest=100)
    return table(
        [[*row, count] for row, count in said.items()][:MOST_ROWS], [*columns, "runs"], widest=100
    )


def about(verdict: Verdict) -> tuple[str, str]:
    """Cause and confidence for a table. A healthy box has none; an answer to another question says that it is one."""
    if verdict.state == "healthy":
        return "healthy", ""
    return verdict.cause + (" (aside)" if verdict.state == "aside" else ""), verdict.confidence


def history_table(question: str, outputs: str = "") -> str:
    """The answer to a question over many nights (helpers.run.history.QUESTIONS, or SQL), and what could not be read.

    ``outputs`` holds the batches, those of this checkout by default. Where nothing can be asked one line says why.
    """
    from helpers.run.history import HistoryError, open_history

    try:
        found = open_history(Path(outputs) if outputs else OUTPUTS)
        answer = found.ask(question)
    except HistoryError as error:
        return plain(error)
    left_out = [f"Left out: {plain(line)}" for line in found.unreadable]
    return "\n".join([table(answer.rows[:MOST_ROWS], answer.columns, widest=60), *left_out])


def nights(batch: str, *questions: str) -> str:
    """What the records of all batches beside this one answer to each question; without a batch, that there is none."""
    if not batch:
        return "no batch is given: nothing to look back on"
    return "\n\n".join(
        f"{question}\n{history_table(question, str(Path(batch).resolve().parent))}"
        for question in questions
    )


def leading(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The verdict of one box's runs that leads its page, its report and its shared issue: the firmest; of equals the first.

    An answer to a notebook's own question (state ``aside``) never leads where another says why the box fails, or that it cannot
    tell. A named cause comes before ``cannot-tell``, and that before it where nothing was handed over that failed.
    """
    order = ("confirmed", "likely", "weak")
    said = [verdict for verdict in verdicts if verdict is not None]
    return min(
        said,
        key=lambda v: (
            v.state == "aside",
            v.cause == "cannot-tell",
            v.state == "healthy",
            order.index(v.confidence),
        ),
        default=None,
    )


def about_box(bundle: Bundle) -> set[str]:
    """The names under which a batch's runs are about this box."""
    return {bundle.box, "live"} if bundle.kind == "live" else {bundle.box}


def of_batch(batch: str, bundle: Bundle) -> Verdict | None:
    """The verdict that leads among a batch's runs on this box; None where none of them is about the box itself."""
    lead = (
        leading(run.verdict for run in _answered(batch) if run.box in about_box(bundle))
        if batch
        else None
    )
    return None if lead is None or lead.state == "aside" else lead


def _answered(batch: str) -> list:
    view: BatchView = read_batch(Path(batch))
    return [run for run in view.runs if run.state == "answered" and run.verdict is not None]
