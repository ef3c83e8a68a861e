"""Did a change of the TTM limit take? Before, intended and now, layer by layer, and why what did not take did not. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.judge.ceilings import Stack, ceilings
from helpers.judge.ttm_commands import is_built_in
from helpers.judge.ttm_plan import room, ttm_answer
from helpers.look import ttm
from helpers.look.bundle import Bundle
from helpers.look.machine import machine
from helpers.look.reading import Reading, not_available, seen, show_bytes
from helpers.units import near

LAYERS = ("ttm", "gtt", "kfd_bank", "hsa_pool", "hip_total")


@dataclass(frozen=True)
class Layered:
    """One layer before and now. ``took`` is None where now was not read, or where nothing was intended."""

    layer: str
    name: str
    before: Reading
    intended: Reading
    now: Reading
    took: bool | None
    why: str


@dataclass(frozen=True)
class VerifyResult:
    """``took`` is False when a layer that was read is not what was intended, or TTM's limit itself was not read."""

    took: bool
    intended_bytes: int | None
    intended_source: str
    rows: tuple[Layered, ...]
    says: str
    warnings: tuple[str, ...]


def verify(earlier: Bundle, now: Bundle, reserve_bytes: int | None = None, target_bytes: int | None = None) -> VerifyResult:
    """Compare a bundle from before the change with one from after the reboot.

    Intended is the target where one is given, else what is configured now, else what was configured then, else what the
    earlier box's plan advised. Raises ValueError for a target that the box cannot give.
    """
    was, is_now = ceilings(earlier)[0], ceilings(now)[0]
    if is_now.kind != "apu":
        says = "Nothing to verify: " + is_now.decision.says
        return VerifyResult(True, None, "", (), says, _unlike(earlier, now, was, is_now))
    wanted, source = _intended(earlier, now, was, is_now, reserve_bytes, target_bytes)
    rows = tuple(_row(layer, was, is_now, wanted, source) for layer in LAYERS)
    reasons = dict(_why_not(earlier, now, is_now, rows))
    rows = tuple(Layered(r.layer, r.name, r.before, r.intended, r.now, r.took, reasons.get(r.layer, r.why)) for r in rows)
    failed = next((row for row in rows if row.took is False), None)
    took = wanted is not None and failed is None and rows[0].took is True
    if wanted is None:
        says = "Nothing was intended: no limit is configured, and the plan was to leave it."
        took = True
    elif rows[0].took is None:
        says = f"TTM's limit was not read ({rows[0].now.why}), so nothing is proved."
    elif failed is not None:
        says = f"It did not take at {failed.name}: {failed.why or 'no reason was found in what was captured'}."
    else:
        unread = [row.name for row in rows if row.took is None]
        says = f"It took: {show_bytes(wanted)} in every layer that decides"
        says += f"; not read or of its own: {', '.join(unread)}." if unread else "."
    return VerifyResult(took, wanted, source, rows, says, _unlike(earlier, now, was, is_now))


def _intended(earlier: Bundle, now: Bundle, was: Stack, is_now: Stack, reserve_bytes: int | None,
              target_bytes: int | None) -> tuple[int | None, str]:
    space = room(now, is_now) or room(earlier, was)
    answer = ttm_answer(earlier, [was], reserve_bytes, target_bytes)
    page = space.page_bytes if space else 4096
    if target_bytes is not None:
        return target_bytes // page * page, "the target given"
    for bundle, words in ((now, "configured now"), (earlier, "configured in the earlier bundle")):
        # Of several places that disagree the largest says what was wanted, whichever of them won.
        written = [int(s.value) for s in sum(ttm.settings(bundle), ()) if s.name == "pages_limit" and s.value.isdecimal()]
        if written:
            return max(written) * page, words
    if answer.plan.action != "leave":
        return answer.plan.bytes, "the plan for the earlier bundle"
    return None, ""


def _row(layer: str, was: Stack, is_now: Stack, wanted: int | None, source: str) -> Layered:
    none = not_available("this layer was not found", "bytes", "")
    found, earlier = is_now.row(layer), was.row(layer)
    now, before = found.value if found else none, earlier.value if earlier else none
    intended = seen(wanted, "bytes", source) if wanted is not None else not_available("nothing", "bytes", source)
    took, why = None, ""
    if wanted is not None and now.ok:
        size = int(now.value or 0)
        took = size == wanted if layer == "ttm" else near(size, wanted)
        if layer == "gtt" and not took and size > wanted:
            took, why = None, "amdgpu.gttsize sets it by itself, and compute does not follow it"
    return Layered(layer, found.name if found else layer, before, intended, now, took, why)


