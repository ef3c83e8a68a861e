"""Giving memory back to the card: empty_cache, the steps before an out-of-memory, garbage collection; and starting states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from helpers.allocator import expandable
from helpers.allocator.block import Block, Pool, Segment
from helpers.allocator.driver import round_up
from helpers.allocator.outcome import TORN, ReplayError
from helpers.allocator.trace import StartSegment

if TYPE_CHECKING:
    from helpers.allocator.model import Allocator


def release_block(allocator: Allocator, block: Block) -> None:
    """cudaFree of a whole free segment. Raises ReplayError for a part of one, which torch too would end at."""
    segment, pool = block.segment, block.pool
    if block.is_split:
        raise ReplayError(TORN)
    allocator.counters["num_device_free"] += 1
    allocator.driver.free(segment.ordinal, segment.address, block.size)
    allocator.mapped_bytes -= block.size
    allocator.statistics.change(pool.small, segment=-1, reserved_bytes=-block.size)
    if block.size >= allocator.settings.max_split_bytes:
        allocator.statistics.oversize_segments.change(-1)
    pool.erase(block)
    allocator.segments.remove(segment)


def release_blocks(allocator: Allocator, pool: Pool) -> None:
    """Free every whole segment of a pool, then unmap the whole pages of its free expandable blocks."""
    to_unmap = []
    for block in pool.blocks:
        if block.segment.expandable:
            to_unmap.append(block)
        elif not block.is_split:
            release_block(allocator, block)
    for block in to_unmap:
        expandable.unmap_block(allocator, block)


def release_cached_blocks(allocator: Allocator, private: Iterable[int] = ()) -> None:
    """What empty_cache does, and the last resort before an out-of-memory: wait for all events, give all back.

    Private pools are left alone but for those named, which nothing uses any more.
    """
    allocator.synchronize_and_free_events()
    for number in (0, *private):
        if number in allocator.pools:
            small, large = allocator.pools[number]
            for pool in ((large, small) if number == 0 else (small, large)):
                release_blocks(allocator, pool)


def release_available_cached_blocks(allocator: Allocator, pool: Pool, size: int, stream: int) -> bool:
    """Free just enough oversize blocks (max_split_size_mb) for the request; what was freed stays so when it fails."""
    limit = allocator.settings.max_split_bytes
    if allocator.unlimited():
        return False
    wanted = max(size, limit)
    at = pool.blocks.lower_bound((stream, wanted, -1, -1))
    blocks = list(pool.blocks)
    skips = allocator.behaviour.oversize_release_skips_expandable
    if at < len(blocks) and blocks[at].stream == stream and not (skips and blocks[at].segment.expandable):
        release_block(allocator, blocks[at])
        return True
    released = 0
    for block in reversed(blocks[:at]):
        if released >= wanted or block.size < limit or block.stream != stream:
            break
        if not block.segment.expandable:
            released += block.size
            release_block(allocator, block)
    return released >= wanted


def garbage_collect(allocator: Allocator) -> None:
    """Free whole large segments that have waited longer than the average, while the threshold is passed.

    Only with a memory fraction and garbage_collection_threshold together (release notes of PyTorch 1.11; measured).
    """
    assert allocator.allowed is not None
    threshold = int(allocator.settings.gc_threshold * float(allocator.allowed))
    if allocator.mapped_bytes <= threshold:
        return
    target = allocator.mapped_bytes - threshold
    pool = allocator.pool(1 << 30)
    ages = [pool.age(block) for block in pool.blocks if not block.is_split]
    total_age, count = sum(ages), len(ages)
    reclaimed, freed = 0, True
    while reclaimed < target and freed and count > 0:
        age_threshold = total_age / count
        freed = False
        for block in pool.blocks:
            if not block.is_split and not block.segment.expandable and pool.age(block) >= age_threshold:
                freed = True
                reclaimed += block.size
                total_age -= pool.age(block)
                count -= 1
                release_block(allocator, block)


def restore(allocator: Allocator, start: Iterable[StartSegment]) -> None:
    """Put the allocator into the state that a recording starts from; segments are numbered in the order given."""
    for known in start:
        small, large = (allocator.pool(1, known.pool), allocator.pool(1 << 30, known.pool))
        pool = small if known.small else large
        if known.expandable:
            _restore_range(allocator, known, pool)
            continue
        driver = allocator.driver
        segment = Segment(known.address, known.size, known.stream, pool, driver.mallocs)
        driver.mallocs += 1
        driver.used += round_up(known.size, driver.granule)
        driver.given[known.address] = known.size
        segment.number = allocator.number(None)
        allocator.segments.append(segment)
        allocator.mapped_bytes += known.size
        allocator.statistics.change(pool.small, segment=1, reserved_bytes=known.size)
        _restore_blocks(allocator, known, segment, None)


def _restore_blocks(allocator: Allocator, known: StartSegment, segment: Segment, before: Block | None) -> Block | None:
    pool, last = segment.pool, before
    for old in known.blocks:
        block = Block(segment, known.address + old.offset, old.size, segment.number, old.requested)
        block.splice(last, None)
        last = block
        split = len(known.blocks) > 1 or segment.expandable
        if old.state == "I":
            pool.insert(block)
            if split and not segment.expandable:
                allocator.statistics.change(pool.small, inactive_split=1, inactive_split_bytes=old.size)
            continue
        allocator.active[block.address] = block
        allocator.statistics.change(pool.small, active=1, active_bytes=old.size, requested_bytes=old.requested)
        if old.state == "A":
            block.allocated = True
            allocator.statistics.change(pool.small, allocation=1, allocated_bytes=old.size)
            allocator.live[old.id] = block
        else:
            block.event_count = 1
            allocator.waiting[old.id] = block
    return last


def _restore_range(allocator: Allocator, known: StartSegment, pool: Pool) -> None:
    """A mapped range of an expandable segment: earlier ranges of the same stream and pool are taken to lie in one."""
    page = expandable.page_bytes(allocator, pool)
    span = round_up(allocator.total_bytes + allocator.total_bytes // 8, page)
    mine = [s for s in allocator.segments if s.expandable and s.pool is pool and s.stream == known.stream
            and s.address <= known.address < s.address + s.size]
    driver = allocator.driver
    if mine:
        segment = mine[0]
        tail = max((b for b in pool.unmapped if b.segment is segment), key=lambda b: b.address)
    else:
        segment = Segment(known.address, span, known.stream, pool, driver.reserves, expandable=True, page_bytes=page)
        driver.reserves += 1
        segment.number = allocator.number(None)
        allocator.segments.append(segment)
        tail = Block(segment, known.address, span, segment.number, mapped=False)
        pool.insert_unmapped(tail)
    pool.erase_unmapped(tail)
    before, gap, end = tail.prev, known.address - tail.address, tail.address + tail.size
    if gap:
        hole = Block(segment, tail.address, gap, segment.number, mapped=False)
        hole.splice(before, None)
        pool.insert_unmapped(hole)
        before = hole
    last = _restore_blocks(allocator, known, segment, before)
    rest = Block(segment, known.address + known.size, end - known.address - known.size, segment.number, mapped=False)
    rest.splice(last, None)
    pool.insert_unmapped(rest)
    driver.used += known.size
    allocator.mapped_bytes += known.size
    allocator.statistics.change(pool.small, reserved_bytes=known.size)
