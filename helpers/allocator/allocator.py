"""The caching allocator of one device: which block a request takes, in the order of fallbacks
that the source has, and what is given back.

It follows DeviceCachingAllocator (c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.2 to 2.15) call
for call: which block is taken, split, merged, given back, and in which order the card is asked.
What a release does differently, and on which releases and builds this was proved event by event
against the compiled allocator (tests/oracle), stands in helpers/settings/torch.json. Expandable
segments are one long reserved range per stream and pool, mapped page by page (PyTorch PR #96995).

It is longer than other files because it stands beside one class of the source, whose parts call
each other in both directions.
"""

from __future__ import annotations

from helpers.allocator.blocks import (
    OVERSIZE_ALLOCATIONS,
    OVERSIZE_SEGMENTS,
    add,
    after_in_set,
    available,
    conf,
    count_active,
    count_allocated,
    count_reserved,
    count_split,
    drop_block,
    drop_segment,
    erase,
    insert,
    is_expandable,
    is_small,
    is_split,
    lower_bound,
    new_block,
    new_segment,
    piece_of,
    precedes,
    round_size,
    segment_size,
    splice,
    try_merge,
)
from helpers.allocator.driver import (
    cuda_free,
    cuda_malloc,
    map_pages,
    reserve,
    round_up,
    unmap_pages,
    unreserve,
)
from helpers.allocator.events import process_events, synchronize_and_free_events
from helpers.allocator.records import (
    BROKEN,
    FINE,
    NO_LIMIT,
    NONE,
    Allocator,
    Block,
    Setting,
    block_at,
    pool_at,
    segment_at,
)
from helpers.settings.allocator_text import UNLIMITED
from helpers.settings.in_force import (
    MIN_BLOCK_BYTES,
    SMALL_MAX_BYTES,
    SMALL_SEGMENT_BYTES,
    Settings,
)


def malloc(a: Allocator, requested: int, stream: int, private: int) -> Block:
    """A block of at least requested bytes; the block at NONE where torch raises OutOfMemoryError.

    ``private`` as Trace.pool: a graph that is captured keeps its hands off events and off what
    is cached.
    """
    captures = private > 0 or (private < 0 and not a.pools_flush)
    if not captures:
        process_events(a, False)
    size = round_size(requested, conf(a).roundup_divisions)
    pool = 2 * abs(private) + int(size <= SMALL_MAX_BYTES)
    block = get_free_block(a, pool, size, stream)
    if block.at == NONE:
        a.rejected = 0
        if collects_garbage(a):
            garbage_collect(a)
        block = alloc_block(a, pool, size, stream)
        missed = block.at == NONE and not a.rejected
        if missed and release_available_cached_blocks(a, pool, size, stream):
            block = alloc_block(a, pool, size, stream)
        if block.at == NONE and not a.rejected and not captures:
            release_cached_blocks(a, 0)
            # The pool is not searched again here, so a free that was pending does not save the
            # call (PyTorch #189504).
            a.num_alloc_retries += 1
            block = alloc_block(a, pool, size, stream)
        if block.at == NONE:
            if a.rejected:
                a.num_oom_rejections += 1
            else:
                a.num_ooms += 1
            return block
    return alloc_found_block(a, block, size, requested)


def get_free_block(a: Allocator, pool: int, size: int, stream: int) -> Block:
    """The best fitting free block of this stream, taken out of the pool; the one at NONE where
    none may be used.
    """
    if collects_garbage(a):
        pool_at(a, pool).get_calls += 1
    none = block_at(a, NONE)
    # -1, -1: before every number and address, so the first block of this size.
    block = lower_bound(a, pool_at(a, pool).free, stream, size, -1, -1)
    if block.stream == stream and is_expandable(a, block):
        if conf(a).expandable:
            block = least_reaching(a, block)
        else:
            block = first_of_segment(a, block)
    if block.stream != stream:
        return none
    limit = conf(a).max_split_bytes
    if size < limit <= block.size:
        return none
    if size >= limit and block.size >= size + conf(a).non_split_rounding_bytes:
        return none
    erase(a, block)
    return block


