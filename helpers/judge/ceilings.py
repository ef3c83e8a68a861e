"""Every ceiling between a box's RAM and torch, per GPU, and the one that binds.

Pure: a bundle in, facts and a decision out.

An APU's pool is one of two things, never their sum: the firmware's carve-out, or what TTM may
take of the RAM left to Linux. Which one, and so which setting can move it, goes by the kernel
(amd-gfx patches 89773b85599a, Linux 6.10; 759e764f7d58, Linux 6.15). amdgpu.gttsize moves the
GTT that graphics sees and not that pool; amdgpu.vm_size is GiB of address space and sizes no
pool; page_pool_size is a cache of freed pages, need not match pages_limit and limits nothing.
pages_limit alone is enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from helpers.ground import shapes
from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.units import GIB, MIB
from helpers.judge import sentence, table
from helpers.judge.binding import (
    NEW_KFD_LIMIT,
    Decision,
    Numbers,
    decide,
    kernel_release,
    kfd_limit,
    row,
)
from helpers.look import framework, kfd, ttm
from helpers.look.access import identity, limits, variables
from helpers.look.bundle import Bundle
from helpers.look.figures import figures_of
from helpers.look.gpus import Gpu, gpus
from helpers.look.machine import machine, page_size
from helpers.look.parts import APU, UNIFIED, mentions
from helpers.settings.text import memory_fraction

if TYPE_CHECKING:
    from helpers.ground.shapes import Confidence, Layer

_note = partial(sentence, "ceilings", "notes")


@dataclass(frozen=True)
class Ceiling:
    """One row: ``value`` in bytes (a count for nofile), ``unit`` and ``native`` as the source
    writes it.

    ``layer`` is empty where the row limits nothing that a program allocates; ``note`` then says
    what it is. ``pending`` is what is configured and not live, in bytes, with the place it is
    written in.
    """

    layer: Layer | None
    name: str
    value: Reading
    native: str = ""
    unit: str = "bytes"
    pending_bytes: int | None = None
    pending_source: str = ""
    note: str = ""

    def shape(self) -> shapes.Ceiling:
        """The row as a contract; only of a row with a layer."""
        size = self.value.bytes if self.value.ok else None
        value = self.value
        place = value.source or value.why
        status = value.status
        return shapes.Ceiling(self.layer, size, place, status, self.pending_bytes)  # type: ignore[arg-type]


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


def ceilings(bundle: Bundle) -> tuple[Stack, ...]:
    """A stack for each GPU, APUs first; on a box without one, a single stack of what limits the
    host.
    """

    def place(gpu: Gpu) -> tuple[bool, bool, str]:
        return not (gpu.vendor == "AMD" and gpu.integrated), gpu.vendor != "AMD", gpu.pci

    found = sorted(gpus(bundle), key=place)
    return tuple(_stack(bundle, gpu) for gpu in found) or (_stack(bundle, None),)


def _row(key: str, value: Reading, **more: Any) -> Ceiling:
    """A row of a stack with the name, unit and note that ceilings.json has for it."""
    return Ceiling(**{**table("ceilings")["rows"][key], "value": value, **more})


def _stack(bundle: Bundle, gpu: Gpu | None) -> Stack:
    amd = gpu is not None and gpu.vendor == "AMD"
    kinds = {True: "apu", False: "card", None: "unsure"}
    kind = "none" if gpu is None else kinds[gpu.integrated] if amd else "other vendor"
    found = [*_host_rows(bundle, kind), *(_gpu_rows(bundle, gpu, kind) if gpu else [])]
    found += _process_rows(bundle)
    order = list(table("ceilings")["layers"])  # from the RAM upwards; what limits nothing is last
    found.sort(key=lambda row: order.index(row.layer) if row.layer else len(order))
    name = gpu.name.show() if gpu and gpu.name.ok else ""
    unified = gpu is not None and _is_unified(bundle, gpu)
    of = UNIFIED if unified else APU if kind == "apu" else ""
    numbers = replace(_numbers(bundle, found), kind=of)
    who = identity(bundle)
    if who is not None and who.wsl:
        kind = "wsl"
    decision = decide(numbers) if kind == "apu" or unified else _not_an_apu(kind, gpu, numbers)
    stack = Stack(gpu.pci if gpu else "", name, kind, tuple(found), numbers, decision)
    share = stack.row("fraction")
    if share is None or not share.value.ok or share.value.bytes >= (decision.binding_bytes or 0):
        return stack
    says = _note("fraction", name=share.name, says=decision.says)
    size = share.value.bytes
    below = replace(decision, binding="fraction", binding_bytes=size, says=says)
    return replace(stack, decision=below)


def _is_unified(bundle: Bundle, gpu: Gpu) -> bool:
    """Whether an NVIDIA GPU shares the RAM: by what torch says of it, or by its name."""
    devices = [d for d in framework.framework(bundle).devices if d.pci in ("", gpu.pci)]
    named = any(m.part.kind == UNIFIED for m in mentions(gpu.name.show()))
    return gpu.vendor == "NVIDIA" and (named or any(device.integrated for device in devices))


def _host_rows(bundle: Bundle, kind: str) -> list[Ceiling]:
    box = machine(bundle)
    used = ttm.ttm_module(bundle)
    page = page_size(bundle)
    rows = [_row("ram", box.ram_total)]
    if kind in ("other vendor", "none"):
        return rows
    for one in ttm.parameters(bundle):
        if one.name not in table("ceilings")["rows"]:
            continue
        native = str(one.live.value) if one.live.ok else ""
        more: dict[str, Any] = {"native": native, "unit": one.unit or "text"}
        if one.pending:
            more["pending_bytes"] = _size(one.pending.value, one.unit, page)
            more["pending_source"] = f"{one.pending.source}:{one.pending.line}"
        if one.name == "no_system_mem_limit" and native.upper() in ("Y", "1"):
            more["note"] = _note("no KFD limit")
        if one.name == "pages_limit" and used.ok and one.module == used.value:
            more["layer"] = "ttm"
        elif one.name == "pages_limit":
            which = "another module" if used.ok else "unknown module"
            more["note"] = _note(which, used=used.value, why=used.why)
        value = one.live_bytes if one.unit else one.live
        rows.append(_row(one.name, value, name=f"{one.module}.{one.name}", **more))
    if kind in ("apu", "unsure") and not any(row.layer == "ttm" for row in rows):
        place = "/sys/module/*/parameters/pages_limit"
        rows.insert(1, _row("no_limit", not_available(used.why or "not captured", "bytes", place)))
    limit = not_available("the RAM is not known", "bytes", "computed")
    if box.ram_total.ok:
        release = kernel_release(str(box.kernel.value or ""))
        new = release is None or release >= NEW_KFD_LIMIT
        rule = _note("new KFD rule" if new else "old KFD rule")
        limit = seen(kfd_limit(box.ram_total.bytes, release), "bytes", rule, box.ram_total.item)
    return [*rows, _row("kfd_limit", limit)]


def _size(value: str, unit: str, page: Reading) -> int | None:
    """Bytes of a module parameter as it is configured; None where it is no size."""
    factor = {"pages": page.bytes, "MiB": MIB, "GiB": GIB}.get(unit, 0)
    return int(value) * factor if factor and re.fullmatch(r"[0-9]{1,19}", value) else None


def _gpu_rows(bundle: Bundle, gpu: Gpu, kind: str) -> list[Ceiling]:
    if kind == "other vendor":
        return [_row("other_vendor", pool.total, name=pool.layer) for pool in gpu.pools[:1]]
    totals = {pool.layer: pool.total for pool in gpu.pools if pool.total.unit == "bytes"}
    own = ("card_vram", "card_gtt") if kind == "card" else ("carveout", "gtt")
    rows = []
    for name in (*own, "kfd_bank", "hsa_pool", "hip_total"):
        data = table("ceilings")["pools"][name]
        without = not_available(data["without"], "bytes", "")
        if name == "hip_total" and (why := framework.devices_reading(bundle).why):
            without = replace(without, why=why)
        rows.append(_row(name, next((totals[p] for p in data["layers"] if p in totals), without)))
    device = next((d for d in framework.framework(bundle).devices if d.pci == gpu.pci), None)
    extra = {"driver_total": device.driver_total, "free": device.free} if device else {}
    return rows + [_row(name, value) for name, value in extra.items() if value.ok]


def _process_rows(bundle: Bundle) -> list[Ceiling]:
    """Limits of the process: of the allocator's settings, its control group and its ulimits."""
    rows = []
    build = framework.framework(bundle)
    given = {v.name: v for v in variables(bundle)}
    environ = {name: variable.value for name, variable in given.items()}
    share, name, _ = memory_fraction(environ, str(build.version.value or ""), build.build)
    if share is not None and 0 < share < 1:
        value = not_available("torch's total is not known", "bytes", "")
        totals = [device.total.bytes for device in build.devices if device.total.ok]
        if totals:
            value = seen(int(share * totals[0]), "bytes", name, given[name].item)
        full = f"{name} per_process_memory_fraction"
        rows.append(Ceiling("fraction", full, value, f"{share:g}", "of the total"))
    rows.append(_row("cgroup", machine(bundle).cgroup_limit))
    kept = [one for one in limits(bundle) if one.name in ("memlock", "nofile") and one.soft.ok]
    return rows + [_row(one.name, one.soft) for one in kept]


