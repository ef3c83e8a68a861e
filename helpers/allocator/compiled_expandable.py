"""Expandable segments of the compiled replay: see expandable.py."""

from __future__ import annotations

from helpers.allocator import compiled_state as c
from helpers.allocator.compiled_blocks import (
    available,
    drop_block,
    erase_free,
    erase_unmapped,
    insert_free,
    insert_unmapped,
    is_small,
    is_split,
    new_block,
    new_segment,
    next_number,
    remove_segment,
    splice,
    try_merge,
)
from helpers.allocator.compiled_driver import map_pages, reserve, round_up, unmap_pages, unreserve
from helpers.allocator.compiled_state import block_at, change, drop_record, first_at_least, following, function

SMALL_PAGE_BYTES = 2 << 20


@function
def reach(m, block):
    """The bytes a free block could grow to."""
    after = m[block + c.NEXT]
    return m[block + c.SIZE] + (m[after + c.SIZE] if after >= 0 and not m[after + c.MAPPED] else 0)


@function
def new_range(m, home, page, size, address, ordinal):
    """A reserved address range, not mapped anywhere yet: its one block."""
    segment = new_segment(m, address, size, home, ordinal, 1, page)
    block = new_block(m, segment, address, size, m[segment + c.RANK])
    m[block + c.MAPPED] = 0
    insert_unmapped(m, block)
    return block


@function
def page_and_span(m, home):
    page = SMALL_PAGE_BYTES if m[home + c.IS_SMALL] else m[c.LARGE_SEGMENT]
    return page, round_up(m[c.TOTAL] + m[c.TOTAL] // 8, page)


@function
def allocate(m, home, size):
    """A block of at least size bytes, by mapping pages; -1 where one failed, and what was mapped before stays so."""
    block = find(m, home, size)
    if not m[block + c.MAPPED] and not map_block(m, block, min(m[block + c.SIZE], size)):
        return -1
    while m[block + c.SIZE] < size:
        after = m[block + c.NEXT]
        if after < 0:
            m[c.STATUS] = c.BROKEN
            return -1
        if not map_block(m, after, min(size - m[block + c.SIZE], m[after + c.SIZE])):
            return -1
        block = after
    erase_free(m, block)
    return block


@function
def find(m, home, size):
    """The lowest run of free and unmapped blocks with size bytes of addresses; a new range where there is none."""
    unmapped = home + c.UNMAPPED
    position = first_at_least(m, unmapped, -1)
    while position >= 0:
        first = block_at(m, unmapped, position)
        if m[first + c.PREV] >= 0 and available(m, m[first + c.PREV]):
            first = m[first + c.PREV]
        room, at = 0, first
        while room < size and at >= 0 and available(m, at):
            room += m[at + c.SIZE]
            at = m[at + c.NEXT]
        if room >= size:
            return first
        position = following(m, unmapped, position)
    page, span = page_and_span(m, home)
    address = reserve(m, span)
    return new_range(m, home, page, span, address, m[c.RESERVES] - 1)


@function
def map_block(m, block, size):
    """Map at least size bytes at the front of an unmapped block and merge them with what is free beside them."""
    segment = m[block + c.SEGMENT]
    size = round_up(size, m[segment + c.PAGE])
    if not map_pages(m, m[segment + c.ORDINAL], m[block + c.ADDRESS] - m[segment + c.BASE], size, m[segment + c.PAGE]):
        return False
    erase_unmapped(m, block)
    if m[c.STATUS] != c.FINE:
        return False
    m[block + c.MAPPED] = 1
    if size < m[block + c.SIZE]:
        rest = new_block(m, segment, m[block + c.ADDRESS] + size, m[block + c.SIZE] - size, next_number(m, segment))
        m[rest + c.MAPPED] = 0
        splice(m, rest, block, m[block + c.NEXT])
        insert_unmapped(m, rest)
        m[block + c.SIZE] = size
    try_merge(m, block, m[block + c.PREV])
    try_merge(m, block, m[block + c.NEXT])
    insert_free(m, block)
    m[c.MAPPED_BYTES] += size
    change(m, is_small(m, block), c.RESERVED_BYTES, size)
    m[c.DEVICE_ALLOC] += 1
    return True


@function
def unmap_block(m, block):
    """Unmap the whole pages inside a free block; what is left of it at either end stays free."""
    segment = m[block + c.SEGMENT]
    base, page, ordinal = m[segment + c.BASE], m[segment + c.PAGE], m[segment + c.ORDINAL]
    offset = m[block + c.ADDRESS] - base
    begin, end = round_up(offset, page), (offset + m[block + c.SIZE]) // page * page
    if begin >= end:
        return
    unmap_pages(m, ordinal, begin, end - begin)
    erase_free(m, block)
    before, after = begin - offset, offset + m[block + c.SIZE] - end
    if before:
        piece = new_block(m, segment, m[block + c.ADDRESS], before, next_number(m, segment))
        splice(m, piece, m[block + c.PREV], block)
        insert_free(m, piece)
    if after:
        piece = new_block(m, segment, base + end, after, next_number(m, segment))
        splice(m, piece, block, m[block + c.NEXT])
        insert_free(m, piece)
    m[block + c.ADDRESS], m[block + c.SIZE], m[block + c.MAPPED] = base + begin, end - begin, 0
    try_merge(m, block, m[block + c.PREV])
    try_merge(m, block, m[block + c.NEXT])
    insert_unmapped(m, block)
    m[c.MAPPED_BYTES] -= end - begin
    change(m, is_small(m, block), c.RESERVED_BYTES, -(end - begin))
    m[c.DEVICE_FREE] += 1
    if not is_split(m, block):
        erase_unmapped(m, block)
        remove_segment(m, segment)
        unreserve(m, ordinal, base, m[segment + c.SPAN])
        drop_block(m, block)
        drop_record(m, c.FREE_SEGMENT, segment)
