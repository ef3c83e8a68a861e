"""A shrunk trace for people: what is kept and how small it became, and as a program of torch
alone that a maintainer can run.
"""

from __future__ import annotations

import itertools
import textwrap

from helpers.allocator.call_sites import site_of
from helpers.allocator.shrinking.shrink import Shrunk
from helpers.allocator.trace import Op, Trace
from helpers.ground.units import show_bytes
from helpers.settings.releases import behaviour
from helpers.tell.resources import template
from helpers.tell.shown import Shown
from helpers.tell.values import Column

LINE_COLUMNS = 96
MOST_LINES = 40
"""Lines that a program may have."""
LONGEST_TURN = 8
"""Steps of one turn of a loop that is looked for."""


OPERATIONS = {"alloc", "free", "empty_cache"}
"""What a program can ask of the allocator."""


class NoProgramError(ValueError):
    """Why a trace has no program of torch alone; one line."""


def shrunk_table(shrunk: Shrunk) -> Shown:
    """The requests that are left, runs of equal ones as one row, with what was kept above them
    and the figures below.
    """
    failure = shrunk.failure
    head = f"{shrunk.before:,} requests became {shrunk.requests}: {failure.kind}"
    sizes = (
        f"{show_bytes(failure.reserved_bytes)} held, {show_bytes(failure.live_bytes)} in use, "
        f"{show_bytes(failure.free_bytes)} free within"
    )
    effort = f"{shrunk.replays} replays in {shrunk.seconds:.1f} s"
    below = [
        f"At the failure: {sizes}",
        f"way: {shrunk.way}; {effort}; {shrunk.trace.header['label']}",
        *(f"note: {note}" for note in shrunk.notes),
    ]
    if shrunk.least > MOST_LINES:
        below.append(
            f"fewer than {shrunk.least} cannot fill this card; --smaller-card may help"
        )
    before = [head, "kept:", *(f"  {line}" for line in failure.invariants), ""]
    columns = ["times", "what", Column("bytes each", "bytes"), "call site"]
    title = f"The smallest proof: {head}"
    return Shown(title, columns, _rows(shrunk.trace), below, before, widest=None)


def _rows(trace: Trace) -> list[list[object]]:
    """The operations, runs of equal ones as one row with how often."""
    operations = [_operation(trace, number) for number in range(len(trace))]
    rows: list[list[object]] = []
    for operation, run in itertools.groupby(operations):
        rows.append([len(list(run)), *operation])
    rows[-1][1] = "alloc, refused"
    return rows


def _operation(trace: Trace, number: int) -> tuple[str, int | None, str]:
    """What an operation does, the bytes that it asks for, and from where."""
    op = Op(int(trace.op[number]))
    size = int(trace.size[number]) if op == Op.ALLOC else None
    stack = trace.stack_of(number)
    where = site_of(stack).name if stack else ""
    return op.name.lower().replace("_", " "), size, where


def program(shrunk: Shrunk, name: str = "reproducer.py") -> str:
    """A program of torch alone that asks the same of the allocator; equal turns are one line of
    its list.

    It limits torch to the card's bytes, so any GPU with as many shows it. Raises NoProgramError
    for a trace that needs what it cannot say (private pools, other streams, memory of others),
    or more than MOST_LINES lines.
    """
    trace = shrunk.trace
    header = trace.header
    needs = ", ".join(sorted({Op(op).name.lower() for op in trace.op} - OPERATIONS))
    if trace.pool.any() or trace.stream.any() or header.get("fraction"):
        needs = needs or "private pools, several streams or a memory fraction"
    if needs:
        raise NoProgramError(
            f"no program: the failure needs {needs}, which it cannot say"
        )
    conf = header["conf"]
    setting = "os.environ.pop(name, None)"
    if conf:
        setting = f"os.environ[name] = {conf!r}"
    text = template("reproducer.txt").format(
        title=f"{shrunk.before:,} requests, {shrunk.requests} left; {header['label']}",
        kind=shrunk.failure.kind,
        room=shrunk.failure.room_bytes,
        name=name,
        variables=behaviour(header["torch"], header["build"]).conf_names,
        setting=setting,
        steps=_turns(_steps(trace)),
        last=shrunk.failure.request_bytes,
    )
    lines = text.count("\n")
    if lines > MOST_LINES:
        raise NoProgramError(
            f"no program: it would have {lines} lines, more than {MOST_LINES}"
        )
    return text


def _steps(trace: Trace) -> list[int]:
    """The operations but the last, as the program's list has them.

    A request is its bytes, a free how many requests ago its block was asked for as a number
    below 0, and 0 empties the cache.
    """
    steps: list[int] = []
    number_of: dict[int, int] = {}
    columns = (trace.op[:-1].tolist(), trace.id[:-1].tolist(), trace.size[:-1].tolist())
    for op, ident, size in zip(*columns, strict=True):
        if op == Op.ALLOC:
            number_of[ident] = len(number_of)
            steps.append(size)
        elif op == Op.FREE:
            steps.append(number_of[ident] - len(number_of))
        else:
            steps.append(0)
    return steps


def _turns(steps: list[int]) -> str:
    """(times, steps) of the longest repetitions, from the first step on."""
    turns: list[tuple[int, list[int]]] = []
    while steps:
        times, period = _longest_repetition(steps)
        if times == 1 and turns and turns[-1][0] == 1:
            turns[-1][1].append(steps[0])
        else:
            turns.append((times, steps[:period]))
        steps = steps[times * period :]
    words = " ".join(f"({times}, {turn})," for times, turn in turns)
    return textwrap.fill(
        words, LINE_COLUMNS, initial_indent="    ", subsequent_indent="    "
    )


def _longest_repetition(steps: list[int]) -> tuple[int, int]:
    """How often the first steps repeat, and how many they are; the shortest of equally long."""
    best = (1, 1)
    for period in range(1, LONGEST_TURN + 1):
        times = 1
        while steps[times * period : (times + 1) * period] == steps[:period]:
            times += 1
        if times > 1 and times * period > best[0] * best[1]:
            best = (times, period)
    return best
