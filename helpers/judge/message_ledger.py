"""The ledger of an out-of-memory message, and what it says beside that of the driver."""

from __future__ import annotations

from dataclasses import replace

from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.units import Quantity
from helpers.judge.contradictions import TOTALS_AGREE
from helpers.judge.failing_card import card_of, is_total_of_slice
from helpers.judge.holders import is_itself
from helpers.judge.ledger_rows import MESSAGE, GpuLedger, LedgerRow, with_rest
from helpers.judge.message_account import Account
from helpers.judge.message_sums import MessageSums, sums_of
from helpers.look.gpus import Gpu
from helpers.look.message import Message

SAID = "the error message"


def add_message(
    books: dict[str, list[GpuLedger]], account: Account, cards: tuple[Gpu, ...]
) -> None:
    """Put the ledger of a message into ``books``, which has the ledgers of each GPU by its PCI
    address: behind the driver's ledger of the GPU or MIG device that the message is about, at the
    end where several MIG devices may be it, and under "" where the GPU is not known.
    """
    card = card_of(account.message, cards)
    book = _of_message(account, card)
    if book is None:
        return
    if card is None:
        books.setdefault("", []).append(book)
        return
    memories = books[card.pci]
    fitting = [memory for memory in memories if _may_be_of(memory, account.message)]
    if len(fitting) != 1:
        memories.append(book)
        return
    of_driver = fitting[0]
    # A message names no MIG device, so its ledger takes the name from the driver's.
    compared = replace(_compared(book, of_driver, card), part=of_driver.part)
    place = memories.index(of_driver)
    memories[place] = _split(of_driver, account.message)
    memories.insert(place + 1, compared)


def _may_be_of(book: GpuLedger, message: Message) -> bool:
    """Whether a ledger of the driver may count the memory that a message is about."""
    if not book.part or message.capacity is None:
        return True
    return is_total_of_slice(book.total, message.capacity)


def _of_message(account: Account, gpu: Gpu | None) -> GpuLedger | None:
    """The ledger of a message; None where the message gives no amounts. ``gpu`` is the GPU that
    it is about, None where that is not known.
    """
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
        words = "another process that the message names"
        if pid is not None:
            words += f": {pid}"
        rows.append(LedgerRow("other_process", words, _said(size, ""), SAID))
    pci = ""
    if gpu is not None:
        pci = gpu.pci
    book = GpuLedger(
        pci=pci,
        account=MESSAGE,
        total=_said(message.capacity, "capacity"),
        used=used,
        rows=tuple(rows),
        tolerance_bytes=account.tolerance_bytes,
        contradictions=account.contradictions,
    )
    rest = "this process outside torch, others, or no owner: the message does not say"
    if account.this_process:
        rest = "others, or no owner: the message counts only what it names"
    return with_rest(book, rest)


def _own_rows(sums: MessageSums, name: str = "this process") -> list[LedgerRow]:
    """Rows of the failing process, called ``name``: allocated, cached, and the rest of it (context,
    libraries).
    """
    message = sums.message
    parts: list[tuple[str, Reading]] = []
    if message.allocated:
        words = f"{name}: tensors"
        if message.private_pools:
            words += f" (including {message.private_pools.text} in private pools)"
        parts.append((words, _said(message.allocated, "allocated")))
    if sums.stranded is not None:
        size = max(0, sums.stranded.bytes)
        cached = seen(size, "bytes", f"{SAID}: reserved but unallocated")
        parts.append((f"{name}: cached by torch and unused", cached))
    elif sums.reserved and not message.allocated:
        reserved = _said(sums.reserved, "reserved")
        parts.append((f"{name}: reserved by torch", reserved))
    rest = sums.this_process
    if sums.reserved:
        rest = sums.context
    # What is left of the process beside torch is below 0 where both were counted apart.
    if rest and (rest.bytes > 0 or not parts):
        words = name
        if parts:
            words += ": context and libraries"
        outside_torch = seen(rest.bytes, "bytes", f"{SAID}: this process - torch")
        parts.append((words, outside_torch))
    return [LedgerRow("process", words, reading, SAID) for words, reading in parts]


