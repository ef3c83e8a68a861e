"""Which ceiling binds, by pages_limit, GTT, carve-out, KFD bank and total.

Pure.

The same total has several causes, so no one number decides. Which of carve-out and TTM the pool is
goes by the kernel: the carve-out alone before Linux 6.10; TTM's limit, even where the carve-out is
larger, until 6.14 (89773b85599a); from 6.15 on TTM's limit where the GTT is larger than the
carve-out, else the carve-out (759e764f7d58; amd-gfx, 2025-01-30).

Each group of readings has one function below, asked in the order of ``decide``; a function without
an answer leaves the question to the next. ceiling_answers.json has the words, the cause, the next
step and the source of each answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from helpers.ground.shapes import Confidence
from helpers.ground.units import GIB, MIB, near, show_bytes
from helpers.judge import table
from helpers.judge.numbers import (
    GTT_AS_VRAM,
    GTT_IF_LARGER,
    Decision,
    Numbers,
    kfd_limit,
)
from helpers.look.parts import APU, CARD, UNIFIED, UNKNOWN, is_card_size
from helpers.look.relations import HALF_SHARE, INSTALLED_SHARE

FAR = 1.3
"""A layer this much above another is no rounding, and no share that firmware keeps."""
CACHE_TIMES = 1.5
CACHE_BYTES = 2 * GIB
"""Of one memory, what is available beyond what counts as free is page cache where it is so many
times the free memory and more than this, which any running system has: estimates.
"""
FRACTION_OF_A_PAGE_LIMIT = 0.0001
"""A configured pages_limit and the live one differ by less: bytes are rounded down to pages."""
PRINTED_SHARE = 0.005
RETOLD_SHARE = 0.05
"""By what share a total and a carve-out may differ and be one: printed, or retold as "96 GB"."""
RAM_TIMES = 3
"""A total that is far below the RAM even this many times is surely no half of it."""
SMALL_CARVE_OUT = 4
"""A carve-out is not what programs use where the RAM or GTT is so many times as large."""


def decide(numbers: Numbers) -> Decision:
    """The layer that binds, by a bundle's readings and by posted numbers alike.

    One number never decides. Where the layers are missing that would tell the causes apart, the
    answer is ``cannot-tell`` with their names. ``confirmed`` needs two layers that a machine
    printed and that agree; a reading that was filled in counts towards ``likely`` only, and what
    was retold alone is ``weak``.
    """
    for group in (
        _one_memory,
        _card,
        _above_the_driver,
        _carve_out,
        _ttm_limit,
        _posted_total,
        _shown_by_a_tool,
    ):
        decision = group(numbers)
        if decision is not None:
            return _graded(_with_missing_total(decision, numbers), numbers)
    return _graded(_undecided(numbers), numbers)


def answers() -> dict[str, dict[str, Any]]:
    """What can bind, by name: layer, cause, the readings it rests on, words, next step, source."""
    rows: dict[str, dict[str, Any]] = table("ceiling_answers")["answers"]
    return rows


def answer(
    pattern: str,
    numbers: Numbers,
    size: int | None,
    confidence: Confidence,
    **words: str,
) -> Decision:
    """The decision in the words of the row ``pattern`` of ceiling_answers.json.

    ``size`` is what binds, in bytes, None where no size does. The readings fill the gaps of the
    sentences, and ``words`` those that are no readings.
    """
    row = answers()[pattern]
    shown = {
        name: show_bytes(value)
        for name, value in vars(numbers).items()
        if type(value) is int
    }
    shown["ram_any"] = show_bytes(numbers.any_ram)
    shown["pool"] = show_bytes(numbers.low)
    shown["gtt_any"] = show_bytes(_first_known(numbers.gtt, numbers.gtt_wanted))
    shown.update(words)
    binding_bytes = None  # for a row without a layer, which says that nothing binds
    if row["layer"]:
        binding_bytes = size
    return Decision(
        pattern=pattern,
        binding=row["layer"],
        binding_bytes=binding_bytes,
        cause=row["cause"],
        confidence=confidence,
        says=row["says"].format_map(shown),
        step=row["step"].format_map(shown),
        rests=tuple(_field_read(name, numbers) for name in row["rests"]),
    )


def _field_read(name: str, numbers: Numbers) -> str:
    """The field of Numbers that stands for a reading: where several can, the first that was read,
    or the first of all.
    """
    fields: list[str] = table("ceiling_answers")["either"].get(name, [name])
    for field in fields:
        if getattr(numbers, field) is not None:
            return field
    return fields[0]


def _sure(numbers: Numbers) -> Confidence:
    """``confirmed`` where the driver's own pool was read, else ``likely``."""
    if numbers.driver is None:
        return "likely"
    return "confirmed"


