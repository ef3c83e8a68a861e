"""Turns a trace into that of the edited program, so that a replay shows what the edit does.

The requests of a line are those made while it ran, whatever it called. A trace cannot show what is
computed from a tensor, or what a backward pass needs: this is inferred from sizes and from the
order of requests, by rules that each edit states beside its answer. For an exact answer the edited
program is rehearsed.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.allocator.call_sites import Requests, requests_with_lines
from helpers.allocator.capacity import asked_again
from helpers.allocator.edits.chunks import made_smaller
from helpers.allocator.edits.edit import CHUNKS, DROP, Edit
from helpers.allocator.edits.line_calls import calls_of_line, requests_of_line
from helpers.allocator.edits.rewrite import Rewrite, checkpoint
from helpers.allocator.trace import Trace


@dataclass(frozen=True, eq=False)
class Edited:
    """The trace after an edit.

    ``changed``: how many requests became smaller, were dropped or are freed at another moment;
    ``changed_bytes``: their recorded bytes; ``added_bytes``: bytes that are asked for once more.
    """

    trace: Trace
    changed: int
    changed_bytes: int
    added_bytes: int


def edited(trace: Trace, edit: Edit, requests: Requests | None = None) -> Edited:
    """The trace of the edited program.

    ``requests``: those of ``asked_again(trace)``, where the caller has them already. Raises
    ValueError where the edited line asks for nothing, LinesError for a trace without lines of the
    program.
    """
    if requests is None:
        requests = requests_with_lines(asked_again(trace)[0])
    mask = requests_of_line(requests, edit)
    if not mask.any():
        raise ValueError(
            f"--edit {edit.words}: that line asks for nothing; expected one such as "
            f"{_nearest_lines(requests, edit)}"
        )
    rewrite = Rewrite(requests)
    calls = calls_of_line(requests, edit, mask)
    if edit.kind == CHUNKS:
        rewrite.smaller = made_smaller(requests, calls)
    elif edit.kind == DROP:
        rewrite.dropped = set(mask.nonzero()[0].tolist())
    else:  # CHECKPOINT
        checkpoint(requests, calls, rewrite)
    return Edited(
        trace=rewrite.trace(edit.chunks),
        changed=len(rewrite.changed),
        changed_bytes=int(requests.size[rewrite.changed].sum()),
        added_bytes=rewrite.added_bytes,
    )


def _nearest_lines(requests: Requests, edit: Edit) -> str:
    """The three of the program's own lines that ask for something outside of backward passes and
    whose numbers are nearest to the edited line's, of whatever file, as "train.py:80, train.py:85".
    """
    numbers = set(requests.site[~requests.backward].tolist())
    sites = [requests.sites[number] for number in numbers]
    program = [site for site in sites if site.in_program]
    nearest = sorted(program, key=lambda site: abs(site.line - edit.line))[:3]
    return ", ".join(f"{site.file}:{site.line}" for site in nearest)
