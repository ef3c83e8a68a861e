"""Whether a pickle holds only plain data: a scan of its opcodes, before anything is built.

``follow`` and the two functions that it calls use only numbers and arrays, so that numba compiles
them unchanged; without numba they run as plain Python.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, MutableSequence, Sequence
from typing import NamedTuple

import numpy as np

COMPILED_FROM_BYTES = 8 << 20
"""Size of a pickle: loading numba takes about as long as scanning so much in plain Python."""
MAX_DEPTH = 32
"""Containers inside each other. A snapshot has 7: itself, its list of segments, a segment, its list
of blocks, a block, its list of frames, a frame.
"""

# What an opcode does.
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
"""The opcodes of plain data by what they do, each with the bytes of its argument. A number below 0
stands for an argument that begins with its own length: so many bytes has the length. Every other
opcode is refused. Names and widths are those of pickletools.
"""
TUPLE_WITHOUT_VALUES = 0x84
"""One less than the opcode TUPLE1 (0x85): TUPLE2 and TUPLE3 follow it."""

# What a scan found.
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
    """How a scan ended. ``finding``: PLAIN, or what is wrong. ``at``: the byte of the file there.
    ``number``: of CLAIMS_MORE the bytes that it claims, of FAR_MEMO and UNKNOWN_MEMO the index in
    the memo; 0 for others.
    """

    finding: int
    at: int
    number: int


def _rules() -> np.ndarray:
    """A row for each of the 256 bytes that an opcode may be: what the opcode does (0: refused), the
    bytes of an argument of fixed width, and the bytes of the length that begins any other argument.
    One of these two widths is always 0.
    """
    codes = {code.name: ord(code.code) for code in pickletools.opcodes}
    rules = np.zeros((256, 3), np.int64)
    for action, text in _OPCODES.items():
        words = text.split()
        for name, number in zip(words[::2], words[1::2], strict=True):
            width = int(number)
            if width >= 0:
                rules[codes[name]] = action, width, 0
            else:
                rules[codes[name]] = action, 0, -width
    return rules


def scan(data: bytes, most_opcodes: int) -> Scan:
    """The first opcode of a pickle that is not of plain data or beyond a limit; PLAIN where the
    pickle has none up to its STOP.

    It checks every length and memo index against what is there, counts opcodes, measures nesting,
    and lets only texts be the keys of a dict.
    """
    rules = _rules()
    compiled = None
    if len(data) >= COMPILED_FROM_BYTES:
        compiled = _compiled()
    # An opcode puts at most one value on the stack or into the memo, so neither is ever longer
    # than the file.
    if compiled is None:
        end = follow(
            data=data,
            actions=rules[:, 0].tolist(),
            widths=rules[:, 1].tolist(),
            length_widths=rules[:, 2].tolist(),
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
    """``follow`` as machine code, kept in numba's cache; None where numba is not installed."""
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
    length_widths: Sequence[int],
    depths: MutableSequence[int],
    memo: MutableSequence[int],
    marks: MutableSequence[int],
    most_opcodes: int,
) -> tuple[int, int, int]:
    """Follows the opcodes to the last one; returns the fields of a Scan. ``actions``, ``widths``
    and ``length_widths`` are the columns of ``_rules``.

    It builds no value. Of each it keeps only the depth: 0 for a text, 1 for a number or an empty
    container, else 1 + that of the deepest value inside. The caller gives it room to work in:
    ``depths`` for the values on pickle's stack, ``memo`` for those that pickle has numbered,
    ``marks`` for the heights of the stack at the marks that are open.
    """
    at = 0
    height = 0
    memoized = 0
    open_marks = 0
    for _ in range(most_opcodes):
        if at >= len(data):
            return ENDS_EARLY, at, 0
        opcode = data[at]
        action = actions[opcode]
        if action == 0:
            return REFUSED, at, 0
        at += 1
        problem, argument, width = read_argument(
            data, at, action, widths[opcode], length_widths[opcode]
        )
        if problem:
            return problem, at, width
        if action == TEXT:
            depths[height] = 0
            height += 1
        elif action in (SCALAR, CONTAINER):
            depths[height] = 1
            height += 1
        elif action == GET:
            if argument >= memoized:
                return UNKNOWN_MEMO, at, argument
            depths[height] = memo[argument]
            height += 1
        elif action in (MEMOIZE, PUT):
            index = memoized  # where MEMOIZE puts it: behind those before
            if action == PUT:
                index = argument
            if height == 0:
                return EMPTY_STACK, at, 0
            # Pickle numbers values without a gap; a far index makes Python's memo as long as that.
            if index > memoized:
                return FAR_MEMO, at, index
            memo[index] = depths[height - 1]
            memoized = max(memoized, index + 1)
        elif action == MARK:
            if open_marks == MAX_DEPTH:
                return TOO_DEEP, at, 0
            marks[open_marks] = height
            open_marks += 1
        elif action == STOP:
            return PLAIN, at, 0
        elif action != SKIP:
            # What is left puts values into a container. Some of these take all values above the
            # last mark.
            mark = -1
            if action in (MARKED_TUPLE, APPENDS, SET_ITEMS) and open_marks:
                open_marks -= 1
                mark = marks[open_marks]
            problem, height = collect(depths, height, mark, action, opcode)
            if problem:
                return problem, at, 0
        at += width
    return TOO_MANY, at, 0


