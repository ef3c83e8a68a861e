"""The allocator put into the state that a recording starts from."""

from helpers.allocator.blocks import (
    INACTIVE,
    LIVE,
    count_active,
    count_allocated,
    count_reserved,
    count_split,
    insert,
    is_small,
    new_block,
    new_segment,
    splice,
)
from helpers.allocator.driver import round_up
from helpers.allocator.events import wait_for
from helpers.allocator.memory import NONE, ident_at, part_at, pool_at, segment_at


def restore(a):
    """Put the allocator into the state that a recording starts from; segments are numbered in
    the order given.
    """
    segment = segment_at(a, NONE)
    before = NONE
    for place in range(a.part_count):
        part = part_at(a, place)
        if part.begins:
            segment = restore_segment(a, part)
            before = NONE
        address = part.base + part.offset
        number = segment.number
        block = new_block(
            a, segment, part.pool, part.stream, address, part.size, number
        )
        splice(a, block, before, NONE)
        before = block.at
        block.requested = part.requested
        block.mapped = part.mapped
        restore_state(a, block, part)


def restore_segment(a, part):
    segment = new_segment(
        a, part.base, part.span, part.expandable, a.mallocs, part.page_bytes
    )
    if part.expandable:
        segment.ordinal = a.reserves
        a.reserves += 1
        return segment
    a.mallocs += 1
    a.used += round_up(part.span, a.granule)
    count_reserved(a, pool_at(a, part.pool).small, 1, part.span)
    return segment


def restore_state(a, block, part):
    """Free, live or awaiting its free."""
    if part.expandable and part.mapped:
        a.used += part.size
        count_reserved(a, is_small(a, block), 0, part.size)
    if not part.mapped or part.state == INACTIVE:
        insert(a, block)
        if not part.whole:
            count_split(a, block, 1, part.size)
        return
    count_active(a, block, 1)
    if part.state == LIVE:
        block.allocated = 1
        count_allocated(a, block, 1)
        ident_at(a, part.ident + 1).block = block.at
    else:
        block.event_count = 1
        wait_for(a, block, part.ident)