def _one_memory(numbers: Numbers) -> Decision | None:
    """NVIDIA's CPU and GPU share one memory: it binds itself, or page cache counts as used.

    cudaMemGetInfo on unified memory gives MemFree (NVIDIA DGX Spark known issues).
    """
    if numbers.kind != UNIFIED:
        return None
    available = _or_zero(numbers.available)
    free = _first_known(numbers.free, numbers.bare_free)
    if free is not None:
        is_many_times = available >= CACHE_TIMES * free
        if is_many_times and available - free > CACHE_BYTES:
            shown = show_bytes(free)
            return answer("page_cache", numbers, free, "likely", free_any=shown)
    available_words = _in_brackets(numbers.available)
    return answer("unified", numbers, None, "likely", available_words=available_words)


def _card(numbers: Numbers) -> Decision | None:
    """A card's capacity is its own VRAM (amdgpu_amdkfd.c: real_vram_size on cards)."""
    if numbers.kind != CARD:
        return None
    vram_words = ""
    if numbers.vram:
        vram_words = _in_brackets(numbers.vram)
    return answer("card", numbers, None, "confirmed", vram_words=vram_words)


def _above_the_driver(numbers: Numbers) -> Decision | None:
    """A runtime that passes on less than the kernel offers (ROCm/TheRock#4645, ROCm/hip#3892)."""
    if _below(numbers.hsa, numbers.kfd):
        return answer("hsa_below_kfd", numbers, numbers.hsa, "confirmed")
    if _below(numbers.torch, numbers.driver):
        return answer("hip_total", numbers, numbers.torch, "confirmed")
    # KFD's free is the least of its system, TTM and VRAM limits.
    if numbers.driver is None and _below(numbers.torch, numbers.free):
        decision = answer("free_above_total", numbers, numbers.torch, "likely")
        return replace(decision, missing=("KFD memory bank",))
    return None


def _carve_out(numbers: Numbers) -> Decision | None:
    """The driver's pool is the firmware's carve-out; odd where TTM's limit is larger."""
    pool = numbers.driver
    if not numbers.is_carve_out or pool is None:
        return None
    if numbers.kernel and numbers.kernel < GTT_AS_VRAM:  # 89773b85599a
        major, minor = numbers.kernel
        release = f"{major}.{minor}"
        return answer(
            "old_kernel_carveout", numbers, pool, "confirmed", release=release
        )
    # From 6.15 on GTT is taken where it is larger than the carve-out (759e764f7d58).
    gtt_may_be_larger = numbers.gtt is None or pool < numbers.gtt
    if gtt_may_be_larger and _below(pool, numbers.pages_limit):
        return answer("carveout_odd", numbers, pool, "likely")
    return answer("carveout", numbers, pool, "confirmed")


def _ttm_limit(numbers: Numbers) -> Decision | None:
    """The driver's pool is TTM's limit."""
    low = numbers.low
    if not numbers.is_ttm or low is None:
        return None
    if _below(low, numbers.vram):
        return _below_the_carve_out(numbers, low)
    # ttm_tt.c: pages_limit is read when the module is loaded.
    is_live = near(numbers.wanted, numbers.pages_limit, FRACTION_OF_A_PAGE_LIMIT)
    if numbers.wanted is not None and not is_live:
        return answer("not_taken", numbers, low, _sure(numbers))
    if _is_half(numbers, low):  # ttm_device.c: half of the total RAM
        if _below(low, numbers.gtt):
            return answer("gttsize_only", numbers, low, _sure(numbers))
        return answer("ttm_default", numbers, low, _sure(numbers))
    return _set_limit(numbers, low)


def _below_the_carve_out(numbers: Numbers, limit: int) -> Decision:
    """The pool is TTM's limit, though the carve-out is larger.

    Kernels before 759e764f7d58 (Linux 6.15) always take TTM's limit; later ones only where GTT
    is larger than the carve-out.
    """
    is_known_to_be_new = numbers.kernel is not None and numbers.kernel >= GTT_IF_LARGER
    if numbers.out_of_tree or not is_known_to_be_new:
        return answer("old_kernel_half", numbers, limit, _sure(numbers))
    if _less(numbers.vram, numbers.gtt):
        return answer("gtt_flip", numbers, limit, _sure(numbers))
    return answer("old_kernel_half", numbers, limit, "likely")


