"""Every ceiling between a box's RAM and torch, per GPU, and the one that binds. Pure: a bundle in, facts and a decision out.

An APU's pool is one of two things, never their sum: the firmware's carve-out, or what TTM may take of the RAM left to Linux.
Which one, and so which setting can move it, goes by the kernel (amd-gfx patches 89773b85599a, Linux 6.10; 759e764f7d58, Linux
6.15). amdgpu.gttsize moves the GTT that graphics sees and not that pool; amdgpu.vm_size is GiB of address space and sizes no
pool; page_pool_size is a cache of freed pages, need not match pages_limit and limits nothing. pages_limit alone is enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from helpers.judge.binding import NEW_KFD_LIMIT, Decision, Numbers, decide, kernel_release, kfd_limit
from helpers.look import drm, framework, kfd, rocm, rocminfo, ttm
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.environment import limits, variables
from helpers.look.gpus import Gpu, gpus
from helpers.look.machine import machine, page_size
from helpers.look.reading import GIB, MIB, Reading, not_available, seen
from helpers.run.shapes import Layer

ORDER: tuple[Layer, ...] = ("carveout", "ram", "ttm", "gtt", "kfd_limit", "kfd_bank", "hsa_pool", "hip_total", "fraction",
                            "cgroup", "ulimit")
"""From the RAM upwards; rows that limit nothing stand last."""


@dataclass(frozen=True)
class Ceiling:
    """One row: ``value`` in bytes (a count for nofile), ``unit`` and ``native`` as the source writes it.

    ``layer`` is empty where the row limits nothing that a program allocates; ``note`` then says what it is. ``pending`` is
    what is configured and not live, in bytes, with the place it is written in.
    """

    layer: Layer | None
    name: str
    value: Reading
    native: str = ""
    unit: str = "bytes"
    pending_bytes: int | None = None
    pending_source: str = ""
    note: str = ""


@dataclass(frozen=True)
class Stack:
    """All ceilings over one GPU, from the RAM upwards. ``pci`` is empty on a box without a GPU."""

    pci: str
    name: str
    kind: str
    rows: tuple[Ceiling, ...]
    numbers: Numbers
    decision: Decision

    def row(self, layer: str) -> Ceiling | None:
        return next((row for row in self.rows if row.layer == layer), None)

    @property
    def torch_total(self) -> int | None:
        return self.numbers.torch


def ceilings(bundle: Bundle) -> tuple[Stack, ...]:
    """A stack for each GPU, APUs first; on a box without one, a single stack of what limits the host."""
    found = sorted(gpus(bundle), key=lambda gpu: (not (gpu.vendor == "AMD" and gpu.integrated), gpu.vendor != "AMD", gpu.pci))
    return tuple(_stack(bundle, gpu) for gpu in found) or (_stack(bundle, None),)


def _stack(bundle: Bundle, gpu: Gpu | None) -> Stack:
    kind = "none" if gpu is None else "apu" if gpu.vendor == "AMD" and gpu.integrated else \
        "card" if gpu.vendor == "AMD" and gpu.integrated is False else "unsure" if gpu.vendor == "AMD" else "other vendor"
    rows = tuple(sorted([*_host_rows(bundle, kind), *(_gpu_rows(bundle, gpu, kind) if gpu else []), *_process_rows(bundle)],
                        key=lambda row: ORDER.index(row.layer) if row.layer else len(ORDER)))
    numbers = _numbers(bundle, rows)
    who = identity(bundle)
    if who is not None and who.wsl:
        kind = "wsl"
    decision = decide(numbers) if kind == "apu" else _not_an_apu(kind, gpu)
    fraction = next((row for row in rows if row.layer == "fraction" and row.value.ok), None)
    if fraction is not None and decision.binding_bytes is not None and int(fraction.value.value or 0) < decision.binding_bytes:
        decision = replace(decision, binding="fraction", binding_bytes=int(fraction.value.value or 0),
                           says=f"{fraction.name} keeps this process below the device's total. Below that: {decision.says}")
    return Stack(gpu.pci if gpu else "", gpu.name.show() if gpu and gpu.name.ok else "", kind, rows, numbers, decision)


def _host_rows(bundle: Bundle, kind: str) -> list[Ceiling]:
    box = machine(bundle)
    rows = [Ceiling("ram", "RAM left to Linux", box.ram_total, note="MemTotal; the firmware's carve-out is not in it")]
    if kind in ("other vendor", "none"):
        return rows
    used = ttm.ttm_module(bundle)
    size = page_size(bundle)
    for parameter in ttm.parameters(bundle):
        is_limit = parameter.name == "pages_limit"
        counts = is_limit and used.ok and parameter.module == used.value
        native = str(parameter.live.value) if parameter.live.ok else ""
        pending, place = _pending(parameter, size)
        note = _NOTES.get(parameter.name, "")
        if is_limit and not counts:
            note = f"amdgpu uses {used.value}: this module's value does not count" if used.ok else \
                   f"not known whether amdgpu uses this module: {used.why}"
        if parameter.name == "no_system_mem_limit" and native.upper() in ("Y", "1"):
            note = "set: KFD's system limit is not kept, and a box can livelock instead of failing"
        if is_limit or parameter.name in _NOTES:
            rows.append(Ceiling("ttm" if counts else None, f"{parameter.module}.{parameter.name}", parameter.live_bytes
                                if parameter.unit else parameter.live, native, parameter.unit or "text", pending, place, note))
    if kind in ("apu", "unsure") and not any(row.layer == "ttm" for row in rows):
        rows.insert(1, Ceiling("ttm", "pages_limit", not_available(used.why or "not captured", "bytes",
                                                                    "/sys/module/*/parameters/pages_limit")))
    if box.ram_total.ok:
        release = kernel_release(str(box.kernel.value or ""))
        rule = "RAM - RAM/64 - 1.5 GiB" if release is None or release >= NEW_KFD_LIMIT else "15/16 of the RAM, at most"
        limit = seen(kfd_limit(int(box.ram_total.value or 0), release), "bytes", f"computed: {rule}", box.ram_total.item)
    else:
        limit = not_available("the RAM is not known", "bytes", "computed")
    rows.append(Ceiling("kfd_limit", "KFD system limit", limit, note="what compute programs may take of the RAM together"))
    return rows


_NOTES = {
    "pages_limit": "",
    "page_pool_size": "a cache of freed pages, not a limit; it need not match pages_limit",
    "gttsize": "sizes the GTT that graphics sees; the compute pool ignores it (deprecated)",
    "vm_size": "GiB of virtual address space; it sizes no pool",
    "no_system_mem_limit": "would switch off KFD's system limit only",
}


def _pending(parameter: ttm.Parameter, size: Reading) -> tuple[int | None, str]:
    setting = parameter.pending
    if setting is None or not re.fullmatch(r"[0-9]{1,19}", setting.value):
        return None, ""
    factor = {"pages": int(size.value or 0) if size.ok else 0, "MiB": MIB, "GiB": GIB}.get(parameter.unit, 0)
    return int(setting.value) * factor if factor else None, f"{setting.source}:{setting.line}"


def _gpu_rows(bundle: Bundle, gpu: Gpu, kind: str) -> list[Ceiling]:
    if kind == "other vendor":
        return [Ceiling(None, pool.layer, pool.total, note="the card's own memory") for pool in gpu.pools[:1]]
    rows = []
    card = next((c for c in drm.cards(bundle) if c.pci == gpu.pci), None)
    node = next((n for n in kfd.nodes(bundle) if n.pci == gpu.pci), None)
    agent = next((a for a in rocminfo.agents(bundle) if a.pci.ok and a.pci.value == gpu.pci), None)
    smi = next((c for c in rocm.cards(bundle) if c.pci.ok and c.pci.value == gpu.pci), None)
    device = next((d for d in framework.framework(bundle).devices if d.pci == gpu.pci), None)
    vram = card.vram_total if card else _pool(gpu, "rocm-smi VRAM") if smi else _none("no DRM card")
    gtt = card.gtt_total if card else _pool(gpu, "rocm-smi GTT") if smi else _none("no DRM card")
    if kind == "card":
        rows += [Ceiling(None, "VRAM of the card", vram, note="the card's own memory; nothing is carved out of the RAM"),
                 Ceiling(None, "GTT", gtt, note="RAM that the card may spill to; not capacity for torch")]
    else:
        rows += [Ceiling("carveout", "firmware carve-out", vram, note="set in the firmware, never in Linux"),
                 Ceiling("gtt", "GTT", gtt, note="what the driver and Vulkan see")]
    rows.append(Ceiling("kfd_bank", "KFD memory bank", node.framebuffer if node else _none("no KFD node")))
    rows.append(Ceiling("hsa_pool", "HSA pool", agent.memory if agent else _none("rocminfo did not list it"), unit="KiB"))
    total = device.total if device else _none(framework.devices_reading(bundle).why or "torch did not list it")
    rows.append(Ceiling("hip_total", "torch total", total))
    if device and device.driver_total.ok:
        rows.append(Ceiling(None, "HIP total", device.driver_total, note="what mem_get_info calls the total"))
    if device and device.free.ok:
        rows.append(Ceiling(None, "HIP free", device.free, note="from KFD; it can contradict the total (ROCm#6004)"))
    return rows


def _pool(gpu: Gpu, layer: str) -> Reading:
    return next((pool.total for pool in gpu.pools if pool.layer == layer), _none("not printed"))


def _none(why: str) -> Reading:
    return not_available(why, "bytes", "")


def _process_rows(bundle: Bundle) -> list[Ceiling]:
    """Limits of the process: of the allocator's settings, its control group and its ulimits."""
    rows = []
    box, given = machine(bundle), {v.name: v for v in variables(bundle)}
    totals = [device.total for device in framework.framework(bundle).devices if device.total.ok]
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        setting = given.get(name)
        match = re.search(r"per_process_memory_fraction:([0-9]*\.?[0-9]{1,9})(?![0-9.])", setting.value) if setting else None
        if match and setting and 0 < float(match.group(1)) < 1:
            value = seen(int(float(match.group(1)) * int(totals[0].value or 0)), "bytes", name, setting.item) if totals else \
                _none("torch's total is not known")
            rows.append(Ceiling("fraction", f"{name} per_process_memory_fraction", value, match.group(1), "of the total"))
            break
    rows.append(Ceiling("cgroup", "control group", box.cgroup_limit,
                        note="caps host memory and managed memory; not hipMalloc on an APU (llama.cpp#20472)"))
    for limit in limits(bundle):
        if limit.name == "memlock" and limit.soft.ok:
            rows.append(Ceiling("ulimit", "ulimit memlock", limit.soft, note="bites locked host memory, not hipMalloc"))
        if limit.name == "nofile" and limit.soft.ok:
            rows.append(Ceiling(None, "ulimit nofile", limit.soft, unit="count",
                                note="expandable segments of ROCm 7.14 take one descriptor each (ROCm#6661)"))
    return rows


