"""A batch in tables: what every run came to, what the runs answered, and the verdict that leads. Also many nights of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED
from helpers.look.bundle import Bundle, open_bundle
from helpers.run.record import BatchView, gone, read_batch
from helpers.run.shapes import Run
from helpers.shapes import Verdict

from .shown import Shown, plain, words

NO_BATCH = "no batch: this report stands on the box alone"
MOST_ROWS, MOST_NIGHTS = 60, 12
"""Rows that a table for a person shows: of a batch those that did not answer first, of nights the newest."""


def runs_table(batch: str) -> Shown:
    """Each run with its true state and its answer, or why it has none. Without a batch one line that says so."""
    columns = ["notebook", "box", "state", "answer, or why there is none"]
    if not batch:
        return Shown("Runs", columns, [], none=NO_BATCH, again=True)
    view = read_batch(Path(batch))
    first = sorted(view.runs, key=lambda run: run.state == "answered")
    rows = [[run.notebook, run.box, run.state.replace("_", " "), _end(run)] for run in first]
    below = [f"Not readable: {line}" for line in view.unreadable]
    how: dict[str, Any] = {"widest": 80, "again": True, "most": MOST_ROWS}
    return Shown("Runs of the batch", columns, rows, below, [", ".join(counted(view.runs))], **how)


def _end(run: Run) -> str:
    return run.verdict.short if run.verdict else run.cause or gone(run)


def counted(runs: Iterable[Run]) -> list[str]:
    """How many runs came to what, in words; the good state first, then the worst."""
    counts, named = Counter[str](run.state for run in runs), {"planned": "not started"}
    states = [state for state in dict.fromkeys(("answered", *words("states"))) if counts[state]]
    return [f"{counts[state]} {named.get(state, state.replace('_', ' '))}" for state in states]


def nights(batch: str, question: str) -> Shown:
    """What the records of all batches beside this one answer to a question (helpers.run.history.QUESTIONS, or SQL), and what
    could not be read. Where nothing can be asked one line says why."""
    from helpers.run.history import MEANING, HistoryError, open_history

    try:
        history = open_history(Path(batch).resolve().parent)
        answer = history.ask(question).in_words()
    except HistoryError as error:
        return Shown("", [], [], none=plain(error))
    left_out = [f"Left out: {plain(line)}" for line in history.unreadable]
    asked, rows = MEANING.get(question, question), answer.rows
    none = f"No record answers to this question: {asked}."
    how: dict[str, Any] = {"none": none, "widest": 60, "most": MOST_NIGHTS}
    if question == "states":  # this batch still runs: its own page says how it ended
        rows = [row for row in rows[::-1] if row[0] != Path(batch).name]
        how["result"] = f"batches before this one: {len(rows)}"
    return Shown(asked[:1].upper() + asked[1:], answer.columns, rows, left_out, **how)


def leading(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The verdict of one box's runs that leads its page, its report and its shared issue: the firmest; of equals the first.

    An answer to a notebook's own question (state ``aside``) never leads where another says why the box fails, or that it cannot
    tell. A named cause comes before ``cannot-tell``, and that before it where nothing was handed over that failed.
    """

    def rank(v: Verdict) -> tuple[bool, bool, bool, int]:
        sure = ("confirmed", "likely", "weak").index(v.confidence)
        return v.state == "aside", v.cause == "cannot-tell", v.state == "healthy", sure

    return min((v for v in verdicts if v is not None), key=rank, default=None)


def about_box(bundle: Bundle) -> set[str]:
    """The names under which a batch's runs are about this box."""
    return {bundle.box, "live"} if bundle.kind == "live" else {bundle.box}


def of_batch(batch: str, bundle: Bundle) -> Verdict | None:
    """The verdict that leads among a batch's runs on this box; None where none of them is about the box itself."""
    runs = _answered(batch) if batch else []
    lead = leading(run.verdict for run in runs if run.box in about_box(bundle))
    return None if lead is None or lead.state == "aside" else lead


def _answered(batch: str) -> list:
    view: BatchView = read_batch(Path(batch))
    return [run for run in view.runs if run.state == "answered" and run.verdict is not None]


def bundle_of(boxes: Iterable[str], folder: Path | None) -> tuple[Path | None, str]:
    """Where the evidence of the box lies: captured by the batch, recorded, or a path that a parameter names; or why nowhere."""
    captured = [path.parent for path in folder.glob("box*/manifest.json")] if folder else []
    captured.sort(key=lambda path: (path / "manifest.json").stat().st_mtime)
    named = [
        place for box in boxes if box not in ("", "live") for place in (RECORDED / box, Path(box))
    ]
    why = "no evidence bundle of this box lies beside it"
    for place in [*captured[-1:], *(place for place in named if place.exists())]:
        try:
            open_bundle(place)
            return place, ""
        except BundleError as error:
            why = f"the bundle cannot be read: {plain(error)}"
    return None, why
