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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from helpers.ground import shapes
from helpers.ground.shapes import Confidence, Layer, Reading, not_available, seen
from helpers.ground.units import GIB, MIB
from helpers.judge import table
from helpers.judge.binding import answer, decide
from helpers.judge.evidence import once
from helpers.judge.numbers import (
    NEW_KFD_LIMIT,
    Decision,
    Numbers,
    kernel_release,
    kfd_limit,
)
from helpers.judge.observation import constructed_items
from helpers.look import framework, kfd, ttm
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.environment import limits, variables
from helpers.look.figures import figures_of
from helpers.look.gpus import Gpu, gpus
from helpers.look.machine import machine, page_size
from helpers.look.parts import APU, UNIFIED, mentions
from helpers.settings.in_force import memory_fraction


@dataclass(frozen=True)
class Ceiling:
    """One row: ``value`` in bytes (a count for nofile), ``unit`` and ``native`` as the source
    writes it.

    ``key`` is the row of ceilings.json. ``layer`` is empty where the row limits nothing that a
    program allocates; ``note`` then says what it is. ``pending`` is what is configured and not
    live, in bytes, with the place it is written in.
    """

    key: str
    layer: Layer | None
    name: str
    value: Reading
    native: str = ""
    unit: str = "bytes"
    pending_bytes: int | None = None
    pending_source: str = ""
    note: str = ""

    @property
    def layer_says(self) -> str:
        """What the layer is; empty where that is not said, or for a row without a layer."""
        return _of_layer(self.layer, "says")

    @property
    def number(self) -> str:
        """The field of Numbers that the row gives; empty where it gives none."""
        if self.key == "free":
            return "free"
        return _of_layer(self.layer, "number")

    def shape(self) -> shapes.Ceiling:
        """The row as a contract. Only a row with a layer has one."""
        assert self.layer is not None
        return shapes.Ceiling(
            self.layer,
            self.value.bytes if self.value.ok else None,
            self.value.source or self.value.why,
            self.value.status,  # type: ignore[arg-type]
            self.pending_bytes,
        )


def _of_layer(layer: Layer | None, key: str) -> str:
    if layer is None:
        return ""
    return str(table("ceilings")["layers"][layer][key])


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


@once
def ceilings(bundle: Bundle) -> tuple[Stack, ...]:
    """A stack for each GPU, APUs first; on a box without one, a single stack of what limits the
    host.
    """

    def order(gpu: Gpu) -> tuple[bool, bool, str]:
        is_apu = gpu.vendor == "AMD" and bool(gpu.integrated)
        return not is_apu, gpu.vendor != "AMD", gpu.pci

    if not gpus(bundle):
        return (_stack(bundle, None),)
    return tuple(_stack(bundle, gpu) for gpu in sorted(gpus(bundle), key=order))


def _row(key: str, value: Reading, name: str = "") -> Ceiling:
    """A row of a stack with the name, unit and note that ceilings.json has for it."""
    data = table("ceilings")["rows"][key]
    return Ceiling(
        key=key,
        layer=data["layer"],
        name=name or data["name"],
        value=value,
        unit=data["unit"],
        note=data["note"],
    )


def _stack(bundle: Bundle, gpu: Gpu | None) -> Stack:
    """The ceilings over one GPU, or over none, and which of them binds."""
    kind = _kind(gpu)
    unified = gpu is not None and _is_unified(bundle, gpu)
    rows = _host_rows(bundle, kind)
    if gpu is not None:
        rows += _gpu_rows(bundle, gpu, kind)
    rows += _process_rows(bundle)
    # From the RAM upwards; what limits nothing is last.
    order = [*table("ceilings")["layers"], None]
    rows.sort(key=lambda row: order.index(row.layer))
    numbers = _numbers(bundle, rows)
    if unified:
        numbers = replace(numbers, kind=UNIFIED)
    elif kind == "apu":
        numbers = replace(numbers, kind=APU)
    who = identity(bundle)
    if who is not None and who.wsl:
        kind = "wsl"
    if kind == "apu" or unified:
        decision = decide(numbers)
    else:
        decision = _not_an_apu(kind, gpu, numbers)
    pci = "" if gpu is None else gpu.pci
    name = gpu.name.show() if gpu is not None and gpu.name.ok else ""
    stack = Stack(pci, name, kind, tuple(rows), numbers, decision)
    return _below_the_fraction(stack)


def _kind(gpu: Gpu | None) -> str:
    """none, other vendor, apu, card or unsure."""
    if gpu is None:
        return "none"
    if gpu.vendor != "AMD":
        return "other vendor"
    if gpu.integrated is None:
        return "unsure"
    return "apu" if gpu.integrated else "card"


def _below_the_fraction(stack: Stack) -> Stack:
    """The stack with the allocator's own share as what binds, where it is the lowest."""
    share = stack.row("fraction")
    decision = stack.decision
    if share is None or not share.value.ok:
        return stack
    if share.value.bytes >= (decision.binding_bytes or 0):
        return stack
    says = f"{share.name} keeps this process below the device's total. Below that: {decision.says}"
    below = replace(
        decision, binding="fraction", binding_bytes=share.value.bytes, says=says
    )
    return replace(stack, decision=below)


