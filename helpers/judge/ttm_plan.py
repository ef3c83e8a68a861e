"""How far the TTM limit may safely be raised on a box, or why it is left alone. Pure: a bundle and a wish in, a plan out.

The default reserve is the larger of 8 GiB and 6 % of the RAM left to Linux. A desktop, its browser and the page cache that a
model is read through need some 8 GiB whatever the size of the box; 6 % is what page tables, slab and KFD's own reserve (a 64th
and 1.5 GiB) grow by on large ones. TTM pages cannot be taken back while a program uses them, so what is missing is swapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from helpers import shapes
from helpers.judge.binding import GTT_AS_VRAM, GTT_IF_LARGER, kernel_release, kfd_limit, table
from helpers.judge.ceilings import Ceiling, Stack, ceilings
from helpers.judge.ttm_commands import commands, stale_settings
from helpers.look import processes
from helpers.look import ttm as settings
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.machine import machine, page_size
from helpers.look.reading import GIB, KIB, MIB, parse_size, show_bytes
from helpers.shapes import TtmPlan

RESERVE_BYTES, RESERVE_SHARE = 8 * GIB, 0.06
SMALLEST_BYTES = 64 * MIB
"""A reserve or target below this was meant in another unit: the smallest APU's limit is far above."""
DESKTOPS = ("gnome-shell", "kwin_wayland", "kwin_x11", "plasmashell", "Xorg", "Xwayland", "sway", "Hyprland", "cosmic-comp")
NEIGHBOUR_SHARE = 0.05


@dataclass(frozen=True)
class Room:
    """What a plan depends on. ``kernel`` (6, 17) or None; ``live_pages`` None where the limit was not read.

    ``ram_bytes`` is what the firmware's carve-out left to Linux.
    """

    ram_bytes: int
    page_bytes: int = 4 * KIB
    kernel: tuple[int, int] | None = None
    live_pages: int | None = None
    carveout_bytes: int = 0

    @property
    def default_pages(self) -> int:
        """What the kernel takes by itself: half the RAM (ttm_device.c, ttm_global_init)."""
        return self.ram_bytes // self.page_bytes // 2

    @property
    def reserve_bytes(self) -> int:
        return max(RESERVE_BYTES, int(self.ram_bytes * RESERVE_SHARE))

    @property
    def kfd_bytes(self) -> int:
        return kfd_limit(self.ram_bytes, self.kernel)


def room(bundle: Bundle, stack: Stack) -> Room | None:
    """The room on a box, or None where RAM or page size were not captured."""
    box, size = machine(bundle), page_size(bundle)
    if not box.ram_total.ok or not size.ok:
        return None
    live, kernel = stack.numbers.pages_limit, kernel_release(str(box.kernel.value or ""))
    pages = None if live is None else live // size.bytes
    return Room(box.ram_total.bytes, size.bytes, kernel, pages, stack.numbers.vram or 0)


def plan(space: Room, reserve_bytes: int | None = None, target_bytes: int | None = None) -> TtmPlan:
    """A limit above the kernel's default and within the RAM, KFD's limit and the target, or ``leave`` with the reason.

    ``reserve_bytes`` is what stays for the rest of the box, ``target_bytes`` the limit itself; with both, the reserve only says
    what the target eats. Raises ValueError, in one line, for what the box cannot give or what was meant in another unit.
    """
    check_wish(space, reserve_bytes, target_bytes)
    reserve = space.reserve_bytes if reserve_bytes is None else reserve_bytes
    asked = space.ram_bytes - reserve if target_bytes is None else target_bytes
    limit = min(asked, space.kfd_bytes)
    pages, default = limit // space.page_bytes, space.default_pages
    live = default if space.live_pages is None else space.live_pages
    stays = live * space.page_bytes

    def made(action: Literal["set", "leave", "remove"], pages: int, why: str) -> TtmPlan:
        return TtmPlan(action, pages, pages * space.page_bytes, reserve, why)

    def leave(why: str) -> TtmPlan:
        return made("leave", live, why)

    if space.kernel is not None and space.kernel < GTT_AS_VRAM:
        number = ".".join(map(str, space.kernel))
        return leave(f"before Linux 6.10 compute programs get the carve-out alone (this is {number}), and TTM"
                     "'s limit does nothing for them")
    if pages <= default:
        if live < default or stays > max(space.kfd_bytes, default * space.page_bytes):
            better = f"better here is the kernel's default, {in_units(default, space.page_bytes)}"
            return made("remove", default, f"a setting holds the limit at {show_bytes(stays)}; {better}")
        left = f"what a reserve of {show_bytes(reserve)} leaves"
        asker = left if target_bytes is None else "the target"
        return leave(f"{asker} ({show_bytes(max(limit, 0))}) is not above the kernel's default, half the RAM "
                     f"({show_bytes(default * space.page_bytes)})")
    takes_larger = space.kernel is None or space.kernel >= GTT_IF_LARGER
    if takes_larger and space.carveout_bytes >= pages * space.page_bytes:
        return leave(f"the firmware's carve-out ({show_bytes(space.carveout_bytes)}) is larger than what TTM could give "
                     f"({show_bytes(pages * space.page_bytes)}): make it smaller in the firmware first")
    if pages == live:
        return leave(f"the limit is what was asked for already: {in_units(live, space.page_bytes)}")
    if target_bytes is None and reserve_bytes is None and pages < live and stays <= space.kfd_bytes:
        return leave(f"the limit was raised already, to {in_units(live, space.page_bytes)}, which KFD can still give")
    bounded = " as far as KFD's own limit allows" if limit < asked else ""
    rest = f"the RAM left to Linux ({show_bytes(space.ram_bytes)}) less a reserve of {show_bytes(reserve)}"
    return made("set", pages, (rest if target_bytes is None else "the target that was given") + bounded)


