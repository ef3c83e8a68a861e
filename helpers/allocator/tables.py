"""The tables of one replay: kept as objects or as arrays, enlarged on the way, and read at the end."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from helpers.allocator.records import ALLOCATOR, NONE, TABLES

BY_BLOCKS = ("blocks", "segments", "ranges")
"""As long as the table of blocks, which is enough: there are no more segments, or free ranges between them, than blocks."""
TO_SPARE = 8  # records of them for what is no block: place 0, the two arenas, an edge


class Row:
    """A record of a plain table."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, values: tuple) -> None:
        for name, value in zip(self.__slots__, values, strict=True):
            setattr(self, name, value)


@cache
def _kind(names: tuple[str, ...]) -> type[Row]:
    return type("Row", (Row,), {"__slots__": names})


def rows(array: np.ndarray) -> list[Any]:
    """The records of an array as objects."""
    kind = _kind(array.dtype.names or ())
    made = [kind(values) for values in array.tolist()]
    for name in (name for name in kind.__slots__ if array.dtype[name].shape):
        for row in made:
            setattr(row, name, getattr(row, name).tolist())
    return made


def table(name: str, count: int, **columns: Any) -> np.ndarray:
    """A table with so many records; what is not given is 0."""
    made = np.zeros(count, TABLES[name])
    for column, values in columns.items():
        made[column] = values
    return made


def unused(name: str, count: int, first: int = 0, then: int = NONE) -> np.ndarray:
    """Records numbered from first on, none of them in use; behind the last one comes the record at then."""
    made = table(name, count)
    if "spare" in (made.dtype.names or ()):
        made["at"] = np.arange(first, first + count)
        made["spare"] = np.append(made["at"][1:], then)
    return made


class Memory:
    """The allocator's record, ``a``, and its tables: lists of objects, or arrays whose addresses ``a`` has."""

    def __init__(
        self, tables: dict[str, np.ndarray], values: dict[str, int], compiled: bool
    ) -> None:
        self.compiled = compiled
        self.tables: dict[str, Any] = {name: self._kept(made) for name, made in tables.items()}
        self.head = self._kept(np.zeros(1, ALLOCATOR))
        self.a = self.head[0]
        for name, value in values.items():
            setattr(self.a, name, value)
        self._place()

    def _kept(self, made: np.ndarray) -> Any:
        return made.view(np.recarray) if self.compiled else rows(made)

    def _place(self) -> None:
        for name, kept in self.tables.items():
            setattr(self.a, name, kept.ctypes.data if self.compiled else kept)
        self.a.block_room = len(self.tables["blocks"]) - TO_SPARE - 2 * len(self.tables["pools"])
        self.a.use_room, self.a.call_room = (
            len(self.tables["uses"]) - 1,
            len(self.tables["calls"]) - 1,
        )

    def grow(self) -> None:
        """Make each table that may be too short for an operation twice as long."""
        for name, kept in self.tables.items():
            if name in (*BY_BLOCKS, "uses", "calls"):
                count = len(kept)
                more = unused(name, count, count, getattr(kept[NONE], "spare", NONE))
                if hasattr(kept[NONE], "spare"):
                    kept[NONE].spare = count
                self.tables[name] = (
                    np.concatenate((kept, more)).view(np.recarray)
                    if self.compiled
                    else kept + rows(more)
                )
        self._place()

    def columns(self, name: str, words: str) -> np.ndarray:
        """These fields of each record, a row each."""
        kept, fields = self.tables[name], words.split()
        if self.compiled:
            return np.stack([kept[field] for field in fields], axis=1)
        return np.array(
            [[getattr(row, field) for field in fields] for row in kept], np.int64
        ).reshape(-1, len(fields))
