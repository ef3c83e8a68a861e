"""A trace as the oracle's JSON lines: operations that a program asks for, or their results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from helpers.allocator.trace import (
    BLOCK_OPS,
    LARGEST,
    STREAM_STEP,
    Op,
    Trace,
    TraceError,
)

OP_NAMES = {op.name.lower(): op for op in Op}
WORDS = {
    Op.SET_FRACTION: "fraction",
    Op.SET_CONF: "conf",
    Op.EVENTS_HOLD: "on",
    Op.FOREIGN: "bytes",
    Op.FAIL_NEXT: "n",
}
"""What the oracle's operation lines call the one value of an operation that names no block."""
_HEAD = ("torch", "trace", "build", "label", "notes", "live_before")


def from_oracle(lines: Iterable[str | bytes]) -> Trace:
    """The trace in the oracle's operation lines or result lines; a result's first line gives
    the header.

    Every allocation gets an id of its own, so an id of the file may be used again after it was
    freed. Raises TraceError naming the line: unknown operation, a size that is no whole number
    of bytes, an id freed or used before it was allocated.
    """
    reader = _Reader()
    for number, text in enumerate(lines, 1):
        if text and not text.isspace():
            reader.read(_Line(number, _object(number, text)))
    return reader.trace()


def _object(number: int, text: str | bytes) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"line {number} is not JSON ({str(error)[:80]}): expected one object a line"
        ) from None
    if type(row) is not dict:
        raise TraceError(
            f"line {number} is a JSON {type(row).__name__}: expected one object a line"
        )
    return row


class _Line(NamedTuple):
    """One line by its number, and what its fields hold; TraceError where that is not possible."""

    number: int
    row: dict[str, Any]

    def op(self) -> Op:
        kind = self.row.get("op")
        op = None
        if type(kind) is str:
            op = OP_NAMES.get(kind)
        if op is None or op in (Op.FREE_REQUESTED, Op.FREE_COMPLETED):
            seen = "no operation"
            if kind:
                seen = f"the unknown operation {str(kind)[:40]!r}"
            raise TraceError(
                f"line {self.number} has {seen}: expected alloc, free, ..."
            )
        return op

    def name(self) -> int | str:
        name = self.row.get("id")
        if type(name) is int or type(name) is str:
            return name
        raise TraceError(
            f"line {self.number} has no usable id: expected a whole number or a text"
        )

    def number_at(self, key: str, default: int | None = None) -> int:
        value = self.row.get(key, default)
        most = LARGEST >> {"stream": 12, "pool": 31}.get(key, 0)
        if type(value) is int and 0 <= value < most:
            return value
        raise TraceError(
            f"line {self.number} has {key} {str(value)[:40]}: expected a whole number "
            "from 0 up"
        )

    def setting(self, op: Op) -> float | str:
        key = WORDS[op]
        value = self.row.get(key)
        if op == Op.SET_CONF and type(value) is str:
            return value
        if (
            op == Op.SET_FRACTION
            and isinstance(value, int | float)
            and type(value) is not bool
        ):
            return float(value)
        expected = "a text" if op == Op.SET_CONF else "a number"
        raise TraceError(
            f"line {self.number} (set_{key}) has {key} {str(value)[:40]}: expected "
            f"{expected}"
        )

    def pool(self) -> int:
        pool = self.number_at("pool", 0)
        return -pool if self.row.get("mempool") is True else pool


