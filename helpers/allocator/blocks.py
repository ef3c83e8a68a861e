"""Blocks of the caching allocator: their sizes, statistics, the sorted sets of free ones, merging.

Each pool has a set of free blocks, sorted by stream, size, number and address, and one of
unmapped blocks, sorted by stream and address. A set is a skip list behind a block that is only
its head. An unmapped block is a part of an expandable segment that has addresses and no memory.
Names and order follow DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.2 to
2.15).

``a`` is the record of the allocator (records.py). ``block_at(a, place)`` reads a block by its
place; the one at NONE stands for no block and sorts behind all others.
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
from helpers.settings.allocator_text import INTERVALS, MIB
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
"""Rows of the table of statistics, behind those of the figures: each figure has a row for each
of POOLS. torch counts blocks and segments of max_split_size_mb or more as oversize.
"""
LARGE, SMALL = range(2)
"""Places of the two default pools; those of private pool k are at 2 * k + LARGE and + SMALL."""
BEFORE_ALL = -1
"""A number or an address that sorts before those of all blocks."""
COUNTERS = tuple(
    "num_alloc_retries num_ooms num_device_alloc num_device_free num_sync_all_streams num_oom_rejections".split()
)
STATES = ("I", "A", "P")  # of a block: free, allocated, awaiting events
INACTIVE, LIVE, PENDING = range(len(STATES))


def round_size(n: int, divisions: Sequence[int]) -> int:
    """round_size of the source: ``n`` bytes rounded up to whole 512 B. With the option
    roundup_power2_divisions, ``n`` is rounded up to whole parts of the power of two below it, of
    which the option says how many there are.

    ``divisions``: as Settings.roundup_divisions, entry k for sizes from 2^k MiB up.
    """
    if n < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    interval = max(bit_length(n) - bit_length(MIB), 0)
    parts = divisions[min(interval, INTERVALS - 1)]
    # Below this size the parts would be smaller than a block can be.
    if parts > 1 and n > MIN_BLOCK_BYTES * parts:
        if n & (n - 1) == 0:  # a power of two
            return n
        # The power of two below ``n``, divided by ``parts``, which is one itself.
        step = 1 << (bit_length(n) - bit_length(parts))
        return round_up(n, step)
    return round_up(n, MIN_BLOCK_BYTES)


def bit_length(n: int) -> int:
    """int.bit_length, which numba does not compile."""
    bits = 0
    while n:
        n >>= 1
        bits += 1
    return bits


def add_to_stat(a: Allocator, row: int, amount: int) -> None:
    """Change a statistic of torch.cuda.memory_stats, by its row in the table of them.

    ``stat.allocated`` sums up the increases only: torch reports them, and the decreases follow
    from them and the current value.
    """
    stat = stat_at(a, row)
    stat.current += amount
    if amount > 0:
        stat.peak = max(stat.peak, stat.current)
        stat.allocated += amount


def add_to_figure(a: Allocator, small: int, figure: int, amount: int) -> None:
    """Change a figure of NAMES, for all pools together and for the small (1) or large ones (0)."""
    row_of_all = len(POOLS) * figure
    add_to_stat(a, row_of_all, amount)
    row_of_large = row_of_all + 2  # the order of POOLS
    add_to_stat(a, row_of_large - small, amount)


def segment_size(rounded: int, large_segment_bytes: int) -> int:
    """get_allocation_size: the bytes of a new segment for a request of ``rounded`` bytes. A segment
    of the small pool has 2 MiB. One of the large pool has ``large_segment_bytes``, or for a request
    of 10 MiB or more the request's size rounded up to 2 MiB.
    """
    if rounded <= SMALL_MAX_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_BYTES:
        return large_segment_bytes
    return round_up(rounded, LARGE_STEP_BYTES)


def count_allocated(a: Allocator, block: Block, sign: int) -> None:
    """Count a block as allocated (sign 1), or no longer (-1)."""
    add_to_figure(a, is_small(a, block), ALLOCATION, sign)
    add_to_figure(a, is_small(a, block), ALLOCATED_BYTES, sign * block.size)


def count_active(a: Allocator, block: Block, sign: int) -> None:
    """Count a block as active (sign 1), or as no longer active (sign -1).

    In torch's words a block is active while it is allocated, and also after its free for as long as
    it awaits events of other streams, since it cannot be handed out again before these.
    """
    small = is_small(a, block)
    add_to_figure(a, small, ACTIVE, sign)
    add_to_figure(a, small, ACTIVE_BYTES, sign * block.size)
    add_to_figure(a, small, REQUESTED_BYTES, sign * block.requested)


def count_split(a: Allocator, block: Block, count: int, size: int) -> None:
    """Count free blocks that are only a part of their segment (inactive_split in torch):
    ``count`` more of them, and ``size`` more bytes. Both may be negative.

    ``block``: any block of the segment. torch leaves out the blocks of expandable segments.
    """
    if not is_expandable(a, block):
        add_to_figure(a, is_small(a, block), INACTIVE_SPLIT, count)
        add_to_figure(a, is_small(a, block), INACTIVE_SPLIT_BYTES, size)


def count_reserved(a: Allocator, small: int, segments: int, size: int) -> None:
    """Count memory that the card gave, or with negative numbers got back.

    ``segments``: how many segments of cudaMalloc it is; 0 for pages of an expandable segment, of
    which torch counts the bytes only.
    """
    a.mapped_bytes += size
    if segments:
        add_to_figure(a, small, SEGMENTS, segments)
    add_to_figure(a, small, RESERVED_BYTES, size)


def conf(a: Allocator) -> Setting:
    """The settings that hold at present."""
    return setting_at(a, a.setting)


def new_segment(a: Allocator, address: int, size: int, page_bytes: int) -> Segment:
    """The record of a segment of one cudaMalloc (page_bytes 0), or of a reserved range of
    addresses, whose pages have ``page_bytes``.
    """
    segment = fresh(a, segment_at)
    a.segment_last = max(a.segment_last, segment.at)
    # Up to 2.11 all have the number 0, so that among blocks of one size addresses decide.
    segment.number = 0
    if a.order != BY_ADDRESS:
        a.numbers += 1
        segment.number = a.numbers
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
    """Give up the record of a segment, so that another segment may use it."""
    segment.size = 0  # by which driver.recorded_address tells that it is gone
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
    """A new block in the segment and the pool of another block, without neighbours.

    Its number decides between free blocks of one size. In torch 2.12 each block has a number of its
    own; in other releases it has that of its segment (Behaviour.order).
    """
    segment = segment_at(a, block.segment)
    piece = new_block(a, segment, block.pool, block.stream, address, size)
    if a.order == BY_BLOCK:
        a.numbers += 1
        piece.number = a.numbers
    return piece


def drop_block(a: Allocator, block: Block) -> None:
    """Give up the record of a block, so that another block may use it."""
    block.used = 0
    a.block_count -= 1
    drop(a, block_at, block)


def splice(a: Allocator, block: Block, before: int, after: int) -> None:
    """Put a block between two neighbours, given by their places; NONE where it is the first or the
    last block of its segment.
    """
    block.prev = before
    block.next = after
    if before != NONE:
        block_at(a, before).next = block.at
    if after != NONE:
        block_at(a, after).prev = block.at


def is_split(block: Block) -> bool:
    """Whether a block is only a part of its segment."""
    return block.prev != NONE or block.next != NONE


def is_small(a: Allocator, block: Block) -> int:
    """1 for a block of a small pool, 0 for one of a large pool."""
    return pool_at(a, block.pool).small


def is_expandable(a: Allocator, block: Block) -> int:
    """1 for a block in an expandable segment, else 0."""
    return segment_at(a, block.segment).expandable


def is_whole_segment(a: Allocator, block: Block) -> bool:
    """Whether a block is all that one cudaMalloc gave, so that cudaFree can give it back."""
    return not is_split(block) and not is_expandable(a, block)


def available(block: Block) -> bool:
    """Whether a block can be taken or merged: it is not allocated and awaits no event. False for
    the one at NONE.
    """
    return block.allocated == 0 and block.event_count == 0 and block.uses == NONE


def precedes(block: Block, stream: int, size: int, number: int, address: int) -> bool:
    """Whether a block of a set comes before a block with these values: by stream, then size, then
    number, then address. Unmapped blocks are sorted by stream and address alone.
    """
    if block.stream != stream:
        return block.stream < stream
    if block.mapped and block.size != size:
        return block.size < size
    if block.mapped and block.number != number:
        return block.number < number
    return block.address < address


def precedes_size(block: Block, stream: int, size: int) -> bool:
    """Whether a block of a set comes before all blocks of a stream with at least this size."""
    return precedes(block, stream, size, BEFORE_ALL, BEFORE_ALL)


def lower_bound(
    a: Allocator, head: int, stream: int, size: int, number: int, address: int
) -> Block:
    """The first block of a set that does not precede these values; the one at NONE where all blocks
    precede them.

    ``head``: the place of the set's head. Leaves in ``a.path``, for each level of the skip list,
    the place of the last block that precedes the values; insert and erase change the links of
    these blocks.
    """
    block = block_at(a, head)
    for level in range(a.levels - 1, -1, -1):
        after = block_at(a, block.forward[level])
        while precedes(after, stream, size, number, address):
            block = after
            after = block_at(a, after.forward[level])
        a.path[level] = block.at
    return block_at(a, block.forward[0])


def first_of_size(a: Allocator, head: int, stream: int, size: int) -> Block:
    """The first block of a set that has this stream and at least this size (of unmapped blocks the
    size decides nothing); a block of another stream where there is none.
    """
    return lower_bound(a, head, stream, size, BEFORE_ALL, BEFORE_ALL)


def head_of_set(a: Allocator, block: Block) -> int:
    """The place of the head of the set to which a free or unmapped block belongs."""
    pool = pool_at(a, block.pool)
    if block.mapped:
        return pool.free
    return pool.unmapped


def insert(a: Allocator, block: Block) -> None:
    """Put a free or unmapped block into its set: into level 0 of the skip list, and with a chance
    of one in four into each further level.
    """
    head = head_of_set(a, block)
    lower_bound(a, head, block.stream, block.size, block.number, block.address)
    block.gc_base = pool_at(a, block.pool).get_calls
    # The example of rand in the C standard, which also leaves out the low bits: they repeat soon.
    a.chance = (a.chance * 1103515245 + 12345) & 0x7FFFFFFF
    chance = a.chance >> 8
    level = 0
    while level < LEVELS:
        if level == a.levels:  # the first block on this level, in any set
            a.path[level] = head
            a.levels += 1
        before = block_at(a, a.path[level])
        block.forward[level] = before.forward[level]
        before.forward[level] = block.at
        if chance & 3:  # three times in four
            return
        level = level + 1
        chance = chance >> 2


def erase(a: Allocator, block: Block) -> None:
    """Take a block out of its set. If it is not there, the replay ends (BROKEN)."""
    first = lower_bound(
        a,
        head_of_set(a, block),
        block.stream,
        block.size,
        block.number,
        block.address,
    )
    if first.at != block.at:
        a.status = BROKEN
        return
    for level in range(a.levels):
        before = block_at(a, a.path[level])
        if before.forward[level] != block.at:  # the block does not reach this level
            return
        before.forward[level] = block.forward[level]


def after_in_set(a: Allocator, block: Block) -> Block:
    """The next block of the set; the first one behind the set's head."""
    return block_at(a, block.forward[0])


