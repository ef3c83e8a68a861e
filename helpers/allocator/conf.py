"""Which keys does a PYTORCH_CUDA_ALLOC_CONF string name, with which values? Read as torch reads it, release by release.

What is taken and what is refused was compared with torch's compiled allocator, 2.6, 2.11, 2.13 and 2.14
(tests/samples/allocator_settings.json).
"""

from __future__ import annotations

import re
from typing import Any

from helpers.allocator.versions import Behaviour

MIB = 1 << 20
UNLIMITED = 1 << 62
"""Bytes that stand for "no limit"; larger figures of a string are cut to it."""
LARGE_SEGMENT_BYTES = 20 * MIB
INTERVALS = 16
WORD = 1 << 64
FLAGS = ("expandable_segments", "throw_on_cudamalloc_oom", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
         "graph_capture_record_stream_reuse", "pinned_use_cuda_host_register", "pinned_use_hip_host_register",
         "pinned_use_background_threads", "pinned_free_catch_all")


class SettingsError(ValueError):
    """torch refuses this string, or it chooses an allocator that cannot be replayed; one line.

    ``left`` is what holds after a refusal at run time (a Settings), or None where nothing changed.
    """

    left: Any = None


class Conf:
    """One string taken apart: ``named`` has the value of each key (sizes in bytes), ``divisions`` the sixteen of roundup.

    ``error`` is why this release stops there; what stands before it was taken all the same. ``large_bytes`` is the size of
    large segments that holds where the string names none.
    """

    def __init__(self, conf: str, behaviour: Behaviour, large_bytes: int = LARGE_SEGMENT_BYTES) -> None:
        self.rules = behaviour
        self.error: SettingsError | None = None
        # The older parser drops blanks only, the one since 2.10 all white space.
        bare = "".join(conf.split()) if behaviour.unified_parser else conf.replace(" ", "")
        self.tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", bare)
        self.named: dict[str, Any] = {}
        self.divisions = [0] * INTERVALS
        self.smallest = large_bytes // MIB
        try:
            self._read(behaviour, large_bytes)
        except SettingsError as error:
            self.error = error

    def _read(self, behaviour: Behaviour, large_bytes: int) -> None:
        if "large_segment_size_mb" in behaviour.keys:  # torch reads it first: the others may not be smaller
            for at, token in enumerate(self.tokens):
                if token == "large_segment_size_mb":
                    self._value(at, token)
            self.smallest = self.named.get("large_segment_size_mb", large_bytes) // MIB
        at = 0
        while at < len(self.tokens):
            key = self.tokens[at]
            if key not in behaviour.keys:
                raise SettingsError(f"torch {behaviour.torch} refuses the settings: unrecognized key {key!r}")
            at = self._value(at, key)
            if at + 1 < len(self.tokens):
                at += 1
                self._separator(at, ",")
            at += 1

    def _refuse(self, why: str) -> SettingsError:
        return SettingsError(f"torch {self.rules.torch} refuses the settings: {why}")

    def _token(self, at: int, key: str) -> str:
        if at >= len(self.tokens):
            raise self._refuse(f"{key} has no value, or its list no end")
        return self.tokens[at]

    def _separator(self, at: int, expected: str) -> None:
        if self._token(at, "a key") != expected and not self.rules.unified_parser:
            raise self._refuse(f"expected {expected!r}, found {self.tokens[at]!r}")

    def _value(self, at: int, key: str) -> int:
        """Read the value of the key at this place; returns the place where it ends."""
        self._separator(at + 1, ":")
        at += 2
        text = self._token(at, key)
        if key == "roundup_power2_divisions":
            return self._roundup(at)
        if key == "expandable_segments_reserve_by_class":
            self.named[key] = text
            return self._list_end(at)
        if key in FLAGS:
            if text not in ("True", "False"):
                raise self._refuse(f"{key} wants True or False, found {text!r}")
            self.named[key] = text == "True"
        elif key == "backend":
            known = ("native", "cudaMallocAsync") + (("hipMallocAsync",) if self.rules.build != "cuda" else ())
            if text not in known:
                raise self._refuse(f"unknown allocator backend {text!r}: options are {', '.join(known)}")
            self.named[key] = text
        elif key in ("garbage_collection_threshold", "per_process_memory_fraction"):
            value, closed = _real(text), key == "per_process_memory_fraction"
            if value is None or not (0 < value < 1 or (closed and value in (0, 1))):
                raise self._refuse(f"{key} wants a number {'from 0 to 1' if closed else 'between 0 and 1'}, found {text!r}")
            self.named[key] = value
        elif key == "expandable_segments_reserve":
            self.named[key] = text  # torch warns of a bad value and keeps its default
        else:
            self.named[key] = self._sized(key, self._whole(key, text))
        return at

    def _sized(self, key: str, value: int) -> int:
        least = {"large_segment_size_mb": 11, "pinned_reserve_segment_size_mb": 1}.get(key, 0)
        if key in ("max_split_size_mb", "max_non_split_rounding_mb"):
            least = self.smallest + (not self.rules.max_split_minimum_inclusive)
        if value < least:
            raise self._refuse(f"{key} is too small: {value}, at least {least} is needed")
        if key == "pinned_num_register_threads" and (not _power_of_two(value) or value > 128):
            raise self._refuse(f"{key} wants a power of two up to 128, found {value}")
        return min(min(value, WORD // MIB - 1) * MIB, UNLIMITED)

    def _whole(self, key: str, text: str, wide: bool = False) -> int:
        """strtoull's reading since 2.10, strtol's into an int before: a leading number counts, a minus sign wraps around."""
        match = re.match(r"\s*([+-]?[0-9]+)", text)
        low, high = (1 - WORD, WORD - 1) if self.rules.unified_parser or wide else (-(1 << 31), (1 << 31) - 1)
        if not match or not low <= int(match[1]) <= high:
            raise self._refuse(f"{key} wants a whole number, found {text!r}")
        return int(match[1]) % WORD

    def _list_end(self, at: int) -> int:
        if self.tokens[at] != "[":
            return at
        while self._token(at, "a key") != "]":
            at += 1
        return at

    def _roundup(self, at: int) -> int:
        key = "roundup_power2_divisions"
        if self.tokens[at] != "[":
            value = self._whole(key, self.tokens[at])
            if not _power_of_two(value):
                raise self._refuse(f"{key}: divisions have to be a power of two, found {self.tokens[at]!r}")
            self.divisions = [_divisions(value)] * INTERVALS
            return at
        end = self._list_end(at) if self.rules.unified_parser else -1
        first, last = True, 0
        at += 1
        while at < len(self.tokens) and self.tokens[at] != "]":
            name = self.tokens[at]
            self._separator(at + 1, ":")
            value = self._whole(key, self._token(at + 2, key))
            if value and not _power_of_two(value):
                raise self._refuse(f"{key}: divisions have to be a power of two or 0, found {self.tokens[at + 2]!r}")
            if name == ">":
                start = last if self.rules.above_fills_last_key else last + 1
                self.divisions[start:] = [_divisions(value)] * (INTERVALS - start)
            else:
                bound = self._whole(key, name, wide=True)
                if not _power_of_two(bound):
                    raise self._refuse(f"{key}: intervals have to be a power of two in MiB, found {name!r}")
                last = min(bound.bit_length() - 1, INTERVALS - 1)
                if first:
                    self.divisions[:last] = [_divisions(value)] * last
                self.divisions[last], first = _divisions(value), False
            at += 3
            if self._token(at, key) != "]":
                self._separator(at, ",")
                at += 1
        if self.rules.unified_parser and at != end:
            raise self._refuse(f"{key}: its list has no end, or ends twice")
        return at


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _divisions(value: int) -> int:
    return min(value, 1 << 50)  # no size is above 512 times that, so larger ones do the same


def _real(text: str) -> float | None:
    """strtod's reading of a leading number; None where there is none."""
    if match := re.match(r"\s*[+-]?0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*(?:[pP][+-]?[0-9]+)?", text):
        return float.fromhex(match[0].strip().rstrip(".xX") or "0")
    match = re.match(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", text)
    return float(match[0]) if match else None
