"""Who has what of a GPU's memory: every byte in use stands in one row, and what nobody accounts
for is a row too.

One ledger a source: the driver's (sysfs, nvidia-smi) as the box was captured, the out-of-memory
message's at the moment of the failure, and that of a tool whose output was posted. They are not
mixed, for they are several moments; where two disagree, ``notes`` says so.

The tolerance comes from the sources: a message prints two decimals, nvidia-smi whole MiB,
fdinfo KiB, and KFD counts in blocks of 2 MiB (amdgpu_amdkfd_gpuvm.c, VRAM_AVAILABLITY_ALIGN).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.units import MIB, Quantity, show_bytes
from helpers.judge.contradictions import RESERVED, TOTALS_AGREE, contradictions, pools_by_layer
from helpers.judge.evidence import CaseEvidence
from helpers.judge.failing_card import card_of, is_total_of_slice
from helpers.judge.holders import is_itself
from helpers.judge.message_account import Account
from helpers.judge.message_sums import MessageSums, sums_of
from helpers.judge.posted_processes import listed_beside
from helpers.look.bundle import Bundle
from helpers.look.figures import Figure, beside
from helpers.look.gpus import Gpu, gpus
from helpers.look.holders import Holder, holding, in_sight, numbered_by_host, one_each
from helpers.look.message import Message
from helpers.look.nvidia import MigSlice

DRIVER = "driver"
MESSAGE = "message"
TOOL = "tool"
SAID = "the error message"
COMPUTE = ("KFD bank", "HSA pool", "torch")
SECOND_PLACE = {
    "sysfs VRAM": "sysfs GTT",
    "rocm-smi VRAM": "rocm-smi GTT",
    "amd-smi VRAM": "amd-smi GTT",
}
"""Where an APU's other memory in use is counted, by the layer of its carve-out."""
USED_BY = (("sysfs VRAM", 0), ("nvidia-smi", MIB), ("rocm-smi VRAM", 0), ("amd-smi VRAM", MIB))
"""The layers that say what is in use, the best first, and what each may be off by, in bytes."""
GRAIN_BYTES = {
    "DRM fdinfo": 1024,
    "DRM fdinfo (VRAM and GTT)": 2048,
    "KFD": 2 * MIB,
    "nvidia-smi": MIB,
    "amd-smi": MIB,
}
"""What a holder's size may be off by, by its source: fdinfo prints KiB, the tools whole MiB."""


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
    pid: int = 0
    """The process, where the row is one that a number names."""


