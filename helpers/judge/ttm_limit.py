"""How far the TTM limit may safely be raised, or why it is left alone, by the RAM, the page size
and the kernel.

Pure. The default reserve is the larger of 8 GiB and 6 % of the RAM left to Linux. A desktop, its
browser and the page cache that a model is read through need some 8 GiB whatever the size of the
box; 6 % is what page tables, slab and KFD's own reserve (a 64th and 1.5 GiB) grow by on large
ones. TTM pages cannot be taken back while a program uses them, so what is missing is swapped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.ground.shapes import TtmPlan
from helpers.ground.units import GIB, KIB, MIB, parse_size, show_bytes
from helpers.judge.ceilings import Stack, kernel_of
from helpers.judge.numbers import GTT_AS_VRAM, GTT_IF_LARGER, kernel_release, kfd_limit
from helpers.look.bundle import Bundle
from helpers.look.machine import machine, page_size

RESERVE_BYTES = 8 * GIB
RESERVE_SHARE = 0.06
"""The default reserve, in bytes and as a share of the RAM, whichever is more: see above."""
SMALLEST_BYTES = 64 * MIB
"""A reserve or target below this was meant in another unit: no box works with so little RAM."""


@dataclass(frozen=True)
class Room:
    """What the limit depends on: the RAM that the firmware's carve-out left to Linux, the size of
    a page, the ``kernel`` (6, 17) or None, the limit that is live, in pages, or None where it was
    not read, and the carve-out.
    """

    ram_bytes: int
    page_bytes: int = 4 * KIB
    kernel: tuple[int, int] | None = None
    live_pages: int | None = None
    carveout_bytes: int = 0

    @property
    def default_pages(self) -> int:
        """The limit that the kernel sets by itself: half the RAM (ttm_device.c,
        ttm_global_init).
        """
        return self.ram_bytes // self.page_bytes // 2

    @property
    def present_pages(self) -> int:
        """The limit that is live; where it was not read, the kernel's default."""
        if self.live_pages is None:
            return self.default_pages
        return self.live_pages

    @property
    def kfd_bytes(self) -> int:
        """The most that KFD lets compute programs take of the RAM together."""
        return kfd_limit(self.ram_bytes, self.kernel)


def room(bundle: Bundle, stack: Stack) -> Room | None:
    """The room on a box, or None where RAM or page size were not captured."""
    box = machine(bundle)
    size = page_size(bundle)
    if not box.ram_total.ok or not size.ok:
        return None
    numbers = stack.numbers
    live_pages = None
    if numbers.pages_limit is not None:
        live_pages = numbers.pages_limit // size.bytes
    carveout_bytes = 0
    if numbers.vram is not None:
        carveout_bytes = numbers.vram
    return Room(
        ram_bytes=box.ram_total.bytes,
        page_bytes=size.bytes,
        kernel=kernel_release(kernel_of(bundle)),
        live_pages=live_pages,
        carveout_bytes=carveout_bytes,
    )


def plan(
    space: Room, reserve_bytes: int | None = None, target_bytes: int | None = None
) -> TtmPlan:
    """What to do with the limit: ``set`` one above the kernel's default and within the RAM, KFD's
    limit and the target, ``remove`` the present one, or ``leave`` it, with the reason.

    ``reserve_bytes`` is what stays for the rest of the box, ``target_bytes`` the limit itself;
    with both, the limit is the target, and the reserve is only shown beside it. Raises
    ValueError, in one line, for a size that the box cannot give or that was meant in another
    unit.
    """
    check_wish(space, reserve_bytes, target_bytes)
    reserve = reserve_bytes
    if reserve is None:
        reserve = max(RESERVE_BYTES, int(space.ram_bytes * RESERVE_SHARE))
    wanted = space.ram_bytes - reserve
    why = (
        f"the RAM left to Linux ({show_bytes(space.ram_bytes)}) less a reserve of "
        f"{show_bytes(reserve)}"
    )
    if target_bytes is not None:
        wanted = target_bytes
        why = "the target that was given"
    limit = min(wanted, space.kfd_bytes)
    if limit < wanted:
        why += " as far as KFD's own limit allows"
    page = space.page_bytes
    pages = limit // page
    present = space.present_pages
    leave = TtmPlan("leave", present, present * page, reserve, why="")
    if space.kernel is not None and space.kernel < GTT_AS_VRAM:
        major, minor = space.kernel
        return replace(
            leave,
            why=f"before Linux 6.10 compute programs get the carve-out alone (this is "
            f"{major}.{minor}), and TTM's limit does nothing for them",
        )
    # No limit above the default is safe: one that is set may even have to go.
    if pages <= space.default_pages:
        not_set = _not_above_default(space, reserve, limit, target_bytes)
        return _at_the_default(space, replace(leave, why=not_set))
    has_no_wish = target_bytes is None and reserve_bytes is None
    why_left = _why_left_alone(space, pages, has_no_wish)
    if why_left:
        return replace(leave, why=why_left)
    return TtmPlan("set", pages, pages * page, reserve, why)


