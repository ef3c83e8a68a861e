"""A block of device memory, and the pool in which free blocks wait in best-fit order.

Names and fields follow DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.4 to 2.15).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

Key = tuple[int, int, int, int]


@dataclass(eq=False)
class Segment:
    """What one cudaMalloc, or one reserved address range of expandable segments, gave."""

    address: int
    size: int
    stream: int
    pool: Pool
    ordinal: int
    expandable: bool = False
    number: int = 0  # the order in which the allocator made it: what 2.13 and later sort equal blocks by
    page_bytes: int = 0  # of an expandable segment

    @property
    def name(self) -> str:
        """m3 for the fourth successful cudaMalloc of the process, x1 for the second reserved range."""
        return ("x" if self.expandable else "m") + str(self.ordinal)


@dataclass(eq=False)
class Block:
    """A run of bytes in one segment: allocated, waiting for events, free, or (expandable only) unmapped."""

    segment: Segment
    address: int
    size: int
    number: int = 0  # 2.12: the order in which blocks were created; 2.13 and later: that of their segment
    requested: int = 0
    allocated: bool = False
    mapped: bool = True
    prev: Block | None = None
    next: Block | None = None
    event_count: int = 0
    stream_uses: list[int] = field(default_factory=list)
    gc_base: int = 0

    @property
    def pool(self) -> Pool:
        return self.segment.pool

    @property
    def stream(self) -> int:
        return self.segment.stream

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    @property
    def available(self) -> bool:
        """Free to be taken or merged: not allocated and nothing pending on it."""
        return not self.allocated and self.event_count == 0 and not self.stream_uses

    @property
    def offset(self) -> int:
        return self.address - self.segment.address

    def splice(self, before: Block | None, after: Block | None) -> None:
        """Put this block between two neighbours."""
        self.prev, self.next = before, after
        if before:
            before.next = self
        if after:
            after.prev = self


class Ordered:
    """Blocks in the order of a key that does not change while they are in here."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.block_of: dict[Key, Block] = {}

    def __iter__(self) -> Iterator[Block]:
        """The blocks as they stand now; taking some out meanwhile does no harm."""
        return iter([self.block_of[key] for key in self.keys])

    def __len__(self) -> int:
        return len(self.keys)

    def at(self, index: int) -> Block:
        return self.block_of[self.keys[index]]

    def lower_bound(self, key: Key) -> int:
        return bisect_left(self.keys, key)

    def put(self, key: Key, block: Block) -> None:
        insort(self.keys, key)
        self.block_of[key] = block

    def take(self, key: Key) -> None:
        del self.keys[bisect_left(self.keys, key)]
        del self.block_of[key]


class Pool:
    """Free blocks of one kind (small or large; default or private), and the unmapped parts of its expandable segments.

    by_address is True through torch 2.11: equal sizes are then told apart by address, later by the block's number.
    """

    def __init__(self, small: bool, private: int = 0, by_address: bool = False) -> None:
        self.small = small
        self.private = private
        self.by_address = by_address
        self.blocks = Ordered()
        self.unmapped = Ordered()
        self.get_calls = 0

    def key(self, block: Block) -> Key:
        return (block.stream, block.size, 0 if self.by_address else block.number, block.address)

    def insert(self, block: Block) -> None:
        block.gc_base = self.get_calls
        self.blocks.put(self.key(block), block)

    def erase(self, block: Block) -> None:
        self.blocks.take(self.key(block))

    def insert_unmapped(self, block: Block) -> None:
        self.unmapped.put((block.stream, block.address, 0, 0), block)

    def erase_unmapped(self, block: Block) -> None:
        self.unmapped.take((block.stream, block.address, 0, 0))

    def age(self, block: Block) -> int:
        """How many searches of this pool the block has waited through."""
        return self.get_calls - block.gc_base