def check_wish(space: Room, reserve_bytes: int | None, target_bytes: int | None) -> None:
    """Refuse a reserve or a target that the box cannot give, or that was meant in another unit. Raises ValueError."""
    for name, size in (("reserve", reserve_bytes), ("target", target_bytes)):
        if size is None or (name == "reserve" and size == 0):
            continue
        if size <= 0:
            raise ValueError(f"{name} {size} bytes: expected a size above 0, such as 8GiB")
        if size < SMALLEST_BYTES:
            raise ValueError(f"{name} {size} bytes: too small to be meant{_meant(size, space)}; give a unit, such as 8GiB")
    if reserve_bytes is not None and reserve_bytes >= space.ram_bytes:
        raise ValueError(f"reserve {show_bytes(reserve_bytes)}: the box has {show_bytes(space.ram_bytes)} of RAM; give less")
    if target_bytes is not None and target_bytes > space.ram_bytes:
        raise ValueError(f"target {show_bytes(target_bytes)}: Linux has {show_bytes(space.ram_bytes)} of RAM here; expected at "
                         f"most KFD's limit, {show_bytes(space.kfd_bytes)}")
    if target_bytes is not None and target_bytes > space.kfd_bytes:
        raise ValueError(f"target {show_bytes(target_bytes)}: KFD lets programs take {show_bytes(space.kfd_bytes)} of the "
                         f"{show_bytes(space.ram_bytes)} here; expected at most that")


def _meant(size: int, space: Room) -> str:
    """Units in which a number would make sense on this box."""
    units = ((space.page_bytes, "pages"), (MIB, "MiB"), (GIB, "GiB"))
    fits = [f"{name} ({show_bytes(size * unit)})" for unit, name in units if GIB <= size * unit <= 2 * space.ram_bytes]
    return f", probably {' or '.join(fits)}" if fits else ""


def wanted_bytes(text: str) -> int | None:
    """Bytes of a reserve or target as typed: a number with a unit, or plain bytes; empty is None. Raises ValueError."""
    if not text.strip():
        return None
    if text.strip().startswith("-"):
        raise ValueError(f"size {text!r}: expected a size above 0, such as 8GiB")
    return parse_size(text)


def in_units(pages: int, page_bytes: int) -> str:
    """One size in every unit that a tool or file wants it in, and decimal GB, which are smaller by 7 %."""
    size = pages * page_bytes
    return (f"{pages} pages of {page_bytes // KIB} KiB = {size} bytes = {size // MIB} MiB = {size / GIB:.2f} GiB "
            f"({size / 1e9:.2f} GB of 10^9 bytes)")


def ttm_answer(bundle: Bundle, stacks: Sequence[Stack], reserve_bytes: int | None = None,
               target_bytes: int | None = None) -> shapes.Ttm:
    """``ttm`` for stacks that were read already; the first stack is the one that counts."""
    stack = stacks[0]
    space = room(bundle, stack)
    if space is not None:
        check_wish(space, reserve_bytes, target_bytes)
    says, pattern = stack.decision.says, stack.decision.pattern
    above_kernel = table()[pattern]["layer"] in ("hsa_pool", "hip_total")
    made = TtmPlan(action="leave", pages_limit=None, bytes=None, reserve_bytes=None, why=says)
    if stack.kind == "apu" and space is None:
        made = replace(made, why="RAM or page size were not captured; capture again")
    elif stack.kind == "apu" and pattern == "gtt_flip" and target_bytes is None:
        made = replace(made, action="remove")
    elif stack.kind == "apu" and space is not None and (target_bytes is not None or not above_kernel):
        made = plan(space, reserve_bytes, target_bytes)
    warnings = list(_warnings(bundle, stack, made, space, target_bytes)) if stack.kind == "apu" else []
    blocks = commands(bundle, made, space.page_bytes if space else 4 * KIB) if stack.kind == "apu" else []
    return shapes.Ttm(
        box=bundle.box, ceilings=[_shape(row) for row in stack.rows if row.layer],
        binding=stack.decision.binding, binding_bytes=stack.decision.binding_bytes, torch_total_bytes=stack.torch_total,
        plan=made, commands=blocks, warnings=warnings)


