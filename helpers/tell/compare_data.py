"""How a data file that a run wrote moved: tables column by column, JSON key by key, anything else by its digest."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os.path
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .tables import cut, plain

BIGGEST_BYTES = 64 << 20
"""A file above this is compared by its digest alone."""
MOST_DIFFERENCES = 12


def shown(value: Any) -> str:
    """A value in at most 200 columns; ``none`` for nothing."""
    return "none" if value is None or value == "" else plain(cut(str(value)[:999], 200))


def apart(before: Any, after: Any) -> tuple[str, str]:
    """Two values as shown; of two long texts from a little before where they part."""
    if not (isinstance(before, str) and isinstance(after, str)):
        return shown(before), shown(after)
    same = len(os.path.commonprefix([before, after]))
    start = before.rfind(" ", 0, same - 10) + 1 if same > 40 else 0
    return ("…" * bool(start)) + shown(before[start:]), ("…" * bool(start)) + shown(after[start:])


def content(folder: Path, name: str) -> bytes | None:
    """A file that a run wrote; None where there is none or it lies elsewhere. Of a big one only its digest."""
    path = (folder / name).resolve()
    try:
        if not path.is_relative_to(folder.resolve()):
            return None
        if path.stat().st_size <= BIGGEST_BYTES:
            return path.read_bytes()
        whole = hashlib.sha256()
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                whole.update(part)
        return f"{path.stat().st_size} bytes, sha256 {whole.hexdigest()}".encode()
    except (OSError, ValueError):
        return None


def differences(
    name: str, before: bytes | None, after: bytes | None
) -> list[tuple[str, str, str, str]]:
    """(what, before, after, by how much) of everything that moved in a file."""
    if before is None or after is None:
        return [
            (
                name,
                "no file" if before is None else _digest(before),
                "no file" if after is None else _digest(after),
                "",
            )
        ]
    try:
        moved = list(_moved(*(_columns(name, side) for side in (before, after))))
    except (ValueError, ImportError, RecursionError):
        return [(name, _digest(before), _digest(after), "")]
    found = [
        (f"{name}: {column}", old, new, by) for column, old, new, by in moved[:MOST_DIFFERENCES]
    ]
    if len(moved) > MOST_DIFFERENCES:
        found.append((name, "", f"and {len(moved) - MOST_DIFFERENCES} more differences", ""))
    return found or [(name, _digest(before), _digest(after), "the same values, written otherwise")]


def _digest(content: bytes) -> str:
    return f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()[:12]}"


def _columns(name: str, content: bytes) -> dict[str, list[Any]]:
    """A file as columns; a JSON value that is no list of objects has one row. ValueError where it is neither."""
    end = name.rsplit(".", 1)[-1].lower()
    if end == "parquet":
        import pyarrow
        from pyarrow import parquet

        try:
            return dict(parquet.read_table(io.BytesIO(content)).to_pydict())
        except pyarrow.ArrowException as error:
            raise ValueError(str(error)) from error
    if end == "csv":
        rows: Any = list(csv.DictReader(io.StringIO(content.decode("utf-8"))))
    elif end == "jsonl":
        rows = [json.loads(line) for line in content.splitlines() if line.strip()]
    elif end == "json":
        rows = json.loads(content)
    else:
        raise ValueError(f"{name}: no table")
    rows = (
        rows
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)
        else [rows]
    )
    flat = [dict(_flat(row)) for row in rows]
    return {
        column: [row.get(column) for row in flat]
        for column in dict.fromkeys(key for row in flat for key in row)
    }


def _flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{at}.{name}" if at else str(name))
    else:
        yield at or "value", value


def _moved(
    before: dict[str, list[Any]], after: dict[str, list[Any]]
) -> Iterator[tuple[str, str, str, str]]:
    """(column, before, after, by how much) of each column that is not the same, with how far its numbers moved at most."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield name, shown(before.get(name)), shown(after.get(name)), ""
            continue
        old, new = before[name], after[name]
        if len(old) != len(new):
            yield name, f"{len(old)} rows", f"{len(new)} rows", ""
            continue
        apart = [(x, y) for x, y in zip(old, new, strict=True) if not _equal(x, y)]
        if apart:
            steps = [y - x for x, y in apart if _number(x) and _number(y)]
            far = max(steps, key=abs, default=None)
            by = f"{len(apart)} of {len(old)} rows" * (len(old) > 1)
            by += (", at most " if by else "") + f"{far:+g}" if far is not None else ""
            yield name, shown(apart[0][0]), shown(apart[0][1]), by


def _equal(x: Any, y: Any) -> bool:
    return bool(x == y) or (_number(x) and _number(y) and math.isnan(x) and math.isnan(y))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
