"""A text such as "max_split_size_mb:128,expandable_segments:True", taken apart as torch does.

What is taken and what is refused was compared with torch's compiled allocator, 2.6, 2.11, 2.13
and 2.14 (tests/samples/allocator_settings.json).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from helpers.settings.releases import Behaviour
from helpers.settings.table import KINDS, LONGEST, OPTIONS

MIB = 1 << 20
UNLIMITED = 1 << 62
"""Bytes that stand for "no limit"; larger figures of a text are cut to it.

torch has the largest size_t; this one also fits a signed 64-bit column of a table.
"""
LARGE_SEGMENT_BYTES = 20 * MIB
"""kLargeBuffer of torch's allocator; since 2.11 the default of large_segment_size_mb."""
INTERVALS = 16
"""kRoundUpPowerOfTwoIntervals of c10/core/AllocatorConfig.cpp: from 1 MiB to 64 GiB, one for each
power of two.
"""
ROUNDUP = "roundup_power2_divisions"
SIZE_T_RANGE = 1 << 64
"""How many values torch's 64-bit size_t has; a negative number wraps around by this."""
INT_RANGE = 1 << 32
LONGEST_NUMBER = 40
"""Characters of a whole number that are converted: more than the 20 digits of 64 bits need."""
OPTION = re.compile(r"(?:\[[^\]]*\]?|[^,\[])+")
"""One option of a text; a list in brackets is one value."""
MOST_DIVISIONS = 1 << 50
"""Larger numbers of divisions do the same: torch's round_size divides only sizes above 512
(kMinBlockSize) times the number, and 512 times this is UNLIMITED.
"""
MOST_THREADS = 128
"""pinned_max_register_threads() of c10/cuda/CUDAAllocatorConfig.h."""
WHOLE_NUMBER = re.compile(r"\s*([+-]?[0-9]+)")
HEXADECIMAL = re.compile(
    r"\s*[+-]?0[xX](?=\.?[0-9a-fA-F])[0-9a-fA-F]*\.?[0-9a-fA-F]*(?:[pP][+-]?[0-9]+)?"
)
DECIMAL = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""What strtod, which torch reads a share with, takes of the start of a text."""


class Reserve(NamedTuple):
    """A value of expandable_segments_reserve: the address range that a segment reserves.

    ``amount`` counts the device's whole memory where ``is_share``, GiB otherwise.
    """

    is_share: bool
    amount: float


class SettingsError(ValueError):
    """torch refuses this text, or it chooses an allocator that cannot be replayed; one line.

    ``left`` has the settings that hold after a refusal at run time (in_force.Settings), or None
    where nothing changed. ``why`` says in one clause what torch refuses.
    """

    left: Any = None
    why: str = ""


def parts(conf: str) -> list[tuple[str, str]]:
    """The options of a text, (key, value), as torch splits it: commas between, a colon before
    the value, no blanks.
    """
    options = []
    for piece in OPTION.findall("".join(conf.split())):
        key, _, value = piece.partition(":")
        if key:
            options.append((key, value))
    return options


class AllocatorText:
    """One text taken apart, as the release of ``behaviour`` reads it.

    ``named`` has the value of each key that the text sets (sizes in bytes), ``divisions`` the
    number for each interval of roundup_power2_divisions. ``error`` says why this release refuses
    the text, or is None; what stands before the refused option was taken all the same.
    ``large_bytes`` is the size of large segments where the text names none.
    """

    def __init__(
        self, conf: str, behaviour: Behaviour, large_bytes: int = LARGE_SEGMENT_BYTES
    ) -> None:
        self.behaviour = behaviour
        self.error: SettingsError | None = None
        bare = conf.replace(" ", "")
        if behaviour.unified_parser:  # since 2.10, which drops all white space
            bare = "".join(conf.split())
        self.tokens: list[str] = re.findall(r"[,:\[\]]|[^,:\[\]]+", bare)
        self.position = 0
        self.named: dict[str, Any] = {}
        self.divisions = [0] * INTERVALS
        self.large_segment_mib = large_bytes // MIB
        try:
            self._read_large_segment_size()
            self._read_options()
        except SettingsError as error:
            self.error = error

    def _read_large_segment_size(self) -> None:
        """Reads large_segment_size_mb first, wherever it stands, as torch does: it is the least
        value that max_split_size_mb and max_non_split_rounding_mb may have.
        """
        key = "large_segment_size_mb"
        if key not in self.behaviour.keys:
            return
        for position, token in enumerate(self.tokens):
            if token == key:
                self.position = position + 1
                self._read_value(key)
                self.large_segment_mib = self.named[key] // MIB

    def _read_options(self) -> None:
        """Reads every option in its order, up to the first that this release refuses."""
        self.position = 0
        while not self._at_end():
            key = self._next_token()
            if key not in self.behaviour.keys:
                raise self._refusal(f"unrecognized key {key!r}")
            self._read_value(key)
            if not self._at_end():
                self._read_separator(",")

    def _refusal(self, why: str) -> SettingsError:
        """The error that says that this release refuses the text, and why."""
        torch = self.behaviour.torch
        error = SettingsError(f"torch {torch} refuses the settings: {why}")
        error.why = why
        return error

    def _at_end(self) -> bool:
        return self.position >= len(self.tokens)

    def _at_end_of_list(self) -> bool:
        return not self._at_end() and self.tokens[self.position] == "]"

    def _next_token(self, key: str = "a key") -> str:
        """The next token, which is read; a refusal says that the value of ``key`` ends here."""
        if self._at_end():
            raise self._refusal(f"{key} has no value, or its list no end")
        token = self.tokens[self.position]
        self.position += 1
        return token

    def _read_separator(self, expected: str, key: str = "a key") -> None:
        """Reads a comma or a colon; the parser since 2.10 takes any token in its place."""
        sign = self._next_token(key)
        if sign != expected and not self.behaviour.unified_parser:
            raise self._refusal(f"expected {expected!r}, found {sign!r}")

    def _read_value(self, key: str) -> None:
        """Reads a colon and the value of ``key`` into ``named`` or ``divisions``."""
        self._read_separator(":")
        text = self._next_token(key)
        kind = OPTIONS[key].kind
        if kind == "divisions":
            self._read_divisions(text)
        elif kind == "reserve":
            reserve = _reserve(text)
            if reserve is not None:  # else torch warns and keeps what it has
                self.named[key] = reserve
        else:
            self.named[key] = self._parsed(key, kind, text)
            if kind == "list" and text == "[":  # read, but not modelled
                while self._next_token() != "]":
                    continue

    def _parsed(self, key: str, kind: str, text: str) -> float | str:
        """The value that a text stands for: an int for sizes (in bytes) and numbers, a float for
        shares, a bool for flags, else the text. ``kind`` is that of an Option; "open share" may be
        neither 0 nor 1. A text that torch does not take is refused.
        """
        if kind == "size":
            return self._size_bytes(key, text)
        if kind == "number":
            return self._thread_count(key, text)
        if kind == "backend":
            return self._backend(text)
        value: float | str | None = text
        if kind == "flag":
            value = {"True": True, "False": False}.get(text)
        elif kind in ("share", "open share"):
            value = _share(text)
            if kind == "open share" and value in (0, 1):
                value = None
        if value is None:
            raise self._refusal(f"{key} wants {KINDS[kind]}, found {text!r}")
        return value

    def _backend(self, text: str) -> str:
        """The name of a backend that this build knows; another one is refused."""
        backends = KINDS["backend"].split(", ")
        if self.behaviour.build == "cuda":
            backends.remove("hipMallocAsync")  # known to ROCm builds alone
        if text not in backends:
            wanted = "one of " + ", ".join(backends)
            raise self._refusal(f"backend wants {wanted}, found {text!r}")
        return text

    def _size_bytes(self, key: str, text: str) -> int:
        """Bytes of a text in MiB, at most UNLIMITED; a size below the option's least is refused.

        Two sizes have to be above that of a large segment: the unified parser takes the very size
        of it, too (``max_split_minimum_inclusive``).
        """
        mib = self._whole_number(key, text)
        least = OPTIONS[key].least
        if key in ("max_split_size_mb", "max_non_split_rounding_mb"):
            least = self.large_segment_mib
            if not self.behaviour.max_split_minimum_inclusive:
                least += 1
        if mib < least:
            raise self._refusal(
                f"{key} is too small: {mib}, at least {least} is needed"
            )
        return min(mib * MIB, UNLIMITED)

    def _thread_count(self, key: str, text: str) -> int:
        """The number of threads that register pinned memory, a power of two."""
        threads = self._whole_number(key, text)
        if not _is_power_of_two(threads) or threads > MOST_THREADS:
            wanted = f"a power of two up to {MOST_THREADS}"
            raise self._refusal(f"{key} wants {wanted}, found {threads}")
        return threads

    def _whole_number(self, key: str, text: str) -> int:
        """The number at the start of a text, as a size_t: stoull reads it since 2.10, also behind a
        minus sign, and stoi before, which refuses what does not fit an int.
        """
        if self.behaviour.unified_parser:
            return self._unsigned(key, text, 1 - SIZE_T_RANGE, SIZE_T_RANGE)
        return self._unsigned(key, text, -INT_RANGE // 2, INT_RANGE // 2)

    def _unsigned(self, key: str, text: str, lowest: int, end: int) -> int:
        """The number at the start of a text, from ``lowest`` to below ``end``, as a size_t."""
        match = WHOLE_NUMBER.match(text)
        if match and len(match[1]) <= LONGEST_NUMBER:
            number = int(match[1])
            if lowest <= number < end:
                return number % SIZE_T_RANGE
        raise self._refusal(f"{key} wants a whole number, found {text[:LONGEST]!r}")

    def _divisions(self, text: str) -> int:
        """The number of divisions for all intervals: a power of two, and not 0 as in a list."""
        value = self._whole_number(ROUNDUP, text)
        if not _is_power_of_two(value):
            wanted = "divisions have to be a power of two"
            raise self._refusal(f"{ROUNDUP}: {wanted}, found {text!r}")
        return min(value, MOST_DIVISIONS)

    def _divisions_in_list(self, text: str) -> int:
        """The number of divisions for one interval; 0 stands for no rounding."""
        value = self._whole_number(ROUNDUP, text)
        if value != 0 and not _is_power_of_two(value):
            wanted = "divisions have to be a power of two or 0"
            raise self._refusal(f"{ROUNDUP}: {wanted}, found {text!r}")
        return min(value, MOST_DIVISIONS)

    def _read_divisions(self, text: str) -> None:
        """Reads one number of divisions, or a list of interval:number behind its bracket."""
        if text != "[":
            self.divisions = [self._divisions(text)] * INTERVALS
            return
        if not self.behaviour.unified_parser:  # it skips one token, whatever that is
            self._read_intervals()
            self.position += 1
            return
        # The parser since 2.10 looks for the bracket first, and wants the list to end there.
        if "]" not in self.tokens[self.position :]:
            raise self._refusal("a key has no value, or its list no end")
        end = self.tokens.index("]", self.position)
        self._read_intervals()
        if self.position != end:
            raise self._refusal(f"{ROUNDUP}: its list has no end, or ends twice")
        self.position += 1

    def _read_intervals(self) -> None:
        """Reads a list such as ``256:1,512:2,>:8``: the first number also holds for all smaller
        intervals, that of ``>`` for all above the last one.
        """
        last = 0
        is_first = True
        while not self._at_end() and not self._at_end_of_list():
            name = self._next_token()
            self._read_separator(":")
            value = self._divisions_in_list(self._next_token(ROUNDUP))
            if name == ">":  # from the interval after the last one on, or with that one
                start = last + 1
                if self.behaviour.above_fills_last_key:
                    start = last
                self.divisions[start:] = [value] * (INTERVALS - start)
            else:
                last = self._interval(name)
                self.divisions[last] = value
                if is_first:
                    self.divisions[:last] = [value] * last
                is_first = False
            if not self._at_end_of_list():
                self._read_separator(",", ROUNDUP)

    def _interval(self, text: str) -> int:
        """The place in ``divisions`` of the interval that begins at a size in MiB; sizes above the
        last one count as the last one.
        """
        mib = self._unsigned(ROUNDUP, text, 1 - SIZE_T_RANGE, SIZE_T_RANGE)
        if not _is_power_of_two(mib):
            wanted = "intervals have to be a power of two in MiB"
            raise self._refusal(f"{ROUNDUP}: {wanted}, found {text!r}")
        logarithm = mib.bit_length() - 1
        return min(logarithm, INTERVALS - 1)


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _reserve(text: str) -> Reserve | None:
    """What parseReserveSpec of CUDAAllocatorConfig.cpp makes of a text; None where it warns."""
    in_gib = text.endswith(("G", "g"))
    number = text
    if in_gib:
        number = text[:-1]
    if not DECIMAL.fullmatch(number):
        return None
    amount = float(number)
    if not 0 < amount < float("inf"):
        return None
    return Reserve(is_share=not in_gib, amount=amount)


def _share(text: str) -> float | None:
    """The number from 0 to 1 at the start of a text; None where there is none. What follows the
    number is passed over, as strtod does.
    """
    match = HEXADECIMAL.match(text)
    converted = float.fromhex
    if match is None:
        match = DECIMAL.match(text)
        converted = float
    if match is None:
        return None
    try:
        share = converted(match[0])
    except OverflowError:  # torch's stod refuses what no double can hold, too
        return None
    if not 0 <= share <= 1:
        return None
    return share