def try_merge(a: Allocator, block: Block, other: Block) -> int:
    """Merge a neighbour into a block if it is free and both are mapped or both unmapped. Returns
    the neighbour's bytes. Returns 0 where the neighbour stays as it is: it is in use, or the other
    of the two has no memory, or there is no neighbour (``other`` is the block at NONE).
    """
    if not available(other) or other.mapped != block.mapped:
        return 0
    erase(a, other)
    if a.status != FINE:  # it was not in its set, and the replay ends
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


def merge_and_insert(a: Allocator, block: Block) -> tuple[int, int]:
    """Merge a block with its free neighbours and put it into its set. Returns how many neighbours
    those were, and their bytes.
    """
    count = 0
    size = 0
    for neighbour in (block.prev, block.next):
        merged_bytes = try_merge(a, block, block_at(a, neighbour))
        if merged_bytes:
            count += 1
            size += merged_bytes
    insert(a, block)
    return count, size


def free_block(a: Allocator, block: Block) -> None:
    """Put a block that nothing uses any more into the set of free blocks."""
    count_active(a, block, -1)
    merged_count, merged_bytes = merge_and_insert(a, block)
    # Each neighbour was a free part of the segment. Now the merged block is, or the whole segment
    # is free, which does not count as split.
    count = -merged_count
    size = -merged_bytes
    if is_split(block):
        count += 1
        size += block.size
    count_split(a, block, count, size)
