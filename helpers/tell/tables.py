"""Plain text tables: the same facts as the figures, for a terminal, a notebook cell and those who cannot see a picture.

Rows keep the order in which the caller gives them. A reading without a value stands as ``not available`` or ``not allowed``
with a letter, and its reason stands under the table. Text from the box (process names, log lines) is made harmless first.
"""

from __future__ import annotations

import os.path
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from helpers.look.reading import GIB, Reading, show_bytes

if TYPE_CHECKING:  # a verdict in words needs no reader of a box
    from helpers.look.gpus import Gpu, Holder, Pool
    from helpers.look.kernel_log import Event

KIND_WORDS = {
    "vram_lost": "VRAM lost",
    "gpu_reset": "GPU reset",
    "mes_hang": "MES hang",
    "ring_timeout": "ring timeout",
    "hung_task": "hung task",
    "oom_killer": "OOM killer",
    "xid": "Xid",
    "vm_fault": "GPU page fault",
    "kfd_enomem": "KFD: no memory",
    "cs_enomem": "CS: no memory",
    "pin_failed": "pin failed",
    "page_allocation_failure": "page allocation failure",
    "nonzero_when_fini": "memory left at exit",
    "pcie_aer": "PCIe error",
    "pcie_atomics": "no PCIe atomics",
    "gtt_vs_ttm_mismatch": "GTT over TTM limit",
    "unknown_parameter": "unknown parameter",
    "gttsize_deprecated": "gttsize deprecated",
    "vram_ready": "VRAM ready",
    "gtt_ready": "GTT ready",
    "vm_size": "VM size",
    "driver_version": "driver version",
    "boot": "boot",
    "oom_invoked": "OOM killer invoked",
    "oom_constraint": "OOM victim",
    "oom_group": "OOM group kill",
    "oom_no_victim": "no OOM victim",
    "oom_panic": "OOM panic",
    "oom_reaper": "OOM reaper",
    "cgroup_usage": "control group use",
    "commit_refused": "commit refused",
    "vmalloc_failed": "vmalloc failed",
    "eviction_failed": "eviction failed",
    "userptr_failed": "host pages refused",
    "nvrm_no_memory": "NVRM: no memory",
    "dxg_refused": "WSL: no memory",
    "dxg_failed": "WSL: call refused",
    "queue_buffer_freed": "queue's buffer freed",
    "bo_left": "buffers left",
    "init_failed": "driver start failed",
    "kfd_unsupported": "not for compute",
    "firmware_missing": "firmware missing",
    "version_mismatch": "versions differ",
    "module_refused": "module refused",
    "bar_invalid": "no PCIe window",
    "access_denied": "access denied",
}
"""Each kind of kernel log event in words, worst first."""
HARMLESS = (
    "gttsize_deprecated",
    "vram_ready",
    "gtt_ready",
    "vm_size",
    "driver_version",
    "boot",
    "cgroup_usage",
    "oom_reaper",
    "dxg_failed",
)

WIDEST = 48
"""Columns a cell may take before it is cut with an ellipsis; sources and notes below the table are never cut."""

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def plain(text: object, keep: str = "") -> str:
    """Text with each control, invisible or unpaired character spelt out (``\\x1b``, ``\\u202e``).

    So a process name cannot move a terminal's cursor, turn the reading direction or break a page. Spaces of any kind become
    a plain space; characters in ``keep`` (a newline, a tab) stay.
    """
    return "".join(_spelt(char, keep) for char in str(text))


def _spelt(char: str, keep: str) -> str:
    if char.isprintable() or char in keep:
        return char
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def uncoloured(text: str) -> str:
    """Program output without terminal colours, other control characters spelt out, lines and tabs kept."""
    return plain(_COLOUR.sub("", text.replace("\r\n", "\n")), keep="\n\t")


