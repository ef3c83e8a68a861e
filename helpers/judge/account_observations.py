"""What the account of one message decides: a limit, a full card, stranded memory, and whose the
bytes in use are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Tuple

from helpers.ground.units import GIB, Quantity, show_bytes
from helpers.judge.fragmentation import (
    KEPT_BACK_BYTES,
    LIKELY,
    POSSIBLE,
    cache_may_help,
    has_expandable,
)
from helpers.judge.holders import CONTEXT_BYTES, DRIVER_BLOCK_BYTES, NAMED_SHARE
from helpers.judge.message_account import Account
from helpers.judge.message_sums import OWN_SHARE, above, plus

NEAR_END = 0.9
"""A process that holds this share of the card is what fills it; the rest is context and
granules (fragmentation.NEAR_FULL).
"""
OTHER_LIBRARY = 4
"""More than this part of the card, and more than torch holds, is no context: another library of
the same process has it.
"""
SMALL_PART = 50
"""This part of a limit or a card, 2 %, is no more than torch's rounding to whole segments and a
driver's granules: estimated.
"""
REQUEST_PART = 20
"""Free memory that is larger than a request by this part of it, beyond what drivers keep back,
would have held it: estimated.
"""
LARGE_CACHE_PART = 4
LARGE_CACHE_BYTES = GIB // 2
"""Cached memory that no tensor uses is much where it is over this part of what is reserved, and
over this size, which any busy program may have.
"""
ALIKE_PART = 10
"""Ranks of one job differ in size by less than this part: the first also has what is gathered."""
Decided = Tuple[str, int, str]  # evaluated at import, also on Python 3.8
"""An observation's name, its bytes, and what it says; empty for the sentence of
observations.json.
"""


def account_observations(account: Account) -> Iterator[Decided]:
    """Every observation that the sums of a message allow, in the order in which a person would
    check them. Where its own numbers contradict each other, or a limit explains it, only that.
    """
    message = account.message
    total = message.capacity
    free = message.free
    if free and total and above(free, total):
        yield "free-above-total", free.bytes, f"Free is above the total of {total.text}"
    elif message.allowed and _limit_binds(account, message.allowed):
        yield "limit-binds", message.allowed.bytes, ""
    elif message.requested is None:
        yield from _without_request(account)
    else:
        yield from _of_request(account, message.requested)


def _without_request(account: Account) -> Iterator[Decided]:
    """The memory that PyTorch had cached, where the message does not print the request's size:
    then nothing can be compared with it.
    """
    allocated = account.message.allocated
    if account.stranded and account.reserved and allocated:
        says = (
            f"Cached by PyTorch: it had {account.reserved.text} reserved and "
            f"{allocated.text} allocated; the size of the request is not printed"
        )
        yield "request-not-printed", account.stranded.bytes, says


def _of_request(account: Account, requested: Quantity) -> Iterator[Decided]:
    """The request compared with the card, the cache, what is free, and what each process has."""
    message = account.message
    total = message.capacity
    free = message.free
    if total and above(requested, total):
        yield (
            "request-above-card",
            requested.bytes,
            f"One request, above all of {total.text}",
        )
    if account.beyond_limit and message.allocated and account.limit:
        need = message.allocated.bytes + requested.bytes
        yield (
            "beyond-card",
            need,
            f"Allocated and requested, above {account.limit.text}",
        )
    if account.stranded and account.stranded.bytes > 0:
        yield from _of_stranded(account, account.stranded, requested)
    margin = KEPT_BACK_BYTES + requested.bytes // REQUEST_PART
    # Under a limit of its own a process may be refused beside any amount of free memory.
    if free and not message.allowed and free.bytes > requested.bytes + margin:
        says = f"Said to be free, and {requested.text} was refused"
        yield "refused-with-room", free.bytes, says
    if total and account.reserved and above(account.reserved, total):
        says = f"PyTorch has more than the {total.text} of the card: the driver spills to host memory"
        yield "spilled", account.reserved.bytes, says
    elif total and free:
        yield from _of_shares(account, total, free, requested)


def _limit_binds(account: Account, allowed: Quantity) -> bool:
    """Whether the limit of this process refused the request, and not the device: what it had
    reserved and the request reach the limit, and the device had room, or its room is not known.
    """
    requested = account.message.requested
    free = account.message.free
    margin = max(account.tolerance_bytes, allowed.bytes // SMALL_PART)
    if plus(account.reserved, requested).bytes <= allowed.bytes - margin:
        return False  # below the limit by more than rounding
    return requested is None or free is None or not above(requested, free)


def _of_stranded(
    account: Account, stranded: Quantity, requested: Quantity
) -> Iterator[Decided]:
    """Whether the memory that is reserved and unallocated (``stranded``) would have held the
    request, by itself or with what was free; and whether it is much for any program.
    """
    reserved = account.reserved
    free = account.message.free
    if account.fragmentation == LIKELY:
        says = (
            "Still cached after PyTorch released all that it could: enough for the "
            f"{requested.text} requested, if it were in one piece"
        )
        yield "stranded-decides", stranded.bytes, says
    elif account.fragmentation == POSSIBLE:
        says = (
            "Still cached after PyTorch released all that it could: enough for the "
            f"{requested.text} requested, if one piece is large enough, which only a memory snapshot shows"
        )
        yield "stranded-possible", stranded.bytes, says
    elif free and _enough_only_together(account, free, stranded, requested):
        together = show_bytes(free.bytes + stranded.bytes)
        says = (
            f"Cached by PyTorch; together with the {free.text} that is free, it comes to {together}: "
            f"enough for the {requested.text} requested, though neither is enough alone"
        )
        yield "free-and-stranded", stranded.bytes, says
        if has_expandable(account) and cache_may_help(account):
            yield "may-expand", stranded.bytes, ""
    if reserved is None:
        return
    if stranded.bytes > max(reserved.bytes // LARGE_CACHE_PART, LARGE_CACHE_BYTES):
        says = f"A large part of the {reserved.text} reserved"
        yield "stranded-large", stranded.bytes, says


def _enough_only_together(
    account: Account, free: Quantity, stranded: Quantity, requested: Quantity
) -> bool:
    """Whether the free and the stranded memory hold the request together, and free alone does
    not.
    """
    if account.beyond_limit:
        return False
    return above(requested, free) and not above(requested, plus(free, stranded))


def _of_shares(
    account: Account, total: Quantity, free: Quantity, requested: Quantity
) -> Iterator[Decided]:
    """Who uses the card: this process, others, or the message does not say.

    ``outside-most``, ``-decides`` and ``-some`` are about memory of others: more than this
    process has, enough to make room for the request, or more than a context would take.
    """
    if account.this_process is None and account.reserved is None:
        if free.bytes < max(requested.bytes, total.bytes // SMALL_PART):
            says = f"In use of {total.text}, by whom the message does not say"
            yield "unexplained-full", total.bytes - free.bytes, says
        return
    yield from _beside_torch(account, total)
    outside_bytes = plus(account.outside).bytes
    process_bytes = _process_bytes(account, total.bytes - free.bytes - outside_bytes)
    is_nothing = outside_bytes <= account.tolerance_bytes + DRIVER_BLOCK_BYTES
    others_are_small = is_nothing or OWN_SHARE * outside_bytes < process_bytes
    says = (
        f"In use outside this process, of {total.text}; this process has "
        f"{show_bytes(process_bytes)}, and {free.text} is free"
    )
    if outside_bytes > max(total.bytes // 2, process_bytes):
        yield "outside-most", outside_bytes, says
    would_fit_alone = free.bytes < requested.bytes and account.fits_alone
    # Stranded memory, or a need above the whole card, is the reason without any others.
    is_explained = account.fragmentation == LIKELY or account.beyond_limit
    if would_fit_alone and not others_are_small and not is_explained:
        alone = f"if nothing else used the card, {requested.text} would fit"
        yield "outside-decides", outside_bytes, f"{says}; {alone}"
    if outside_bytes > CONTEXT_BYTES // 2:  # more than a common context
        yield "outside-some", outside_bytes, says
    yield from _of_named_others(account, outside_bytes, process_bytes)
    if others_are_small and account.fragmentation != LIKELY:
        yield from _of_own_memory(account, total, free, requested, process_bytes)


def _process_bytes(account: Account, rest_bytes: int) -> int:
    """What this process has: as the driver gives it, else what torch has reserved, or the rest of
    what is in use (``rest_bytes``), which is then its own with its context.
    """
    if account.this_process:
        return account.this_process.bytes
    return max(plus(account.reserved).bytes, rest_bytes)


def _beside_torch(account: Account, total: Quantity) -> Iterator[Decided]:
    """More memory in this process outside torch than a context takes."""
    outside_torch = account.context
    reserved = account.reserved
    if not outside_torch or not reserved:
        return
    if outside_torch.bytes > max(reserved.bytes, total.bytes // OTHER_LIBRARY):
        says = f"In this process beside torch's allocator, which has {reserved.text}"
        yield "beside-torch", outside_torch.bytes, says


def _of_named_others(
    account: Account, outside_bytes: int, process_bytes: int
) -> Iterator[Decided]:
    """Other processes that the message names: whether they have nearly all that is in use outside
    this process, and whether two or more have this one's size, as the ranks of one job have.
    """
    sizes = [size for _, size in account.others]
    named_bytes = plus(*sizes).bytes
    if named_bytes and named_bytes >= NAMED_SHARE * outside_bytes:
        yield "outside-named", named_bytes, ""
    margin = process_bytes // ALIKE_PART
    alike = [size for size in sizes if abs(size.bytes - process_bytes) <= margin]
    if len(alike) >= 2:
        says = f"{len(alike)} other processes of this one's size"
        yield "others-alike", len(alike) * process_bytes, says


def _of_own_memory(
    account: Account,
    total: Quantity,
    free: Quantity,
    requested: Quantity,
    process_bytes: int,
) -> Iterator[Decided]:
    """Whether this process fills the card; not where much of what it has is cached, since that
    might have served the request.
    """
    cached_bytes = max(0, plus(account.stranded).bytes)  # below 0 by rounding alone
    if cached_bytes > max(requested.bytes, process_bytes // LARGE_CACHE_PART):
        return
    if free.bytes + cached_bytes < requested.bytes:
        end = "free and cached memory together were not enough for the request"
    elif 2 * cached_bytes <= process_bytes and process_bytes >= NEAR_END * total.bytes:
        end = "the card is full"
    else:
        return
    # The driver's figure is not printed: only what torch has reserved is surely this process's.
    if account.this_process is None and account.reserved:
        process_bytes = account.reserved.bytes
        rest_bytes = total.bytes - free.bytes - process_bytes
        if rest_bytes > account.tolerance_bytes:
            rest = show_bytes(rest_bytes)
            end = f"{end}; its context, a desktop or others use {rest} more"
    yield "ours-fills", process_bytes, f"Used by this process, of {total.text}: {end}"
