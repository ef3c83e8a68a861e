"""Shows a shrunk trace: as a table of its requests, and as a program that needs only torch, so that
a maintainer of torch can run it.
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
"""Width of a line of the program, which bug trackers show without wrapping."""
MOST_LINES = 40
"""Lines of a program: more belong into a file beside a report."""
LONGEST_PERIOD = 8
"""Steps that may repeat together, as in a loop that allocates and frees a few tensors."""
OPERATIONS = {"alloc", "free", "empty_cache"}
"""The operations that a program of torch can ask of the allocator."""


class NoProgramError(ValueError):
    """Why a trace has no program of torch alone; one line."""


def shrunk_table(shrunk: Shrunk) -> Shown:
    """The requests that are left, equal ones in a row as one; above them what every candidate kept
    of the failure, below them figures.
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
    """A row for each operation; equal ones that follow each other are one, with their number."""
    operations = [_operation(trace, number) for number in range(len(trace))]
    rows: list[list[object]] = []
    for operation, run in itertools.groupby(operations):
        rows.append([len(list(run)), *operation])
    rows[-1][1] = "alloc, refused"  # a shrunk trace ends with the refused request
    return rows


def _operation(trace: Trace, number: int) -> tuple[str, int | None, str]:
    """The name of an operation, the bytes that it asks for, None for nothing, and its call site."""
    op = Op(trace.op[number])
    name = op.name.lower().replace("_", " ")
    size = None
    if op == Op.ALLOC:
        size = int(trace.size[number])
    site = ""
    stack = trace.stack_of(number)
    if stack:
        site = site_of(stack).name
    return name, size, site


def program(shrunk: Shrunk, name: str = "reproducer.py") -> str:
    """A program that needs only torch and asks the same of the allocator; ``name``: of its file.

    It limits torch to the card's bytes, so that any GPU with as many or more shows the failure.
    Raises NoProgramError for a trace with operations that such a program cannot make, and where it
    would have more than MOST_LINES lines.
    """
    trace = shrunk.trace
    header = trace.header
    others = {Op(op).name.lower() for op in trace.op} - OPERATIONS
    needs = ", ".join(sorted(others))
    # The program makes its requests on one stream, in the default pools, with all of the card.
    has_others = trace.pool.any() or trace.stream.any() or header.get("fraction")
    if has_others and not needs:
        needs = "private pools, several streams or a memory fraction"
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
        steps=_repeated(_steps(trace)),
        last=shrunk.failure.request_bytes,
    )
    lines = text.count("\n")
    if lines > MOST_LINES:
        raise NoProgramError(
            f"no program: it would have {lines} lines, more than {MOST_LINES}"
        )
    return text


def _steps(trace: Trace) -> list[int]:
    """The operations except the last, as numbers in the list of the program (reproducer.txt): above
    0 the bytes of a request; below 0 a free, -1 for the block of the last request, -2 for that of
    the one before, and so on; 0 for empty_cache.
    """
    steps: list[int] = []
    number_of: dict[int, int] = {}  # the request of each block's id, counted from 0
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


def _repeated(steps: list[int]) -> str:
    """The steps as text of the program's list, "(times, [steps]), ...". From the first step on,
    each group is the longest repetition that begins there; steps that do not repeat share a group
    of one time.
    """
    groups: list[tuple[int, list[int]]] = []
    while steps:
        times, period = _longest_repetition(steps)
        # A step that does not repeat goes into the group before it, if that is of one time, too.
        last_is_single = bool(groups) and groups[-1][0] == 1
        if times == 1 and last_is_single:
            groups[-1][1].append(steps[0])
        else:
            groups.append((times, steps[:period]))
        steps = steps[times * period :]
    words = " ".join(f"({times}, {group})," for times, group in groups)
    return textwrap.fill(
        words, LINE_COLUMNS, initial_indent="    ", subsequent_indent="    "
    )


def _longest_repetition(steps: list[int]) -> tuple[int, int]:
    """The repetition that ``steps`` begin with, as (times, period): the first ``period`` steps come
    ``times`` times in a row. Of several repetitions the one that covers most steps is taken, and of
    these the one with the shortest period. (1, 1) where nothing repeats.
    """
    best = (1, 1)
    for period in range(1, LONGEST_PERIOD + 1):
        times = 1
        while steps[times * period : (times + 1) * period] == steps[:period]:
            times += 1
        if times > 1 and times * period > best[0] * best[1]:
            best = (times, period)
    return best
