"""The trace of the edited program, put together request by request."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from helpers.allocator.call_sites import Requests
from helpers.allocator.edits.backward import BackwardPass
from helpers.allocator.edits.line_calls import requests_under
from helpers.allocator.trace import Op, Trace

LINEAR = "torch/nn/modules/linear.py"
EARLIEST = -3
BEFORE = -2
FIRST = -1
AT = 0
"""Turns of what is done at one operation: a row with a lower one comes first."""


class Moment(NamedTuple):
    """When something is asked for or freed: at an operation of the trace, in this turn."""

    operation: int
    turn: int = AT


class _Row(NamedTuple):
    """An operation of the edited program; ``request``: the one it is made after."""

    operation: int
    turn: int
    op: Op
    id: int
    request: int


class Rewrite:
    """Which requests an edit makes otherwise, and what stands in their place.

    ``smaller``: requests that are asked for in parts; ``replaced``: those that are asked for
    and freed at other moments, or not at all; ``added_bytes``: bytes asked for again.
    """

    def __init__(self, requests: Requests, backward: BackwardPass) -> None:
        self.requests = requests
        self.backward = backward
        self.smaller: set[int] = set()
        self.replaced: set[int] = set()
        self.added_bytes = 0
        self._rows: list[_Row] = []
        self._next_id = requests.trace.ids
        self._by_linear = requests_under(requests, lambda frame: frame.startswith(LINEAR))

    def live_between(self, request: int, begin: Moment, end: Moment) -> None:
        """In place of a request, one that lives between two moments."""
        self.replaced.add(request)
        self._rows.append(_Row(*begin, Op.ALLOC, self._next_id, request))
        self._rows.append(_Row(*end, Op.FREE, self._next_id, request))
        self._next_id += 1

    def free_before(self, request: int, operation: int) -> None:
        """The request is freed before that operation."""
        asked = Moment(int(self.requests.at[request]))
        self.live_between(request, asked, Moment(operation, BEFORE))

    def ask_again(self, call: list[int], saved: list[int], operation: int) -> None:
        """The requests of a call are asked for again before that operation, in their order.

        ``saved``: those of them that live on to the backward step that needs them.
        """
        at = self.requests.at
        until = self.requests.until
        call_end = int(at[call[-1]]) + 1
        steps = [(int(at[request]), Op.ALLOC, request) for request in call]
        steps += [(min(int(until[request]), call_end), Op.FREE, request) for request in call]
        ids = {request: self._next_id + number for number, request in enumerate(call)}
        self._next_id += len(call)
        for _, op, request in sorted(steps, key=lambda step: step[0]):
            if op == Op.ALLOC or request not in saved:
                self._rows.append(_Row(operation, FIRST, op, ids[request], request))
        for request in saved:
            freed_at = self._needed_until(request)
            self._rows.append(_Row(freed_at, AT, Op.FREE, ids[request], request))
        self.added_bytes += int(self.requests.size[call].sum())

    def _needed_until(self, request: int) -> int:
        """The operation that frees what was made again for the backward pass.

        A linear layer's step lets go of it before the bias's gradient is summed up.
        """
        until = int(self.requests.until[request])
        step = self.backward.step_at(until)
        made = self.backward.gradients(step - 1, until)
        outlive = [gradient for gradient in made if self.requests.until[gradient] > until]
        beside_bias = outlive[2:]  # after the input's, the weight's
        if self._by_linear[request + 1] and beside_bias:
            return int(self.requests.at[beside_bias[-1]])
        return until

    def trace(self, parts: int) -> Trace:
        """The trace of the edited program; ``parts``: into how many the smaller ones are cut."""
        old = self.requests.trace
        sizes = old.size.copy()
        smaller = self.requests.at[[*self.smaller]]
        sizes[smaller] = np.maximum(-(-sizes[smaller] // parts), 1)
        replaced_ids = self.requests.id[[*self.replaced]]
        kept = np.flatnonzero((old.id < 0) | ~np.isin(old.id, replaced_ids))
        rows = np.array(self._rows, np.int64).reshape(-1, len(_Row._fields))
        operation, turn, op, ident, request = rows.T
        asked_at = self.requests.at[request]
        operations = np.concatenate((kept, operation))
        turns = np.concatenate((np.full(len(kept), AT), turn))
        order = np.lexsort((np.arange(len(operations)), turns, operations))

        def column(before: np.ndarray, new: np.ndarray) -> np.ndarray:
            return np.concatenate((before[kept], new.astype(before.dtype)))[order]

        return replace(
            old,
            op=column(old.op, op),
            id=column(old.id, ident),
            size=column(sizes, np.where(op == Op.ALLOC, sizes[asked_at], 0)),
            stream=column(old.stream, old.stream[asked_at]),
            pool=column(old.pool, old.pool[asked_at]),
            frame=None if old.frame is None else column(old.frame, old.frame[asked_at]),
            time_ns=None,
            address=None,
            driver=(),
            names=(),
        )
