"""Twelve characters of allocation: each writes a seeded trace that behaves as one kind of program does.

A character adds operations until the trace is full; ``vram`` is the bytes of device memory. Random numbers are drawn in a fixed
order, so a seed names a trace for good: tests/golden was made with these, and a test holds them together.
"""

from __future__ import annotations

import math
import random

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


class Trace:
    """Collects operations and knows which ids are live and how many bytes each asked for."""

    def __init__(self, rng: random.Random, limit: int) -> None:
        self.rng = rng
        self.next = 1
        self.limit = limit
        self.ops: list[dict] = []
        self.live: dict[int, int] = {}

    def full(self) -> bool:
        return len(self.ops) >= self.limit

    def alloc(self, size: int, stream: int = 0, **more: object) -> int:
        number = self.next
        self.next += 1
        where = {"stream": stream} if stream else {}
        self.op("alloc", id=number, size=int(size), **where, **more)
        self.live[number] = int(size)
        return number

    def free(self, number: int) -> None:
        if number in self.live:
            del self.live[number]
            self.op("free", id=number)

    def free_random(self) -> None:
        if self.live:
            self.free(self.rng.choice(list(self.live)))

    def free_each(self, numbers: list[int]) -> None:
        for number in numbers:
            self.free(number)

    def make_room(self, size: int, cap: float) -> None:
        """Frees at random until ``size`` more bytes stay within ``cap``."""
        while self.live and sum(self.live.values()) + size > cap:
            self.free_random()

    def alloc_within(self, size: int, cap: float) -> None:
        self.make_room(size, cap)
        self.alloc(size)

    def op(self, name: str, **more: object) -> None:
        self.ops.append({"op": name, **more})


def log_uniform(rng: random.Random, lo: float, hi: float) -> int:
    return int(math.exp(rng.uniform(math.log(lo), math.log(hi))))


def uniform_small(t: Trace, r: random.Random, vram: int) -> None:
    target = r.choice([20, 100, 300])
    while not t.full():
        if len(t.live) < target and r.random() < 0.6:
            t.alloc(r.randint(1, MIB))
        elif t.live:
            t.free_random()
        if r.random() < 0.002:
            t.op("empty_cache")


def mixed(t: Trace, r: random.Random, vram: int) -> None:
    """Sizes log-uniform over everything; lifetimes from short to long."""
    cap = vram * r.uniform(0.3, 0.8)
    while not t.full():
        size = log_uniform(r, 16, 64 * MIB)
        t.alloc_within(size, cap)
        if r.random() < 0.35:
            t.free(max(t.live))
        if r.random() < 0.01:
            t.op("empty_cache")


