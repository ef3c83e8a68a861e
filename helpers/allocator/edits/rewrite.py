"""Puts the trace of the edited program together, request by request."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from helpers.allocator.call_sites import Requests
from helpers.allocator.trace import Op, Trace, rearranged


class _Row(NamedTuple):
    """A new operation in front of the operation ``before`` of the trace. ``request``: the recorded
    request that it allocates again or frees, whose size and stack it has.
    """

    before: int
    op: Op
    id: int
    request: int


class Rewrite:
    """The requests that an edit changes, and the operations in their place.

    ``smaller``: requests that become as small as a chunk; ``dropped``: those that are never made;
    ``moved``: those that are freed at another moment; ``added_bytes``: bytes that are asked for
    once more.
    """

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.smaller: set[int] = set()
        self.dropped: set[int] = set()
        self.moved: set[int] = set()
        self.added_bytes = 0
        self._rows: list[_Row] = []
        self._next_id = requests.trace.ids

    @property
    def changed(self) -> list[int]:
        """The requests that the edit changes, in order."""
        return sorted(self.smaller | self.dropped | self.moved)

    def free_before(self, request: int, operation: int) -> None:
        """The request is freed before that operation."""
        self.moved.add(request)
        ident = int(self.requests.id[request])
        self._rows.append(_Row(operation, Op.FREE, ident, request))

    def ask_again(self, call: list[int], saved: list[int], operation: int) -> None:
        """The requests ``call`` of one run of a line are made again just before ``operation``, as a
        checkpoint does, in the recorded order. Each is freed there too, in its turn, except those
        of ``saved``: the backward pass needs these until the recorded program freed them.
        """
        at = self.requests.at
        until = self.requests.until
        # (recorded operation, what it does, request)
        steps = [(int(at[request]), Op.ALLOC, request) for request in call]
        steps += [(int(until[request]), Op.FREE, request) for request in call]
        ids = {request: self._next_id + number for number, request in enumerate(call)}
        self._next_id += len(call)
        # In order of time; at one operation ALLOC, which is 0, comes before FREE, which is 1.
        for _, op, request in sorted(steps):
            if op == Op.ALLOC or request not in saved:
                self._rows.append(_Row(operation, op, ids[request], request))
        for request in saved:
            self._rows.append(_Row(int(until[request]), Op.FREE, ids[request], request))
        self.added_bytes += int(self.requests.size[call].sum())

    def trace(self, parts: int) -> Trace:
        """The trace of the edited program; ``parts``: into how many chunks the smaller ones are
        cut.
        """
        old = self.requests.trace
        sizes = old.size.copy()
        smaller = self.requests.at[[*self.smaller]]
        chunk_sizes = np.ceil(sizes[smaller] / parts).astype(np.int64)
        sizes[smaller] = np.maximum(chunk_sizes, 1)
        # Recorded operations that stay: none of a dropped request, of a moved one not its free.
        dropped = np.isin(old.id, self.requests.id[[*self.dropped]])
        moved = np.isin(old.id, self.requests.id[[*self.moved]])
        kept = np.flatnonzero(~dropped & (~moved | (old.op == Op.ALLOC)))
        rows = np.array(self._rows, np.int64).reshape(-1, len(_Row._fields))
        before, op, ident, request = rows.T
        asked_at = self.requests.at[request]
        # New rows come before the operation that they name, in the order in which they were made.
        is_kept = np.repeat([0, 1], [len(rows), len(kept)])
        order = np.lexsort((is_kept, np.concatenate((before, kept))))
        row_sizes = np.where(op == Op.ALLOC, sizes[asked_at], 0)
        return rearranged(
            old,
            np.concatenate((asked_at, kept))[order],
            op=np.concatenate((op, old.op[kept]))[order],
            id=np.concatenate((ident, old.id[kept]))[order],
            size=np.concatenate((row_sizes, sizes[kept]))[order],
        )


def checkpoint(requests: Requests, calls: list[list[int]], rewrite: Rewrite) -> None:
    """Puts a line under ``torch.utils.checkpoint``: the tensors that it keeps for the backward pass
    are freed when the line is done, and asked for again when the backward pass reaches the line.
    Its output, the last request that outlives it, stays.

    ``calls``: the requests of the line, a list for each of its runs. A tensor is kept for the
    backward pass if a backward pass frees it. Where the recording ends before that, no free shows
    it; it then counts as such a tensor if a backward pass frees another request of its stack.
    """
    until = requests.until
    freed_by_backward = requests.freed_in_backward
    in_line = np.concatenate(calls)
    kept_stacks = set(requests.stack[in_line[freed_by_backward[in_line]]].tolist())
    for call in calls:
        call_end = requests.asked_at(call[-1] + 1)
        outlive = [request for request in call if until[request] > call_end]
        # All but the output. First the tensors whose backward pass was not recorded any more.
        for request in outlive[:-1]:
            is_never_freed = until[request] == len(requests.trace)
            if is_never_freed and requests.stack[request] in kept_stacks:
                rewrite.free_before(request, call_end)
        kept = [request for request in outlive[:-1] if freed_by_backward[request]]
        if not kept:
            continue
        begin = _step_at(requests, int(until[kept].min()))
        # Nothing is saved where the backward pass follows at once.
        if begin <= call_end:
            continue
        for request in kept:
            rewrite.free_before(request, call_end)
        # It computes again only up to the last tensor that is needed, as torch does unless it is
        # told otherwise (set_checkpoint_early_stop in torch/utils/checkpoint.py, 2.6).
        again = [request for request in call if request <= kept[-1]]
        rewrite.ask_again(again, kept, begin)


def _step_at(requests: Requests, operation: int) -> int:
    """The operation at which the step of a backward pass begins that frees something at
    ``operation``. Such a step first makes its requests, without a free between them: it is the
    first of these.
    """
    at = requests.at
    number = int(np.searchsorted(at, operation)) - 1
    while number > 0:
        is_next_operation = at[number] == at[number - 1] + 1
        if not (is_next_operation and requests.backward[number - 1]):
            break
        number -= 1
    return int(at[number])
