"""What does a string such as "max_split_size_mb:128,expandable_segments:True" mean? Read as torch reads it, by release.

What is taken and what is refused was compared with torch's compiled allocator, 2.6, 2.11, 2.13 and 2.14
(tests/samples/allocator_settings.json).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from helpers.settings.releases import NEWEST, Behaviour, nearest
from helpers.settings.rules import facts_of, ruled
from helpers.settings.table import CONF_NAMES, OPTIONS, SAYS, TRIED, release

MIB = 1 << 20
UNLIMITED = 1 << 62
"""Bytes that stand for "no limit"; larger figures of a string are cut to it."""
LARGE_SEGMENT_BYTES = 20 * MIB
INTERVALS = 16
WORD = 1 << 64
MIN_BLOCK_BYTES, SMALL_MAX_BYTES, MIN_LARGE_BYTES = 512, MIB, 10 * MIB
SMALL_SEGMENT_BYTES, LARGE_STEP_BYTES = 2 * MIB, 2 * MIB


class SettingsError(ValueError):
    """torch refuses this string, or it chooses an allocator that cannot be replayed; one line.

    ``left`` is what holds after a refusal at run time (a Settings), or None where nothing changed.
    """

    left: Any = None


@dataclass(frozen=True)
class Settings:
    """What holds under one string. ``fraction``: what the key says (None: not named); it limits memory from the start only.

    ``roundup_divisions``: entry k for sizes of [2^k, 2^(k+1)) MiB; the first also holds below that, the last above; 0, 1: none.
    ``ignored``: what was named without effect on bytes, a sentence each; ``warnings``: dangers, a sentence each.
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
    backend: str = "native"
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def round_size(self, n: int) -> int:
        """Bytes of the block for a request of ``n`` bytes (n > 0): to 512 B, or to a division of its power of two."""
        if n < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        divisions = self.roundup_divisions[min(max(n.bit_length() - 21, 0), INTERVALS - 1)]
        if divisions > 1 and n > MIN_BLOCK_BYTES * divisions:
            if n & (n - 1) == 0:
                return n
            step = 1 << (n.bit_length() - divisions.bit_length())
            return -(-n // step) * step
        return -(-n // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES

    def segment_size(self, rounded: int) -> int:
        """Bytes of the segment that is made for a rounded size where no cached block serves."""
        if rounded <= SMALL_MAX_BYTES:
            return SMALL_SEGMENT_BYTES
        if rounded < MIN_LARGE_BYTES:
            return self.large_segment_bytes
        return -(-rounded // LARGE_STEP_BYTES) * LARGE_STEP_BYTES


def parse(conf: str, behaviour: Behaviour, previous: Settings | None = None) -> Settings:
    """The settings that a string makes. With ``previous`` it is set again at run time, over what held before.

    Raises SettingsError, in one line, where this release stops with an error; its ``left`` is what then holds at run time: the
    keys before the one at fault, the rest as if unnamed (measured, torch 2.6 to 2.14).
    """
    before = previous or Settings()
    text = Conf(conf, behaviour, before.large_segment_bytes)
    named = text.named
    if named.get("backend", "native") != "native":
        raise SettingsError(SAYS["other_allocator"].format(backend=named["backend"]))
    large = named.get("large_segment_size_mb", before.large_segment_bytes)
    sized = "large_segment_size_mb" in behaviour.keys
    fraction = named.get("per_process_memory_fraction", before.fraction)
    wanted = named.get("expandable_segments", before.expandable)
    max_split = named.get("max_split_size_mb", UNLIMITED)
    ignored = [f"{key} {OPTIONS[key].inert}" for key in named if OPTIONS[key].inert]
    if wanted and not behaviour.expandable_available:
        ignored.append(SAYS["no_expandable"])
    if "max_non_split_rounding_mb" in named and max_split == UNLIMITED:
        ignored.append(SAYS["no_split"])
    if previous and "per_process_memory_fraction" in named:
        ignored.append(SAYS["fraction_later"])
    kept = large if sized else before.non_split_rounding_bytes
    settings = Settings(
        conf=conf,
        max_split_bytes=max_split,
        non_split_rounding_bytes=named.get("max_non_split_rounding_mb", kept),
        roundup_divisions=tuple(text.divisions),
        gc_threshold=named.get("garbage_collection_threshold", 0.0),
        expandable=wanted and behaviour.expandable_available,
        large_segment_bytes=large,
        throw_on_oom=named.get("throw_on_cudamalloc_oom", before.throw_on_oom),
        fraction=fraction,
        ignored=tuple(ignored),
    )
    limit = before.fraction if previous else fraction
    settings = replace(settings, warnings=_dangers(settings, behaviour, limit))
    if text.error is not None:
        text.error.left = settings
        raise text.error
    return settings


def _dangers(settings: Settings, behaviour: Behaviour, limit: float | None) -> tuple[str, ...]:
    """The rules that hold for options in force which do harm, or nothing."""
    split = settings.max_split_bytes
    held = {
        "expandable_segments": "True" if settings.expandable else "",
        "max_split_size_mb": str(split // MIB) if split < UNLIMITED else "",
        "garbage_collection_threshold": str(settings.gc_threshold or ""),
        "per_process_memory_fraction": "" if limit is None else str(limit),
        "throw_on_cudamalloc_oom": "True" if settings.throw_on_oom else "",
    }
    held = {key: value for key, value in held.items() if value}
    facts = replace(facts_of({}, behaviour.torch, behaviour.build), options=held)
    found = [one for k, v in held.items() for one in ruled(f"option:{k}", k, k, v, facts)]
    harm = [one for one in found if one.verdict in ("dangerous", "ineffective")]
    said = [f"{one.name}: {one.says} ({one.source})" for one in harm]
    if settings.expandable and not behaviour.expandable_safe:
        source = behaviour.source("expandable_safe")
        said.append(f"expandable_segments is not safe on this build: {source}")
    return tuple(said)


def parts(conf: str) -> list[tuple[str, str]]:
    """The options of a string, (key, value), as torch splits it: commas between, a colon before the value, no blanks."""
    pieces = re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", "".join(conf.split()))
    split = (piece.partition(":") for piece in pieces)
    return [(key, value) for key, _, value in split if key]


def from_environment(
    environ: Mapping[str, str], behaviour: Behaviour
) -> tuple[str, str, tuple[str, ...]]:
    """The string that this build reads there, the variable it comes from ("": none), and what is to be said about the others.

    A variable that is set wins even where it is empty. Keys that belong to the CUDA build alone may come from another variable
    than the common ones (measured, torch 2.14); the string given back then holds both.
    """
    name = next((n for n in behaviour.conf_names if n in environ), "")
    own = next((n for n in behaviour.own_conf_names if n in environ), "")
    conf = environ.get(name, "")
    unread = [n for n in CONF_NAMES if n in environ and n not in behaviour.conf_names]
    notes = [f"{n} is not read by this build" for n in unread]
    if name != own:
        alone = {key for key in behaviour.keys if not OPTIONS[key].shared}
        dropped = [f"{k}:{v}" for k, v in parts(conf) if k in alone]
        kept = [f"{k}:{v}" for k, v in parts(conf) if k not in alone]
        added = [f"{k}:{v}" for k, v in parts(environ.get(own, "")) if k in alone]
        conf = ",".join(kept + added)
        notes += [f"{part} in {name} is passed over by this build" for part in dropped]
        notes += [f"{part} is taken from {own} beside {name}" for part in added]
    for hidden in (n for n in behaviour.conf_names if n in environ and n not in (name, own)):
        notes.append(f"{hidden} is set and hidden by {name}")
    off = behaviour.caching_disabled_by(environ)
    notes += [f"{off} switches the cache off: no setting counts"] if off else []
    return conf, name, tuple(notes)


def memory_fraction(
    environ: Mapping[str, str], torch: str = "", build: str = ""
) -> tuple[float | None, str, str]:
    """The per_process_memory_fraction in force, the variable it comes from, and why there is none where one is set.

    An unknown release is taken for the newest known, an unknown build for the one that reads the key. A release that does
    not know the key, or refuses another part of the string, stops with an error: no limit holds there.
    """
    key, why = "per_process_memory_fraction", ""
    used = torch if release(torch) else ".".join(map(str, NEWEST))
    for kind in [build] if build[:4] in ("cuda", "rocm") else ["cuda", "rocm"]:
        rules = nearest(used, kind)
        name = next((n for n in rules.names_for(key) if n in environ), "")
        text = Conf(from_environment(environ, rules)[0], rules)
        if text.error is not None:
            return None, name, str(text.error)
        if key in text.named:
            return text.named[key], name, ""
        named = [n for n in CONF_NAMES if key in dict(parts(environ.get(n, "")))]
        why = f"this build does not take {key} from {named[0]} here" if named else ""
    return None, "", why


def grid(behaviour: Behaviour) -> tuple[str, ...]:
    """The strings that a what-if tries by default on this build, the empty one first. All parse; none has a danger.

    A garbage collection threshold stands beside a memory fraction of 0.99, without which it does nothing.
    """
    usable = set(behaviour.keys)
    if not (behaviour.expandable_available and behaviour.expandable_safe):
        usable.discard("expandable_segments")
    return tuple(conf for conf in TRIED if {key for key, _ in parts(conf)} <= usable)


class Conf:
    """One string taken apart: ``named`` has the value of each key (sizes in bytes), ``divisions`` the sixteen of roundup.

    ``error`` is why this release stops there; what stands before it was taken all the same. ``large_bytes`` is the size of
    large segments that holds where the string names none.
    """

    def __init__(
        self, conf: str, behaviour: Behaviour, large_bytes: int = LARGE_SEGMENT_BYTES
    ) -> None:
        self.rules = behaviour
        self.error: SettingsError | None = None
        # The older parser drops blanks only, the one since 2.10 all white space.
        bare = "".join(conf.split()) if behaviour.unified_parser else conf.replace(" ", "")
        self.tokens = re.findall(r"[,:\[\]]|[^,:\[\]]+", bare)
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
            for at, token in enumerate(self.tokens):
                if token == large:
                    self._value(at, token)
            self.smallest = self.named.get(large, large_bytes) // MIB
        at = 0
        while at < len(self.tokens):
            key = self.tokens[at]
            if key not in self.rules.keys:
                raise self._refuse(f"unrecognized key {key!r}")
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
        text, kind = self._token(at, key), OPTIONS[key].kind
        if kind == "divisions":
            return self._roundup(at)
        if kind == "list":
            self.named[key] = text
            return self._list_end(at)
        if kind == "flag":
            if text not in ("True", "False"):
                raise self._refuse(f"{key} wants True or False, found {text!r}")
            self.named[key] = text == "True"
        elif kind == "backend":
            hip = () if self.rules.build == "cuda" else ("hipMallocAsync",)
            known = ("native", "cudaMallocAsync", *hip)
            if text not in known:
                options = ", ".join(known)
                raise self._refuse(f"unknown allocator backend {text!r}: options are {options}")
            self.named[key] = text
        elif kind in ("share", "open share"):
            value, closed = _real(text), kind == "share"
            if value is None or not (0 < value < 1 or (closed and value in (0, 1))):
                range_ = "from 0 to 1" if closed else "between 0 and 1"
                raise self._refuse(f"{key} wants a number {range_}, found {text!r}")
            self.named[key] = value
        elif kind == "text":
            self.named[key] = text  # torch warns of a bad value and keeps its default
        else:
            self.named[key] = self._sized(key, self._whole(key, text))
        return at

    def _sized(self, key: str, value: int) -> int:
        least = OPTIONS[key].least
        if key in ("max_split_size_mb", "max_non_split_rounding_mb"):
            least = self.smallest + (not self.rules.max_split_minimum_inclusive)
        if value < least:
            raise self._refuse(f"{key} is too small: {value}, at least {least} is needed")
        if OPTIONS[key].kind == "number" and (not _power_of_two(value) or value > 128):
            raise self._refuse(f"{key} wants a power of two up to 128, found {value}")
        return min(min(value, WORD // MIB - 1) * MIB, UNLIMITED)

    def _whole(self, key: str, text: str, wide: bool = False) -> int:
        """strtoull's reading since 2.10, strtol's into an int before: a leading number counts, a minus sign wraps around."""
        match = re.match(r"\s*([+-]?[0-9]+)", text)
        wide = wide or self.rules.unified_parser
        low, high = (1 - WORD, WORD - 1) if wide else (-(1 << 31), (1 << 31) - 1)
        if not match or len(match[1]) > 40 or not low <= int(match[1]) <= high:
            raise self._refuse(f"{key} wants a whole number, found {text[:80]!r}")
        return int(match[1]) % WORD

    def _list_end(self, at: int) -> int:
        if self.tokens[at] != "[":
            return at
        while self._token(at, "a key") != "]":
            at += 1
        return at

    def _divisions(self, key: str, text: str, none: bool = False) -> int:
        value = self._whole(key, text)
        if not (_power_of_two(value) or (none and value == 0)):
            or_none = " or 0" if none else ""
            wants = f"divisions have to be a power of two{or_none}"
            raise self._refuse(f"{key}: {wants}, found {text!r}")
        return min(value, 1 << 50)  # no size is above 512 times that, so larger ones do the same

    def _roundup(self, at: int) -> int:
        key = "roundup_power2_divisions"
        if self.tokens[at] != "[":
            self.divisions = [self._divisions(key, self.tokens[at])] * INTERVALS
            return at
        end = self._list_end(at) if self.rules.unified_parser else -1
        first, last = True, 0
        at += 1
        while at < len(self.tokens) and self.tokens[at] != "]":
            name = self.tokens[at]
            self._separator(at + 1, ":")
            value = self._divisions(key, self._token(at + 2, key), none=True)
            if name == ">":
                start = last if self.rules.above_fills_last_key else last + 1
                self.divisions[start:] = [value] * (INTERVALS - start)
            else:
                bound = self._whole(key, name, wide=True)
                if not _power_of_two(bound):
                    wants = "intervals have to be a power of two in MiB"
                    raise self._refuse(f"{key}: {wants}, found {name!r}")
                last = min(bound.bit_length() - 1, INTERVALS - 1)
                if first:
                    self.divisions[:last] = [value] * last
                self.divisions[last], first = value, False
            at += 3
            if self._token(at, key) != "]":
                self._separator(at, ",")
                at += 1
        if self.rules.unified_parser and at != end:
            raise self._refuse(f"{key}: its list has no end, or ends twice")
        return at


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _real(text: str) -> float | None:
    """strtod's reading of a leading number; None where there is none."""
    match = re.match(r"\s*[+-]?0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*(?:[pP][+-]?[0-9]+)?", text[:400])
    if match:
        return float.fromhex(match[0].strip().rstrip(".xX") or "0")
    match = re.match(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", text)
    return float(match[0]) if match else None
