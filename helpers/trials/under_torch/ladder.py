"""The largest single allocation: sizes are doubled, then halved in between; each is written and
given back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from helpers.trials.under_torch.device import Device
from helpers.trials.under_torch.frame import GIB, MIB, NotRun, Row, is_oom

START_BYTES = 64 * MIB
# KFD rounds each buffer up to 2 MiB (amdgpu_amdkfd_gpuvm.c), so a finer answer means nothing.
STEP_BYTES = 2 * MIB
LEFT_TO_OTHERS_BYTES = 2 * GIB
MOST_ON_CPU_BYTES = 2 * GIB


def ladder(device: Device) -> Row:
    """The check: what it says, and its figures.

    Stops at the smaller of half of the free memory and free less 2 GiB (on the CPU also at 2
    GiB), unless the spec goes to the limit. Raises NotRun where too little is free.
    """
    if device.gpu:
        device.torch.cuda.empty_cache()
        device.limit_memory(1 << 62)
    free_bytes = device.free_bytes()
    stop = free_bytes
    if not device.spec.get("to_the_limit"):
        stop = stop_bytes(free_bytes, device.gpu)
    stop -= stop % STEP_BYTES
    if stop < STEP_BYTES:
        why = f"only {free_bytes / GIB:.2f} GiB is free, and 2 GiB is left to others"
        raise NotRun("not run because " + why)
    climbed = climb(partial(can_hold, device), stop)
    if climbed.refused_bytes:
        end = f"{climbed.refused_bytes / GIB:.2f} GiB was refused"
    else:
        end = "where the check stopped by itself"
    largest = f"{climbed.held_bytes / GIB:.2f} GiB of {free_bytes / GIB:.2f} GiB free"
    joint = "; " if climbed.refused_bytes else ", "
    return {
        "says": f"the largest single allocation is {largest}{joint}{end}",
        "figures": {
            "largest_bytes": climbed.held_bytes,
            "refused_bytes": climbed.refused_bytes or None,
            "free_bytes": free_bytes,
            "stop_bytes": stop,
            "tried": [list(attempt) for attempt in climbed.tried],
        },
    }


def stop_bytes(free_bytes: int, gpu: bool) -> int:
    """How far the ladder goes unless it goes to the limit; may be negative."""
    stop = min(free_bytes // 2, free_bytes - LEFT_TO_OTHERS_BYTES)
    return stop if gpu else min(stop, MOST_ON_CPU_BYTES)


@dataclass
class Climb:
    """The largest size that fits, the smallest that was refused (0: none), and all attempts."""

    held_bytes: int = 0
    refused_bytes: int = 0
    tried: list[tuple[int, bool]] = field(default_factory=list)


def climb(fits: Callable[[int], bool], stop: int) -> Climb:
    """Double the size until it is refused or ``stop``, then halve in between."""
    climbed = Climb()
    size = min(START_BYTES, stop)
    while True:
        fitted = fits(size)
        climbed.tried.append((size, fitted))
        if fitted:
            climbed.held_bytes = size
        else:
            climbed.refused_bytes = size
        fits_bytes = climbed.held_bytes
        refused = climbed.refused_bytes
        if refused:
            middle = (fits_bytes + refused) // 2
            size = middle - middle % STEP_BYTES
            if size <= fits_bytes or refused - fits_bytes <= max(
                STEP_BYTES, refused // 256
            ):
                return climbed
        elif size == stop:
            return climbed
        else:
            size = min(2 * size, stop)


def can_hold(device: Device, size_bytes: int) -> bool:
    """Whether one block of this size can be had and written to its last byte."""
    torch = device.torch
    block = None
    try:
        block = torch.empty(size_bytes, dtype=torch.uint8, device=device.name)
        block.fill_(165)
        return int(block[-1]) == 165
    except (MemoryError, RuntimeError) as error:
        if not is_oom(torch, error):
            raise
        return False
    finally:
        del block
        if device.gpu:
            torch.cuda.empty_cache()
