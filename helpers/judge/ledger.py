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
from dataclasses import dataclass
from itertools import chain

from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.units import MIB
from helpers.judge import capitalised, table
from helpers.judge.contradictions import RESERVED, contradictions, pools_by_layer
from helpers.judge.evidence import CaseEvidence, once
from helpers.judge.ledger_rows import DRIVER, TOOL, GpuLedger, LedgerRow, with_rest
from helpers.judge.message_ledger import add_message
from helpers.judge.posted_processes import listed_beside
from helpers.look.bundle import Bundle
from helpers.look.figures import Figure, beside
from helpers.look.gpus import Gpu, gpus
from helpers.look.holders import Holder, holding, in_sight, numbered_by_host, one_each
from helpers.look.nvidia import MigSlice


@once
def ledgers_of(evidence: CaseEvidence) -> tuple[GpuLedger, ...]:
    """The driver's ledger of every GPU of the box, then those of posted tools.

    Of the messages the first that refuses memory of the device has a ledger, as later ones are
    mostly its consequences. It follows the ledger of its GPU, or those of all GPUs where its GPU
    is not known. A message that gives no amounts has no ledger.
    """
    cards: tuple[Gpu, ...] = ()
    books: dict[str, list[GpuLedger]] = {}  # by PCI address
    if evidence.bundle is not None:
        cards = gpus(evidence.bundle)
        books = {card.pci: _of_card(evidence.bundle, card) for card in cards}
    for account in evidence.accounts:
        if account.message.event == "refused" and account.message.side == "device":
            add_message(books, account, cards)
            break
    return (*chain(*books.values()), *_of_tools(evidence))


def _of_tools(evidence: CaseEvidence) -> Iterator[GpuLedger]:
    """The ledger of each card of which one posted output shows what is in use, and the processes
    that use it. The card is known by the tool's own number alone, so the ledger has no address.
    """
    for used, listed in listed_beside(evidence):
        totals = beside(used, evidence.figures, "total")
        total = not_available("not printed", "bytes", used.source)
        if totals:
            total = _printed(totals[0])
        book = GpuLedger(
            pci="",
            account=TOOL,
            total=total,
            used=_printed(used),
            rows=tuple(_listed_row(process) for process in listed),
            tolerance_bytes=sum(figure.precision_bytes for figure in (used, *listed)),
            part=f"GPU {used.device}",
        )
        yield with_rest(book, "used by none of the processes that the tool lists")


def _listed_row(process: Figure) -> LedgerRow:
    """A process of a posted list as a row."""
    pid = 0
    if process.pid is not None:
        pid = process.pid
    name = _name_of_process(process)
    return LedgerRow("other_process", name, _printed(process), process.source, pid)


def _printed(figure: Figure) -> Reading:
    """A figure of a posted tool as a reading; without a value where the tool did not measure it."""
    if figure.bytes is None:
        return not_available("the tool did not measure it", "bytes", figure.source)
    return seen(figure.bytes, "bytes", figure.source)


def _of_card(bundle: Bundle, gpu: Gpu) -> list[GpuLedger]:
    """The driver's ledger of a GPU, or of each MIG device that it is split into."""
    if not gpu.slices:
        return [_of_driver(bundle, gpu)]
    return [_of_slice(gpu, part) for part in gpu.slices]


def _of_slice(gpu: Gpu, part: MigSlice) -> GpuLedger:
    """The ledger of one MIG device."""
    holders = one_each(
        holder
        for holder in holding(gpu.holders)
        if holder.gpu_instance == part.gpu_instance
    )
    rows = [_holder_row(holder, is_away=False) for holder in holders]
    book = GpuLedger(
        pci=gpu.pci,
        account=DRIVER,
        total=part.total,
        used=part.used,
        rows=tuple(rows),
        tolerance_bytes=MIB + _off_by_bytes(holders),  # nvidia-smi prints whole MiB
        part=f"MIG device {part.index}",
    )
    return with_rest(book, _words_for_rest(rows, gpu))