def read_argument(
    data: Sequence[int], at: int, action: int, width: int, length_width: int
) -> tuple[int, int, int]:
    """Reads the argument of an opcode, which begins at byte ``at``: a memo index of ``width``
    bytes, or a length of ``length_width`` bytes; other arguments are not looked at.

    Returns what is wrong (or PLAIN), that index or length, and the bytes of the whole argument.
    """
    number = 0
    if length_width or action in (PUT, GET):
        number_width = length_width + width  # one of the two is 0
        if at + number_width > len(data):
            return ENDS_EARLY, 0, 0
        # Little-endian. The top byte of 8 is looked at by itself: shifted, it may not fit the
        # signed 64 bits of compiled code.
        for place in range(min(number_width, 7)):
            number |= int(data[at + place]) << (8 * place)
        if number_width == 8 and data[at + 7]:
            number = len(data)  # too large for any file, so CLAIMS_MORE follows
        if length_width:
            width = length_width + number
    if at + width > len(data):
        return CLAIMS_MORE, 0, width
    return PLAIN, number, width


def collect(
    depths: MutableSequence[int], height: int, mark: int, action: int, opcode: int
) -> tuple[int, int]:
    """Takes values from the stack and puts them into a new tuple, or into the list or dict below
    them. ``mark``: the height of the stack at the mark below them, -1 where none is open.

    Returns what is wrong (or PLAIN), and the height of the stack then.
    """
    # the lowest of the values; -1 is below any stack, so it is EMPTY_STACK
    first = mark
    if action == TUPLE:
        first = height - (opcode - TUPLE_WITHOUT_VALUES)
    elif action == SET_ITEM:
        first = height - 2  # a key and a value
    elif action == APPEND:
        first = height - 1
    is_tuple = action in (TUPLE, MARKED_TUPLE)
    lowest = 1  # the list or dict itself is below the values
    if is_tuple:
        lowest = 0
    if first < lowest or first > height:
        return EMPTY_STACK, height
    has_keys = action in (SET_ITEM, SET_ITEMS)
    deepest = 0
    for place in range(first, height):
        is_key = has_keys and (place - first) % 2 == 0  # keys and values take turns
        if is_key and depths[place]:
            return KEY_NO_TEXT, height
        deepest = max(deepest, depths[place])
    if deepest > MAX_DEPTH:
        return TOO_DEEP, height
    height = first
    if is_tuple:
        depths[first] = 1
        height = first + 1
    # A list or dict is as deep as the deepest that it got so far.
    depths[height - 1] = max(depths[height - 1], 1 + deepest)
    return PLAIN, height
