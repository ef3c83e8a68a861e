"""Who has what of a GPU's memory: every byte in use stands in one row, and what nobody accounts
for is a row too.

One ledger a source: the driver's (sysfs, nvidia-smi) as the box was captured, and the
out-of-memory message's at the moment of the failure. They are not mixed, for they are two
moments; where they disagree, ``notes`` says so.

The tolerance comes from the sources: a message prints two decimals, nvidia-smi whole MiB,
fdinfo KiB, and KFD counts in blocks of 2 MiB (amdgpu_amdkfd_gpuvm.c, VRAM_AVAILABLITY_ALIGN).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.units import MIB, Quantity, show_bytes
from helpers.judge import owner, sentence, table
from helpers.judge.evidence import vendor_of
from helpers.judge.owner import Account, account
from helpers.look.bundle import Bundle
from helpers.look.gpus import Gpu, Holder, Pool, gpus, in_sight, numbered_by_host
from helpers.look.message import Message

DRIVER = "driver"
MESSAGE = "message"
SAID = "the error message"
TOTALS_AGREE = 4 * MIB
# KFD counts free memory in blocks of this size (amdgpu_amdkfd_gpuvm.c, VRAM_AVAILABILITY_ALIGN).
KFD_BLOCK = 2 * MIB
RESERVED = "of it reserved by the driver"
COMPUTE = ("KFD bank", "HSA pool", "torch")
USED_BY = (("sysfs VRAM", 0), ("nvidia-smi", MIB), ("rocm-smi VRAM", 0), ("amd-smi VRAM", MIB))
"""The layers that say what is in use, the best first, and what each may be off by, in bytes."""
_say = partial(sentence, "ledger", "says")


@dataclass(frozen=True)
class LedgerRow:
    """One part of what is in use.

    ``kind``: process (the failing one), other_process, outside, reserved, unattributed.

    ``bytes`` without a value is a holder whose share was not measured; it is then within the
    unattributed rest. A negative rest means that processes were counted twice (shared memory)
    or at another moment; a contradiction then says so.
    """

    kind: str
    words: str
    bytes: Reading
    source: str


@dataclass(frozen=True)
class GpuLedger:
    """One source's account of one GPU; ``pci`` is empty where a message does not tell which GPU
    it means.

    ``account`` is driver or message, ``left`` what total less used is. The rows that have a
    value add up to ``used`` within ``tolerance_bytes``. Where ``used`` is not known there is no
    unattributed row.
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
        """What the rows of these kinds (all, where none is given) hold together; rows without a
        value count nothing.
        """
        return sum(row.bytes.bytes for row in self.rows if not kinds or row.kind in kinds)


def with_rest(book: GpuLedger, words: str) -> GpuLedger:
    """The ledger with its rest.

    A rest below zero is named, and stands as a row only where it is more than the tolerance.
    """
    used = book.used
    held = book.sum_bytes()
    against = book.contradictions
    rest = used.bytes - held
    if not used.ok or -book.tolerance_bytes <= rest <= 0:
        return book
    if rest < 0:
        sizes = {"held": show_bytes(held), "used": show_bytes(used.bytes)}
        against = (*against, _say("too much", source=used.source, **sizes))
        words = _say("twice")
    left = seen(rest, "bytes", f"{used.source} less the rows above", used.item)
    row = LedgerRow("unattributed", words, left, used.source)
    return replace(book, rows=(*book.rows, row), contradictions=against)


def ledger(bundle: Bundle | None, message: Message | None = None) -> tuple[GpuLedger, ...]:
    """The driver's ledger of every GPU, each followed by the message's where it is of that GPU;
    last, one that fits none.

    ``bundle`` may be None: a message alone has a ledger too. A message that gives no amounts
    has none.
    """
    found = gpus(bundle) if bundle is not None else ()
    here = _gpu_of(message, found) if message is not None else None
    told = _of_message(message, here) if message is not None else None
    books = {gpu.pci: [_of_driver(bundle, gpu)] for gpu in found if bundle is not None}
    if told and message is not None:
        own = books.setdefault(here.pci if here else "", [])
        own[:] = [_split(own[0], message), _compared(told, own[0], here)] if here else [told]
    return tuple(book for pair in books.values() for book in pair)


def _by_layer(gpu: Gpu) -> dict[str, Pool]:
    return {pool.layer: pool for pool in gpu.pools}


def _sum(one: Reading, other: Reading, words: str = "") -> Reading:
    source = words or f"{one.source} + {other.source}"
    return seen(one.bytes + other.bytes, "bytes", source, one.item)


