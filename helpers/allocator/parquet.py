"""A trace as the project's own Parquet file: small, read by DuckDB, and complete enough to be replayed.

Columns: i, op, id, size_bytes, stream, time_ns, frames (innermost first, a line each), pool, address. What is no column is JSON
under the key ``casebook.trace`` of the file's metadata: header, values of settings, start state, driver calls, notes.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from helpers.allocator.trace import (
    OP_NAMES,
    DriverCall,
    StartBlock,
    StartSegment,
    Trace,
    TraceError,
    possible,
)

_MAX_ROWS = 50_000_000
_COLUMNS = ("op", "id", "size_bytes", "stream", "pool", "time_ns", "address", "frames")
_METADATA = b"casebook.trace"


def to_parquet(trace: Trace, path: str | Path) -> None:
    """Writes one row an operation; header, values, start state, driver calls and notes go into the file's metadata as JSON."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = len(trace)
    frame = np.full(count, -1, np.int32) if trace.frame is None else trace.frame
    columns = {
        "i": pa.array(np.arange(count, dtype=np.int64)),
        "op": pa.DictionaryArray.from_arrays(trace.op, list(OP_NAMES)),
        "id": pa.array(trace.id),
        "size_bytes": pa.array(trace.size),
        "stream": pa.array(trace.stream),
        "time_ns": pa.nulls(count, pa.int64())
        if trace.time_ns is None
        else pa.array(trace.time_ns),
        "frames": pa.DictionaryArray.from_arrays(
            pa.array(frame, mask=frame < 0),
            pa.array(["\n".join(names) for names in trace.frames], pa.string()),
        ),
        "pool": pa.array(trace.pool),
        "address": pa.nulls(count, pa.int64())
        if trace.address is None
        else pa.array(trace.address),
    }
    rest = {
        "schema_version": 1,
        "header": trace.header,
        "values": trace.values,
        "notes": trace.notes,
        "start": [astuple(segment) for segment in trace.start],
        "driver": [astuple(call) for call in trace.driver],
    }
    table = pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(rest).encode()})
    pq.write_table(table, path, compression="zstd")


def from_parquet(path: str | Path) -> Trace:
    """The trace that ``to_parquet`` wrote. Raises TraceError where a column is missing or what it says cannot have happened."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = Path(path).name
    try:
        about = pq.read_metadata(path)
        missing = sorted({*_COLUMNS} - {*about.schema.names})
        rest = (about.metadata or {}).get(_METADATA)
        if missing or rest is None:
            raise TraceError(
                f"{name} lacks {', '.join(missing) or 'the metadata of a trace'}: it is Parquet, but no trace"
            )
        if about.num_rows > _MAX_ROWS:
            raise TraceError(
                f"{name} has {about.num_rows:,} rows and the limit is {_MAX_ROWS:,}: cut it in parts"
            )
        with pq.ParquetFile(path, read_dictionary=["op", "frames"]) as file:
            table = file.read(columns=list(_COLUMNS)).unify_dictionaries()
        columns = {key: table.column(key).combine_chunks() for key in _COLUMNS}
        known = {
            key: column.to_numpy(zero_copy_only=False)
            for key, column in columns.items()
            if key not in ("op", "frames")
        }
        op, frames = columns["op"], columns["frames"]
        codes = np.array(
            [OP_NAMES.get(text, -1) for text in op.dictionary.to_pylist()] or [-1], np.int8
        )
        op = codes[op.indices.fill_null(0).to_numpy(zero_copy_only=False)]
        numbers = [_integers(name, key, known[key]) for key in ("id", "size_bytes", "stream")]
        frame = frames.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        trace = Trace(
            op,
            numbers[0],
            numbers[1],
            numbers[2],
            pool=_integers(name, "pool", known["pool"]).astype(np.int32),
            time_ns=None if columns["time_ns"].null_count or not len(table) else known["time_ns"],
            address=None if columns["address"].null_count or not len(table) else known["address"],
            frame=frame if len(frames.dictionary) else None,
            frames=tuple(tuple(text.split("\n")) for text in frames.dictionary.to_pylist()),
            **_rest(json.loads(rest)),
        )
    except (
        pa.ArrowException,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
        OverflowError,
    ) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(
            f"{name} is not a trace that this project wrote ({str(error).splitlines()[0][:100]})"
        ) from None
    return possible(trace)


def _integers(name: str, key: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind != "i":
        raise TraceError(
            f"{name} has a column {key} of {column.dtype}, or with gaps: expected whole numbers"
        )
    return column.astype(np.int64)


def _rest(rest: dict[str, Any]) -> dict[str, Any]:
    start = tuple(
        StartSegment(
            address,
            size,
            stream,
            small,
            pool,
            expandable,
            tuple(StartBlock(*block) for block in blocks),
        )
        for address, size, stream, small, pool, expandable, blocks in rest["start"]
    )
    return {
        "header": dict(rest["header"]),
        "values": tuple(rest["values"]),
        "notes": tuple(rest["notes"]),
        "start": start,
        "driver": tuple(DriverCall(*call) for call in rest["driver"]),
    }
