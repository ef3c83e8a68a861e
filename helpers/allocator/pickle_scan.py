"""What of a pickle's bytes is no plain data, found before anything is built from them.

Only numbers and arrays, so that numba compiles it as it stands; without numba it is plain Python.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, MutableSequence, Sequence
from typing import NamedTuple

import numpy as np

COMPILED_FROM_BYTES = 8 << 20
"""Of a pickle: loading numba takes as long as reading so much in plain Python."""
MAX_DEPTH = 32

SCALAR = 1
TEXT = 2
CONTAINER = 3
TUPLE = 4
MARK = 5
MARKED_TUPLE = 6
APPEND = 7
APPENDS = 8
SET_ITEM = 9
SET_ITEMS = 10
PUT = 11
MEMOIZE = 12
GET = 13
SKIP = 14
STOP = 15
_OPCODES = {
    SCALAR: "NONE 0 NEWTRUE 0 NEWFALSE 0 BININT 4 BININT1 1 BININT2 2 BINFLOAT 8 LONG1 -1 LONG4 -4 SHORT_BINBYTES -1 "
    "BINBYTES -4",
    TEXT: "SHORT_BINUNICODE -1 BINUNICODE -4 BINUNICODE8 -8 SHORT_BINSTRING -1",
    CONTAINER: "EMPTY_LIST 0 EMPTY_DICT 0 EMPTY_TUPLE 0",
    TUPLE: "TUPLE1 0 TUPLE2 0 TUPLE3 0",
    MARK: "MARK 0",
    MARKED_TUPLE: "TUPLE 0",
    APPEND: "APPEND 0",
    APPENDS: "APPENDS 0",
    SET_ITEM: "SETITEM 0",
    SET_ITEMS: "SETITEMS 0",
    PUT: "BINPUT 1 LONG_BINPUT 4",
    MEMOIZE: "MEMOIZE 0",
    GET: "BINGET 1 LONG_BINGET 4",
    SKIP: "PROTO 1 FRAME 8",
    STOP: "STOP 0",
}
"""What the opcodes of plain data do, each with the bytes of its argument; below 0: those of the
length before a counted argument. Every other opcode is refused.
"""

PLAIN = 0
REFUSED = 1
ENDS_EARLY = 2
CLAIMS_MORE = 3
FAR_MEMO = 4
UNKNOWN_MEMO = 5
EMPTY_STACK = 6
KEY_NO_TEXT = 7
TOO_DEEP = 8
TOO_MANY = 9


class Scan(NamedTuple):
    """What a scan ended with: PLAIN or what is wrong, at which byte, and the number it concerns."""

    finding: int
    at: int
    number: int


def _rules() -> np.ndarray:
    """For each byte what the opcode does (0: refused), and the bytes of its argument and of the
    length before one.
    """
    codes = {code.name: ord(code.code) for code in pickletools.opcodes}
    rules = np.zeros((256, 3), np.int64)
    for action, text in _OPCODES.items():
        words = text.split()
        for name, width in zip(words[::2], words[1::2], strict=True):
            rules[codes[name]] = action, max(int(width), 0), max(-int(width), 0)
    return rules


def scan(data: bytes, most_opcodes: int) -> Scan:
    """Whether every opcode is one of plain data and within the limits, and where not.

    It checks every length and memo index against what is there, counts, measures nesting, and
    lets only texts be the keys of a dict.
    """
    rules = _rules()
    compiled = _compiled() if len(data) >= COMPILED_FROM_BYTES else None
    if compiled is None:
        end = follow(
            data=data,
            actions=rules[:, 0].tolist(),
            widths=rules[:, 1].tolist(),
            counts=rules[:, 2].tolist(),
            depths=bytearray(len(data)),
            memo=bytearray(len(data)),
            marks=[0] * MAX_DEPTH,
            most_opcodes=most_opcodes,
        )
        return Scan(*end)
    text = np.frombuffer(data, np.uint8)
    depths = np.zeros(len(data), np.uint8)
    memo = np.zeros(len(data), np.uint8)
    marks = np.zeros(MAX_DEPTH, np.int64)
    columns = np.ascontiguousarray(rules.T)
    return Scan(*compiled(text, *columns, depths, memo, marks, most_opcodes))


def _compiled() -> Callable[..., tuple[int, int, int]] | None:
    """The scan as machine code, kept where numba keeps it; None without numba."""
    try:
        from helpers.allocator.machine_code import compile_and_keep
    except ImportError:
        return None
    compiled: Callable[..., tuple[int, int, int]] = compile_and_keep(
        follow, (read_argument, collect), boundscheck=True
    )
    return compiled


def follow(  # noqa: C901, PLR0912  a branch for each kind of opcode
    data: Sequence[int],
    actions: Sequence[int],
    widths: Sequence[int],
    counts: Sequence[int],
    depths: MutableSequence[int],
    memo: MutableSequence[int],
    marks: MutableSequence[int],
    most_opcodes: int,
) -> tuple[int, int, int]:
    """Follows the opcodes to the last one. ``depths``: of the values on the stack: 0 a text, 1 a
    number, else 1 + the deepest value in it; ``memo``: of the numbered values; ``marks``: the
    heights of the stack at the marks that are open.
    """
    at = 0
    height = 0
    memoized = 0
    marked = 0
    for _ in range(most_opcodes):
        if at >= len(data):
            return ENDS_EARLY, at, 0
        opcode = data[at]
        action = actions[opcode]
        if action == 0:
            return REFUSED, at, 0
        at += 1
        problem, argument, width = read_argument(
            data, at, action, widths[opcode], counts[opcode]
        )
        if problem:
            return problem, at, width
        if action in (SCALAR, TEXT, CONTAINER):
            depths[height] = 0 if action == TEXT else 1
            height += 1
        elif action == GET:
            if argument >= memoized:
                return UNKNOWN_MEMO, at, argument
            depths[height] = memo[argument]
            height += 1
        elif action in (MEMOIZE, PUT):
            index = memoized if action == MEMOIZE else argument
            if height == 0:
                return EMPTY_STACK, at, 0
            if index > memoized:
                return FAR_MEMO, at, index
            memo[index] = depths[height - 1]
            memoized = max(memoized, index + 1)
        elif action == MARK:
            if marked == MAX_DEPTH:
                return TOO_DEEP, at, 0
            marks[marked] = height
            marked += 1
        elif action == STOP:
            return PLAIN, at, 0
        elif action != SKIP:
            mark = -1
            if action in (MARKED_TUPLE, APPENDS, SET_ITEMS) and marked:
                marked -= 1
                mark = marks[marked]
            problem, height = collect(depths, height, mark, action, opcode)
            if problem:
                return problem, at, 0
        at += width
    return TOO_MANY, at, 0


def read_argument(
    data: Sequence[int], at: int, action: int, width: int, counted: int
) -> tuple[int, int, int]:
    """What is wrong with the argument of an opcode (or PLAIN), its number where it counts, and its
    bytes with those of a length before it.
    """
    argument = 0
    if counted or action in (PUT, GET):
        number_bytes = counted + width
        if at + number_bytes > len(data):
            return ENDS_EARLY, 0, 0
        for place in range(min(number_bytes, 7)):
            argument |= int(data[at + place]) << (8 * place)
        if number_bytes == 8 and data[at + 7]:
            argument = len(
                data
            )  # the number is larger than any file, and may not fit 64 bits
        if counted:
            width = counted + argument
    if at + width > len(data):
        return CLAIMS_MORE, 0, width
    return PLAIN, argument, width


def collect(
    depths: MutableSequence[int], height: int, mark: int, action: int, opcode: int
) -> tuple[int, int]:
    """Takes the values of a tuple, list or dict from the stack: what is wrong (or PLAIN), and the
    height of the stack then. ``mark``: where they begin, -1 where no mark says so.
    """
    first = mark
    if action == TUPLE:
        first = height - (opcode - 0x84)  # TUPLE1 is 0x85
    elif action == SET_ITEM:
        first = height - 2
    elif action == APPEND:
        first = height - 1
    is_tuple = action in (TUPLE, MARKED_TUPLE)
    if first < 0 or first > height or (first == 0 and not is_tuple):
        return EMPTY_STACK, height
    has_keys = action in (SET_ITEM, SET_ITEMS)
    deepest = 0
    for place in range(first, height):
        if has_keys and (place - first) % 2 == 0 and depths[place]:
            return KEY_NO_TEXT, height
        deepest = max(deepest, depths[place])
    if deepest > MAX_DEPTH:
        return TOO_DEEP, height
    height = first
    if is_tuple:
        depths[first] = 1
        height = first + 1
    depths[height - 1] = max(depths[height - 1], 1 + deepest)
    return PLAIN, height
