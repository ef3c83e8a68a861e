"""PyTorch's caching allocator for one device, as a readable model: the specification that compiled code is held to.

It follows DeviceCachingAllocator (c10/cuda/CUDACachingAllocator.cpp) call for call: which block is taken, split, merged,
given back, and in which order the card is asked. Proved event by event against the compiled allocator of torch 2.6.0,
2.11.0, 2.13.0 and 2.14.1 (tests/oracle). What a release does differently stands in helpers/settings/torch.json.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.allocator import expandable, release
from helpers.allocator.block import Block, Pool, Segment
from helpers.allocator.driver import Card, Driver, clear_of, event_turn
from helpers.allocator.statistics import Statistics
from helpers.allocator.trace import StartSegment
from helpers.settings.releases import Behaviour
from helpers.settings.text import UNLIMITED, Settings

MIN_BLOCK_BYTES = 512
SMALL_MAX_BYTES = 1 << 20


class Allocator:
    """The caching allocator of one device under some settings, version and card.

    malloc gives a Block, or None where the real one raises OutOfMemoryError.
    """

    def __init__(self, settings: Settings, behaviour: Behaviour, card: Card, *, fraction: float | None = None,
                 start: Sequence[StartSegment] = (), addresses: tuple[int, ...] = ()) -> None:
        self.settings = settings
        self.behaviour = behaviour
        self.total_bytes = card.capacity_bytes
        self.driver = Driver(card, addresses, clear_of(start, card))
        self.statistics = Statistics()
        self.counters = self.statistics.counters
        self.pools: dict[int, tuple[Pool, Pool]] = {}
        self.mapped_bytes = 0  # total_allocated_memory in the source: segments and mapped pages
        self.allowed: int | None = None
        self.config_fraction = 1.0 if settings.fraction is None else settings.fraction
        self.numbers = 0
        self.queues: dict[int, list[tuple[int, Block]]] = {}  # per stream: (ticket, block), oldest first
        self.waiting: dict[int, Block] = {}  # frees of a recording that were asked for and not yet completed
        self.segments: list[Segment] = []
        self.active: dict[int, Block] = {}  # blocks allocated or awaiting free, by address
        self.live: dict[int, Block] = {}  # blocks of the starting state, by the trace's id
        if settings.fraction is not None:
            self.set_fraction(settings.fraction)
        if fraction is not None:
            self.set_fraction(fraction)
        release.restore(self, start)

    # settings -------------------------------------------------------------------------------------------------------
    def set_fraction(self, fraction: float) -> None:
        """torch.cuda.set_per_process_memory_fraction: from 2.x on exactly 1.0 lifts the limit (helpers/settings/torch.json)."""
        self.allowed = None
        if fraction < 1.0 or not self.behaviour.fraction_one_is_unlimited:
            allowed = fraction * float(self.total_bytes)
            self.allowed = int(allowed + 0.5) if self.behaviour.fraction_rounds else int(allowed)

    def set_conf(self, settings: Settings) -> None:
        """Settings changed at run time: a fraction named there is seen by throw_on_cudamalloc_oom alone (measured, 2.14)."""
        self.settings = settings
        if settings.fraction is not None:
            self.config_fraction = settings.fraction

    @property
    def collects_garbage(self) -> bool:
        return self.allowed is not None and self.settings.gc_threshold > 0.0

    def pool(self, size: int, private: int = 0) -> Pool:
        """The pool that a rounded size belongs to."""
        if private not in self.pools:
            by_address = self.behaviour.order == "address"
            self.pools[private] = (Pool(True, private, by_address), Pool(False, private, by_address))
        small, large = self.pools[private]
        return small if size <= SMALL_MAX_BYTES else large

    def number(self, segment: Segment | None) -> int:
        """The number that a new block gets: its segment's own (2.13 on), or the next of all (2.12)."""
        if segment is not None and self.behaviour.order != "block":
            return segment.number
        self.numbers += 1
        return self.numbers

    # malloc ---------------------------------------------------------------------------------------------------------
    def malloc(self, requested: int, stream: int, private: int = 0) -> Block | None:
        """Hand out a block of at least `requested` bytes, in the order of fallbacks that the source has."""
        if not private:
            self.process_events()
        size = self.settings.round_size(requested)
        pool = self.pool(size, private)
        segment_size = self.settings.segment_size(size)
        block = self.get_free_block(pool, size, stream)
        if block is None:
            if self.collects_garbage:
                release.garbage_collect(self)
            block, rejected = self.alloc_block(pool, size, segment_size, stream)
            if block is None and not rejected and release.release_available_cached_blocks(self, pool, size, stream):
                block, rejected = self.alloc_block(pool, size, segment_size, stream)
            if block is None and not rejected and not private:
                release.release_cached_blocks(self)
                # The pool is not searched again here, so a free that was pending does not save the call (PyTorch #189504).
                self.counters["num_alloc_retries"] += 1
                block, rejected = self.alloc_block(pool, size, segment_size, stream)
            if block is None:
                self.counters["num_oom_rejections" if rejected else "num_ooms"] += 1
                return None
        return self.hand_out(block, size, requested)

    def get_free_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The best fitting free block of this stream, taken out of the pool; None where none may be used."""
        if self.collects_garbage:
            pool.get_calls += 1
        blocks = pool.blocks
        at = blocks.lower_bound((stream, size, -1, -1))

        def here(index: int) -> bool:
            return index < len(blocks) and blocks.at(index).stream == stream

        if not here(at):
            return None
        if blocks.at(at).segment.expandable:
            if self.settings.expandable:
                while (blocks.at(at).segment.expandable and here(at + 1)
                       and expandable.reach(blocks.at(at + 1)) < expandable.reach(blocks.at(at))):
                    at += 1
            else:
                at += 1
                while here(at) and blocks.at(at).segment.expandable:
                    at += 1
                if not here(at):
                    return None
        block = blocks.at(at)
        limit = self.settings.max_split_bytes
        if size < limit <= block.size:
            return None
        if size >= limit and block.size >= size + self.settings.non_split_rounding_bytes:
            return None
        pool.erase(block)
        return block

    def alloc_block(self, pool: Pool, size: int, segment_size: int, stream: int) -> tuple[Block | None, bool]:
        """A new segment or newly mapped pages: (block or None, whether throw_on_cudamalloc_oom rejected it)."""
        if self.allowed is not None and self.mapped_bytes + segment_size > self.allowed:
            return None, False
        if self.settings.throw_on_oom:
            if self.mapped_bytes + segment_size > int(self.config_fraction * float(self.total_bytes)):
                return None, True
        if self.settings.expandable:
            return expandable.allocate(self, pool, size, stream), False
        given = self.driver.malloc(segment_size)
        if given is None:
            return None, False
        ordinal, address = given
        segment = Segment(address, segment_size, stream, pool, ordinal)
        segment.number = self.number(None)
        self.segments.append(segment)
        self.mapped_bytes += segment_size
        self.statistics.change(pool.small, segment=1, reserved_bytes=segment_size)
        if segment_size >= self.settings.max_split_bytes:
            self.statistics.oversize_segments.change(1)
        self.counters["num_device_alloc"] += 1
        return Block(segment, address, segment_size, segment.number), False

    def should_split(self, block: Block, size: int) -> bool:
        remaining = block.size - size
        if block.pool.small or self.settings.expandable:
            return remaining >= MIN_BLOCK_BYTES
        return size < self.settings.max_split_bytes and remaining > SMALL_MAX_BYTES

    def hand_out(self, block: Block, size: int, requested: int) -> Block:
        """Split off the front where the rest is worth keeping, and count the block as allocated."""
        already_split = block.is_split
        counted = not block.segment.expandable  # inactive_split leaves expandable segments out
        small = block.pool.small
        if self.should_split(block, size):
            rest = block
            block = Block(rest.segment, rest.address, size, self.number(rest.segment))
            block.splice(rest.prev, rest)
            rest.address += size
            rest.size -= size
            block.pool.insert(rest)
            if already_split and counted:
                self.statistics.change(small, inactive_split_bytes=-size)
            elif counted:
                self.statistics.change(small, inactive_split_bytes=rest.size, inactive_split=1)
        elif already_split and counted:
            self.statistics.change(small, inactive_split_bytes=-block.size, inactive_split=-1)
        block.allocated = True
        block.requested = requested
        self.active[block.address] = block
        self.statistics.change(small, allocation=1, allocated_bytes=block.size, active=1, active_bytes=block.size,
                               requested_bytes=requested)
        if block.size >= self.settings.max_split_bytes:
            self.statistics.oversize_allocations.change(1)
        return block

    # free -----------------------------------------------------------------------------------------------------------
    def free(self, block: Block, pending: int | None = None) -> None:
        """Take a block back: at once, or when the events of the other streams that used it have completed.

        pending names a free of a recording that completes later, at complete(pending).
        """
        block.allocated = False
        self.statistics.change(block.pool.small, allocation=-1, allocated_bytes=-block.size)
        if block.size >= self.settings.max_split_bytes:
            self.statistics.oversize_allocations.change(-1)
        if pending is not None:
            block.event_count = 1
            self.waiting[pending] = block
        elif block.stream_uses:
            used, block.stream_uses = block.stream_uses, []
            for stream in used:
                block.event_count += 1
                self.queues.setdefault(stream, []).append((self.driver.record_event(), block))
        else:
            self.free_block(block)

    def complete(self, pending: int) -> None:
        """The recorded end of a pending free; nothing where a flush has ended it before."""
        block = self.waiting.pop(pending, None)
        if block is not None:
            block.event_count = 0
            self.free_block(block)

    def free_block(self, block: Block) -> None:
        """Merge a block with its free neighbours and put it into its pool."""
        size, pool = block.size, block.pool
        del self.active[block.address]
        count = swallowed = 0
        for neighbour in (block.prev, block.next):
            taken = self.try_merge(block, neighbour)
            if taken:
                count -= 1
                swallowed += taken
        pool.insert(block)
        split_bytes = -swallowed
        if block.is_split:
            count += 1
            split_bytes += block.size
        if not block.segment.expandable:
            self.statistics.change(pool.small, inactive_split=count, inactive_split_bytes=split_bytes)
        self.statistics.change(pool.small, active=-1, active_bytes=-size, requested_bytes=-block.requested)

    def try_merge(self, block: Block, other: Block | None) -> int:
        """Swallow a neighbour that is free and as mapped as the block: its bytes, or 0."""
        if other is None or not other.available or other.mapped != block.mapped:
            return 0
        if other.mapped:
            other.pool.erase(other)
        else:
            other.pool.erase_unmapped(other)
        if block.prev is other:
            block.address = other.address
            block.splice(other.prev, block.next)
        else:
            block.splice(block.prev, other.next)
        block.size += other.size
        return other.size

    def record_stream(self, block: Block, stream: int) -> None:
        """Another stream uses the block: its free waits for that stream."""
        if stream != block.stream and stream not in block.stream_uses:
            block.stream_uses.append(stream)

    def process_events(self) -> None:
        """Free what waited for events that have completed, per stream, up to the first that has not."""
        for stream in sorted(self.queues, key=event_turn):
            queue = self.queues[stream]
            while queue and queue[0][0] <= self.driver.events_done:
                self.pop_event(queue)
            if not queue:
                del self.queues[stream]

    def pop_event(self, queue: list[tuple[int, Block]]) -> None:
        _, block = queue.pop(0)
        block.event_count -= 1
        if block.event_count == 0:
            self.free_block(block)

    def synchronize_and_free_events(self) -> None:
        """Wait for every event and free what waited for it; also the pending frees of a recording."""
        self.counters["num_sync_all_streams"] += 1
        for stream in sorted(self.queues, key=event_turn):
            queue = self.queues.pop(stream)
            while queue:
                self.driver.events_done = max(self.driver.events_done, queue[0][0])
                self.pop_event(queue)
        for pending in list(self.waiting):
            self.complete(pending)

    def unlimited(self) -> bool:
        return self.settings.max_split_bytes >= UNLIMITED