def _at_the_default(space: Room, leave: TtmPlan) -> TtmPlan:
    """The plan where no limit above the kernel's default is safe: ``remove`` one that keeps the
    pool smaller, or that is larger than KFD can give; else ``leave``.
    """
    page = space.page_bytes
    default = space.default_pages
    present_bytes = space.present_pages * page
    is_smaller = space.present_pages < default
    is_too_large = present_bytes > max(space.kfd_bytes, default * page)
    if not is_smaller and not is_too_large:
        return leave
    why = (
        f"a setting keeps the limit at {show_bytes(present_bytes)}; "
        f"better here is the kernel's default, {in_units(default, page)}"
    )
    return TtmPlan("remove", default, default * page, leave.reserve_bytes, why)


def _why_left_alone(space: Room, pages: int, has_no_wish: bool) -> str:
    """Why a limit of so many pages is not set; empty where it is.

    ``has_no_wish``: nobody gave a reserve or a target, so a limit that is higher may stay.
    """
    page = space.page_bytes
    present = space.present_pages
    # From Linux 6.15 on the pool is the larger of GTT and carve-out (759e764f7d58).
    takes_larger = space.kernel is None or space.kernel >= GTT_IF_LARGER
    if takes_larger and space.carveout_bytes >= pages * page:
        return (
            f"the firmware's carve-out ({show_bytes(space.carveout_bytes)}) is larger than what "
            f"TTM could give ({show_bytes(pages * page)}): make it smaller in the firmware first"
        )
    if pages == present:
        return f"the limit is what was asked for already: {in_units(present, page)}"
    kfd_can_give_it = present * page <= space.kfd_bytes
    if has_no_wish and pages < present and kfd_can_give_it:
        return f"the limit was raised already, to {in_units(present, page)}, which KFD can still give"
    return ""


def _not_above_default(
    space: Room, reserve: int, limit: int, target_bytes: int | None
) -> str:
    """Why a limit that is not above the kernel's default is not set."""
    shown = show_bytes(max(limit, 0))
    default = f"half the RAM ({show_bytes(space.default_pages * space.page_bytes)})"
    if target_bytes is not None:
        return f"the target ({shown}) is not above the kernel's default, {default}"
    return (
        f"what a reserve of {show_bytes(reserve)} leaves ({shown}) "
        f"is not above the kernel's default, {default}"
    )


def check_wish(
    space: Room, reserve_bytes: int | None, target_bytes: int | None
) -> None:
    """Raises ValueError for a reserve or a target that the box cannot give, or that was meant in
    another unit.
    """
    if reserve_bytes:  # a reserve of 0 is allowed
        _check_unit("reserve", reserve_bytes)
    if target_bytes is not None:
        _check_unit("target", target_bytes)
    ram = show_bytes(space.ram_bytes)
    kfd = show_bytes(space.kfd_bytes)
    if reserve_bytes is not None and reserve_bytes >= space.ram_bytes:
        reserve = show_bytes(reserve_bytes)
        raise ValueError(f"reserve {reserve}: the box has {ram} of RAM; give less")
    if target_bytes is None or target_bytes <= min(space.ram_bytes, space.kfd_bytes):
        return
    target = show_bytes(target_bytes)
    if target_bytes > space.ram_bytes:
        raise ValueError(
            f"target {target}: Linux has {ram} of RAM here; expected at most KFD's limit, {kfd}"
        )
    raise ValueError(
        f"target {target}: KFD lets programs take {kfd} of the {ram} here; expected at most that"
    )


def _check_unit(name: str, size: int) -> None:
    """Raises ValueError for a size that is not above 0, or too small to be meant in bytes."""
    if size <= 0:
        raise ValueError(f"{name} {size} bytes: expected a size above 0, such as 8GiB")
    if size < SMALLEST_BYTES:
        raise ValueError(
            f"{name} {size} bytes: too small to be meant; give a unit, such as 8GiB"
        )


def wanted_bytes(text: str) -> int | None:
    """Bytes of a reserve or target as typed: a number with a unit, or plain bytes; None for an
    empty text.

    Raises ValueError for a text that is no size above 0.
    """
    typed = text.strip()
    if not typed:
        return None
    if typed.startswith("-"):
        raise ValueError(f"size {text!r}: expected a size above 0, such as 8GiB")
    return parse_size(text)


def in_units(pages: int, page_bytes: int) -> str:
    """One size in every unit in which a tool or a file takes it, and in decimal GB, which are 7 %
    smaller than GiB.
    """
    size = pages * page_bytes
    units = (
        f"{pages} pages of {page_bytes // KIB} KiB = {size} bytes = {size // MIB} MiB"
    )
    return f"{units} = {size / GIB:.2f} GiB ({size / 1e9:.2f} GB of 10^9 bytes)"
