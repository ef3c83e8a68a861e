"""The memory of a box as views: its GPUs and their links, each layer's pools, the processes that
hold memory, and the events of the kernel log.

Rows keep the order in which the caller gives them. ``columns`` takes headings with the rules by
which cells may leave this machine: ``GPU:pci``.
"""

from __future__ import annotations

import os.path
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from helpers.ground.shapes import Reading
from helpers.ground.units import plain
from helpers.tell.resources import words
from helpers.tell.shown import Shown
from helpers.tell.values import Column, columns, duration, size_or_zero

MOST_EVENTS = 40
"""Events that are shown, about a screen of a terminal; of more, the worst ones."""
NOBODY = "no visible process"
NO_POOL = "No memory pool was found."
NO_GPU = "No GPU was found: neither a driver nor the PCI bus shows one."

# one_source is used where no box is read, and these take time to load
if TYPE_CHECKING:
    from helpers.look.gpus import Gpu, Pool
    from helpers.look.kernel_log import Event
    from helpers.look.pcie import PcieLink


def pools_of(items: Iterable[Gpu | Pool]) -> list[tuple[Gpu | None, str, list[Pool]]]:
    """The pools by PCI address, in the order given: for each address its GPU (None where only pools
    name the address), the address (empty for the host), and all its pools, with the parts of a
    GPU's memory (Gpu.parts) behind those of the whole.
    """
    from helpers.look.gpus import Gpu

    gpus: dict[str, Gpu] = {}
    pools: dict[str, list[Pool]] = {}
    for item in items:
        pools_there = pools.setdefault(item.pci, [])
        if isinstance(item, Gpu):
            gpus[item.pci] = item
            pools_there += (*item.pools, *item.parts)
        else:
            pools_there.append(item)
    return [(gpus.get(pci), pci, listed) for pci, listed in pools.items()]


def one_source(readings: Iterable[Reading]) -> str:
    """Where readings came from, in one phrase, each source once; files of one folder as
    ``/sys/.../{mem_info_vram_total, mem_info_vram_used}``; empty where no reading has a source.
    """
    sources: list[str] = []
    for reading in readings:
        if reading.source:
            # The source of a sum or a difference names its parts: "this + that".
            parts = re.split(" [-+] ", plain(reading.source))
            sources += [part for part in parts if part not in sources]
    if len(sources) > 1 and all(source.startswith("/") for source in sources):
        folders = {os.path.dirname(source) for source in sources}
        if len(folders) == 1:
            names = ", ".join(map(os.path.basename, sources))
            return f"{folders.pop()}/{{{names}}}"
    return "; ".join(sources)


def gpus_table(gpus: Iterable[Gpu]) -> Shown:
    """Each GPU by its PCI address with its number in every index space (DRM, KFD, torch): these
    numbers differ.
    """
    listed = list(gpus)
    spaces: dict[str, None] = {}  # a set that keeps its order
    for gpu in listed:
        spaces.update(dict.fromkeys(gpu.indices))
    rows = []
    for gpu in listed:
        numbers = [gpu.indices.get(space, "") for space in spaces]
        rows.append([gpu.pci, gpu.name, gpu.vendor, gpu.driver, _kind(gpu), *numbers])
    head = columns("GPU:pci, name:chip, vendor:word, driver:driver, kind:word")
    head += [Column(plain(space), passes="index") for space in spaces]
    names = [f"{gpu.name.show()} at {gpu.pci}" for gpu in listed]
    return Shown(
        "The GPUs of this box",
        head,
        rows,
        none=NO_GPU,
        result=", ".join(names),
        label="GPUs",
    )


def pcie_table(links: Iterable[PcieLink], asleep: Iterable[str] = ()) -> Shown:
    """The speed and the lanes of each GPU's PCIe link now, and the most that it can have;
    ``asleep`` are the PCI addresses of GPUs that were not asked.
    """
    rows: list[list[object]] = []
    notes = []
    summaries = []
    slow = []
    for link in links:
        readings = [link.speed, link.max_speed, link.width, link.max_width]
        rows.append([link.pci, *readings, one_source(readings)])
        speed, max_speed, width, max_width = [reading.show() for reading in readings]
        summaries.append(f"{width} of {max_width} lanes at {speed} of {max_speed} GT/s")
        if link.is_below_its_maximum:
            slow.append(link.pci)
    if rows:
        notes.append("A speed is in GT/s for each lane.")
    if slow:
        why = "Many cards slow their link down while idle, and a slot may have fewer lanes than a card"
        notes.append(
            f"Below its maximum: {', '.join(slow)}. {why}; look again while a program runs."
        )
    for pci in asleep:
        notes.append(
            f"{pci} is suspended. Reading its link would wake it, so it was not read."
        )
    head = columns(
        "GPU:pci, speed:number, maximal speed:number, lanes:number, maximal lanes:number, "
        "source:source"
    )
    return Shown(
        "PCIe link of each GPU",
        head,
        rows,
        notes,
        none="No PCIe link of a GPU was read.",
        result=", ".join(dict.fromkeys(summaries)),  # once for cards that are alike
        label="PCIe",
        applies=bool(notes),
    )


def _kind(gpu: Gpu) -> str:
    """Whether a GPU is a card or is within the processor."""
    if gpu.integrated is None:
        return "unknown"
    if gpu.integrated:
        return "integrated"
    return "card"