def _of_driver(bundle: Bundle, gpu: Gpu) -> GpuLedger:
    """The ledger of a whole GPU, by the best layer that says what is in use."""
    in_use = _in_use(gpu)
    used = in_use.used
    tolerance_bytes = in_use.tolerance_bytes
    rows, off_by_bytes = _holders(bundle, gpu)
    rest_words = _words_for_rest(rows, gpu)
    reserve = pools_by_layer(gpu).get(RESERVED)
    if reserve is not None and reserve.total.ok and used.ok:
        kept = reserve.total
        words = "kept by the driver for itself"
        rows.append(LedgerRow("reserved", words, kept, kept.source))
        if _excludes_reserve(gpu, kept):
            used = _sum(used, kept, f"{used.source} (used + reserved)")
            tolerance_bytes += MIB  # nvidia-smi prints the reserve in whole MiB, too
    left = "free"
    if gpu.integrated:
        # Part of what is in use lies in the carve-out, outside the pool of compute programs.
        left = "left of the pool for compute, roughly"
    spots = [f"{capitalised(spot)}." for spot in gpu.blind_spots]
    book = GpuLedger(
        pci=gpu.pci,
        account=DRIVER,
        total=in_use.total,
        used=used,
        rows=tuple(rows),
        tolerance_bytes=tolerance_bytes + off_by_bytes,
        contradictions=tuple(contradictions(gpu)),
        notes=(*in_use.notes, *spots),
        left=left,
    )
    return with_rest(book, rest_words)


def _words_for_rest(rows: list[LedgerRow], gpu: Gpu) -> str:
    """Who may hold the memory that no row accounts for: processes that were not measured, one
    that cannot be seen from here (blind_spots), or nobody.
    """
    unmeasured = sum(1 for row in rows if not row.bytes.ok)
    if unmeasured:
        return f"{unmeasured} process(es) that were not measured, or no visible owner"
    if gpu.blind_spots:
        return "no visible owner"
    return "no process: driver, firmware, page tables, or memory left behind"


@dataclass(frozen=True)
class _InUse:
    """Total and used memory of a GPU, by how much ``used`` may be off, and sentences about both."""

    total: Reading
    used: Reading
    tolerance_bytes: int = 0
    notes: tuple[str, ...] = ()


def _in_use(gpu: Gpu) -> _InUse:
    """Total and used memory by the best layer that has both; by whichever has one of them where
    none has both.
    """
    pools = pools_by_layer(gpu)
    rows = [row for row in table("ledger")["in_use"] if row["layer"] in pools]
    for row in rows:
        pool = pools[row["layer"]]
        # The carve-out's layer names GTT as the second place in which an APU has memory in use.
        gtt = pools.get(row.get("second_place"))
        if pool.used.ok and gtt is not None and gpu.integrated:
            return _in_two_places(gpu, pool.used, gtt.used, row["off_by_bytes"])
        if pool.used.ok:
            return _InUse(pool.total, pool.used, row["off_by_bytes"])
    no_total = not_available("no layer gives a total", "bytes", "memory pools")
    no_use = not_available("no layer says how much is in use", "bytes", "memory pools")
    return _InUse(
        total=next((pool.total for pool in gpu.pools if pool.total.ok), no_total),
        used=next((pools[row["layer"]].used for row in rows), no_use),
    )


def _in_two_places(
    gpu: Gpu, carveout: Reading, gtt: Reading, off_by_bytes: int
) -> _InUse:
    """Total and used memory of an APU: carve-out and GTT are used side by side, but programs get
    the total of only one of them (amdgpu_amdkfd_get_local_mem_info).

    Each of the two readings may be off by ``off_by_bytes``.
    """
    pools = pools_by_layer(gpu)
    total = not_available(
        "the compute driver's pool was not captured", "bytes", "KFD bank"
    )
    for layer in table("ledger")["compute"]:
        if layer in pools and pools[layer].total.ok:
            total = pools[layer].total
            break
    note = (
        "An APU: the total is the pool that compute may use; carve-out and GTT are in use side by "
        "side, and their totals are alternatives."
    )
    if not gtt.ok:  # ``used`` is then not known: the carve-out alone is a part of it
        return _InUse(total, gtt, off_by_bytes, (note,))
    used = _sum(carveout, gtt, f"{carveout.source} + {gtt.source}")
    return _InUse(total, used, 2 * off_by_bytes, (note,))


