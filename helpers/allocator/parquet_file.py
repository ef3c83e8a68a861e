"""A trace in the project's own Parquet file, which is small, read by DuckDB, and complete enough
to be replayed.

Its columns: i, op, id, size_bytes, stream, time_ns, frames (innermost first, a line each),
pool, address. What is no column is JSON under the key ``casebook.trace`` of the file's
metadata: header, values of settings, start state, driver calls, notes.
"""

from __future__ import annotations

import json
import os
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from helpers.allocator.oracle_lines import OP_NAMES
from helpers.allocator.trace import (
    DriverCall,
    StartBlock,
    StartSegment,
    Trace,
    TraceError,
    possible,
)
from helpers.look.files import opened
from helpers.look.parquet_head import check_parquet

_MAX_HEAD_BYTES = 64 << 20  # with the start state, which is no column
_MAX_ROWS = 50_000_000
_COLUMNS = ("op", "id", "size_bytes", "stream", "pool", "time_ns", "address", "frames")
_METADATA = b"casebook.trace"


def to_parquet(trace: Trace, path: str | Path) -> None:
    """Writes one row an operation; header, values, start state, driver calls and notes go into
    the file's metadata as JSON.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(values: np.ndarray | None) -> Any:
        if values is None:
            return pa.nulls(len(trace), pa.int64())
        return pa.array(values)

    frame = trace.frame
    if frame is None:
        frame = np.full(len(trace), -1, np.int32)
    stacks = pa.array(["\n".join(names) for names in trace.frames], pa.string())
    columns = {
        "i": pa.array(np.arange(len(trace), dtype=np.int64)),
        "op": pa.DictionaryArray.from_arrays(trace.op, list(OP_NAMES)),
        "id": pa.array(trace.id),
        "size_bytes": pa.array(trace.size),
        "stream": pa.array(trace.stream),
        "time_ns": column(trace.time_ns),
        "frames": pa.DictionaryArray.from_arrays(
            pa.array(frame, mask=frame < 0), stacks
        ),
        "pool": pa.array(trace.pool),
        "address": column(trace.address),
    }
    rest = {
        "schema_version": 1,
        "header": trace.header,
        "values": trace.values,
        "notes": trace.notes,
        "names": trace.names,
        "start": [astuple(segment) for segment in trace.start],
        "driver": [astuple(call) for call in trace.driver],
    }
    table = pa.table(columns).replace_schema_metadata(
        {_METADATA: json.dumps(rest).encode()}
    )
    pq.write_table(table, path, compression="zstd")


def from_parquet(path: str | Path) -> Trace:
    """The trace that ``to_parquet`` wrote.

    Raises TraceError where a column is missing or what it says cannot have happened.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = Path(path).name
    try:
        size = os.path.getsize(path)
        with opened(path) as file:
            check_parquet(file, size, _MAX_HEAD_BYTES)
        about = pq.read_metadata(path)
        missing = sorted({*_COLUMNS} - {*about.schema.names})
        rest = (about.metadata or {}).get(_METADATA)
        if missing or rest is None:
            lacks = ", ".join(missing) if missing else "the metadata of a trace"
            raise TraceError(f"{name} lacks {lacks}: it is Parquet, but no trace")
        if about.num_rows > _MAX_ROWS:
            raise TraceError(
                f"{name} has {about.num_rows:,} rows and the limit is {_MAX_ROWS:,}: "
                "cut it in parts"
            )
        with pq.ParquetFile(path, read_dictionary=["op", "frames"]) as file:
            table = file.read(columns=list(_COLUMNS)).unify_dictionaries()
        return possible(_trace_of(name, table, json.loads(rest)))
    except TraceError:
        raise
    except (
        pa.ArrowException,
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:
        why = str(error).splitlines()[0][:100]
    except (RecursionError, OverflowError) as error:
        why = type(error).__name__
    raise TraceError(f"{name} is not a trace that this project wrote ({why})")


def _trace_of(name: str, table: Any, rest: dict[str, Any]) -> Trace:
    columns = {key: table.column(key).combine_chunks() for key in _COLUMNS}

    def whole_numbers(key: str) -> np.ndarray:
        numbers = np.asarray(columns[key])
        if numbers.dtype.kind != "i":
            raise TraceError(
                f"{name} has a column {key} of {numbers.dtype}, or with gaps: expected "
                "whole numbers"
            )
        return numbers.astype(np.int64)

    def optional(key: str) -> np.ndarray | None:
        if columns[key].null_count or not len(table):
            return None
        return np.asarray(columns[key])

    def places(key: str, none: int) -> np.ndarray:
        return np.asarray(columns[key].indices.fill_null(none))

    kinds, stacks = (columns[key].dictionary.to_pylist() for key in ("op", "frames"))
    codes = np.array([OP_NAMES.get(text, -1) for text in kinds] or [-1], np.int8)
    return Trace(
        op=codes[places("op", 0)],
        id=whole_numbers("id"),
        size=whole_numbers("size_bytes"),
        stream=whole_numbers("stream"),
        pool=whole_numbers("pool").astype(np.int32),
        values=tuple(rest["values"]),
        time_ns=optional("time_ns"),
        start=tuple(
            StartSegment(*(*segment, tuple(StartBlock(*block) for block in blocks)))
            for *segment, blocks in rest["start"]
        ),
        address=optional("address"),
        driver=tuple(DriverCall(*call) for call in rest["driver"]),
        frame=places("frames", -1).astype(np.int32) if stacks else None,
        frames=tuple(tuple(text.split("\n")) for text in stacks),
        header=dict(rest["header"]),
        notes=tuple(rest["notes"]),
        names=tuple(rest.get("names", ())),
    )
