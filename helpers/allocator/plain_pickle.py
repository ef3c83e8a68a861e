"""A pickle read as data: dicts, lists, tuples, numbers, texts and nothing else.

No code of the file runs, whatever it holds. There are two walls. A scan of the whole file lets
only the opcodes of plain data pass, checks every length and memo index against what is there,
counts and measures nesting, and refuses anything but text as a dict's key (hashing tuples of
tuples can take for ever or crash, and numbers can be chosen to collide). Then an Unpickler that
has no way to find a class builds the objects. Real snapshots hold no other opcode (checked with
pickletools on six public files). Nothing here walks what was read, so a list that holds itself
does no harm. weights_only=True is no substitute (CVE-2026-24747).
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

from helpers.allocator.trace import MAX_FILE_BYTES, TraceError
from helpers.look import files

MAX_OPCODES = 60_000_000
"""About 250 MB of a snapshot; the objects of so many take at most 5 GB."""
MAX_DEPTH = 32
_CODES = {code.code.encode("latin-1")[0]: code for code in pickletools.opcodes}
_REFUSED = "a memory snapshot holds plain data only, so it is refused"
_ACTIONS = {
    "scalar": "NONE 0 NEWTRUE 0 NEWFALSE 0 BININT 4 BININT1 1 BININT2 2 BINFLOAT 8 LONG1 -1 LONG4 -4 SHORT_BINBYTES -1 "
    "BINBYTES -4",
    "text": "SHORT_BINUNICODE -1 BINUNICODE -4 BINUNICODE8 -8 SHORT_BINSTRING -1",
    "container": "EMPTY_LIST 0 EMPTY_DICT 0 EMPTY_TUPLE 0",
    "tuple": "TUPLE1 0 TUPLE2 0 TUPLE3 0",
    "mark": "MARK 0",
    "marked tuple": "TUPLE 0",
    "append": "APPEND 0",
    "appends": "APPENDS 0",
    "set item": "SETITEM 0",
    "set items": "SETITEMS 0",
    "put": "BINPUT 1 LONG_BINPUT 4",
    "memoize": "MEMOIZE 0",
    "get": "BINGET 1 LONG_BINGET 4",
    "skip": "PROTO 1 FRAME 8",
    "stop": "STOP 0",
}
"""What an opcode does, and the bytes of its argument; below 0: those of the length before a
counted argument.
"""
_PLAIN = {
    name: (action, max(int(width), 0), max(-int(width), 0))
    for action, words in _ACTIONS.items()
    for name, width in zip(words.split()[::2], words.split()[1::2], strict=True)
}
_TABLE = [_PLAIN.get(_CODES[byte].name) if byte in _CODES else None for byte in range(256)]


_WRONG = (LookupError, ValueError, TypeError, AttributeError, OverflowError)
_BROKEN = (pickle.UnpicklingError, EOFError, MemoryError, *_WRONG)


def plain_pickle(path: Path, max_bytes: int = MAX_FILE_BYTES) -> Any:
    """The plain objects in the pickle file.

    Raises TraceError, naming the opcode, where it holds anything else.
    """
    data = files.whole(path, max_bytes)
    if data[:1] == b"\x80" and data[1:2] not in (b"\x02", b"\x03", b"\x04", b"\x05"):
        protocol = data[1] if len(data) > 1 else "none"
        raise TraceError(f"{path.name} has pickle protocol {protocol}: expected 2 to 5")
    try:
        _scan(path.name, data)
        return _Plain(io.BytesIO(data)).load()
    except TraceError:
        raise
    except _BROKEN as error:
        why = f"{type(error).__name__}: {str(error)[:80]}"
        raise TraceError(f"{path.name} is no whole pickle ({why}); copy it again") from None


class _Plain(pickle.Unpickler):
    """Builds objects and never finds a class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        unsafe = "nothing of it was run; do not open this file with pickle.load"
        raise TraceError(f"the pickle asks for {module}.{name}: {_REFUSED} and {unsafe}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise TraceError(f"the pickle holds a persistent id: {_REFUSED}")


def _scan(name: str, data: bytes) -> None:
    """Passes where every opcode is one of plain data and within the limits."""
    at = 0
    end = len(data)
    # Of the values on the stack: 0 a text, 1 a number, else 1 + the deepest value in it.
    depths = bytearray()
    marks: list[int] = []
    memo = bytearray()
    for _ in range(MAX_OPCODES):
        if at >= end:
            raise EOFError("it ends before its last opcode")
        rule = _TABLE[data[at]]
        if rule is None:
            raise _refused(name, data, at)
        action, width, counted = rule
        at += 1
        if counted:
            width = counted + int.from_bytes(data[at : at + counted], "little")
        if at + width > end:
            claim = f"{name} claims a value of {width:,} bytes at byte {at:,}"
            raise TraceError(f"{claim} and {end - at:,} follow: cut or forged")
        if action == "get":
            depths.append(memo[int.from_bytes(data[at : at + width], "little")])
            at += width
            continue
        if action == "text" or action == "scalar":
            depths.append(action == "scalar")
            at += width
            continue
        if action == "memoize":
            memo.append(depths[-1])
        elif action == "put":
            if (index := int.from_bytes(data[at : at + width], "little")) > len(memo):
                value = f"numbers value {len(memo):,} as {index:,} at byte {at:,}"
                raise TraceError(f"{name} {value}: forged to fill the memory")
            memo[index : index + 1] = depths[-1:]
        elif action == "container":
            depths.append(1)
        elif action == "mark":
            marks.append(len(depths))
        elif action in ("appends", "set items", "marked tuple"):
            first = marks.pop()
            inner = depths[first:]
            del depths[first:]
            if action == "marked tuple":
                depths.append(1)
            elif action == "set items" and any(inner[::2]):
                raise _key(name, at)
            depths[-1] = max(depths[-1], 1 + max(inner, default=0))
        elif action == "tuple":
            size = data[at - 1] - 0x84
            inner = depths[-size:]
            del depths[-size:]
            depths.append(1 + max(inner))
        elif action in ("append", "set item"):
            deepest = depths.pop()
            if action == "set item" and depths.pop():
                raise _key(name, at)
            depths[-1] = max(depths[-1], 1 + deepest)
        elif action == "stop":
            return
        if len(marks) > MAX_DEPTH or depths and depths[-1] > MAX_DEPTH + 1:
            deep = f"nested deeper than {MAX_DEPTH} at byte {at:,}"
            raise TraceError(f"{name} is {deep}: no memory snapshot is")
        at += width
    fewer = "record fewer entries (max_entries=100000)"
    raise TraceError(f"{name} has more than {MAX_OPCODES:,} pickle opcodes; {fewer}")


def _key(name: str, at: int) -> TraceError:
    key = f"{name} has a key at byte {at:,} that is no text"
    return TraceError(f"{key}: no memory snapshot has one, and it can be made to take for ever")


def _refused(name: str, data: bytes, at: int) -> TraceError:
    code = _CODES.get(data[at])
    opcode = code.name if code else f"0x{data[at]:02x}"
    return TraceError(
        f"{name} holds {opcode} at byte {at:,}: {_REFUSED} and nothing of it was run; do not open this file "
        "with pickle.load"
    )