def columns_of(text: str) -> int:
    """Columns a terminal needs for the text: two for an East Asian wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, columns: int) -> str:
    """The text, or as much of its start as fits with an ellipsis."""
    if columns_of(text) <= columns:
        return text
    kept = ""
    for char in text:
        if columns_of(kept + char) > columns - 1:
            break
        kept += char
    return kept + "…"


def table(
    rows: Iterable[Sequence[Any]], columns: Sequence[str], widest: int | None = WIDEST
) -> str:
    """An aligned table with a header. A column of numbers stands right, any other left; an empty table says ``(none)``.

    ``widest`` cuts cells of words; None cuts nothing, and a column named ``source`` is never cut. Reasons of readings without
    a value follow as notes.
    """
    notes: dict[str, str] = {}
    body = []
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(
                f"a row of {len(row)} cells: expected {len(columns)}, one for each of {', '.join(columns)}"
            )
        body.append(
            [
                _cell(value, notes, None if name == "source" else widest)
                for value, name in zip(row, columns)
            ]
        )
    if not body:
        return "  ".join(columns) + "\n(none)"
    right = [{row[i][1] for row in body} - {None} == {True} for i in range(len(columns))]
    texts = [list(columns), *([text for text, _ in row] for row in body)]
    widths = [max(columns_of(row[i]) for row in texts) for i in range(len(columns))]
    texts.insert(1, ["-" * width for width in widths])
    lines = [
        "  ".join(_pad(row[i], widths[i], right[i]) for i in range(len(columns))).rstrip()
        for row in texts
    ]
    return "\n".join([*lines, *(f"{mark} {why}" for why, mark in notes.items())])


def _cell(value: Any, notes: dict[str, str], widest: int | None) -> tuple[str, bool | None]:
    """A cell's text and whether it is a number, None where it is neither number nor words. New reasons join the notes."""
    if isinstance(value, Reading) and not value.ok:
        mark = notes.setdefault(plain(value.show()), f"({_letters(len(notes))})")
        return f"{value.status.replace('_', ' ')} {mark}", None
    if value is None or value == "":
        return "-", None
    if isinstance(value, bool):
        return ("yes" if value else "no"), False
    number = value.unit != "text" if isinstance(value, Reading) else isinstance(value, (int, float))
    text = plain(value.show() if isinstance(value, Reading) else value)
    return (text if widest is None else cut(text, widest)), number


def _letters(number: int) -> str:
    return (
        chr(ord("a") + number)
        if number < 26
        else _letters(number // 26 - 1) + _letters(number % 26)
    )


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - columns_of(text))
    return space + text if right else text + space


def pools_of(items: Iterable[Gpu | Pool]) -> list[tuple[Gpu | None, str, list[Pool]]]:
    """Pools by PCI address in the order given, each with its GPU where it is known. Host pools have an empty address."""
    gpus: dict[str, Gpu] = {}
    pools: dict[str, list[Pool]] = {}
    for item in items:
        own: Any = getattr(item, "pools", None)  # of a GPU
        if own is not None:
            gpus[item.pci] = item  # type: ignore[assignment]
            pools.setdefault(item.pci, []).extend(own)
        else:
            pools.setdefault(item.pci, []).append(item)  # type: ignore[arg-type]
    return [(gpus.get(pci), pci, found) for pci, found in pools.items()]


def one_source(readings: Iterable[Reading]) -> str:
    """Where readings came from, in one phrase: ``/sys/.../{mem_info_vram_total, mem_info_vram_used}``.

    A reading that was worked out names all that it was worked out from.
    """
    sources = list(
        dict.fromkeys(
            part for r in readings if r.source for part in re.split(" [-+] ", plain(r.source))
        )
    )
    if len(sources) > 1 and all(source.startswith("/") for source in sources):
        folders = {os.path.dirname(source) for source in sources}
        if len(folders) == 1:
            return (
                folders.pop()
                + "/{"
                + ", ".join(os.path.basename(source) for source in sources)
                + "}"
            )
    return "; ".join(sources)


def gpus_table(gpus: Iterable[Gpu]) -> str:
    """Each GPU under its PCI address with its number in every index space, because these numbers differ."""
    listed = list(gpus)
    spaces = list(dict.fromkeys(space for gpu in listed for space in gpu.indices))
    kinds = {True: "integrated", False: "card", None: "unknown"}
    rows = [
        [
            g.pci,
            g.name,
            g.vendor,
            g.driver,
            kinds[g.integrated],
            *(g.indices.get(s, "") for s in spaces),
        ]
        for g in listed
    ]
    return table(rows, ["GPU", "name", "vendor", "driver", "kind", *map(plain, spaces)])


