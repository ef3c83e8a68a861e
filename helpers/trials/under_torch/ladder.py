"""Finds the largest single allocation: sizes are doubled until one is refused, then bisected; each
block is written and freed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from helpers.trials.under_torch.device import Device
from helpers.trials.under_torch.frame import GIB, MIB, NotRun, Row, is_oom

START_BYTES = 64 * MIB
STEP_BYTES = 2 * MIB
"""KFD rounds each buffer up to 2 MiB (amdgpu_amdkfd_gpuvm.c), so a finer answer means nothing."""
CLOSE_ENOUGH = 256
"""The bisection ends when the sizes on both sides are within a 256th of the size, 0.4 %."""
LEFT_TO_OTHERS_BYTES = 2 * GIB
"""Left free for the desktop and other programs."""
MOST_ON_CPU_BYTES = 2 * GIB
"""Host memory is no property of a card; this much shows that the check works."""
NO_LIMIT_BYTES = 1 << 62
"""More than any card has: torch's own limit must not decide."""
PATTERN = 165
"""A byte with as many ones as zeros, 10100101, which fresh memory hardly has."""


def ladder(device: Device) -> Row:
    """The check "ladder" (checks.py). It stops at ``stop_bytes``, unless the spec has
    ``to_the_limit``. Raises NotRun if too little is free.
    """
    if device.gpu:
        device.torch.cuda.empty_cache()
        device.limit_memory(NO_LIMIT_BYTES)
    free_bytes = device.free_bytes()
    stop = free_bytes  # in bytes, a multiple of STEP_BYTES
    if not device.spec.get("to_the_limit"):
        stop = stop_bytes(free_bytes, device.gpu)
    stop -= stop % STEP_BYTES
    if stop < STEP_BYTES:
        why = f"only {free_bytes / GIB:.2f} GiB is free, and 2 GiB is left to others"
        raise NotRun("not run because " + why)
    climbed = climb(partial(can_hold, device), stop)
    end = ", where the check stopped by itself"
    if climbed.refused_bytes:
        end = f"; {climbed.refused_bytes / GIB:.2f} GiB was refused"
    largest = f"{climbed.held_bytes / GIB:.2f} GiB of {free_bytes / GIB:.2f} GiB free"
    return {
        "says": f"the largest single allocation is {largest}{end}",
        "figures": {
            "largest_bytes": climbed.held_bytes,
            "refused_bytes": climbed.refused_bytes or None,
            "free_bytes": free_bytes,
            "stop_bytes": stop,
            "tried": [list(attempt) for attempt in climbed.tried],
        },
    }


def stop_bytes(free_bytes: int, gpu: bool) -> int:
    """How far the ladder goes by default: to half of the free memory, and so that enough is left to
    others; may be negative.
    """
    stop = min(free_bytes // 2, free_bytes - LEFT_TO_OTHERS_BYTES)
    if gpu:
        return stop
    return min(stop, MOST_ON_CPU_BYTES)


@dataclass
class Climb:
    """The largest size that fits, the smallest that was refused (0: none), and (size, whether it
    fits) of all attempts.
    """

    held_bytes: int = 0
    refused_bytes: int = 0
    tried: list[tuple[int, bool]] = field(default_factory=list)


def climb(fits: Callable[[int], bool], stop: int) -> Climb:
    """Double the size until it is refused or is ``stop``; then try the middle between the largest
    that fits and the smallest that was refused, until they are close.
    """
    climbed = Climb()
    size = min(START_BYTES, stop)
    while True:
        fitted = fits(size)
        climbed.tried.append((size, fitted))
        if fitted:
            climbed.held_bytes = size
        else:
            climbed.refused_bytes = size
        fitting = climbed.held_bytes
        refused = climbed.refused_bytes
        if refused:
            middle = (fitting + refused) // 2
            size = middle - middle % STEP_BYTES
            least_apart = max(STEP_BYTES, refused // CLOSE_ENOUGH)
            if size <= fitting or refused - fitting <= least_apart:
                return climbed
        elif size == stop:
            return climbed
        else:
            size = min(2 * size, stop)


def can_hold(device: Device, size_bytes: int) -> bool:
    """Whether one block of this size can be allocated and written to its last byte."""
    torch = device.torch
    block = None
    try:
        block = torch.empty(size_bytes, dtype=torch.uint8, device=device.name)
        block.fill_(PATTERN)
        return int(block[-1]) == PATTERN
    except (MemoryError, RuntimeError) as error:
        if not is_oom(torch, error):
            raise
        return False
    finally:
        del block
        if device.gpu:
            torch.cuda.empty_cache()
