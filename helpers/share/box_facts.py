"""The typed part of an evidence bundle: its releases, its views, and each number that was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from helpers.ground.shapes import Reading
from helpers.judge.ceilings import ceilings
from helpers.judge.evidence import CaseEvidence
from helpers.judge.ledger import ledgers_of
from helpers.look import drm, framework, kernel_log, kfd, nvidia, pci, rocm, ttm
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.environment import limits
from helpers.look.gpus import Gpu, gpus, host_pools
from helpers.look.machine import machine
from helpers.tell import box, tables
from helpers.tell.shown import Shown
from helpers.tell.ttm import ceilings_bars, ceilings_table
from helpers.tell.values import columns

from . import public
from .public_copy import PublicCopy
from .verdict_facts import TABLE

NOT_READ = "not available"
INSTEAD = {
    "cpu": "not shown",
    "kernel_parameters": "none that concern a GPU",
    "allocator_settings": "(defaults)",
}
"""What stands for a value that may not be shown, or that nobody set."""


def versions(bundle: Bundle) -> dict[str, str]:
    """Releases of a bundle's box, cut to their digits, and the settings that concern its memory.

    What is not known says so.
    """
    about = machine(bundle)
    torch = framework.framework(bundle)
    trees = [public.version(_text(reading)) for reading in rocm.rocm_versions(bundle)]
    releases = {
        "kernel": about.kernel,
        "python": torch.python,
        "torch": torch.version,
        "hip": torch.hip,
        "cuda": torch.cuda,
        "amdgpu": kfd.driver_version(bundle),
        "nvidia": nvidia.driver(bundle),
    }
    known = {"container": ""}
    known |= {name: public.version(_text(reading)) for name, reading in releases.items()}
    known["distribution"] = public.distribution(_text(about.distribution))
    known["ram"] = public.number(about.ram_total)
    who = identity(bundle)
    if who is not None:
        known["container"] = public.known(who.container, who.container in public.CONTAINERS)
    known["rocm"] = ", ".join(filter(None, trees))
    known["cpu"] = public.chip(_text(about.cpu))
    known["kernel_parameters"] = public.kernel_parameters(_text(about.cmdline))
    known["allocator_settings"] = public.allocator_settings(_text(torch.settings))
    return {name: text or INSTEAD.get(name, NOT_READ) for name, text in known.items()}


def _text(reading: Reading) -> str:
    if reading.ok:
        return str(reading.value)
    return ""


def gpu_names(bundle: Bundle) -> list[str]:
    """The GPUs of a box, those of one name counted."""
    counts = Counter(map(_gpu_name, gpus(bundle)))
    return [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]


def _gpu_name(gpu: Gpu) -> str:
    """A GPU by its chip's name, else by its vendor."""
    name = public.chip(_text(gpu.name)) or "GPU"
    if gpu.vendor in name:
        return name
    return f"{gpu.vendor} {name}"


def machine_line(bundle: Bundle) -> str:
    """The box in a line: its GPUs, its RAM and its system."""
    about = versions(bundle)
    names = "; ".join(gpu_names(bundle)) or "no GPU"
    return f"{names}, {about['ram']} of RAM, {about['distribution']}, Linux {about['kernel']}"


def report_views(bundle: Bundle, copies: PublicCopy) -> list[Shown]:
    """What a report for a tracker has of a box: its memory, who holds it, and its kernel log."""
    cards = copies.of(gpus(bundle))
    events = tables.events_table(copies.of(kernel_log.events(bundle)))
    views = [
        tables.pools_table([*cards, *copies.of(host_pools(bundle))]),
        tables.holders_table(cards),
        events,
    ]
    return [view.passing(copies.rules) for view in views]


def box_views(evidence: CaseEvidence, bundle: Bundle, copies: PublicCopy) -> list[Shown]:
    """Its memory, who holds it, what limits it, its settings and releases, with figures."""
    from helpers.tell import figures  # here: a report draws none, and matplotlib takes long

    known = versions(bundle)
    _, holders, events = report_views(bundle, copies)
    cards = copies.of(gpus(bundle))
    stacks = copies.of(ceilings(bundle))
    views = [
        tables.gpus_table(cards),
        figures.pools([*cards, *copies.of(host_pools(bundle))]),
        holders,
        figures.ledger(copies.of(ledgers_of(evidence))),
        *map(ceilings_bars, stacks),
        *map(ceilings_table, stacks),
        box.settings_table(bundle),
        box.access_table(bundle),
        readings_table(bundle),
    ]
    releases = [[name, known[code]] for name, code in TABLE["versions"].items()]
    system = Shown("Releases and settings of the system", ["what", "value"], releases)
    return [system, *(view.passing(copies.rules) for view in views), events]


def readings_table(bundle: Bundle) -> Shown:
    """Each number that was read of a box, as it was read, with where it stood."""
    read: dict[str, Any] = {
        "the machine": [machine(bundle)],
        "PCI": [device for device in pci.pci_devices(bundle) if device.is_gpu],
        "limit of a process": limits(bundle),
        "kernel parameter": ttm.parameters(bundle),
        "sysfs": drm.cards(bundle),
        "KFD": kfd.nodes(bundle),
        "HSA agent": rocm.agents(bundle),
        "rocm-smi": rocm.cards(bundle),
        "amd-smi": rocm.gpus(bundle),
        "nvidia-smi": nvidia.gpus(bundle),
        "torch": framework.framework(bundle).devices,
    }
    rows = []
    for layer, facts in read.items():
        for fact in facts:
            rows += [[layer, *row] for row in _numbers_of(fact)]
    head = columns("layer:word, GPU:pci, reading:word, value:number, source:source")
    return Shown("Readings, as they were read", head, rows, none="No number was read.")


def _numbers_of(fact: Any) -> Iterator[list[object]]:
    """The readings of a fact that are numbers: its GPU, what it is, the reading, its source."""
    of_gpu = getattr(fact, "pci", "")
    if isinstance(of_gpu, Reading):
        of_gpu = of_gpu.value
    name = ""
    if isinstance(getattr(fact, "name", None), str):
        name = f"{fact.name} "
    for field in fields(fact):
        reading = getattr(fact, field.name)
        what = f"{name}{field.name.replace('_', ' ')}"
        if isinstance(reading, Reading) and public.is_number(reading.value):
            yield [of_gpu, what, reading, reading.source]
        elif field.name.endswith("_id") and isinstance(reading, str):
            yield [of_gpu, what, reading, ""]


def filled_readings(bundle: Bundle) -> int:
    """How many readings of a box no machine printed."""
    return sum(1 for item in bundle.items if item.constructed)
