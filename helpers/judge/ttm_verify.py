"""Did a change of the TTM limit take? Before, intended and now, layer by layer, and why what did
not take did not.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.units import near, show_bytes
from helpers.judge.ceilings import Stack, ceilings, kernel_of
from helpers.judge.ttm_change import TTM_MODULES, is_built_in
from helpers.judge.ttm_plan import ttm_answer
from helpers.look import ttm as parameters
from helpers.look.bundle import Bundle
from helpers.look.machine import page_size
from helpers.look.ttm import Setting

LAYERS = ("ttm", "gtt", "kfd_bank", "hsa_pool", "hip_total")
"""The layers that should follow the limit, from TTM itself up to torch."""
PAGE_BYTES = 4096
"""Of x86, where the page size was not captured."""
SAME_RAM = 0.05
"""By what share the RAM left to Linux may differ from boot to boot without another carve-out."""


@dataclass(frozen=True)
class Layered:
    """One layer before the change and now.

    ``took`` is None where the layer was not read now, or nothing was intended. ``why`` says why it
    is not what was intended; empty where it is, or no reason was found.
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
    """Whether a change of the limit took effect, layer by layer.

    ``took`` is False where a layer that was read is not what was intended, or TTM's limit
    itself was not read. ``intended_source`` says where the intended limit comes from.
    """

    took: bool
    intended_source: str
    rows: tuple[Layered, ...]
    says: str
    warnings: tuple[str, ...]


def verify(
    earlier: Bundle,
    now: Bundle,
    reserve_bytes: int | None = None,
    target_bytes: int | None = None,
) -> VerifyResult:
    """Compare a bundle from before the change with one from after the reboot.

    Intended is the target where one is given, else what is configured now, else what was
    configured then, else what the earlier box's plan advised. Raises ValueError for a target
    that the box cannot give.
    """
    before = ceilings(earlier)[0]
    after = ceilings(now)[0]
    warnings = _unlike(earlier, now, before, after)
    if after.kind != "apu":
        says = f"Nothing to verify: {after.decision.says}"
        return VerifyResult(True, "", (), says, warnings)
    wanted, source = _intended(earlier, now, reserve_bytes, target_bytes)
    intended = not_available("nothing", "bytes", source)
    if wanted is not None:
        intended = seen(wanted, "bytes", source)
    rows = {layer: _layered(layer, before, after, intended) for layer in LAYERS}
    reasons = _reasons(earlier, now, after, rows)
    explained = tuple(
        replace(row, why=reasons.get(layer, "")) for layer, row in rows.items()
    )
    # TTM's limit must have been read; a layer above that was not read proves nothing.
    limit_took = rows["ttm"].took is True
    all_took = limit_took and not any(row.took is False for row in explained)
    return VerifyResult(
        took=wanted is None or all_took,
        intended_source=source,
        rows=explained,
        says=_summary(wanted, explained),
        warnings=warnings,
    )


def _summary(wanted: int | None, rows: tuple[Layered, ...]) -> str:
    """Whether the change took effect, in one sentence; the first row is TTM's limit."""
    if wanted is None:
        return "Nothing was intended: no limit is configured, and the plan was to leave it."
    limit = rows[0]
    if limit.took is None:
        return f"TTM's limit was not read ({limit.now.why}), so nothing is proved."
    for row in rows:
        if row.took is False:
            why = row.why
            if not why:
                why = "no reason was found in what was captured"
            return f"It did not take effect at {row.name}: {why}."
    unread = ", ".join(row.name for row in rows if row.took is None)
    if unread:
        unread = f"; not read or of its own: {unread}"
    return f"It took effect: {show_bytes(wanted)} in every layer that decides{unread}."


def _page_bytes(*bundles: Bundle) -> int:
    """The page size of the first bundle that has it."""
    for bundle in bundles:
        size = page_size(bundle)
        if size.ok:
            return size.bytes
    return PAGE_BYTES


def _limits_written(bundle: Bundle) -> list[Setting]:
    """The pages_limit settings of modprobe.d and of the kernel command line."""
    written = parameters.all_settings(bundle)
    return [setting for setting in written if setting.name == "pages_limit"]