def least_reaching(a: Allocator, block: Block) -> Block:
    """Of an expandable block and those behind it in its set the first that reaches no farther
    than the next; also the first that is not expandable.
    """
    after = after_in_set(a, block)
    while is_expandable(a, block) and after.stream == block.stream:
        if reach(a, after) >= reach(a, block):
            return block
        block = after
        after = after_in_set(a, after)
    return block


def first_of_segment(a: Allocator, block: Block) -> Block:
    """The first block behind an expandable one in its set that is not expandable; one of another
    stream where there is none.
    """
    after = after_in_set(a, block)
    while after.stream == block.stream and is_expandable(a, after):
        after = after_in_set(a, after)
    return after


def alloc_block(a: Allocator, pool: int, size: int, stream: int) -> Block:
    """A new segment or newly mapped pages; else the block at NONE, with a.rejected where
    throw_on_cudamalloc_oom says so.
    """
    needed = segment_size(size, conf(a).large_segment_bytes)
    if needed > a.allowed_bytes - a.mapped_bytes:
        return block_at(a, NONE)
    if conf(a).throw_on_oom and needed > a.config_bytes - a.mapped_bytes:
        a.rejected = 1
        return block_at(a, NONE)
    if conf(a).expandable:
        return allocate(a, pool, size, stream)
    address = cuda_malloc(a, needed)
    if address < 0:
        return block_at(a, NONE)
    segment = new_segment(a, address, needed, page_bytes=0)
    count_reserved(a, pool_at(a, pool).small, 1, needed)
    if needed >= conf(a).max_split_bytes:
        add(a, OVERSIZE_SEGMENTS, 1)
    a.num_device_alloc += 1
    return new_block(a, segment, pool, stream, address, needed)


def should_split(a: Allocator, block: Block, size: int) -> bool:
    remaining = block.size - size
    if is_small(a, block) or conf(a).expandable:
        return remaining >= MIN_BLOCK_BYTES
    return size < conf(a).max_split_bytes and remaining > SMALL_MAX_BYTES


def alloc_found_block(a: Allocator, block: Block, size: int, requested: int) -> Block:
    """Split off the front where the rest is worth keeping, and count the block as allocated."""
    already_split = is_split(block)
    if should_split(a, block, size):
        rest = block
        block = piece_of(a, rest, rest.address, size)
        splice(a, block, rest.prev, rest.at)
        rest.address += size
        rest.size -= size
        insert(a, rest)
        if already_split:
            count_split(a, rest, 0, -size)
        else:
            count_split(a, rest, 1, rest.size)
    elif already_split:
        count_split(a, block, -1, -block.size)
    block.allocated = 1
    block.requested = requested
    count_allocated(a, block, 1)
    count_active(a, block, 1)
    if block.size >= conf(a).max_split_bytes:
        add(a, OVERSIZE_ALLOCATIONS, 1)
    return block


def reach(a: Allocator, block: Block) -> int:
    """The bytes a free block could grow to: its own and those of the unmapped block behind it."""
    after = block_at(a, block.next)
    if after.mapped:
        return block.size
    return block.size + after.size


def page_bytes(settings: Setting | Settings, small: int) -> int:
    if small:
        return SMALL_SEGMENT_BYTES
    return settings.large_segment_bytes


def allocate(a: Allocator, pool: int, size: int, stream: int) -> Block:
    """try_allocate_expandable_block: a block of at least size bytes, by mapping pages; what was
    mapped before one failed stays mapped.
    """
    block = find_expandable(a, pool, size, stream)
    if block.at == NONE:
        return block
    if not block.mapped and not map_block(a, block, min(block.size, size)):
        return block_at(a, NONE)
    while block.size < size:
        after = block_at(a, block.next)
        if after.at == NONE:
            a.status = BROKEN
            return after
        if not map_block(a, after, min(size - block.size, after.size)):
            return block_at(a, NONE)
        block = after
    erase(a, block)
    return block


