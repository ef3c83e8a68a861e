"""Who has what of a GPU's memory: every byte in use stands in one row, and what nobody accounts for is a row too.

One ledger a source: the driver's (sysfs, nvidia-smi) as the box was captured, and the out-of-memory message's at the moment
of the failure. They are not mixed, for they are two moments; where they disagree, ``notes`` says so.

The tolerance comes from the sources: a message prints two decimals, nvidia-smi whole MiB, fdinfo KiB, and KFD counts in
blocks of 2 MiB (amdgpu_amdkfd_gpuvm.c, VRAM_AVAILABLITY_ALIGN).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from helpers.judge.account import Account, account
from helpers.look import processes
from helpers.look.access import identity
from helpers.look.bundle import Bundle
from helpers.look.drm import refused_pids
from helpers.look.gpus import Gpu, Holder, Pool, gpus
from helpers.look.messages import Message, Quantity
from helpers.look.reading import KIB, MIB, Reading, not_available, seen, show_bytes

DRIVER, MESSAGE = "driver", "message"
SAID = "the error message"
TOTALS_AGREE = 4 * MIB
# KFD counts free memory in blocks of this size (amdgpu_amdkfd_gpuvm.c, VRAM_AVAILABILITY_ALIGN).
KFD_BLOCK = 2 * MIB
RESERVED = "of it reserved by the driver"
COMPUTE = ("KFD bank", "HSA pool", "torch")
TWO_PLACES = (
    "An APU: the total is the pool that compute may use; carve-out and GTT are in use side by side, and their totals are "
    "alternatives."
)
# What one reading of a source may be off by, in bytes.
GRAIN = {
    "DRM fdinfo": KIB,
    "DRM fdinfo (VRAM and GTT)": 2 * KIB,
    "KFD": KFD_BLOCK,
    "nvidia-smi": MIB,
    "amd-smi": MIB,
}
USED_BY = (("sysfs VRAM", 0), ("nvidia-smi", MIB), ("rocm-smi VRAM", 0), ("amd-smi VRAM", MIB))


@dataclass(frozen=True)
class LedgerRow:
    """One part of what is in use. ``kind``: process (the failing one), other_process, outside, reserved, unattributed.

    ``bytes`` without a value is a holder whose share was not measured; it is then within the unattributed rest. A negative
    rest means that processes were counted twice (shared memory) or at another moment; a contradiction then says so.
    """

    kind: str
    words: str
    bytes: Reading
    source: str


@dataclass(frozen=True)
class GpuLedger:
    """One source's account of one GPU; ``pci`` is empty where a message does not tell which GPU it means.

    ``account`` is driver or message, ``left`` what total less used is. The rows that have a value add up to ``used`` within
    ``tolerance_bytes``. Where ``used`` is not known there is no unattributed row.
    """

    pci: str
    account: str
    total: Reading
    used: Reading
    rows: tuple[LedgerRow, ...]
    tolerance_bytes: int
    contradictions: tuple[str, ...]
    notes: tuple[str, ...] = ()
    left: str = "free"

    def sum_bytes(self, *kinds: str) -> int:
        """What the rows of these kinds (all, where none is given) hold together; rows without a value count nothing."""
        return sum(row.bytes.bytes for row in self.rows if not kinds or row.kind in kinds)


def closed(book: GpuLedger, words: str) -> GpuLedger:
    """The ledger with its rest. A rest below zero is named, and stands as a row only where it is more than the tolerance."""
    if not book.used.ok:
        return book
    rest, against = book.used.bytes - book.sum_bytes(), book.contradictions
    if rest < -book.tolerance_bytes:
        held, used = show_bytes(book.sum_bytes()), show_bytes(book.used.bytes)
        says = f"the parts make {held}, more than the {used} in use ({book.used.source})"
        against = (*against, says)
        words = "counted more than once, or at another moment"
    elif rest <= 0:
        return book
    left = seen(rest, "bytes", f"{book.used.source} less the rows above", book.used.item)
    row = LedgerRow("unattributed", words, left, book.used.source)
    return replace(book, rows=(*book.rows, row), contradictions=against)


def ledger(bundle: Bundle | None, message: Message | None = None) -> tuple[GpuLedger, ...]:
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
        both = used.bytes + rows[0].bytes.bytes
        used = seen(both, "bytes", f"{used.source} (used + reserved)", used.item)
        grain += MIB
    holders, spread = _holders(bundle, gpu)
    # On an APU part of what is in use lies in the carve-out, outside the pool that compute takes from.
    left = "left of the pool for compute, roughly" if gpu.integrated else "free"
    notes += [f"{spot[:1].upper()}{spot[1:]}." for spot in gpu.blind_spots]
    parts, odd = (*holders, *rows), tuple(contradictions(gpu))
    book = GpuLedger(gpu.pci, DRIVER, total, used, parts, grain + spread, odd, tuple(notes), left)
    return closed(book, _rest_words(gpu, holders))


def _in_use(gpu: Gpu) -> tuple[Reading, Reading, int, list[str]]:
    """Total, used, and what used may be off by. On an APU the carve-out and GTT are two places, one use: used adds, total
    does not (amdgpu takes HIP's memory from one of the two, amdgpu_amdkfd_get_local_mem_info)."""
    pools = {pool.layer: pool for pool in gpu.pools}
    for layer, grain in USED_BY:
        pool = pools.get(layer)
        if pool is None or not pool.used.ok:
            continue
        shared = gpu.integrated and "VRAM" in layer
        beside = pools.get(layer.replace("VRAM", "GTT")) if shared else None
        if beside is None:
            return pool.total, pool.used, grain, []
        banks = [pools[name].total for name in COMPUTE if name in pools and pools[name].total.ok]
        lacks = "the compute driver's pool was not captured"
        bank = banks[0] if banks else not_available(lacks, "bytes", "KFD bank")
        if not beside.used.ok:
            return bank, beside.used, grain, [TWO_PLACES]
        both, source = (
            pool.used.bytes + beside.used.bytes,
            f"{pool.used.source} + {beside.used.source}",
        )
        return bank, seen(both, "bytes", source, pool.used.item), 2 * grain, [TWO_PLACES]
    torch = pools.get("torch")
    if torch and torch.total.ok and torch.free.ok and torch.free.bytes <= torch.total.bytes:
        gone, source = (
            torch.total.bytes - torch.free.bytes,
            f"{torch.total.source} - {torch.free.source}",
        )
        notes = ["HIP's free counts compute memory only (ROCm/amdgpu#223)."] * (gpu.vendor == "AMD")
        return torch.total, seen(gone, "bytes", source, torch.total.item), 0, notes
    total = next((pool.total for pool in gpu.pools if pool.total.ok), None)
    total = total or not_available("no layer gives a total", "bytes", "memory pools")
    used = next((pools[layer].used for layer, _ in USED_BY if layer in pools), None)
    used = used or not_available("no layer says how much is in use", "bytes", "memory pools")
    return total, used, 0, []


def _excluded(gpu: Gpu) -> bool:
    """Whether nvidia-smi's used leaves the driver's reserve out, as it does since driver 510: then the three add up."""
    pools = {pool.layer: pool for pool in gpu.pools}
    main, kept = pools.get("nvidia-smi"), pools.get(RESERVED)
    if not main or not kept:
        return False
    if not all(reading.ok for reading in (main.total, main.used, main.free, kept.total)):
        return False
    parts = main.used.bytes + main.free.bytes
    return abs(parts + kept.total.bytes - main.total.bytes) <= abs(parts - main.total.bytes)


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
        alive, each = (
            {process.pid for process in processes.processes(bundle)},
            _one_each(gpu.holders),
        )
        away = [h for h in each if h.source == "KFD" and alive and h.pid not in alive]
        rows = [_row(h, "outside" if h in away else "other_process") for h in each]
        return tuple(rows), sum(_grain(h) for h in each if h.memory.ok)
    inside, by_host = _one_each(inside), _one_each(by_host)
    rows = [_row(h, "other_process") for h in inside]
    spread = sum(_grain(h) for h in (*inside, *by_host) if h.memory.ok)
    held = sum(h.memory.bytes for h in inside)
    table = bundle.read("device_files")
    all_seen = table.ok and not refused_pids(bundle)
    # Nothing in here has the GPU open, so whoever the host's lists name is elsewhere.
    kind = "outside" if all_seen and not _open_here(bundle, gpu) else "other_process"
    if not inside or gpu.vendor == "NVIDIA":
        return tuple(rows + [_row(h, kind) for h in by_host]), spread
    beyond = sum(h.memory.bytes for h in by_host) - held
    if beyond > spread:
        source = " + ".join(dict.fromkeys(h.source for h in by_host))
        words = f"what {source} counts beyond this container's processes; it lists {len(by_host)} in all, by host PID"
        reading = seen(beyond, "bytes", source, by_host[0].memory.item)
        rows.append(LedgerRow("outside", words, reading, source))
    return tuple(rows + [_row(h, kind) for h in by_host if not h.memory.ok]), spread


def _open_here(bundle: Bundle, gpu: Gpu) -> bool:
    prefix = "/dev/nvidia" if gpu.vendor == "NVIDIA" else "/dev/kfd"
    opened = (str(row.get("target", "")) for row in bundle.table("device_files"))
    return any(path.startswith(prefix) for path in opened)


def _one_each(holders: Iterable[Holder]) -> list[Holder]:
    """Each process once, with the most that any source saw it hold; largest first."""
    most: dict[int, Holder] = {}
    for holder in holders:
        known = most.setdefault(holder.pid, holder)
        if holder.memory.ok and (not known.memory.ok or holder.memory.bytes > known.memory.bytes):
            most[holder.pid] = holder
    # A process with nothing on this GPU only opened it (ROCm#4411).
    holding = [h for h in most.values() if not h.memory.ok or h.memory.bytes]
    return sorted(holding, key=lambda h: (-h.memory.bytes, h.pid))


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


def _of_message(message: Message, gpu: Gpu | None) -> GpuLedger | None:
    m, a = message, account(message)
    if not any((m.capacity, m.free, m.process, m.allocated, m.reserved_total)):
        return None
    lacks = "the message does not give both the capacity and what is free"
    used = not_available(lacks, "bytes", SAID)
    if a.used:
        used = seen(max(0, a.used.bytes), "bytes", f"{SAID}: capacity less what is free")
    rows = _own_rows(a)
    for pid, other in a.others:
        words = "another process that the message names" + (f": {pid}" if pid is not None else "")
        rows.append(LedgerRow("other_process", words, _said(other, "another process"), SAID))
    pci, total = gpu.pci if gpu else "", _said(m.capacity, "capacity")
    odd = a.contradictions
    book = GpuLedger(pci, MESSAGE, total, used, tuple(rows), a.tolerance_bytes, odd)
    words = "held by others or by nobody: the message counts only what it names"
    if a.own is None:
        words = (
            "held by this process beside torch, by others, or by nobody: the message does not say"
        )
    return closed(book, words)


def _own_rows(a: Account) -> list[LedgerRow]:
    """This process: allocated, cached, and the rest of it (context, libraries)."""
    m, rows = a.message, []

    def add(words: str, reading: Reading) -> None:
        rows.append(LedgerRow("process", "this process" + words, reading, SAID))

    if m.allocated:
        graphs = f" (of it {m.private_pools.text} in private pools)" if m.private_pools else ""
        add(": tensors" + graphs, _said(m.allocated, "allocated"))
    if a.stranded is not None:
        idle = seen(max(0, a.stranded.bytes), "bytes", f"{SAID}: reserved but unallocated")
        add(": cached by torch and unused", idle)
    elif a.held and not m.allocated:
        add(": reserved by torch", _said(a.held, "reserved"))
    beside = a.context if a.held else a.own
    if beside and (beside.bytes > 0 or not rows):
        rest = seen(beside.bytes, "bytes", f"{SAID}: this process - torch")
        add(": context and libraries" if rows else "", rest)
    return rows


def _split(own: GpuLedger, message: Message) -> GpuLedger:
    """The driver's ledger with the one holder that the message's process fits, if there is exactly one, in its parts."""
    if message.process is None or not message.allocated:
        return own
    off = message.process.precision_bytes + 2 * MIB
    a = account(replace(message, process=None, non_torch=None, others=(), pids=()))
    held = [r for r in own.rows if r.kind in ("other_process", "outside") and r.bytes.ok]
    fits = [row for row in held if abs(row.bytes.bytes - message.process.bytes) <= off]
    if len(fits) != 1:
        return own
    parts, named = _own_rows(a), fits[0].words
    left = fits[0].bytes.bytes - sum(row.bytes.bytes for row in parts)
    if left < -a.tolerance_bytes:
        return own
    parts = [row for row in parts if row.bytes.bytes]
    parts = [replace(row, words=row.words.replace("this process", named, 1)) for row in parts]
    if left > 0:
        source = f"{fits[0].source} less torch's parts"
        rest = seen(left, "bytes", source, fits[0].bytes.item)
        parts.append(LedgerRow("process", f"{named}: context and libraries", rest, source))
    at = own.rows.index(fits[0])
    rows = (*own.rows[:at], *parts, *own.rows[at + 1 :])
    return replace(own, rows=rows, tolerance_bytes=own.tolerance_bytes + a.tolerance_bytes)


def _compared(told: GpuLedger, own: GpuLedger, gpu: Gpu) -> GpuLedger:
    """The message's ledger with what the box says otherwise."""
    against, notes = list(told.contradictions), list(told.notes)
    off = told.tolerance_bytes + own.tolerance_bytes + TOTALS_AGREE
    seen_by = [pool for pool in gpu.pools if pool.layer in ("torch", "KFD bank") and pool.total.ok]
    apart = [pool for pool in seen_by if abs(pool.total.bytes - told.total.bytes) > off]
    if told.total.ok and seen_by and apart == seen_by:
        totals = " and ".join(f"{p.layer} {p.total.show()}" for p in seen_by)
        against.append(
            f"the message's capacity is {told.total.show()}; the capture has {totals}: another GPU or another boot"
        )
    more = told.used.bytes - (own.used.bytes - own.sum_bytes("reserved"))
    # HIP's free leaves out graphics memory, so there the message may well have less in use.
    if told.used.ok and own.used.ok and (more > off or (gpu.vendor == "NVIDIA" and more < -off)):
        notes.append(
            f"In use at the failure, by the message: {told.used.show()}; at the capture, by the driver: "
            f"{own.used.show()}. Two moments, or two ways to count."
        )
    return replace(told, contradictions=tuple(against), notes=tuple(notes))


def _gpu_of(message: Message, found: tuple[Gpu, ...]) -> Gpu | None:
    """The GPU that a message means: by torch's index, else the only one that it can be."""
    wanted = {"hip": "AMD", "cuda": "NVIDIA"}.get(message.backend)
    fit = [gpu for gpu in found if wanted in (None, gpu.vendor)]
    index = "" if message.device is None else str(message.device)
    by_index = [gpu for gpu in fit if index and gpu.indices.get("torch") == index]
    if len(by_index) == 1:
        return by_index[0]
    if len(fit) > 1 and message.capacity:
        off = message.capacity.precision_bytes + TOTALS_AGREE
        fit = [
            gpu
            for gpu in fit
            if any(
                pool.layer in ("torch", "KFD bank", "sysfs VRAM")
                and pool.total.ok
                and abs(pool.total.bytes - message.capacity.bytes) <= off
                for pool in gpu.pools
            )
        ]
    return fit[0] if len(fit) == 1 else None


def _said(quantity: Quantity | None, what: str) -> Reading:
    if quantity is None:
        return not_available(f"the message gives no {what}", "bytes", SAID)
    return seen(quantity.bytes, "bytes", f"{SAID}: {quantity.text}")


def contradictions(gpu: Gpu) -> Iterator[str]:
    """Each contradiction in a sentence, with both figures; none where the layers agree."""
    pools = {pool.layer: pool for pool in gpu.pools}
    for pool in gpu.pools:
        for what, part in (("used", pool.used), ("free", pool.free)):
            if part.ok and pool.total.ok and part.bytes > pool.total.bytes:
                total = f"{pool.total.show()} ({pool.total.source})"
                yield f"{pool.layer}: {what} {part.show()} is more than the total {total}"
    for layer in ("torch", "HSA pool"):
        other, bank = _totals(pools, layer, "KFD bank")
        if other and bank and abs(other.bytes - bank.bytes) > TOTALS_AGREE:
            yield (
                f"{layer} has {other.show()} in all, KFD's bank {bank.show()}: the kernel and the runtime above it "
                "disagree"
            )
    torch, tool = _totals(pools, "torch", "nvidia-smi")
    if torch and tool and torch.bytes > tool.bytes + TOTALS_AGREE:
        yield f"torch has {torch.show()} in all, nvidia-smi only {tool.show()}"
    for name in ("rocm-smi", "amd-smi"):
        for place in ("VRAM", "GTT"):
            one, other = _totals(pools, f"sysfs {place}", f"{name} {place}")
            if one and other and abs(one.bytes - other.bytes) > MIB:
                yield f"sysfs {place} has {one.show()} in all, {name} {place} {other.show()}"
    hip, sysfs = pools.get("torch"), pools.get("sysfs VRAM")
    if hip and sysfs and not gpu.integrated and hip.free.ok and sysfs.free.ok:
        if hip.free.bytes - sysfs.free.bytes > TOTALS_AGREE + KFD_BLOCK:
            yield (
                f"HIP calls {hip.free.show()} free, sysfs {sysfs.free.show()}: HIP leaves out what clients other than "
                "compute hold (ROCm/amdgpu#223)"
            )
    nvidia = pools.get("nvidia-smi")
    if nvidia and all(r.ok for r in (nvidia.total, nvidia.used, nvidia.free)):
        kept = pools[RESERVED].total.bytes if RESERVED in pools else 0
        rest = nvidia.total.bytes - nvidia.used.bytes - nvidia.free.bytes
        gap, total = show_bytes(min(abs(rest), abs(rest - kept))), nvidia.total.show()
        if min(abs(rest), abs(rest - kept)) > 3 * MIB:
            yield f"nvidia-smi: used, free and reserved leave {gap} of {total} unexplained"


def _totals(pools: dict[str, Pool], *layers: str) -> list[Reading | None]:
    """The total of each layer, None where it was not read."""
    found = [pools[layer].total if layer in pools else None for layer in layers]
    return [total if total and total.ok else None for total in found]
