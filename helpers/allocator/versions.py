"""How does the caching allocator of one torch release and build behave, where releases differ?

One row of ``CHANGES`` is one difference, the release that brought it, and where that was seen: a pull request, a file of the
source, or "measured" (torch's own compiled allocator behind a stand-in for the GPU runtime, the releases named).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OLDEST, NEWEST = (2, 4), (2, 15)
CHECKED = ((2, 6), (2, 11), (2, 13), (2, 14))
"""Releases whose compiled allocator (CUDA build) was compared with what is said here."""

CUDA, HIP, PLAIN = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
NO_CUDA_CACHING, NO_HIP_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"
HEADER = "c10/cuda/CUDAAllocatorConfig.h"

COMMON_KEYS = frozenset({
    "max_split_size_mb", "max_non_split_rounding_mb", "garbage_collection_threshold", "roundup_power2_divisions",
    "expandable_segments", "large_segment_size_mb", "pinned_use_background_threads", "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb"})
"""Keys of the part of the parser that all accelerators share since 2.10; the rest are the CUDA and ROCm builds' own."""


class VersionError(ValueError):
    """The release or the build is not one that can be replayed; one line."""


@dataclass(frozen=True)
class Behaviour:
    """What one build of torch does. Each field's source stands in ``sources`` under the field's name.

    ``order``: what decides between free blocks of one stream and size: the lower ``address``, the ``block`` made first, or
    the ``segment`` made first and then the lower address. ``unified_parser``: the settings parser that all accelerators
    share: 64-bit numbers, separators taken on trust. ``above_fills_last_key``: ``>:K`` in a list of roundup divisions also
    overwrites the last key before it. ``fraction_rounds``: a memory limit is rounded to whole bytes, not cut.
    ``conf_names``: environment variables with the settings, the winner first; ``own_conf_names``: the same for the keys
    outside COMMON_KEYS. ``no_caching_values``: values of ``no_caching_names`` that switch the cache off; empty: any value,
    even an empty one. ``expandable_safe``: no loss of data, hang or crash is reported for it on this build. ``proved``:
    ``oracle`` where the compiled allocator was checked, else ``source``. ``note``: what a reader must know.
    """

    torch: str
    release: tuple[int, int]
    build: str
    order: str
    keys: frozenset[str]
    unified_parser: bool
    max_split_minimum_inclusive: bool
    above_fills_last_key: bool
    non_split_rounding: bool
    large_segment_size: bool
    per_process_memory_fraction: bool
    throw_on_oom: bool
    fraction_one_is_unlimited: bool
    fraction_rounds: bool
    oversize_release_skips_expandable: bool
    conf_names: tuple[str, ...]
    own_conf_names: tuple[str, ...]
    no_caching_names: tuple[str, ...]
    no_caching_values: tuple[str, ...]
    expandable_available: bool
    expandable_safe: bool
    proved: str
    note: str
    sources: tuple[tuple[str, str], ...]

    def source(self, field: str) -> str:
        """Where the value of ``field`` was read or measured; empty for what follows from the version itself."""
        return dict(self.sources).get(field, "")

    def caching_disabled_by(self, environ: Mapping[str, str]) -> str:
        """The variable that switches the cache off ("" if none): each tensor is then a raw allocation, counted nowhere."""
        for name in self.no_caching_names:
            value = environ.get(name)
            if value is not None and (not self.no_caching_values or value in self.no_caching_values):
                return name
        return ""


@dataclass(frozen=True)
class Change:
    """From release ``since`` on, ``field`` has ``value`` (``keys``: these are added); ``build``: only there ("": both)."""

    since: tuple[int, int]
    field: str
    value: Any
    source: str
    build: str = ""


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


