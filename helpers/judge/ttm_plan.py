"""How far the TTM limit may safely be raised on a box, or why it is left alone. Pure: a bundle and a wish in, a plan out.

The default reserve is the larger of 8 GiB and 6 % of the RAM left to Linux. A desktop, its browser and the page cache that a
model is read through need some 8 GiB whatever the size of the box; 6 % is what page tables, slab and KFD's own reserve (a 64th
and 1.5 GiB) grow by on large ones. TTM pages cannot be taken back while a program uses them, so what is missing is swapped.
The sentences are data: ttm.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from helpers import shapes
from helpers.judge import sentence, table
from helpers.judge.binding import GTT_AS_VRAM, GTT_IF_LARGER, decisions, kernel_release, kfd_limit
from helpers.judge.ceilings import Stack, ceilings
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
NEIGHBOUR_SHARE = 0.05
_warn = partial(sentence, "ttm", "warnings")


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
    reserve, wish = reserve_bytes, "reserve" if target_bytes is None else "target"
    if reserve is None:
        reserve = max(RESERVE_BYTES, int(space.ram_bytes * RESERVE_SHARE))
    asked = space.ram_bytes - reserve if target_bytes is None else target_bytes
    limit, page, default = min(asked, space.kfd_bytes), space.page_bytes, space.default_pages
    pages, live = limit // page, default if space.live_pages is None else space.live_pages
    stays, kernel = live * page, space.kernel
    sizes = {"ram": space.ram_bytes, "carveout": space.carveout_bytes, "reserve": reserve}
    sizes.update(limit=max(limit, 0), stays=stays, pool=pages * page, default=default * page)
    words = {name: show_bytes(size) for name, size in sizes.items()}
    words.update(live_units=in_units(live, page), default_units=in_units(default, page))

    def made(action: str, pages: int, why: str) -> TtmPlan:
        says = sentence("ttm", "plan", why, kernel=".".join(map(str, kernel or ())), **words)
        return TtmPlan(action, pages, pages * page, reserve, says)  # type: ignore[arg-type]

    if kernel is not None and kernel < GTT_AS_VRAM:
        return made("leave", live, "old kernel")
    if pages <= default:
        if live < default or stays > max(space.kfd_bytes, default * page):
            return made("remove", default, "odd limit")
        return made("leave", live, f"small {wish}")
    takes_larger = kernel is None or kernel >= GTT_IF_LARGER
    if takes_larger and space.carveout_bytes >= pages * page:
        return made("leave", live, "larger carve-out")
    if pages == live:
        return made("leave", live, "as asked")
    if target_bytes is None and reserve_bytes is None and pages < live and stays <= space.kfd_bytes:
        return made("leave", live, "raised")
    return made("set", pages, f"bounded {wish}" if limit < asked else wish)


def check_wish(space: Room, reserve_bytes: int | None, target_bytes: int | None) -> None:
    """Refuse a reserve or a target that the box cannot give, or that was meant in another unit. Raises ValueError."""
    ram, kfd, slip = space.ram_bytes, space.kfd_bytes, ""
    words = {"ram": show_bytes(ram), "kfd": show_bytes(kfd)}
    for name, size in (("reserve", reserve_bytes), ("target", target_bytes)):
        if size is None or slip or (name == "reserve" and size == 0):
            continue
        words.update({name: show_bytes(size), "name": name, "size": str(size)})
        if size < SMALLEST_BYTES:
            slip = "another unit" if size > 0 else "not above 0"
            words["meant"] = _meant(size, space)
    if not slip and (reserve_bytes or 0) >= ram:
        slip = "reserve"
    if not slip and target_bytes is not None and target_bytes > min(ram, kfd):
        slip = "above RAM" if target_bytes > ram else "above KFD"
    if slip:
        raise ValueError(sentence("ttm", "refused", slip, **words))


def _meant(size: int, space: Room) -> str:
    """Units in which a number would make sense on this box."""
    units = ((space.page_bytes, "pages"), (MIB, "MiB"), (GIB, "GiB"))
    sizes = [(name, size * unit) for unit, name in units]
    fits = [f"{name} ({show_bytes(n)})" for name, n in sizes if GIB <= n <= 2 * space.ram_bytes]
    return f", probably {' or '.join(fits)}" if fits else ""


def wanted_bytes(text: str) -> int | None:
    """Bytes of a reserve or target as typed: a number with a unit, or plain bytes; empty is None. Raises ValueError."""
    if text.strip().startswith("-"):
        raise ValueError(f"size {text!r}: expected a size above 0, such as 8GiB")
    return parse_size(text) if text.strip() else None


def in_units(pages: int, page_bytes: int) -> str:
    """One size in every unit that a tool or file wants it in, and decimal GB, which are smaller by 7 %."""
    size = pages * page_bytes
    units = f"{pages} pages of {page_bytes // KIB} KiB = {size} bytes = {size // MIB} MiB"
    return f"{units} = {size / GIB:.2f} GiB ({size / 1e9:.2f} GB of 10^9 bytes)"


def ttm(
    bundle: Bundle, reserve_bytes: int | None = None, target_bytes: int | None = None
) -> shapes.Ttm:
    """Every ceiling of a box, the one that binds, the safe limit, and what to run. Raises ValueError for an impossible wish.

    A box with several GPUs is answered for its APU, else for its first AMD GPU.
    """
    stack = ceilings(bundle)[0]
    space, found, is_apu = room(bundle, stack), stack.decision, stack.kind == "apu"
    if space is not None:
        check_wish(space, reserve_bytes, target_bytes)
    above_kernel = decisions()[found.pattern]["layer"] in ("hsa_pool", "hip_total")
    made = TtmPlan("leave", None, None, None, found.says)
    if is_apu and space is None:
        made = replace(made, why=sentence("ttm", "plan", "no room"))
    elif is_apu and found.pattern == "gtt_flip" and target_bytes is None:
        made = replace(made, action="remove")
    elif is_apu and space is not None and (target_bytes is not None or not above_kernel):
        made = plan(space, reserve_bytes, target_bytes)
    whose = "the limit" if target_bytes is None else "the target"
    return shapes.Ttm(
        box=bundle.box,
        ceilings=[row.shape() for row in stack.rows if row.layer],
        binding=found.binding,
        binding_bytes=found.binding_bytes,
        torch_total_bytes=stack.numbers.torch,
        plan=made,
        commands=commands(bundle, made, space.page_bytes if space else 4 * KIB) if is_apu else [],
        warnings=list(_warnings(bundle, stack, made, space, whose)) if is_apu else [],
    )


def _warnings(
    bundle: Bundle, stack: Stack, made: TtmPlan, space: Room | None, whose: str
) -> Iterator[str]:
    """What on this box the plan would meet, each in one line."""
    if space is not None and made.bytes is not None:
        left, reserve = space.ram_bytes - made.bytes, made.reserve_bytes or 0
        if left < reserve and made.action != "remove":
            sizes = {"left": show_bytes(left), "reserve": show_bytes(reserve)}
            yield _warn("reserve", whose=whose, **sizes)
        if space.carveout_bytes > 2 * GIB and made.action == "set":
            yield _warn("carve-out", carveout=show_bytes(space.carveout_bytes))
    who = identity(bundle)
    if who is not None and who.container != "none" and made.action != "leave":
        yield _warn("container")
    limits = [row for row in stack.rows if row.name.endswith("pages_limit")]
    for row in limits:
        if row.pending_bytes is not None:
            size = show_bytes(row.pending_bytes)
            yield _warn("pending", name=row.name, size=size, place=row.pending_source)
    for name, value, place, why in stale_settings(bundle):
        yield _warn("stale", name=name, value=value, place=place, why=why)
    for odd in settings.unknown(bundle):
        meant = f"; {odd.meant} was meant" if odd.meant else ""
        name, place = f"{odd.setting.module}.{odd.setting.name}", odd.setting.source
        yield _warn("unknown", name=name, place=place, meant=meant)
    if any(row.layer is None for row in limits):
        yield _warn("two modules")
    switch = [row for row in stack.rows if row.name.endswith("no_system_mem_limit")]
    if any(row.native.upper() in ("Y", "1") for row in switch):
        yield _warn("no_system_mem_limit")
    yield from _neighbours(bundle)


def _neighbours(bundle: Bundle) -> Iterator[str]:
    """Who else wants the RAM: a desktop, ZFS, huge pages, swap and zram, large processes."""
    box, listed = machine(bundle), processes.processes(bundle)
    desktop = sorted({p.name for p in listed} & set(table("ttm")["desktops"]))
    if desktop:
        yield _warn("desktop", names=", ".join(desktop))
    for name, least in (("zfs_cache", GIB), ("huge_pages", 1), ("zram_used", 1)):
        size = getattr(box, name)
        if size.bytes >= least:
            yield _warn(name, size=size.show())
    if box.swap_total.ok and not box.swap_total.value:
        yield _warn("no swap")
    for one in listed:
        size = one.rss_anon_bytes
        if box.ram_total.bytes and size.bytes >= max(NEIGHBOUR_SHARE * box.ram_total.bytes, GIB):
            yield _warn("process", name=one.name, pid=one.pid, size=size.show())


def planned_step(bundle: Bundle, cause: str) -> shapes.NextStep | None:
    """The line that moves the ceiling of this box, for its own distribution; None where its ceilings are not the cause."""
    found, answer = ceilings(bundle)[0].decision, ttm(bundle)
    if found.cause != cause or answer.plan.action == "leave" or not answer.commands:
        return None
    size = answer.plan.bytes
    left = f"; {show_bytes(size)} can then be filled by GPU programs" if size else ""
    return shapes.NextStep(
        what=f"{found.step} ({answer.commands[0].system})",
        command=answer.commands[0].run,
        precondition="keep what is there: python -m helpers capture --out before.tar.gz; the lines need root",
        blast_radius="the boot configuration, from the next boot on" + left,
    )
