"""How far the TTM limit may safely be raised on a box, or why it is left alone.

Pure: a bundle and a wish in, a plan out.

The default reserve is the larger of 8 GiB and 6 % of the RAM left to Linux. A desktop, its
browser and the page cache that a model is read through need some 8 GiB whatever the size of the
box; 6 % is what page tables, slab and KFD's own reserve (a 64th and 1.5 GiB) grow by on large
ones. TTM pages cannot be taken back while a program uses them, so what is missing is swapped.
The sentences are data: ttm.json.

The plan comes with what a person would run on each boot system, how to undo it, how to verify
it. Printed, never run. Every block may be run again without harm. Setting pages_limit alone is
enough; the blocks also take away what earlier attempts left: amdgpu.gttsize (deprecated, moves
only graphics' GTT), amdgpu.vm_size (GiB of address space) and page_pool_size (a cache). Our
modprobe.d file is named so that it is read last; the kernel command line still wins over it
(modprobe.d(5)). The blocks are data as well: a row of a block is a line, or the name of a list
and the lines that stand there once for each of its items, ``{one}``; once where "any" stands
before the list's name, and with "no" where the list is empty. A line that begins with @ is one
of ``parts``. ``{names!q}`` is quoted for a shell, ``{names: --add=}`` puts those words before
each name.
"""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from helpers.ground import shapes
from helpers.ground.shapes import Reading, TtmCommand, TtmPlan, not_available, seen
from helpers.ground.units import GIB, KIB, MIB, near, parse_size, show_bytes
from helpers.judge import sentence, table
from helpers.judge.binding import GTT_AS_VRAM, GTT_IF_LARGER, decisions, kernel_release, kfd_limit
from helpers.judge.ceilings import Stack, ceilings
from helpers.look import processes
from helpers.look import ttm as parameters
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.machine import machine, page_size

RESERVE_BYTES = 8 * GIB
RESERVE_SHARE = 0.06
SMALLEST_BYTES = 64 * MIB
"""A reserve or target below this was meant in another unit: the smallest APU's limit is far above."""
NEIGHBOUR_SHARE = 0.05
CONF = "/etc/modprobe.d/zz-ttm-limit.conf"
TTM_MODULES = ("ttm", "amdttm", "amd_ttm")
SYSTEMS: dict[str, dict[str, Any]] = table("ttm")["systems"]
_warn = partial(sentence, "ttm", "warnings")


