"""Whether a box is clean enough for the next run: what differs from what it was like before, and for how long.

The rule is that of ORNL's checknode on Frontier (Cray User Group 2023): a clean check may lift only what the check itself set
(helpers.run.quarantine).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from helpers.load.targets import SLACK_BYTES
from helpers.look.reading import show_bytes

from .box_state import BoxState, GpuState, Held, measure
from .quarantine import Quarantine, Trouble
from .shapes import Gates

__all__ = ["BoxState", "GpuState", "Held", "Quarantine", "Trouble", "measure", "settle", "unclean"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


def unclean(before: BoxState, after: BoxState, gates: Gates) -> tuple[Trouble, ...]:
    """Why a box is not clean: what ``after`` was told of, and how its memory, holders, heat and disk differ from ``before``.

    Pure. After a reboot only what needs no comparison is judged. Of what either look could not read nothing is said.
    """
    found = list(after.told)
    earlier = {gpu.pci: gpu for gpu in before.gpus} if before.boot_id == after.boot_id else {}
    for pci_address in earlier.keys() - {gpu.pci for gpu in after.gpus}:
        found.append(
            Trouble(
                f"gpu {pci_address}",
                "the GPU is gone: it was there before and no layer shows it now",
                False,
            )
        )
    for gpu in after.gpus:
        why = [
            *_too_hot(gpu, gates.temperature_c),
            *(_still_used(earlier[gpu.pci], gpu, gates) if gpu.pci in earlier else ()),
        ]
        found += [Trouble(f"gpu {gpu.pci}", one) for one in why]
    if (
        before.available_bytes is not None
        and after.available_bytes is not None
        and before.boot_id == after.boot_id
    ):
        allowed = _allowed(after.total_bytes or 0, gates)
        if before.available_bytes - after.available_bytes > allowed:
            found.append(
                Trouble(
                    "box",
                    f"{show_bytes(after.available_bytes)} of host memory available, expected at least "
                    f"{show_bytes(before.available_bytes - allowed)} as before",
                )
            )
    if after.read_only:
        found.append(
            Trouble(
                "box",
                f"the disk of {after.folder} is mounted read-only, expected one that can be written",
            )
        )
    elif after.disk_free_bytes is not None and after.disk_free_bytes < gates.disk_free_bytes:
        found.append(
            Trouble(
                "box",
                f"{show_bytes(after.disk_free_bytes)} free on the disk of {after.folder}, "
                f"expected at least {show_bytes(gates.disk_free_bytes)}",
            )
        )
    return tuple(found)


def _allowed(total_bytes: int, gates: Gates) -> int:
    return max(SLACK_BYTES, int(gates.memory_back_fraction * total_bytes))


def _still_used(before: GpuState, after: GpuState, gates: Gates) -> Iterator[str]:
    known = {(held.pid, held.start_ticks) for held in before.holders}
    for held in after.holders:
        # A desktop opens and closes small clients all the time; one that cannot be ended holds the GPU whatever its size.
        if (held.pid, held.start_ticks) not in known and (
            held.bytes is None or held.bytes > SLACK_BYTES or held.state == "D"
        ):
            size = "memory that was not measured" if held.bytes is None else show_bytes(held.bytes)
            state = " and waits inside the kernel (state D)" if held.state == "D" else ""
            yield f"{held.name or 'a process'} ({held.pid}) holds {size}{state}, expected no holder that was not there before"
    earlier = {layer: used for layer, used, _ in before.pools}
    for layer, used, total in after.pools:
        if layer in earlier and used - earlier[layer] > _allowed(total, gates):
            yield (
                f"{layer}: {show_bytes(used)} used, expected at most {show_bytes(earlier[layer] + _allowed(total, gates))} "
                f"({show_bytes(earlier[layer])} before)"
            )


def _too_hot(gpu: GpuState, limit: float | None) -> Iterator[str]:
    for sensor, degrees, critical in gpu.celsius:
        most = min((one for one in (limit, critical) if one is not None), default=None)
        if most is not None and degrees >= most:
            yield f"{sensor}: {degrees:g} degrees Celsius, expected below {most:g}"


def settle(
    before: BoxState,
    gates: Gates,
    measure: Callable[[], BoxState] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Trouble, ...]:
    """Look until the box is clean, for ``gates.settle_s`` seconds at most; what is still wrong, or nothing.

    What happened is not waited for, only what may pass: memory, holders, heat. ``measure`` is by default the same look as
    ``before``. Give the batch's first look as ``before``, so that many small leaks add up, and a ``measure`` with
    ``since=`` the latest look, so that one fault is told once.
    """
    look = measure or partial(_again, before)
    told: tuple[Trouble, ...] = ()
    waited, pause = 0.0, FIRST_PAUSE_S
    while True:
        state = look()
        told = tuple(
            dict.fromkeys((*told, *state.told))
        )  # a later look does not tell again what an earlier one did
        state = replace(state, told=told)
        found = unclean(before, state, gates)
        if waited >= gates.settle_s or all(
            trouble in state.told or not trouble.passes for trouble in found
        ):
            return found
        sleep(pause)
        waited, pause = waited + pause + state.seconds, min(2 * pause, LONGEST_PAUSE_S)


def _again(before: BoxState) -> BoxState:
    return measure(before.asked, before.root, folder=before.folder, since=before)