CHANGES: tuple[Change, ...] = (
    Change((2, 4), "order", "address", "measured 2.6, 2.11; c10/cuda/CUDACachingAllocator.cpp"),
    Change((2, 12), "order", "block", "pytorch#178362; measured 2.12.1"),
    Change((2, 13), "order", "segment", "pytorch#183591; measured 2.13, 2.14, 2.15"),
    Change((2, 4), "keys", _keys(
        "max_split_size_mb garbage_collection_threshold roundup_power2_divisions expandable_segments backend "
        "release_lock_on_cudamalloc release_lock_on_hipmalloc pinned_use_cuda_host_register pinned_use_hip_host_register "
        "pinned_num_register_threads"), "c10/cuda/CUDAAllocatorConfig.cpp"),
    Change((2, 6), "keys", _keys("max_non_split_rounding_mb pinned_use_background_threads"), "pytorch#136174; measured 2.6"),
    Change((2, 9), "keys", _keys("graph_capture_record_stream_reuse"), "c10/cuda/CUDAAllocatorConfig.cpp, 2.9"),
    Change((2, 10), "keys", _keys("per_process_memory_fraction pinned_reserve_segment_size_mb"), "pytorch#161035"),
    Change((2, 11), "keys", _keys("large_segment_size_mb"), "pytorch#172056; measured 2.11"),
    Change((2, 13), "keys", _keys("throw_on_cudamalloc_oom pinned_max_round_threshold_mb pinned_max_cached_size_mb "
                                  "pinned_free_catch_all"), "pytorch#179473; measured 2.13 (2.11 refuses them)"),
    Change((2, 15), "keys", _keys("expandable_segments_reserve expandable_segments_reserve_by_class"), "pytorch#192269"),
    Change((2, 4), "unified_parser", False, "c10/cuda/CUDAAllocatorConfig.cpp; measured 2.6"),
    Change((2, 10), "unified_parser", True, "c10/core/AllocatorConfig.cpp; measured 2.11, 2.13, 2.14"),
    Change((2, 4), "max_split_minimum_inclusive", False, "measured 2.6: must be > 20"),
    Change((2, 10), "max_split_minimum_inclusive", True, "c10/core/AllocatorConfig.cpp; measured 2.11, 2.13, 2.14: >= 20"),
    Change((2, 4), "above_fills_last_key", True, "c10/cuda/CUDAAllocatorConfig.cpp; measured 2.6"),
    Change((2, 10), "above_fills_last_key", False, "c10/core/AllocatorConfig.cpp; measured 2.11, 2.13, 2.14"),
    Change((2, 4), "non_split_rounding", False, "a constant of 20 MiB before the key"),
    Change((2, 6), "non_split_rounding", True, "pytorch#136174; measured 2.6"),
    Change((2, 4), "large_segment_size", False, "a constant of 20 MiB before the key"),
    Change((2, 11), "large_segment_size", True, "pytorch#172056; measured 2.11, 2.13, 2.14"),
    Change((2, 4), "per_process_memory_fraction", False, "measured 2.6"),
    Change((2, 10), "per_process_memory_fraction", True, "pytorch#161035; measured 2.11, 2.13, 2.14"),
    Change((2, 4), "throw_on_oom", False, "measured 2.6, 2.11"),
    Change((2, 13), "throw_on_oom", True, "pytorch#179473; measured 2.13, 2.14"),
    Change((2, 4), "fraction_one_is_unlimited", False, "measured 2.6"),
    Change((2, 10), "fraction_one_is_unlimited", True, "setMemoryFraction in the source of 2.10; measured 2.11, 2.13, 2.14"),
    Change((2, 4), "fraction_rounds", False, "measured 2.6, 2.11: fraction * total is cut to whole bytes"),
    Change((2, 13), "fraction_rounds", True, "measured 2.13, 2.14: it is rounded to the nearest byte"),
    Change((2, 4), "oversize_release_skips_expandable", False, "pytorch#123548"),
    Change((2, 5), "oversize_release_skips_expandable", True, "pytorch#134338"),
    Change((2, 4), "conf_names", (CUDA,), f"{HEADER}; measured 2.6", "cuda"),
    Change((2, 10), "conf_names", (CUDA, HIP, PLAIN), "c10/core/AllocatorConfig.cpp; measured 2.11 to 2.15", "cuda"),
    Change((2, 4), "conf_names", (HIP,), "torch/utils/hipify/cuda_to_hip_mappings.py renames the variable", "rocm"),
    Change((2, 7), "conf_names", (CUDA, HIP), f"{HEADER} (USE_ROCM)", "rocm"),
    Change((2, 10), "conf_names", (CUDA, HIP, PLAIN), "c10/core/AllocatorConfig.cpp", "rocm"),
    Change((2, 4), "own_conf_names", (CUDA,), f"{HEADER}; measured 2.6", "cuda"),
    Change((2, 10), "own_conf_names", (CUDA, PLAIN), f"{HEADER}; measured 2.14", "cuda"),
    Change((2, 4), "own_conf_names", (HIP,), "torch/utils/hipify/cuda_to_hip_mappings.py renames the variable", "rocm"),
    Change((2, 7), "own_conf_names", (CUDA, HIP), f"{HEADER} (USE_ROCM)", "rocm"),
    Change((2, 10), "own_conf_names", (CUDA, HIP, PLAIN), f"{HEADER} (USE_ROCM)", "rocm"),
    Change((2, 4), "no_caching_names", (NO_CUDA_CACHING,), "c10/cuda/CUDACachingAllocator.cpp", "cuda"),
    Change((2, 4), "no_caching_names", (NO_HIP_CACHING,), "renamed by hipify; not checked", "rocm"),
    Change((2, 6), "no_caching_names", (NO_CUDA_CACHING, NO_HIP_CACHING), "measured 2.6, 2.14"),
    Change((2, 4), "no_caching_values", (), "pytorch#145661; measured 2.6"),
    Change((2, 7), "no_caching_values", ("1",), "pytorch#145905; measured 2.11, 2.13, 2.14"),
    Change((2, 4), "expandable_available", True, "measured 2.6, 2.11, 2.14", "cuda"),
    Change((2, 4), "expandable_available", False, "a warning and nothing else through 2.11; pytorch#173330", "rocm"),
    Change((2, 12), "expandable_available", True, "pytorch#177974, #179930: builds for ROCm 7.0 and later", "rocm"),
    Change((2, 4), "expandable_safe", True, "no report known", "cuda"),
    Change((2, 4), "expandable_safe", False, "ROCm/legacy-rocm-build#6603 (data in use set to zero, max_split_size_mb beside "
           "it, ROCm 7.14), pytorch#192259 (hang), pytorch#187343 (crash)", "rocm"),
)


