"""How well a replay under the settings of a recording agrees with it, address by address."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
    reserved_bytes: int
    recorded_reserved_bytes: int | None

    @property
    def exact(self) -> bool:
        """Every address and the reserved bytes at the end are those of the recording."""
        return (
            self.allocations == self.same_address
            and self.recorded_reserved_bytes
            in (
                None,
                self.reserved_bytes,
            )
        )


def agreement(trace: Trace, outcome: Outcome) -> Agreement | None:
    """How a same-settings replay with a timeline compares with the recording; None where that
    has no addresses.
    """
    if trace.address is None or outcome.timeline is None:
        return None
    stop = outcome.events
    compared = (trace.op[:stop] == Op.ALLOC) & (trace.address[:stop] >= 0)
    recorded = trace.address[:stop][compared]
    expandable = outcome.column("kind")[compared] == _EXPANDABLE
    ordinal = outcome.column("ordinal")[compared]
    range_begin = recorded - outcome.column("offset")[compared]
    same = outcome.column("address")[compared] == recorded
    for number in np.unique(ordinal[expandable]):
        in_range = expandable & (ordinal == number)
        # Where the recorded range began is what most of its allocations say.
        begins, counts = np.unique(range_begin[in_range], return_counts=True)
        same[in_range] = range_begin[in_range] == begins[counts.argmax()]
    return Agreement(
        allocations=int(compared.sum()),
        same_address=int(same.sum()),
        by_offset=int(expandable.sum()),
        reserved_bytes=outcome.figure("reserved_bytes"),
        recorded_reserved_bytes=trace.header.get("final_reserved_bytes"),
    )
