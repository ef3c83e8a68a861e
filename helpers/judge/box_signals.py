"""What a captured box shows, as named signals: access, builds, holders, ceilings and the kernel log."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.look import framework, kernel_log, ttm
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus
from helpers.look.machine import machine
from helpers.look.processes import processes
from helpers.look.reading import Reading, seen

from .obstacles import obstacles
from .oom_message import OomMessage
from .signals import CONTEXT_BYTES, MIB, Signal
from .totals import near

# Firmware, page tables and a console's framebuffer belong to no process: below both of these nothing is unexplained.
UNEXPLAINED_SHARE, UNEXPLAINED_BYTES = 0.02, 512 * MIB
ROUNDING_BYTES = 2 * MIB
OBSTACLES = {"no_gpu": "no_gpu", "no_driver": "no_driver", "no_device": "no_driver", "variable": "gpus_hidden"}
EVENTS = {"gpu_reset": "gpu_reset", "vram_lost": "gpu_reset", "ring_timeout": "gpu_reset", "mes_hang": "gpu_reset",
          "vm_fault": "memory_fault", "cs_enomem": "command_submission", "nonzero_when_fini": "kernel_leak",
          "oom_killer": "host_killed",
          "pcie_atomics": "peer_words", "unknown_parameter": "unknown_option"}
XIDS = {"13": "memory_fault", "31": "memory_fault", "79": "gpu_reset", "48": "gpu_reset"}


def box_signals(bundle: Bundle, messages: tuple[OomMessage, ...] = ()) -> list[Signal]:
    """Every signal of a box. ``messages`` tell which holder is the failing program itself."""
    found = gpus(bundle)
    rows = [*_access(bundle, found), *_build(bundle, found), *_holders(bundle, found, messages), *_ceilings(bundle, found),
        *_kernel(bundle)]
    return [Signal(name, reading, says, "bundle") for name, reading, says in rows]


_Row = tuple[str, Reading, str]


def _access(bundle: Bundle, found: tuple[Gpu, ...]) -> Iterator[_Row]:
    for way in obstacles(bundle):
        if way.cause == "no_gpu" and found:
            continue  # the bus list is incomplete: another layer sees a GPU
        reading = seen(way.cause, "text", way.path or "pci_devices", way.item)
        yield OBSTACLES.get(way.cause, "access_refused"), reading, way.says[:1].upper() + way.says[1:]
    who = identity(bundle)
    if who is not None and who.container not in ("", "none"):
        yield "in_container", seen(who.container, "text", "identity", who.item), "The look was taken inside a container"


def _build(bundle: Bundle, found: tuple[Gpu, ...]) -> Iterator[_Row]:
    build = framework.framework(bundle)
    vendors = {gpu.vendor for gpu in found} - {"Intel"}
    wanted = {"rocm": "AMD", "cuda": "NVIDIA"}.get(build.build)
    if build.build and vendors and wanted not in vendors:
        here = " and ".join(sorted(vendors))
        yield "build_without_this_gpu", build.version, f"torch is built for {wanted or 'the CPU alone'}; {here} is here"
    for gpu in found:
        gfx = gpu.indices.get("gfx", "")
        bare = {arch.split(":")[0] for arch in build.archs}
        if build.build == "rocm" and gfx and bare and not bare & {gfx, gfx[:-1] + "-generic", gfx[:5] + "-generic"}:
            listed = ", ".join(sorted(bare))[:160]
            yield "gfx_not_in_targets", seen(gfx, "text", "torch", build.version.item), f"torch is built for {listed}"


def _holders(bundle: Bundle, found: tuple[Gpu, ...], messages: tuple[OomMessage, ...]) -> Iterator[_Row]:
    ours = [own for own in map(_own, messages) if own]
    for gpu in found:
        used = next((p.used for p in gpu.pools if p.layer in ("sysfs VRAM", "nvidia-smi")), None)
        total = next((p.total for p in gpu.pools if p.layer in ("sysfs VRAM", "nvidia-smi") and p.total.ok), None)
        if used is not None and used.ok:
            in_use = int(used.value or 0)
            yield "used_" + gpu.pci, used, f"In use on {gpu.pci}, by all together"
            if gpu.unattributed.ok and not gpu.integrated:
                rest = int(gpu.unattributed.value or 0)
                if rest >= UNEXPLAINED_BYTES and rest >= UNEXPLAINED_SHARE * in_use:
                    yield "unattributed", gpu.unattributed, f"Of it, no process seen here holds this much on {gpu.pci}"
                    if gpu.blind_spots:
                        for spot in gpu.blind_spots:
                            yield "blind_spot", seen(spot, "text", "identity, device_files"), "So a holder may be there unseen"
                    else:
                        whole = seen("all", "text", "identity, device_files")
                        yield "all_processes_seen", whole, "Every process could be looked at"
                else:
                    yield "explained", gpu.unattributed, f"The processes seen hold what {gpu.pci} has in use, but this much"
        for holder in gpu.holders:
            if not holder.memory.ok or not total:
                continue
            size = int(holder.memory.value or 0)
            if holder.state == "Z" and size > UNEXPLAINED_BYTES:
                yield "zombie_holder", holder.memory, f"pid {holder.pid} is a zombie and holds this much"
            elif _another(size, int(total.value or 0), ours) and "host PID" not in holder.note:
                says = f"pid {holder.pid} ({holder.name}) holds this much of {total.show()}"
                yield "other_holder_measured", holder.memory, says
    for process in processes(bundle):
        if process.state == "Z" and any(process.pid == h.pid for gpu in found for h in gpu.holders):
            yield "survivors", seen(process.pid, "count", "processes"), f"{process.name} is a zombie with the device open"


def _own(m: OomMessage) -> tuple[int, int] | None:
    """What the failing process held by its message, at least and at most; None where it does not say."""
    if m.process:
        return int(m.process.bytes * 0.98), int(m.process.bytes * 1.02) + CONTEXT_BYTES // 4
    if m.allocated is None:
        return None
    held = max(m.reserved_total.bytes if m.reserved_total else 0,
               m.allocated.bytes + (m.reserved_unallocated.bytes if m.reserved_unallocated else 0))
    return int(held * 0.98), int(held * 1.02) + 2 * CONTEXT_BYTES


def _another(size: int, total: int, ours: list[tuple[int, int]]) -> bool:
    """Whether a holder of this size is not the failing process: it holds most of the card, and both fit on it together."""
    return bool(ours) and size > total // 2 and all(size > most and least + size <= total * 1.02 for least, most in ours)


def _ceilings(bundle: Bundle, found: tuple[Gpu, ...]) -> Iterator[_Row]:
    limits = [p for p in ttm.parameters(bundle) if p.name == "pages_limit" and p.live_bytes.ok]
    ram = machine(bundle).ram_total
    for gpu in found:
        if not gpu.integrated:
            continue
        yield "integrated", gpu.name, "The GPU shares the RAM of the CPU"
        totals = {p.layer: p.total for p in gpu.pools if p.total.ok}
        bank = totals.get("KFD bank") or totals.get("HSA pool") or totals.get("torch")
        torch, gtt, carve = totals.get("torch"), totals.get("sysfs GTT"), totals.get("sysfs VRAM")
        if bank is None:
            continue
        pool = int(bank.value or 0)
        for limit in limits:
            cap = int(limit.live_bytes.value or 0)
            if ram.ok and abs(pool - cap) <= ROUNDING_BYTES and abs(cap - int(ram.value or 0) // 2) <= ROUNDING_BYTES:
                yield "ttm_default", limit.live_bytes, (
                    f"The TTM limit is half the RAM ({ram.show()}), its default, and the pool that compute allocates from")
                yield "pool_" + gpu.pci, bank, "What the compute stack may allocate from"
                if gtt is not None and int(gtt.value or 0) > cap + ROUNDING_BYTES:
                    yield "pool_above_runtime", gtt, "The GTT of amdgpu itself is above it; HIP does not use that"
            if limit.pending is not None:
                yield "ttm_pending", limit.live_bytes, f"Live; {limit.pending.source} asks for {limit.pending.value} pages"
        if torch is not None and pool > 1.3 * int(torch.value or 0):
            yield "kfd_above_torch", torch, f"torch's total; KFD offers {bank.show()}"
        if carve is not None and gtt is not None and near(pool, int(carve.value or 0)) and int(gtt.value or 0) > 2 * pool:
            yield "total_is_carveout", bank, f"The pool is the firmware's carve-out; GTT offers {gtt.show()}"


def _kernel(bundle: Bundle) -> Iterator[_Row]:
    for event in kernel_log.events(bundle):
        name = XIDS.get(event.detail, "") if event.kind == "xid" else EVENTS.get(event.kind, "")
        if name and event.boot == 0:
            words = seen(event.text[:160] or event.kind, "text", event.source)
            yield name, words, f"The kernel log has it, {event.count} time(s)"
    kills = machine(bundle).cgroup_oom_kills
    if kills.ok and int(kills.value or 0) > 0:
        yield "host_killed", kills, "The control group's limit killed this many processes"