def _of_driver(bundle: Bundle, gpu: Gpu) -> GpuLedger:
    total, used, grain, notes = _in_use(gpu)
    kept = _by_layer(gpu).get(RESERVED)
    reserved = []
    if kept is not None and kept.total.ok and used.ok:
        reserved.append(LedgerRow("reserved", _say("reserved"), kept.total, kept.total.source))
        if _excluded(gpu, kept.total):
            used = _sum(used, kept.total, f"{used.source} (used + reserved)")
            grain += MIB
    holders, spread = _holders(bundle, gpu)
    # On an APU part of what is in use lies in the carve-out, outside the pool that compute
    # takes from.
    left = _say("apu left") if gpu.integrated else "free"
    notes += [f"{spot[:1].upper()}{spot[1:]}." for spot in gpu.blind_spots]
    parts = (*holders, *reserved)
    odd = tuple(contradictions(gpu))
    book = GpuLedger(gpu.pci, DRIVER, total, used, parts, grain + spread, odd, tuple(notes), left)
    unmeasured = sum(not row.bytes.ok for row in holders)
    rest = "unmeasured" if unmeasured else "unseen" if gpu.blind_spots else "nobody"
    return with_rest(book, _say(rest, count=unmeasured))


def _in_use(gpu: Gpu) -> tuple[Reading, Reading, int, list[str]]:
    """Total, used, and what used may be off by.

    On an APU the carve-out and GTT are two places, one use: used adds, total does not (amdgpu
    takes HIP's memory from one of the two, amdgpu_amdkfd_get_local_mem_info).
    """
    pools = _by_layer(gpu)
    for layer, grain in USED_BY:
        pool = pools.get(layer)
        if pool is None or not pool.used.ok:
            continue
        shared = gpu.integrated and "VRAM" in layer
        beside = pools.get(layer.replace("VRAM", "GTT")) if shared else None
        if beside is None:
            return pool.total, pool.used, grain, []
        banks = [pools[name].total for name in COMPUTE if name in pools and pools[name].total.ok]
        bank = banks[0] if banks else not_available(_say("no pool"), "bytes", "KFD bank")
        notes = [_say("two places")]
        if not beside.used.ok:
            return bank, beside.used, grain, notes
        return bank, _sum(pool.used, beside.used), 2 * grain, notes
    torch = pools.get("torch")
    if torch and torch.total.ok and torch.free.ok and torch.free.bytes <= torch.total.bytes:
        source = f"{torch.total.source} - {torch.free.source}"
        gone = seen(torch.total.bytes - torch.free.bytes, "bytes", source, torch.total.item)
        return torch.total, gone, 0, [_say("hip free")] if gpu.vendor == "AMD" else []
    totals = [pool.total for pool in gpu.pools if pool.total.ok]
    uses = [pools[layer].used for layer, _ in USED_BY if layer in pools]
    none = [not_available(_say(why), "bytes", "memory pools") for why in ("no total", "no use")]
    return [*totals, none[0]][0], [*uses, none[1]][0], 0, []


def _excluded(gpu: Gpu, kept: Reading) -> bool:
    """Whether nvidia-smi's used leaves the driver's reserve out, as it does since driver 510:
    then the three add up.
    """
    main = _by_layer(gpu).get("nvidia-smi")
    if not main or not all(reading.ok for reading in (main.total, main.used, main.free)):
        return False
    rest = main.used.bytes + main.free.bytes - main.total.bytes
    return abs(rest + kept.bytes) <= abs(rest)


def _holders(bundle: Bundle, gpu: Gpu) -> tuple[list[LedgerRow], int]:
    """A row a process, and what they may be off by together; what the host's lists name beyond
    those seen is outside.
    """
    inside, by_host, away = in_sight(bundle, gpu)
    rows = [_row(h, h in away) for h in inside]
    spread = _spread([*inside, *by_host])
    if not (inside and by_host) or gpu.vendor == "NVIDIA":
        return rows + [_row(h, h in away) for h in by_host], spread
    beyond = sum(h.memory.bytes for h in by_host) - sum(h.memory.bytes for h in inside)
    if beyond > spread:
        source = " + ".join(dict.fromkeys(h.source for h in by_host))
        words = _say("beyond", source=source, count=len(by_host))
        reading = seen(beyond, "bytes", source, by_host[0].memory.item)
        rows.append(LedgerRow("outside", words, reading, source))
    return rows + [_row(h, h in away) for h in by_host if not h.memory.ok], spread


def _row(holder: Holder, away: bool) -> LedgerRow:
    named = f"{holder.name or 'process'} ({holder.pid})"
    odd = {"Z": "a zombie", "D": "waits in the kernel"}.get(holder.state[:1], "")
    if away and not numbered_by_host(holder):
        odd = odd or "not in /proc"
    extra = ", ".join(word for word in (odd, holder.note) if word)
    kind = "outside" if away else "other_process"
    return LedgerRow(kind, named + (f": {extra}" if extra else ""), holder.memory, holder.source)


def _spread(holders: list[Holder]) -> int:
    """What the readings of these may be off by together."""
    grain = table("ledger")["grain_bytes"]
    return sum(grain.get(holder.source, MIB) for holder in holders if holder.memory.ok)


def _of_message(message: Message, gpu: Gpu | None) -> GpuLedger | None:
    m = message
    a = account(message)
    if not any((m.capacity, m.free, m.process, m.allocated, m.reserved_total)):
        return None
    used = not_available(_say("no capacity"), "bytes", SAID)
    if a.used:
        used = seen(max(0, a.used.bytes), "bytes", f"{SAID}: capacity less what is free")
    names = [(_say("another") + (f": {pid}" if pid is not None else ""), n) for pid, n in a.others]
    others = [LedgerRow("other_process", words, _said(size, ""), SAID) for words, size in names]
    total = _said(m.capacity, "capacity")
    rows = (*_own_rows(a), *others)
    pci = gpu.pci if gpu else ""
    book = GpuLedger(pci, MESSAGE, total, used, rows, a.tolerance_bytes, a.contradictions)
    return with_rest(book, _say("others" if a.own else "others or own"))


