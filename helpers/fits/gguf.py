"""The header of a GGUF file: its keys, and the bytes of its tensors.

The format is that of ggml docs/gguf.md: numbers are little-endian, a text is its length and its
bytes.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any

from helpers.fits.headers import MOST_READ, cut_off, wrong
from helpers.fits.servers import table
from helpers.look.files import opened

# A header with more of anything is refused: it is no model's, and would take long to read.
MOST_TENSORS = 200_000
"""The largest models have some ten thousand."""
MOST_KEYS = 1024
"""Models have some fifty."""
MOST_STRINGS = 1_000_000
"""Of all lists of a header: a vocabulary has at most some 300,000 words, and twice as many merges.
"""
MOST_KEPT = 4096
"""Numbers of a list that are kept: one for each layer, and no vocabulary's scores."""
# enum gguf_type of ggml/include/gguf.h: its numbers, and the letters that struct has for them.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING = 8
_ARRAY = 9
# GGML_MAX_DIMS of ggml/include/ggml.h.
MOST_DIMENSIONS = 4
KeyValue = float | str | list[float]
"""The value of a key: a number, a text, a list of numbers; of a longer list its length."""


class Gguf:
    """The header of a GGUF file. Raises ValueError where the file has none, or one that cannot be
    meant.

    - ``keys``: what it says of the model; ``header_bytes``: its length
    - ``tensors``: how many it names; ``elements`` and ``bytes``: those of all tensors together
    - ``bytes_by_name``: the bytes of a tensor by its name up to the first dot. It is meant for
      tensors that stand alone, such as ``output`` and ``token_embd``; of those of the layers, which
      all begin with ``blk``, it has the last one.
    - ``cut_off``: how much of the file is here, in words; empty where all is
    """

    def __init__(self, path: Path):
        self.path = path
        self.bytes = 0
        self.elements = 0
        self.bytes_by_name = dict[str, int]()
        self._strings = 0
        """Texts in the lists that were read."""
        with opened(path) as self._file:
            self._read_header()

    def _read_header(self) -> None:
        """Read the keys and count the tensors."""
        path = self.path
        _, version, tensors, keys = self._take("<4sIQQ")  # after the word GGUF
        if version in (2 << 24, 3 << 24):  # 2 and 3 with their bytes reversed
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
        end_of_tensors = max((self._tensor() for _ in range(tensors)), default=0)
        # GGUF_DEFAULT_ALIGNMENT of ggml/include/gguf.h
        step = self.keys.get("general.alignment", 32)
        if type(step) is not int or step < 1 or step.bit_count() != 1:
            raise wrong(path, f"general.alignment {step!r:.40}", "a power of two")
        self.header_bytes = self._file.tell()
        # The tensors begin at the next multiple of the alignment.
        start_of_tensors = -(-self.header_bytes // step) * step
        self.cut_off = cut_off(path, start_of_tensors + end_of_tensors)

    def _tensor(self) -> int:
        """Count the next tensor of the header. Returns where its data end, in bytes from the start
        of all data. Raises ValueError for a type or a size that no tensor has.
        """
        name = self._string()
        (rank,) = self._take("<I")
        shape: tuple[int, ...] = ()
        if rank <= MOST_DIMENSIONS:
            shape = self._take(f"<{rank}Q")
        kind, offset = self._take("<IQ")
        elements = prod(shape)
        # A type stores ``block`` elements together in ``block_bytes`` bytes; a type that is not
        # known has no label.
        label, block, block_bytes = table("models")["ggml"].get(str(kind), ("", 1, 0))
        is_impossible = elements >= 1 << 56 or offset >= 1 << 62
        if rank > MOST_DIMENSIONS or not label or is_impossible:
            seen = f"tensor {name[:40]!r} of type {kind}, {rank} dimensions, {elements} elements"
            expected = "a type of ggml.h, at most 4 dimensions, 2^56 elements"
            raise wrong(self.path, seen, expected)
        size_bytes = elements // block * block_bytes
        self.bytes_by_name[name.partition(".")[0]] = size_bytes
        self.bytes += size_bytes
        self.elements += elements
        return int(offset + size_bytes)

    def _read(self, count: int) -> bytes:
        """The next ``count`` bytes of the header. Raises ValueError where the file ends before, and
        where the header would become longer than MOST_READ.
        """
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
        """The next numbers of the header; ``form`` is a format of ``struct``."""
        return struct.unpack(form, self._read(struct.calcsize(form)))

    def _string(self) -> str:
        """The next text of the header."""
        (length,) = self._take("<Q")
        return self._read(length).decode("utf-8", "replace")

    def _value(self, kind: int) -> KeyValue:
        """The next value of the header; ``kind`` is the number of its type in gguf_type."""
        if kind in _SCALARS:
            number: float = self._take("<" + _SCALARS[kind])[0]
            return number
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            kind_of_items, count = self._take("<IQ")
            return self._list(kind_of_items, count)
        seen = f"a value of type {kind}"
        raise wrong(self.path, seen, "a number, text or a list")

    def _list(self, kind: int, count: int) -> int | list[float]:
        """The next ``count`` values as a list, ``kind`` being the number of their type. Of texts
        and of more than MOST_KEPT numbers it is the count alone: they are read past, and nobody
        asks for them.
        """
        if kind == _STRING:  # a vocabulary, of which only the number is needed
            self._strings += count
            if self._strings > MOST_STRINGS:
                seen = f"lists of {self._strings} texts"
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