def _intended(
    earlier: Bundle, now: Bundle, reserve_bytes: int | None, target_bytes: int | None
) -> tuple[int | None, str]:
    """The limit that was intended, in bytes, and where it comes from, in words; None and "" where
    no limit was. The order of the places is that of ``verify``.
    """
    answer = ttm_answer(earlier, reserve_bytes, target_bytes)
    page = _page_bytes(now, earlier)
    if target_bytes is not None:  # the kernel counts in pages, so a part of one is lost
        return target_bytes // page * page, "the target given"
    places = ((now, "configured now"), (earlier, "configured in the earlier bundle"))
    for bundle, words in places:
        # Of several places that disagree the largest says what was wanted, whichever of them won.
        values = [setting.value for setting in _limits_written(bundle)]
        pages = [int(value) for value in values if value.isdecimal()]
        if pages:
            return max(pages) * page, words
    if answer.plan.action != "leave":
        return answer.plan.bytes, "the plan for the earlier bundle"
    return None, ""


def _layered(layer: str, before: Stack, after: Stack, intended: Reading) -> Layered:
    """A layer of both stacks, and whether it is what was intended."""
    name, now = _name_and_value(after, layer)
    return Layered(
        layer=layer,
        name=name,
        before=_name_and_value(before, layer)[1],
        intended=intended,
        now=now,
        took=_took(layer, now, intended),
        why="",
    )


def _name_and_value(stack: Stack, layer: str) -> tuple[str, Reading]:
    """The name of a layer in a stack, and its size."""
    row = stack.row(layer)
    if row is None:
        return layer, not_available("this layer was not found", "bytes", "")
    return row.name, row.value


def _took(layer: str, now: Reading, intended: Reading) -> bool | None:
    """Whether a layer is what was intended: TTM's limit to the byte, the others as printed. None
    where that is not known, or the layer has a value of its own.
    """
    if not (intended.ok and now.ok):
        return None
    if layer == "ttm":
        return now.bytes == intended.bytes
    if near(now, intended.bytes):  # layers above round to MiB or to blocks
        return True
    if layer == "gtt" and now.bytes > intended.bytes:
        return None  # amdgpu.gttsize sets it by itself
    return False


def _reasons(
    earlier: Bundle, now: Bundle, stack: Stack, rows: dict[str, Layered]
) -> dict[str, str]:
    """Why each layer is not what was intended, by layer; without those that are.

    Every layer follows TTM's limit, so where that failed it is the reason for all others. Else
    GTT has its own setting, the KFD bank the reason that binds, and what is above the bank
    depends on the bank.
    """
    reasons: dict[str, str] = {}
    failed = [layer for layer in LAYERS if rows[layer].took is False]
    for layer in failed:
        if "ttm" in failed:
            reasons[layer] = "it follows TTM's limit, which did not take effect"
        elif layer == "gtt":
            reasons[layer] = (
                "amdgpu.gttsize, or a cap of the driver's own, keeps it below TTM's limit"
            )
        else:
            reasons[layer] = _above_the_bank(rows["kfd_bank"].took)
    if "ttm" in failed:
        reasons["ttm"] = _why_not_live(earlier, now, stack)
    elif "kfd_bank" in failed:
        reasons["kfd_bank"] = stack.decision.says.rstrip(".")
    gtt = rows["gtt"]
    if gtt.intended.ok and gtt.now.ok and gtt.took is None:
        reasons["gtt"] = (
            "amdgpu.gttsize sets it by itself, and compute does not follow it"
        )
    return reasons


def _above_the_bank(bank_took: bool | None) -> str:
    """Why a layer above the KFD bank is not what was intended; ``bank_took``: whether the bank
    itself is, None where it was not read.
    """
    if bank_took is None:
        return "the KFD bank was not read, so the kernel and the ROCm build are both possible"
    if bank_took:
        return "the ROCm build reports less than the kernel offers: change the torch or ROCm build"
    return "it follows the KFD bank"