def _own_rows(a: Account) -> list[LedgerRow]:
    """This process: allocated, cached, and the rest of it (context, libraries)."""
    m = a.message
    rows = []

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
    """The driver's ledger with the one holder that the message's process fits, if there is
    exactly one, in its parts.
    """
    if message.process is None or not message.allocated:
        return own
    a = account(replace(message, process=None, non_torch=None, others=(), pids=()))
    held = [r for r in own.rows if r.kind in ("other_process", "outside") and r.bytes.ok]
    fits = [row for row in held if owner.is_itself(row.bytes.bytes, message.process)]
    if len(fits) != 1:
        return own
    parts = _own_rows(a)
    named = fits[0].words
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
    off = told.tolerance_bytes + own.tolerance_bytes + TOTALS_AGREE
    seen_by = [pool for pool in gpu.pools if pool.layer in ("torch", "KFD bank") and pool.total.ok]
    apart = [pool for pool in seen_by if abs(pool.total.bytes - told.total.bytes) > off]
    if told.total.ok and seen_by and apart == seen_by:
        totals = " and ".join(f"{p.layer} {p.total.show()}" for p in seen_by)
        odd = _say("another GPU", total=told.total.show(), totals=totals)
        told = replace(told, contradictions=(*told.contradictions, odd))
    more = told.used.bytes - (own.used.bytes - own.sum_bytes("reserved"))
    # HIP's free leaves out graphics memory, so there the message may well have less in use.
    if told.used.ok and own.used.ok and (more > off or (gpu.vendor == "NVIDIA" and more < -off)):
        note = _say("two moments", told=told.used.show(), own=own.used.show())
        told = replace(told, notes=(*told.notes, note))
    return told


def _gpu_of(message: Message, found: tuple[Gpu, ...]) -> Gpu | None:
    """The GPU that a message means: by torch's index, else the only one that it can be."""
    fit = [gpu for gpu in found if vendor_of((message,)) in ("", gpu.vendor)]
    index = "" if message.device is None else str(message.device)
    by_index = [gpu for gpu in fit if index and gpu.indices.get("torch") == index]
    if len(by_index) == 1:
        return by_index[0]
    if len(fit) > 1 and message.capacity:
        size = message.capacity.bytes
        off = message.capacity.precision_bytes + TOTALS_AGREE
        layers = ("torch", "KFD bank", "sysfs VRAM")
        totals = [(gpu, p.total) for gpu in fit for p in gpu.pools if p.layer in layers]
        near = [gpu for gpu, total in totals if total.ok and abs(total.bytes - size) <= off]
        fit = [gpu for gpu in fit if gpu in near]
    return fit[0] if len(fit) == 1 else None


def _said(quantity: Quantity | None, what: str) -> Reading:
    if quantity is None:
        return not_available(f"the message gives no {what}", "bytes", SAID)
    return seen(quantity.bytes, "bytes", f"{SAID}: {quantity.text}")


def contradictions(gpu: Gpu) -> Iterator[str]:
    """Each contradiction in a sentence, with both figures; none where the layers agree."""
    pools = _by_layer(gpu)
    for pool in gpu.pools:
        total = pool.total
        source = pool.total.source
        for what, part in (("used", pool.used), ("free", pool.free)):
            if part.ok and total.ok and part.bytes > total.bytes:
                words = {"layer": pool.layer, "what": what, "part": part.show()}
                yield _say("above total", **words, total=total.show(), source=source)
    for says, layer, beside, least, most in table("ledger")["totals"]:
        one, other = (pools[name].total if name in pools else None for name in (layer, beside))
        if one and other and one.ok and other.ok:
            if not least <= one.bytes - other.bytes <= most:
                names = {"layer": layer, "beside": beside}
                yield _say(says, **names, one=one.show(), other=other.show())
    torch, nvidia, sysfs = (pools.get(name) for name in ("torch", "nvidia-smi", "sysfs VRAM"))
    if torch and sysfs and not gpu.integrated and torch.free.ok and sysfs.free.ok:
        if torch.free.bytes - sysfs.free.bytes > TOTALS_AGREE + KFD_BLOCK:
            yield _say("hip and sysfs", hip=torch.free.show(), sysfs=sysfs.free.show())
    if nvidia and all(r.ok for r in (nvidia.total, nvidia.used, nvidia.free)):
        kept = pools[RESERVED].total.bytes if RESERVED in pools else 0
        rest = nvidia.total.bytes - nvidia.used.bytes - nvidia.free.bytes
        gap = min(abs(rest), abs(rest - kept))
        if gap > 3 * MIB:
            yield _say("unexplained", gap=show_bytes(gap), total=nvidia.total.show())
