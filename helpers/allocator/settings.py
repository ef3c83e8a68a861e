"""Which settings hold under a PYTORCH_CUDA_ALLOC_CONF string, how sizes round under them, and which strings are worth a try."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from helpers.allocator.conf import INTERVALS, LARGE_SEGMENT_BYTES, MIB, UNLIMITED, Conf, SettingsError
from helpers.allocator.versions import COMMON_KEYS, CUDA, HIP, PLAIN, Behaviour

MIN_BLOCK_BYTES, SMALL_MAX_BYTES, MIN_LARGE_BYTES = 512, MIB, 10 * MIB
SMALL_SEGMENT_BYTES, LARGE_STEP_BYTES = 2 * MIB, 2 * MIB
NO_EFFECT = (
    ("release_lock", "changes a lock, not memory"),
    ("pinned_", "is about pinned host memory only"),
    ("graph_capture_record_stream_reuse", "counts only while a CUDA graph is captured, which a replay does not model"),
    ("expandable_segments_reserve", "sizes the address range only; that a request larger than it fails is not modelled"),
    ("backend", "is already native"),
)


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
        raise SettingsError(f"backend:{named['backend']} is another allocator, without segments: it cannot be replayed")
    large = named.get("large_segment_size_mb", before.large_segment_bytes)
    kept = large if behaviour.large_segment_size else before.non_split_rounding_bytes
    fraction = named.get("per_process_memory_fraction", before.fraction)
    limit = before.fraction if previous else fraction
    expandable = named.get("expandable_segments", before.expandable)
    ignored = [f"{key} {says}" for key in named for start, says in NO_EFFECT if key.startswith(start)]
    if expandable and not behaviour.expandable_available:
        expandable = False
        ignored.append("expandable_segments: this build warns that the platform does not support it and goes on without")
    max_split = named.get("max_split_size_mb", UNLIMITED)
    if "max_non_split_rounding_mb" in named and max_split == UNLIMITED:
        ignored.append("max_non_split_rounding_mb does nothing without max_split_size_mb")
    if previous and "per_process_memory_fraction" in named:
        ignored.append("per_process_memory_fraction at run time leaves the limit alone; only throw_on_cudamalloc_oom sees it")
    settings = Settings(
        conf, max_split, named.get("max_non_split_rounding_mb", kept), tuple(text.divisions),
        named.get("garbage_collection_threshold", 0.0), expandable, large,
        named.get("throw_on_cudamalloc_oom", before.throw_on_oom), fraction, "native", tuple(ignored))
    settings = replace(settings, warnings=tuple(_dangers(settings, behaviour, limit)))
    if text.error is not None:
        text.error.left = settings
        raise text.error
    return settings


def _dangers(settings: Settings, behaviour: Behaviour, limit: float | None) -> list[str]:
    found = []
    if settings.expandable and settings.max_split_bytes < UNLIMITED:
        found.append("expandable_segments with max_split_size_mb: free regions above that size are never used again, and "
                     "reserved memory grows without bound (pytorch#123548)")
        if not behaviour.oversize_release_skips_expandable:
            found.append("expandable_segments with max_split_size_mb: this release can stop at an internal assertion "
                         "(pytorch#123548)")
    if settings.expandable and not behaviour.expandable_safe:
        found.append(f"expandable_segments is not safe on this build: {behaviour.source('expandable_safe')}")
    if settings.gc_threshold and (limit is None or (limit >= 1 and behaviour.fraction_one_is_unlimited)):
        found.append("garbage_collection_threshold does nothing without a memory fraction"
                     + (" below 1" if behaviour.fraction_one_is_unlimited else ""))
    if settings.throw_on_oom:
        found.append("throw_on_cudamalloc_oom refuses before the cache is flushed, also what a flush would have made room for")
    return found


def from_environment(environ: Mapping[str, str], behaviour: Behaviour) -> tuple[str, str, tuple[str, ...]]:
    """The string that this build reads there, the variable it comes from ("": none), and what is to be said about the others.

    A variable that is set wins even where it is empty. Keys that belong to the CUDA build alone may come from another variable
    than the common ones (measured, torch 2.14); the string given back then holds both.
    """
    name = next((n for n in behaviour.conf_names if n in environ), "")
    own = next((n for n in behaviour.own_conf_names if n in environ), "")
    conf = environ.get(name, "")
    notes = [f"{n} is not read by this build" for n in (CUDA, HIP, PLAIN) if n in environ and n not in behaviour.conf_names]
    others = behaviour.keys - COMMON_KEYS
    if name != own:
        parts = _parts(conf)
        dropped = [part for part in parts if part.partition(":")[0] in others]
        added = [part for part in _parts(environ.get(own, "")) if part.partition(":")[0] in others]
        conf = ",".join([part for part in parts if part not in dropped] + added)
        notes += [f"{part} in {name} is passed over by this build" for part in dropped]
        notes += [f"{part} is taken from {own} beside {name}" for part in added]
    notes += [f"{n} is set and hidden by {name}" for n in behaviour.conf_names if n in environ and n not in (name, own)]
    if off := behaviour.caching_disabled_by(environ):
        notes.append(f"{off} switches the cache off: no setting counts")
    return conf, name, tuple(notes)


def _parts(conf: str) -> list[str]:
    return [part.strip() for part in re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", "".join(conf.split()))]


def grid(behaviour: Behaviour) -> tuple[str, ...]:
    """The strings that a what-if tries by default on this build, the empty one first. All parse; none has a danger.

    A garbage collection threshold stands beside a memory fraction of 0.99, without which it does nothing.
    """
    has = behaviour.keys.__contains__
    gc = "per_process_memory_fraction:0.99,garbage_collection_threshold:{}"
    lists = ("[256:1,512:2,1024:4,>:8]", "[64:8,128:4,256:2,>:1]", "[32:4,>:1]", "[512:4,>:1]")
    confs = [""]
    confs += [f"max_split_size_mb:{mib}" for mib in (21, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)]
    confs += [f"roundup_power2_divisions:{divisions}" for divisions in (2, 4, 8, 16, 32, *lists)]
    if has("per_process_memory_fraction"):
        confs += [gc.format(threshold) for threshold in (0.5, 0.6, 0.7, 0.8, 0.9)]
        confs += [f"{gc.format(0.8)},max_split_size_mb:{mib}" for mib in (128, 512)]
    if has("large_segment_size_mb"):
        confs += [f"large_segment_size_mb:{mib}" for mib in (12, 16, 24, 32, 48, 64, 128)]
        confs += [f"large_segment_size_mb:{mib},max_split_size_mb:256" for mib in (32, 64)]
        confs += [f"large_segment_size_mb:32,roundup_power2_divisions:{divisions}" for divisions in (4, 8)]
    if has("max_non_split_rounding_mb"):
        confs += [f"max_split_size_mb:{split},max_non_split_rounding_mb:{rounding}"
                  for split, rounding in ((64, 64), (128, 64), (128, 128), (256, 128), (512, 256))]
    confs += [f"max_split_size_mb:{split},roundup_power2_divisions:{divisions}"
              for split in (64, 128, 256, 512) for divisions in (4, 8, 16)]
    if behaviour.expandable_available and behaviour.expandable_safe:
        on = "expandable_segments:True"
        confs += [on, *(f"{on},roundup_power2_divisions:{divisions}" for divisions in (4, 8, 16))]
        confs += [f"{on},large_segment_size_mb:{mib}" for mib in (32, 64) if has("large_segment_size_mb")]
        confs += [f"{on},{gc.format(0.8)}"] if has("per_process_memory_fraction") else []
    return tuple(confs)
