"""The header of a GGUF file: its keys, and the bytes of its tensors."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any

from helpers.fits.headers import MOST_READ, cut_off, wrong
from helpers.fits.servers import table
from helpers.look.files import opened

MOST_TENSORS = 200_000
MOST_KEYS = 1024
MOST_STRINGS = 1_000_000
"""Of all lists of a header: a vocabulary has at most some 300,000 words, and twice as many merges."""
MOST_KEPT = 4096
_SCALARS = {at: form for at, form in enumerate("BbHhIif?  Qqd") if form != " "}
_STRING = 8
_ARRAY = 9
KeyValue = float | str | list[float]
"""The value of a key."""


class Gguf:
    """The header of a GGUF file: ``keys`` (long arrays only as their length), the number of its
    ``tensors``, their ``elements`` and ``bytes``.

    ``bytes_by_name`` are those of one tensor by its name up to the first dot, such as ``output`` or
    ``token_embd``; of several that begin alike, as those of all layers do, of the last.
    ``cut_off`` says how much of the file is here, where its end is not; ``header_bytes`` is what was
    read of it.
    """

    def __init__(self, path: Path):
        self.path = path
        self.bytes = 0
        self.elements = 0
        self.bytes_by_name = dict[str, int]()
        self.strings = 0
        with opened(path) as self._file:
            self._read_header()

    def _read_header(self) -> None:
        path = self.path
        _, version, tensors, keys = self._take("<4sIQQ")
        if version in (2 << 24, 3 << 24):
            expected = "little-endian, as most machines read"
            raise wrong(path, "a GGUF in big-endian order", expected)
        if version not in (2, 3) or tensors > MOST_TENSORS or keys > MOST_KEYS:
            seen = f"version {version}, {tensors} tensors, {keys} keys"
            most = f"at most {MOST_TENSORS} tensors and {MOST_KEYS} keys"
            raise wrong(path, seen, f"version 2 or 3, {most}")
        self.keys: dict[str, KeyValue] = {}
        for _ in range(keys):
            name = self._string()
            (kind,) = self._take("<I")
            self.keys[name] = self._value(kind)
        self.tensors: int = tensors
        last = max((self._tensor() for _ in range(tensors)), default=0)
        step = self.keys.get("general.alignment", 32)  # ggml/include/gguf.h
        if type(step) is not int or step < 1 or step.bit_count() != 1:
            raise wrong(path, f"general.alignment {step!r:.40}", "a power of two")
        self.header_bytes = self._file.tell()
        self.cut_off = cut_off(path, -(-self.header_bytes // step) * step + last)

    def _tensor(self) -> int:
        """Count a tensor; returns where it ends in the file, from the start of all tensors on."""
        name = self._string()
        (rank,) = self._take("<I")
        shape: tuple[int, ...] = ()
        if rank <= 4:
            shape = self._take(f"<{rank}Q")
        kind, offset = self._take("<IQ")
        label, block, size = table("models")["ggml"].get(str(kind), ("", 1, 0))
        if rank > 4 or not label or prod(shape) >= 1 << 56 or offset >= 1 << 62:
            seen = f"tensor {name[:40]!r} of type {kind}, {rank} dimensions, {prod(shape)} elements"
            expected = "a type of ggml.h, at most 4 dimensions, 2^56 elements"
            raise wrong(self.path, seen, expected)
        size_bytes = prod(shape) // block * size
        self.bytes_by_name[name.partition(".")[0]] = size_bytes
        self.bytes += size_bytes
        self.elements += prod(shape)
        return int(offset + size_bytes)

    def _read(self, count: int) -> bytes:
        """The next bytes of the header."""
        expected = "a whole header, of at most 32 MiB"
        if self._file.tell() + count > MOST_READ:
            raise wrong(self.path, "a header of more than 32 MiB", expected)
        data = self._file.read(count)
        if len(data) < count:
            seen = (
                f"a file cut off inside its header, after {self._file.tell():,} bytes"
            )
            raise wrong(self.path, seen, expected)
        return data

    def _take(self, form: str) -> tuple[Any, ...]:
        """The next numbers of the header, by their form as ``struct`` has it."""
        return struct.unpack(form, self._read(struct.calcsize(form)))

    def _string(self) -> str:
        (length,) = self._take("<Q")
        return self._read(length).decode("utf-8", "replace")

    def _value(self, kind: int) -> KeyValue:
        """The value of a key; of a long list, and of one of texts, only its length."""
        if kind in _SCALARS:
            number: float = self._take("<" + _SCALARS[kind])[0]
            return number
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._list(*self._take("<IQ"))
        seen = f"a value of type {kind}"
        raise wrong(self.path, seen, "a number, text or a list")

    def _list(self, kind: int, count: int) -> int | list[float]:
        """A list of ``count`` values of a kind, or its length."""
        if kind == _STRING:  # a vocabulary, of which only the number counts
            self.strings += count
            if self.strings > MOST_STRINGS:
                seen = f"lists of {self.strings} texts"
                raise wrong(self.path, seen, f"at most {MOST_STRINGS}")
            for _ in range(count):
                self._string()
            return count
        if kind not in _SCALARS:
            seen = f"a list of values of type {kind}"
            raise wrong(self.path, seen, "numbers or texts")
        if count <= MOST_KEPT:
            return list(self._take(f"<{count}{_SCALARS[kind]}"))
        self._read(count * struct.calcsize(_SCALARS[kind]))
        return count
