"""Whose line asked for it: the requests of a trace by call site, and how many bytes of each are
live at any operation.

A call site is the innermost frame in the program's own files, ``train.py:82 step``: no
package's, no standard library's, none of torch's. Where a stack has none (a library's own
thread) its innermost Python frame outside torch stands in. The backward pass of a GPU runs on a
thread without Python frames (torch/csrc/autograd/engine.cpp): its requests belong to the line
that called ``backward``, which asked for the first gradient just before. Any other request
without a Python frame belongs to no line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from helpers.allocator.stack_frames import own_line
from helpers.allocator.trace import Op, Trace
from helpers.settings.text import MIN_BLOCK_BYTES

BEFORE = "there when the recording began"
NO_LINE = "no line of Python"
_CALLS_BACKWARD = re.compile(
    r"torch/(?:autograd/__init__\.py:|_tensor\.py:\d+ backward$)|autograd::engine"
)
_IN_BACKWARD = re.compile(r"torch/(?:utils/checkpoint|autograd/function)\.py:")
"""Frames of the call that starts a backward pass; and of Python that it runs itself, on its own
thread.
"""


class LinesError(ValueError):
    """A trace from which nothing can be told of a program's lines; one line: what is missing
    and what to do.
    """


class Site(NamedTuple):
    """A call site: ``name``, whether it is the program's own, and ``file``, ``line``,
    ``function`` ("", 0, "" for none).
    """

    name: str
    own: bool
    file: str = ""
    line: int = 0
    function: str = ""


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests of a trace in order, what was live at its start first; all columns of equal
    length.

    ``at``: the operation that asked, -1 for what was live before; ``until``: the operation that
    freed it (that asked for it to be freed), the trace's length where none did; ``size``: bytes
    on the card, each request rounded up to 512; ``site``: index into ``sites``; ``id``: the
    block's; ``stack``: index into the trace's frames, -1 for none; ``backward``: asked for by a
    backward pass, as far as that is known.
    """

    trace: Trace
    at: np.ndarray
    until: np.ndarray
    size: np.ndarray
    site: np.ndarray
    id: np.ndarray
    stack: np.ndarray
    backward: np.ndarray
    sites: tuple[Site, ...]

    def __len__(self) -> int:
        return len(self.at)

    @property
    def named(self) -> bool:
        """Whether any request has a line of the program's own."""
        return any(site.own for site in self.sites)

    @cached_property
    def live(self) -> np.ndarray:
        """Live bytes after each operation."""
        change = np.zeros(len(self.trace) + 2, np.int64)
        np.add.at(change, self.at + 1, self.size)
        np.add.at(change, self.until + 1, -self.size)
        return np.cumsum(change)[1:-1]

    @property
    def peak(self) -> int:
        """The operation after which most is live, the first of them; -1 for an empty trace."""
        return int(self.live.argmax()) if len(self.trace) else -1

    def alive(self, operation: int) -> np.ndarray:
        """Which requests are live after that operation, as a mask."""
        return (self.at <= operation) & (self.until > operation)

    def asked_at(self, number: int) -> int:
        """The operation that asks for a request; behind the last of them the trace's end."""
        return int(self.at[number]) if number < len(self) else len(self.trace)

    def by_site(self, which: np.ndarray) -> np.ndarray:
        """Bytes of the requests of a mask for each call site."""
        sums = np.bincount(self.site[which], self.size[which], len(self.sites))
        return sums.astype(np.int64)


def site_of(stack: tuple[str, ...]) -> Site:
    """The call site of a stack, innermost frame first."""
    python = [frame for frame in stack if ".py:" in frame or own_line(frame)]
    own = next((frame for frame in python if own_line(frame)), "")
    library = (frame for frame in python if not frame.startswith(("torch/", "python/", "<")))
    frame = own or next(library, "") or next(iter(python), "")
    if not frame:
        return Site(NO_LINE, False)
    place, _, function = frame.partition(" ")
    file, _, line = place.rpartition(":")
    return Site(frame, bool(own), file, int(line) if line.lstrip("-").isdigit() else 0, function)


def requests(trace: Trace) -> Requests:
    """The requests of a trace with their call sites.

    A request that the card refused is none: nothing was handed out.
    """
    blocks = [block for one in trace.start for block in one.blocks if block.state == "A"]
    first = np.array([(block.id, block.size) for block in blocks], np.int64).reshape(-1, 2)
    refused = [call.event for call in trace.driver if call.action == "oom"]
    served = (trace.op == Op.ALLOC) & (trace.id >= 0)
    served[np.array(refused, np.int64)] = False
    asked = np.flatnonzero(served)
    ids = np.concatenate((first[:, 0], trace.id[asked]))
    rounded = -(-np.maximum(trace.size[asked], 1) // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
    freed_at = np.full(trace.ids + 1, len(trace), np.int64)
    frees = np.flatnonzero(np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED)) & (trace.id >= 0))
    np.minimum.at(freed_at, trace.id[frees], frees)
    stack = np.full(len(trace), -1) if trace.frame is None else trace.frame.astype(np.int64)
    places: dict[Site, int] = {Site(BEFORE, False): 0, Site(NO_LINE, False): 1}
    of_stack = [places.setdefault(site_of(frames), len(places)) for frames in trace.frames]
    caller = _backward(trace, stack[asked])
    # A stack of -1 is the last.
    site = np.array([*of_stack, 1], np.int64)[np.where(caller >= 0, caller, stack[asked])]
    none = np.zeros(len(first), np.int64)
    return Requests(
        trace=trace,
        at=np.concatenate((none - 1, asked)),
        until=freed_at[ids],
        size=np.concatenate((first[:, 1], rounded)),
        site=np.concatenate((none, site)),
        id=ids,
        stack=np.concatenate((none - 1, stack[asked])),
        backward=np.concatenate((none > 0, caller >= 0)),
        sites=tuple(places),
    )


def _backward(trace: Trace, stacks: np.ndarray) -> np.ndarray:
    """For each request the stack that called the backward pass which asked for it; -1 where
    none is known to.
    """
    calls, inside = (
        np.array([any(map(names.match, frames)) for frames in trace.frames] + [end])
        for names, end in ((_CALLS_BACKWARD, False), (_IN_BACKWARD, True))
    )
    python = np.array([any(".py:" in one for one in frames) for frames in trace.frames] + [False])
    nameless = ~python[stacks]
    # The last request before that some other Python asked for: it may be the call of the
    # backward pass.
    speaks = np.where(nameless | (inside & ~calls)[stacks], -1, np.arange(len(stacks)))
    last = np.maximum.accumulate(speaks) if len(stacks) else speaks
    root = np.where(last >= 0, stacks[last], -1)
    return np.where((nameless & calls[root]) | calls[stacks], np.where(nameless, root, stacks), -1)


def with_lines(trace: Trace) -> Requests:
    """The requests, where any has a line of the program's own; else LinesError says what is
    missing.
    """
    return named(requests(trace))


def named(found: Requests) -> Requests:
    """The same requests, where any has a line of the program's own; else LinesError says what
    is missing.
    """
    if found.named:
        return found
    frames = len(found.trace.frames)
    seen = f"none of the {frames} call sites of the trace is a line of Python"
    if not frames:
        seen = "no request of the trace has a call site"
    if any(site.name not in (BEFORE, NO_LINE) for site in found.sites):
        seen = "every call site of the trace lies in a package, none in the program's own files"
    raise LinesError(
        f"{seen}; expected stacks: record again with python3 -m helpers record -- COMMAND"
    )
