"""The caching allocator of one device: which block a request takes, what is tried when there is
none, and what goes back to the card.

``a`` is the record of the allocator (records.py). ``block_at(a, place)`` reads a block by its
place; a function that has no block to return gives the one at NONE. Pools are named by their
places, too: see LARGE and SMALL.

It follows DeviceCachingAllocator (c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.2 to 2.15) call
for call: which block is taken, split, merged, given back, and in which order the card is asked.
What a release does differently, and on which releases and builds this was proved event by event
against the compiled allocator (tests/oracle), stands in helpers/settings/torch.json.
"""

from __future__ import annotations

from helpers.allocator.blocks import (
    LARGE,
    OVERSIZE_ALLOCATIONS,
    OVERSIZE_SEGMENTS,
    SMALL,
    add_to_stat,
    after_in_set,
    conf,
    count_active,
    count_allocated,
    count_reserved,
    count_split,
    drop_block,
    drop_segment,
    erase,
    first_of_size,
    insert,
    is_expandable,
    is_small,
    is_split,
    is_whole_segment,
    new_block,
    new_segment,
    piece_of,
    precedes_size,
    round_size,
    segment_size,
    splice,
)
from helpers.allocator.driver import cuda_free, cuda_malloc
from helpers.allocator.events import (
    free_completed_blocks,
    synchronize_and_free_events,
)
from helpers.allocator.expandable import allocate_expandable, reach, unmap_block
from helpers.allocator.records import (
    BROKEN,
    FINE,
    NO_LIMIT,
    NONE,
    Allocator,
    Block,
    block_at,
    pool_at,
    segment_at,
)
from helpers.settings.allocator_text import UNLIMITED
from helpers.settings.in_force import (
    MIN_BLOCK_BYTES,
    SMALL_MAX_BYTES,
)


def malloc(a: Allocator, requested: int, stream: int, private: int) -> Block:
    """A block of at least ``requested`` bytes; the block at NONE where torch raises
    OutOfMemoryError.

    ``private``: as Trace.pool, 0 for the default pools, k for private pool k while a graph is
    captured, -k for that pool without a capture. During a capture torch neither looks at events
    nor gives all that is cached back.
    """
    # Before 2.13 torch takes every request to a private pool for part of a capture
    # (Behaviour.pools_flush).
    captures = private > 0 or (private < 0 and not a.pools_flush)
    if not captures:
        free_completed_blocks(a)
    size = round_size(requested, conf(a).roundup_divisions)
    pool = 2 * abs(private) + LARGE
    if size <= SMALL_MAX_BYTES:
        pool = 2 * abs(private) + SMALL
    block = get_free_block(a, pool, size, stream)
    if block.at == NONE:
        block = get_new_block(a, pool, size, stream, captures)
    if block.at != NONE:
        return alloc_found_block(a, block, size, requested)
    if a.rejected:  # throw_on_cudamalloc_oom refused it before the card was asked
        a.num_oom_rejections += 1
    else:
        a.num_ooms += 1
    return block


def get_new_block(
    a: Allocator, pool: int, size: int, stream: int, captures: bool
) -> Block:
    """A block of memory that the card gives now; the block at NONE where it gives none.

    The card is asked up to three times: at once, after some large cached blocks have gone back to
    it, and after everything cached has. The last try is left out while a graph is captured. A
    request that throw_on_cudamalloc_oom refuses (``a.rejected``) is not tried again.
    """
    if collects_garbage(a):
        garbage_collect(a)
    block = alloc_block(a, pool, size, stream)
    if block.at != NONE or a.rejected:
        return block
    if release_available_cached_blocks(a, pool, size, stream):
        block = alloc_block(a, pool, size, stream)
        if block.at != NONE or a.rejected:
            return block
    if captures:
        return block
    release_cached_blocks(a, 0)
    # The pool is not searched again, so the call fails even if a block that was pending has
    # become free meanwhile (PyTorch #189504).
    a.num_alloc_retries += 1
    return alloc_block(a, pool, size, stream)


def get_free_block(a: Allocator, pool: int, size: int, stream: int) -> Block:
    """The best fitting free block of this stream, taken out of the pool's set; the one at NONE
    where the pool has no block that this request may use.
    """
    if collects_garbage(a):
        # garbage_collect measures the age of a block by this count (see ``age``).
        pool_at(a, pool).get_calls += 1
    none = block_at(a, NONE)
    block = first_of_size(a, pool_at(a, pool).free, stream, size)
    if block.stream == stream and is_expandable(a, block):
        if conf(a).expandable:
            block = best_by_reach(a, block)
        else:  # the program has switched expandable_segments off meanwhile
            block = first_not_expandable(a, block)
    if block.stream != stream:  # the stream has no block of this size
        return none
    # A block of max_split_size_mb or more is never split. So it is not for a smaller request; a
    # larger one gets it only if less than max_non_split_rounding_mb of it would stay unused.
    limit = conf(a).max_split_bytes
    if size < limit <= block.size:
        return none
    if size >= limit and block.size >= size + conf(a).non_split_rounding_bytes:
        return none
    erase(a, block)
    return block


