"""The memory of a box as views: its GPUs, each layer's pools, who holds them, and what the
kernel log says.

Each is a ``Shown``: the same facts as the figures, for a terminal, a notebook cell and those
who cannot see a picture. Rows keep the order in which the caller gives them.
"""

from __future__ import annotations

import os.path
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from helpers.ground.shapes import Reading
from helpers.ground.units import plain
from helpers.tell.resources import words
from helpers.tell.shown import Shown
from helpers.tell.values import Column, columns, duration, size_or_zero

MOST_EVENTS = 40
NOBODY = "no visible process"
NO_POOL = "No memory pool was found."
NO_GPU = "No GPU was found: neither a driver nor the PCI bus shows one."

if TYPE_CHECKING:  # a verdict in words needs no reader of a box
    from helpers.look.gpus import Gpu, Pool
    from helpers.look.kernel_log import Event
    from helpers.look.pcie import PcieLink


def pools_of(items: Iterable[Gpu | Pool]) -> list[tuple[Gpu | None, str, list[Pool]]]:
    """Pools by PCI address in the order given, each with its GPU where it is known.

    Host pools have an empty address.
    """
    from helpers.look.gpus import Gpu

    gpus: dict[str, Gpu] = {}
    pools: dict[str, list[Pool]] = {}
    for item in items:
        of_address = pools.setdefault(item.pci, [])
        if isinstance(item, Gpu):
            gpus[item.pci] = item
            of_address += (*item.pools, *item.parts)
        else:
            of_address.append(item)
    return [(gpus.get(pci), pci, listed) for pci, listed in pools.items()]


def one_source(readings: Iterable[Reading]) -> str:
    """Where readings came from, in one phrase: ``/sys/.../{mem_info_vram_total,
    mem_info_vram_used}``.

    A reading that was worked out names all that it was worked out from.
    """
    sources: list[str] = []
    for reading in readings:
        if reading.source:
            parts = re.split(" [-+] ", plain(reading.source))
            sources += [part for part in parts if part not in sources]
    if len(sources) > 1 and all(source.startswith("/") for source in sources):
        folders = {os.path.dirname(source) for source in sources}
        if len(folders) == 1:
            return f"{folders.pop()}/{{{', '.join(map(os.path.basename, sources))}}}"
    return "; ".join(sources)


def gpus_table(gpus: Iterable[Gpu]) -> Shown:
    """Each GPU under its PCI address with its number in every index space, because these
    numbers differ.
    """
    listed = list(gpus)
    spaces: list[str] = []
    for gpu in listed:
        spaces += [space for space in gpu.indices if space not in spaces]
    rows = []
    for gpu in listed:
        numbers = [gpu.indices.get(space, "") for space in spaces]
        rows.append([gpu.pci, gpu.name, gpu.vendor, gpu.driver, _kind(gpu), *numbers])
    head = columns("GPU:pci, name:chip, vendor:word, driver:driver, kind:word")
    head += [Column(plain(space), passes="index") for space in spaces]
    says = ", ".join(f"{g.name.show()} at {g.pci}" for g in listed)
    return Shown(
        "The GPUs of this box", head, rows, none=NO_GPU, result=says, label="GPUs"
    )


def pcie_table(links: Iterable[PcieLink], asleep: Iterable[str] = ()) -> Shown:
    """How fast each GPU is connected now, and how fast it can be; ``asleep`` are GPUs that were not
    asked.
    """
    listed = list(links)
    rows: list[list[object]] = []
    for link in listed:
        readings = [link.speed, link.max_speed, link.width, link.max_width]
        rows.append([link.pci, *readings, one_source(readings)])
    notes = ["A speed is in GT/s for each lane."] if rows else []
    slow = [link.pci for link in listed if link.is_below_its_maximum]
    if slow:
        why = "Many cards slow their link down while idle, and a slot may have fewer lanes than a card"
        notes.append(
            f"Below its maximum: {', '.join(slow)}. {why}; look again while a program runs."
        )
    notes += [
        f"{pci} is suspended. Reading its link would wake it, so it was not read."
        for pci in asleep
    ]
    head = columns(
        "GPU:pci, speed:number, maximal speed:number, lanes:number, maximal lanes:number, "
        "source:source"
    )
    says = []
    for link in listed:
        lanes = f"{link.width.show()} of {link.max_width.show()} lanes"
        says.append(f"{lanes} at {link.speed.show()} of {link.max_speed.show()} GT/s")
    return Shown(
        "PCIe link of each GPU",
        head,
        rows,
        notes,
        none="No PCIe link of a GPU was read.",
        result=", ".join(dict.fromkeys(says)),
        label="PCIe",
        applies=bool(notes),
    )


def _kind(gpu: Gpu) -> str:
    if gpu.integrated is None:
        return "unknown"
    return "integrated" if gpu.integrated else "card"