def _sum(first: Reading, second: Reading, source: str) -> Reading:
    """The sum of two sizes, as a reading of ``source``."""
    return seen(first.bytes + second.bytes, "bytes", source, first.item)


def _excludes_reserve(gpu: Gpu, reserve: Reading) -> bool:
    """Whether nvidia-smi's used leaves the driver's reserve out, as it does since driver 510:
    then used, free and reserve are nearer to the total than used and free alone.
    """
    pool = pools_by_layer(gpu).get("nvidia-smi")
    if not pool or not (pool.total.ok and pool.used.ok and pool.free.ok):
        return False
    above_total = pool.used.bytes + pool.free.bytes - pool.total.bytes
    return abs(above_total + reserve.bytes) <= abs(above_total)


def _holders(bundle: Bundle, gpu: Gpu) -> tuple[list[LedgerRow], int]:
    """A row for each process, and by how many bytes their sizes may be off together.

    The host's lists of AMD count the processes that are seen inside a container once more, by
    other numbers: of these lists only what they count beyond those is a row.
    """
    # ``away`` are those of either list that the process list of this box does not have.
    inside, by_host, away = in_sight(bundle, gpu.vendor, gpu.holders)
    rows = [_holder_row(holder, holder in away) for holder in inside]
    off_by_bytes = _off_by_bytes([*inside, *by_host])
    beyond_bytes = _bytes_of(by_host) - _bytes_of(inside)
    if inside and by_host and gpu.vendor != "NVIDIA":
        if beyond_bytes > off_by_bytes:
            rows.append(_beyond_row(by_host, beyond_bytes))
        # Their sizes stand in the row above; those without a size are only named.
        by_host = [holder for holder in by_host if not holder.memory.ok]
    rows += [_holder_row(holder, holder in away) for holder in by_host]
    return rows, off_by_bytes


def _beyond_row(by_host: Sequence[Holder], beyond: int) -> LedgerRow:
    """The bytes that the host's lists count beyond the processes that are seen inside, as a row."""
    source = " + ".join(dict.fromkeys(holder.source for holder in by_host))
    words = (
        f"what {source} counts beyond this container's processes; it lists {len(by_host)} "
        "in all, by host PID"
    )
    reading = seen(beyond, "bytes", source, by_host[0].memory.item)
    return LedgerRow("outside", words, reading, source)


def _bytes_of(holders: Sequence[Holder]) -> int:
    """What the holders have together; one that was not measured counts as 0."""
    return sum(holder.memory.bytes for holder in holders)


def _name_of_process(process: Holder | Figure) -> str:
    """A process as it is shown, with its number: "python (4711)"."""
    name = process.name
    if not name:
        name = "process"
    return f"{name} ({process.pid})"


def _holder_row(holder: Holder, is_away: bool) -> LedgerRow:
    """A process as a row; ``is_away``: it is not in the process list of this box."""
    remarks = []
    state = {"Z": "a zombie", "D": "waits in the kernel"}.get(holder.state[:1], "")
    if state:
        remarks.append(state)
    elif is_away and not numbered_by_host(holder):
        remarks.append("not in /proc")
    if holder.note:
        remarks.append(holder.note)
    words = _name_of_process(holder)
    if remarks:
        words = f"{words}: {', '.join(remarks)}"
    kind = "other_process"
    if is_away:
        kind = "outside"
    return LedgerRow(kind, words, holder.memory, holder.source, holder.pid)


def _off_by_bytes(holders: list[Holder]) -> int:
    """By how many bytes the sizes of these may be off together; 1 MiB each by default."""
    off_by = table("ledger")["holders"]
    return sum(off_by.get(row.source, MIB) for row in holders if row.memory.ok)
