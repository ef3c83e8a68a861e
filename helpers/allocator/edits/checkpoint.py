"""A line under ``torch.utils.checkpoint``: what it keeps for the backward pass is made again.

It is freed when the line is done, and asked for anew when the backward pass comes to the line.
Its output, the last that outlives it, stays.
"""

from __future__ import annotations

import numpy as np

from helpers.allocator.call_sites import Requests
from helpers.allocator.edits.rewrite import Rewrite


def checkpoint(requests: Requests, calls: list[list[int]], rewrite: Rewrite) -> None:
    """Frees what each call of a line keeps, and makes it again for the backward pass."""
    until = requests.until
    freed_by_backward = requests.freed_in_backward
    in_line = np.concatenate(calls)
    kept_stacks = set(requests.stack[in_line[freed_by_backward[in_line]]].tolist())
    for call in calls:
        call_end = requests.asked_at(call[-1] + 1)
        outlive = [request for request in call if until[request] > call_end]
        for request in outlive[:-1]:
            recording_ends_before = until[request] == len(requests.trace)
            if recording_ends_before and requests.stack[request] in kept_stacks:
                rewrite.free_before(request, call_end)
        kept = [request for request in outlive[:-1] if freed_by_backward[request]]
        if not kept:
            continue
        begin = _step_at(requests, int(until[kept].min()))
        if begin <= call_end:
            continue
        for request in kept:
            rewrite.free_before(request, call_end)
        again = [request for request in call if request <= kept[-1]]
        rewrite.ask_again(again, kept, begin)


def _step_at(requests: Requests, operation: int) -> int:
    """The first operation of the backward step that frees something at ``operation``.

    A step's requests stand in a row.
    """
    at = requests.at
    number = int(np.searchsorted(at, operation)) - 1
    while (
        number > 0
        and requests.backward[number - 1]
        and at[number - 1] == at[number] - 1
    ):
        number -= 1
    return int(at[number])