def _numbers(bundle: Bundle, rows: list[Ceiling]) -> Numbers:
    """The readings of a stack as the decision takes them, with those that no machine printed
    named as filled in.
    """
    taken: dict[str, Reading] = {}
    layers = table("ceilings")["layers"]
    own = ""
    for ceiling in rows:
        field = "free" if ceiling.name == "HIP free" else ""
        if ceiling.layer:
            field = layers[ceiling.layer]["number"]
        if ceiling.layer == "ttm":
            own = ceiling.name.partition(".")[0]
        if field and ceiling.value.ok:
            taken.setdefault(field, ceiling.value)
    filled_in = {item.id for item in bundle.items if item.constructed}
    filled = [field for field, reading in taken.items() if reading.item in filled_in]
    memory = bundle.read("/proc/meminfo")
    free = {f.pool: f.bytes for f in figures_of([("bundle", "/proc/meminfo", memory.text)])}
    return Numbers(
        **{field: reading.bytes for field, reading in taken.items()},  # type: ignore[arg-type]
        wanted=_wanted(bundle, own),
        kernel=kernel_release(str(machine(bundle).kernel.value or "")),
        out_of_tree=kfd.driver_version(bundle).ok,
        bare_free=free.get("hostfree"),
        available=free.get("available"),
        filled=tuple(filled + (["bare_free", "available"] if memory.constructed else [])),
    )