def _why_not(earlier: Bundle, now: Bundle, stack: Stack, rows: tuple[Layered, ...]) -> Iterable[tuple[str, str]]:
    """(layer, reason) of each layer that is not what was intended, by the first reason that the evidence supports."""
    states = {row.layer: row.took for row in rows}
    if states["ttm"] is False:
        yield "ttm", _why_not_live(earlier, now, stack, int(rows[0].intended.value or 0))
        for layer in LAYERS[1:]:
            if states[layer] is False:
                yield layer, "it follows TTM's limit, which did not take"
        return
    if states["gtt"] is False:
        yield "gtt", "amdgpu.gttsize, or a cap of the driver's own, holds it below TTM's limit"
    if states["kfd_bank"] is False:
        yield "kfd_bank", stack.decision.says.rstrip(".")
    for layer in ("hsa_pool", "hip_total"):
        if states[layer] is False:
            yield layer, "the ROCm build reports less than the kernel offers: change the torch or ROCm build" \
                if states["kfd_bank"] else "it follows the KFD bank" if states["kfd_bank"] is False else \
                "the KFD bank was not read, so the kernel and the ROCm build are both possible"


def _why_not_live(earlier: Bundle, now: Bundle, stack: Stack, wanted: int) -> str:
    """Why the live limit is another than the intended one."""
    booted = [_boot(bundle) for bundle in (earlier, now)]
    if booted[0] and booted[0] == booted[1]:
        return "the box was not rebooted since the earlier bundle"
    configured, cmdline = ttm.settings(now)
    written = [s for s in configured + cmdline if s.name == "pages_limit"]
    used = ttm.ttm_module(now)
    kernels = [str(machine(bundle).kernel.value or "") for bundle in (earlier, now)]
    if not written:
        changed = all(kernels) and kernels[0] != kernels[1]
        other = f", and Linux {kernels[1]} was booted instead of {kernels[0]}" if changed else ""
        odd = next((u for u in ttm.unknown(now) if u.setting.module in ttm.MODULES[:3]), None)
        if odd:
            return f"{odd.setting.module}.{odd.setting.name} in {odd.setting.source} is no parameter: pages_limit was meant"
        if any(s.name == "gttsize" for s in configured + cmdline):
            return "only amdgpu.gttsize was set, and it does not move TTM's limit: set pages_limit"
        return "this boot has the setting neither on its command line nor in modprobe.d: an older boot entry, or it was not " \
               f"written{other}"
    mine = [s for s in written if not used.ok or s.module == used.value]
    if not mine:
        return f"it is set for {written[-1].module}, and amdgpu uses {used.value}: set {used.value}.pages_limit"
    last, live = mine[-1], stack.numbers.pages_limit or 0
    page = room(now, stack)
    size = page.page_bytes if page else 4096
    values = [(s, int(s.value) * size if re.fullmatch(r"[0-9]{1,19}", s.value) else None) for s in mine]
    if last.source == "/proc/cmdline" and values[-1][1] == live:
        return f"the kernel command line says {last.value}, and it wins over modprobe.d and over what was intended"
    if values[-1][1] is None:
        return f"{last.source}:{last.line} says {last.value!r}, which is no number of pages"
    if values[-1][1] == live:
        return f"{last.source}:{last.line} says {last.value} and is read last"
    if last.source == "/proc/cmdline":
        return f"the command line says {last.value} and the module took {live // size}: the driver refused or capped it"
    if is_built_in(now, last.module):
        return f"{last.module} is built into this kernel, which does not read {last.source}: use the kernel command line"
    times = ttm.file_times(now)
    written_at = next((t.mtime_s for t in times if t.path == last.source), None)
    images = [t for t in times if t.is_image and (not kernels[1] or kernels[1] in t.path)]
    if written_at is not None and images and max(t.mtime_s for t in images) < written_at:
        return f"the initramfs is older than {last.source}: it was not rebuilt, and the module is loaded from it"
    return f"{last.source} is right and was not read when the module was loaded: most likely the initramfs was not rebuilt"


def _boot(bundle: Bundle) -> str:
    boot = next((str(row.get("boot_id") or "") for row in bundle.table("host")), "")
    return boot if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", boot) else ""


def _unlike(earlier: Bundle, now: Bundle, was: Stack, is_now: Stack) -> tuple[str, ...]:
    """What speaks against comparing the two at all."""
    found = []
    if was.pci != is_now.pci:
        found.append(f"the bundles show different GPUs ({was.pci or 'none'} and {is_now.pci or 'none'}): are they of one box?")
    if was.numbers.ram and is_now.numbers.ram and not near(was.numbers.ram, is_now.numbers.ram, 0.05):
        found.append(f"the RAM left to Linux changed from {show_bytes(was.numbers.ram)} to {show_bytes(is_now.numbers.ram)}: "
                     "another carve-out, or another box")
    if earlier.captured_at > now.captured_at:
        found.append("the bundle given as earlier was captured later")
    return tuple(found)
