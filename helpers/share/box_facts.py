"""The part of an evidence bundle that may be shared: releases, tables and figures, and the numbers
that were read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from helpers.ground.shapes import Reading, seen
from helpers.judge.ceilings import Stack, ceilings
from helpers.judge.evidence import CaseEvidence
from helpers.judge.ledger import ledgers_of
from helpers.look import framework, kernel_log, kfd, nvidia, rocm
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, gpus, host_pools
from helpers.look.machine import machine
from helpers.look.pcie import pcie_links
from helpers.tell import box, tables
from helpers.tell.readings import readings_table
from helpers.tell.shown import Shown
from helpers.tell.ttm import ceilings_bars, ceilings_table

from . import public
from .public_copy import PublicCopy, text_of

NOT_READ = "not available"
UNSET = {
    "Kernel parameters": "none that concern a GPU",
    "Allocator settings": "(defaults)",
}
"""What stands for a setting that nobody made."""


def releases(bundle: Bundle) -> dict[str, str]:
    """Releases of a box, without private suffixes, and the settings that concern its memory, by
    name.

    The names are those of PyTorch's collect_env.py, which trackers ask for. An unknown value is
    NOT_READ, a setting that nobody made its text in UNSET.
    """
    system = machine(bundle)
    torch = framework.framework(bundle)
    trees = map(_version, rocm.rocm_versions(bundle))
    container = ""
    who = identity(bundle)
    if who is not None:
        container = public.typed("container", who.container)
    facts = {
        "PyTorch version": _version(torch.version),
        "ROCM used to build PyTorch": _version(torch.hip),
        "CUDA used to build PyTorch": _version(torch.cuda),
        "OS": public.distribution(text_of(system.distribution)),
        "Kernel": _version(system.kernel),
        "Python version": _version(torch.python),
        "CPU": public.chip(text_of(system.cpu)),
        "RAM": public.number(system.ram_total),
        "amdgpu out of tree": _version(kfd.driver_version(bundle)),
        "NVIDIA driver": _version(nvidia.driver(bundle)),
        "ROCm of the system": ", ".join(filter(None, trees)),
        "Allocator settings": public.allocator_settings(text_of(torch.settings)),
        "Kernel parameters": public.kernel_parameters(text_of(system.cmdline)),
        "Container": container,
    }
    for name, text in facts.items():
        if not text:
            facts[name] = UNSET.get(name, NOT_READ)
    return facts


def _version(release: Reading) -> str:
    """The public part of a release that was read; empty where none was."""
    return public.version(text_of(release))


def gpu_names(bundle: Bundle) -> list[str]:
    """The names of a box's GPUs, each once, with a count where there are several: "2 x
    NVIDIA L4".
    """
    counts = Counter(map(_gpu_name, gpus(bundle)))
    names = []
    for name, count in counts.items():
        if count > 1:
            name = f"{count} x {name}"
        names.append(name)
    return names


def _gpu_name(gpu: Gpu) -> str:
    """A GPU by its chip's name, else by its vendor."""
    name = public.chip(text_of(gpu.name))
    if not name:
        return f"{gpu.vendor} GPU"
    if gpu.vendor in name:
        return name
    return f"{gpu.vendor} {name}"


def _with_a_name(gpu: Gpu) -> Gpu:
    """The GPU itself where its chip's name may be shared, else a copy that is named by its vendor,
    since the rules of the table would leave its name empty.
    """
    if public.chip(text_of(gpu.name)):
        return gpu
    return replace(gpu, name=seen(_gpu_name(gpu), "text", gpu.name.source))


def machine_line(bundle: Bundle) -> str:
    """The box in a line: its GPUs, its RAM and its system."""
    about = releases(bundle)
    names = "; ".join(gpu_names(bundle))
    if not names:
        names = "no GPU"
    return f"{names}, {about['RAM']} of RAM, {about['OS']}, Linux {about['Kernel']}"


def report_views(bundle: Bundle, copies: PublicCopy) -> list[Shown]:
    """The tables of a box for a tracker: its memory, who holds it, and its kernel log."""
    cards = copies.of(gpus(bundle))
    events = tables.events_table(copies.of(kernel_log.events(bundle)))
    views = [
        tables.pools_table([*cards, *copies.of(host_pools(bundle))]),
        tables.holders_table(cards),
        events,
    ]
    return [view.passing(copies.rules) for view in views]


def box_views(
    evidence: CaseEvidence, bundle: Bundle, copies: PublicCopy
) -> list[Shown]:
    """The tables and figures of a box for a page: its releases, memory, who holds it, what limits
    it, its settings, and its kernel log.
    """
    # Imported here, because a report has no figures and matplotlib takes long to load.
    from helpers.tell import figures

    _, holders, events = report_views(bundle, copies)
    cards = copies.of([_with_a_name(gpu) for gpu in gpus(bundle)])
    stacks = copies.of(ceilings(bundle))
    views = [
        tables.gpus_table(cards),
        figures.pools([*cards, *copies.of(host_pools(bundle))]),
        holders,
        figures.ledger(copies.of(ledgers_of(evidence))),
        *limits_of(stacks),
        box.settings_table(bundle),
        tables.pcie_table(copies.of(pcie_links(bundle))),
        box.access_table(bundle),
        readings_table(bundle),
    ]
    system = Shown(
        "Releases and settings of the system",
        ["what", "value"],
        list(releases(bundle).items()),
    )
    return [system, *(view.passing(copies.rules) for view in views), events]


def limits_of(stacks: tuple[Stack, ...]) -> list[Shown]:
    """The limits of each GPU as a table with a figure, numbered where there are several GPUs."""
    views = []
    for number, stack in enumerate(stacks, 1):
        drawn = ceilings_bars(stack)
        label = drawn.label
        if len(stacks) > 1:
            label = f"Limits of GPU {number}"
        table = ceilings_table(stack)
        views.append(replace(table, title=drawn.title, label=label, draw=drawn.draw))
    return views


def filled_readings(bundle: Bundle) -> int:
    """How many items of a recorded box were filled in from its write-up: no machine
    printed them.
    """
    return sum(item.constructed for item in bundle.items)
