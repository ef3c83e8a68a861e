"""Blocks of torch's allocator that belong to no tensor of Python: what only graphs of autograd
keep, and the workspaces of libraries. Where torch kept a history, with the lines that asked for
them.
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


def add_unnamed(torch: ModuleType, holdings: Holdings) -> None:
    """Add to the holders what the allocator has given out beyond their tensors."""
    if not initialised(torch):
        return
    of_tensors = frozenset().union(*(holder.addresses for holder in holdings.holders))
    holder = Holder(NAME, "unnamed")
    lines: collections.Counter[tuple[str, int]] = collections.Counter()
    for segment in _segments(torch):
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
    """What torch has reserved; without the history of events, which may be long."""
    snapshot = torch.cuda.memory_snapshot
    if "include_traces" in inspect.signature(snapshot).parameters:
        return snapshot(include_traces=False)
    return snapshot()