class _Reader:
    """Collects the operations of the trace."""

    def __init__(self) -> None:
        self.header: dict[str, Any] = {"label": "oracle"}
        self.rows: list[tuple[int, ...]] = []  # op id size stream pool time frame
        self.values: list[float | str] = []
        self.stacks: dict[tuple[str, ...], int] = {}
        self.names: list[int | str] = []  # id of the file of each dense id
        self.latest: dict[int | str, int] = {}  # id of the file -> dense id
        self.live: set[int | str] = set()

    def read(self, line: _Line) -> None:
        row = line.row
        if "op" not in row and row.keys() & {"job", "config_error", "final"}:
            if type(row.get("job")) is dict:
                self.header |= {
                    **row["job"],
                    **{key: row[key] for key in _HEAD if key in row},
                }
            return
        op = line.op()
        ident = -1
        stream = 0
        if op == Op.ALLOC:
            ident = self._allocated(line)
            stream = line.number_at("stream", 0)
        elif op in BLOCK_OPS:
            ident = self._used(line, op)
        if op == Op.RECORD_STREAM:
            stream = line.number_at("stream")
        pool = line.pool() if op in (Op.ALLOC, Op.EMPTY_CACHE) else 0
        time = row.get("time_ns")
        if type(time) is not int:
            time = -1
        stack = -1
        if type(row.get("frames")) is list:
            stack = self.stacks.setdefault(
                tuple(map(str, row["frames"])), len(self.stacks)
            )
        size = self._size(line, op)
        self.rows.append((op, ident, size, stream * STREAM_STEP, pool, time, stack))

    def _allocated(self, line: _Line) -> int:
        name = line.name()
        if name in self.live:
            raise TraceError(
                f"line {line.number} allocates id {name!r}, which is still live: free "
                "it first or use a new id"
            )
        if line.row.get("out", "ok") == "ok":
            self.live.add(name)
        self.names.append(name)
        self.latest[name] = len(self.names) - 1
        return self.latest[name]

    def _used(self, line: _Line, op: Op) -> int:
        name = line.name()
        if name not in self.latest:
            raise TraceError(
                f"line {line.number} ({op.name.lower()}) names id {name!r}, which was "
                "not allocated before: record from the program's start, or leave out "
                "what was live before"
            )
        if op == Op.FREE:
            self.live.discard(name)
        return self.latest[name]

    def _size(self, line: _Line, op: Op) -> int:
        if op == Op.ALLOC:
            return line.number_at("size")
        if op == Op.EVENTS_HOLD:
            return int(bool(line.row.get("on", True)))
        if op in (Op.SET_FRACTION, Op.SET_CONF):
            self.values.append(line.setting(op))
            return len(self.values) - 1
        if (
            op == Op.FAIL_NEXT and "count" in line.row
        ):  # of a result, whose "n" are its counts
            return line.number_at("count")
        return line.number_at(WORDS[op]) if op in WORDS else 0

    def trace(self) -> Trace:
        columns = np.array(self.rows, np.int64).reshape(-1, 7).T
        op, ids, sizes, streams, pools, times, frame = map(
            np.ascontiguousarray, columns
        )
        timed = len(times) > 0 and bool((times >= 0).all())
        notes = self.header.pop("notes", ())
        dense = self.names == list(range(len(self.names)))
        return Trace(
            op=op.astype(np.int8),
            id=ids,
            size=sizes,
            stream=streams,
            pool=pools.astype(np.int32),
            values=tuple(self.values),
            time_ns=times if timed else None,
            frame=frame.astype(np.int32) if self.stacks else None,
            frames=tuple(self.stacks),
            header=self.header,
            notes=tuple(map(str, notes)) if isinstance(notes, list) else (),
            names=() if dense else tuple(self.names),
        )


def op_lines(trace: Trace) -> Iterator[dict[str, Any]]:
    """One line an operation, as the oracle reads them; what it has no word for keeps its own name."""
    columns = (trace.op, trace.id, trace.size, trace.stream, trace.pool)
    for op, ident, size, stream, pool in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        line: dict[str, Any] = {"op": Op(op).name.lower()}
        if ident >= 0:
            line["id"] = trace.names[ident] if ident < len(trace.names) else ident
        if op == Op.ALLOC:
            line["size"] = size
        if stream or op == Op.RECORD_STREAM:
            line["stream"] = stream if stream % STREAM_STEP else stream // STREAM_STEP
        if pool:
            line["pool"] = abs(pool)
        if pool < 0:
            line["mempool"] = True
        if op in (Op.SET_FRACTION, Op.SET_CONF):
            line[WORDS[op]] = trace.values[size]
        elif op in WORDS:
            line[WORDS[op]] = bool(size) if op == Op.EVENTS_HOLD else size
        yield line


def program_lines(trace: Trace) -> Iterator[dict[str, Any]]:
    """The lines as a program asks: a free is one, where it was requested.

    Raises ValueError where the trace begins in the middle of a program: what was there first
    cannot be asked for again.
    """
    if trace.start:
        raise ValueError(
            f"the trace begins with {len(trace.start)} segments in use: only a "
            "program's whole trace can be run"
        )
    for line in op_lines(trace):
        if line["op"] != "free_completed":
            yield {**line, "op": "free"} if line["op"] == "free_requested" else line
