"""A batch in tables: what every run came to, what the runs answered, and the verdict that leads."""

from __future__ import annotations

from pathlib import Path

from helpers.look.bundle import Bundle
from helpers.run.record import BatchView, read_batch
from helpers.run.shapes import Verdict

from .tables import table

NO_BATCH = "no batch: this report stands on the box alone"


def runs_table(batch: str) -> str:
    """Each run with its true state and, where it did not answer, why. Without a batch one line that says so."""
    if not batch:
        return NO_BATCH
    view = read_batch(Path(batch))
    rows = [[run.notebook, run.box, run.state.replace("_", " "), run.cause] for run in view.runs]
    unread = [f"Not readable: {line}" for line in view.unreadable]
    return "\n".join([table(rows, ["notebook", "box", "state", "why"], widest=80), *unread])


def answers_table(batch: str) -> str:
    """What the runs that answered say: cause, confidence, and one sentence."""
    if not batch:
        return NO_BATCH
    rows = [[run.notebook, run.verdict.cause, run.verdict.confidence, run.verdict.summary] for run in _answered(batch)]
    return table(rows, ["notebook", "cause", "confidence", "in a sentence"], widest=100)


def leading(batch: str, bundle: Bundle) -> Verdict | None:
    """The most certain verdict of a batch's runs on this box that names a cause; of equals the first. None without one.

    ``other`` comes last, however certain: a notebook that finds nothing of its own question must not hide what another found.
    """
    order = ("confirmed", "likely", "weak")
    names = {bundle.box, "live"} if bundle.kind == "live" else {bundle.box}
    answers = [run.verdict for run in _answered(batch) if run.box in names] if batch else []
    named = [verdict for verdict in answers if verdict.cause != "cannot-tell"]
    return min(named, key=lambda verdict: (verdict.cause == "other", order.index(verdict.confidence)), default=None)


def _answered(batch: str) -> list:
    view: BatchView = read_batch(Path(batch))
    return [run for run in view.runs if run.state == "answered" and run.verdict is not None]
