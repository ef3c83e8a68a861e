"""A small caching allocator that records itself as torch does: snapshots of our own making whose start is known.

First fit, two pools, splitting and merging by the real rules: it does not say which block the real one would take.
"""

import itertools
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "shared" / "samples" / "snapshots"
SAMPLES = [
    path if at < 2 else pytest.param(path, marks=pytest.mark.slow)
    for at, path in enumerate(sorted(FOLDER.glob("*.pickle"), key=lambda path: path.stat().st_size))
]
MIB = 1 << 20


class Toy:
    """Segments as {address: [block, ...]} with a block as [address, size, requested, state]."""

    def __init__(self, stream=0):
        self.stream = stream
        self.segments = {}
        self.events = []
        self.clock = itertools.count(1_000_000)
        self.next_segment = 0x7F0000000000

    def say(self, action, address, size, **more):
        event = {"action": action, "addr": address, "size": size, "stream": self.stream}
        self.events.append({**event, "time_us": next(self.clock), **more})

    def alloc(self, requested, frames=None):
        size = max(512, -(-requested // 512) * 512)
        small = size <= MIB
        for blocks in self.segments.values():
            if blocks[0][4] is small:
                for at, block in enumerate(blocks):
                    if block[3] == "inactive" and block[1] >= size:
                        return self.hand_out(blocks, at, size, requested, frames)
        large = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        total = 2 * MIB if small else large
        where = {"frames": frames} if frames else {}
        blocks = self.segments[self.next_segment] = [
            [self.next_segment, total, 0, "inactive", small]
        ]
        self.say("segment_alloc", self.next_segment, total, **where)
        self.next_segment += total + 2 * MIB * (total % 3)
        return self.hand_out(blocks, 0, size, requested, frames)

    def hand_out(self, blocks, at, size, requested, frames):
        address, whole, _, _, small = blocks[at]
        rest = whole - size
        if rest >= 512 if small else rest > MIB:
            blocks[at] = [address + size, rest, 0, "inactive", small]
            blocks.insert(at, [address, size, requested, "active_allocated", small])
        else:
            blocks[at] = [address, whole, requested, "active_allocated", small]
        self.say("alloc", address, requested, **({"frames": frames} if frames else {}))
        return address

    def free(self, address, complete=True):
        block = self.block(address)
        block[3] = "active_awaiting_free"
        self.say("free_requested", address, block[2])
        if complete:
            self.complete(address)

    def complete(self, address):
        self.say("free_completed", address, self.block(address)[2])
        self.block(address)[3] = "inactive"
        for blocks in self.segments.values():
            for at in range(len(blocks) - 1, 0, -1):
                if blocks[at][3] == blocks[at - 1][3] == "inactive":
                    blocks[at - 1][1] += blocks.pop(at)[1]

    def empty_cache(self, frames=None):
        for address, blocks in list(self.segments.items()):
            if len(blocks) == 1 and blocks[0][3] == "inactive":
                where = {"frames": frames} if frames else {}
                self.say("segment_free", address, blocks[0][1], **where)
                del self.segments[address]

    def block(self, address):
        every = itertools.chain(*self.segments.values())
        return next(block for block in every if block[0] == address)

    def layout(self):
        """[(segment address, [(block address, size, requested, state letter), ...]), ...], as a Trace's start says it."""
        letter = {"active_allocated": "A", "active_awaiting_free": "P", "inactive": "I"}
        found = []
        for place, blocks in sorted(self.segments.items()):
            rows = [(*one[:2], one[2] * (one[3] != "inactive"), letter[one[3]]) for one in blocks]
            found.append((place, rows))
        return found

    def snapshot(self, events=None):
        """What torch.cuda.memory._snapshot() gives."""
        keys = ("address", "size", "requested_size", "state")
        segments = []
        for place, blocks in sorted(self.segments.items()):
            rows = [{**dict(zip(keys, one, strict=False)), "frames": []} for one in blocks]
            home = {"device": 0, "address": place, "total_size": sum(one[1] for one in blocks)}
            kind = {"segment_type": "small" if blocks[0][4] else "large", "is_expandable": False}
            about = {"stream": self.stream, "segment_pool_id": (0, 0)}
            segments.append({**home, **about, **kind, "blocks": rows})
        return {
            "segments": segments,
            "device_traces": [list(self.events if events is None else events)],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "max_split_size": -1,
                "garbage_collection_threshold": 0.0,
                "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
            },
            "external_annotations": [],
        }


def layout_of(segments):
    """The start state of a Trace in the form of Toy.layout."""
    found = []
    for one in segments:
        rows = [(one.address + b.offset, b.size, b.requested, b.state) for b in one.blocks]
        found.append((one.address, rows))
    return found
