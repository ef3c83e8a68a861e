"""A trace in the project's own Parquet file, which is small, read by DuckDB, and complete enough
to be replayed.

Its columns: i, op, id, size_bytes, stream, time_ns, frames (innermost first, a line each),
pool, address. The rest of the trace is JSON under the key ``casebook.trace`` of the file's
metadata: header, values of settings, start state, driver calls, notes, names of blocks.
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

_MAX_METADATA_BYTES = 64 << 20
"""Of the end of the file, which pyarrow reads whole. Its largest part is the start state: pyarrow
writes it twice, some 80 bytes a block, so this has room for 800,000 blocks.
"""
_MAX_ROWS = 50_000_000
"""A row takes 49 bytes as columns of a Trace, so this many take 2.5 GB of memory."""
_LONGEST_REASON = 100  # characters: pyarrow may write much
_COLUMNS = ("op", "id", "size_bytes", "stream", "pool", "time_ns", "address", "frames")
_METADATA = b"casebook.trace"


def to_parquet(trace: Trace, path: str | Path) -> None:
    """Writes a row for each operation, and everything that is no column as JSON into the metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column_or_nulls(values: np.ndarray | None) -> pa.Array:
        """A column; nulls for one that the trace does not have."""
        if values is None:
            return pa.nulls(len(trace), pa.int64())
        return pa.array(values)

    frame = trace.frame
    if frame is None:  # no stacks were recorded: each row gets a null
        frame = np.full(len(trace), -1, np.int32)
    stacks = pa.array(["\n".join(names) for names in trace.frames], pa.string())
    stack_numbers = pa.array(frame, mask=frame < 0)
    columns = {
        "i": pa.array(np.arange(len(trace), dtype=np.int64)),
        "op": pa.DictionaryArray.from_arrays(trace.op, list(OP_NAMES)),
        "id": pa.array(trace.id),
        "size_bytes": pa.array(trace.size),
        "stream": pa.array(trace.stream),
        "time_ns": column_or_nulls(trace.time_ns),
        "frames": pa.DictionaryArray.from_arrays(stack_numbers, stacks),
        "pool": pa.array(trace.pool),
        "address": column_or_nulls(trace.address),
    }
    no_columns = {
        "schema_version": 1,
        "header": trace.header,
        "values": trace.values,
        "notes": trace.notes,
        "names": trace.names,
        "start": [astuple(segment) for segment in trace.start],
        "driver": [astuple(call) for call in trace.driver],
    }
    metadata = {_METADATA: json.dumps(no_columns).encode()}
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, path, compression="zstd")


def from_parquet(path: str | Path) -> Trace:
    """The trace that ``to_parquet`` wrote.

    Raises TraceError where the file is no trace of ours, is damaged or too large, or holds a trace
    that cannot have happened.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = Path(path).name
    try:
        size = os.path.getsize(path)
        with opened(path) as file:
            check_parquet(file, size, _MAX_METADATA_BYTES)
        described = pq.read_metadata(path)
        missing = sorted({*_COLUMNS} - {*described.schema.names})
        if not missing and _METADATA not in (described.metadata or ()):
            missing = ["the metadata of a trace"]
        if missing:
            lacks = ", ".join(missing)
            raise TraceError(f"{name} lacks {lacks}: it is Parquet, but no trace")
        if described.num_rows > _MAX_ROWS:
            raise TraceError(
                f"{name} has {described.num_rows:,} rows and the limit is "
                f"{_MAX_ROWS:,}: cut it in parts"
            )
        with pq.ParquetFile(path, read_dictionary=["op", "frames"]) as file:
            table = file.read(columns=list(_COLUMNS)).unify_dictionaries()
        no_columns = json.loads(described.metadata[_METADATA])
        return possible(_trace_of(name, table, no_columns))
    except TraceError:
        raise
    # What pyarrow, json and the constructors raise for a damaged or forged file.
    except (
        pa.ArrowException,
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:
        why = str(error).splitlines()[0][:_LONGEST_REASON]
    except (RecursionError, OverflowError) as error:
        why = type(error).__name__  # their own words say nothing of the file
    raise TraceError(f"{name} is not a trace that this project wrote ({why})")


def _trace_of(name: str, table: Any, no_columns: dict[str, Any]) -> Trace:
    """The trace of a file called ``name``, of its pyarrow table and the JSON of its metadata."""
    columns = {key: table.column(key).combine_chunks() for key in _COLUMNS}

    def whole_numbers(key: str) -> np.ndarray:
        """A column that has a number in every row."""
        numbers = np.asarray(columns[key])
        if numbers.dtype.kind != "i":
            raise TraceError(
                f"{name} has a column {key} of {numbers.dtype}, or with gaps: expected "
                "whole numbers"
            )
        return numbers.astype(np.int64)

    def whole_or_none(key: str) -> np.ndarray | None:
        """A column that the trace may lack, since ``to_parquet`` then fills it with nulls: None
        where any row is null. None also for a file without rows, where the two cannot be told
        apart.
        """
        if columns[key].null_count or not len(table):
            return None
        return np.asarray(columns[key])

    def dictionary_indices(key: str) -> np.ndarray:
        """For each row the place of its text in the column's dictionary, -1 for a null."""
        return np.asarray(columns[key].indices.fill_null(-1))

    op_names = columns["op"].dictionary.to_pylist()
    stacks = columns["frames"].dictionary.to_pylist()
    # A row without an operation has the index -1, which takes the last item. That is -1 as well, as
    # for an unknown word: no Op, so that ``possible`` refuses it.
    ops = np.array([*(OP_NAMES.get(text, -1) for text in op_names), -1], np.int8)
    start = []
    for *segment, rows in no_columns[
        "start"
    ]:  # the fields of a StartSegment, blocks last
        blocks = tuple(StartBlock(*row) for row in rows)
        start.append(StartSegment(*(*segment, blocks)))
    return Trace(
        op=ops[dictionary_indices("op")],
        id=whole_numbers("id"),
        size=whole_numbers("size_bytes"),
        stream=whole_numbers("stream"),
        pool=whole_numbers("pool").astype(np.int32),
        values=tuple(no_columns["values"]),
        time_ns=whole_or_none("time_ns"),
        start=tuple(start),
        address=whole_or_none("address"),
        driver=tuple(DriverCall(*call) for call in no_columns["driver"]),
        frame=dictionary_indices("frames").astype(np.int32) if stacks else None,
        frames=tuple(tuple(text.split("\n")) for text in stacks),
        header=dict(no_columns["header"]),
        notes=tuple(no_columns["notes"]),
        names=tuple(no_columns.get("names", ())),
    )
