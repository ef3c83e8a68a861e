"""The typed part of an evidence bundle: its GPUs, memory pools, holders by number, and versions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from helpers.ground.shapes import Reading
from helpers.look import framework, kernel_log, kfd, nvidia, rocm
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, Pool, gpus, host_pools
from helpers.look.machine import machine
from helpers.tell.shown import Shown
from helpers.tell.tables import kind_words
from helpers.tell.values import Column, size

from . import public

NOT_SHOWN = "not shown"
NOT_READ = "not available"
STATES = frozenset("RSDZTtXI")
QUIET_EVENTS = ("boot", "vram_ready", "gtt_ready", "vm_size", "driver_version")


@dataclass(frozen=True)
class Versions:
    """Releases of a box, cut to their digits, and the settings that concern its memory."""

    distribution: str
    kernel: str
    cpu: str
    ram: str
    python: str
    torch: str
    hip: str
    cuda: str
    amdgpu: str
    nvidia: str
    rocm: str
    kernel_parameters: str
    allocator_settings: str


def versions(bundle: Bundle) -> Versions:
    """The versions of a bundle's box; what is not known says so."""
    box = machine(bundle)
    torch = framework.framework(bundle)
    trees = [public.version(_text(reading)) for reading in rocm.rocm_versions(bundle)]
    parameters = public.kernel_parameters(_text(box.cmdline))
    settings = public.allocator_settings(_text(torch.settings))
    return Versions(
        distribution=_or_else(public.distribution(_text(box.distribution)), NOT_READ),
        kernel=_release(box.kernel),
        cpu=_or_else(public.chip(_text(box.cpu)), NOT_SHOWN),
        ram=_or_else(public.number(box.ram_total), NOT_READ),
        python=_release(torch.python),
        torch=_release(torch.version),
        hip=_release(torch.hip),
        cuda=_release(torch.cuda),
        amdgpu=_release(kfd.driver_version(bundle)),
        nvidia=_release(nvidia.driver(bundle)),
        rocm=_or_else(", ".join(filter(None, trees)), NOT_READ),
        kernel_parameters=_or_else(parameters, "none that concern a GPU"),
        allocator_settings=_or_else(settings, "(defaults)"),
    )


def _release(reading: Reading) -> str:
    return _or_else(public.version(_text(reading)), NOT_READ)


def _or_else(text: str, otherwise: str) -> str:
    if text:
        return text
    return otherwise


def _text(reading: Reading) -> str:
    if reading.ok:
        return str(reading.value)
    return ""


def gpu_name(gpu: Gpu) -> str:
    """A GPU by its chip's name, else by its vendor."""
    name = _or_else(public.chip(_text(gpu.name)), "GPU")
    if gpu.vendor in name:
        return name
    return f"{gpu.vendor} {name}"


def gpu_names(bundle: Bundle) -> list[str]:
    """The GPUs of a box, those of one name counted."""
    counts = Counter(gpu_name(gpu) for gpu in gpus(bundle))
    names = []
    for name, count in counts.items():
        if count > 1:
            name = f"{count} x {name}"
        names.append(name)
    return names


def machine_line(bundle: Bundle) -> str:
    """The box in a line: its GPUs, its RAM and its system."""
    about = versions(bundle)
    names = _or_else("; ".join(gpu_names(bundle)), "no GPU")
    return f"{names}, {about.ram} of RAM, {about.distribution}, Linux {about.kernel}"


def pools_view(bundle: Bundle) -> Shown:
    """What each layer says of each pool of memory."""
    items: list[Pool] = []
    for gpu in gpus(bundle):
        items += gpu.pools
    items += host_pools(bundle)
    columns = ["GPU", "layer", *(Column(name, "bytes") for name in ("total", "used", "free"))]
    rows = [
        [_or_else(pool.pci, "host"), pool.layer, size(pool.total), size(pool.used), size(pool.free)]
        for pool in items
    ]
    return Shown("Memory as each layer reports it", columns, rows, none="No pool was read.")


def holders_view(bundle: Bundle) -> Shown:
    """Who holds memory of the GPUs, each process by a number of its own, and what nobody holds."""
    numbers: dict[int, str] = {}
    rows = []
    for gpu in gpus(bundle):
        for holder in gpu.holders:
            name = numbers.setdefault(holder.pid, f"process-{len(numbers) + 1}")
            state = holder.state if holder.state in STATES else ""
            rows.append([gpu.pci, name, state, size(holder.memory)])
        rows.append([gpu.pci, "no visible process", "", size(gpu.unattributed)])
    columns = ["GPU", "process", "state", Column("memory", "bytes")]
    return Shown("Who holds memory of the GPUs", columns, rows, none="No GPU was found.")


def events_view(bundle: Bundle) -> Shown:
    """How often the kernel log names each kind of trouble; its lines stay at home."""
    words = kind_words()
    counts: Counter[str] = Counter()
    for event in kernel_log.events(bundle):
        if event.kind in words and event.kind not in QUIET_EVENTS:
            counts[event.kind] += event.count
    rows = [[words[kind], count] for kind, count in counts.most_common()]
    return Shown("The kernel log", ["kind", "lines"], rows, none="No line about a GPU was read.")


def filled_readings(bundle: Bundle) -> int:
    """How many readings of a box no machine printed."""
    return sum(1 for item in bundle.items if item.constructed)
