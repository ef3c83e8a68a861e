"""Blocks of torch's allocator that belong to no tensor of Python: what only graphs of autograd keep,
and the workspaces of libraries. Where torch kept a history, with the lines that asked for them.
"""

from __future__ import annotations

from types import ModuleType

from .devices import initialised
from .holdings import Holder, Holdings
from .ledger import ELSEWHERE, frames_of, line_of

NAME = "no name in Python"
MOST_LINES = 3


def add_unnamed(torch: ModuleType, holdings: Holdings) -> None:
    """Add to the holders what the allocator has given out beyond their tensors."""
    if not initialised(torch):
        return
    of_tensors = frozenset().union(*(holder.addresses for holder in holdings.holders))
    holder = Holder(NAME, "unnamed")
    lines: dict[str, int] = {}
    for segment in torch.cuda.memory._snapshot()["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and address not in of_tensors:
                device = f"cuda:{segment['device']}"
                holder.bytes[device] = holder.bytes.get(device, 0) + block["size"]
                line = line_of(frames_of(block))
                lines[line] = lines.get(line, 0) + block["size"]
            address += block["size"]
    holder.what = "tensors that backward needs, workspaces of libraries"
    lines.pop(ELSEWHERE, None)
    largest = sorted(lines, key=lambda line: -lines[line])[:MOST_LINES]
    if largest:
        holder.what += f"; asked for by {', '.join(largest)}"
    if holder.total:
        holdings.holders.append(holder)
        holdings.holders.sort(key=lambda holder: -holder.total)
