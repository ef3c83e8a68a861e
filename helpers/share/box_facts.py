"""The typed part of an evidence bundle: its GPUs, memory pools, holders by number, and versions."""

from __future__ import annotations

from collections import Counter

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
INSTEAD = {
    "cpu": NOT_SHOWN,
    "kernel_parameters": "none that concern a GPU",
    "allocator_settings": "(defaults)",
}
"""What stands for a value that may not be shown, or that nobody set."""
STATES = frozenset("RSDZTtXI")
QUIET_EVENTS = ("boot", "vram_ready", "gtt_ready", "vm_size", "driver_version")


def versions(bundle: Bundle) -> dict[str, str]:
    """Releases of a bundle's box, cut to their digits, and the settings that concern its memory.

    What is not known says so.
    """
    box = machine(bundle)
    torch = framework.framework(bundle)
    trees = [public.version(_text(reading)) for reading in rocm.rocm_versions(bundle)]
    releases = {
        "kernel": box.kernel,
        "python": torch.python,
        "torch": torch.version,
        "hip": torch.hip,
        "cuda": torch.cuda,
        "amdgpu": kfd.driver_version(bundle),
        "nvidia": nvidia.driver(bundle),
    }
    known = {name: public.version(_text(reading)) for name, reading in releases.items()}
    known["distribution"] = public.distribution(_text(box.distribution))
    known["ram"] = public.number(box.ram_total)
    known["rocm"] = ", ".join(filter(None, trees))
    known["cpu"] = public.chip(_text(box.cpu))
    known["kernel_parameters"] = public.kernel_parameters(_text(box.cmdline))
    known["allocator_settings"] = public.allocator_settings(_text(torch.settings))
    return {name: text or INSTEAD.get(name, NOT_READ) for name, text in known.items()}


def _text(reading: Reading) -> str:
    if reading.ok:
        return str(reading.value)
    return ""


def gpu_name(gpu: Gpu) -> str:
    """A GPU by its chip's name, else by its vendor."""
    name = public.chip(_text(gpu.name)) or "GPU"
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
    names = "; ".join(gpu_names(bundle)) or "no GPU"
    return f"{names}, {about['ram']} of RAM, {about['distribution']}, Linux {about['kernel']}"


def pools_view(bundle: Bundle) -> Shown:
    """What each layer says of each pool of memory."""
    items: list[Pool] = []
    for gpu in gpus(bundle):
        items += (*gpu.pools, *gpu.parts)
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


def filled_readings(bundle: Bundle) -> int:
    """How many readings of a box no machine printed."""
    return sum(1 for item in bundle.items if item.constructed)
