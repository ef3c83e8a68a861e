"""Did a change of the TTM limit take? Before, intended and now, layer by layer, and why what did not take did not. Pure."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from functools import partial

from helpers.judge import sentence
from helpers.judge.ceilings import Stack, ceilings
from helpers.judge.ttm_plan import is_built_in
from helpers.judge.ttm_plan import ttm as ttm_answer
from helpers.look import ttm
from helpers.look.bundle import Bundle
from helpers.look.machine import machine, page_size
from helpers.shapes import Reading, not_available, seen
from helpers.units import near, show_bytes

_say = partial(sentence, "ttm", "verify")
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


def verify(
    earlier: Bundle, now: Bundle, reserve_bytes: int | None = None, target_bytes: int | None = None
) -> VerifyResult:
    """Compare a bundle from before the change with one from after the reboot.

    Intended is the target where one is given, else what is configured now, else what was configured then, else what the
    earlier box's plan advised. Raises ValueError for a target that the box cannot give.
    """
    was, is_now = ceilings(earlier)[0], ceilings(now)[0]
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
    answer, page = ttm_answer(earlier, reserve_bytes, target_bytes), _page(now, earlier)
    if target_bytes is not None:
        return target_bytes // page * page, "the target given"
    places = ((now, "configured now"), (earlier, "configured in the earlier bundle"))
    for bundle, words in places:
        # Of several places that disagree the largest says what was wanted, whichever of them won.
        written = [s.value for s in sum(ttm.settings(bundle), ()) if s.name == "pages_limit"]
        pages = [int(value) for value in written if value.isdecimal()]
        if pages:
            return max(pages) * page, words
    if answer.plan.action != "leave":
        return answer.plan.bytes, "the plan for the earlier bundle"
    return None, ""


def _layered(layer: str, was: Stack, is_now: Stack, intended: Reading) -> Layered:
    """A layer of both stacks, and whether it is what was intended."""
    none = not_available("this layer was not found", "bytes", "")
    row, wanted, took = is_now.row(layer), intended.bytes, None
    before, now = (one.value if one else none for one in (was.row(layer), row))
    if intended.ok and now.ok:
        took = now.bytes == wanted if layer == "ttm" else near(now, wanted)
        if layer == "gtt" and now.bytes > wanted and not took:
            took = None  # amdgpu.gttsize sets it by itself
    return Layered(layer, row.name if row else layer, before, intended, now, took, "")


def _why_not(
    earlier: Bundle, now: Bundle, stack: Stack, rows: dict[str, Layered]
) -> dict[str, str]:
    """The reason of each layer that is not what was intended: the first that the evidence supports."""
    failed, gtt = [layer for layer in LAYERS if rows[layer].took is False], rows["gtt"]
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
    written = [s for s in sum(ttm.settings(now), ()) if s.name == "pages_limit"]
    used, odd = ttm.ttm_module(now), [u.setting for u in ttm.unknown(now)]
    if not written:
        odd = [setting for setting in odd if setting.module in ttm.MODULES[:3]]
        if odd:
            return _say("misspelt", **asdict(odd[0]))
        if any(s.name == "gttsize" for s in sum(ttm.settings(now), ())):
            return _say("gttsize")
        before, kernel = (str(machine(bundle).kernel.value or "") for bundle in (earlier, now))
        changed = before and kernel and before != kernel
        other = f", and Linux {kernel} was booted instead of {before}" if changed else ""
        return _say("not written", booted=other)
    mine = [s for s in written if not used.ok or s.module == used.value]
    if not mine:
        return _say("another module", module=written[-1].module, used=used.value)
    last, live, size = mine[-1], stack.numbers.pages_limit or 0, _page(now)
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
    times, kernel = ttm.file_times(now), str(machine(now).kernel.value or "")
    written = [t.mtime_s for t in times if t.path == source]
    images = [t.mtime_s for t in times if t.is_image and kernel in t.path]
    return bool(written and images) and max(images) < written[0]


def _boot(bundle: Bundle) -> str:
    boot = next((str(row.get("boot_id") or "") for row in bundle.table("host")), "")
    return boot if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", boot) else ""


def _unlike(earlier: Bundle, now: Bundle, was: Stack, is_now: Stack) -> tuple[str, ...]:
    """What speaks against comparing the two at all."""
    found, before, after = [], was.numbers.ram, is_now.numbers.ram
    if was.pci != is_now.pci:
        found.append(_say("other GPU", was=was.pci or "none", now=is_now.pci or "none"))
    if before and after and not near(before, after, 0.05):
        found.append(_say("other RAM", was=show_bytes(before), now=show_bytes(after)))
    if earlier.captured_at > now.captured_at:
        found.append(_say("order"))
    return tuple(found)