def _is_unified(bundle: Bundle, gpu: Gpu) -> bool:
    """Whether an NVIDIA GPU shares the RAM: by what torch says of it, or by its name."""
    if gpu.vendor != "NVIDIA":
        return False
    devices = [d for d in framework.framework(bundle).devices if d.pci in ("", gpu.pci)]
    if any(device.integrated for device in devices):
        return True
    return any(mention.part.kind == UNIFIED for mention in mentions(gpu.name.show()))


def _host_rows(bundle: Bundle, kind: str) -> list[Ceiling]:
    """The RAM, the parameters of the TTM modules and of amdgpu, and KFD's limit."""
    ram = machine(bundle).ram_total
    rows = [_row("ram", ram)]
    if kind in ("other vendor", "none"):
        return rows
    rows += _parameter_rows(bundle)
    if kind in ("apu", "unsure") and not any(row.layer == "ttm" for row in rows):
        why = ttm.ttm_module(bundle).why or "not captured"
        place = "/sys/module/*/parameters/pages_limit"
        rows.insert(1, _row("no_limit", not_available(why, "bytes", place)))
    return [*rows, _row("kfd_limit", _kfd_limit(bundle))]


def _parameter_rows(bundle: Bundle) -> Iterator[Ceiling]:
    """The module parameters that are ceilings or that people take for one."""
    page = page_size(bundle)
    for parameter in ttm.parameters(bundle):
        if parameter.name not in table("ceilings")["rows"]:
            continue
        value = parameter.live_bytes if parameter.unit else parameter.live
        row = _row(parameter.name, value, name=f"{parameter.module}.{parameter.name}")
        row = replace(row, unit=parameter.unit or "text")
        if parameter.live.ok:
            row = replace(row, native=str(parameter.live.value))
        if parameter.pending:
            pending = parameter.pending
            row = replace(
                row,
                pending_bytes=_size(pending.value, parameter.unit, page),
                pending_source=f"{pending.source}:{pending.line}",
            )
        if parameter.name == "pages_limit":
            row = _with_layer(row, parameter.module, ttm.ttm_module(bundle))
        yield row


def _with_layer(row: Ceiling, module: str, used: Reading) -> Ceiling:
    """A pages_limit as TTM's layer, where amdgpu uses its module."""
    if not used.ok:
        return replace(
            row, note=f"not known whether amdgpu uses this module: {used.why}"
        )
    if module == used.value:
        return replace(row, layer="ttm")
    return replace(
        row, note=f"amdgpu uses {used.value}: this module's value does not count"
    )


def kernel_of(bundle: Bundle) -> str:
    """The release of the kernel that runs; empty where it was not captured."""
    return str(machine(bundle).kernel.value or "")


def _kfd_limit(bundle: Bundle) -> Reading:
    """What KFD lets compute programs take of the RAM together, computed from the RAM."""
    box = machine(bundle)
    if not box.ram_total.ok:
        return not_available("the RAM is not known", "bytes", "computed")
    release = kernel_release(kernel_of(bundle))
    rule = "computed: RAM less RAM/64 and less 1.5 GiB"
    if release is not None and release < NEW_KFD_LIMIT:
        rule = "computed: 15/16 of the RAM, at most"
    limit = kfd_limit(box.ram_total.bytes, release)
    return seen(limit, "bytes", rule, box.ram_total.item)


def _size(value: str, unit: str, page: Reading) -> int | None:
    """Bytes of a module parameter as it is configured; None where it is no size."""
    factor = {"pages": page.bytes, "MiB": MIB, "GiB": GIB}.get(unit, 0)
    if not factor or not re.fullmatch(r"[0-9]{1,19}", value):
        return None
    return int(value) * factor


def _gpu_rows(bundle: Bundle, gpu: Gpu, kind: str) -> list[Ceiling]:
    """The pools of a GPU, and what HIP says of it."""
    if kind == "other vendor":
        return [
            _row("other_vendor", pool.total, name=pool.layer) for pool in gpu.pools[:1]
        ]
    totals = {
        pool.layer: pool.total for pool in gpu.pools if pool.total.unit == "bytes"
    }
    memory = ("carveout", "gtt")
    if kind == "card":
        memory = ("card_vram", "card_gtt")
    rows = []
    for name in (*memory, "kfd_bank", "hsa_pool", "hip_total"):
        data = table("ceilings")["pools"][name]
        without = not_available(data["without"], "bytes", "")
        if name == "hip_total":
            why = framework.devices_reading(bundle).why
            without = replace(without, why=why or without.why)
        total = next(
            (totals[layer] for layer in data["layers"] if layer in totals), without
        )
        rows.append(_row(name, total))
    device = next(
        (d for d in framework.framework(bundle).devices if d.pci == gpu.pci), None
    )
    if device is not None and device.driver_total.ok:
        rows.append(_row("driver_total", device.driver_total))
    if device is not None and device.free.ok:
        rows.append(_row("free", device.free))
    return rows


