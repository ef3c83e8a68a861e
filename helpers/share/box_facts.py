"""The typed part of an evidence bundle: its GPUs, memory pools, holders by number, and versions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from helpers.ground.shapes import Reading
from helpers.look import framework, kernel_log, kfd, nvidia, rocm
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, Pool, gpus, host_pools
from helpers.look.machine import machine
from helpers.tell.shown import Column, Shown, size
from helpers.tell.tables import kind_words

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
    return Versions(
        distribution=public.distribution(_text(box.distribution)) or NOT_READ,
        kernel=public.version(_text(box.kernel)) or NOT_READ,
        cpu=public.chip(_text(box.cpu), otherwise=NOT_SHOWN),
        ram=public.number(box.ram_total) or NOT_READ,
        python=public.version(_text(torch.python)) or NOT_READ,
        torch=public.version(_text(torch.version)) or NOT_READ,
        hip=public.version(_text(torch.hip)) or NOT_READ,
        cuda=public.version(_text(torch.cuda)) or NOT_READ,
        amdgpu=public.version(_text(kfd.driver_version(bundle))) or NOT_READ,
        nvidia=public.version(_text(nvidia.driver(bundle))) or NOT_READ,
        rocm=", ".join(filter(None, trees)) or NOT_READ,
        kernel_parameters=public.kernel_parameters(_text(box.cmdline)) or "none that concern a GPU",
        allocator_settings=public.allocator_settings(_text(torch.settings)) or "(defaults)",
    )


def _text(reading: Reading) -> str:
    return str(reading.value) if reading.ok else ""


def gpu_name(gpu: Gpu) -> str:
    """A GPU by its chip's name, else by its vendor."""
    name = public.chip(_text(gpu.name), otherwise=f"{gpu.vendor} GPU".strip())
    return name if gpu.vendor in name else f"{gpu.vendor} {name}"


def gpu_names(bundle: Bundle) -> list[str]:
    """The GPUs of a box, those of one name counted."""
    counts = Counter(gpu_name(gpu) for gpu in gpus(bundle))
    return [f"{count} x {name}" if count > 1 else name for name, count in counts.items()]


def machine_line(bundle: Bundle) -> str:
    """The box in a line: its GPUs, its RAM and its system."""
    about = versions(bundle)
    names = "; ".join(gpu_names(bundle)) or "no GPU"
    return f"{names}, {about.ram} of RAM, {about.distribution}, Linux {about.kernel}"


def pools_view(bundle: Bundle) -> Shown:
    """What each layer says of each pool of memory."""
    items: list[Pool] = [pool for gpu in gpus(bundle) for pool in gpu.pools]
    items += host_pools(bundle)
    columns = ["GPU", "layer", *(Column(name, "bytes") for name in ("total", "used", "free"))]
    rows = [
        [pool.pci or "host", pool.layer, size(pool.total), size(pool.used), size(pool.free)]
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


def filled_readings(bundle: Bundle | None) -> int:
    """How many readings of a box no machine printed."""
    items = bundle.items if bundle else ()
    return sum(1 for item in items if item.constructed)
