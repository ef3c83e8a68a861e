"""Every ceiling between a box's RAM and torch, per GPU, and the one that binds. Pure: a bundle in, facts and a decision out.

An APU's pool is one of two things, never their sum: the firmware's carve-out, or what TTM may take of the RAM left to Linux.
Which one, and so which setting can move it, goes by the kernel (amd-gfx patches 89773b85599a, Linux 6.10; 759e764f7d58, Linux
6.15). amdgpu.gttsize moves the GTT that graphics sees and not that pool; amdgpu.vm_size is GiB of address space and sizes no
pool; page_pool_size is a cache of freed pages, need not match pages_limit and limits nothing. pages_limit alone is enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helpers.judge.binding import (
    NEW_KFD_LIMIT,
    Decision,
    Numbers,
    decide,
    kernel_release,
    kfd_limit,
    row,
    table,
)
from helpers.look import drm, framework, kfd, rocm, rocminfo, ttm
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.environment import limits, variables
from helpers.look.figures import figures_of
from helpers.look.gpus import Gpu, gpus
from helpers.look.machine import machine, page_size
from helpers.look.parts import APU, UNIFIED, mentions
from helpers.look.reading import GIB, MIB, Reading, not_available, seen
from helpers.settings.text import memory_fraction

if TYPE_CHECKING:
    from helpers.shapes import Confidence, Layer

ORDER: tuple[Layer, ...] = (
    "carveout",
    "ram",
    "ttm",
    "gtt",
    "kfd_limit",
    "kfd_bank",
    "hsa_pool",
    "hip_total",
    "fraction",
    "cgroup",
    "ulimit",
)
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
    order = {
        gpu.pci: (not (gpu.vendor == "AMD" and gpu.integrated), gpu.vendor != "AMD")
        for gpu in gpus(bundle)
    }
    found = sorted(gpus(bundle), key=lambda gpu: (order[gpu.pci], gpu.pci))
    return tuple(_stack(bundle, gpu) for gpu in found) or (_stack(bundle, None),)


def _row(key: str, value: Reading, **more: Any) -> Ceiling:
    """A row of a stack with the name, unit and note that ceilings.json has for it."""
    return Ceiling(**{**table("rows")[key], "value": value, **more})


def _stack(bundle: Bundle, gpu: Gpu | None) -> Stack:
    amd = gpu is not None and gpu.vendor == "AMD"
    kinds = {True: "apu", False: "card", None: "unsure"}
    kind = "none" if gpu is None else kinds[gpu.integrated] if amd else "other vendor"
    found = [*_host_rows(bundle, kind), *(_gpu_rows(bundle, gpu, kind) if gpu else [])]
    found += _process_rows(bundle)
    rows = tuple(sorted(found, key=lambda r: ORDER.index(r.layer) if r.layer else len(ORDER)))
    unified = gpu is not None and is_unified(bundle, gpu)
    numbers = replace(
        _numbers(bundle, rows), kind=UNIFIED if unified else APU if kind == "apu" else ""
    )
    who = identity(bundle)
    if who is not None and who.wsl:
        kind = "wsl"
    decision = decide(numbers) if kind == "apu" or unified else _not_an_apu(kind, gpu, numbers)
    fraction = next((r for r in rows if r.layer == "fraction" and r.value.ok), None)
    size = int(fraction.value.value or 0) if fraction is not None else 0
    if fraction is not None and size < (decision.binding_bytes or 0):
        says = f"{fraction.name} keeps this process below the device's total. Below that: {decision.says}"
        decision = replace(decision, binding="fraction", binding_bytes=size, says=says)
    name = gpu.name.show() if gpu and gpu.name.ok else ""
    return Stack(gpu.pci if gpu else "", name, kind, rows, numbers, decision)


def is_unified(bundle: Bundle, gpu: Gpu) -> bool:
    """Whether an NVIDIA GPU shares the RAM: by what torch says of it, or by its name."""
    devices = [d for d in framework.framework(bundle).devices if d.pci in ("", gpu.pci)]
    return gpu.vendor == "NVIDIA" and (
        any(device.integrated for device in devices)
        or any(m.part.kind == UNIFIED for m in mentions(gpu.name.show()))
    )


def _host_rows(bundle: Bundle, kind: str) -> list[Ceiling]:
    box = machine(bundle)
    rows = [_row("ram", box.ram_total)]
    if kind in ("other vendor", "none"):
        return rows
    used = ttm.ttm_module(bundle)
    size = page_size(bundle)
    for parameter in ttm.parameters(bundle):
        if parameter.name not in table("rows"):
            continue
        made = _row(
            parameter.name,
            parameter.live_bytes if parameter.unit else parameter.live,
            name=f"{parameter.module}.{parameter.name}",
            native=str(parameter.live.value) if parameter.live.ok else "",
            unit=parameter.unit or "text",
        )
        pending, place = _pending(parameter, size)
        made = replace(made, pending_bytes=pending, pending_source=place)
        if parameter.name == "pages_limit" and used.ok and parameter.module == used.value:
            made = replace(made, layer="ttm")
        elif parameter.name == "pages_limit":
            other = f"amdgpu uses {used.value}: this module's value does not count"
            unknown = f"not known whether amdgpu uses this module: {used.why}"
            made = replace(made, note=other if used.ok else unknown)
        elif parameter.name == "no_system_mem_limit" and made.native.upper() in ("Y", "1"):
            note = "set: KFD's system limit is not kept, and a box can livelock instead of failing"
            made = replace(made, note=note)
        rows.append(made)
    if kind in ("apu", "unsure") and not any(row.layer == "ttm" for row in rows):
        place = "/sys/module/*/parameters/pages_limit"
        rows.insert(1, _row("no_limit", not_available(used.why or "not captured", "bytes", place)))
    limit = not_available("the RAM is not known", "bytes", "computed")
    if box.ram_total.ok:
        release = kernel_release(str(box.kernel.value or ""))
        new = release is None or release >= NEW_KFD_LIMIT
        rule = "RAM - RAM/64 - 1.5 GiB" if new else "15/16 of the RAM, at most"
        size_bytes = kfd_limit(int(box.ram_total.value or 0), release)
        limit = seen(size_bytes, "bytes", f"computed: {rule}", box.ram_total.item)
    return [*rows, _row("kfd_limit", limit)]


def _pending(parameter: ttm.Parameter, size: Reading) -> tuple[int | None, str]:
    setting = parameter.pending
    if setting is None or not re.fullmatch(r"[0-9]{1,19}", setting.value):
        return None, ""
    factor = {"pages": int(size.value or 0) if size.ok else 0, "MiB": MIB, "GiB": GIB}.get(
        parameter.unit, 0
    )
    return int(setting.value) * factor if factor else None, f"{setting.source}:{setting.line}"


def _gpu_rows(bundle: Bundle, gpu: Gpu, kind: str) -> list[Ceiling]:
    if kind == "other vendor":
        return [_row("other_vendor", pool.total, name=pool.layer) for pool in gpu.pools[:1]]
    card = next((c for c in drm.cards(bundle) if c.pci == gpu.pci), None)
    node = next((n for n in kfd.nodes(bundle) if n.pci == gpu.pci), None)
    agent = next((a for a in rocminfo.agents(bundle) if a.pci.ok and a.pci.value == gpu.pci), None)
    smi = next((c for c in rocm.cards(bundle) if c.pci.ok and c.pci.value == gpu.pci), None)
    device = next((d for d in framework.framework(bundle).devices if d.pci == gpu.pci), None)
    vram = card.vram_total if card else _pool(gpu, "rocm-smi VRAM") if smi else _none("no DRM card")
    gtt = card.gtt_total if card else _pool(gpu, "rocm-smi GTT") if smi else _none("no DRM card")
    untold = _none(framework.devices_reading(bundle).why or "torch did not list it")
    rows = [
        _row("card_vram" if kind == "card" else "carveout", vram),
        _row("card_gtt" if kind == "card" else "gtt", gtt),
        _row("kfd_bank", node.framebuffer if node else _none("no KFD node")),
        _row("hsa_pool", agent.memory if agent else _none("rocminfo did not list it")),
        _row("hip_total", device.total if device else untold),
    ]
    if device and device.driver_total.ok:
        rows.append(_row("driver_total", device.driver_total))
    if device and device.free.ok:
        rows.append(_row("free", device.free))
    return rows


def _pool(gpu: Gpu, layer: str) -> Reading:
    return next((pool.total for pool in gpu.pools if pool.layer == layer), _none("not printed"))


def _none(why: str) -> Reading:
    return not_available(why, "bytes", "")


# The name that wins first; one that is set wins even where it is empty.


def _process_rows(bundle: Bundle) -> list[Ceiling]:
    """Limits of the process: of the allocator's settings, its control group and its ulimits."""
    rows = []
    given = {v.name: v for v in variables(bundle)}
    build = framework.framework(bundle)
    totals = [device.total for device in build.devices if device.total.ok]
    environ = {name: variable.value for name, variable in given.items()}
    share, name, _ = memory_fraction(environ, str(build.version.value or ""), build.build)
    if share is not None and 0 < share < 1:
        value = _none("torch's total is not known")
        if totals:
            size = int(share * int(totals[0].value or 0))
            value = seen(size, "bytes", name, given[name].item)
        full = f"{name} per_process_memory_fraction"
        rows.append(Ceiling("fraction", full, value, f"{share:g}", "of the total"))
    rows.append(_row("cgroup", machine(bundle).cgroup_limit))
    for limit in limits(bundle):
        if limit.name in ("memlock", "nofile") and limit.soft.ok:
            rows.append(_row(limit.name, limit.soft))
    return rows