@dataclass(frozen=True)
class Room:
    """What a plan depends on.

    ``kernel`` (6, 17) or None; ``live_pages`` None where the limit was not read.

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
    box = machine(bundle)
    size = page_size(bundle)
    if not box.ram_total.ok or not size.ok:
        return None
    live = stack.numbers.pages_limit
    kernel = kernel_release(str(box.kernel.value or ""))
    pages = None if live is None else live // size.bytes
    return Room(box.ram_total.bytes, size.bytes, kernel, pages, stack.numbers.vram or 0)


def plan(space: Room, reserve_bytes: int | None = None, target_bytes: int | None = None) -> TtmPlan:
    """A limit above the kernel's default and within the RAM, KFD's limit and the target, or
    ``leave`` with the reason.

    ``reserve_bytes`` is what stays for the rest of the box, ``target_bytes`` the limit itself;
    with both, the reserve only says what the target eats. Raises ValueError, in one line, for
    what the box cannot give or what was meant in another unit.
    """
    check_wish(space, reserve_bytes, target_bytes)
    reserve = reserve_bytes
    wish = "reserve" if target_bytes is None else "target"
    if reserve is None:
        reserve = max(RESERVE_BYTES, int(space.ram_bytes * RESERVE_SHARE))
    asked = space.ram_bytes - reserve if target_bytes is None else target_bytes
    limit = min(asked, space.kfd_bytes)
    page = space.page_bytes
    default = space.default_pages
    pages = limit // page
    live = default if space.live_pages is None else space.live_pages
    stays = live * page
    kernel = space.kernel
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
    """Refuse a reserve or a target that the box cannot give, or that was meant in another unit.

    Raises ValueError.
    """
    ram = space.ram_bytes
    kfd = space.kfd_bytes
    slip = ""
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
    """Bytes of a reserve or target as typed: a number with a unit, or plain bytes; empty is None.

    Raises ValueError.
    """
    if text.strip().startswith("-"):
        raise ValueError(f"size {text!r}: expected a size above 0, such as 8GiB")
    return parse_size(text) if text.strip() else None


def in_units(pages: int, page_bytes: int) -> str:
    """One size in every unit that a tool or file wants it in, and decimal GB, which are smaller
    by 7 %.
    """
    size = pages * page_bytes
    units = f"{pages} pages of {page_bytes // KIB} KiB = {size} bytes = {size // MIB} MiB"
    return f"{units} = {size / GIB:.2f} GiB ({size / 1e9:.2f} GB of 10^9 bytes)"


def ttm(
    bundle: Bundle, reserve_bytes: int | None = None, target_bytes: int | None = None
) -> shapes.Ttm:
    """Every ceiling of a box, the one that binds, the safe limit, and what to run.

    Raises ValueError for an impossible wish.

    A box with several GPUs is answered for its APU, else for its first AMD GPU.
    """
    stack = ceilings(bundle)[0]
    space = room(bundle, stack)
    found = stack.decision
    is_apu = stack.kind == "apu"
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
        left = space.ram_bytes - made.bytes
        reserve = made.reserve_bytes or 0
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
    for odd in parameters.unknown(bundle):
        meant = f"; {odd.meant} was meant" if odd.meant else ""
        name = f"{odd.setting.module}.{odd.setting.name}"
        place = odd.setting.source
        yield _warn("unknown", name=name, place=place, meant=meant)
    if any(row.layer is None for row in limits):
        yield _warn("two modules")
    switch = [row for row in stack.rows if row.name.endswith("no_system_mem_limit")]
    if any(row.native.upper() in ("Y", "1") for row in switch):
        yield _warn("no_system_mem_limit")
    yield from _neighbours(bundle)


def _neighbours(bundle: Bundle) -> Iterator[str]:
    """Who else wants the RAM: a desktop, ZFS, huge pages, swap and zram, large processes."""
    box = machine(bundle)
    listed = processes.processes(bundle)
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
    """The line that moves the ceiling of this box, for its own distribution; None where its
    ceilings are not the cause.
    """
    found = ceilings(bundle)[0].decision
    answer = ttm(bundle)
    if found.cause != cause or answer.plan.action == "leave" or not answer.commands:
        return None
    block = answer.commands[0]
    size = answer.plan.bytes
    left = f"; {show_bytes(size)} can then be filled by GPU programs" if size else ""
    where = "live" if bundle.kind == "live" else "recorded"
    before = sentence("ttm", "before", where, box=bundle.box)
    what = f"{found.step} ({block.system})"
    harm = "the boot configuration, from the next boot on"
    return shapes.NextStep(what, block.run, before, harm + left, True, block.verify, block.undo)


def stale_settings(bundle: Bundle) -> list[tuple[str, str, str, str]]:
    """(name, value, where, why) of each setting that earlier advice leaves behind and that does
    not raise the pool.
    """
    stale = table("ttm")["stale"]
    return [
        (f"{s.module}.{s.name}", s.value, f"{s.source}:{s.line}", stale[s.name])
        for s in sum(parameters.settings(bundle), ())
        if s.name in stale and (s.name == "page_pool_size" or s.module == "amdgpu")
    ]


def change(bundle: Bundle, plan: TtmPlan, page_bytes: int) -> dict[str, Any]:
    """What the blocks can speak of, by the names that ttm.json has for it; empty where nothing
    needs doing.

    ``arguments`` of the kernel command line are to be there and ``before`` are there; ``old``
    are only before, ``new`` only after. ``drop`` are the names that go, ``files`` the
    modprobe.d files with stale settings, ``lines`` those of our own.
    """
    configured, cmdline = parameters.settings(bundle)
    used = parameters.ttm_module(bundle)
    # Ubuntu's OEM kernels and DKMS have both modules: then both get the value, and only the one
    # in use reads it.
    modules = [m for m in TTM_MODULES if m == used.value or _folder(bundle, m)] or ["ttm"]
    pages = plan.pages_limit if plan.action == "set" else None
    gone = {name for name, _, _, _ in stale_settings(bundle)}
    if plan.action != "leave":
        limits = [s for s in configured + cmdline if s.name == "pages_limit"]
        gone |= {f"{s.module}.{s.name}" for s in limits}
    if pages is None and not gone:
        return {}
    touched = {s.source for s in configured if f"{s.module}.{s.name}" in gone}
    files = [shlex.quote(f) for f in sorted(touched - {CONF}) if f.startswith("/etc/")]
    arguments = [f"{module}.pages_limit={pages}" for module in modules if pages]
    drop = sorted(gone | {argument.partition("=")[0] for argument in arguments})
    held = [f"{s.module}.{s.name}={s.value}" for s in cmdline if f"{s.module}.{s.name}" in drop]
    before = list(dict.fromkeys(held))
    old = [words for words in before if words not in arguments]
    resets = pages is None and any(name.endswith(".pages_limit") for name in drop)
    whole = (pages or 0) * page_bytes % GIB == 0
    return {
        "box": bundle.box,
        "live": [""] if bundle.kind == "live" else [],
        "pages": pages,
        "gib": (pages or 0) * page_bytes // GIB,
        "rounded": "" if whole else ", so this is a little less",
        "module": str(used.value or "ttm"),
        "conf": CONF,
        "arguments": arguments,
        "before": before,
        "old": old,
        "new": [words for words in arguments if words not in before],
        "drop": drop,
        "files": files,
        "lines": "\n".join(f"options {module} pages_limit={pages}" for module in modules),
        "strings": " ".join(f'"{argument}"' for argument in arguments),
        "names": "|".join(sorted({name.partition(".")[2] for name in drop})),
        "patterns": "|".join(name.replace(".", r"\.") for name in drop),
        "left": old + files,
        "kernel argument": before + arguments,
        "reset": [""] if resets else [],
    }


def commands(
    bundle: Bundle, plan: TtmPlan, page_bytes: int, every: bool = False
) -> list[TtmCommand]:
    """The blocks for this box's boot system first, then AMD's own tools; ``every`` gives all
    systems.

    Empty where nothing needs doing. An unknown distribution gets every block.
    """
    given = change(bundle, plan, page_bytes)
    names = list(SYSTEMS) if every else systems(bundle)
    if given and not every and is_built_in(bundle, given["module"]):
        names = [name for name in names if not name.startswith(("modprobe.d", "amd-"))]
    found = []
    for name in names if given else ():
        kind = {**table("ttm")["kinds"].get(SYSTEMS[name].get("like"), {}), **SYSTEMS[name]}
        words = {**given, "path": [kind.get("path")], "rebuild": kind.get("rebuild")}
        rows = (kind["run"], kind["undo"], table("ttm")["check"])
        found.append(TtmCommand(name, *("\n".join(_lines(part, words)) for part in rows)))
    return [block for block in found if block.run]


def _folder(bundle: Bundle, module: str) -> bool:
    return bool(bundle.sources(f"/sys/module/{module}/parameters/*"))


def is_built_in(bundle: Bundle, module: str) -> bool:
    """Whether the kernel was built with the module: then modprobe.d is not read, only the
    kernel command line.
    """
    loaded = parameters.parse_modules(bundle.read("/proc/modules").text)
    return bool(loaded) and module not in loaded and _folder(bundle, module)


def systems(bundle: Bundle) -> list[str]:
    """Names of the blocks that fit the distribution, the one to prefer first, by os-release and
    the kernel command line.
    """
    text = bundle.read("/etc/os-release").text
    fields = dict(re.findall(r"(?m)^(\w{1,40})=\"?([^\"\n]{0,200})\"?$", text))
    ids = {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}
    if "OSTREE_VERSION" in fields or re.search(r"(^|\s)ostree=", bundle.read("/proc/cmdline").text):
        ids.add("ostree")
    rows = (row["systems"] for row in table("ttm")["distributions"] if ids & set(row["ids"]))
    return next(rows, list(SYSTEMS))


class _Shell(string.Formatter):
    """Fills lines in: lists with blanks between, ``!q`` quoted for a shell, or each item behind
    the words of its format.
    """

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion != "q":
            return value
        return shlex.quote(value if isinstance(value, str) else " ".join(value))

    def format_field(self, value: Any, spec: str) -> str:
        if not isinstance(value, list):
            return str(value)
        return "".join(spec + shlex.quote(one) for one in value) if spec else " ".join(value)


def _items(name: str, given: dict[str, Any]) -> list[str]:
    """What the lines of a row stand there for: each item of its list, or once where the list
    has any or no item.
    """
    how, _, rest = name.partition(" ")
    if how not in ("any", "no"):
        return list(given[name])
    return [""] if bool(given[rest]) is (how == "any") else []


def _lines(rows: list[Any], given: dict[str, Any]) -> list[str]:
    """The lines of a block, its lists unrolled and its names filled in."""
    found = []
    parts = table("ttm")["parts"]
    for row in rows:
        items, lines = ([""], [row]) if isinstance(row, str) else (_items(row[0], given), row[1:])
        for one in items:
            words = {**given, "one": one}
            found += [_Shell().vformat(parts.get(line, line), (), words) for line in lines]
    return found


# Did a change of the TTM limit take? Before, intended and now, layer by layer, and why what did
# not take did not. Pure.

_say = partial(sentence, "ttm", "verify")
LAYERS = ("ttm", "gtt", "kfd_bank", "hsa_pool", "hip_total")


@dataclass(frozen=True)
class Layered:
    """One layer before and now.

    ``took`` is None where now was not read, or where nothing was intended.
    """

    layer: str
    name: str
    before: Reading
    intended: Reading
    now: Reading
    took: bool | None
    why: str


@dataclass(frozen=True)
class VerifyResult:
    """``took`` is False when a layer that was read is not what was intended, or TTM's limit
    itself was not read.
    """

    took: bool
    intended_bytes: int | None
    intended_source: str
    rows: tuple[Layered, ...]
    says: str
    warnings: tuple[str, ...]


def verify(
    earlier: Bundle, now: Bundle, reserve_bytes: int | None = None, target_bytes: int | None = None
) -> VerifyResult:
    """Compare a bundle from before the change with one from after the reboot.

    Intended is the target where one is given, else what is configured now, else what was
    configured then, else what the earlier box's plan advised. Raises ValueError for a target
    that the box cannot give.
    """
    was = ceilings(earlier)[0]
    is_now = ceilings(now)[0]
    unlike = _unlike(earlier, now, was, is_now)
    if is_now.kind != "apu":
        says = _say("nothing", says=is_now.decision.says)
        return VerifyResult(True, None, "", (), says, unlike)
    wanted, source = _intended(earlier, now, reserve_bytes, target_bytes)
    intended = not_available("nothing", "bytes", source)
    if wanted is not None:
        intended = seen(wanted, "bytes", source)
    rows = [_layered(layer, was, is_now, intended) for layer in LAYERS]
    why = _why_not(earlier, now, is_now, {row.layer: row for row in rows})
    rows = [replace(row, why=why.get(row.layer, "")) for row in rows]
    failed = next((row for row in rows if row.took is False), None)
    if wanted is None:
        says = _say("not intended")
    elif rows[0].took is None:
        says = _say("not read", why=rows[0].now.why)
    elif failed is not None:
        says = _say("failed", name=failed.name, why=failed.why or _say("no reason"))
    else:
        unread = ", ".join(row.name for row in rows if row.took is None)
        unread = f"; not read or of its own: {unread}" if unread else ""
        says = _say("took", size=show_bytes(wanted), unread=unread)
    all_took = wanted is None or (failed is None and rows[0].took is True)
    return VerifyResult(all_took, wanted, source, tuple(rows), says, unlike)


def _page(*bundles: Bundle) -> int:
    return next((size.bytes for size in map(page_size, bundles) if size.ok), 4096)


def _intended(
    earlier: Bundle, now: Bundle, reserve_bytes: int | None, target_bytes: int | None
) -> tuple[int | None, str]:
    answer = ttm(earlier, reserve_bytes, target_bytes)
    page = _page(now, earlier)
    if target_bytes is not None:
        return target_bytes // page * page, "the target given"
    places = ((now, "configured now"), (earlier, "configured in the earlier bundle"))
    for bundle, words in places:
        # Of several places that disagree the largest says what was wanted, whichever of them won.
        written = [s.value for s in sum(parameters.settings(bundle), ()) if s.name == "pages_limit"]
        pages = [int(value) for value in written if value.isdecimal()]
        if pages:
            return max(pages) * page, words
    if answer.plan.action != "leave":
        return answer.plan.bytes, "the plan for the earlier bundle"
    return None, ""


def _layered(layer: str, was: Stack, is_now: Stack, intended: Reading) -> Layered:
    """A layer of both stacks, and whether it is what was intended."""
    none = not_available("this layer was not found", "bytes", "")
    row = is_now.row(layer)
    wanted = intended.bytes
    took = None
    before, now = (one.value if one else none for one in (was.row(layer), row))
    if intended.ok and now.ok:
        took = now.bytes == wanted if layer == "ttm" else near(now, wanted)
        if layer == "gtt" and now.bytes > wanted and not took:
            took = None  # amdgpu.gttsize sets it by itself
    return Layered(layer, row.name if row else layer, before, intended, now, took, "")


def _why_not(
    earlier: Bundle, now: Bundle, stack: Stack, rows: dict[str, Layered]
) -> dict[str, str]:
    """The reason of each layer that is not what was intended: the first that the evidence
    supports.
    """
    failed = [layer for layer in LAYERS if rows[layer].took is False]
    gtt = rows["gtt"]
    if "ttm" in failed:
        why = {layer: _say("follows ttm") for layer in failed}
        why["ttm"] = _why_not_live(earlier, now, stack)
    else:
        bank = rows["kfd_bank"].took
        above = {True: "build", False: "follows bank", None: "bank unread"}[bank]
        why = {layer: _say("low gtt" if layer == "gtt" else above) for layer in failed}
        if "kfd_bank" in failed:
            why["kfd_bank"] = stack.decision.says.rstrip(".")
    if gtt.intended.ok and gtt.now.ok and gtt.took is None:
        why["gtt"] = _say("own gtt")
    return why


def _why_not_live(earlier: Bundle, now: Bundle, stack: Stack) -> str:
    """Why the live limit is another than the intended one."""
    booted = [_boot(bundle) for bundle in (earlier, now)]
    if booted[0] and booted[0] == booted[1]:
        return _say("not rebooted")
    written = [s for s in sum(parameters.settings(now), ()) if s.name == "pages_limit"]
    used = parameters.ttm_module(now)
    odd = [u.setting for u in parameters.unknown(now)]
    if not written:
        odd = [setting for setting in odd if setting.module in parameters.MODULES[:3]]
        if odd:
            return _say("misspelt", **asdict(odd[0]))
        if any(s.name == "gttsize" for s in sum(parameters.settings(now), ())):
            return _say("gttsize")
        before, kernel = (str(machine(bundle).kernel.value or "") for bundle in (earlier, now))
        changed = before and kernel and before != kernel
        other = f", and Linux {kernel} was booted instead of {before}" if changed else ""
        return _say("not written", booted=other)
    mine = [s for s in written if not used.ok or s.module == used.value]
    if not mine:
        return _say("another module", module=written[-1].module, used=used.value)
    last = mine[-1]
    live = stack.numbers.pages_limit or 0
    size = _page(now)
    number = int(last.value) * size if re.fullmatch(r"[0-9]{1,19}", last.value) else None
    on_line = last.source == "/proc/cmdline"
    if number == live:
        reason = "command line" if on_line else "read last"
    elif number is None:
        reason = "no number"
    elif on_line:
        reason = "capped"
    elif is_built_in(now, last.module):
        reason = "built in"
    else:
        reason = "old initramfs" if _image_is_older(now, last.source) else "initramfs"
    return _say(reason, **{**asdict(last), "live": live // size})


def _image_is_older(now: Bundle, source: str) -> bool:
    """Whether the booted kernel's initramfs was made before a file was last written."""
    times = parameters.file_times(now)
    kernel = str(machine(now).kernel.value or "")
    written = [t.mtime_s for t in times if t.path == source]
    images = [t.mtime_s for t in times if t.is_image and kernel in t.path]
    return bool(written and images) and max(images) < written[0]


def _boot(bundle: Bundle) -> str:
    boot = next((str(row.get("boot_id") or "") for row in bundle.table("host")), "")
    return boot if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", boot) else ""


def _unlike(earlier: Bundle, now: Bundle, was: Stack, is_now: Stack) -> tuple[str, ...]:
    """What speaks against comparing the two at all."""
    found = []
    before = was.numbers.ram
    after = is_now.numbers.ram
    if was.pci != is_now.pci:
        found.append(_say("other GPU", was=was.pci or "none", now=is_now.pci or "none"))
    if before and after and not near(before, after, 0.05):
        found.append(_say("other RAM", was=show_bytes(before), now=show_bytes(after)))
    if earlier.captured_at > now.captured_at:
        found.append(_say("order"))
    return tuple(found)