def behaviour(torch: str = "2.14.1", build: str = "cuda") -> Behaviour:
    """How the allocator of this release and build behaves.

    ``torch`` is a version as it prints itself ("2.9.0+rocm6.4", "2.8.0a0+git1234"); ``build`` is "cuda", or "rocm" with
    ROCm's version ("rocm7.2"); a "+rocm" in ``torch`` counts too. A release newer than is known runs as the newest known and
    says so in ``note``. Raises VersionError for what is older than 2.4 or cannot be read.
    """
    match = re.match(r"\s*v?(\d+)\.(\d+)", torch)
    if not match:
        raise VersionError(f"torch version {torch!r} cannot be read: expected something like 2.14.1 or 2.9.0+rocm6.4")
    release = (int(match[1]), int(match[2]))
    if release < OLDEST:
        raise VersionError(f"torch {torch} is older than 2.4, the oldest allocator known here: record with a newer torch")
    local = re.search(r"\+(rocm[0-9.]*)", torch)
    if build == "cuda" and local:
        build = local[1].rstrip(".")
    rocm = re.fullmatch(r"rocm(?:(\d+)(?:\.(\d+))?[0-9.]*)?", build)
    if not rocm and build != "cuda":
        raise VersionError(f"build {build!r} is not known: expected cuda, or rocm with its version such as rocm7.2")
    kind, used = build[:4], min(release, NEWEST)
    values: dict[str, Any] = {"keys": frozenset()}
    sources: dict[str, str] = {}
    for change in CHANGES:
        if change.since <= used and change.build in ("", kind):
            if change.field == "keys":
                values["keys"] |= change.value
                sources["keys"] = "; ".join(filter(None, (sources.get("keys"), change.source)))
            else:
                values[change.field], sources[change.field] = change.value, change.source
    notes = []
    if release > NEWEST:
        notes.append(f"torch {torch} is newer than {_text(NEWEST)}, the newest known here: it is run as {_text(NEWEST)}")
    if used == (2, 12):
        notes.append("which of the keys that 2.11 refuses and 2.13 takes 2.12 knows was not checked: here it refuses them")
    if rocm:
        notes.append("the ROCm build shares this source; it was not proved on a HIP build")
        if rocm[1] is None:
            notes.append("ROCm's version is not given: 7.0 or later is assumed where it matters")
        elif int(rocm[1]) < 7 and values["expandable_available"]:
            values["expandable_available"] = False
            sources["expandable_available"] = f"{HEADER}: off where built for ROCm before 7.0 (pytorch#179930)"
    proved = "oracle" if kind == "cuda" and release in CHECKED else "source"
    return Behaviour(torch=torch, release=used, build=build, proved=proved, note="; ".join(notes),
                     sources=tuple(sorted(sources.items())), **values)


def _text(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