def pools_table(items: Iterable[Gpu | Pool], sources: bool = True) -> str:
    """Each layer's account of each memory pool, side by side."""
    rows = []
    for _, pci, pools in pools_of(items):
        for pool in pools:
            readings = [pool.total, pool.used, pool.free]
            rows.append(
                [pci or "host", pool.layer, *readings, *([one_source(readings)] if sources else [])]
            )
    return table(rows, ["GPU", "layer", "total", "used", "free", *(["source"] if sources else [])])


def holders_table(gpus: Iterable[Gpu], sources: bool = True) -> str:
    """Each process that holds memory, what no process accounts for, and below it what could not be seen."""
    rows: list[list[Any]] = []
    blind = []
    for gpu in gpus:
        for h in gpu.holders:
            rows.append(
                [
                    gpu.pci,
                    h.pid,
                    h.name,
                    h.uid,
                    h.state,
                    h.memory,
                    h.note,
                    *([h.source] if sources else []),
                ]
            )
        last = [one_source([gpu.unattributed])] if sources else []
        rows.append(
            [gpu.pci, None, "no visible process", None, None, gpu.unattributed, None, *last]
        )
        blind += [f"Not seen on {gpu.pci}: {plain(spot)}" for spot in gpu.blind_spots]
    head = [
        "GPU",
        "pid",
        "process",
        "uid",
        "state",
        "memory",
        "note",
        *(["source"] if sources else []),
    ]
    return "\n".join([table(rows, head), *blind])


def events_table(events: Iterable[Event], times: bool = True, log: Reading | None = None) -> str:
    """What the kernel log says about GPUs and memory, one line an event or storm; boot 0 is this boot, -1 the one before.

    ``log`` says where it was read from, or why it was not.
    """
    head = ["time", "boot", "lines", "kind", "GPU", "process", "text"]
    rows = [
        [since_boot(e.when), e.boot, e.count, KIND_WORDS.get(e.kind, e.kind), e.pci, who(e), e.text]
        for e in events
    ]
    listed = table(
        rows if times else [row[1:] for row in rows], head if times else head[1:], widest=140
    )
    return listed if log is None else f"{listed}\nThe log of this boot: {plain(log.show())}"


def who(event: Event) -> str:
    """The process that an event names, with its host's number."""
    return f"{event.process or 'pid'} ({event.pid})" if event.pid is not None else event.process


def since_boot(when: Reading) -> str:
    """A moment of the kernel log: ``4 h 12 min 03 s`` after the boot, or as the log wrote it."""
    if not when.ok or isinstance(when.value, str) or when.value is None:
        return plain(when.show())
    return duration(float(when.value))


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``0.8 s``, ``42 s``, ``4 min 05 s``, ``3 h 07 min 21 s``, ``2 d 06 h 10 min``."""
    if not abs(seconds) < 1e12:
        return plain(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min {whole % 60:02d} s"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h {whole % 3600 // 60:02d} min"


def one_each(holders: Iterable[Holder]) -> list[Holder]:
    """One row a process, largest first: where several sources saw the same process, the one that saw it hold most."""
    best: dict[int, Holder] = {}
    for holder in holders:
        known = best.setdefault(holder.pid, holder)
        if (size(holder.memory) or -1) > (size(known.memory) or -1):
            best[holder.pid] = holder
    return sorted(best.values(), key=lambda h: (-(size(h.memory) or 0), h.pid))


def size(reading: Reading) -> int | None:
    """The bytes of a reading that has any, None otherwise."""
    if (
        not reading.ok
        or reading.unit != "bytes"
        or isinstance(reading.value, str)
        or reading.value is None
    ):
        return None
    return int(reading.value) if abs(reading.value) < 1 << 62 else None


def gib(count: float | str | None) -> str:
    """Bytes in GiB, so that figures compare at a glance; what would round to a false zero keeps its own unit."""
    value = int(count or 0)
    if value == 0:
        return "0 GiB"
    return f"{value / GIB:.2f} GiB" if abs(value) >= GIB // 200 else show_bytes(value)