def best_by_reach(a: Allocator, block: Block) -> Block:
    """The block that fits best, from ``block`` on in its set, which has the smallest blocks first.

    As the size of an expandable block torch counts the size to which it could grow (``reach``).
    So it goes on to the next block of the stream for as long as that block has less reach, and
    stops at a block that is not expandable.
    """
    after = after_in_set(a, block)
    while is_expandable(a, block) and after.stream == block.stream:
        if reach(a, after) >= reach(a, block):
            return block
        block = after
        after = after_in_set(a, after)
    return block


def first_not_expandable(a: Allocator, block: Block) -> Block:
    """The first block of a cudaMalloc segment behind ``block`` in its set; a block of another
    stream, or the one at NONE, where this stream has none.
    """
    after = after_in_set(a, block)
    while after.stream == block.stream and is_expandable(a, after):
        after = after_in_set(a, after)
    return after


def alloc_block(a: Allocator, pool: int, size: int, stream: int) -> Block:
    """A block in a new segment or in newly mapped pages. The block at NONE where the card or the
    limit of set_per_process_memory_fraction refuses it, or throw_on_cudamalloc_oom does; only in
    the last case ``a.rejected`` is 1.
    """
    a.rejected = 0
    needed = segment_size(size, conf(a).large_segment_bytes)
    if needed > a.allowed_bytes - a.mapped_bytes:  # what the memory fraction allows
        return block_at(a, NONE)
    if conf(a).throw_on_oom and needed > a.config_bytes - a.mapped_bytes:
        a.rejected = 1
        return block_at(a, NONE)
    if conf(a).expandable:
        return allocate_expandable(a, pool, size, stream)
    address = cuda_malloc(a, needed)
    if address < 0:
        return block_at(a, NONE)
    segment = new_segment(a, address, needed, page_bytes=0)
    count_reserved(a, pool_at(a, pool).small, segments=1, size=needed)
    if needed >= conf(a).max_split_bytes:
        add_to_stat(a, OVERSIZE_SEGMENTS, 1)
    a.num_device_alloc += 1
    return new_block(a, segment, pool, stream, address, needed)


def should_split(a: Allocator, block: Block, size: int) -> bool:
    """Whether what is left of a block behind ``size`` bytes becomes a block of its own.

    In a small pool, and in any pool while expandable_segments is on, every rest that is large
    enough for a block does. Otherwise the rest must be large enough for a request of the large
    pool, and the request must be below max_split_size_mb.
    """
    remaining = block.size - size
    if is_small(a, block) or conf(a).expandable:
        return remaining >= MIN_BLOCK_BYTES
    return size < conf(a).max_split_bytes and remaining > SMALL_MAX_BYTES


def alloc_found_block(a: Allocator, block: Block, size: int, requested: int) -> Block:
    """The block that the program gets: the front of a free block where should_split says so, else
    all of it. It is counted as allocated.
    """
    already_split = is_split(block)
    if should_split(a, block, size):
        rest = block
        block = piece_of(a, rest, rest.address, size)
        splice(a, block, rest.prev, rest.at)
        rest.address += size
        rest.size -= size
        insert(a, rest)
        if already_split:  # a free part of a segment has become smaller
            count_split(a, rest, 0, -size)
        else:  # the segment was free as a whole
            count_split(a, rest, 1, rest.size)
    elif already_split:  # a free part of a segment is in use now
        count_split(a, block, -1, -block.size)
    block.allocated = 1
    block.requested = requested
    count_allocated(a, block, 1)
    count_active(a, block, 1)
    if block.size >= conf(a).max_split_bytes:  # oversize in torch's statistics
        add_to_stat(a, OVERSIZE_ALLOCATIONS, 1)
    return block


def release_block(a: Allocator, block: Block) -> None:
    """cudaFree of a segment that is one free block.

    torch itself fails where the block is only a part of a segment: because the segment was split
    before the program made max_split_size_mb smaller, or because the block is of an expandable
    segment (torch 2.4). The replay then ends, too (BROKEN).
    """
    if not is_whole_segment(a, block):
        a.status = BROKEN
        return
    segment = segment_at(a, block.segment)
    a.num_device_free += 1
    cuda_free(a, segment)
    count_reserved(a, is_small(a, block), segments=-1, size=-block.size)
    if block.size >= conf(a).max_split_bytes:
        add_to_stat(a, OVERSIZE_SEGMENTS, -1)
    erase(a, block)
    drop_block(a, block)
    drop_segment(a, segment)