def _wanted(bundle: Bundle, module: str) -> int | None:
    """The pages_limit that is configured, in bytes, that of the module in use first: another's
    was wanted as well.
    """
    found = [p.wanted for p in ttm.parameters(bundle) if p.name == "pages_limit" and p.wanted]
    found.sort(key=lambda setting: setting.module != module)
    sizes = (_size(setting.value, "pages", page_size(bundle)) for setting in found)
    return next((size for size in sizes if size), None)


def ceiling_answer(bundle: Bundle, message_total: int | None = None) -> list[Decision]:
    """The decision about each GPU's ceilings, those with a cause first.

    What the failing program's message says of the total stands in where the evidence has none.
    """
    stacks = ceilings(bundle)
    found = []
    about_a_card = _has_a_card_of(message_total, stacks)
    for stack in stacks:
        numbers = stack.numbers
        answer = stack.decision
        if numbers.torch is None and message_total is not None and not about_a_card:
            if numbers.kind in (APU, UNIFIED):
                answer = decide(replace(numbers, torch=message_total))
        found.append(answer)
    return sorted(found, key=lambda d: d.cause in ("other", "cannot-tell"))


def _has_a_card_of(total: int | None, stacks: tuple[Stack, ...]) -> bool:
    """Whether a card of the box has that total, so that a message is about the card and not the
    APU beside it.
    """
    cards = [stack for stack in stacks if stack.numbers.kind not in (APU, UNIFIED)]
    layers = (None, "carveout", "kfd_bank", "hip_total")
    rows = [row.value for card in cards for row in card.rows if row.layer in layers]
    sizes = [size.bytes for size in rows if size.ok and size.unit == "bytes"]
    return total is not None and any(0.9 * size <= total <= 1.001 * size for size in sizes)


def _not_an_apu(kind: str, gpu: Gpu | None, numbers: Numbers) -> Decision:
    pattern = {"other vendor": "other_vendor", "none": "no_gpu"}.get(kind, kind)
    layers = ("sysfs VRAM", "KFD bank")
    total = next((p.total for p in gpu.pools if p.layer in layers), None) if gpu else None
    words = f" ({total.show()})" if total is not None and total.ok else ""
    sure: Confidence = "weak" if kind in ("wsl", "unsure") else "confirmed"
    vendor = gpu.vendor if gpu else ""
    found = row(pattern, numbers, None, sure, vram_words=words, vendor=vendor)
    return replace(found, missing=("is_integrated",)) if kind == "unsure" else found