@dataclass(frozen=True)
class GpuLedger:
    """One source's account of one GPU; ``pci`` is empty where a message does not tell which GPU
    it means.

    ``account`` is driver, message or tool, ``left`` what total less used is. The rows that have a
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
    part: str = ""
    """The MIG device whose memory it counts, where the GPU is cut into several."""

    @property
    def place(self) -> str:
        """The GPU by its address, and the part of it."""
        return f"{self.pci} {self.part}".strip()

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
    rest = used.bytes - held
    if not used.ok or -book.tolerance_bytes <= rest <= 0:
        return book
    against = book.contradictions
    if rest < 0:
        more = (
            f"the parts make {show_bytes(held)}, more than the {show_bytes(used.bytes)} in use "
            f"({used.source})"
        )
        against = (*against, more)
        words = "counted more than once, or at another moment"
    left = seen(rest, "bytes", f"{used.source} less the rows above", used.item)
    row = LedgerRow("unattributed", words, left, used.source)
    return replace(book, rows=(*book.rows, row), contradictions=against)


def ledgers_of(evidence: CaseEvidence) -> tuple[GpuLedger, ...]:
    """The driver's ledger of every GPU of the box, each followed by that of the first message
    that refuses memory of the device, where it is of that GPU; last, one that fits none.

    A message that gives no amounts has no ledger. They are worked out once for each evidence.
    """
    books: tuple[GpuLedger, ...] = evidence.once("ledgers", lambda: _ledgers(evidence))
    return books


def _ledgers(evidence: CaseEvidence) -> tuple[GpuLedger, ...]:
    cards: tuple[Gpu, ...] = ()
    books: dict[str, list[GpuLedger]] = {}
    if evidence.bundle is not None:
        cards = gpus(evidence.bundle)
        books = {card.pci: _of_card(evidence.bundle, card) for card in cards}
    for account in evidence.accounts:
        if account.message.event == "refused" and account.message.side == "device":
            _add_message(books, account, cards)
            break
    of_box = [book for pair in books.values() for book in pair]
    return (*of_box, *_of_tools(evidence))


def _of_tools(evidence: CaseEvidence) -> Iterator[GpuLedger]:
    """The ledger of each card of which a posted tool lists processes and what is in use."""
    for used, listed in listed_beside(evidence):
        reading = _printed(used)
        totals = [_printed(figure) for figure in beside(used, evidence.figures, "total")]
        rows = [
            LedgerRow(
                kind="other_process",
                words=f"{figure.name or 'process'} ({figure.pid})",
                bytes=_printed(figure),
                source=figure.source,
                pid=figure.pid or 0,
            )
            for figure in listed
        ]
        book = GpuLedger(
            pci="",
            account=TOOL,
            total=totals[0] if totals else not_available("not printed", "bytes", used.source),
            used=reading,
            rows=tuple(rows),
            tolerance_bytes=sum(figure.precision_bytes for figure in (used, *listed)),
            contradictions=(),
            part=f"GPU {used.device}",
        )
        yield with_rest(book, "used by none of the processes that the tool lists")


def _printed(figure: Figure) -> Reading:
    """A figure of a posted tool; one that it did not measure has no value."""
    if figure.bytes is None:
        return not_available("the tool did not measure it", "bytes", figure.source)
    return seen(figure.bytes, "bytes", figure.source)


def _add_message(
    books: dict[str, list[GpuLedger]], account: Account, cards: tuple[Gpu, ...]
) -> None:
    """Put the ledger of a message beside the driver's of the GPU that it means."""
    card = card_of(account.message, cards)
    book = _of_message(account, card)
    if book is None:
        return
    if card is None:
        books.setdefault("", []).append(book)
        return
    memories = books[card.pci]
    fitting = [at for at, memory in enumerate(memories) if _is_of(memory, account.message)]
    if len(fitting) != 1:
        memories.append(book)
        return
    of_driver = memories[fitting[0]]
    compared = replace(_compared(book, of_driver, card), part=of_driver.part)
    memories[fitting[0]] = _split(of_driver, account.message)
    memories.insert(fitting[0] + 1, compared)


def _is_of(book: GpuLedger, message: Message) -> bool:
    """Whether the driver's ledger may be of the memory that a message is about."""
    return (
        not book.part or message.capacity is None or is_total_of_slice(book.total, message.capacity)
    )


def _of_card(bundle: Bundle, gpu: Gpu) -> list[GpuLedger]:
    """The driver's ledger of a GPU, or of each MIG device that it is cut into."""
    if not gpu.slices:
        return [_of_driver(bundle, gpu)]
    return [_of_slice(gpu, part) for part in gpu.slices]


def _of_slice(gpu: Gpu, part: MigSlice) -> GpuLedger:
    holders = one_each(
        holder for holder in holding(gpu.holders) if holder.gpu_instance == part.gpu_instance
    )
    rows = tuple(_holder_row(holder, away=False) for holder in holders)
    book = GpuLedger(
        pci=gpu.pci,
        account=DRIVER,
        total=part.total,
        used=part.used,
        rows=rows,
        tolerance_bytes=MIB + _spread(holders),
        contradictions=(),
        part=f"MIG device {part.index}",
    )
    return with_rest(book, _words_for_rest(list(rows), gpu))


