"""A trace as the oracle's JSON lines. The oracle is torch's own compiled allocator, run on such
lines (tests/oracle).

There are two kinds of lines. Operation lines say what a program asks for, one object a line.
Result lines repeat each operation with what came of it, between a first line with ``job`` and a
last one with ``final``. A block has an id of the file, any number or text, and in a Trace a dense
id: the number of its allocation, counted from 0.
"""

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
"""Fields of a result's first line that belong to the trace's header, beside those of its job."""
_RESULT_LINES = frozenset(("job", "config_error", "final"))
"""Each is a key of a line of a result that is no operation: of its first line, of an error, and of
its last line.
"""
_LARGEST = {"stream": LARGEST // STREAM_STEP, "pool": 1 << 31}
"""The first number that is too large: a stream is multiplied by STREAM_STEP, and the pools of a
trace are 32-bit numbers.
"""
_LONGEST_REASON = 80
_LONGEST_VALUE = 40
"""How many characters of a text from the file an error quotes, so that it stays one line."""


def from_oracle(lines: Iterable[str | bytes]) -> Trace:
    """The trace in the oracle's operation lines or result lines; a result's first line gives
    the header. Empty lines are left out.

    Every allocation gets a dense id of its own, so an id of the file may be used again after it
    was freed. Raises TraceError naming the line, for example for an unknown operation, a size that
    is no whole number of bytes, or an id that is freed or used before it was allocated.
    """
    reader = _Reader()
    for number, text in enumerate(lines, 1):
        if text and not text.isspace():
            reader.read(_Line(number, _object(number, text)))
    return reader.trace()


def _object(number: int, text: str | bytes) -> dict[str, Any]:
    """The JSON object in a line of the file, by the line's number. Raises TraceError."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for "[[[[..."
        reason = str(error)[:_LONGEST_REASON]
        raise TraceError(
            f"line {number} is not JSON ({reason}): expected one object a line"
        ) from None
    if type(row) is not dict:
        raise TraceError(
            f"line {number} is a JSON {type(row).__name__}: expected one object a line"
        )
    return row


def _quoted(value: object) -> str:
    """A value of the file, as an error shows it."""
    return str(value)[:_LONGEST_VALUE]


class _Line(NamedTuple):
    """One line of the file, its ``number`` counted from 1, and the JSON object in it (``row``).

    The methods return what its fields hold, and raise TraceError, which names the line, for a
    field that is missing or of another type.
    """

    number: int
    row: dict[str, Any]

    def op(self) -> Op:
        """The operation. FREE_REQUESTED and FREE_COMPLETED are refused: they are what an allocator
        records of a free, and no operations that a program asks for.
        """
        kind = self.row.get("op")
        op = None
        if type(kind) is str:
            op = OP_NAMES.get(kind)
        if op is None or op in (Op.FREE_REQUESTED, Op.FREE_COMPLETED):
            seen = "no operation"
            if kind:
                seen = f"the unknown operation {_quoted(kind)!r}"
            raise TraceError(
                f"line {self.number} has {seen}: expected alloc, free, ..."
            )
        return op

    def name(self) -> int | str:
        """The id that the file gives to a block."""
        name = self.row.get("id")
        if type(name) is int or type(name) is str:
            return name
        raise TraceError(
            f"line {self.number} has no usable id: expected a whole number or a text"
        )

    def number_at(self, key: str, default: int | None = None) -> int:
        """The whole number of a field, from 0 up and below the field's limit in _LARGEST;
        ``default`` where there is no such field. Without a default the field has to be there.
        """
        value = self.row.get(key, default)
        if type(value) is int and 0 <= value < _LARGEST.get(key, LARGEST):
            return value
        raise TraceError(
            f"line {self.number} has {key} {_quoted(value)}: expected a whole number "
            "from 0 up"
        )

    def setting(self, op: Op) -> float | str:
        """The value of an operation that sets one: the text of a SET_CONF, or the number of a
        SET_FRACTION.
        """
        key = WORDS[op]
        value = self.row.get(key)
        expected = "a number"
        if op == Op.SET_CONF:
            expected = "a text"
            if type(value) is str:
                return value
        elif type(value) is int or type(value) is float:
            return float(value)
        raise TraceError(
            f"line {self.number} (set_{key}) has {key} {_quoted(value)}: expected "
            f"{expected}"
        )

    def pool(self) -> int:
        """The pool as Trace.pool has it: negative for a private pool without a capture."""
        pool = self.number_at("pool", 0)
        if self.row.get("mempool") is True:
            return -pool
        return pool


class _Reader:
    """Collects the operations of the trace.

    ``rows``: the columns of Trace for each operation. ``values``: as in Trace. ``stacks``: the
    number of each stack. ``names``: the id of the file of each dense id. ``latest``: the dense id
    that an id of the file has now. ``live``: the ids of the file that are not freed yet.
    """

    def __init__(self) -> None:
        self.header: dict[str, Any] = {"label": "oracle"}
        self.rows: list[tuple[int, ...]] = []  # op id size stream pool time frame
        self.values: list[float | str] = []
        self.stacks: dict[tuple[str, ...], int] = {}
        self.names: list[int | str] = []
        self.latest: dict[int | str, int] = {}
        self.live: set[int | str] = set()

    def read(self, line: _Line) -> None:
        """Take a line: an operation, or a line of a result that is no operation."""
        if "op" not in line.row and line.row.keys() & _RESULT_LINES:
            self._read_header(line.row)
            return
        op = line.op()
        ident = -1
        stream = 0
        pool = 0
        if op == Op.ALLOC:
            ident = self._allocated(line)
            stream = line.number_at("stream", 0)
        elif op in BLOCK_OPS:
            ident = self._used(line, op)
        if op == Op.RECORD_STREAM:
            stream = line.number_at("stream")
        if op in (Op.ALLOC, Op.EMPTY_CACHE):
            pool = line.pool()
        time = line.row.get("time_ns")
        if type(time) is not int:  # the line has no time
            time = -1
        stack = self._stack(line.row.get("frames"))
        size = self._size(line, op)
        self.rows.append((op, ident, size, stream * STREAM_STEP, pool, time, stack))

    def _read_header(self, row: dict[str, Any]) -> None:
        """Take over what the first line of a result says of the trace. The lines of an error and of
        the final figures say nothing of it, and are left out.
        """
        job = row.get("job")
        if type(job) is dict:
            self.header |= job
            self.header |= {key: row[key] for key in _HEAD if key in row}

    def _stack(self, frames: object) -> int:
        """The number of a stack among those of the trace; -1 for none."""
        if not isinstance(frames, list):
            return -1
        return self.stacks.setdefault(tuple(map(str, frames)), len(self.stacks))

    def _allocated(self, line: _Line) -> int:
        """The dense id of the block that a line allocates. Raises TraceError where the id of the
        file is still that of a live block.
        """
        name = line.name()
        if name in self.live:
            raise TraceError(
                f"line {line.number} allocates id {name!r}, which is still live: free "
                "it first or use a new id"
            )
        # In a result, a request that got no block has another "out"; its id may be used again.
        if line.row.get("out", "ok") == "ok":
            self.live.add(name)
        self.names.append(name)
        self.latest[name] = len(self.names) - 1
        return self.latest[name]

    def _used(self, line: _Line, op: Op) -> int:
        """The dense id of the block that a line uses or frees. Raises TraceError where nothing was
        allocated under that id. A second free is no error: a replay skips it.
        """
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
        """The value of an operation as Trace.size has it: bytes, a count, 1 or 0 of EVENTS_HOLD, or
        a place in ``values``; 0 for an operation without a value.
        """
        if op == Op.ALLOC:
            return line.number_at("size")
        if op == Op.EVENTS_HOLD:
            return int(bool(line.row.get("on", True)))
        if op in (Op.SET_FRACTION, Op.SET_CONF):
            self.values.append(line.setting(op))
            return len(self.values) - 1
        if op == Op.FAIL_NEXT and "count" in line.row:
            return line.number_at("count")  # of a result, whose "n" are its counts
        if op in WORDS:
            return line.number_at(WORDS[op])
        return 0

    def trace(self) -> Trace:
        """The trace of the lines that were read. It has times only if every line has one, and
        stacks only if any line has one.
        """
        columns = np.array(self.rows, np.int64).reshape(-1, 7).T
        op, ids, sizes, streams, pools, times, frames = map(
            np.ascontiguousarray, columns
        )
        time_ns = None
        if len(times) and bool((times >= 0).all()):
            time_ns = times
        frame = None
        if self.stacks:
            frame = frames.astype(np.int32)
        notes = self.header.pop("notes", ())
        if not isinstance(notes, list):
            notes = ()
        names: tuple[int | str, ...] = ()  # where the file counts as the trace does
        if self.names != list(range(len(self.names))):
            names = tuple(self.names)
        return Trace(
            op=op.astype(np.int8),
            id=ids,
            size=sizes,
            stream=streams,
            pool=pools.astype(np.int32),
            values=tuple(self.values),
            time_ns=time_ns,
            frame=frame,
            frames=tuple(self.stacks),
            header=self.header,
            notes=tuple(map(str, notes)),
            names=names,
        )


def _value_of(trace: Trace, op: int, size: int) -> object:
    """The value of an operation that WORDS names, as a line has it: a number, a text or a bool.
    ``size``: as in Trace.size.
    """
    if op in (Op.SET_FRACTION, Op.SET_CONF):
        return trace.values[size]
    if op == Op.EVENTS_HOLD:
        return bool(size)
    return size


def _stream_of(handle: int) -> int:
    """The oracle's number of a stream, from its handle. A handle that is no multiple of STREAM_STEP
    is that of a recorded stream, and stays as it is.
    """
    number, rest = divmod(handle, STREAM_STEP)
    if rest:
        return handle
    return number


def op_lines(trace: Trace) -> Iterator[dict[str, Any]]:
    """The operations of a trace as lines for the oracle, in the file's own ids where the trace has
    them (``names``).

    FREE_REQUESTED and FREE_COMPLETED, which the oracle does not know, get lines with these names in
    lower case; program_lines changes them.
    """
    columns = (trace.op, trace.id, trace.size, trace.stream, trace.pool)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for op, ident, size, stream, pool in rows:
        line: dict[str, Any] = {"op": Op(op).name.lower()}
        if ident >= 0:
            line["id"] = ident
        if 0 <= ident < len(trace.names):
            line["id"] = trace.names[ident]
        if op == Op.ALLOC:
            line["size"] = size
        if stream or op == Op.RECORD_STREAM:
            line["stream"] = _stream_of(stream)
        if pool:
            line["pool"] = abs(pool)
        if pool < 0:
            line["mempool"] = True
        if op in WORDS:
            line[WORDS[op]] = _value_of(trace, op, size)
        yield line


def program_lines(trace: Trace) -> Iterator[dict[str, Any]]:
    """The operations of a trace as lines that a program can ask for: the two parts of a recorded
    free become one "free" where the free was requested.

    Raises ValueError where the trace begins in the middle of a program: what was there first
    cannot be asked for again.
    """
    if trace.start:
        raise ValueError(
            f"the trace begins with {len(trace.start)} segments in use: only a "
            "program's whole trace can be run"
        )
    for line in op_lines(trace):
        if line["op"] == "free_completed":
            continue
        if line["op"] == "free_requested":
            line["op"] = "free"
        yield line
