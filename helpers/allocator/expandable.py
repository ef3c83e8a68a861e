"""Expandable segments: blocks of one long reserved range of addresses for each stream and pool,
whose pages are mapped as they are needed (PyTorch PR #96995). An unmapped block is a part of the
range that has addresses and no memory yet.

Names and order follow DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp. ``a`` is the
record of the allocator (records.py). ``block_at(a, place)`` reads a block by its place; a function
that has no block to return gives the one at NONE.
"""

from __future__ import annotations

from helpers.allocator.blocks import (
    after_in_set,
    available,
    conf,
    count_reserved,
    drop_block,
    drop_segment,
    erase,
    first_of_size,
    insert,
    is_small,
    is_split,
    merge_and_insert,
    new_block,
    new_segment,
    piece_of,
    splice,
)
from helpers.allocator.driver import (
    map_pages,
    reserve,
    round_up,
    unmap_pages,
    unreserve,
)
from helpers.allocator.records import (
    BROKEN,
    FINE,
    NONE,
    Allocator,
    Block,
    Setting,
    block_at,
    pool_at,
    segment_at,
)
from helpers.settings.in_force import SMALL_SEGMENT_BYTES, Settings


def reach(a: Allocator, block: Block) -> int:
    """The bytes to which a free block could grow: its own, and those of the unmapped block behind
    it, if there is one.
    """
    after = block_at(a, block.next)
    if after.mapped:
        return block.size
    return block.size + after.size  # the block at NONE has 0 bytes


def page_bytes(settings: Setting | Settings, small: int) -> int:
    """The bytes of a page of an expandable segment, of a small pool or a large one."""
    if small:
        return SMALL_SEGMENT_BYTES
    return settings.large_segment_bytes


def allocate_expandable(a: Allocator, pool: int, size: int, stream: int) -> Block:
    """try_allocate_expandable_block: a block of at least ``size`` bytes, by mapping pages.

    Pages are mapped block by block: the first block of the run, then the unmapped block behind it,
    with which it is merged, until it is large enough. Returns the block at NONE where no range has
    ``size`` bytes, or a page cannot be mapped; the pages that were mapped before stay so.
    """
    block = find_expandable(a, pool, size, stream)
    if block.at == NONE:
        return block
    # The first block may be free and mapped: then only what follows it has to be mapped.
    if not block.mapped and not map_block(a, block, min(block.size, size)):
        return block_at(a, NONE)
    while block.size < size:
        after = block_at(a, block.next)
        if after.at == NONE:
            # The range ends before the request does. torch follows a null pointer here, unless
            # it has the check of 2.15 (reserve_range).
            a.status = BROKEN
            return after
        if not map_block(a, after, min(size - block.size, after.size)):
            return block_at(a, NONE)
        block = after  # map_block has merged the block before into this one
    erase(a, block)
    return block


def find_expandable(a: Allocator, pool: int, size: int, stream: int) -> Block:
    """find_expandable_block: looks for the lowest run of neighbouring blocks, free or unmapped,
    that together have ``size`` bytes of addresses, and returns the first block of the run. Without
    such a run it is the only block of a new range; the block at NONE if reserve_range gives none.
    """
    unmapped = first_of_size(a, pool_at(a, pool).unmapped, stream, 0)
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
    return reserve_range(a, pool, size, stream)


def reserve_range(a: Allocator, pool: int, size: int, stream: int) -> Block:
    """The unmapped block of a newly reserved range of addresses. Releases from 2.15 on check
    whether the range is too short for ``size``; then it is given up, and the block at NONE
    returned.
    """
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
    """Map whole pages, ``size`` bytes or more, at the front of an unmapped block and merge them
    with what is free beside them.

    False where the card has too little memory for the pages; then nothing is mapped. False also
    where the block was not in its set: then ``erase`` has ended the replay (BROKEN), and what the
    caller does next no longer counts.
    """
    segment = segment_at(a, block.segment)
    size = round_up(size, segment.page_bytes)
    if not map_pages(a, segment, block.address - segment.address, size):
        return False
    erase(a, block)
    if a.status != FINE:  # the replay has ended
        return False
    block.mapped = 1
    if size < block.size:
        rest = piece_of(a, block, block.address + size, block.size - size)
        rest.mapped = 0
        splice(a, rest, block.at, block.next)
        insert(a, rest)
        block.size = size
    merge_and_insert(a, block)
    count_reserved(a, is_small(a, block), segments=0, size=size)
    a.num_device_alloc += 1
    return True


def unmap_block(a: Allocator, block: Block) -> None:
    """Unmap the whole pages inside a free block. A page at either end of the block that lies in it
    only partly stays mapped, and its part of the block becomes a free block of its own. A range
    without any mapped page is given up.
    """
    segment = segment_at(a, block.segment)
    page = segment.page_bytes
    offset = block.address - segment.address
    begin = round_up(offset, page)
    end = (offset + block.size) // page * page
    if begin >= end:  # no page lies inside the block
        return
    unmapped_bytes = end - begin
    unmap_pages(a, segment, begin, unmapped_bytes)
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
    block.size = unmapped_bytes
    block.mapped = 0
    merge_and_insert(a, block)
    count_reserved(a, is_small(a, block), segments=0, size=-unmapped_bytes)
    a.num_device_free += 1
    if not is_split(block):  # the unmapped block is all of the range
        erase(a, block)
        unreserve(a, segment)
        drop_block(a, block)
        drop_segment(a, segment)