def _numbers(bundle: Bundle, rows: tuple[Ceiling, ...]) -> Numbers:
    def value(layer: str) -> int | None:
        row = next((row for row in rows if row.layer == layer and row.value.ok), None)
        return int(row.value.value or 0) if row else None

    free = next((row.value for row in rows if row.name == "HIP free"), None)
    limit = next((row for row in rows if row.layer == "ttm"), None)
    module = limit.name.partition(".")[0] if limit else ""
    wanted = _written(bundle, module)
    return Numbers(value("ttm"), value("gtt"), value("carveout"), value("kfd_bank"), value("hsa_pool"), value("hip_total"),
                   int(free.value or 0) if free is not None and free.ok else None, value("ram"), wanted[0] if wanted else None,
                   kernel_release(str(machine(bundle).kernel.value or "")), kfd.driver_version(bundle).ok)


def _written(bundle: Bundle, module: str) -> list[int]:
    """Each pages_limit that is configured, in bytes, that of the module in use first: another's was wanted as well."""
    size = page_size(bundle)
    found = [p.wanted for p in ttm.parameters(bundle) if p.name == "pages_limit" and p.wanted is not None]
    found.sort(key=lambda setting: setting.module != module)
    return [int(s.value) * int(size.value or 0) for s in found if size.ok and re.fullmatch(r"[1-9][0-9]{0,18}", s.value)]