def _of_driver(bundle: Bundle, gpu: Gpu) -> GpuLedger:
    in_use = _in_use(gpu)
    used = in_use.used
    tolerance = in_use.tolerance_bytes
    reserve = pools_by_layer(gpu).get(RESERVED)
    reserved: list[LedgerRow] = []
    if reserve is not None and reserve.total.ok and used.ok:
        kept = reserve.total
        reserved = [LedgerRow("reserved", "kept by the driver for itself", kept, kept.source)]
        if _excludes_reserve(gpu, kept):
            used = _sum(used, kept, f"{used.source} (used + reserved)")
            tolerance += MIB
    rows, spread = _holders(bundle, gpu)
    spots = [f"{spot[:1].upper()}{spot[1:]}." for spot in gpu.blind_spots]
    book = GpuLedger(
        pci=gpu.pci,
        account=DRIVER,
        total=in_use.total,
        used=used,
        rows=(*rows, *reserved),
        tolerance_bytes=tolerance + spread,
        contradictions=tuple(contradictions(gpu)),
        notes=(*in_use.notes, *spots),
        # On an APU part of what is in use lies in the carve-out, outside the pool that compute
        # takes from.
        left="left of the pool for compute, roughly" if gpu.integrated else "free",
    )
    return with_rest(book, _words_for_rest(rows, gpu))


def _words_for_rest(rows: list[LedgerRow], gpu: Gpu) -> str:
    """Who may hold what no row accounts for."""
    unmeasured = sum(not row.bytes.ok for row in rows)
    if unmeasured:
        return f"{unmeasured} process(es) that were not measured, or no visible owner"
    if gpu.blind_spots:
        return "no visible owner"
    return "no process: driver, firmware, page tables, or memory left behind"


@dataclass(frozen=True)
class _InUse:
    """Total and used of a GPU, what used may be off by, and what is to be said of them."""

    total: Reading
    used: Reading
    tolerance_bytes: int = 0
    notes: tuple[str, ...] = ()


def _in_use(gpu: Gpu) -> _InUse:
    """Total and used by the best layer that has them."""
    pools = pools_by_layer(gpu)
    for layer, grain in USED_BY:
        pool = pools.get(layer)
        if pool is None or not pool.used.ok:
            continue
        second = pools.get(SECOND_PLACE.get(layer, "")) if gpu.integrated else None
        if second is None:
            return _InUse(pool.total, pool.used, grain)
        return _in_two_places(gpu, pool.used, second.used, grain)
    no_total = not_available("no layer gives a total", "bytes", "memory pools")
    no_use = not_available("no layer says how much is in use", "bytes", "memory pools")
    return _InUse(
        total=next((pool.total for pool in gpu.pools if pool.total.ok), no_total),
        used=next((pools[layer].used for layer, _ in USED_BY if layer in pools), no_use),
    )


def _in_two_places(gpu: Gpu, carveout: Reading, gtt: Reading, grain: int) -> _InUse:
    """On an APU the carve-out and GTT are two places, one use: used adds, total does not (amdgpu
    takes HIP's memory from one of the two, amdgpu_amdkfd_get_local_mem_info).
    """
    pools = pools_by_layer(gpu)
    totals = (pools[layer].total for layer in COMPUTE if layer in pools and pools[layer].total.ok)
    no_pool = not_available("the compute driver's pool was not captured", "bytes", "KFD bank")
    total = next(totals, no_pool)
    note = (
        "An APU: the total is the pool that compute may use; carve-out and GTT are in use side "
        "by side, "
        "and their totals are alternatives."
    )
    if not gtt.ok:
        return _InUse(total, gtt, grain, (note,))
    return _InUse(total, _sum(carveout, gtt), 2 * grain, (note,))


def _sum(first: Reading, second: Reading, source: str = "") -> Reading:
    source = source or f"{first.source} + {second.source}"
    return seen(first.bytes + second.bytes, "bytes", source, first.item)


def _excludes_reserve(gpu: Gpu, reserve: Reading) -> bool:
    """Whether nvidia-smi's used leaves the driver's reserve out, as it does since driver 510:
    then the three add up.
    """
    pool = pools_by_layer(gpu).get("nvidia-smi")
    if not pool or not (pool.total.ok and pool.used.ok and pool.free.ok):
        return False
    rest = pool.used.bytes + pool.free.bytes - pool.total.bytes
    return abs(rest + reserve.bytes) <= abs(rest)


