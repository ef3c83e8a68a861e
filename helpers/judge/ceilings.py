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
from helpers.judge.contradictions import pools_by_layer
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
    """One limit: ``value`` in bytes (a count for nofile), ``native`` the text of its source, which
    counts in ``unit``.

    ``key`` is its row in ceilings.json. ``layer`` is None where it does not limit what a program
    allocates; ``note`` then says what it is. ``pending_bytes`` is a value that is configured and
    not live, ``pending_source`` the place that has it.
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
        """What the layer is. Empty where that is not said, or for a row without a layer."""
        return _of_layer(self.layer, "says")

    @property
    def number(self) -> str:
        """The field of Numbers that the row gives. Empty where it gives none."""
        if self.key == "free":
            return "free"
        return _of_layer(self.layer, "number")

    def shape(self) -> shapes.Ceiling:
        """The row in the shape that answers have in JSON. Only a row with a layer has one."""
        assert self.layer is not None, "asked only of a row with a layer"
        size = None
        if self.value.ok:
            size = self.value.bytes
        source = self.value.source
        if not source:
            source = self.value.why
        return shapes.Ceiling(
            self.layer,
            size,
            source,
            self.value.status,  # type: ignore[arg-type]
            self.pending_bytes,
        )


def _of_layer(layer: Layer | None, key: str) -> str:
    """A column of a layer in ceilings.json; empty for no layer."""
    if layer is None:
        return ""
    return str(table("ceilings")["layers"][layer][key])


@dataclass(frozen=True)
class Stack:
    """All ceilings over one GPU, from the RAM upwards, and the decision which of them binds.

    ``pci`` is empty on a box without a GPU. ``kind`` is none, other vendor, apu, card, unsure or
    wsl.
    """

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
    """A stack for each GPU, AMD's APUs first, then AMD's cards; on a box without a GPU, a single
    stack of what limits the host.
    """

    def order(gpu: Gpu) -> tuple[bool, bool, str]:
        is_amds = gpu.vendor == "AMD"
        is_apu = is_amds and bool(gpu.integrated)
        return not is_apu, not is_amds, gpu.pci

    if not gpus(bundle):
        return (_stack(bundle, None),)
    return tuple(_stack(bundle, gpu) for gpu in sorted(gpus(bundle), key=order))


def _row(key: str, value: Reading, name: str = "") -> Ceiling:
    """A row of a stack with the unit and note that ceilings.json has for it, and its name unless
    another one is given.
    """
    data = table("ceilings")["rows"][key]
    if not name:
        name = data["name"]
    return Ceiling(
        key=key,
        layer=data["layer"],
        name=name,
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
    pci = name = ""
    if gpu is not None:
        pci = gpu.pci
        if gpu.name.ok:
            name = gpu.name.show()
    stack = Stack(pci, name, kind, tuple(rows), numbers, decision)
    return _with_fraction(stack)


def _kind(gpu: Gpu | None) -> str:
    """The ``kind`` of a Stack over a GPU; wsl only the box can tell."""
    if gpu is None:
        return "none"
    if gpu.vendor != "AMD":
        return "other vendor"
    if gpu.integrated is None:
        return "unsure"
    if gpu.integrated:
        return "apu"
    return "card"


def _with_fraction(stack: Stack) -> Stack:
    """The stack, bound by torch's memory fraction where that is the lowest ceiling."""
    share = stack.row("fraction")
    decision = stack.decision
    if share is None or not share.value.ok or decision.binding_bytes is None:
        return stack
    if share.value.bytes >= decision.binding_bytes:
        return stack
    says = f"{share.name} keeps this process below the device's total. Below that: {decision.says}"
    by_fraction = replace(
        decision, binding="fraction", binding_bytes=share.value.bytes, says=says
    )
    return replace(stack, decision=by_fraction)


def _is_unified(bundle: Bundle, gpu: Gpu) -> bool:
    """Whether an NVIDIA GPU shares the RAM: by torch, which may give no address, or by its name."""
    if gpu.vendor != "NVIDIA":
        return False
    devices = [d for d in framework.framework(bundle).devices if d.pci in ("", gpu.pci)]
    if any(device.integrated for device in devices):
        return True
    return any(mention.part.kind == UNIFIED for mention in mentions(gpu.name.show()))