def _set_limit(numbers: Numbers, limit: int) -> Decision:
    """A limit of TTM that somebody set: lowered, beyond what KFD gives, or raised."""
    ram = numbers.any_ram
    if ram is None:
        return answer("raised", numbers, limit, "weak")
    if limit < ram // 2:
        half = show_bytes(ram // 2)
        return answer("ttm_lowered", numbers, limit, _sure(numbers), half=half)
    # amdgpu_amdkfd_gpuvm.c, amdgpu_amdkfd_gpuvm_init_mem_limits
    if numbers.ram is not None:
        most = kfd_limit(numbers.ram, numbers.kernel)
        if most < limit:
            return answer(
                "beyond_kfd", numbers, most, "likely", kfd_limit=show_bytes(most)
            )
    return answer("raised", numbers, limit, _sure(numbers))


def _posted_total(numbers: Numbers) -> Decision | None:
    """The total that a program shows (``torch``) beside other layers, where nobody read the
    driver's own pool.

    look.relations has what two posted totals say of each other.
    """
    torch = numbers.torch
    if not torch or numbers.driver is not None:
        return None
    may_be_an_apu = numbers.kind == UNKNOWN and numbers.hip and not is_card_size(torch)
    if numbers.kind == UNKNOWN and not may_be_an_apu:
        return None
    # What torch sees is the carve-out, and another layer is far above it (89773b85599a).
    rounding = PRINTED_SHARE
    if "vram" in numbers.hearsay:
        rounding = RETOLD_SHARE
    if near(torch, numbers.vram, rounding):
        return _carve_out_seen(numbers, torch)
    if numbers.vram is None and _is_size_of_a_carve_out(numbers, torch):
        return _carve_out_by_size(numbers, torch)
    if _far(numbers.vram, torch):
        return _far_below_the_carve_out(numbers, torch)
    # 89773b85599a: the compute pool follows ttm_tt_pages_limit, not amdgpu.gttsize.
    gtt_is_far_above = _far(numbers.gtt, torch) or _far(numbers.gtt_wanted, torch)
    if gtt_is_far_above and numbers.wanted is None:
        return answer("gttsize_only", numbers, torch, "likely")
    # ttm_device.c: half of the total RAM; ROCm/clr rocdevice.cpp
    if numbers.kind == APU and _is_half(numbers, torch):
        return answer("half_of_ram", numbers, torch, "weak")
    if may_be_an_apu:
        return answer("ask_apu", numbers, None, "weak")
    return None


def _far_below_the_carve_out(numbers: Numbers, torch: int) -> Decision:
    """torch's total is half the RAM by the rule before Linux 6.15, else by another limit."""
    is_half_of_linux = numbers.ram is not None and _is_half(numbers, torch)
    if is_half_of_linux or _is_half_of_rest(numbers, torch):
        return answer("old_kernel_half", numbers, torch, "likely")
    return answer("below_carveout", numbers, torch, "likely")


def _carve_out_seen(numbers: Numbers, torch: int) -> Decision | None:
    """torch's total is the carve-out, and another layer has far more; None where none has."""
    half_of_ram = _or_zero(numbers.any_ram) / 2
    layers = (numbers.gtt, numbers.pages_limit, half_of_ram)
    if any(_far(size, torch) for size in layers):
        return answer("carveout_seen", numbers, torch, "likely")
    return None


def _carve_out_by_size(numbers: Numbers, torch: int) -> Decision:
    """A total that is a carve-out by its size alone; ``beside`` is the size that it is too small
    for.
    """
    beside = "the RAM of any system with a desktop"
    if _far(numbers.any_ram, RAM_TIMES * torch):
        beside = f"the RAM of {show_bytes(numbers.any_ram)}"
    return answer("carveout_size", numbers, torch, "likely", beside=beside)


def _is_size_of_a_carve_out(numbers: Numbers, torch: int) -> bool:
    """Whether a total has a size that firmware offers, and is too small to be half of the RAM."""
    sizes = table("ceiling_answers")
    is_no_ram = torch in [size * MIB for size in sizes["no_rams_mib"]]
    if is_no_ram and (numbers.kind == APU or torch <= GIB):
        return True  # ROCm runs on no card of so little memory (parts.json)
    if numbers.kind != APU or not _far(numbers.any_ram, RAM_TIMES * torch):
        return False
    return any(
        abs(torch - size * MIB) <= numbers.precision
        for size in sizes["firmware_menu_mib"]
    )


def _shown_by_a_tool(numbers: Numbers) -> Decision | None:
    """A tool shows the carve-out of an APU, which programs do not use, or GTT at its default.

    mem_info_vram_total of an APU in sysfs is the carve-out.
    """
    if numbers.kind != APU:
        return None
    total = numbers.total
    if _has_small_carve_out(numbers) and not numbers.failed:
        if total is None:
            return answer("tool_shows_carveout", numbers, None, "weak", pool_words="")
        pool_words = f": they have {show_bytes(total)}"
        return answer(
            "tool_shows_carveout", numbers, None, "likely", pool_words=pool_words
        )
    gtt = _or_zero(numbers.gtt)
    if total is not None or not gtt or not _is_half(numbers, gtt):
        return None
    # ttm_device.c: half of the total RAM
    confidence: Confidence = "weak"
    if numbers.failed:
        confidence = "likely"
    return answer("gtt_default", numbers, gtt, confidence, gtt_half=show_bytes(gtt))


def _has_small_carve_out(numbers: Numbers) -> bool:
    """Whether the carve-out is known, small beside another layer, and not the pool itself."""
    carve_out = numbers.vram
    if not carve_out or near(numbers.total, carve_out):
        return False
    others = (numbers.gtt, numbers.total, numbers.any_ram)
    return max(map(_or_zero, others)) > SMALL_CARVE_OUT * carve_out


def _far(size: float | None, other: float) -> bool:
    """Whether the first size is known and far above the other."""
    return size is not None and size > FAR * other


def _below(size: int | None, other: int | None) -> bool:
    """Whether both are known, and the first is the smaller by more than two layers' rounding."""
    return _less(size, other) and not near(size, other)


def _less(size: int | None, other: int | None) -> bool:
    """Whether both are known, and the first is the smaller."""
    return size is not None and other is not None and size < other


def _first_known(size: int | None, other: int | None) -> int | None:
    """The first size, or the other where the first is not known."""
    if size is None:
        return other
    return size


def _or_zero(size: int | None) -> int:
    """A size, 0 where it is not known."""
    if size is None:
        return 0
    return size


def _in_brackets(size: int | None) -> str:
    """A size in brackets behind other words; empty where it is not known."""
    if size is None:
        return ""
    return f" ({show_bytes(size)})"


def _is_half(numbers: Numbers, size: int) -> bool:
    """Whether a size is half of the RAM: near half of MemTotal, or half of the RAM as bought
    less the share that firmware takes.
    """
    if numbers.ram is not None:
        return near(size, numbers.ram // 2, HALF_SHARE)
    half = _or_zero(numbers.installed) // 2
    return half > 0 and (1 - INSTALLED_SHARE) * half <= size <= half


def _is_half_of_rest(numbers: Numbers, size: int) -> bool:
    """Whether a size is half of what a larger carve-out leaves of the RAM as bought. Firmware's
    own share is twice as large a part of that rest, or less.
    """
    half = (_or_zero(numbers.installed) - _or_zero(numbers.vram)) // 2
    return half > 0 and (1 - 2 * INSTALLED_SHARE) * half <= size <= half


def _with_missing_total(decision: Decision, numbers: Numbers) -> Decision:
    """The decision, with torch's total named as missing where it was not read.

    By default a capture does not run torch, and only its total shows a HIP build that passes on
    less than the kernel offers.
    """
    if numbers.torch is not None or decision.missing or numbers.kind in (UNIFIED, CARD):
        return decision
    return replace(decision, missing=("torch total",))


def _graded(decision: Decision, numbers: Numbers) -> Decision:
    """The decision, no surer than the readings that it rests on: ``likely`` at most where one of
    them was retold or filled in, or there is only one; ``weak`` where all were retold.
    """
    read = [field for field in decision.rests if getattr(numbers, field) is not None]
    retold = [field for field in read if field in numbers.hearsay]
    is_filled = any(field in numbers.filled for field in read)
    most: Confidence = "confirmed"
    if retold or is_filled or len(read) == 1:
        most = "likely"
    if read and len(retold) == len(read):
        most = "weak"
    grades: list[Confidence] = ["weak", "likely", "confirmed"]
    confidence = min(decision.confidence, most, key=grades.index)
    return replace(decision, confidence=confidence, filled=is_filled)


def _undecided(numbers: Numbers) -> Decision:
    """The answer ``undecided``, with why, and the readings that would help to decide."""
    missing = numbers.missing()
    torch = numbers.torch
    says = "Too few layers were read to say which one decides."
    if torch is not None and numbers.ram is not None and _is_half(numbers, torch):
        says = (
            f"torch's total of {show_bytes(torch)} is half the RAM, which TTM's default and a "
            "HIP build both give."
        )
    elif not missing:
        says = "The readings match none of the known patterns."
    decision = answer(
        "undecided", numbers, size=None, confidence="weak", undecided=says
    )
    return replace(decision, missing=missing)