def list_blocks(a: Allocator, pool: int) -> int:
    """Write down the free blocks of a pool in their order, so that a loop over them may release
    some. Returns how many there are; ``listed`` reads them.
    """
    count = 0
    block = after_in_set(a, block_at(a, pool_at(a, pool).free))
    while block.at != NONE:
        block_at(a, count).listed = block.at  # entry ``count`` of the list
        count += 1
        block = after_in_set(a, block)
    return count


def listed(a: Allocator, index: int) -> Block:
    """The block that list_blocks wrote down, counted from 0."""
    return block_at(a, block_at(a, index).listed)


def release_blocks(a: Allocator, pool: int) -> None:
    """Free every whole segment of a pool, then unmap the whole pages of its free expandable
    blocks.
    """
    count = list_blocks(a, pool)
    for index in range(count):
        block = listed(a, index)
        if is_whole_segment(a, block):
            release_block(a, block)
            # The second loop leaves it out: its record may already be that of another block.
            block_at(a, index).listed = NONE
    for index in range(count):
        block = listed(a, index)
        # A replay that has ended (BROKEN) is left as it is.
        if is_expandable(a, block) and a.status == FINE:
            unmap_block(a, block)


def release_cached_blocks(a: Allocator, private: int) -> None:
    """What empty_cache does, and what torch tries last before an out-of-memory: wait for all
    events and give back all that is cached in the default pools.

    ``private``: the number of a private pool which nothing uses any more, whose memory is given
    back too; 0 for none.
    """
    synchronize_and_free_events(a)
    # The source releases large blocks first, but in a private pool small ones first. The order
    # shows in the driver's calls, which are compared with torch's one by one (tests/oracle).
    release_blocks(a, LARGE)
    release_blocks(a, SMALL)
    if private:
        release_blocks(a, 2 * private + SMALL)
        release_blocks(a, 2 * private + LARGE)


def release_available_cached_blocks(
    a: Allocator, pool: int, size: int, stream: int
) -> bool:
    """Free just enough blocks of max_split_size_mb or more for the request: the smallest one that
    is large enough; else, from the largest on, as many as add up to it.

    Returns whether the freed blocks have the bytes of the request. False where the option
    max_split_size_mb is not set, and where the blocks do not add up; those were freed all the same.
    """
    limit = conf(a).max_split_bytes
    if limit >= UNLIMITED:  # the option is not set
        return False
    wanted = max(size, limit)  # no smaller block is freed, even for a smaller request
    first = 0
    count = list_blocks(a, pool)
    while first < count and precedes_size(listed(a, first), stream, wanted):
        first += 1
    if first < count:
        block = listed(a, first)
        if block.stream == stream and not is_expandable(a, block):
            release_block(a, block)
            return True
    # No block alone is large enough (an expandable one cannot go back to the card). Those before
    # ``first`` are smaller than ``wanted``.
    released = 0
    for index in range(first - 1, -1, -1):  # from larger blocks to smaller ones
        block = listed(a, index)
        if released >= wanted or block.size < limit or block.stream != stream:
            break
        if not is_expandable(a, block):
            released += block.size
            release_block(a, block)
    return released >= wanted


def collects_garbage(a: Allocator) -> bool:
    """Whether the allocator collects garbage. torch does so only where the program sets both a
    memory fraction and garbage_collection_threshold (set_fraction in
    DeviceCachingAllocator::malloc; PyTorch issue 106660; measured).
    """
    return a.allowed_bytes != NO_LIMIT and conf(a).gc_threshold > 0


def age(a: Allocator, block: Block) -> int:
    """gc_count of the source, the age of a free block: how often its pool was searched since the
    block became free.
    """
    return pool_at(a, block.pool).get_calls - block.gc_base


def garbage_collect(a: Allocator) -> None:
    """garbage_collect_cached_blocks: free whole segments of the large default pool, in rounds. Each
    round frees all that are at least of average age; rounds follow until so much was freed that
    what is reserved is at the threshold, or until a round frees nothing.
    """
    # The bytes above the threshold.
    target = a.mapped_bytes - int(conf(a).gc_threshold * float(a.allowed_bytes))
    if target <= 0:
        return
    total_age = count = 0
    for index in range(list_blocks(a, LARGE)):
        block = listed(a, index)
        # As the source has it: free expandable segments count in the average, too, although
        # only those of cudaMalloc are freed below.
        if not is_split(block):
            total_age += age(a, block)
            count += 1
    reclaimed = 0
    freed = True
    while reclaimed < target and freed and count > 0:
        age_threshold = total_age / count
        freed = False
        for index in range(list_blocks(a, LARGE)):
            block = listed(a, index)
            if is_whole_segment(a, block) and age(a, block) >= age_threshold:
                freed = True
                reclaimed += block.size
                total_age -= age(a, block)
                count -= 1
                release_block(a, block)
