"""What the account of one message decides: a limit, a full card, stranded memory, and whose the
bytes in use are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Tuple

from helpers.ground.units import GIB, MIB, Quantity, show_bytes
from helpers.judge.fragmentation import LIKELY, POSSIBLE, cache_may_help, has_expandable
from helpers.judge.holders import CONTEXT_BYTES, NAMED_SHARE
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
Decided = Tuple[str, int, str]  # made when imported, also on Python 3.8
"""An observation's name, its bytes, and what it says; empty for the sentence of
observations.json.
"""


def account_observations(account: Account) -> Iterator[Decided]:
    """Every observation, in the order in which a person would check them."""
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
    """What PyTorch had cached, where the message does not print the size of the request."""
    allocated = account.message.allocated
    if account.stranded and account.reserved and allocated:
        says = (
            f"Cached by PyTorch: it had {account.reserved.text} reserved and "
            f"{allocated.text} allocated; the size of the request is not printed"
        )
        yield "request-not-printed", account.stranded.bytes, says


def _of_request(account: Account, requested: Quantity) -> Iterator[Decided]:
    """The request against the card, the cache, what is free, and what each process has."""
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
    kept_back = 64 * MIB + requested.bytes // 20
    if free and not message.allowed and free.bytes > requested.bytes + kept_back:
        says = f"Said to be free, and {requested.text} was refused"
        yield "refused-with-room", free.bytes, says
    if total and account.reserved and above(account.reserved, total):
        says = f"PyTorch has more than the {total.text} of the card: the driver spills to host memory"
        yield "spilled", account.reserved.bytes, says
    elif total and free:
        yield from _of_shares(account, total, free, requested)


def _limit_binds(account: Account, allowed: Quantity) -> bool:
    """Whether what this process is allowed refused the request, and not the device."""
    requested = account.message.requested
    free = account.message.free
    margin = max(account.tolerance_bytes, allowed.bytes // 50)
    if plus(account.reserved, requested).bytes <= allowed.bytes - margin:
        return False
    return requested is None or free is None or not above(requested, free)


def _of_stranded(
    account: Account, stranded: Quantity, requested: Quantity
) -> Iterator[Decided]:
    """What is reserved and unallocated, and whether it would have held the request."""
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
    elif (
        free
        and not account.beyond_limit
        and _together_enough(free, stranded, requested)
    ):
        together = show_bytes(free.bytes + stranded.bytes)
        says = (
            f"Cached by PyTorch; together with the {free.text} that is free, it comes to {together}: "
            f"enough for the {requested.text} requested, though neither is enough alone"
        )
        yield "free-and-stranded", stranded.bytes, says
        if has_expandable(account) and cache_may_help(account):
            yield "may-expand", stranded.bytes, ""
    if reserved and stranded.bytes > max(reserved.bytes // 4, GIB // 2):
        yield (
            "stranded-large",
            stranded.bytes,
            f"A large part of the {reserved.text} reserved",
        )


def _together_enough(free: Quantity, stranded: Quantity, requested: Quantity) -> bool:
    """Whether free and stranded hold the request together, and free does not alone."""
    return above(requested, free) and not above(requested, plus(free, stranded))


def _of_shares(
    account: Account, total: Quantity, free: Quantity, requested: Quantity
) -> Iterator[Decided]:
    """Whose the bytes in use are: this process's, others', or the message does not say."""
    if account.this_process is None and account.reserved is None:
        if free.bytes < max(requested.bytes, total.bytes // 50):
            says = f"In use of {total.text}, by whom the message does not say"
            yield "unexplained-full", total.bytes - free.bytes, says
        return
    yield from _beside_torch(account, total)
    outside = plus(account.outside).bytes
    # Where the message does not give this process, what is left with its context is its own.
    process = max(plus(account.reserved).bytes, total.bytes - free.bytes - outside)
    if account.this_process:
        process = account.this_process.bytes
    others_are_small = (
        outside <= account.tolerance_bytes + 2 * MIB or OWN_SHARE * outside < process
    )
    says = (
        f"In use outside this process, of {total.text}; this process has {show_bytes(process)}, "
        f"and {free.text} is free"
    )
    if outside > max(total.bytes // 2, process):
        yield "outside-most", outside, says
    would_fit_alone = free.bytes < requested.bytes and account.fits_alone
    is_explained = account.fragmentation == LIKELY or account.beyond_limit
    if would_fit_alone and not others_are_small and not is_explained:
        alone = f"if nothing else used the card, {requested.text} would fit"
        yield "outside-decides", outside, f"{says}; {alone}"
    if outside > CONTEXT_BYTES // 2:
        yield "outside-some", outside, says
    yield from _of_named_others(account, outside, process)
    if others_are_small and account.fragmentation != LIKELY:
        yield from _of_own_memory(account, total, free, requested, process)


def _beside_torch(account: Account, total: Quantity) -> Iterator[Decided]:
    """More in this process than a context takes, that torch does not hold."""
    if not account.context or not account.reserved:
        return
    if account.context.bytes > max(
        account.reserved.bytes, total.bytes // OTHER_LIBRARY
    ):
        says = f"In this process beside torch's allocator, which has {account.reserved.text}"
        yield "beside-torch", account.context.bytes, says


def _of_named_others(account: Account, outside: int, process: int) -> Iterator[Decided]:
    """Other processes that the message names: whether they explain what is in use outside this
    one, of so many bytes, and whether they are of its size.
    """
    named = plus(*(size for _, size in account.others)).bytes
    if named and named >= NAMED_SHARE * outside:
        yield "outside-named", named, ""
    alike = [
        size for _, size in account.others if abs(size.bytes - process) <= process // 10
    ]
    if len(alike) >= 2:
        says = f"{len(alike)} other processes of this one's size"
        yield "others-alike", len(alike) * process, says


def _of_own_memory(
    account: Account, total: Quantity, free: Quantity, requested: Quantity, process: int
) -> Iterator[Decided]:
    """Whether this process, of so many bytes, fills the card."""
    stranded = max(0, plus(account.stranded).bytes)
    if stranded > max(requested.bytes, process // 4):
        return
    if free.bytes + stranded < requested.bytes:
        end = "free and cached memory together were not enough for the request"
    # Most of it is cached: whether that could have served the request is open.
    elif 2 * stranded <= process and process >= NEAR_END * total.bytes:
        end = "the card is full"
    else:
        return
    if account.this_process is None and account.reserved:
        rest_bytes = total.bytes - free.bytes - account.reserved.bytes
        if rest_bytes > account.tolerance_bytes:
            rest = show_bytes(rest_bytes)
            end = f"{end}; its context, a desktop or others use {rest} more"
        process = account.reserved.bytes
    yield "ours-fills", process, f"Used by this process, of {total.text}: {end}"
