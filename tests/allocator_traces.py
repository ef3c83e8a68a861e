"""Traces for the tests of the allocator, a row an operation."""

import numpy as np

from helpers.allocator.driver import Card
from helpers.allocator.study import Study
from helpers.allocator.trace import Op, Trace

MIB = 1 << 20


def trace_of(*rows, values=(), **columns):
    """Rows of (op, id, size, stream, pool), what is missing 0 (the id: -1)."""
    full = [(*row, *(-1, 0, 0, 0)[len(row) - 1 :]) for row in rows]
    op, ident, size, stream, pool = np.array(full, np.int64).reshape(-1, 5).T
    fixed = op.astype(np.int8), ident, size, stream, pool.astype(np.int32)
    return Trace(*fixed, tuple(values), **columns)


def alloc(ident, mib, stream=0, pool=0):
    return (Op.ALLOC, ident, int(mib * MIB), stream, pool)


def free(ident):
    return (Op.FREE, ident)


def study_of(*rows, mib, **circumstances):
    """A study of such rows on a card of so many MiB."""
    return Study(trace_of(*rows), Card(mib * MIB), **circumstances)
