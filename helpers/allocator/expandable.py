"""Expandable segments: one long reserved range per stream and pool, mapped page by page as it is needed.

A page is 2 MiB in the small pool and the large segment size (20 MiB) in the large one; a range is 1 1/8 of the card
(ExpandableSegment in c10/cuda/CUDACachingAllocator.cpp; PyTorch PR #96995).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.allocator.block import Block, Pool, Segment
from helpers.allocator.driver import round_up

if TYPE_CHECKING:
    from helpers.allocator.model import Allocator

SMALL_PAGE_BYTES = 2 << 20


def reach(block: Block) -> int:
    """The bytes a free block could grow to: its own and those of the unmapped block behind it."""
    return block.size + (block.next.size if block.next and not block.next.mapped else 0)


def page_bytes(allocator: Allocator, pool: Pool) -> int:
    return SMALL_PAGE_BYTES if pool.small else allocator.settings.large_segment_bytes


def allocate(allocator: Allocator, pool: Pool, size: int, stream: int) -> Block | None:
    """A block of at least size bytes, by mapping pages; what was mapped before one failed stays mapped."""
    block = find(allocator, pool, size, stream)
    if not block.mapped and not map_block(allocator, block, min(block.size, size)):
        return None
    while block.size < size:
        following = block.next
        assert following is not None
        if not map_block(allocator, following, min(size - block.size, following.size)):
            return None
        block = following
    pool.erase(block)
    return block


def find(allocator: Allocator, pool: Pool, size: int, stream: int) -> Block:
    """The lowest run of free and unmapped blocks with size bytes of addresses; a new range where there is none."""
    blocks = pool.unmapped
    index = blocks.lower_bound((stream, -1, 0, 0))
    while index < len(blocks) and blocks.at(index).stream == stream:
        first = blocks.at(index)
        if first.prev and first.prev.available:
            first = first.prev
        room, at = 0, first
        while room < size and at is not None and at.available:
            room += at.size
            at = at.next  # type: ignore[assignment]
        if room >= size:
            return first
        index += 1
    page = page_bytes(allocator, pool)
    span = round_up(allocator.total_bytes + allocator.total_bytes // 8, page)
    ordinal, address = allocator.driver.reserve(span)
    segment = Segment(address, span, stream, pool, ordinal, expandable=True, page_bytes=page)
    segment.number = allocator.number(None)
    allocator.segments.append(segment)
    block = Block(segment, address, span, segment.number, mapped=False)
    pool.insert_unmapped(block)
    return block


def map_block(allocator: Allocator, block: Block, size: int) -> bool:
    """Map at least size bytes at the front of an unmapped block and merge them with what is free beside them."""
    segment, pool = block.segment, block.pool
    size = round_up(size, segment.page_bytes)
    if not allocator.driver.map(segment.ordinal, block.offset, size, segment.page_bytes):
        return False
    pool.erase_unmapped(block)
    block.mapped = True
    if size < block.size:
        rest = Block(segment, block.address + size, block.size - size, allocator.number(segment), mapped=False)
        rest.splice(block, block.next)
        pool.insert_unmapped(rest)
        block.size = size
    allocator.try_merge(block, block.prev)
    allocator.try_merge(block, block.next)
    pool.insert(block)
    allocator.mapped_bytes += size
    allocator.statistics.change(pool.small, reserved_bytes=size)
    allocator.counters["num_device_alloc"] += 1
    return True


def unmap_block(allocator: Allocator, block: Block) -> None:
    """Unmap the whole pages inside a free block; what is left of it at either end stays free."""
    segment, pool = block.segment, block.pool
    page = segment.page_bytes
    begin = round_up(block.offset, page)
    end = (block.offset + block.size) // page * page
    if begin >= end:
        return
    allocator.driver.unmap(segment.ordinal, begin, end - begin)
    pool.erase(block)
    before, after = begin - block.offset, block.offset + block.size - end
    if before:
        piece = Block(segment, block.address, before, allocator.number(segment))
        piece.splice(block.prev, block)
        pool.insert(piece)
    if after:
        piece = Block(segment, segment.address + end, after, allocator.number(segment))
        piece.splice(block, block.next)
        pool.insert(piece)
    block.address, block.size, block.mapped = segment.address + begin, end - begin, False
    allocator.try_merge(block, block.prev)
    allocator.try_merge(block, block.next)
    pool.insert_unmapped(block)
    allocator.mapped_bytes -= end - begin
    allocator.statistics.change(pool.small, reserved_bytes=-(end - begin))
    allocator.counters["num_device_free"] += 1
    if not block.is_split:
        pool.erase_unmapped(block)
        allocator.segments.remove(segment)
        allocator.driver.unreserve(segment.ordinal, segment.address, segment.size)