_FIELDS = {
    "ttm": "pages_limit",
    "gtt": "gtt",
    "carveout": "vram",
    "kfd_bank": "kfd",
    "hsa_pool": "hsa",
    "hip_total": "torch",
    "ram": "ram",
}


def _numbers(bundle: Bundle, rows: tuple[Ceiling, ...]) -> Numbers:
    """The readings of a stack as the decision takes them, with those that no machine printed named as filled in."""
    taken: dict[str, Reading] = {}
    for ceiling in rows:
        field = _FIELDS.get(ceiling.layer or "", "") or {"HIP free": "free"}.get(ceiling.name, "")
        if field and ceiling.value.ok:
            taken.setdefault(field, ceiling.value)
    limit = next((r for r in rows if r.layer == "ttm"), None)
    wanted = _written(bundle, limit.name.partition(".")[0] if limit else "")
    filled_in = {item.id for item in bundle.items if item.constructed}
    memory = bundle.read("/proc/meminfo")
    free = {f.pool: f.bytes for f in figures_of([("bundle", "/proc/meminfo", memory.text)])}
    return Numbers(
        **{field: int(reading.value or 0) for field, reading in taken.items()},  # type: ignore[arg-type]
        wanted=wanted[0] if wanted else None,
        kernel=kernel_release(str(machine(bundle).kernel.value or "")),
        out_of_tree=kfd.driver_version(bundle).ok,
        bare_free=free.get("hostfree"),
        available=free.get("available"),
        filled=tuple(f for f, reading in taken.items() if reading.item in filled_in)
        + (("bare_free", "available") if memory.constructed else ()),
    )


