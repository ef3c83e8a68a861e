"""The state of every run of a batch, read from its records alone, as data and for a terminal."""

from __future__ import annotations

from helpers.ground.units import plain
from helpers.tell.verdict import tagged

from .record import BatchView, gone
from .shapes import Run
from .time_left import short_time, time_left_s
from .which_runs import differences

FIELDS = "run_id notebook box state attempt strikes node gpu gate quarantined seconds".split()
"""Fields of a record that the data has."""
SECONDS_WIDTH = len("9999.9 s")


def status_json(view: BatchView) -> dict[str, object]:
    """The state of a batch as data: its counts, and a dict for each run, with FIELDS, ``cause``,
    ``gone`` (whether it is under way no more and has not ended) and ``answer`` (a cause, or None).
    """
    rows = []
    for run in view.runs:
        row = {name: getattr(run, name) for name in FIELDS}
        why_gone = gone(run)
        row.update(cause=run.cause or why_gone, gone=bool(why_gone), answer=None)
        if run.verdict:
            row["answer"] = run.verdict.cause
        rows.append(row)
    return {
        "batch": view.folder.name,
        "counts": view.counts,
        "unreadable": list(view.unreadable),
        "left_s": time_left_s(view.runs),
        "runs": rows,
    }


def status_text(view: BatchView) -> str:
    """The state of a batch for a terminal: one line a run."""
    heading = ", ".join(f"{count} {state}" for state, count in view.counts.items())
    if not view.runs:
        heading = "no runs"
        if view.unreadable:
            heading = "no record can be read"
    left_s = time_left_s(view.runs)
    if left_s:
        heading += f"; about {short_time(left_s)} left"
    lines = [f"{view.folder.name}: {heading}"]
    # Of one machine the name would be on every line.
    several_nodes = len({run.node for run in view.runs if run.node}) > 1
    rows = []
    for run, apart in zip(view.runs, differences(view.runs), strict=True):
        seconds = ""
        if run.seconds is not None:
            seconds = f"{run.seconds:.1f} s"
        remarks = "; ".join([*apart, *_remarks(run, several_nodes)])
        row = [run.run_id, run.box, run.state, seconds.rjust(SECONDS_WIDTH), remarks]
        rows.append(row)
    lines += [f"  {line}" for line in aligned(rows)]
    lines += [f"  not readable: {line}" for line in view.unreadable]
    return "\n".join(map(plain, lines))  # a record may hold anything


def aligned(rows: list[list[str]]) -> list[str]:
    """The rows as lines, each column as wide as its widest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _remarks(run: Run, several_nodes: bool) -> list[str]:
    """What else there is to say of a run: its machine if there are several, its attempt, its
    answer, why it has none, why the box was not clean afterwards, strikes and notes.
    """
    remarks = []
    if several_nodes and run.node:
        remarks.append(f"on {run.node}")
    if run.attempt > 1:
        remarks.append(f"attempt {run.attempt}")
    if run.verdict:
        remarks.append(tagged(run.verdict))
    remarks.append(run.cause or gone(run))
    if run.gate:
        remarks.append(f"afterwards: {run.gate}")
    remarks += [run.strikes_in_words, *run.notes]
    return [remark for remark in remarks if remark]
