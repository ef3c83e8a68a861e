"""The typed part of an evidence bundle: its GPUs, memory pools, ledgers, ceilings, settings,
events and versions.

What a machine's names are is replaced in the facts themselves, before anything is drawn or
written of them, so tables and figures come from the same functions as on the page of a box.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from helpers.ground.shapes import Reading, seen
from helpers.ground.units import show_bytes
from helpers.judge.ceilings import Stack, ceilings
from helpers.judge.evidence import CaseEvidence
from helpers.judge.ledger import GpuLedger, LedgerRow, ledgers_of
from helpers.look import framework, kernel_log, kfd, nvidia, rocm
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, Pool, gpus, host_pools
from helpers.look.kernel_log import Event
from helpers.look.machine import machine
from helpers.look.wordings import meaning
from helpers.tell import box, tables, ttm
from helpers.tell.shown import Shown
from helpers.tell.values import columns

from . import public
from .public import Names

NOT_SHOWN = "not shown"
NOT_READ = "not available"
INSTEAD = {
    "cpu": NOT_SHOWN,
    "kernel_parameters": "none that concern a GPU",
    "allocator_settings": "(defaults)",
}
"""What stands for a value that may not be shown, or that nobody set."""
SLICE = "MIG device"
HELD_BY = {
    "process": "the failing program",
    "outside": "beyond what can be seen from here",
    "reserved": "kept by the driver for itself",
    "unattributed": "held by no process that was seen",
}
PARTS = ("tensors", "cached by torch and unused", "reserved by torch", "context and libraries")
"""What a ledger says of the parts of a process, behind its name."""


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
    known = {name: public.version(_text(reading)) for name, reading in releases.items()}
    known["distribution"] = public.distribution(_text(about.distribution))
    known["ram"] = public.number(about.ram_total)
    known["rocm"] = ", ".join(filter(None, trees))
    known["cpu"] = public.chip(_text(about.cpu))
    known["kernel_parameters"] = public.kernel_parameters(_text(about.cmdline))
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


class PublicBox:
    """The facts of a box as others may read them: without a name of it."""

    def __init__(self, evidence: CaseEvidence, bundle: Bundle, names: Names) -> None:
        self.bundle = bundle
        self.names = names
        self.cards = [_gpu(gpu, names) for gpu in gpus(bundle)]
        self.pools: list[Gpu | Pool] = [*self.cards, *map(_pool, host_pools(bundle))]
        self.ledgers = [_ledger(book, names) for book in ledgers_of(evidence)]
        self.stacks = [_stack(stack) for stack in ceilings(bundle)]

    def events(self) -> Shown:
        """Each event of the kernel log, printed anew from what was read of its line."""
        return events_view(kernel_log.events(self.bundle), self.names)

    def views(self) -> list[Shown]:
        """Its memory, who holds it, what limits it, its settings and releases, with figures."""
        from helpers.tell import figures  # here: a report draws none, and matplotlib takes long

        return [
            tables.gpus_table(self.cards),
            figures.pools(self.pools),
            tables.holders_table(self.cards),
            figures.ledger(self.ledgers),
            *map(ttm.ceilings_bars, self.stacks),
            *map(ttm.ceilings_table, self.stacks),
            box.settings_table(self.bundle),
            box.stack_table(self.bundle),
            self.events(),
        ]


def _gpu(gpu: Gpu, names: Names) -> Gpu:
    """A GPU whose processes have numbers instead of names."""
    holders = []
    for holder in gpu.holders:
        name = names.of("process", holder.pid)
        memory = public.reading(holder.memory)
        holders.append(replace(holder, name=name, memory=memory, note=""))
    return replace(
        gpu,
        name=seen(gpu_name(gpu), "text", ""),
        driver=public.fitting(public.FORMS["driver"], gpu.driver),
        pools=tuple(map(_pool, (*gpu.pools, *gpu.parts))),
        slices=(),
        window=None,
        holders=tuple(holders),
        unattributed=public.reading(gpu.unattributed),
        blind_spots=(),
    )


def _pool(pool: Pool) -> Pool:
    layer = pool.layer
    if layer.startswith(SLICE):  # its number is a text of the tool
        layer = public.fitting(SLICE + r" \d{1,3}", layer)
    return replace(
        pool,
        layer=layer,
        total=public.reading(pool.total),
        used=public.reading(pool.used),
        free=public.reading(pool.free),
    )


def _ledger(book: GpuLedger, names: Names) -> GpuLedger:
    """A ledger whose rows say by number who holds each part."""
    rows = []
    for row in book.rows:
        words = _held_by(row, names)
        where = public.source(row.source)
        rows.append(replace(row, words=words, bytes=public.reading(row.bytes), source=where))
    return replace(
        book,
        total=public.reading(book.total),
        used=public.reading(book.used),
        rows=tuple(rows),
        contradictions=(),
        notes=(),
    )


def _held_by(row: LedgerRow, names: Names) -> str:
    words = HELD_BY.get(row.kind, "another process")
    if row.pid:
        words = names.of("process", row.pid)
    part = row.words.rpartition(": ")[2].partition(" (")[0]
    if part in PARTS:
        words += f": {part}"
    return words


def _stack(stack: Stack) -> Stack:
    """The ceilings over a GPU with their numbers alone."""
    rows = [replace(row, value=public.reading(row.value), note="") for row in stack.rows]
    decision = replace(stack.decision, says="What binds is not known")
    return replace(stack, name=public.chip(stack.name), rows=tuple(rows), decision=decision)


def events_view(events: Iterable[Event], names: Names) -> Shown:
    """Each event of the kernel log, printed anew from what was read of its line."""
    words = tables.kind_words()
    head = columns(
        "time:number:s, boot:number, lines:number, kind:word, GPU:pci, process:process, about:word",
        widest=None,
    )
    rows = []
    for event in events:
        name = names.of("process", event.pid or event.process)
        kind = words.get(event.kind, event.kind.replace("_", " "))
        rows.append(
            [event.when.value, event.boot, event.count, kind, event.pci, name, _about(event)]
        )
    return Shown("The kernel log", head, rows, most=tables.MOST_EVENTS)


def _about(event: Event) -> str:
    """What a line of the kernel means, with its numbers."""
    says = [event.meaning or meaning(event.row)]
    for name, value in event.facts.items():
        if name.endswith("_bytes"):
            says.append(f"{name[:-6].replace('_', ' ')} {show_bytes(int(value))}")
        elif isinstance(value, int) or public.HEX.fullmatch(value):
            says.append(f"{name.replace('_', ' ')} {value}")
    return "; ".join(filter(None, says))


def filled_readings(bundle: Bundle) -> int:
    """How many readings of a box no machine printed."""
    return sum(1 for item in bundle.items if item.constructed)
