"""Is this box clean enough for the next job, and how long does one wait until it is?

A box is clean if two looks at it (``box_state.measure``), before and after a job, show no trouble:
no fault, no GPU that is still in use or hot, and enough host memory and disk. The verb ``gate`` and
a batch both ask here. Only the standard library of Python 3.8 is used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from helpers.ground.units import pci_address, show_bytes
from helpers.judge.holders import SLACK_BYTES, newcomers

from .look_shapes import BoxState, Gates, GpuState, Trouble

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Pauses between two looks: most memory is free at once, the rest is worth fewer looks."""
NOTHING_SEEN = Trouble(
    scope="box",
    why="no GPU is seen and no sign of one; on a node without GPUs say so with --gpus 0",
    passes=False,
)


def idle(state: BoxState) -> BoxState:
    """The look at this box as it would be if nobody used its GPUs."""
    return replace(state, gpus=tuple(map(_unused, state.gpus)))


def _unused(gpu: GpuState) -> GpuState:
    """The GPU without holders and with all of its memory free."""
    empty = tuple((layer, 0, total) for layer, _, total in gpu.pools)
    return replace(gpu, pools=empty, holders=())


def unclean(before: BoxState, after: BoxState, gates: Gates) -> tuple[Trouble, ...]:
    """Why a box is not clean: errors in the look ``after``, GPUs in use, hot or gone, too little
    host memory or disk.

    Use of memory is compared with the look ``before``, unless the box rebooted in between. What a
    look could not read is no trouble. With ``idle(after)`` as ``before`` any use of a GPU counts.
    """
    troubles = list(after.errors)
    earlier = {}
    if before.boot_id == after.boot_id:
        earlier = {gpu.pci: gpu for gpu in before.gpus}
    still_there = {gpu.pci for gpu in after.gpus}
    for pci in sorted(earlier.keys() - still_there):
        why = "the GPU is gone: it was there before and no layer shows it now"
        troubles.append(Trouble(f"gpu {pci}", why, passes=False))
    for gpu in after.gpus:
        whys = list(_too_hot(gpu, gates.temperature_c))
        if gpu.pci in earlier:
            whys += _still_used(earlier[gpu.pci], gpu, gates)
        troubles += [Trouble(f"gpu {gpu.pci}", why) for why in whys]
    return (*troubles, *_host_memory(before, after, gates), *_disk(after, gates))


def _host_memory(before: BoxState, after: BoxState, gates: Gates) -> Iterator[Trouble]:
    """A trouble if less RAM is available than the plan wants, or, on a box with a GPU, clearly less
    than before: an earlier job has not given it back. None if it could not be read.
    """
    had = before.available_bytes
    has = after.available_bytes
    if has is None:
        return
    least = gates.host_free_bytes
    as_before = ""
    # A batch compares no host memory: its first look has None here (between_runs.BoxWatch.look).
    is_comparable = before.boot_id == after.boot_id and after.gpus
    if had is not None and is_comparable:
        at_least_before = had - _allowed(after.total_bytes, gates)
        if at_least_before > least:
            least = at_least_before
            as_before = " as before"
    if has < least:
        expected = f"expected at least {show_bytes(least)}{as_before}"
        yield Trouble("host memory", f"{show_bytes(has)} available, {expected}")


def _disk(after: BoxState, gates: Gates) -> Iterator[Trouble]:
    """Whether the disk for results cannot be written or has too little room."""
    disk = f"the disk of {after.folder}"
    free = after.disk_free_bytes
    if after.read_only:
        yield Trouble(
            "box", f"{disk} is mounted read-only, expected one that can be written"
        )
    elif free is not None and free < gates.disk_free_bytes:
        expected = f"expected at least {show_bytes(gates.disk_free_bytes)}"
        yield Trouble("box", f"{show_bytes(free)} free on {disk}, {expected}")


def _allowed(total_bytes: int | None, gates: Gates) -> int:
    """How many bytes more than before may be in use of a memory of ``total_bytes``."""
    if total_bytes is None:
        return SLACK_BYTES
    return max(SLACK_BYTES, int(gates.memory_back_fraction * total_bytes))


