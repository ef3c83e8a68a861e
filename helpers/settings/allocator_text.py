"""A text such as "max_split_size_mb:128,expandable_segments:True", taken apart as torch does.

What is taken and what is refused was compared with torch's compiled allocator, 2.6, 2.11, 2.13
and 2.14 (tests/samples/allocator_settings.json).
"""

from __future__ import annotations

import re
from typing import Any

from helpers.settings.releases import Behaviour
from helpers.settings.table import KINDS, LONGEST, OPTIONS

MIB = 1 << 20
UNLIMITED = 1 << 62
"""Bytes that stand for "no limit"; larger figures of a text are cut to it."""
LARGE_SEGMENT_BYTES = 20 * MIB
INTERVALS = 16
ROUNDUP = "roundup_power2_divisions"
WORD = 1 << 64
OPTION = re.compile(r"(?:\[[^\]]*\]?|[^,\[])+")
"""One option of a text; a list in brackets is one value."""
MOST_DIVISIONS = 1 << 50
"""No size is above 512 times this, so larger numbers of divisions do the same."""


class SettingsError(ValueError):
    """torch refuses this text, or it chooses an allocator that cannot be replayed; one line.

    ``left`` is what holds after a refusal at run time (in_force.Settings), or None where nothing
    changed. ``why`` is what torch refuses, in one clause.
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
    """One text taken apart: ``named`` has the value of each key (sizes in bytes), ``divisions``
    the sixteen of roundup.

    ``error`` is why this release stops there; what stands before it was taken all the same.
    ``large_bytes`` is the size of large segments that holds where the text names none.
    """

    def __init__(
        self, conf: str, behaviour: Behaviour, large_bytes: int = LARGE_SEGMENT_BYTES
    ) -> None:
        self.rules = behaviour
        self.error: SettingsError | None = None
        bare = conf.replace(" ", "")
        if behaviour.unified_parser:  # since 2.10, which drops all white space
            bare = "".join(conf.split())
        self.tokens: list[str] = re.findall(r"[,:\[\]]|[^,:\[\]]+", bare)
        self.position = 0
        self.named: dict[str, Any] = {}
        self.divisions = [0] * INTERVALS
        self.smallest_mib = large_bytes // MIB
        try:
            self._read(large_bytes)
        except SettingsError as error:
            self.error = error

    def _read(self, large_bytes: int) -> None:
        large = "large_segment_size_mb"
        # torch reads it first: the others may not be smaller.
        if large in self.rules.keys:
            for position, token in enumerate(self.tokens):
                if token == large:
                    self.position = position + 1
                    self._value(large)
            self.smallest_mib = self.named.get(large, large_bytes) // MIB
        self.position = 0
        while self.position < len(self.tokens):
            key = self._token()
            if key not in self.rules.keys:
                raise self._refusal(f"unrecognized key {key!r}")
            self._value(key)
            if self.position < len(self.tokens):
                self._separator(",")

    def _refusal(self, why: str) -> SettingsError:
        error = SettingsError(f"torch {self.rules.torch} refuses the settings: {why}")
        error.why = why
        return error

    def _token(self, key: str = "a key") -> str:
        """The next token; ``key`` is whose value it belongs to."""
        self.position += 1
        if self.position > len(self.tokens):
            raise self._refusal(f"{key} has no value, or its list no end")
        return self.tokens[self.position - 1]

    def _separator(self, expected: str, key: str = "a key") -> None:
        sign = self._token(key)
        if sign != expected and not self.rules.unified_parser:
            raise self._refusal(f"expected {expected!r}, found {sign!r}")

    def _value(self, key: str) -> None:
        """Reads a key's value behind its colon."""
        self._separator(":")
        text = self._token(key)
        kind = OPTIONS[key].kind
        if kind == "divisions":
            self._read_divisions(text)
        elif kind == "reserve":
            reserve = _reserve(text)
            if reserve is not None:  # else torch warns and keeps what it has
                self.named[key] = reserve
        else:
            self.named[key] = self._parsed(key, kind, text)
            if kind == "list" and text == "[":
                while self._token() != "]":
                    continue

    def _parsed(self, key: str, kind: str, text: str) -> float | str:
        """What a text stands for as a value of its kind."""
        value: float | str | None = text
        expected = KINDS.get(kind, "")
        if kind == "flag":
            value = {"True": True, "False": False}.get(text)
        elif kind == "backend":
            backends = KINDS["backend"].split(", ")
            if self.rules.build == "cuda":
                backends.remove("hipMallocAsync")
            expected = "one of " + ", ".join(backends)
            if text not in backends:
                value = None
        elif kind in ("share", "open share"):
            value = _share(text, with_ends=kind == "share")
        elif kind in ("size", "number"):
            value = self._sized(key, self._whole_number(key, text))
        if value is None:
            raise self._refusal(f"{key} wants {expected}, found {text!r}")
        return value

    def _sized(self, key: str, value: int) -> int:
        """Bytes of a number of MiB; the number itself is refused where torch refuses it."""
        least = OPTIONS[key].least
        if key in ("max_split_size_mb", "max_non_split_rounding_mb"):
            least = self.smallest_mib
            if not self.rules.max_split_minimum_inclusive:
                least += 1
        if value < least:
            raise self._refusal(
                f"{key} is too small: {value}, at least {least} is needed"
            )
        if OPTIONS[key].kind == "number" and (
            not _is_power_of_two(value) or value > 128
        ):
            raise self._refusal(f"{key} wants a power of two up to 128, found {value}")
        # torch counts bytes in 64 bits; a larger number of MiB would wrap around.
        mib = min(value, WORD // MIB - 1)
        return min(mib * MIB, UNLIMITED)

    def _whole_number(self, key: str, text: str, wide: bool = False) -> int:
        """strtoull's reading since 2.10, strtol's into an int before: a leading number counts,
        a minus sign wraps around.
        """
        match = re.match(r"\s*([+-]?[0-9]+)", text)
        lowest = -(1 << 31)
        highest = (1 << 31) - 1
        if wide or self.rules.unified_parser:
            lowest = 1 - WORD
            highest = WORD - 1
        if not match or len(match[1]) > 40 or not lowest <= int(match[1]) <= highest:
            raise self._refusal(f"{key} wants a whole number, found {text[:LONGEST]!r}")
        return int(match[1]) % WORD

    def _divisions(self, text: str, in_list: bool = False) -> int:
        """A number of divisions; in a list 0 is none."""
        value = self._whole_number(ROUNDUP, text)
        if not _is_power_of_two(value) and not (in_list and value == 0):
            wanted = "a power of two or 0" if in_list else "a power of two"
            raise self._refusal(
                f"{ROUNDUP}: divisions have to be {wanted}, found {text!r}"
            )
        return min(value, MOST_DIVISIONS)

    def _read_divisions(self, text: str) -> None:
        """The divisions of a number, or of a list of interval:number."""
        if text != "[":
            self.divisions = [self._divisions(text)] * INTERVALS
            return
        if self.rules.unified_parser and "]" not in self.tokens[self.position :]:
            raise self._refusal("a key has no value, or its list no end")
        begin = self.position
        self._read_intervals()
        if self.rules.unified_parser and self.position != self.tokens.index("]", begin):
            raise self._refusal(f"{ROUNDUP}: its list has no end, or ends twice")
        self.position += 1

    def _read_intervals(self) -> None:
        last = 0
        is_first = True
        while self.position < len(self.tokens) and self.tokens[self.position] != "]":
            interval = self._token()
            self._separator(":")
            value = self._divisions(self._token(ROUNDUP), in_list=True)
            if interval == ">":
                start = last + 1
                if self.rules.above_fills_last_key:
                    start = last
                self.divisions[start:] = [value] * (INTERVALS - start)
            else:
                last = self._interval(interval)
                start = 0 if is_first else last
                self.divisions[start : last + 1] = [value] * (last + 1 - start)
                is_first = False
            if self.tokens[self.position : self.position + 1] != ["]"]:
                self._separator(",", ROUNDUP)

    def _interval(self, text: str) -> int:
        """Which of the sixteen intervals a bound in MiB names."""
        bound = self._whole_number(ROUNDUP, text, wide=True)
        if not _is_power_of_two(bound):
            wanted = "intervals have to be a power of two in MiB"
            raise self._refusal(f"{ROUNDUP}: {wanted}, found {text!r}")
        return min(bound.bit_length() - 1, INTERVALS - 1)


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _reserve(text: str) -> tuple[bool, float] | None:
    """parseReserveSpec's reading: (True, parts of the device's memory) or (False, GiB); None
    where it warns.
    """
    in_gib = text.endswith(("G", "g"))
    number = text[:-1] if in_gib else text
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", number):
        return None
    value = float(number)
    if not 0 < value < float("inf"):
        return None
    return not in_gib, value


def _share(text: str, with_ends: bool) -> float | None:
    """A number between 0 and 1; ``with_ends``: or one of these."""
    share = _real(text)
    if share is None or not 0 <= share <= 1:
        return None
    if share in (0, 1) and not with_ends:
        return None
    return share


def _real(text: str) -> float | None:
    """strtod's reading of a leading number; None where there is none."""
    match = re.match(
        r"\s*[+-]?0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*(?:[pP][+-]?[0-9]+)?", text[:400]
    )
    if match:
        return float.fromhex(match[0].strip().rstrip(".xX") or "0")
    match = re.match(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", text)
    return float(match[0]) if match else None