def _host_rows(bundle: Bundle, kind: str) -> list[Ceiling]:
    """The RAM; for AMD, the parameters of amdgpu and TTM, or why no limit was read, and KFD's."""
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
    """The module parameters that are ceilings or that people take for one; others have no row."""
    page = page_size(bundle)
    for parameter in ttm.parameters(bundle):
        if parameter.name not in table("ceilings")["rows"]:
            continue
        name = f"{parameter.module}.{parameter.name}"
        row = replace(_row(parameter.name, parameter.live, name), unit="text")
        if parameter.unit:
            row = replace(row, value=parameter.live_bytes, unit=parameter.unit)
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
    """The row of a pages_limit, as TTM's layer where amdgpu uses its module; ``used`` is the
    module that amdgpu uses.
    """
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
    kernel = machine(bundle).kernel
    if not kernel.ok:
        return ""
    return str(kernel.value)


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
    """Bytes of a module parameter that is written as ``value``; None where it is no size."""
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
    memory = ("carveout", "gtt")
    if kind == "card":
        memory = ("card_vram", "card_gtt")
    names = (*memory, "kfd_bank", "hsa_pool", "hip_total")
    rows = [_row(name, _total(bundle, gpu, name)) for name in names]
    devices = [d for d in framework.framework(bundle).devices if d.pci == gpu.pci]
    for device in devices[:1]:
        if device.driver_total.ok:
            rows.append(_row("driver_total", device.driver_total))
        if device.free.ok:
            rows.append(_row("free", device.free))
    return rows


def _total(bundle: Bundle, gpu: Gpu, name: str) -> Reading:
    """The total of a pool of ceilings.json, by the first of its layers that reports one."""
    data = table("ceilings")["pools"][name]
    pools = pools_by_layer(gpu)
    for layer in data["layers"]:
        if layer in pools and pools[layer].total.unit == "bytes":
            return pools[layer].total
    why = ""
    if name == "hip_total":
        why = framework.devices_reading(bundle).why
    if not why:
        why = data["without"]
    return not_available(why, "bytes", "")


def _process_rows(bundle: Bundle) -> list[Ceiling]:
    """Limits of the process: its memory fraction in torch, its control group and its ulimits."""
    rows = []
    fraction = _fraction_row(bundle)
    if fraction is not None:
        rows.append(fraction)
    rows.append(_row("cgroup", machine(bundle).cgroup_limit))
    for limit in limits(bundle):
        if limit.name in ("memlock", "nofile") and limit.soft.ok:
            rows.append(_row(limit.name, limit.soft))
    return rows


def _fraction_row(bundle: Bundle) -> Ceiling | None:
    """The share of the card that an environment variable lets torch have; None where it is whole
    or not limited.
    """
    torch = framework.framework(bundle)
    version = ""
    if torch.version.ok:
        version = str(torch.version.value)
    captured = {variable.name: variable for variable in variables(bundle)}
    environ = {name: variable.value for name, variable in captured.items()}
    share, name = memory_fraction(environ, version, torch.build)
    if share is None or not 0 < share < 1:  # a share of 1 limits nothing
        return None
    value = not_available("torch's total is not known", "bytes", "")
    totals = [device.total.bytes for device in torch.devices if device.total.ok]
    if totals:
        value = seen(int(share * totals[0]), "bytes", name, captured[name].item)
    return Ceiling(
        key="fraction",
        layer="fraction",
        name=f"{name} per_process_memory_fraction",
        value=value,
        native=f"{share:g}",
        unit="of the total",
    )


def _numbers(bundle: Bundle, rows: list[Ceiling]) -> Numbers:
    """The readings of a stack as binding.decide takes them; ``filled`` has those that no machine
    printed.
    """
    readings: dict[str, Reading] = {}  # by field of Numbers
    module = ""
    for row in rows:
        if row.layer == "ttm":
            module, _, _parameter = row.name.partition(".")
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
    """The pages_limit that is configured, in bytes: of the module that amdgpu uses, else of
    another TTM module; None for none.
    """
    wanted = []
    for parameter in ttm.parameters(bundle):
        if parameter.name == "pages_limit" and parameter.wanted:
            wanted.append(parameter.wanted)
    wanted.sort(key=lambda setting: setting.module != module)
    for setting in wanted:
        size = _size(setting.value, "pages", page_size(bundle))
        if size:
            return size
    return None


def _not_an_apu(kind: str, gpu: Gpu | None, numbers: Numbers) -> Decision:
    """The decision for a stack of this ``kind``, which no TTM limit applies to, or of which that
    is not known.
    """
    pattern = {"other vendor": "other_vendor", "none": "no_gpu"}.get(kind, kind)
    confidence: Confidence = "confirmed"
    if kind in ("wsl", "unsure"):
        confidence = "weak"
    vram_words = ""
    vendor = ""
    if gpu is not None:
        vendor = gpu.vendor
        layers = ("sysfs VRAM", "KFD bank")
        totals = [pool.total for pool in gpu.pools if pool.layer in layers]
        if totals and totals[0].ok:
            vram_words = f" ({totals[0].show()})"
    decision = answer(
        pattern, numbers, None, confidence, vram_words=vram_words, vendor=vendor
    )
    if kind == "unsure":
        return replace(decision, missing=("is_integrated",))
    return decision
