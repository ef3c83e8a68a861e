"""Finds what a trial left behind: memory that the driver still counts, and processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from helpers.ground import child
from helpers.ground.child.sampler import SAMPLE_S
from helpers.ground.shapes import Reading, not_available, seen
from helpers.judge.holders import SLACK_BYTES
from helpers.look import files
from helpers.trials.targets import CPU


def driver_used(pci: str, root: str = "") -> Reading:
    """The bytes that amdgpu counts as used on a card, VRAM and GTT together, from sysfs, which also
    counts memory of no process. Other drivers have no such files.
    """
    source = f"/sys/bus/pci/devices/{pci}/mem_info_{{vram,gtt}}_used"
    if pci in ("", CPU.pci):
        return not_available("this trial ran on the CPU", "bytes", source)
    sizes = {}
    for pool in ("vram", "gtt"):
        text = files.text(root, f"/sys/bus/pci/devices/{pci}/mem_info_{pool}_used")
        if text.isdigit():
            sizes[pool] = int(text)
    if "vram" not in sizes:
        return not_available("this driver has no such file in sysfs", "bytes", source)
    return seen(sum(sizes.values()), "bytes", source)


def driver_used_bytes(pci: str) -> int | None:
    """``driver_used`` as a number; None if it is not available."""
    used = driver_used(pci)
    if not used.ok:
        return None
    return used.bytes


def why_not_clean(
    pids: Sequence[int], before: int | None, pci: str, clean_s: float
) -> str:
    """Why the box is not clean ``clean_s`` seconds after the end of a trial, in words: its
    processes ``pids`` still run, or the driver counts more memory than ``before`` it. Empty if it
    is clean; then shared memory that the processes left is removed.
    """
    deadline = time.monotonic() + clean_s
    while why := _why_held(pids, before, pci):
        if time.monotonic() >= deadline:
            return why
        time.sleep(SAMPLE_S)
    for pid in pids:
        # The name that torch gives a segment: NewProcessWideShmHandle of ATen/MapAllocator.cpp.
        for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
            path.unlink(missing_ok=True)
    return ""


def _why_held(pids: Sequence[int], before: int | None, pci: str) -> str:
    """Which processes still run, or how much more memory is used than ``before``; empty if
    nothing.
    """
    alive = [str(pid) for pid in pids if child.process_of(pid).running]
    if alive:
        return f"processes {', '.join(alive)} live on"
    now = driver_used_bytes(pci)
    if now is None or before is None or now - before <= SLACK_BYTES:
        return ""
    more = f"{now - before} bytes more as used than before the trial"
    return f"the driver counts {more}, and none of its processes is left"
