"""Who has what of a GPU's memory: every byte in use stands in one row, and what nobody accounts for is a row too.

One ledger a source: the driver's (sysfs, nvidia-smi) as the box was captured, and the out-of-memory message's at the moment
of the failure. They are not mixed, for they are two moments; where they disagree, ``notes`` says so.

The tolerance comes from the sources: a message prints two decimals, nvidia-smi whole MiB, fdinfo KiB, and KFD counts in
blocks of 2 MiB (amdgpu_amdkfd_gpuvm.c, VRAM_AVAILABLITY_ALIGN).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.judge.contradictions import KFD_BLOCK, RESERVED, TOTALS_AGREE, contradictions
from helpers.judge.ledger_book import GpuLedger as GpuLedger
from helpers.judge.ledger_book import LedgerRow as LedgerRow
from helpers.judge.ledger_book import closed, size
from helpers.look import processes
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.drm import refused_pids
from helpers.look.gpus import Gpu, Holder, gpus
from helpers.look.reading import KIB, MIB, Reading, not_available, seen, show_bytes

if TYPE_CHECKING:
    from helpers.judge.oom_message import OomMessage, Quantity

DRIVER, MESSAGE = "driver", "message"
SAID = "the error message"
# What one reading of a source may be off by, in bytes.
GRAIN = {"DRM fdinfo": KIB, "DRM fdinfo (VRAM and GTT)": 2 * KIB, "KFD": KFD_BLOCK, "nvidia-smi": MIB, "amd-smi": MIB}
USED_BY = (("sysfs VRAM", 0), ("nvidia-smi", MIB), ("rocm-smi VRAM", 0), ("amd-smi VRAM", MIB))


def ledger(bundle: Bundle | None, message: OomMessage | None = None) -> tuple[GpuLedger, ...]:
    """The driver's ledger of every GPU, each followed by the message's where it is of that GPU; last, one that fits none.

    ``bundle`` may be None: a message alone has a ledger too. A message that gives no amounts has none.
    """
    found = gpus(bundle) if bundle is not None else ()
    here = _gpu_of(message, found) if message is not None else None
    told = _of_message(message, here) if message is not None else None
    books: list[GpuLedger] = []
    for gpu in found:
        assert bundle is not None
        own = _of_driver(bundle, gpu)
        if told is None or here is not gpu or message is None:
            books.append(own)
            continue
        books += [_split(own, message), _compared(told, own, gpu)]
        told = None
    return tuple(books + ([told] if told else []))


def _of_driver(bundle: Bundle, gpu: Gpu) -> GpuLedger:
    total, used, grain, notes = _in_use(gpu)
    rows = _reserved(gpu, total, used)
    if rows and rows[0].kind == "reserved" and _excluded(gpu):
        used = seen(size(used) + size(rows[0].bytes), "bytes", f"{used.source} (used + reserved)", used.item)
        grain += MIB
    holders, spread = _holders(bundle, gpu)
    # On an APU part of what is in use lies in the carve-out, outside the pool that compute takes from.
    left = "left of the pool for compute, roughly" if gpu.integrated else "free"
    notes += [f"{spot[:1].upper()}{spot[1:]}." for spot in gpu.blind_spots]
    book = GpuLedger(gpu.pci, DRIVER, total, used, (*holders, *rows), grain + spread, contradictions(gpu), tuple(notes), left)
    return closed(book, _rest_words(gpu, holders))


def _in_use(gpu: Gpu) -> tuple[Reading, Reading, int, list[str]]:
    """Total, used, and what used may be off by. On an APU the carve-out and GTT are two places, one use: used adds, total
    does not (amdgpu takes HIP's memory from one of the two, amdgpu_amdkfd_get_local_mem_info)."""
    pools = {pool.layer: pool for pool in gpu.pools}
    for layer, grain in USED_BY:
        pool = pools.get(layer)
        if pool is None or not pool.used.ok:
            continue
        beside = pools.get(layer.replace("VRAM", "GTT")) if gpu.integrated and "VRAM" in layer else None
        if beside is None:
            return pool.total, pool.used, grain, []
        bank = next((pools[name].total for name in ("KFD bank", "HSA pool", "torch") if name in pools and pools[name].total.ok),
                    not_available("the compute driver's pool was not captured", "bytes", "KFD bank"))
        notes = ["An APU: the total is the pool that compute may use; carve-out and GTT are in use side by side, and their "
                 "totals are alternatives."]
        if not beside.used.ok:
            return bank, beside.used, grain, notes
        both = size(pool.used) + size(beside.used)
        return bank, seen(both, "bytes", f"{pool.used.source} + {beside.used.source}", pool.used.item), 2 * grain, notes
    torch = pools.get("torch")
    if torch and torch.total.ok and torch.free.ok and size(torch.free) <= size(torch.total):
        gone = seen(size(torch.total) - size(torch.free), "bytes", f"{torch.total.source} - {torch.free.source}",
                    torch.total.item)
        return torch.total, gone, 0, ["HIP's free counts compute memory only (ROCm/amdgpu#223)."] * (gpu.vendor == "AMD")
    total = next((pool.total for pool in gpu.pools if pool.total.ok),
                 not_available("no layer gives a total", "bytes", "memory pools"))
    first = next((pools[layer].used for layer, _ in USED_BY if layer in pools), None)
    return total, first or not_available("no layer says how much is in use", "bytes", "memory pools"), 0, []


def _excluded(gpu: Gpu) -> bool:
    """Whether nvidia-smi's used leaves the driver's reserve out, as it does since driver 510: then the three add up."""
    pools = {pool.layer: pool for pool in gpu.pools}
    main, kept = pools.get("nvidia-smi"), pools.get(RESERVED)
    if not main or not kept or not all(r.ok for r in (main.total, main.used, main.free, kept.total)):
        return False
    parts = size(main.used) + size(main.free)
    return abs(parts + size(kept.total) - size(main.total)) <= abs(parts - size(main.total))


def _reserved(gpu: Gpu, total: Reading, used: Reading) -> tuple[LedgerRow, ...]:
    kept = next((pool.total for pool in gpu.pools if pool.layer == RESERVED), None)
    if kept is None or not kept.ok or not used.ok:
        return ()
    return (LedgerRow("reserved", "kept by the driver for itself", kept, kept.source),)


def _holders(bundle: Bundle, gpu: Gpu) -> tuple[tuple[LedgerRow, ...], int]:
    """A row a process, and what they may be off by together.

    In a PID namespace of its own KFD and nvidia-smi number processes as the host does, so they cannot be matched with the
    processes seen in /proc; what they list beyond these is outside.
    """
    who = identity(bundle)
    apart = who is not None and who.init_pid_ns is False
    by_host = [h for h in gpu.holders if h.source in ("KFD", "nvidia-smi", "amd-smi")]
    inside = [h for h in gpu.holders if h not in by_host]
    if not apart:
        alive = {process.pid for process in processes.processes(bundle)}
        rows = [_row(h, "outside" if h.source == "KFD" and alive and h.pid not in alive else "other_process")
                for h in _one_each(gpu.holders)]
        return tuple(rows), sum(_grain(h) for h in _one_each(gpu.holders) if h.memory.ok)
    inside, by_host = _one_each(inside), _one_each(by_host)
    rows = [_row(h, "other_process") for h in inside]
    spread = sum(_grain(h) for h in (*inside, *by_host) if h.memory.ok)
    held = sum(size(h.memory) for h in inside)
    table = bundle.read("device_files")
    all_seen = table.ok and not refused_pids(bundle)
    # Nothing in here has the GPU open, so whoever the host's lists name is elsewhere.
    kind = "outside" if all_seen and not _open_here(bundle, gpu) else "other_process"
    if not inside or gpu.vendor == "NVIDIA":
        return tuple(rows + [_row(h, kind) for h in by_host]), spread
    beyond = sum(size(h.memory) for h in by_host) - held
    if beyond > spread:
        source = " + ".join(dict.fromkeys(h.source for h in by_host))
        words = f"what {source} counts beyond this container's processes; it lists {len(by_host)} in all, by host PID"
        rows.append(LedgerRow("outside", words, seen(beyond, "bytes", source, by_host[0].memory.item), source))
    return tuple(rows + [_row(h, kind) for h in by_host if not h.memory.ok]), spread


def _open_here(bundle: Bundle, gpu: Gpu) -> bool:
    prefix = "/dev/nvidia" if gpu.vendor == "NVIDIA" else "/dev/kfd"
    return any(str(row.get("target", "")).startswith(prefix) for row in bundle.table("device_files"))


def _one_each(holders: Iterable[Holder]) -> list[Holder]:
    """Each process once, with the most that any source saw it hold; largest first."""
    most: dict[int, Holder] = {}
    for holder in holders:
        known = most.setdefault(holder.pid, holder)
        if holder.memory.ok and (not known.memory.ok or size(holder.memory) > size(known.memory)):
            most[holder.pid] = holder
    # A process with nothing on this GPU only opened it (ROCm#4411).
    return sorted((h for h in most.values() if not h.memory.ok or size(h.memory)), key=lambda h: (-size(h.memory), h.pid))


def _row(holder: Holder, kind: str) -> LedgerRow:
    named = f"{holder.name or 'process'} ({holder.pid})"
    odd = {"Z": "a zombie", "D": "waits in the kernel"}.get(holder.state[:1], "")
    if kind == "outside" and holder.note != "a host PID":
        odd = odd or "not in /proc"
    extra = ", ".join(word for word in (odd, holder.note) if word)
    return LedgerRow(kind, named + (f": {extra}" if extra else ""), holder.memory, holder.source)


def _grain(holder: Holder) -> int:
    return GRAIN.get(holder.source, MIB)


def _rest_words(gpu: Gpu, rows: Iterable[LedgerRow]) -> str:
    unmeasured = sum(not row.bytes.ok for row in rows)
    if unmeasured:
        return f"held by {unmeasured} process(es) that were not measured, or by nobody"
    if gpu.blind_spots:
        return "held by nobody who can be seen from here"
    return "held by no process: driver, firmware, page tables, or memory left behind"


def _of_message(message: OomMessage, gpu: Gpu | None) -> GpuLedger | None:
    m = message
    if not any((m.capacity, m.free, m.process, m.allocated, m.reserved_total)):
        return None
    against: list[str] = []
    total = _said(m.capacity, "capacity")
    used, parts = not_available("the message does not give both the capacity and what is free", "bytes", SAID), [m.process]
    if m.capacity and m.free:
        left, parts = m.capacity.bytes - m.free.bytes, [m.capacity, m.free]
        if left < 0:
            against.append(f"the message calls {m.free.text} free of {m.capacity.text} in all: more is free than there is")
        used = seen(max(0, left), "bytes", f"{SAID}: capacity less what is free")
    process = m.process
    if process and m.capacity and process.bytes > m.capacity.bytes + _off(process, m.capacity):
        against.append(f"the message gives this process {process.text} on a GPU of {m.capacity.text}")
        process = None
    rows, used_quantities = _own_rows(m, process, against)
    others = list(zip(m.others, m.pids if len(m.pids) == len(m.others) else [None] * len(m.others), strict=True))
    twice = next((pair for pair in others if process and pair[0].text == process.text), None)
    told = sum(size(row.bytes) for row in rows) + sum(other.bytes for other in m.others)
    if twice and used.ok and told > size(used) + _off(*parts, *used_quantities, *m.others):
        # In a container NVML names the host's number of this very process, and torch lists it beside itself.
        others.remove(twice)
    rows += [LedgerRow("other_process", "another process that the message names" + (f": {pid}" if pid is not None else ""),
                       _said(other, "another process"), SAID) for other, pid in others]
    book = GpuLedger(gpu.pci if gpu else "", MESSAGE, total, used, tuple(rows),
                     _off(*parts, *used_quantities, *m.others), tuple(against))
    if m.non_torch is None and process is None:
        words = "held by this process beside torch, by others, or by nobody: the message does not say"
    else:
        words = "held by others or by nobody: the message counts only what it names"
    return closed(book, words)


def _own_rows(m: OomMessage, process: Quantity | None, against: list[str]) -> tuple[list[LedgerRow], list[Quantity | None]]:
    """This process: allocated, cached, and the rest of it (context, libraries)."""
    cached, used = m.reserved_unallocated, [process, m.allocated, m.reserved_unallocated]
    cached_bytes = cached.bytes if cached else None
    if cached is None and m.reserved_total and m.allocated:
        cached_bytes, used = m.reserved_total.bytes - m.allocated.bytes, [process, m.reserved_total]
        if cached_bytes < -_off(m.reserved_total, m.allocated):
            against.append(f"the message gives {m.allocated.text} allocated and only {m.reserved_total.text} reserved")
        cached_bytes = max(0, cached_bytes)
    rows = []
    if m.allocated:
        graphs = f" (of it {m.private_pools.text} in private pools)" if m.private_pools else ""
        rows.append(LedgerRow("process", "this process: tensors" + graphs, _said(m.allocated, "allocated"), SAID))
    if cached_bytes is not None:
        rows.append(LedgerRow("process", "this process: cached by torch and unused",
                              seen(cached_bytes, "bytes", f"{SAID}: reserved but unallocated"), SAID))
    torch = (m.allocated.bytes if m.allocated else 0) + (cached_bytes or 0)
    beside = process.bytes - torch if process else m.non_torch.bytes if m.non_torch else None
    if not process and m.non_torch:
        used.append(m.non_torch)
    if beside is not None and beside < -_off(*used):
        against.append(f"torch's own parts, {show_bytes(torch)}, are more than {show_bytes(torch + beside)} of the process")
    elif beside is not None and (beside > 0 or not rows):
        words = "this process: context and libraries" if rows else "this process"
        rows.append(LedgerRow("process", words, seen(beside, "bytes", f"{SAID}: this process - torch"), SAID))
    return rows, used


def _split(own: GpuLedger, message: OomMessage) -> GpuLedger:
    """The driver's ledger with the one holder that the message's process fits, if there is exactly one, in its parts."""
    if message.process is None or not message.allocated:
        return own
    off = message.process.precision_bytes + 2 * MIB
    fits = [row for row in own.rows if row.kind in ("other_process", "outside") and row.bytes.ok
            and abs(size(row.bytes) - message.process.bytes) <= off]
    if len(fits) != 1:
        return own
    parts, quantities = _own_rows(message, None, [])
    left = size(fits[0].bytes) - sum(size(row.bytes) for row in parts)
    if left < -_off(*quantities):
        return own
    parts = [replace(row, words=row.words.replace("this process", fits[0].words, 1)) for row in parts if size(row.bytes)]
    if left > 0:
        source = f"{fits[0].source} less torch's parts"
        parts.append(LedgerRow("process", f"{fits[0].words}: context and libraries",
                               seen(left, "bytes", source, fits[0].bytes.item), source))
    at = own.rows.index(fits[0])
    return replace(own, rows=(*own.rows[:at], *parts, *own.rows[at + 1:]),
                   tolerance_bytes=own.tolerance_bytes + _off(*quantities))


def _compared(told: GpuLedger, own: GpuLedger, gpu: Gpu) -> GpuLedger:
    """The message's ledger with what the box says otherwise."""
    against, notes = list(told.contradictions), list(told.notes)
    off = told.tolerance_bytes + own.tolerance_bytes + TOTALS_AGREE
    seen_by = [pool for pool in gpu.pools if pool.layer in ("torch", "KFD bank") and pool.total.ok]
    if told.total.ok and seen_by and all(abs(size(p.total) - size(told.total)) > off for p in seen_by):
        totals = " and ".join(f"{p.layer} {p.total.show()}" for p in seen_by)
        against.append(f"the message's capacity is {told.total.show()}; the capture has {totals}: another GPU or another boot")
    more = size(told.used) - (size(own.used) - own.sum_bytes("reserved"))
    # HIP's free leaves out graphics memory, so there the message may well have less in use.
    if told.used.ok and own.used.ok and (more > off or (gpu.vendor == "NVIDIA" and more < -off)):
        notes.append(f"In use at the failure, by the message: {told.used.show()}; at the capture, by the driver: "
                     f"{own.used.show()}. Two moments, or two ways to count.")
    return replace(told, contradictions=tuple(against), notes=tuple(notes))


def _gpu_of(message: OomMessage, found: tuple[Gpu, ...]) -> Gpu | None:
    """The GPU that a message means: by torch's index, else the only one that it can be."""
    wanted = {"hip": "AMD", "cuda": "NVIDIA"}.get(message.backend)
    fit = [gpu for gpu in found if wanted in (None, gpu.vendor)]
    by_index = [gpu for gpu in fit if message.device is not None and gpu.indices.get("torch") == str(message.device)]
    if len(by_index) == 1:
        return by_index[0]
    if len(fit) > 1 and message.capacity:
        off = message.capacity.precision_bytes + TOTALS_AGREE
        fit = [gpu for gpu in fit if any(pool.layer in ("torch", "KFD bank", "sysfs VRAM") and pool.total.ok
                                         and abs(size(pool.total) - message.capacity.bytes) <= off for pool in gpu.pools)]
    return fit[0] if len(fit) == 1 else None


def _said(quantity: Quantity | None, what: str) -> Reading:
    if quantity is None:
        return not_available(f"the message gives no {what}", "bytes", SAID)
    return seen(quantity.bytes, "bytes", f"{SAID}: {quantity.text}")


def _off(*quantities: Quantity | None) -> int:
    return sum(quantity.precision_bytes for quantity in quantities if quantity)