def _still_used(before: GpuState, after: GpuState, gates: Gates) -> Iterator[str]:
    """A sentence for each new holder of a GPU, and for each pool with clearly more in use."""
    for holder in newcomers(before.holders, after.holders):
        size = "memory that was not measured"
        if holder.bytes is not None:
            size = show_bytes(holder.bytes)
        if holder.state == "D":  # uninterruptible sleep (proc_pid_stat(5))
            size += " and waits inside the kernel (state D)"
        expected = "expected no holder"
        if before.holders:
            expected += " that was not there before"
        name = holder.name or "a process"
        yield f"{name} ({holder.pid}) holds {size}, {expected}"
    earlier = {layer: used for layer, used, _ in before.pools}
    for layer, used, total in after.pools:
        # A pool that could not be read before has nothing to be compared with.
        used_before = earlier.get(layer, used)
        most = used_before + _allowed(total, gates)
        if used > most:
            expected = f"expected at most {show_bytes(most)}"
            if used_before:
                expected += f" ({show_bytes(used_before)} before)"
            yield f"{layer}: {show_bytes(used)} used, {expected}"


def _too_hot(gpu: GpuState, limit: float | None) -> Iterator[str]:
    """A sentence for each sensor at or above the plan's ``limit`` or its own critical degrees."""
    for sensor, degrees, critical in gpu.celsius:
        limits = [most for most in (limit, critical) if most is not None]
        lowest = min(limits, default=math.inf)
        if degrees >= lowest:
            yield f"{sensor}: {degrees:g} degrees Celsius, expected below {lowest:g}"


def settle(
    before: BoxState,
    gates: Gates,
    look: Callable[[], BoxState],
    sleep: Callable[[float], None] = time.sleep,
    waits_for: Callable[[Trouble], bool] = lambda _: True,
) -> tuple[Trouble, ...]:
    """Look until the box is clean, for ``gates.settle_s`` seconds at most; returns what is still
    wrong.

    It waits for a trouble only if that may pass (memory, holders, heat) and ``waits_for`` is true
    for it. ``before`` is the batch's first look, so that many small leaks add up. Each call of
    ``look`` reports only errors that are new since the call before.
    """
    happened: tuple[Trouble, ...] = ()
    waited = 0.0
    pause = FIRST_PAUSE_S
    while True:
        state = look()
        # Errors of earlier looks are kept; dict.fromkeys drops those that are named twice.
        happened = tuple(dict.fromkeys((*happened, *state.errors)))
        troubles = unclean(before, replace(state, errors=happened), gates)
        is_worth_a_wait = any(
            trouble.passes and trouble not in happened and waits_for(trouble)
            for trouble in troubles
        )
        if waited >= gates.settle_s or not is_worth_a_wait:
            return troubles
        sleep(pause)
        waited += pause + state.seconds
        pause = min(2 * pause, LONGEST_PAUSE_S)


def missing(
    state: BoxState, wanted: Sequence[str], count: int | None
) -> Iterator[Trouble]:
    """A trouble for each thing that a job needs and the look does not show.

    A job needs each ``wanted`` GPU (PCI addresses) and ``count`` GPUs in all (None: any number).
    Every GPU must answer, and something must say how much of its memory is used.
    """
    yield from state.unanswered
    seen = [gpu.pci for gpu in state.gpus]
    for pci in wanted:
        if pci not in seen:
            yield Trouble(f"gpu {pci}", "no layer shows it", passes=False)
    for gpu in state.gpus:
        if not gpu.pools:
            why = "nothing here says how much of its memory is used"
            yield Trouble(f"gpu {gpu.pci}", why, passes=False)
    if count is not None and len(seen) != count:
        why = f"GPUs seen: {len(seen)}, expected {count}"
        yield Trouble("box", why, passes=False)


def concerning(troubles: Iterable[Trouble], gpu: str, elsewhere: bool = False) -> str:
    """The first of these troubles that concerns a run on ``gpu``, in words; empty if none does.

    A run that names no GPU may use any, so that a trouble of any GPU concerns it. A run about a
    machine ``elsewhere`` uses no GPU and little host memory, so that only troubles of the box as a
    whole concern it.

    The scope of a trouble is "box", "host memory", "gpu" with its PCI address, or "a GPU" where it
    is not known which one.
    """
    address = pci_address(gpu) or gpu
    scopes = {"box"}
    if not elsewhere:
        scopes |= {"host memory", "a GPU", f"gpu {address}"}
    uses_any_gpu = not address and not elsewhere
    for trouble in troubles:
        if trouble.scope in scopes or uses_any_gpu:
            if trouble.scope == "host memory":
                return f"host memory is short: {trouble.why}"
            return f"{trouble.scope} is not clean: {trouble.why}"
    return ""