def pools_table(items: Iterable[Gpu | Pool]) -> Shown:
    """Each layer's account of each memory pool, side by side."""
    rows: list[list[object]] = []
    for _, pci, pools in pools_of(items):
        for pool in pools:
            readings = [pool.total, pool.used, pool.free]
            rows.append([pci or "host", pool.layer, *readings, one_source(readings)])
    head = columns(
        "GPU:pci, layer:word, total:number, used:number, free:number, source:source"
    )
    return Shown("Memory pools, each layer's account", head, rows, none=NO_POOL)


def holders_table(gpus: Iterable[Gpu]) -> Shown:
    """Each process that holds memory, what no process accounts for, and below it what could not
    be seen.
    """
    rows: list[list[Any]] = []
    blind = []
    for gpu in gpus:
        rows += [
            [gpu.pci, h.pid, h.name, h.uid, h.state, h.memory, h.note, h.source]
            for h in gpu.holders
        ]
        last = [gpu.unattributed, None, one_source([gpu.unattributed])]
        rows.append([gpu.pci, None, NOBODY, None, None, *last])
        blind += [f"Not seen on {gpu.pci}: {plain(spot)}" for spot in gpu.blind_spots]
    head = columns(
        "GPU:pci, pid, process:process, uid, state:state, memory:number, note, source:source"
    )
    return Shown(
        "Holders of GPU memory",
        head,
        rows,
        blind,
        none=NO_GPU,
        result=_most_held(rows),
        label="Processes",
        applies=bool(rows),
    )


def _most_held(rows: list[list[Any]]) -> str:
    """Who holds most, of rows of ``holders_table``, in a line; empty where nobody holds memory."""
    says = ""
    most = 0
    for _, _, name, _, _, memory, *_ in rows:
        held_bytes = size_or_zero(memory)
        if held_bytes > most:
            most = held_bytes
            says = f"{plain(name)} uses the most, {memory.show()}"
            if name == NOBODY:
                says = f"{memory.show()} has no visible owner"
    return says


def events_table(events: Iterable[Event], log: Reading | None = None) -> Shown:
    """What the kernel log says about GPUs and memory, one line an event or storm; boot 0 is
    this boot, -1 the one before.

    ``log`` says where it was read from, or why it was not. Of very many those of the worst
    kinds stand first.
    """
    kinds = kind_words()
    events = list(events)
    if len(events) > MOST_EVENTS:
        events.sort(key=lambda event: worst_first(event.kind))
    rows: list[list[object]] = []
    for event in events:
        text = f"{event.text} ({event.meaning})" if event.meaning else event.text
        kind = kinds.get(event.kind, event.kind)
        when = since_boot(event.when)
        rows.append([when, event.boot, event.count, kind, event.pci, who(event), text])
    head = columns(
        "time:word, boot:number, lines:number, kind:word, GPU:pci, process:process, text:word",
        widest=140,
    )
    notes = [] if log is None else [f"The log of this boot: {plain(log.show())}"]
    says = _counted_kinds([str(row[3]) for row in rows])
    if rows and not says:
        says = "No error of a GPU or of memory"
    if not rows and log is not None and not log.ok:
        says = log.why[:1].upper() + log.why[1:]
    return Shown(
        "Events of the kernel log",
        head,
        rows,
        notes,
        none=no_events(log),
        result=says,
        most=MOST_EVENTS,
        label="Kernel log",
    )


def _counted_kinds(kinds: list[str]) -> str:
    """The kinds of event that are errors, each with its count, the most frequent first."""
    harmless = {row["words"] for row in words("rows")["events"] if row.get("harmless")}
    counts = Counter(kind for kind in kinds if kind not in harmless)
    return ", ".join(
        f"{kind} ({count})" if count > 1 else kind
        for kind, count in counts.most_common()
    )


def no_events(log: Reading | None) -> str:
    """What a log without events says.

    No event seen in a log that was not read is not "no event".
    """
    if log is None or log.ok:
        return "The kernel log has no GPU or out-of-memory event."
    return (
        f"The kernel log was not read ({log.show()}), so no event here proves nothing."
    )


def kind_words() -> dict[str, str]:
    """Each kind of kernel log event in words, worst first."""
    return {row["kind"]: row["words"] for row in words("rows")["events"]}


def worst_first(kind: str) -> tuple[int, str]:
    """What kinds of event are sorted by: those that have no words last."""
    return [*kind_words(), kind].index(kind), kind


def who(event: Event) -> str:
    """The process that an event names, with its host's number."""
    if event.pid is None:
        return event.process
    return f"{event.process or 'pid'} ({event.pid})"


def since_boot(when: Reading) -> str:
    """A moment of the kernel log: ``4 h 12 min 03 s`` after the boot, or as the log wrote it."""
    if not when.ok or isinstance(when.value, str) or when.value is None:
        return plain(when.show())
    return duration(float(when.value))
