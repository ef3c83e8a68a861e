"""The header of a GGUF file: its keys, and the bytes of its tensors."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any

from helpers.fits.headers import MOST_READ, cut_off, start_of, wrong
from helpers.fits.servers import table
from helpers.ground.units import KIB

MOST_TENSORS = 200_000
MOST_KEYS = 1024
MOST_STRINGS = 1_000_000
"""Of all lists of a header: a vocabulary has at most some 300,000 words, and twice as many merges."""
MOST_KEPT = 4096
PIECE_BYTES = 256 * KIB
"""Read at once, so that little beyond the header is."""
_SCALARS = {at: form for at, form in enumerate("BbHhIif?  Qqd") if form != " "}
_STRING = 8
_ARRAY = 9


class Gguf:
    """The header of a GGUF file: ``keys`` (long arrays only as their length), the number of its
    ``tensors``, their ``elements`` and ``bytes``, and those of each part.

    ``cut_off`` says how much of the file is here, where its end is not.
    """

    def __init__(self, path: Path):
        self.path = path
        self.data = bytearray()
        self.at = 4
        self.bytes = 0
        self.elements = 0
        self.ends = dict[str, int]()
        self.strings = 0
        version, tensors, keys = self._take("<IQQ")
        if version in (2 << 24, 3 << 24):
            raise wrong(
                path,
                "a GGUF in big-endian order",
                "little-endian, as most machines read",
            )
        if version not in (2, 3) or tensors > MOST_TENSORS or keys > MOST_KEYS:
            most = (
                f"version 2 or 3, at most {MOST_TENSORS} tensors and {MOST_KEYS} keys"
            )
            raise wrong(
                path, f"version {version}, {tensors} tensors, {keys} keys", most
            )
        self.keys = {
            self._string(): self._value(*self._take("<I")) for _ in range(keys)
        }
        self.tensors = int(tensors)
        last = max((self._tensor() for _ in range(tensors)), default=0)
        step = self.keys.get("general.alignment", 32)  # ggml/include/gguf.h
        if (
            isinstance(step, bool)
            or not isinstance(step, int)
            or step < 1
            or step & (step - 1)
        ):
            raise wrong(path, f"general.alignment {step!r:.40}", "a power of two")
        self.cut_off = cut_off(path, -(-self.at // step) * step + last)

    def _tensor(self) -> int:
        """Counts a tensor; returns where it ends."""
        name = self._string()
        (rank,) = self._take("<I")
        shape = self._take(f"<{rank}Q") if rank <= 4 else ()
        kind, offset = self._take("<IQ")
        label, block, size = table("models")["ggml"].get(str(kind), ("", 1, 0))
        if rank > 4 or not label or prod(shape) >= 1 << 56 or offset >= 1 << 62:
            seen = f"tensor {name[:40]!r} of type {kind}, {rank} dimensions, {prod(shape)} elements"
            raise wrong(
                self.path, seen, "a type of ggml.h, at most 4 dimensions, 2^56 elements"
            )
        size_bytes = prod(shape) // block * size
        self.ends[name.partition(".")[0]] = size_bytes
        self.bytes += size_bytes
        self.elements += prod(shape)
        return int(offset + size_bytes)

    def _moved(self, count: int) -> int:
        """Where the next bytes begin, after a step over them; they are read where they are not."""
        self.at += count
        lacks = self.at - len(self.data)
        if lacks > 0 and self.at <= MOST_READ:
            self.data += start_of(self.path, max(lacks, PIECE_BYTES), len(self.data))
        if self.at > len(self.data):
            seen = "a header of more than 32 MiB"
            if self.at <= MOST_READ:
                seen = (
                    f"a file cut off inside its header, after {len(self.data):,} bytes"
                )
            raise wrong(self.path, seen, "a whole header, of at most 32 MiB")
        return self.at - count

    def _take(self, form: str) -> tuple[Any, ...]:
        start = self._moved(struct.calcsize(form))
        return struct.unpack_from(form, self.data, start)

    def _string(self) -> str:
        (length,) = self._take("<Q")
        start = self._moved(length)
        return self.data[start : self.at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._take("<" + _SCALARS[kind])[0]
        if kind == _STRING:
            return self._string()
        inner, count = self._take("<IQ") if kind == _ARRAY else (_ARRAY, 0)
        if inner == _STRING:  # a vocabulary, of which only the number counts
            self.strings += count
            if self.strings > MOST_STRINGS:
                raise wrong(
                    self.path,
                    f"lists of {self.strings} texts",
                    f"at most {MOST_STRINGS}",
                )
            for _ in range(count):
                self._moved(self._take("<Q")[0])
            return count
        if inner not in _SCALARS:
            raise wrong(
                self.path,
                f"a value of type {kind}, {inner}",
                "a number, text or a list",
            )
        start = self._moved(count * struct.calcsize(_SCALARS[inner]))
        form = f"<{min(count, MOST_KEPT)}{_SCALARS[inner]}"
        return (
            list(struct.unpack_from(form, self.data, start))
            if count <= MOST_KEPT
            else count
        )