def llm(t: Trace, r: random.Random, vram: int) -> None:
    """Weights that stay, layer activations in a stack, gradients, an optimiser, a growing cache."""
    hidden = r.choice([512, 768, 1024])
    layers = r.choice([4, 6, 8])
    width = r.choice([2, 4])
    for _ in range(layers):
        square = hidden * hidden
        for shape in (3 * square, square, 4 * square, 4 * square, hidden, hidden):
            t.alloc(shape * width)
    opt = False
    while not t.full():
        batch = r.choice([1, 2, 4])
        seq = r.choice([128, 200, 256, 333, 512])
        acts = []
        for _ in range(layers):
            for f in (1, 3, 1, 4, 4, 1):
                acts.append(t.alloc(batch * seq * hidden * f * width))
            t.free(t.alloc(batch * 8 * seq * seq * width))
            acts.append(t.alloc(batch * seq * 4))
        loss = t.alloc(4)
        t.free(t.alloc(batch * seq * 32000 * width // 4))
        grads = []
        while acts:
            t.free(acts.pop())
            if len(acts) % 7 == 0:
                grads.append(t.alloc(4 * hidden * hidden * width))
        if not opt:
            for g in grads:
                t.alloc(t.live[g] * 2)
            opt = True
        t.free_each([*grads, loss])


def decode(t: Trace, r: random.Random, vram: int) -> None:
    """Generation: a cache re-made one step longer each time."""
    heads = r.choice([8, 16, 32])
    dim = r.choice([64, 128])
    layers = r.choice([2, 4, 8])
    length = r.randint(1, 500)
    caches = [[t.alloc(heads * dim * length * 2) for _ in (0, 1)] for _ in range(layers)]
    while not t.full():
        length += r.choice([1, 1, 1, 1, 16])
        for c in caches:
            for k in (0, 1):
                new = t.alloc(heads * dim * length * 2)
                t.free(c[k])
                c[k] = new
            t.free_each([t.alloc(heads * length * 4), t.alloc(heads * dim * 2)])
        if r.random() < 0.02:
            t.free_each([k for c in caches for k in c])
            length = r.randint(1, 500)
            caches = [[t.alloc(heads * dim * length * 2) for _ in (0, 1)] for _ in range(layers)]


def vpoc(t: Trace, r: random.Random, vram: int) -> None:
    """Volume profiles: 1014 days by 1000 bins, over and over, with temporaries."""
    days = 1014
    bins = 1000
    kept = []
    while not t.full():
        ticks = r.randint(20_000, 400_000)
        price = t.alloc(ticks * 8)
        volume = t.alloc(ticks * 8)
        index = t.alloc(ticks * r.choice([4, 8]))
        hist = t.alloc(days * bins * r.choice([4, 4, 8]))
        for _ in range(r.randint(1, 6)):
            row = t.alloc(bins * 8)
            cum = t.alloc(bins * 8)
            mask = t.alloc(ticks)
            t.free_each([mask, row, cum])
        total = t.alloc(days * 8)
        top = t.alloc(days * 8)
        t.free(t.alloc(days * bins * 8))
        t.free_each([index, volume, price, total])
        kept += [hist, top]
        while len(kept) > r.choice([4, 8, 16]):
            t.free(kept.pop(0))
        if r.random() < 0.01:
            t.op("empty_cache")


def hpo(t: Trace, r: random.Random, vram: int) -> None:
    """Trials of differing shapes; some leak a tensor, some empty the cache."""
    leaks = []
    clean = r.random() < 0.5
    while not t.full():
        width = r.choice([64, 100, 256, 777, 1024, 2048])
        depth = r.randint(2, 8)
        batch = r.choice([16, 37, 64, 256, 1000])
        params = [t.alloc(width * width * 4) for _ in range(depth)]
        state = [t.alloc(width * width * 4) for _ in range(2 * depth)]
        for _ in range(r.randint(2, 6)):
            acts = [t.alloc(batch * width * 4) for _ in range(depth)]
            grads = []
            while acts:
                t.free(acts.pop())
                grads.append(t.alloc(width * width * 4))
            t.free_each(grads)
        if r.random() < 0.3:
            leaks.append(params.pop())
        t.free_each(params + state)
        if len(leaks) > 12:
            t.free(leaks.pop(r.randrange(len(leaks))))
        if clean or r.random() < 0.1:
            t.op("empty_cache")


def growing(t: Trace, r: random.Random, vram: int) -> None:
    """A batch loop whose sequences grow, then start again."""
    hidden = r.choice([256, 512, 1024])
    batch = r.choice([4, 8, 16])
    step = r.choice([1, 8, 16, 37])
    seq = 64
    for _ in range(8):
        t.alloc(hidden * hidden * 4)
    while not t.full():
        kept = []
        for _ in range(6):
            kept.append(t.alloc(batch * seq * hidden * 4))
            t.free(t.alloc(batch * seq * seq * 4))
        t.free_each(kept[::-1])
        seq += step
        if seq > 1500:
            seq = 64


def boundary(t: Trace, r: random.Random, vram: int) -> None:
    """Sizes on and beside the thresholds, split and joined in every order."""
    mibs = [1, 2, 3, 5, 9, 10, 11, 12, 16, 18, 19, 20, 21, 22, 32, 33, 40, 64, 128]
    marks = [512, 1024, 4096, 65536, MIB // 2, *(mib * MIB for mib in mibs)]
    deltas = [0, 0, 1, -1, 511, -511, 512, -512, 513, -513, 1024, -1024]
    deltas += [MIB, -MIB, MIB + 1, MIB - 1, MIB - 512, -MIB + 512]
    cap = vram * r.uniform(0.3, 0.95)
    while not t.full():
        top = r.choice([8, 16, len(marks)])
        size = max(1, r.choice(marks[:top]) + r.choice(deltas))
        t.alloc_within(size, cap)
        if r.random() < 0.45:
            t.free_random()
        if r.random() < 0.02:
            t.free_each([i for i in t.live if r.random() < 0.7])
        if r.random() < 0.006:
            t.op("empty_cache")


def pressure(t: Trace, r: random.Random, vram: int) -> None:
    """Holds nearly all of the memory, or asks for more than there is."""
    top = vram // r.choice([3, 6, 12])
    cap = vram * r.uniform(0.8, 1.1)
    while not t.full():
        size = log_uniform(r, 256 * KIB, top)
        t.alloc_within(size, cap)
        if r.random() < 0.2:
            t.free_random()
        if r.random() < 0.01:
            t.free_each(list(t.live))


def fragment(t: Trace, r: random.Random, vram: int) -> None:
    """Fill, free every other block, ask for what fits only in joined blocks."""
    while not t.full():
        unit = r.choice([300 * KIB, 1536 * KIB, 3 * MIB, 7 * MIB, 13 * MIB, 24 * MIB])
        n = min(60, max(4, int(vram * r.uniform(0.5, 0.95) / (unit + MIB))))
        ids = [t.alloc(unit + r.choice([0, 0, 512, 4096, 100_000])) for _ in range(n)]
        t.free_each(ids[::2])
        for _ in range(n // 4):
            t.alloc(int(unit * r.choice([0.5, 1.0, 1.5, 2.0, 2.5, 4.0])))
        t.free_each(ids[1::2])
        for _ in range(n // 8):
            t.alloc(unit * r.choice([2, 4, 8]))
        t.free_each([i for i in t.live if r.random() < 0.8])
        if r.random() < 0.2:
            t.op("empty_cache")


def streams(t: Trace, r: random.Random, vram: int) -> None:
    """Several streams; memory of one used on another, events that finish late."""
    cap = vram * r.uniform(0.4, 0.9)
    while not t.full():
        size = log_uniform(r, 64, 24 * MIB)
        t.make_room(size, cap)
        s = r.choice([0, 0, 1, 2, 3])
        i = t.alloc(size, s, via="tensor")
        if r.random() < 0.25:
            t.op("record_stream", id=i, stream=r.choice([x for x in (1, 2, 3) if x != s]))
        if r.random() < 0.5:
            t.free_random()
        x = r.random()
        if x < 0.02:
            t.op("events_hold", on=x < 0.01)
        elif x < 0.05:
            t.op("events_complete")
        elif x < 0.055:
            t.op("empty_cache")
        elif x < 0.06:
            t.op("synchronize")


def shared_device(t: Trace, r: random.Random, vram: int) -> None:
    """Others take and give device memory; single calls are refused; the cap moves."""
    cap = vram * r.uniform(0.4, 0.9)
    while not t.full():
        size = log_uniform(r, 64 * KIB, vram // 6)
        t.alloc_within(size, cap)
        if r.random() < 0.35:
            t.free_random()
        x = r.random()
        if x < 0.01:
            t.op("foreign", bytes=int(vram * r.uniform(0, 0.5)) // (2 * MIB) * 2 * MIB)
        elif x < 0.02:
            t.op("fail_next", n=r.choice([1, 1, 2]))
        elif x < 0.025:
            t.op("set_fraction", fraction=r.choice([0.3, 0.5, 0.75, 1.0]))
        elif x < 0.03:
            t.op("empty_cache")
        elif x < 0.033:
            t.op("reset_peak")
        elif x < 0.036:
            t.op("snapshot")
