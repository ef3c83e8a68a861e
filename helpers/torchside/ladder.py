"""How large is the largest single allocation? Sizes are doubled, then halved in between; each is written and given back."""

from __future__ import annotations

from typing import Any

from helpers.torchside.device import GIB, MIB, Device, NotRun

START_BYTES = 64 * MIB
# KFD rounds each buffer up to 2 MiB (amdgpu_amdkfd_gpuvm.c), so a finer answer means nothing.
STEP_BYTES = 2 * MIB
LEFT_TO_OTHERS_BYTES = 2 * GIB
MOST_ON_CPU_BYTES = 2 * GIB


def ladder(device: Device) -> dict[str, Any]:
    """Stops at the smaller of half of the free memory and free less 2 GiB (on the CPU also at 2 GiB), unless told otherwise."""
    told = bool(device.spec.get("to_the_limit"))
    if device.gpu:
        device.torch.cuda.empty_cache()
        device.limit_memory(1 << 62)
    free = device.free_bytes()
    stop = free if told else stop_bytes(free, device.gpu)
    stop -= stop % STEP_BYTES
    if stop < STEP_BYTES:
        raise NotRun(
            f"not run because only {free / GIB:.2f} GiB is free, and 2 GiB is left to others"
        )
    held, refused, tried = climb(lambda size: can_hold(device, size), stop)
    what = f"the largest single allocation is {held / GIB:.2f} GiB of {free / GIB:.2f} GiB free"
    says = (
        f"{what}; {refused / GIB:.2f} GiB was refused"
        if refused
        else f"{what}, where the check stopped by itself"
    )
    return {
        "says": says,
        "figures": {
            "largest_bytes": held,
            "refused_bytes": refused or None,
            "free_bytes": free,
            "stop_bytes": stop,
            "tried": tried,
        },
    }


def stop_bytes(free_bytes: int, gpu: bool) -> int:
    """How far the ladder goes when nobody tells it to go further; may be negative."""
    stop = min(free_bytes // 2, free_bytes - LEFT_TO_OTHERS_BYTES)
    return stop if gpu else min(stop, MOST_ON_CPU_BYTES)


def climb(fits: Any, stop: int) -> tuple[int, int, list[list[Any]]]:
    """The largest size that fits and the smallest that was refused (0: none up to ``stop``), with every size tried."""
    held, refused, size = 0, 0, min(START_BYTES, stop)
    tried: list[list[Any]] = []
    while True:
        ok = fits(size)
        tried.append([size, ok])
        if ok:
            held = size
        else:
            refused = size
        if refused:
            middle = (held + refused) // 2
            size = middle - middle % STEP_BYTES
            if size <= held or refused - held <= max(STEP_BYTES, refused // 256):
                return held, refused, tried
        elif size == stop:
            return held, refused, tried
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
        if not device.is_oom(error):
            raise
        return False
    finally:
        del block
        if device.gpu:
            torch.cuda.empty_cache()
