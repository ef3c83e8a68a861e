"""A line that is left out: what it asks for is never asked for.

A line that asks for nothing itself may keep what a line above it asked for, such as
``losses.append(loss)``: left out, it does not keep it.
"""

from __future__ import annotations

import re

import numpy as np

from helpers.allocator.call_sites import Requests
from helpers.allocator.edits.edit import Edit
from helpers.allocator.edits.line_calls import (
    LineCalls,
    requests_of_line,
    requests_under,
    workspaces,
)
from helpers.allocator.edits.rewrite import Rewrite

NEAR = 64
OPTIMIZER = re.compile("torch/optim/").match


def kept_to_the_end(requests: Requests, edit: Edit) -> np.ndarray:
    """What a line below may keep of the requests of a line, as a mask.

    That is several that stay to the end, no optimizer's state and no library's workspace.
    """
    mask = requests_of_line(requests, edit) & ~requests_under(requests, OPTIMIZER)
    to_end = requests.until > requests.at.max(initial=0)  # also what goes at the program's end
    mask &= to_end & ~workspaces(requests, mask)
    return mask & (mask.sum() > 1)


def do_not_keep(requests: Requests, line: LineCalls, rewrite: Rewrite) -> None:
    """What a line keeps to the end goes with its name or its function, and after the backward
    pass through its line.
    """
    at = requests.at
    until = requests.until
    function = requests.sites[requests.site[line.numbers[0]]].function

    def is_inside(frame: str) -> bool:
        return function == "<module>" or frame.endswith(f" {function}")

    outside = np.flatnonzero(~requests_under(requests, is_inside) & (requests.stack >= 0))
    for number, request in enumerate(line.numbers):
        ends = []
        if number + 1 < len(line.numbers):
            ends.append(int(at[line.numbers[number + 1]]) + 1)
        left = np.searchsorted(outside, request)
        if left < len(outside):
            ends.append(int(at[outside[left]]))
        if not ends:
            continue
        near = slice(max(request - NEAR, 0), request)
        beside = rewrite.backward.frees[near] & (requests.site[near] == requests.site[request])
        line_gone_through = until[near][beside][-1:].sum()
        rewrite.free_before(request, int(max(min(ends), line_gone_through)))
