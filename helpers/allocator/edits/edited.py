"""The trace as the edited program would ask for it, so that a replay answers.

A line's requests are those asked for while it ran, whatever it called; what a library keeps for
good after its first call (a workspace) is left as it is. What no trace can tell (when a tensor
is last used, what is computed from it) follows from rules that each edit states beside its
answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.allocator.call_sites import CallSite, Requests, requests_with_lines
from helpers.allocator.capacity import asked_again
from helpers.allocator.edits.backward import BackwardPass
from helpers.allocator.edits.checkpoint import checkpoint
from helpers.allocator.edits.chunks import cut_in_chunks
from helpers.allocator.edits.drop import do_not_keep, kept_to_the_end
from helpers.allocator.edits.edit import CHECKPOINT, CHUNKS, DROP, Edit
from helpers.allocator.edits.line_calls import LineCalls, requests_of_line
from helpers.allocator.edits.rewrite import Rewrite
from helpers.allocator.trace import Trace

LINES_BELOW = 8
"""So many lines below one that asks for something may keep it."""


@dataclass(frozen=True, eq=False)
class Edited:
    """The trace after an edit.

    ``changed``: how many requests are made otherwise; ``changed_bytes``: their bytes;
    ``added_bytes``: bytes asked for again.
    """

    trace: Trace
    changed: int
    changed_bytes: int
    added_bytes: int


def edited(trace: Trace, edit: Edit, requests: Requests | None = None) -> Edited:
    """The trace as the edited program would ask for it.

    ``requests``: those of the trace as ``asked_again`` gives it, where they were read before.
    Raises ValueError where the line asks for nothing, LinesError for a trace without lines of
    the program.
    """
    if requests is None:
        requests = requests_with_lines(asked_again(trace)[0])
    rewrite = Rewrite(requests, BackwardPass(requests))
    mask = requests_of_line(requests, edit)
    if not mask.any():
        _leave_out_what_keeps(requests, edit, rewrite)
    elif edit.kind == CHUNKS:
        cut_in_chunks(requests, LineCalls(requests, edit, mask), rewrite)
    elif edit.kind == CHECKPOINT:
        checkpoint(requests, LineCalls(requests, edit, mask), rewrite)
    else:
        rewrite.replaced.update(LineCalls(requests, edit, mask).numbers)
    changed = [*rewrite.replaced | rewrite.smaller]
    return Edited(
        trace=rewrite.trace(edit.chunks),
        changed=len(changed),
        changed_bytes=int(requests.size[changed].sum()),
        added_bytes=rewrite.added_bytes,
    )


def _leave_out_what_keeps(requests: Requests, edit: Edit, rewrite: Rewrite) -> None:
    """The edit of a line that asks for nothing, but may keep what one above it asked for."""
    nearest = _nearest_lines(requests, edit)
    if edit.kind == DROP:
        for site in nearest:
            above = 0 < edit.line - site.line <= LINES_BELOW and site.file.endswith(edit.file)
            if not above:
                continue
            asking = replace(edit, line=site.line)
            mask = kept_to_the_end(requests, asking)
            if mask.any():
                do_not_keep(requests, LineCalls(requests, asking, mask), rewrite)
                return
    some = ", ".join(f"{site.file}:{site.line}" for site in nearest[:3])
    raise ValueError(
        f"--edit {edit.words}: that line asks for nothing; expected one such as {some}"
    )


def _nearest_lines(requests: Requests, edit: Edit) -> list[CallSite]:
    """The program's own lines that ask for something, the nearest to the edited one first."""
    sites = {requests.sites[number] for number in set(requests.site[~requests.backward].tolist())}
    own = [site for site in sites if site.own]
    return sorted(own, key=lambda site: abs(site.line - edit.line))
