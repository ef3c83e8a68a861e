"""Whether a box is clean for the next job: what a look at it (box_state) may not show, and how long that may take.

Standard library of Python 3.8 alone: a scheduler's prolog has nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from helpers.judge.owner import SLACK_BYTES, newcomers
from helpers.units import show_bytes

from .box_state import BoxState, GpuState, Trouble

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
NEW = " that was not there before"


@dataclass(frozen=True)
class Gates:
    """What a box must be like for the next job, as a plan's ``gates`` say it. A temperature of None is not looked at.

    ``memory_back_fraction``: of host memory, and of a GPU's, that may stay used. ``settle_s``: how long it may take.
    """

    # Read by pydantic where a plan holds gates, as the bounds beside the fields are: unknown keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    disk_free_bytes: int = field(default=1 << 30, metadata={"ge": 0})
    memory_back_fraction: float = field(default=0.05, metadata={"ge": 0, "le": 1})
    temperature_c: float | None = field(default=90, metadata={"gt": 0})
    settle_s: float = field(default=30, metadata={"ge": 0, "le": 3600})


def idle(state: BoxState) -> BoxState:
    """What this box is like when nobody uses its GPUs."""
    unused = [
        replace(g, holders=(), pools=tuple((p, 0, of) for p, _, of in g.pools)) for g in state.gpus
    ]
    return replace(state, gpus=tuple(unused))


def unclean(before: BoxState, after: BoxState, gates: Gates) -> tuple[Trouble, ...]:
    """Why a box is not clean: what happened by ``after``, and how its memory, holders, heat and disk differ from ``before``.

    Pure. After a reboot only what needs no comparison is judged. Of what either look could not read nothing is said.
    ``idle(after)`` as ``before`` asks whether anybody uses the box at all.
    """
    troubles, same_boot = list(after.errors), before.boot_id == after.boot_id
    earlier = {gpu.pci: gpu for gpu in before.gpus} if same_boot else {}
    for gone in earlier.keys() - {gpu.pci for gpu in after.gpus}:
        why = "the GPU is gone: it was there before and no layer shows it now"
        troubles.append(Trouble(f"gpu {gone}", why, False))
    for gpu in after.gpus:
        whys = [*_too_hot(gpu, gates.temperature_c)]
        whys += _still_used(earlier[gpu.pci], gpu, gates) if gpu.pci in earlier else ()
        troubles += [Trouble(f"gpu {gpu.pci}", why) for why in whys]
    return tuple(troubles + [Trouble("box", why) for why in _host(before, after, gates)])


def _host(before: BoxState, after: BoxState, gates: Gates) -> Iterator[str]:
    had, has = before.available_bytes, after.available_bytes
    if had is not None and has is not None and before.boot_id == after.boot_id:
        least = had - _allowed(after.total_bytes or 0, gates)
        if has < least:
            expected = f"expected at least {show_bytes(least)} as before"
            yield f"{show_bytes(has)} of host memory available, {expected}"
    disk, free = f"the disk of {after.folder}", after.disk_free_bytes
    if after.read_only:
        yield f"{disk} is mounted read-only, expected one that can be written"
    elif free is not None and free < gates.disk_free_bytes:
        expected = f"expected at least {show_bytes(gates.disk_free_bytes)}"
        yield f"{show_bytes(free)} free on {disk}, {expected}"


def _allowed(total_bytes: int, gates: Gates) -> int:
    return max(SLACK_BYTES, int(gates.memory_back_fraction * total_bytes))


def _still_used(before: GpuState, after: GpuState, gates: Gates) -> Iterator[str]:
    for held in newcomers(before.holders, after.holders):
        size = "memory that was not measured" if held.bytes is None else show_bytes(held.bytes)
        state = " and waits inside the kernel (state D)" if held.state == "D" else ""
        who = f"{held.name or 'a process'} ({held.pid})"
        yield f"{who} holds {size}{state}, expected no holder{NEW if before.holders else ''}"
    earlier = {layer: used for layer, used, _ in before.pools}
    for layer, used, total in after.pools:
        most = earlier.get(layer, used) + _allowed(total, gates)
        if used > most:
            was = f" ({show_bytes(earlier[layer])} before)" if earlier.get(layer) else ""
            yield f"{layer}: {show_bytes(used)} used, expected at most {show_bytes(most)}{was}"


def _too_hot(gpu: GpuState, limit: float | None) -> Iterator[str]:
    for sensor, degrees, critical in gpu.celsius:
        most = min((one for one in (limit, critical) if one is not None), default=None)
        if most is not None and degrees >= most:
            yield f"{sensor}: {degrees:g} degrees Celsius, expected below {most:g}"


def settle(
    before: BoxState,
    gates: Gates,
    look: Callable[[], BoxState],
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Trouble, ...]:
    """Look until the box is clean, for ``gates.settle_s`` seconds at most; what is still wrong, or nothing.

    What happened is not waited for, only what may pass: memory, holders, heat. Give the batch's first look as ``before``, so
    that many small leaks add up, and a ``look`` since the latest one, so that one fault counts once.
    """
    happened: tuple[Trouble, ...] = ()
    waited, pause = 0.0, FIRST_PAUSE_S
    while True:
        state = look()
        # A later look does not name again what an earlier one did.
        happened = tuple(dict.fromkeys((*happened, *state.errors)))
        troubles = unclean(before, replace(state, errors=happened), gates)
        passing = [one for one in troubles if one.passes and one not in happened]
        if waited >= gates.settle_s or not passing:
            return troubles
        sleep(pause)
        waited, pause = waited + pause + state.seconds, min(2 * pause, LONGEST_PAUSE_S)