def _holders(bundle: Bundle, gpu: Gpu) -> tuple[list[LedgerRow], int]:
    """A row a process, and what they may be off by together; what the host's lists name beyond
    those seen is outside.
    """
    inside, by_host, away = in_sight(bundle, gpu.vendor, gpu.holders)
    rows = [_holder_row(holder, holder in away) for holder in inside]
    spread = _spread([*inside, *by_host])
    if not (inside and by_host) or gpu.vendor == "NVIDIA":
        return rows + [_holder_row(holder, holder in away) for holder in by_host], spread
    beyond = _bytes_of(by_host) - _bytes_of(inside)
    if beyond > spread:
        source = " + ".join(dict.fromkeys(holder.source for holder in by_host))
        words = (
            f"what {source} counts beyond this container's processes; it lists {len(by_host)} "
            "in all, by host PID"
        )
        reading = seen(beyond, "bytes", source, by_host[0].memory.item)
        rows.append(LedgerRow("outside", words, reading, source))
    unmeasured = [holder for holder in by_host if not holder.memory.ok]
    return rows + [_holder_row(holder, holder in away) for holder in unmeasured], spread


def _bytes_of(holders: Sequence[Holder]) -> int:
    return sum(holder.memory.bytes for holder in holders)


def _holder_row(holder: Holder, away: bool) -> LedgerRow:
    """A process as a row; ``away``: it is not in the process list of this box."""
    remarks = []
    state = {"Z": "a zombie", "D": "waits in the kernel"}.get(holder.state[:1], "")
    if state:
        remarks.append(state)
    elif away and not numbered_by_host(holder):
        remarks.append("not in /proc")
    if holder.note:
        remarks.append(holder.note)
    words = f"{holder.name or 'process'} ({holder.pid})"
    if remarks:
        words = f"{words}: {', '.join(remarks)}"
    kind = "outside" if away else "other_process"
    return LedgerRow(kind, words, holder.memory, holder.source, holder.pid)


def _spread(holders: list[Holder]) -> int:
    """What the readings of these may be off by together, in bytes."""
    return sum(GRAIN_BYTES.get(holder.source, MIB) for holder in holders if holder.memory.ok)


def _of_message(account: Account, gpu: Gpu | None) -> GpuLedger | None:
    """The ledger of a message; None where it gives no amounts."""
    message = account.message
    amounts = (message.capacity, message.free, message.process, message.allocated)
    if not any((*amounts, message.reserved_total)):
        return None
    why = "the message does not give both the capacity and what is free"
    used = not_available(why, "bytes", SAID)
    if account.used:
        source = f"{SAID}: capacity less what is free"
        used = seen(max(0, account.used.bytes), "bytes", source)
    rows = _own_rows(account)
    for pid, size in account.others:
        number = "" if pid is None else f": {pid}"
        words = f"another process that the message names{number}"
        rows.append(LedgerRow("other_process", words, _said(size, ""), SAID))
    book = GpuLedger(
        pci=gpu.pci if gpu else "",
        account=MESSAGE,
        total=_said(message.capacity, "capacity"),
        used=used,
        rows=tuple(rows),
        tolerance_bytes=account.tolerance_bytes,
        contradictions=account.contradictions,
    )
    if account.own:
        return with_rest(book, "others, or no owner: the message counts only what it names")
    return with_rest(
        book, "this process outside torch, others, or no owner: the message does not say"
    )


