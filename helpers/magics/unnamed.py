"""Blocks of torch's allocator that no tensor in Python has: tensors that only graphs of autograd
keep, and workspaces of libraries. If torch recorded its memory history, the lines that asked for
them are known.
"""

from __future__ import annotations

import collections
import inspect
from types import ModuleType
from typing import Any

from ..allocator.under_torch.cells import place
from .devices import initialised
from .holder import Holder, Holdings
from .ledger import frames_of, own_frame

NAME = "no name in Python"
MOST_LINES = 3
"""Lines that a description names, those of most bytes."""


def add_unnamed(torch: ModuleType, holdings: Holdings) -> None:
    """Add a holder for the allocated blocks that no other holder's tensors use, at its place among
    the others by size. Nothing is added where there is no such block, or no GPU is in use.
    """
    if not initialised(torch):
        return
    of_tensors = frozenset().union(*(holder.addresses for holder in holdings.holders))
    holder = Holder(NAME, "unnamed")
    lines: collections.Counter[tuple[str, int]] = collections.Counter()
    for segment in _segments(torch):
        # Of each block in turn: blocks fill a segment without gaps.
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and address not in of_tensors:
                device = f"cuda:{segment['device']}"
                holder.bytes[device] += block["size"]
                frame = own_frame(frames_of(block))
                if frame:
                    lines[frame] += block["size"]
            address += block["size"]
    holder.description = "tensors that backward needs, workspaces of libraries"
    if lines:
        largest = [place(*frame) for frame, _ in lines.most_common(MOST_LINES)]
        holder.description += f"; asked for by {', '.join(largest)}"
    if holder.total:
        holdings.holders.append(holder)
        holdings.holders.sort(key=lambda holder: -holder.total)


def _segments(torch: ModuleType) -> Any:
    """The segments of torch's memory snapshot, each with its blocks; where torch can leave the
    history of events out, which may be long, without it.
    """
    snapshot = torch.cuda.memory_snapshot
    if "include_traces" in inspect.signature(snapshot).parameters:
        return snapshot(include_traces=False)
    return snapshot()