def find_expandable(a: Allocator, pool: int, size: int, stream: int) -> Block:
    """The lowest run of free and unmapped blocks with size bytes of addresses; a new range
    where there is none. A release that looks whether that is long enough gives it back where
    it is not: the block at NONE.
    """
    unmapped = lower_bound(a, pool_at(a, pool).unmapped, stream, 0, 0, -1)
    while unmapped.stream == stream:
        first = unmapped
        if available(block_at(a, first.prev)):
            first = block_at(a, first.prev)
        room = 0
        block = first
        while room < size and available(block):
            room += block.size
            block = block_at(a, block.next)
        if room >= size:
            return first
        unmapped = after_in_set(a, unmapped)
    page = page_bytes(conf(a), pool_at(a, pool).small)
    span = round_up(conf(a).range_bytes, page)
    address = reserve(a, span)
    segment = new_segment(a, address, span, page)
    if a.checks_range and span < size:
        unreserve(a, segment)
        drop_segment(a, segment)
        return block_at(a, NONE)
    block = new_block(a, segment, pool, stream, segment.address, span)
    block.mapped = 0
    insert(a, block)
    return block


def map_block(a: Allocator, block: Block, size: int) -> bool:
    """Map at least size bytes at the front of an unmapped block and merge them with what is
    free beside them.
    """
    segment = segment_at(a, block.segment)
    size = round_up(size, segment.page_bytes)
    if not map_pages(a, segment, block.address - segment.address, size):
        return False
    erase(a, block)
    if a.status != FINE:
        return False
    block.mapped = 1
    if size < block.size:
        rest = piece_of(a, block, block.address + size, block.size - size)
        rest.mapped = 0
        splice(a, rest, block.at, block.next)
        insert(a, rest)
        block.size = size
    try_merge(a, block, block_at(a, block.prev))
    try_merge(a, block, block_at(a, block.next))
    insert(a, block)
    count_reserved(a, is_small(a, block), 0, size)
    a.num_device_alloc += 1
    return True


def unmap_block(a: Allocator, block: Block) -> None:
    """Unmap the whole pages inside a free block; what is left of it at either end stays free."""
    segment = segment_at(a, block.segment)
    page = segment.page_bytes
    offset = block.address - segment.address
    begin = round_up(offset, page)
    end = (offset + block.size) // page * page
    if begin >= end:
        return
    unmap_pages(a, segment, begin, end - begin)
    erase(a, block)
    before = begin - offset
    after = offset + block.size - end
    if before:
        piece = piece_of(a, block, block.address, before)
        splice(a, piece, block.prev, block.at)
        insert(a, piece)
    if after:
        piece = piece_of(a, block, segment.address + end, after)
        splice(a, piece, block.at, block.next)
        insert(a, piece)
    block.address = segment.address + begin
    block.size = end - begin
    block.mapped = 0
    try_merge(a, block, block_at(a, block.prev))
    try_merge(a, block, block_at(a, block.next))
    insert(a, block)
    count_reserved(a, is_small(a, block), 0, begin - end)
    a.num_device_free += 1
    if not is_split(block):
        erase(a, block)
        unreserve(a, segment)
        drop_block(a, block)
        drop_segment(a, segment)


def release_block(a: Allocator, block: Block) -> None:
    """cudaFree of a whole free segment.

    A part of one, which torch too would end at, tears the replay.
    """
    if is_split(block) or is_expandable(a, block):
        # Of an expandable segment (2.4), or part of one split before max_split_size_mb became
        # smaller.
        a.status = BROKEN
        return
    segment = segment_at(a, block.segment)
    a.num_device_free += 1
    cuda_free(a, segment)
    count_reserved(a, is_small(a, block), -1, -block.size)
    if block.size >= conf(a).max_split_bytes:
        add(a, OVERSIZE_SEGMENTS, -1)
    erase(a, block)
    drop_block(a, block)
    drop_segment(a, segment)