def _shape(row: Ceiling) -> shapes.Ceiling:
    value = row.value
    assert row.layer is not None
    return shapes.Ceiling(layer=row.layer, bytes=int(value.value or 0) if value.ok else None, source=value.source or value.why,
                          status=value.status, pending_bytes=row.pending_bytes)  # type: ignore[arg-type]


def _warnings(bundle: Bundle, stack: Stack, made: TtmPlan, space: Room | None, target_bytes: int | None) -> Iterator[str]:
    """What on this box the plan would meet, each in one line."""
    box = machine(bundle)
    if space is not None and made.bytes is not None:
        left, reserve = space.ram_bytes - made.bytes, made.reserve_bytes or 0
        if left < reserve and made.action != "remove":
            whose = "the target" if target_bytes is not None else "the limit"
            yield (f"{whose} eats the reserve: {show_bytes(left)} of RAM are left for everything else, "
                         f"{show_bytes(reserve)} are advised")
        if space.carveout_bytes > 2 * GIB and made.action == "set":
            yield (f"the firmware keeps {show_bytes(space.carveout_bytes)} as carve-out; carve-out and TTM's limit are "
                         "alternatives and never add up")
    who = identity(bundle)
    if who is not None and who.container != "none" and made.action != "leave":
        yield "inside a container: its modprobe.d files are not the host's, and the commands are for the host"
    for row in stack.rows:
        if row.pending_bytes is not None and row.name.endswith("pages_limit"):
            yield f"{row.name}: {show_bytes(row.pending_bytes)} is configured in {row.pending_source} and not live"
    for name, value, where, why in stale_settings(bundle):
        yield f"{name}={value} in {where} should go: {why}"
    for odd in settings.unknown(bundle):
        meant = f"; {odd.meant} was meant" if odd.meant else ""
        yield f"{odd.setting.module}.{odd.setting.name} in {odd.setting.source} is no parameter and is ignored{meant}"
    if any(row.layer is None and row.name.endswith("pages_limit") for row in stack.rows):
        yield "two TTM modules are here: set the limit for both, only the one that amdgpu uses counts (ROCm#5595)"
    if any(row.name.endswith("no_system_mem_limit") and row.native.upper() in ("Y", "1") for row in stack.rows):
        yield "amdgpu.no_system_mem_limit is set: a box that runs full can livelock instead of failing"
    yield from _neighbours(bundle, box.ram_total.bytes)


def _neighbours(bundle: Bundle, ram: int) -> Iterator[str]:
    """Who else wants the RAM: a desktop, ZFS, huge pages, swap and zram, large processes."""
    box = machine(bundle)
    listed = processes.processes(bundle)
    desktop = sorted({p.name for p in listed if p.name in DESKTOPS})
    if desktop:
        yield f"a desktop is running ({', '.join(desktop)}): it and its programs share the reserve"
    for reading, floor, words in ((box.zfs_cache, GIB, "is ZFS cache, given back late"),
                                  (box.huge_pages, 1, "is set aside for huge pages and can serve nothing else"),
                                  (box.zram_used, 1, "of swap lies in RAM itself (zram): swapping frees less than it seems")):
        if reading.ok and int(reading.value or 0) >= floor:
            yield f"{reading.show()} {words}"
    if box.swap_total.ok and not box.swap_total.value:
        yield "there is no swap: when the RAM is full a program is killed at once"
    for process in listed:
        size = process.rss_anon_bytes
        if ram and size.ok and int(size.value or 0) >= max(NEIGHBOUR_SHARE * ram, GIB):
            yield f"{process.name} (pid {process.pid}) holds {size.show()} of RAM itself"


def ttm(bundle: Bundle, reserve_bytes: int | None = None, target_bytes: int | None = None) -> shapes.Ttm:
    """Every ceiling of a box, the one that binds, the safe limit, and what to run. Raises ValueError for an impossible wish.

    A box with several GPUs is answered for its APU, else for its first AMD GPU.
    """
    return ttm_answer(bundle, ceilings(bundle), reserve_bytes, target_bytes)


def planned_step(bundle: Bundle, cause: str) -> shapes.NextStep | None:
    """The line that moves the ceiling of this box, for its own distribution; None where its ceilings are not the cause."""
    stacks = ceilings(bundle)
    answer = ttm_answer(bundle, stacks)
    if stacks[0].decision.cause != cause or answer.plan.action == "leave" or not answer.commands:
        return None
    left = f"; {show_bytes(answer.plan.bytes)} can then be filled by GPU programs" if answer.plan.bytes else ""
    return shapes.NextStep(
        what=f"{stacks[0].decision.step} ({answer.commands[0].system})",
        command=answer.commands[0].run,
        precondition="keep what is there: python -m helpers capture --out before.tar.gz; the lines need root",
        blast_radius="the boot configuration, from the next boot on" + left,
    )