def _own_rows(sums: MessageSums, name: str = "this process") -> list[LedgerRow]:
    """This process: allocated, cached, and the rest of it (context, libraries)."""
    message = sums.message
    rows = []
    if message.allocated:
        graphs = ""
        if message.private_pools:
            graphs = f" (including {message.private_pools.text} in private pools)"
        reading = _said(message.allocated, "allocated")
        rows.append(LedgerRow("process", f"{name}: tensors{graphs}", reading, SAID))
    if sums.stranded is not None:
        size = max(0, sums.stranded.bytes)
        reading = seen(size, "bytes", f"{SAID}: reserved but unallocated")
        rows.append(LedgerRow("process", f"{name}: cached by torch and unused", reading, SAID))
    elif sums.held and not message.allocated:
        reading = _said(sums.held, "reserved")
        rows.append(LedgerRow("process", f"{name}: reserved by torch", reading, SAID))
    rest = sums.context if sums.held else sums.own
    if rest and (rest.bytes > 0 or not rows):
        words = f"{name}: context and libraries" if rows else name
        reading = seen(rest.bytes, "bytes", f"{SAID}: this process - torch")
        rows.append(LedgerRow("process", words, reading, SAID))
    return rows


def _split(of_driver: GpuLedger, message: Message) -> GpuLedger:
    """The driver's ledger with the parts of the failing program in place of the one holder that
    it is by its size; unchanged where no holder, or more than one, fits.
    """
    if message.process is None or not message.allocated:
        return of_driver
    fitting = [
        row
        for row in of_driver.rows
        if row.kind in ("other_process", "outside")
        and row.bytes.ok
        and is_itself(row.bytes.bytes, message.process)
    ]
    if len(fitting) != 1:
        return of_driver
    holder = fitting[0]
    sums = sums_of(replace(message, process=None, non_torch=None, others=(), pids=()))
    parts = _own_rows(sums, holder.words)
    left = holder.bytes.bytes - sum(row.bytes.bytes for row in parts)
    if left < -sums.tolerance_bytes:
        return of_driver
    parts = [replace(row, pid=holder.pid) for row in parts if row.bytes.bytes]
    if left > 0:
        source = f"{holder.source} less torch's parts"
        reading = seen(left, "bytes", source, holder.bytes.item)
        words = f"{holder.words}: context and libraries"
        parts.append(LedgerRow("process", words, reading, source, holder.pid))
    position = of_driver.rows.index(holder)
    return replace(
        of_driver,
        rows=(*of_driver.rows[:position], *parts, *of_driver.rows[position + 1 :]),
        tolerance_bytes=of_driver.tolerance_bytes + sums.tolerance_bytes,
    )


def _compared(of_message: GpuLedger, of_driver: GpuLedger, gpu: Gpu) -> GpuLedger:
    """The message's ledger with what the box says otherwise."""
    margin = of_message.tolerance_bytes + of_driver.tolerance_bytes + TOTALS_AGREE
    total = of_message.total
    pools = [pool for pool in gpu.pools if pool.layer in ("torch", "KFD bank") and pool.total.ok]
    apart = [pool for pool in pools if abs(pool.total.bytes - total.bytes) > margin]
    if total.ok and pools and apart == pools:
        totals = " and ".join(f"{pool.layer} {pool.total.show()}" for pool in pools)
        odd = (
            f"the message's capacity is {total.show()}; the capture has {totals}: another GPU "
            "or another boot"
        )
        of_message = replace(of_message, contradictions=(*of_message.contradictions, odd))
    then = of_message.used
    now = of_driver.used
    more = then.bytes - (now.bytes - of_driver.sum_bytes("reserved"))
    # HIP's free leaves out graphics memory, so there the message may well have less in use.
    is_another_use = more > margin or (gpu.vendor == "NVIDIA" and more < -margin)
    if then.ok and now.ok and is_another_use:
        note = (
            f"In use at the failure, by the message: {then.show()}; at the capture, by the "
            f"driver: {now.show()}."
        )
        of_message = replace(of_message, notes=(*of_message.notes, note))
    return of_message


def _said(quantity: Quantity | None, figure: str) -> Reading:
    if quantity is None:
        return not_available(f"the message gives no {figure}", "bytes", SAID)
    return seen(quantity.bytes, "bytes", f"{SAID}: {quantity.text}")