def list_blocks(a: Allocator, pool: int) -> int:
    """Note the free blocks of a pool in order, so that some may go meanwhile: how many there are."""
    count = 0
    block = block_at(a, block_at(a, pool_at(a, pool).free).forward[0])
    while block.at != NONE:
        block_at(a, count).listed = block.at
        count += 1
        block = after_in_set(a, block)
    return count


def listed(a: Allocator, k: int) -> Block:
    """The block that list_blocks noted at this place."""
    return block_at(a, block_at(a, k).listed)


def release_blocks(a: Allocator, pool: int) -> None:
    """Free every whole segment of a pool, then unmap the whole pages of its free expandable
    blocks.
    """
    count = list_blocks(a, pool)
    for k in range(count):
        block = listed(a, k)
        if not is_expandable(a, block) and not is_split(block):
            release_block(a, block)
            block_at(a, k).listed = NONE
    for k in range(count):
        block = listed(a, k)
        if is_expandable(a, block) and a.status == FINE:
            unmap_block(a, block)


def release_cached_blocks(a: Allocator, private: int) -> None:
    """What empty_cache does, and the last resort before an out-of-memory: wait for all events,
    give all back.

    Private pools are left alone but for the one named (0: none), which nothing uses any more.
    """
    synchronize_and_free_events(a)
    release_blocks(a, 0)  # large before small, but not so in a private pool
    release_blocks(a, 1)
    if private:
        release_blocks(a, 2 * private + 1)
        release_blocks(a, 2 * private)


def release_available_cached_blocks(
    a: Allocator, pool: int, size: int, stream: int
) -> bool:
    """Free just enough oversize blocks (max_split_size_mb) for the request; what was freed
    stays so when it fails.
    """
    limit = conf(a).max_split_bytes
    if limit >= UNLIMITED:
        return False
    wanted = max(size, limit)
    first = 0
    count = list_blocks(a, pool)
    while first < count and precedes(listed(a, first), stream, wanted, -1, -1):
        first += 1
    if first < count:
        block = listed(a, first)
        if block.stream == stream and not is_expandable(a, block):
            release_block(a, block)
            return True
    released = 0
    for k in range(first - 1, -1, -1):
        block = listed(a, k)
        if released >= wanted or block.size < limit or block.stream != stream:
            break
        if not is_expandable(a, block):
            released += block.size
            release_block(a, block)
    return released >= wanted


def collects_garbage(a: Allocator) -> bool:
    """Only with a memory fraction and garbage_collection_threshold together (release notes of
    PyTorch 1.11; measured).
    """
    return a.allowed_bytes != NO_LIMIT and conf(a).gc_threshold > 0


def garbage_collect(a: Allocator) -> None:
    """Free whole large segments that have waited longer than the average, while the threshold
    is passed.
    """
    target = a.mapped_bytes - int(conf(a).gc_threshold * float(a.allowed_bytes))
    if target <= 0:
        return
    searches = pool_at(a, 0).get_calls
    total_age = count = 0
    for k in range(list_blocks(a, 0)):
        block = listed(a, k)
        if not is_split(block):
            total_age += searches - block.gc_base
            count += 1
    reclaimed = 0
    freed = True
    while reclaimed < target and freed and count > 0:
        age_threshold = total_age / count
        freed = False
        for k in range(list_blocks(a, 0)):
            block = listed(a, k)
            age = searches - block.gc_base
            if (
                not is_split(block)
                and not is_expandable(a, block)
                and age >= age_threshold
            ):
                freed = True
                reclaimed += block.size
                total_age -= age
                count -= 1
                release_block(a, block)
