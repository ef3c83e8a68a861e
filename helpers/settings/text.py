"""What does a string such as "max_split_size_mb:128,expandable_segments:True" mean?

Read as torch reads it, by release.

What is taken and what is refused was compared with torch's compiled allocator, 2.6, 2.11, 2.13
and 2.14 (tests/samples/allocator_settings.json).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from helpers.settings import table
from helpers.settings.table import KINDS, LONGEST, OPTIONS, SAYS, TRIED, Behaviour, nearest, release

MIB = 1 << 20
UNLIMITED = 1 << 62
"""Bytes that stand for "no limit"; larger figures of a string are cut to it."""
LARGE_SEGMENT_BYTES = 20 * MIB
INTERVALS = 16
ROUNDUP = "roundup_power2_divisions"
WORD = 1 << 64
MIN_BLOCK_BYTES = 512
SMALL_MAX_BYTES = MIB
MIN_LARGE_BYTES = 10 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_STEP_BYTES = 2 * MIB


class SettingsError(ValueError):
    """torch refuses this string, or it chooses an allocator that cannot be replayed; one line.

    ``left`` is what holds after a refusal at run time (a Settings), or None where nothing changed.
    """

    left: Any = None


@dataclass(frozen=True)
class Settings:
    """What holds under one string.

    ``fraction``: what the key says (None: not named); it limits memory from the start only.

    ``roundup_divisions``: entry k for sizes of [2^k, 2^(k+1)) MiB; the first also below, the
    last above; 0, 1: none; -1: nor 512 B. ``reserve``: parts of the device's memory (True) or
    GiB (False). ``ignored``: named without effect on bytes; ``warnings``: dangers.
    """

    conf: str = ""
    max_split_bytes: int = UNLIMITED
    non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    roundup_divisions: tuple[int, ...] = (0,) * INTERVALS
    gc_threshold: float = 0.0
    expandable: bool = False
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    throw_on_oom: bool = False
    fraction: float | None = None
    reserve: tuple[bool, float] | None = None
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def parse(conf: str, behaviour: Behaviour, previous: Settings | None = None) -> Settings:
    """The settings that a string makes.

    With ``previous`` it is set again at run time, over what held before.

    Raises SettingsError, in one line, where this release stops with an error; its ``left`` is
    what then holds at run time: the keys before the one at fault, the rest as if unnamed
    (measured, torch 2.6 to 2.14).
    """
    before = previous or Settings()
    text = Conf(conf, behaviour, before.large_segment_bytes)
    if text.named.get("backend", "native") != "native":
        raise SettingsError(SAYS["other_allocator"].format(backend=text.named["backend"]))
    named = {OPTIONS[key].field: value for key, value in text.named.items() if OPTIONS[key].field}
    large = named.get("large_segment_bytes", before.large_segment_bytes)
    step = large if "large_segment_size_mb" in behaviour.keys else before.non_split_rounding_bytes
    unnamed: dict[str, Any] = {"max_split_bytes": UNLIMITED, "gc_threshold": 0.0}
    unnamed |= {"roundup_divisions": tuple(text.divisions), "non_split_rounding_bytes": step}
    wanted = named.get("expandable", before.expandable)
    named |= {"conf": conf, "expandable": wanted and behaviour.expandable_available}
    settings = replace(before, **{**unnamed, **named})
    inert = [f"{key} {OPTIONS[key].inert}" for key in text.named if OPTIONS[key].inert]
    without = {
        "no_expandable": wanted and not behaviour.expandable_available,
        "no_split": "non_split_rounding_bytes" in named and settings.max_split_bytes == UNLIMITED,
        "fraction_later": previous and "fraction" in named,
    }
    ignored = (*inert, *(SAYS[name] for name, so in without.items() if so))
    dangers = _dangers(settings, behaviour, (previous or settings).fraction)
    settings = replace(settings, ignored=ignored, warnings=dangers)
    if text.error is not None:
        text.error.left = settings
        raise text.error
    return settings


def _dangers(settings: Settings, behaviour: Behaviour, limit: float | None) -> tuple[str, ...]:
    """The rules that hold for options in force which do harm, or nothing; ``limit`` is the
    memory fraction in force.
    """
    split = settings.max_split_bytes
    held = {
        "expandable_segments": settings.expandable or None,
        "max_split_size_mb": split // MIB if split < UNLIMITED else None,
        "garbage_collection_threshold": settings.gc_threshold or None,
        "per_process_memory_fraction": limit,
        "throw_on_cudamalloc_oom": settings.throw_on_oom or None,
    }
    options = {key: str(value) for key, value in held.items() if value is not None}
    facts = replace(table.facts_of({}, behaviour.torch, behaviour.build), options=options)
    found = (table.rule_findings(f"option:{k}", k, k, v, facts) for k, v in options.items())
    harm = [one for of in found for one in of if one.verdict in ("dangerous", "ineffective")]
    said = [f"{one.name}: {one.says} ({one.source})" for one in harm]
    if settings.expandable and not behaviour.expandable_safe:
        source = behaviour.source("expandable_safe")
        said.append(f"expandable_segments is not safe on this build: {source}")
    return tuple(said)


def parts(conf: str) -> list[tuple[str, str]]:
    """The options of a string, (key, value), as torch splits it: commas between, a colon before
    the value, no blanks.
    """
    pieces = re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", "".join(conf.split()))
    split = (piece.partition(":") for piece in pieces)
    return [(key, value) for key, _, value in split if key]


def from_environment(environ: Mapping[str, str], behaviour: Behaviour) -> tuple[str, str]:
    """The string that this build reads there, and the variable it comes from ("": none).

    A variable that is set wins even where it is empty. Keys that belong to the CUDA build alone
    may come from another variable than the common ones (measured, torch 2.14); the string given
    back then holds both. What becomes of the other variables, the audit says.
    """
    name = next((n for n in behaviour.conf_names if n in environ), "")
    own = next((n for n in behaviour.own_conf_names if n in environ), "")
    conf = environ.get(name, "")
    if name != own:
        alone = {key for key in behaviour.keys if not OPTIONS[key].shared}
        common = [f"{k}:{v}" for k, v in parts(conf) if k not in alone]
        added = [f"{k}:{v}" for k, v in parts(environ.get(own, "")) if k in alone]
        conf = ",".join(common + added)
    return conf, name


def memory_fraction(
    environ: Mapping[str, str], torch: str = "", build: str = ""
) -> tuple[float | None, str, str]:
    """The per_process_memory_fraction in force, the variable it comes from, and torch's refusal
    of the string, if any.

    An unknown release is taken for the newest known, an unknown build for the one that reads
    the key. A release that does not know the key, or refuses another part of the string, stops
    with an error: no limit holds there.
    """
    key = "per_process_memory_fraction"
    used = torch if release(torch) else ".".join(map(str, table.NEWEST))
    for kind in [build] if build[:4] in ("cuda", "rocm") else ["cuda", "rocm"]:
        rules = nearest(used, kind)
        text = Conf(from_environment(environ, rules)[0], rules)
        if text.error is not None or key in text.named:
            name = next((n for n in rules.names_for(key) if n in environ), "")
            share = None if text.error is not None else text.named[key]
            return share, name, str(text.error or "")
    return None, "", ""


def grid(behaviour: Behaviour) -> tuple[str, ...]:
    """The strings that a what-if tries by default on this build, the empty one first.

    All parse; none has a danger.

    A garbage collection threshold stands beside a memory fraction of 0.99, without which it
    does nothing.
    """
    usable = set(behaviour.keys)
    if not (behaviour.expandable_available and behaviour.expandable_safe):
        usable.discard("expandable_segments")
    return tuple(conf for conf in TRIED if {key for key, _ in parts(conf)} <= usable)


class Conf:
    """One string taken apart: ``named`` has the value of each key (sizes in bytes),
    ``divisions`` the sixteen of roundup.

    ``error`` is why this release stops there; what stands before it was taken all the same.
    ``large_bytes`` is the size of large segments that holds where the string names none.
    """

    def __init__(
        self, conf: str, behaviour: Behaviour, large_bytes: int = LARGE_SEGMENT_BYTES
    ) -> None:
        self.rules = behaviour
        self.error: SettingsError | None = None
        # The older parser drops blanks only, the one since 2.10 all white space.
        bare = "".join(conf.split()) if behaviour.unified_parser else conf.replace(" ", "")
        self.tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", bare)
        self.at = 0
        self.named: dict[str, Any] = {}
        self.divisions = [0] * INTERVALS
        self.smallest = large_bytes // MIB
        try:
            self._read(large_bytes)
        except SettingsError as error:
            self.error = error

    def _read(self, large_bytes: int) -> None:
        large = "large_segment_size_mb"
        if large in self.rules.keys:  # torch reads it first: the others may not be smaller
            for place in [at for at, token in enumerate(self.tokens, 1) if token == large]:
                self.at = place
                self._value(large)
            self.smallest = self.named.get(large, large_bytes) // MIB
        self.at = 0
        while self.at < len(self.tokens):
            key = self._token()
            if key not in self.rules.keys:
                raise self._refusal(f"unrecognized key {key!r}")
            self._value(key)
            if self.at < len(self.tokens):
                self._separator(",")

    def _refusal(self, why: str) -> SettingsError:
        return SettingsError(f"torch {self.rules.torch} refuses the settings: {why}")

    def _token(self, key: str = "a key") -> str:
        """The next token; ``key`` is whose value it belongs to."""
        self.at += 1
        if self.at > len(self.tokens):
            raise self._refusal(f"{key} has no value, or its list no end")
        return self.tokens[self.at - 1]

    def _separator(self, expected: str, key: str = "a key") -> None:
        sign = self._token(key)
        if sign != expected and not self.rules.unified_parser:
            raise self._refusal(f"expected {expected!r}, found {sign!r}")

    def _value(self, key: str) -> None:
        self._separator(":")
        text = self._token(key)
        kind = OPTIONS[key].kind
        if kind == "divisions":
            self._roundup(text)
            return
        value: Any = text
        wants = KINDS.get(kind, "")
        if kind == "flag":
            value = {"True": True, "False": False}.get(text)
        elif kind == "backend":
            known = wants.split(", ")[: 2 if self.rules.build == "cuda" else 3]
            value = text if text in known else None
            wants = "one of " + ", ".join(known)
        elif kind in ("share", "open share"):
            share = _real(text)
            inside = share is not None and (0 < share < 1 or (kind == "share" and share in (0, 1)))
            value = share if inside else None
        elif kind == "reserve" and (value := _reserve(text)) is None:
            return  # torch warns and keeps what it has
        elif kind in ("size", "number"):
            value = self._sized(key, self._whole(key, text))
        if value is None:
            raise self._refusal(f"{key} wants {wants}, found {text!r}")
        self.named[key] = value
        while kind == "list" and text == "[" and self._token() != "]":
            continue

    def _sized(self, key: str, value: int) -> int:
        least = OPTIONS[key].least
        if key in ("max_split_size_mb", "max_non_split_rounding_mb"):
            least = self.smallest + (not self.rules.max_split_minimum_inclusive)
        if value < least:
            raise self._refusal(f"{key} is too small: {value}, at least {least} is needed")
        if OPTIONS[key].kind == "number" and (not _power_of_two(value) or value > 128):
            raise self._refusal(f"{key} wants a power of two up to 128, found {value}")
        return min(min(value, WORD // MIB - 1) * MIB, UNLIMITED)

    def _whole(self, key: str, text: str, wide: bool = False) -> int:
        """strtoull's reading since 2.10, strtol's into an int before: a leading number counts,
        a minus sign wraps around.
        """
        match = re.match(r"\s*([+-]?[0-9]+)", text)
        wide = wide or self.rules.unified_parser
        low, high = (1 - WORD, WORD - 1) if wide else (-(1 << 31), (1 << 31) - 1)
        if not match or len(match[1]) > 40 or not low <= int(match[1]) <= high:
            raise self._refusal(f"{key} wants a whole number, found {text[:LONGEST]!r}")
        return int(match[1]) % WORD

    def _divisions(self, text: str, none: str = "") -> int:
        value = self._whole(ROUNDUP, text)
        if not _power_of_two(value) and not (none and value == 0):
            wants = f"divisions have to be a power of two{none}"
            raise self._refusal(f"{ROUNDUP}: {wants}, found {text!r}")
        # No size is above 512 times 2^50, so larger ones do the same.
        return -1 if value == 1 and not self.rules.one_division_rounds else min(value, 1 << 50)

    def _roundup(self, text: str) -> None:
        """The divisions of a number, or of a list of interval:number."""
        if text != "[":
            self.divisions = [self._divisions(text)] * INTERVALS
            return
        rest = self.tokens[self.at :]
        place = self.at
        if self.rules.unified_parser and "]" not in rest:
            raise self._refusal("a key has no value, or its list no end")
        first = True
        last = 0
        while self.at < len(self.tokens) and self.tokens[self.at] != "]":
            name = self._token()
            self._separator(":")
            value = self._divisions(self._token(ROUNDUP), none=" or 0")
            if name == ">":
                start = last if self.rules.above_fills_last_key else last + 1
                self.divisions[start:] = [value] * (INTERVALS - start)
            else:
                bound = self._whole(ROUNDUP, name, wide=True)
                if not _power_of_two(bound):
                    wants = "intervals have to be a power of two in MiB"
                    raise self._refusal(f"{ROUNDUP}: {wants}, found {name!r}")
                last = min(bound.bit_length() - 1, INTERVALS - 1)
                start = 0 if first else last
                self.divisions[start : last + 1] = [value] * (last + 1 - start)
                first = False
            if self.tokens[self.at : self.at + 1] != ["]"]:
                self._separator(",", ROUNDUP)
        if self.rules.unified_parser and self.at != place + rest.index("]"):
            raise self._refusal(f"{ROUNDUP}: its list has no end, or ends twice")
        self.at += 1


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _reserve(text: str) -> tuple[bool, float] | None:
    """parseReserveSpec's reading: (True, parts of the device's memory) or (False, GiB); None
    where it warns.
    """
    number = text[:-1] if text[-1:] in ("G", "g") else text
    whole = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", number)
    value = float(number) if whole else 0.0
    return (number == text, value) if 0 < value < float("inf") else None


def _real(text: str) -> float | None:
    """strtod's reading of a leading number; None where there is none."""
    match = re.match(r"\s*[+-]?0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*(?:[pP][+-]?[0-9]+)?", text[:400])
    if match:
        return float.fromhex(match[0].strip().rstrip(".xX") or "0")
    match = re.match(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", text)
    return float(match[0]) if match else None
