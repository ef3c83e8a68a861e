"""Which limit of a captured box refuses the RAM that a program asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from helpers.ground.shapes import Reading, sum_of
from helpers.judge.evidence import CaseEvidence
from helpers.judge.observation import Observation, make_observation
from helpers.look.bundle import Bundle
from helpers.look.environment import limits
from helpers.look.machine import Machine, machine

NEVER_REFUSES = "1"
STRICT = "2"
"""Values of vm.overcommit_memory (Linux Documentation/mm/overcommit-accounting.rst)."""


def host_limit_observations(
    evidence: CaseEvidence, bundle: Bundle
) -> Iterator[Observation]:
    """The limit that is below the largest refused request, else an address limit that is set at
    all, else that all limits have room; nothing where no text says that the host refused memory.
    """
    refusals = [
        message
        for message in evidence.messages
        if message.side == "host" and message.event == "refused"
    ]
    if not refusals:
        return
    sizes = [message.requested.bytes for message in refusals if message.requested]
    requested = max(sizes, default=0)
    set_limits = {limit.name: limit.soft for limit in limits(bundle) if limit.soft.ok}
    addresses = set_limits.get("as")  # RLIMIT_AS, the address space of a process
    host = machine(bundle)
    room = _room(host)
    is_beyond_room = room is not None and room.bytes < requested
    # Address space is also taken by mappings that use no RAM: a limit that is set may refuse a
    # request below it, unless the request is too large for the machine anyway.
    if addresses and (addresses.bytes < requested or not is_beyond_room):
        yield make_observation("address-limited", addresses, "", "bundle")
    elif is_beyond_room and host.overcommit.value == STRICT:
        yield make_observation("commit-used-up", room, "", "bundle")
    elif is_beyond_room:
        yield make_observation("request-above-ram", room, "", "bundle")
    elif room is not None and requested:
        yield make_observation("host-limits-fit", room, "", "bundle")


def _room(host: Machine) -> Reading | None:
    """The most that the kernel grants one request (mm/util.c, __vm_enough_memory): RAM and swap
    together or, in strict mode, what is left of the commit limit. None where that is not known,
    or the kernel never refuses.
    """
    room = sum_of([host.ram_total, host.swap_total])
    if host.overcommit.value == STRICT:
        room = host.commit_limit
        if room.ok and host.committed.ok:
            room = replace(room, value=max(0, room.bytes - host.committed.bytes))
    if host.overcommit.value in (None, NEVER_REFUSES) or not room.ok:
        return None
    return room


def host_in_words(bundle: Bundle) -> str:
    """The RAM and the limit of the control group that were read; empty where neither was."""
    host = machine(bundle)
    says = []
    if host.ram_available.ok:
        says.append(
            f"{host.ram_available.show()} of {host.ram_total.show()} of RAM available"
        )
    if host.cgroup_limit.ok:
        says.append(f"the control group's limit is {host.cgroup_limit.show()}")
    return ", ".join(says)
