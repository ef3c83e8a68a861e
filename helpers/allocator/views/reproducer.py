"""A shrunk trace for people: what is kept and how small it became, and as a program of torch
alone that a maintainer can run.
"""

from __future__ import annotations

import textwrap

from helpers.allocator.call_sites import site_of
from helpers.allocator.shrink import Shrunk
from helpers.allocator.trace import Op, Trace
from helpers.ground.units import show_bytes
from helpers.settings.releases import behaviour
from helpers.tell.shown import Column, Shown, template

LONGEST = 96
MOST_LINES = 40
PERIOD = 8
"""Columns of a line, lines of a program, and operations of one turn of a loop that is looked for."""


class NoProgramError(ValueError):
    """Why a trace has no program of torch alone; one line."""


def shrunk_table(made: Shrunk) -> Shown:
    """The requests that are left, runs of equal ones as one row, with what was kept above them
    and the figures below.
    """
    failure = made.failure
    head = f"{made.before:,} requests became {made.requests}: {failure.kind}"
    held = show_bytes(failure.reserved_bytes)
    live = show_bytes(failure.live_bytes)
    below = [
        f"At the failure: {held} held, {live} in use, {show_bytes(failure.free_bytes)} free within",
        f"way: {made.way}; {made.replays} replays in {made.seconds:.1f} s; {made.trace.header['label']}",
        *(f"note: {note}" for note in made.notes),
    ]
    if made.least > MOST_LINES:
        below.append(f"fewer than {made.least} cannot fill this card; --smaller-card may help")
    before = [head, "kept:", *(f"  {line}" for line in failure.invariants), ""]
    rows: list[list] = []
    for at, (op, size) in enumerate(zip(made.trace.op, made.trace.size.tolist(), strict=True)):
        stack = -1 if made.trace.frame is None else int(made.trace.frame[at])
        where = site_of(made.trace.frames[stack]).name if stack >= 0 else ""
        row = [Op(op).name.lower().replace("_", " "), size if op == Op.ALLOC else None, where]
        if rows and rows[-1][1:] == row:
            rows[-1][0] += 1
        else:
            rows.append([1, *row])
    rows[-1][1] = "alloc, refused"
    columns = ["times", "what", Column("bytes each", "bytes"), "call site"]
    return Shown(f"The smallest proof: {head}", columns, rows, below, before, widest=None)


def program(made: Shrunk, name: str = "reproducer.py") -> str:
    """A program of torch alone that asks the same of the allocator; equal turns are one line of
    its list.

    It limits torch to the card's bytes, so any GPU with as many shows it. Raises NoProgramError
    for a trace that needs what it cannot say (private pools, other streams, memory of others),
    or more than MOST_LINES lines.
    """
    trace = made.trace
    failure = made.failure
    strange = {Op(op).name.lower() for op in trace.op} - {"alloc", "free", "empty_cache"}
    if strange or trace.pool.any() or trace.stream.any() or trace.header.get("fraction"):
        what = ", ".join(sorted(strange)) or "private pools, several streams or a memory fraction"
        raise NoProgramError(f"no program: the failure needs {what}, which it cannot say")
    head = made.trace.header
    variables = behaviour(head["torch"], head["build"]).conf_names
    conf = head["conf"]
    text = template("reproducer.txt").format(
        title=f"{made.before:,} requests, {made.requests} left; {head['label']}",
        kind=failure.kind,
        room=failure.room_bytes,
        name=name,
        variables=variables,
        setting=f"os.environ[name] = {conf!r}" if conf else "os.environ.pop(name, None)",
        steps=_turns(_steps(trace)),
        last=failure.request_bytes,
    )
    if (lines := text.count("\n")) > MOST_LINES:
        raise NoProgramError(f"no program: it would have {lines} lines, more than {MOST_LINES}")
    return text


def _steps(trace: Trace) -> list[int]:
    """The operations but the last, as the program's list has them."""
    steps: list[int] = []
    born: dict[int, int] = {}
    ops = zip(trace.op.tolist(), trace.id.tolist(), trace.size.tolist(), strict=True)
    for op, ident, size in list(ops)[:-1]:
        if op == Op.ALLOC:
            born[ident] = len(born)
        steps.append(size if op == Op.ALLOC else born[ident] - len(born) if op == Op.FREE else 0)
    return steps


def _turns(steps: list[int]) -> str:
    """(times, steps) of the longest repetitions, from the first step on."""
    found: list[tuple[int, list[int]]] = []
    while steps:
        turns = [(_times(steps, period), period) for period in range(1, PERIOD + 1)]
        times, period = max(turns, key=lambda one: (one[0] * one[1] * (one[0] > 1), -one[1]))
        if times == 1 and found and found[-1][0] == 1:
            found[-1][1].append(steps[0])
        else:
            found.append((times, steps[:period]))
        steps = steps[times * period :]
    words = " ".join(f"({times}, {turn})," for times, turn in found)
    return textwrap.fill(words, LONGEST, initial_indent="    ", subsequent_indent="    ")


def _times(steps: list[int], period: int) -> int:
    times = 1
    turn = steps[:period]
    while steps[times * period : (times + 1) * period] == turn:
        times += 1
    return times