def _why_not_live(earlier: Bundle, now: Bundle, stack: Stack) -> str:
    """Why the live limit is not the intended one."""
    # The causes in the order in which they exclude the later ones: not booted, not written,
    # written for another module, written and not read.
    boot = _boot(now)
    if boot and boot == _boot(earlier):
        return "the box was not rebooted since the earlier bundle"
    written = _limits_written(now)
    if not written:
        return _why_not_written(earlier, now)
    used = parameters.ttm_module(now)
    of_module = written
    if used.ok:
        of_module = [setting for setting in written if setting.module == used.value]
    if not of_module:
        module = written[-1].module
        return f"it is set for {module}, and amdgpu uses {used.value}: set {used.value}.pages_limit"
    live = stack.numbers.pages_limit
    assert live is not None, "asked only where the live limit was read"
    return _why_not_read(now, of_module[-1], live)


def _why_not_written(earlier: Bundle, now: Bundle) -> str:
    """Why the setting is neither on the command line nor in modprobe.d of this boot."""
    for unknown in parameters.unknown(now):
        odd = unknown.setting
        if odd.module in TTM_MODULES:
            return f"{odd.module}.{odd.name} in {odd.source} is no parameter: pages_limit was meant"
    if any(setting.name == "gttsize" for setting in parameters.all_settings(now)):
        return "only amdgpu.gttsize was set, and it does not move TTM's limit: set pages_limit"
    before = kernel_of(earlier)
    kernel = kernel_of(now)
    why = (
        "this boot has the setting neither on its command line nor in modprobe.d: "
        "an older boot entry, or it was not written"
    )
    if before and kernel and before != kernel:
        return f"{why}, and Linux {kernel} was booted instead of {before}"
    return why


def _why_not_read(now: Bundle, setting: Setting, live: int) -> str:
    """Why the setting that counts, the last one, is not live; ``live`` is the limit in bytes."""
    page = _page_bytes(now)
    value = setting.value
    source = setting.source
    if not re.fullmatch(r"[0-9]{1,19}", value):
        return f"{source}:{setting.line} says {value!r}, which is no number of pages"
    on_command_line = source == "/proc/cmdline"
    if int(value) * page == live:  # it was read, and is not what was intended
        if on_command_line:
            return (
                f"the kernel command line says {value}, and it wins over modprobe.d and over "
                "what was intended"
            )
        return f"{source}:{setting.line} says {value} and is read last"
    if on_command_line:
        return (
            f"the command line says {value} and the module took {live // page}: the driver "
            "refused or capped it"
        )
    if is_built_in(now, setting.module):
        return (
            f"{setting.module} is built into this kernel, which does not read {source}: use the "
            "kernel command line"
        )
    if _image_is_older(now, source):
        return (
            f"the initramfs is older than {source}: it was not rebuilt, and the module is "
            "loaded from it"
        )
    return (
        f"{source} is right, but was not read when the module was loaded: most likely the "
        "initramfs was not rebuilt"
    )


def _image_is_older(now: Bundle, source: str) -> bool:
    """Whether the booted kernel's initramfs was made before a file was last written; False where
    one of the times was not captured.
    """
    times = parameters.file_times(now)
    kernel = kernel_of(now)
    written = [time.mtime_s for time in times if time.path == source]
    images = [time.mtime_s for time in times if time.is_image and kernel in time.path]
    return bool(written and images) and max(images) < written[0]


def _boot(bundle: Bundle) -> str:
    """The id of the boot that a bundle is of; empty where it was not captured."""
    for row in bundle.table("host"):
        boot = str(row.get("boot_id"))
        if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", boot):
            return boot
    return ""


def _unlike(
    earlier: Bundle, now: Bundle, before: Stack, after: Stack
) -> tuple[str, ...]:
    """Sentences about what shows that the two bundles should not be compared."""
    warnings = []
    if before.pci != after.pci:
        pair = " and ".join(stack.pci or "none" for stack in (before, after))
        warnings.append(
            f"the bundles show different GPUs ({pair}): are they of one box?"
        )
    # Firmware takes the carve-out before Linux counts its RAM.
    ram = before.numbers.ram
    ram_now = after.numbers.ram
    if ram and ram_now and not near(ram, ram_now, SAME_RAM):
        warnings.append(
            f"the RAM left to Linux changed from {show_bytes(ram)} to {show_bytes(ram_now)}: "
            "another carve-out, or another box"
        )
    if earlier.captured_at > now.captured_at:
        warnings.append("the bundle given as earlier was captured later")
    return tuple(warnings)
