"""How well a replay under the settings of a recording agrees with it, address by address."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from helpers.allocator.driver import CALLS, FREE, MALLOC, MAP, UNMAP
from helpers.allocator.outcome import Outcome
from helpers.allocator.trace import Op, Trace

_EXPANDABLE = 1
"""The kind of a block that lies in an expandable range."""


class Agreement(NamedTuple):
    """A same-settings replay against the recording: counts of what was compared and of what was
    equal.

    ``by_offset``: so many of the allocations lie in expandable ranges and are compared by their
    offset in them, since where a range begins is the driver's choice.
    """

    allocations: int
    same_address: int
    by_offset: int
    segment_calls: int
    same_segment_calls: int
    reserved_bytes: int
    recorded_reserved_bytes: int | None

    @property
    def exact(self) -> bool:
        """Every address, every segment call and the reserved bytes at the end are those of the
        recording.
        """
        return (
            self.allocations == self.same_address
            and self.segment_calls == self.same_segment_calls
            and self.recorded_reserved_bytes in (None, self.reserved_bytes)
        )


def agreement(trace: Trace, outcome: Outcome) -> Agreement | None:
    """How a same-settings replay with a timeline compares with the recording; None where that
    has no addresses.
    """
    if trace.address is None or outcome.timeline is None or outcome.calls is None:
        return None
    stop = outcome.events
    compared = (trace.op[:stop] == Op.ALLOC) & (trace.address[:stop] >= 0)
    recorded = trace.address[:stop][compared]
    expandable = outcome.column("kind")[compared] == _EXPANDABLE
    ordinal = outcome.column("ordinal")[compared]
    begin = recorded - outcome.column("offset")[compared]
    same = outcome.column("address")[compared] == recorded
    for number in np.unique(ordinal[expandable]):
        in_range = expandable & (ordinal == number)
        begins, counts = np.unique(begin[in_range], return_counts=True)
        same[in_range] = begin[in_range] == begins[counts.argmax()]
    recorded_calls = Counter(
        (call.event, call.action, call.size)
        for call in trace.driver
        if call.event < stop and call.action != "oom"
    )
    calls = _segment_calls(trace, outcome.calls)
    return Agreement(
        allocations=int(compared.sum()),
        same_address=int(same.sum()),
        by_offset=int(expandable.sum()),
        segment_calls=max(recorded_calls.total(), calls.total()),
        same_segment_calls=(recorded_calls & calls).total(),
        reserved_bytes=outcome.figure("reserved_bytes"),
        recorded_reserved_bytes=trace.header.get("final_reserved_bytes"),
    )


def _segment_calls(trace: Trace, calls: np.ndarray) -> Counter[tuple[int, str, int]]:
    """The replay's calls to the driver: (operation, what, bytes)."""
    counts: Counter[tuple[int, str, int]] = Counter()
    # Bytes of each cudaMalloc segment by its ordinal: those of the start come first.
    sizes = dict(enumerate(segment.size for segment in trace.start if not segment.expandable))
    for event, call, ordinal, _, size in calls.tolist():
        if call == MALLOC:
            sizes[ordinal] = size
        if call == FREE:
            counts[event, CALLS[call], sizes.get(ordinal, 0)] += 1
        elif call in (MALLOC, MAP, UNMAP):
            counts[event, CALLS[call], size] += 1
    return counts