def _not_an_apu(kind: str, gpu: Gpu | None) -> Decision:
    if kind == "wsl":
        return Decision("wsl", None, None, "cannot-tell", "weak",
                        "Under WSL there is no amdgpu module: Windows sets the GPU's share, .wslconfig the RAM of Linux.",
                        "Set memory= in .wslconfig and the GPU's share in Windows")
    if kind == "card":
        total = next((pool.total for pool in gpu.pools if pool.layer in ("sysfs VRAM", "KFD bank")), None) if gpu else None
        size = f" ({total.show()})" if total is not None and total.ok else ""
        return Decision("card", None, None, "other", "confirmed",
                        f"No TTM limit applies: a discrete card's capacity is its own VRAM{size}, and GTT is only spill "
                        "space.", "Leave TTM as it is; look for who holds the VRAM")
    if kind == "other vendor":
        vendor = gpu.vendor if gpu else ""
        return Decision("other_vendor", None, None, "other", "confirmed",
                        f"No TTM limit applies: TTM and GTT are of AMD's driver, and this GPU is of {vendor}.",
                        "Leave TTM as it is; look for who holds the card's memory")
    if kind == "none":
        return Decision("no_gpu", None, None, "other", "confirmed",
                        "No GPU is visible from here: the RAM and the control group are the only limits.", "Work on the CPU")
    return Decision("unsure", None, None, "cannot-tell", "weak", "Nothing says whether this GPU is an APU or a card.",
                    "Capture again with rocminfo or torch's devices", missing=("is_integrated",))
