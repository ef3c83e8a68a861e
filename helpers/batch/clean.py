"""May this box be used for the next job? What must not be seen on it, and how long to wait for that.

One judgement for the verb ``gate`` and for a batch. Standard library of Python 3.8 alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from helpers.ground.units import pci_address, show_bytes
from helpers.judge.holders import SLACK_BYTES, newcomers

from .look_shapes import BoxState, Gates, GpuState, Trouble

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
NOTHING_SEEN = Trouble(
    scope="box",
    why="no GPU is seen and no sign of one; on a node without GPUs say so with --gpus 0",
    passes=False,
)


def idle(state: BoxState) -> BoxState:
    """What this box is like when nobody uses its GPUs."""
    return replace(state, gpus=tuple(map(_unused, state.gpus)))


def _unused(gpu: GpuState) -> GpuState:
    empty = tuple((layer, 0, total) for layer, _, total in gpu.pools)
    return replace(gpu, pools=empty, holders=())


def unclean(before: BoxState, after: BoxState, gates: Gates) -> tuple[Trouble, ...]:
    """Why a box is not clean: what happened by ``after``, and how its memory, holders, heat and
    disk differ from ``before``.

    Pure. After a reboot only what needs no comparison is judged. Of what either look could not
    read nothing is said. ``idle(after)`` as ``before`` asks whether anybody uses the box at
    all.
    """
    troubles = list(after.errors)
    earlier = {}
    if before.boot_id == after.boot_id:
        earlier = {gpu.pci: gpu for gpu in before.gpus}
    for gone in sorted(earlier.keys() - {gpu.pci for gpu in after.gpus}):
        why = "the GPU is gone: it was there before and no layer shows it now"
        troubles.append(Trouble(f"gpu {gone}", why, False))
    for gpu in after.gpus:
        whys = list(_too_hot(gpu, gates.temperature_c))
        if gpu.pci in earlier:
            whys += _still_used(earlier[gpu.pci], gpu, gates)
        troubles += [Trouble(f"gpu {gpu.pci}", why) for why in whys]
    return (*troubles, *_host_memory(before, after, gates), *_disk(after, gates))


def _host_memory(before: BoxState, after: BoxState, gates: Gates) -> Iterator[Trouble]:
    """Too little for the next job; on a box with a GPU also less than before, where that is known."""
    had = before.available_bytes
    has = after.available_bytes
    if has is None:
        return
    least = gates.host_free_bytes
    as_before = ""
    if had is not None and after.gpus and before.boot_id == after.boot_id:
        at_least_before = had - _allowed(after.total_bytes, gates)
        if at_least_before > least:
            least = at_least_before
            as_before = " as before"
    if has < least:
        expected = f"expected at least {show_bytes(least)}{as_before}"
        yield Trouble("host memory", f"{show_bytes(has)} available, {expected}")


def _disk(after: BoxState, gates: Gates) -> Iterator[Trouble]:
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
    """How much more of a memory of this size may be in use than before."""
    if total_bytes is None:
        return SLACK_BYTES
    return max(SLACK_BYTES, int(gates.memory_back_fraction * total_bytes))


def _still_used(before: GpuState, after: GpuState, gates: Gates) -> Iterator[str]:
    for holder in newcomers(before.holders, after.holders):
        size = "memory that was not measured"
        if holder.bytes is not None:
            size = show_bytes(holder.bytes)
        if holder.state == "D":
            size += " and waits inside the kernel (state D)"
        expected = "expected no holder"
        if before.holders:
            expected += " that was not there before"
        name = holder.name or "a process"
        yield f"{name} ({holder.pid}) holds {size}, {expected}"
    earlier = {layer: used for layer, used, _ in before.pools}
    for layer, used, total in after.pools:
        used_before = earlier.get(layer, used)
        most = used_before + _allowed(total, gates)
        if used > most:
            expected = f"expected at most {show_bytes(most)}"
            if used_before:
                expected += f" ({show_bytes(used_before)} before)"
            yield f"{layer}: {show_bytes(used)} used, {expected}"


def _too_hot(gpu: GpuState, limit: float | None) -> Iterator[str]:
    for sensor, degrees, critical in gpu.celsius:
        limits = [most for most in (limit, critical) if most is not None]
        if limits and degrees >= min(limits):
            expected = f"expected below {min(limits):g}"
            yield f"{sensor}: {degrees:g} degrees Celsius, {expected}"


def settle(
    before: BoxState,
    gates: Gates,
    look: Callable[[], BoxState],
    sleep: Callable[[float], None] = time.sleep,
    waits_for: Callable[[Trouble], bool] = lambda _: True,
) -> tuple[Trouble, ...]:
    """Look until the box is clean, for ``gates.settle_s`` seconds at most; what is still wrong,
    or nothing.

    It waits only for what may pass (memory, holders, heat) and what ``waits_for`` says is worth a
    wait, not for errors that have happened. Give the batch's first look as ``before``, so that many
    small leaks add up, and a ``look`` since the latest one, so that one fault counts once.
    """
    happened: tuple[Trouble, ...] = ()
    waited = 0.0
    pause = FIRST_PAUSE_S
    while True:
        state = look()
        # A later look does not name again what an earlier one did.
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
    """What a job needs and a look does not show: the ``wanted`` GPUs by PCI address, how much of
    their memory is used, ``count`` GPUs in all, and signs of a GPU that does not answer.
    """
    yield from state.unanswered
    seen = [gpu.pci for gpu in state.gpus]
    for pci in wanted:
        if pci not in seen:
            yield Trouble(f"gpu {pci}", "no layer shows it", False)
    for gpu in state.gpus:
        if not gpu.pools:
            why = "nothing here says how much of its memory is used"
            yield Trouble(f"gpu {gpu.pci}", why, False)
    if count is not None and len(seen) != count:
        yield Trouble("box", f"GPUs seen: {len(seen)}, expected {count}", False)


def concerning(troubles: Iterable[Trouble], gpu: str, elsewhere: bool = False) -> str:
    """The first of these troubles that concerns a run on ``gpu``, in words; or nothing.

    A run that names no GPU may use any; one that is about a machine ``elsewhere`` uses none, and
    little of the host's memory.
    """
    address = pci_address(gpu) or gpu
    for trouble in troubles:
        is_general = trouble.scope == "box"
        is_near = (
            trouble.scope in ("host memory", "a GPU", f"gpu {address}") or not address
        )
        if is_general or (is_near and not elsewhere):
            if trouble.scope == "host memory":
                return f"host memory is short: {trouble.why}"
            return f"{trouble.scope} is not clean: {trouble.why}"
    return ""