def _split(of_driver: GpuLedger, message: Message) -> GpuLedger:
    """The driver's ledger with the parts of the failing program in place of the holder that has
    its size; unchanged where no holder, or more than one, has it.
    """
    if message.process is None or not message.allocated:
        return of_driver
    holders = [
        row
        for row in of_driver.rows
        if row.kind in ("other_process", "outside") and row.bytes.ok
    ]
    fitting = [row for row in holders if is_itself(row.bytes.bytes, message.process)]
    if len(fitting) != 1:
        return of_driver
    holder = fitting[0]
    # Of the message only what torch counts: the driver's figure of the process is the holder's.
    sums = sums_of(replace(message, process=None, non_torch=None, others=(), pids=()))
    parts = _own_rows(sums, holder.words)
    left_bytes = holder.bytes.bytes - sum(row.bytes.bytes for row in parts)
    # torch has more than the holder: another process happens to have the same size.
    if left_bytes < -sums.tolerance_bytes:
        return of_driver
    parts = [replace(row, pid=holder.pid) for row in parts if row.bytes.bytes]
    if left_bytes > 0:
        source = f"{holder.source} less torch's parts"
        reading = seen(left_bytes, "bytes", source, holder.bytes.item)
        words = f"{holder.words}: context and libraries"
        parts.append(LedgerRow("process", words, reading, source, holder.pid))
    rows: list[LedgerRow] = []
    for row in of_driver.rows:
        if row is holder:
            rows += parts
        else:
            rows.append(row)
    return replace(
        of_driver,
        rows=tuple(rows),
        tolerance_bytes=of_driver.tolerance_bytes + sums.tolerance_bytes,
    )


def _compared(of_message: GpuLedger, of_driver: GpuLedger, gpu: Gpu) -> GpuLedger:
    """The ledger of a message beside what was captured: with a contradiction where every captured
    total differs from the message's capacity, and with a note where another amount was in use at
    the failure than at the capture, the driver's own reserve not counted.
    """
    margin = of_message.tolerance_bytes + of_driver.tolerance_bytes + TOTALS_AGREE
    total = of_message.total
    pools = [
        pool
        for pool in gpu.pools
        if pool.layer in ("torch", "KFD bank") and pool.total.ok
    ]
    differ = all(abs(pool.total.bytes - total.bytes) > margin for pool in pools)
    if total.ok and pools and differ:
        totals = " and ".join(f"{pool.layer} {pool.total.show()}" for pool in pools)
        odd = (
            f"the message's capacity is {total.show()}; the capture has {totals}: another GPU "
            "or another boot"
        )
        of_message = replace(
            of_message, contradictions=(*of_message.contradictions, odd)
        )
    at_failure = of_message.used
    at_capture = of_driver.used
    used_by_programs = at_capture.bytes - of_driver.sum_bytes("reserved")
    more_bytes = at_failure.bytes - used_by_programs
    # HIP's free leaves out graphics memory, so there the message may well have less in use.
    is_less = gpu.vendor == "NVIDIA" and more_bytes < -margin
    if at_failure.ok and at_capture.ok and (more_bytes > margin or is_less):
        note = (
            f"In use at the failure, by the message: {at_failure.show()}; at the capture, by the "
            f"driver: {at_capture.show()}."
        )
        of_message = replace(of_message, notes=(*of_message.notes, note))
    return of_message


def _said(quantity: Quantity | None, figure: str) -> Reading:
    """A number of the message as a reading; ``figure`` is what it is called where it is missing."""
    if quantity is None:
        return not_available(f"the message gives no {figure}", "bytes", SAID)
    return seen(quantity.bytes, "bytes", f"{SAID}: {quantity.text}")