def pools_table(items: Iterable[Gpu | Pool]) -> Shown:
    """Each layer's account of each memory pool, side by side."""
    rows: list[list[object]] = []
    for _, pci, pools in pools_of(items):
        for pool in pools:
            readings = [pool.total, pool.used, pool.free]
            place = pci
            if not place:
                place = "host"
            rows.append([place, pool.layer, *readings, one_source(readings)])
    head = columns(
        "GPU:pci, layer:word, total:number, used:number, free:number, source:source"
    )
    return Shown("Memory pools, each layer's account", head, rows, none=NO_POOL)


def holders_table(gpus: Iterable[Gpu]) -> Shown:
    """Each process that holds memory of a GPU, and for each GPU the memory that no process accounts
    for; below them what could not be seen. The result is the row that holds most.
    """
    rows: list[list[object]] = []
    notes = []
    result = ""
    most_bytes = 0
    for gpu in gpus:
        for holder in gpu.holders:
            process = [holder.pid, holder.name, holder.uid, holder.state]
            rows.append([gpu.pci, *process, holder.memory, holder.note, holder.source])
            if size_or_zero(holder.memory) > most_bytes:
                most_bytes = size_or_zero(holder.memory)
                name = plain(holder.name)
                result = f"{name} uses the most, {holder.memory.show()}"
        rest = gpu.unattributed
        source = one_source([rest])
        rows.append([gpu.pci, None, NOBODY, None, None, rest, None, source])
        if size_or_zero(rest) > most_bytes:
            most_bytes = size_or_zero(rest)
            result = f"{rest.show()} has no visible owner"
        notes += [f"Not seen on {gpu.pci}: {plain(spot)}" for spot in gpu.blind_spots]
    head = columns(
        "GPU:pci, pid, process:process, uid, state:state, memory:number, note, source:source"
    )
    return Shown(
        "Holders of GPU memory",
        head,
        rows,
        notes,
        none=NO_GPU,
        result=result,
        label="Processes",
        applies=bool(rows),
    )


def events_table(events: Iterable[Event], log: Reading | None = None) -> Shown:
    """What the kernel log says about GPUs and memory: a row for each event, or for equal ones that
    follow each other. Boot 0 is this boot, -1 the one before.

    ``log`` says where the log was read, or why it was not. Events keep their order; but of more
    than MOST_EVENTS the worst kinds come first, as only so many are shown.
    """
    kinds = kind_words()
    listed = list(events)
    if len(listed) > MOST_EVENTS:
        listed.sort(key=lambda event: worst_first(event.kind))
    rows: list[list[object]] = []
    for event in listed:
        text = event.text
        if event.meaning:
            text = f"{text} ({event.meaning})"
        kind = kinds.get(event.kind, event.kind)
        when = since_boot(event.when)
        rows.append([when, event.boot, event.count, kind, event.pci, who(event), text])
    head = columns(
        "time:word, boot:number, lines:number, kind:word, GPU:pci, process:process, text:word",
        widest=140,  # most lines of a kernel log are shown whole
    )
    notes = []
    if log is not None:
        notes.append(f"The log of this boot: {plain(log.show())}")
    result = _counted_errors(listed)
    if rows and not result:  # all of them are harmless
        result = "No error of a GPU or of memory"
    if not rows and log is not None and not log.ok:
        result = log.why[:1].upper() + log.why[1:]
    return Shown(
        "Events of the kernel log",
        head,
        rows,
        notes,
        none=no_events(log),
        result=result,
        most=MOST_EVENTS,
        label="Kernel log",
    )


def _counted_errors(events: Iterable[Event]) -> str:
    """The kinds of event that are errors, each with its count, the most frequent first."""
    harmless = {row["kind"] for row in words("rows")["events"] if row.get("harmless")}
    counts = Counter(event.kind for event in events if event.kind not in harmless)
    phrases = []
    for kind, count in counts.most_common():
        phrases.append(kind_words().get(kind, kind))
        if count > 1:
            phrases[-1] += f" ({count})"
    return ", ".join(phrases)


def no_events(log: Reading | None) -> str:
    """The sentence in place of events. Where the log was not read, it does not say that there were
    none.
    """
    if log is None or log.ok:
        return "The kernel log has no GPU or out-of-memory event."
    return (
        f"The kernel log was not read ({log.show()}), so no event here proves nothing."
    )


def kind_words() -> dict[str, str]:
    """The kinds of kernel log events, each with its words, the worst first."""
    return {row["kind"]: row["words"] for row in words("rows")["events"]}


def worst_first(kind: str) -> tuple[int, str]:
    """The sort key of a kind of event: its place in ``kind_words``, then its name. Kinds that have
    no words are last.
    """
    return [*kind_words(), kind].index(kind), kind


def who(event: Event) -> str:
    """The process that an event names, with its id on the host; empty where it names none."""
    if event.pid is None:
        return event.process
    name = event.process
    if not name:
        name = "pid"
    return f"{name} ({event.pid})"


def since_boot(when: Reading) -> str:
    """The time of an event: ``4 h 12 min 03 s`` after the boot, or as the log wrote it."""
    if isinstance(when.value, (int, float)):
        return duration(when.value)
    return plain(when.show())