def ceiling_answer(
    evidence: Bundle | Numbers, message_total: int | None = None, message_free: int | None = None
) -> list[Decision]:
    """The decision about each GPU's ceilings, by one table for whoever asks; those with a cause stand first.

    ``evidence`` is a bundle, or numbers_of posted figures. What the failing program's message says of
    total and free stands in where the evidence has none.
    """
    stacks = () if isinstance(evidence, Numbers) else ceilings(evidence)
    found = []
    if isinstance(evidence, Numbers):
        found.append(decide(_told(evidence, message_total, message_free)))
    for stack in stacks:
        numbers = stack.numbers
        if not _has_a_card_of(message_total, stacks):
            numbers = _told(numbers, message_total, message_free)
        again = numbers != stack.numbers and numbers.kind in (APU, UNIFIED)
        found.append(decide(numbers) if again else stack.decision)
    return sorted(found, key=lambda d: d.cause in ("other", "cannot-tell"))


def _has_a_card_of(total: int | None, stacks: tuple[Stack, ...]) -> bool:
    """Whether a card of the box has that total, so that a message is about the card and not the APU beside it."""
    sizes = [
        int(row.value.value or 0)
        for stack in stacks
        if stack.numbers.kind not in (APU, UNIFIED)
        for row in stack.rows
        if row.layer in (None, "carveout", "kfd_bank", "hip_total")
        and row.value.ok
        and row.value.unit == "bytes"
    ]
    return total is not None and any(0.9 * size <= total <= 1.001 * size for size in sizes)


def _told(numbers: Numbers, total: int | None, free: int | None) -> Numbers:
    return replace(
        numbers,
        torch=total if numbers.torch is None else numbers.torch,
        free=free if numbers.free is None else numbers.free,
    )


def _written(bundle: Bundle, module: str) -> list[int]:
    """Each pages_limit that is configured, in bytes, that of the module in use first: another's was wanted as well."""
    size = page_size(bundle)
    found = [
        p.wanted for p in ttm.parameters(bundle) if p.name == "pages_limit" and p.wanted is not None
    ]
    found.sort(key=lambda setting: setting.module != module)
    return [
        int(s.value) * int(size.value or 0)
        for s in found
        if size.ok and re.fullmatch(r"[1-9][0-9]{0,18}", s.value)
    ]


def _not_an_apu(kind: str, gpu: Gpu | None, numbers: Numbers) -> Decision:
    pattern = {"other vendor": "other_vendor", "none": "no_gpu"}.get(kind, kind)
    layers = ("sysfs VRAM", "KFD bank")
    total = next((p.total for p in gpu.pools if p.layer in layers), None) if gpu else None
    words = f" ({total.show()})" if total is not None and total.ok else ""
    sure: Confidence = "weak" if kind in ("wsl", "unsure") else "confirmed"
    vendor = gpu.vendor if gpu else ""
    found = row(pattern, numbers, None, sure, vram_words=words, vendor=vendor)
    return replace(found, missing=("is_integrated",)) if kind == "unsure" else found