def _process_rows(bundle: Bundle) -> list[Ceiling]:
    """Limits of the process: of the allocator's settings, its control group and its ulimits."""
    rows = []
    build = framework.framework(bundle)
    captured = {variable.name: variable for variable in variables(bundle)}
    environ = {name: variable.value for name, variable in captured.items()}
    share, name = memory_fraction(environ, str(build.version.value or ""), build.build)
    if share is not None and 0 < share < 1:
        value = not_available("torch's total is not known", "bytes", "")
        totals = [device.total.bytes for device in build.devices if device.total.ok]
        if totals:
            value = seen(int(share * totals[0]), "bytes", name, captured[name].item)
        full = f"{name} per_process_memory_fraction"
        rows.append(
            Ceiling("fraction", "fraction", full, value, f"{share:g}", "of the total")
        )
    rows.append(_row("cgroup", machine(bundle).cgroup_limit))
    for limit in limits(bundle):
        if limit.name in ("memlock", "nofile") and limit.soft.ok:
            rows.append(_row(limit.name, limit.soft))
    return rows


def _numbers(bundle: Bundle, rows: list[Ceiling]) -> Numbers:
    """The readings of a stack as the decision takes them, with those that no machine printed
    named as filled in.
    """
    readings: dict[str, Reading] = {}
    module = ""
    for row in rows:
        if row.layer == "ttm":
            module = row.name.partition(".")[0]
        if row.number and row.value.ok:
            readings.setdefault(row.number, row.value)
    constructed = constructed_items(bundle)
    filled = [field for field in readings if readings[field].item in constructed]
    memory = bundle.read("/proc/meminfo")
    if memory.constructed:
        filled += ["bare_free", "available"]
    of_memory = figures_of([("bundle", "/proc/meminfo", memory.text)])
    free = {figure.pool: figure.bytes for figure in of_memory}
    numbers = Numbers(
        wanted=_wanted(bundle, module),
        kernel=kernel_release(kernel_of(bundle)),
        out_of_tree=kfd.driver_version(bundle).ok,
        bare_free=free.get("hostfree"),
        available=free.get("available"),
        filled=tuple(filled),
    )
    sizes: dict[str, Any] = {field: readings[field].bytes for field in readings}
    return replace(numbers, **sizes)


def _wanted(bundle: Bundle, module: str) -> int | None:
    """The pages_limit that is configured, in bytes, that of the module in use first: another's
    was wanted as well.
    """
    wanted = [
        p.wanted for p in ttm.parameters(bundle) if p.name == "pages_limit" and p.wanted
    ]
    wanted.sort(key=lambda setting: setting.module != module)
    sizes = (_size(setting.value, "pages", page_size(bundle)) for setting in wanted)
    return next((size for size in sizes if size), None)


def ceiling_answer(bundle: Bundle, message_total: int | None = None) -> list[Stack]:
    """Each GPU's ceilings with the decision about them, those with a cause first.

    What the failing program's message says of the total stands in where the evidence has none.
    """
    stacks = ceilings(bundle)
    about_a_card = _has_a_card_of(message_total, stacks)
    answers = []
    for stack in stacks:
        shares_the_ram = stack.numbers.kind in (APU, UNIFIED)
        asks_the_message = message_total is not None and not about_a_card
        if shares_the_ram and stack.numbers.torch is None and asks_the_message:
            decision = decide(replace(stack.numbers, torch=message_total))
            answers.append(replace(stack, decision=decision))
        else:
            answers.append(stack)
    return sorted(
        answers, key=lambda stack: stack.decision.cause in ("other", "cannot-tell")
    )


def _has_a_card_of(total: int | None, stacks: tuple[Stack, ...]) -> bool:
    """Whether a card of the box has that total, so that a message is about the card and not the
    APU beside it.
    """
    if total is None:
        return False
    for stack in stacks:
        if stack.numbers.kind in (APU, UNIFIED):
            continue
        for row in stack.rows:
            if row.layer not in (None, "carveout", "kfd_bank", "hip_total"):
                continue
            size = row.value
            if (
                size.ok
                and size.unit == "bytes"
                and 0.9 * size.bytes <= total <= 1.001 * size.bytes
            ):
                return True
    return False


def _not_an_apu(kind: str, gpu: Gpu | None, numbers: Numbers) -> Decision:
    """The answer on a box that no TTM limit applies to, or of which that is not known."""
    pattern = {"other vendor": "other_vendor", "none": "no_gpu"}.get(kind, kind)
    sure: Confidence = "confirmed"
    if kind in ("wsl", "unsure"):
        sure = "weak"
    vram_words = ""
    vendor = ""
    if gpu is not None:
        vendor = gpu.vendor
        totals = (p.total for p in gpu.pools if p.layer in ("sysfs VRAM", "KFD bank"))
        total = next(totals, None)
        if total is not None and total.ok:
            vram_words = f" ({total.show()})"
    decision = answer(
        pattern, numbers, None, sure, vram_words=vram_words, vendor=vendor
    )
    if kind == "unsure":
        return replace(decision, missing=("is_integrated",))
    return decision
