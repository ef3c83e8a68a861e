"""Blocks of the caching allocator: their sizes, statistics, the sorted sets of free ones, merging.

The sets are skip lists in the order of stream, size, number and address, those of unmapped
blocks of stream and address. Names and order follow DeviceCachingAllocator in
c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.2 to 2.15).
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.allocator.driver import round_up
from helpers.allocator.records import (
    BROKEN,
    BY_ADDRESS,
    BY_BLOCK,
    FINE,
    LEVELS,
    NONE,
    Allocator,
    Block,
    Segment,
    Setting,
    block_at,
    drop,
    fresh,
    pool_at,
    segment_at,
    setting_at,
    stat_at,
)
from helpers.settings.allocator_text import INTERVALS
from helpers.settings.in_force import (
    LARGE_STEP_BYTES,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SMALL_MAX_BYTES,
    SMALL_SEGMENT_BYTES,
)

NAMES = tuple(
    "allocated_bytes reserved_bytes active_bytes requested_bytes inactive_split_bytes allocation active segment "
    "inactive_split".split()
)
"""Figures of torch.cuda.memory_stats in the order of a row of the timeline."""
ALLOCATED_BYTES, RESERVED_BYTES, ACTIVE_BYTES, REQUESTED_BYTES, INACTIVE_SPLIT_BYTES = (
    range(5)
)
ALLOCATION, ACTIVE, SEGMENTS, INACTIVE_SPLIT = range(5, len(NAMES))
POOLS = ("all", "small_pool", "large_pool")
OVERSIZE_ALLOCATIONS, OVERSIZE_SEGMENTS = range(3 * len(NAMES), 3 * len(NAMES) + 2)
COUNTERS = tuple(
    "num_alloc_retries num_ooms num_device_alloc num_device_free num_sync_all_streams num_oom_rejections".split()
)
STATES = ("I", "A", "P")  # of a block: free, allocated, awaiting events
INACTIVE, LIVE, PENDING = range(len(STATES))


def round_size(n: int, divisions: Sequence[int]) -> int:
    """round_size in CUDACachingAllocator.cpp: up to whole 512 B, or to a division of the power
    of two below.
    """
    if n < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    parts = divisions[min(max(bit_length(n) - 21, 0), INTERVALS - 1)]
    if parts > 1 and n > MIN_BLOCK_BYTES * parts:
        if n & (n - 1) == 0:
            return n
        step = 1 << (bit_length(n) - bit_length(parts))
        return round_up(n, step)
    return round_up(n, MIN_BLOCK_BYTES)


def bit_length(n: int) -> int:
    bits = 0
    while n:
        n >>= 1
        bits += 1
    return bits


def segment_size(rounded: int, large_segment_bytes: int) -> int:
    """get_allocation_size: the small pool's 2 MiB, the large pool's, or from 10 MiB up the size
    in steps of 2 MiB.
    """
    if rounded <= SMALL_MAX_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_BYTES:
        return large_segment_bytes
    return round_up(rounded, LARGE_STEP_BYTES)


def add(a: Allocator, row: int, amount: int) -> None:
    stat = stat_at(a, row)
    stat.current += amount
    if amount > 0:
        stat.peak = max(stat.peak, stat.current)
        stat.allocated += amount


def change(a: Allocator, small: int, figure: int, amount: int) -> None:
    """Add to a figure, for all pools together and for the small or large ones."""
    add(a, len(POOLS) * figure, amount)
    add(a, len(POOLS) * figure + 2 - small, amount)


def count_allocated(a: Allocator, block: Block, sign: int) -> None:
    change(a, is_small(a, block), ALLOCATION, sign)
    change(a, is_small(a, block), ALLOCATED_BYTES, sign * block.size)


def count_active(a: Allocator, block: Block, sign: int) -> None:
    """Allocated, or freed and awaiting events."""
    small = is_small(a, block)
    change(a, small, ACTIVE, sign)
    change(a, small, ACTIVE_BYTES, sign * block.size)
    change(a, small, REQUESTED_BYTES, sign * block.requested)


def count_split(a: Allocator, block: Block, count: int, size: int) -> None:
    """Free blocks beside others of their cudaMalloc segment; expandable ones are left out."""
    if not is_expandable(a, block):
        change(a, is_small(a, block), INACTIVE_SPLIT, count)
        change(a, is_small(a, block), INACTIVE_SPLIT_BYTES, size)


def count_reserved(a: Allocator, small: int, segments: int, size: int) -> None:
    """Memory that the card gave (a segment, or with 0 of them pages), or got back."""
    a.mapped_bytes += size
    if segments:
        change(a, small, SEGMENTS, segments)
    change(a, small, RESERVED_BYTES, size)


def conf(a: Allocator) -> Setting:
    """The settings that hold at present."""
    return setting_at(a, a.setting)


def new_segment(a: Allocator, address: int, size: int, page_bytes: int) -> Segment:
    """A segment of one cudaMalloc, or with page_bytes a range that is reserved."""
    segment = fresh(a, segment_at)
    a.segment_last = max(a.segment_last, segment.at)
    a.numbers += 1
    segment.number = 0 if a.order == BY_ADDRESS else a.numbers
    segment.address = address
    segment.size = size
    segment.page_bytes = page_bytes
    if page_bytes:
        segment.expandable = 1
        segment.ordinal = a.reserves
        a.reserves += 1
    else:
        segment.expandable = 0
        segment.ordinal = a.mallocs
        a.mallocs += 1
    return segment


def drop_segment(a: Allocator, segment: Segment) -> None:
    segment.size = 0
    drop(a, segment_at, segment)


def new_block(
    a: Allocator, segment: Segment, pool: int, stream: int, address: int, size: int
) -> Block:
    """A free and mapped block without neighbours."""
    block = fresh(a, block_at)
    a.block_count += 1
    block.segment = segment.at
    block.pool = pool
    block.stream = stream
    block.address = address
    block.size = size
    block.number = segment.number
    block.requested = 0
    block.prev = block.next = block.uses = NONE
    block.allocated = block.event_count = block.gc_base = 0
    block.used = block.mapped = 1
    return block


def piece_of(a: Allocator, block: Block, address: int, size: int) -> Block:
    """A new block beside one of the same segment.

    It takes the next number of all (2.12), or its segment's (2.13 on).
    """
    segment = segment_at(a, block.segment)
    piece = new_block(a, segment, block.pool, block.stream, address, size)
    if a.order == BY_BLOCK:
        a.numbers += 1
        piece.number = a.numbers
    return piece


def drop_block(a: Allocator, block: Block) -> None:
    block.used = 0
    a.block_count -= 1
    drop(a, block_at, block)


def splice(a: Allocator, block: Block, before: int, after: int) -> None:
    """Put a block between two neighbours, given by their places."""
    block.prev = before
    block.next = after
    if before != NONE:
        block_at(a, before).next = block.at
    if after != NONE:
        block_at(a, after).prev = block.at


def is_split(block: Block) -> bool:
    return block.prev != NONE or block.next != NONE


def is_small(a: Allocator, block: Block) -> int:
    return pool_at(a, block.pool).small


def is_expandable(a: Allocator, block: Block) -> int:
    return segment_at(a, block.segment).expandable


def available(block: Block) -> bool:
    """Free to be taken or merged: not allocated and nothing pending on it."""
    return block.allocated == 0 and block.event_count == 0 and block.uses == NONE


def precedes(block: Block, stream: int, size: int, number: int, address: int) -> bool:
    if block.stream != stream:
        return block.stream < stream
    if block.mapped and block.size != size:
        return block.size < size
    if block.mapped and block.number != number:
        return block.number < number
    return block.address < address


def lower_bound(
    a: Allocator, head: int, stream: int, size: int, number: int, address: int
) -> Block:
    """The first block of the set that does not precede these; a.path then has the last that
    does, for each level.
    """
    block = block_at(a, head)
    for level in range(a.levels - 1, -1, -1):
        after = block_at(a, block.forward[level])
        while precedes(after, stream, size, number, address):
            block = after
            after = block_at(a, after.forward[level])
        a.path[level] = block.at
    return block_at(a, block.forward[0])


def set_of(a: Allocator, block: Block) -> int:
    """The place in front of the set that a free or unmapped block belongs in."""
    pool = pool_at(a, block.pool)
    return pool.free if block.mapped else pool.unmapped


def insert(a: Allocator, block: Block) -> None:
    """Put a free or unmapped block into its set; it stands on one level more with a chance of
    one in four.
    """
    head = set_of(a, block)
    lower_bound(a, head, block.stream, block.size, block.number, block.address)
    block.gc_base = pool_at(a, block.pool).get_calls
    a.chance = (a.chance * 1103515245 + 12345) & 0x7FFFFFFF
    level = 0
    chance = a.chance >> 8
    while level < LEVELS:
        if level == a.levels:
            a.path[level] = head
            a.levels += 1
        before = block_at(a, a.path[level])
        block.forward[level] = before.forward[level]
        before.forward[level] = block.at
        if chance & 3:
            return
        level = level + 1
        chance = chance >> 2


def erase(a: Allocator, block: Block) -> None:
    """Take a block out of its set; one that is not there tears the replay."""
    first = lower_bound(
        a, set_of(a, block), block.stream, block.size, block.number, block.address
    )
    if first.at != block.at:
        a.status = BROKEN
        return
    for level in range(a.levels):
        before = block_at(a, a.path[level])
        if before.forward[level] != block.at:
            return
        before.forward[level] = block.forward[level]


def after_in_set(a: Allocator, block: Block) -> Block:
    return block_at(a, block.forward[0])


def try_merge(a: Allocator, block: Block, other: Block) -> int:
    """Swallow a neighbour that is free and as mapped as the block: its bytes, or 0."""
    if other.at == NONE or not available(other) or other.mapped != block.mapped:
        return 0
    erase(a, other)
    if a.status != FINE:
        return 0
    if block.prev == other.at:
        block.address = other.address
        splice(a, block, other.prev, block.next)
    else:
        splice(a, block, block.prev, other.next)
    size = other.size
    block.size += size
    drop_block(a, other)
    return size


def free_block(a: Allocator, block: Block) -> None:
    """Merge a block with its free neighbours and put it into its pool."""
    count_active(a, block, -1)
    before = try_merge(a, block, block_at(a, block.prev))
    after = try_merge(a, block, block_at(a, block.next))
    insert(a, block)
    count = -int(before > 0) - int(after > 0)
    size = -before - after
    if is_split(block):
        count += 1
        size += block.size
    count_split(a, block, count, size)
