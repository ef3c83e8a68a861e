"""The plan for the TTM limit of a box: every ceiling, the one that binds, the safe limit, what to
run, and what the plan would meet.

Pure: a bundle and a wish in, a plan out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from helpers.ground.shapes import NextStep, Ttm, TtmPlan
from helpers.ground.units import GIB, KIB, show_bytes
from helpers.judge.binding import answers
from helpers.judge.ceilings import Stack, ceilings
from helpers.judge.ttm_change import stale_settings
from helpers.judge.ttm_commands import commands
from helpers.judge.ttm_limit import Room, check_wish, plan, room
from helpers.look import ttm as parameters
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.machine import machine
from helpers.look.processes import processes

NEIGHBOUR_SHARE = 0.05
"""A process with this share of the RAM is named beside the plan: it takes as much as the whole
default reserve.
"""
DESKTOPS = {
    "gnome-shell",
    "kwin_wayland",
    "kwin_x11",
    "plasmashell",
    "Xorg",
    "Xwayland",
    "sway",
    "Hyprland",
    "cosmic-comp",
}
"""Display servers and compositors, by their names in /proc/PID/comm."""


def ttm_answer(
    bundle: Bundle, reserve_bytes: int | None = None, target_bytes: int | None = None
) -> Ttm:
    """Every ceiling of a box, the one that binds, the safe limit, and the commands that set it.

    Of a box with several GPUs the answer is for its APU, else for its first AMD GPU. Raises
    ValueError for a reserve or a target that the box cannot give.
    """
    stack = ceilings(bundle)[0]
    space = room(bundle, stack)
    if space is not None:
        check_wish(space, reserve_bytes, target_bytes)
    answer = Ttm(
        box=bundle.box,
        ceilings=[row.shape() for row in stack.rows if row.layer],
        binding=stack.decision.binding,
        binding_bytes=stack.decision.binding_bytes,
        plan=_plan(stack, space, reserve_bytes, target_bytes),
    )
    if stack.kind != "apu":
        return answer
    page_bytes = 4 * KIB  # of x86, where the page size was not captured
    if space is not None:
        page_bytes = space.page_bytes
    name = "the limit"
    if target_bytes is not None:
        name = "the target"
    return replace(
        answer,
        commands=commands(bundle, answer.plan, page_bytes),
        warnings=list(_warnings(bundle, stack, answer.plan, space, name)),
    )


def _plan(
    stack: Stack,
    space: Room | None,
    reserve_bytes: int | None,
    target_bytes: int | None,
) -> TtmPlan:
    """The plan for a stack; a box that no TTM limit binds is left alone."""
    decision = stack.decision
    leave = TtmPlan("leave", None, None, None, decision.says)
    if stack.kind != "apu":
        return leave
    if space is None:
        return replace(leave, why="RAM or page size were not captured; capture again")
    if target_bytes is None:  # a target that was given is planned whatever binds
        # GTT was made larger than the carve-out, and the pool became smaller than that.
        if decision.pattern == "gtt_flip":
            return replace(leave, action="remove")
        if answers()[decision.pattern]["layer"] in ("hsa_pool", "hip_total"):
            return leave  # the limit is above the kernel
    return plan(space, reserve_bytes, target_bytes)


def planned_step(
    bundle: Bundle,
    cause: str,
    reserve_bytes: int | None = None,
    target_bytes: int | None = None,
) -> NextStep | None:
    """The command that raises the ceiling of this box, for its own distribution; None where
    ``cause`` is not the cause that its ceilings show, or nothing is to be changed.
    """
    decision = ceilings(bundle)[0].decision
    if decision.cause != cause:
        return None
    answer = ttm_answer(bundle, reserve_bytes, target_bytes)
    if answer.plan.action == "leave" or not answer.commands:
        return None
    block = answer.commands[0]
    advice = f"{decision.step} ({block.system})"
    ram = machine(bundle).ram_total
    if answer.plan.action == "set" and answer.plan.bytes and ram.ok:
        left = show_bytes(ram.bytes - answer.plan.bytes)
        limit = show_bytes(answer.plan.bytes)
        advice = f"{decision.step} to {limit}, which leaves {left} to the system ({block.system})"
    harm = "new boot settings"
    if answer.plan.bytes:
        harm += f"; GPU programs can then fill {show_bytes(answer.plan.bytes)} of RAM"
    precondition = (
        f"you are root on the machine that was recorded ({bundle.box}), not on this one"
    )
    if bundle.kind == "live":
        precondition = "you are root, and you keep the old settings: casebook capture --out before.tar.gz"
    return NextStep(
        what=advice,
        command=block.run,
        precondition=precondition,
        blast_radius=harm,
        reboot=True,
        check=block.verify,
        undo=block.undo,
    )


def _warnings(
    bundle: Bundle, stack: Stack, ttm_plan: TtmPlan, space: Room | None, name: str
) -> Iterator[str]:
    """What on this box speaks against the plan or changes it, each in one line. ``name`` is what
    the limit is called: "the target" where a person gave it, else "the limit".
    """
    if space is not None and ttm_plan.bytes is not None:
        yield from _of_the_reserve(space, ttm_plan, ttm_plan.bytes, name)
    who = identity(bundle)
    if who is not None and who.container != "none" and ttm_plan.action != "leave":
        yield (
            "inside a container: its modprobe.d files are not the host's, "
            "and the commands are for the host"
        )
    yield from _of_settings(bundle, stack)
    # It lifts KFD's limit; the kernel prints a switch that is on as Y, modprobe.d as 1.
    switch = [row for row in stack.rows if row.key == "no_system_mem_limit"]
    if any(row.native.upper() in ("Y", "1") for row in switch):
        yield (
            "amdgpu.no_system_mem_limit is set: a box that runs full can livelock instead of "
            "failing"
        )
    yield from _neighbours(bundle)


def _of_the_reserve(
    space: Room, ttm_plan: TtmPlan, limit: int, name: str
) -> Iterator[str]:
    """A limit that uses up the reserve, and a carve-out beside it."""
    left = space.ram_bytes - limit
    reserve = ttm_plan.reserve_bytes
    if reserve and left < reserve and ttm_plan.action != "remove":
        yield (
            f"{name} uses up the reserve: {show_bytes(left)} of RAM are left for everything else, "
            f"{show_bytes(reserve)} are advised"
        )
    if space.carveout_bytes > 2 * GIB and ttm_plan.action == "set":
        yield (
            f"the firmware keeps {show_bytes(space.carveout_bytes)} as carve-out; "
            "carve-out and TTM's limit are alternatives and never add up"
        )


def _of_settings(bundle: Bundle, stack: Stack) -> Iterator[str]:
    """Settings that are not live, that should be removed, or that nothing reads."""
    limits = [row for row in stack.rows if row.key == "pages_limit"]
    for row in limits:
        if row.pending_bytes is not None:
            size = show_bytes(row.pending_bytes)
            yield f"{row.name}: {size} is configured in {row.pending_source} and not live"
    for stale in stale_settings(bundle):
        yield f"{stale.name}={stale.value} in {stale.place} should go: {stale.why}"
    for odd in parameters.unknown(bundle):
        name = f"{odd.setting.module}.{odd.setting.name}"
        says = f"{name} in {odd.setting.source} is no parameter and is ignored"
        if odd.meant:
            says += f"; {odd.meant} was meant"
        yield says
    # A pages_limit without a layer is of a module that amdgpu does not use.
    if any(row.layer is None for row in limits):
        yield (
            "two TTM modules are here: set the limit for both, "
            "only the one that amdgpu uses counts (ROCm#5595)"
        )


def _neighbours(bundle: Bundle) -> Iterator[str]:
    """What else uses the RAM: a desktop, ZFS, huge pages, swap and zram, large processes."""
    box = machine(bundle)
    running = processes(bundle)
    desktop = sorted({process.name for process in running} & DESKTOPS)
    if desktop:
        yield f"a desktop is running ({', '.join(desktop)}): it and its programs share the reserve"
    if box.zfs_cache.bytes >= GIB:
        yield f"{box.zfs_cache.show()} is ZFS cache, given back late"
    if box.huge_pages.bytes >= 1:
        yield f"{box.huge_pages.show()} is set aside for huge pages and can serve nothing else"
    if box.zram_used.bytes >= 1:
        yield (
            f"{box.zram_used.show()} of swap lies in RAM itself (zram): "
            "swapping frees less than it seems"
        )
    if box.swap_total.ok and not box.swap_total.value:  # read, and 0
        yield "there is no swap: when the RAM is full a program is killed at once"
    if not box.ram_total.bytes:
        return
    for process in running:
        size = process.rss_anon_bytes
        if size.bytes >= max(NEIGHBOUR_SHARE * box.ram_total.bytes, GIB):
            yield f"{process.name} (pid {process.pid}) holds {size.show()} of RAM itself"
