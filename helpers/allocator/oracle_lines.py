"""A trace as the oracle's JSON lines: operations that a program asks for, or their results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from helpers.allocator.trace import LARGEST, STREAM_STEP, Op, Trace, TraceError

_BATCH = 2000


def _objects(lines: Iterable[str | bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of each line that is not blank; a batch at a time, which
    halves the time.
    """
    texts = (line.decode("utf-8", "replace") if isinstance(line, bytes) else line for line in lines)
    rows = ((number, text) for number, text in enumerate(texts, 1) if text and not text.isspace())
    while batch := list(islice(rows, _BATCH)):
        for number, row in zip((number for number, _ in batch), _parsed(batch), strict=True):
            if type(row) is not dict:
                what = f"a JSON {type(row).__name__}"
                raise TraceError(f"line {number} is {what}: expected one object a line")
            yield number, row


def _parsed(batch: list[tuple[int, str]]) -> list[Any]:
    try:
        rows = json.loads("[" + ",".join(text for _, text in batch) + "]")
    except (ValueError, RecursionError):
        rows = []
    return rows if len(rows) == len(batch) else [_one(number, text) for number, text in batch]


def _one(number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"line {number} is not JSON ({str(error)[:80]})"
        raise TraceError(f"{what}: expected one object a line") from None


def from_oracle(lines: Iterable[str | bytes], header: dict[str, Any] | None = None) -> Trace:
    """The trace in the oracle's operation lines or result lines; a result's first line gives
    the header.

    Every allocation gets an id of its own, so an id of the file may be used again after it was
    freed. Raises TraceError naming the line: unknown operation, a size that is no whole number
    of bytes, an id freed or used before it was allocated.
    """
    top: dict[str, Any] = {"label": "oracle", **(header or {})}
    values: list[float | str] = []
    latest: dict[Any, int] = {}  # id of the file -> dense id
    live: set[Any] = set()
    rows: list[tuple[int, ...]] = []  # op id size stream pool time frame
    stacks: dict[tuple[str, ...], int] = {}
    names: list[int | str] = []  # id of the file of each dense id
    for number, row in _objects(lines):
        kind = row.get("op")
        if kind is None and row.keys() & {"job", "config_error", "final"}:
            if "job" in row and type(row["job"]) is dict:
                top |= {**row["job"], **{key: row[key] for key in _HEAD if key in row}}
            elif "config_error" in row:
                top["config_error"] = row["config_error"]
            continue
        size = 0
        ident = -1
        stream = 0
        if type(kind) is not str or kind not in _ASKED:
            what = f"the unknown operation {str(kind)[:40]!r}" if kind else "no operation"
            raise TraceError(f"line {number} has {what}: expected alloc, free, ...")
        if kind == "alloc":
            name = _id(row, number)
            size = _whole(row, "size", number)
            stream = _whole(row, "stream", number, 0)
            if name in live:
                what = f"line {number} allocates id {name!r}, which is still live"
                raise TraceError(f"{what}: free it first or use a new id")
            ident = latest[name] = len(names)
            names.append(name)
            if row.get("out", "ok") == "ok":
                live.add(name)
        elif kind in ("free", "record_stream"):
            name = _id(row, number)
            if name not in latest:
                what = f"names id {name!r}, which was not allocated before"
                do = "record from the program's start, or leave out what was live before"
                raise TraceError(f"line {number} ({kind}) {what}: {do}")
            ident = latest[name]
            if kind == "free":
                live.discard(name)
            else:
                stream = _whole(row, "stream", number)
        elif kind == "events_hold":
            size = 1 if row.get("on", True) else 0
        elif kind in ("set_fraction", "set_conf"):
            size = len(values)
            values.append(_value(row, kind, number))
        elif OP_NAMES[kind] in WORDS:
            # A result line holds its counts under "n", and how many calls fail under "count".
            counted = kind == "fail_next" and ("count" in row or type(row.get("n")) is list)
            size = _whole(row, "count" if counted else WORDS[OP_NAMES[kind]], number)
        pool = _whole(row, "pool", number, 0) if kind in ("alloc", "empty_cache") else 0
        pool = -pool if row.get("mempool") is True else pool
        time = row.get("time_ns")
        calls = row.get("frames")
        stack = -1
        time = time if type(time) is int else -1
        if type(calls) is list:
            stack = stacks.setdefault(tuple(map(str, calls)), len(stacks))
        rows.append((OP_NAMES[kind], ident, size, stream * STREAM_STEP, pool, time, stack))
    columns = np.array(rows, np.int64).reshape(-1, 7).T
    op, ids, sizes, streams, pools, times, frame = map(np.ascontiguousarray, columns)
    remarks = top.pop("notes", ())
    return Trace(
        op.astype(np.int8),
        ids,
        sizes,
        streams,
        pools.astype(np.int32),
        tuple(values),
        times if times.min(initial=-1 if not rows else 0) >= 0 else None,
        frame=frame.astype(np.int32) if stacks else None,
        frames=tuple(stacks),
        header=top,
        notes=tuple(map(str, remarks)) if isinstance(remarks, list) else (),
        names=() if names == list(range(len(names))) else tuple(names),
    )


OP_NAMES = {op.name.lower(): op for op in Op}
_ASKED = {*OP_NAMES} - {"free_requested", "free_completed"}
WORDS = {
    Op.SET_FRACTION: "fraction",
    Op.SET_CONF: "conf",
    Op.EVENTS_HOLD: "on",
    Op.FOREIGN: "bytes",
    Op.FAIL_NEXT: "n",
}
"""What the oracle's operation lines call the one value of an operation that names no block."""
_HEAD = ("torch", "trace", "build", "label", "notes", "live_before")


def _id(row: dict[str, Any], number: int) -> int | str:
    name = row.get("id")
    if type(name) is int or type(name) is str:
        return name
    raise TraceError(f"line {number} has no usable id: expected a whole number or a text")


def _whole(row: dict[str, Any], key: str, number: int, default: int | None = None) -> int:
    value = row.get(key, default)
    if type(value) is int and 0 <= value < LARGEST >> {"stream": 12, "pool": 31}.get(key, 0):
        return value
    what = f"line {number} has {key} {str(value)[:40]}"
    raise TraceError(f"{what}: expected a whole number from 0 up")


def _value(row: dict[str, Any], kind: str, number: int) -> float | str:
    value = row.get(kind[4:])
    if kind == "set_conf" and type(value) is str:
        return value
    if kind == "set_fraction" and isinstance(value, int | float) and type(value) is not bool:
        return float(value)
    expected = "a text" if kind == "set_conf" else "a number"
    what = f"line {number} ({kind}) has {kind[4:]} {str(value)[:40]}"
    raise TraceError(f"{what}: expected {expected}")


def op_lines(trace: Trace) -> Iterator[dict[str, Any]]:
    """One line an operation, as the oracle reads them; what it has no word for keeps its own name."""
    columns = (trace.op, trace.id, trace.size, trace.stream, trace.pool)
    for op, ident, size, stream, pool in zip(*(column.tolist() for column in columns), strict=True):
        line: dict[str, Any] = {"op": Op(op).name.lower()}
        if ident >= 0:
            line["id"] = trace.names[ident] if ident < len(trace.names) else ident
        if op == Op.ALLOC:
            line["size"] = size
        if stream or op == Op.RECORD_STREAM:
            line["stream"] = stream // STREAM_STEP if stream % STREAM_STEP == 0 else stream
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
        used = f"the trace begins with {len(trace.start)} segments in use"
        raise ValueError(f"{used}: only a program's whole trace can be run")
    for line in op_lines(trace):
        if line["op"] != "free_completed":
            yield {**line, "op": "free"} if line["op"] == "free_requested" else line
