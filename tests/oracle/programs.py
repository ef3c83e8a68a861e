"""Ten kinds of program against settings drawn at random: a second generator of traces, which shares nothing with the first but
the jobs that it fills.

Each kind follows what one sort of program does to an allocator at its edges. Sizes, cards, fractions and settings are drawn anew
for every job; the same seed gives the same jobs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

MIB = 1 << 20
GIB = 1 << 30
ODD = ["max_split_size_mb:19", "garbage_collection_threshold:1.5", "no_such_key:3"]
ODD += ["roundup_power2_divisions:3", "expandable_segments:maybe", "max_split_size_mb"]

RESERVES = ("0.02", ".1", "3e-1", "0.75", "1.125", "4", "+1.", "1G", "0.1g", "0.003G", "1e3G")
RESERVES += ("0", "-1", "64M", "1e999", "inf", "G", "0x10")  # of these torch warns


class Program:
    """Operations so far, the blocks that are live as far as the program knows, and the card and settings that it runs under."""

    def __init__(self, rng: random.Random, conf: str, vram: int, torch: str) -> None:
        self.rng = rng
        self.conf = conf
        self.vram = vram
        self.torch = torch
        self.events = rng.randint(250, 750)
        self.ops: list[dict] = []
        self.live: dict[int, int] = {}
        self.made = 0

    @property
    def more(self) -> bool:
        return len(self.ops) < self.events

    def say(self, op: str, **of: object) -> None:
        self.ops.append({"op": op, **of})

    def get(self, size: float, **of: object) -> int:
        self.made += 1
        number = 10 * self.made + 3
        size = max(1, int(size))  # ids with gaps, not from 0
        self.live[number] = size
        self.say("alloc", id=number, size=size, **of)
        return number

    def drop(self, *numbers: int) -> None:
        for number in numbers:
            if self.live.pop(number, None):
                self.say("free", id=number)

    def some(self, share: float) -> list[int]:
        return [number for number in self.live if self.rng.random() < share]

    def fit(self, size: float, share: float = 0.9) -> None:
        """Frees the oldest until so much more fits in a share of the card."""
        while self.live and sum(self.live.values()) + size > share * self.vram:
            self.drop(next(iter(self.live)))


def borders(p: Program) -> None:
    """Every border of rounding up to 1 GiB, hit, missed by a byte and by a block."""
    marks = [512 << k for k in range(22)] + [k * MIB for k in (3, 5, 10, 12, 18, 20, 22, 30, 50)]
    while p.more:
        size = p.rng.choice(marks) + p.rng.choice((0, 1, -1, 511, 512, -512, 2 * MIB - 512, MIB))
        p.fit(size)
        p.get(size)
        p.drop(*p.some(0.02 if p.rng.random() < 0.9 else 0.5))


def divisions(p: Program) -> None:
    """A power of two in every number of parts: on the part, a byte under and over it."""
    while p.more:
        power = 1 << p.rng.randint(9, 30)
        parts = 1 << p.rng.randint(0, 7)
        size = power + p.rng.randint(0, parts) * (power // parts) + p.rng.choice((-1, 0, 1))
        p.fit(size)
        p.get(size)
        if p.rng.random() < 0.5:
            p.drop(p.rng.choice(list(p.live)))


def convnet(p: Program) -> None:
    """Feature maps that shrink as channels grow, a workspace of any size beside each, and back again."""
    while p.more:
        batch = p.rng.randint(1, 48)
        side = p.rng.choice((28, 56, 112, 224))
        channels = 16
        kept = []
        for _ in range(p.rng.randint(3, 9)):
            kept.append(p.get(batch * channels * side * side * 2))
            p.drop(p.get(p.rng.choice((1, 7, 33, 150)) * MIB * p.rng.random()))
            if p.rng.random() < 0.6:
                side = max(1, side // 2)
                channels = channels * 2
        while kept:
            work = p.get(p.live[kept[-1]] * p.rng.choice((1, 1, 2)))
            p.drop(kept.pop(), work)


def catches(p: Program) -> None:
    """Asks for more until it is refused, gives back a part, and goes on with half of it: an except around every step."""
    batch = 1.0
    while p.more:
        for _ in range(p.rng.randint(4, 14)):
            p.get(batch * p.vram * p.rng.uniform(0.02, 0.2))
        p.drop(*p.some(p.rng.choice((0.3, 0.6, 1))))
        batch = p.rng.choice((batch / 2, 1.0)) if batch > 0.05 else 1.0
        if p.rng.random() < 0.3:
            p.say("empty_cache")


def chains(p: Program) -> None:
    """Blocks handed on over nine streams, with events that complete late."""
    while p.more:
        home = p.rng.randint(0, 8)
        size = p.rng.choice((900, 70_000, MIB, 3 * MIB, 26 * MIB))
        size *= p.rng.uniform(0.5, 1.5)
        p.fit(size)
        number = p.get(size, stream=home, via="tensor")
        for stream in p.rng.sample(range(9), p.rng.choice((0, 0, 1, 2, 5))):
            p.say("record_stream", id=number, stream=stream)
        p.drop(*p.some(0.05))
        turn = p.rng.random()
        if turn < 0.05:
            p.say("events_hold", on=turn < 0.03)
        elif turn < 0.09:
            p.say(p.rng.choice(("events_complete", "synchronize", "empty_cache")))


def holes(p: Program) -> None:
    """Runs of blocks with holes between them, while others take and leave the card."""
    while p.more:
        unit = p.rng.choice((0.4, 1.5, 9, 19, 21, 45)) * MIB
        count = p.rng.randint(3, 30)
        run = [p.get(unit * p.rng.uniform(0.9, 1.1)) for _ in range(count)]
        p.drop(*run[p.rng.randint(0, 1) :: p.rng.randint(2, 4)])
        if p.rng.random() < 0.4:
            p.say("foreign", bytes=int(p.vram * p.rng.uniform(0, 0.6)))
        if p.rng.random() < 0.2:
            p.say("fail_next", n=p.rng.randint(1, 3))
        p.get(unit * p.rng.uniform(1, 6))
        if p.rng.random() < 0.5:
            p.say("empty_cache")
        p.drop(*p.some(0.7))


def ages(p: Program) -> None:
    """Cached segments of every age, as phases use sizes of their own and come back to them."""
    phases = [[p.rng.uniform(1, 60) * MIB for _ in range(4)] for _ in range(5)]
    while p.more:
        for _ in range(p.rng.randint(1, 6)):
            used = [p.get(size) for size in p.rng.choice(phases) if p.fit(size, 0.6) is None]
            p.drop(*(number for number in used if p.rng.random() < 0.9))
        if p.rng.random() < 0.05:
            p.say("set_fraction", fraction=round(p.rng.uniform(0.4, 1), 2))
        if p.rng.random() < 0.05:
            p.say("reset_peak")


def changes(p: Program) -> None:
    """Settings changed on the way, some of them refused. max_split_size_mb stays as it is: torch ends where it shrinks."""
    kept = [part for part in p.conf.split(",") if part.startswith("max_split")]
    while p.more:
        for _ in range(p.rng.randint(5, 40)):
            size = p.rng.choice((600, 90_000, MIB, 4 * MIB, 30 * MIB)) * p.rng.uniform(0.3, 2)
            p.fit(size, 0.7)
            p.get(size)
            p.drop(*p.some(0.1))
        new = p.rng.choice((p.rng.choice(ODD[1:-2]), *settings(p.rng, whole=False)))
        p.say("set_conf", conf=",".join([*kept, new]))


def serving(p: Program) -> None:
    """Weights, then requests that come and go: a prompt at once, then a cache that doubles where it is full."""
    for _ in range(p.rng.randint(3, 12)):
        p.get(p.vram * 0.03)
    weights = set(p.live)
    requests = []
    while p.more:
        if len(requests) < 12 and p.rng.random() < 0.3:
            length = int(p.rng.lognormvariate(6, 1))
            p.drop(p.get(length * 11_008 * 2), p.get(length * length * 4))
            requests.append([p.get(length * 16_384), length, length])
        for request in list(requests):
            request[2] += p.rng.randint(1, 200)
            if request[2] > 2 * request[1]:
                new = p.get(2 * request[1] * 16_384)
                p.drop(request[0])
                request[0], request[1] = new, 2 * request[1]
            p.drop(p.get(request[2] * 64), p.get(32_000 * 4))
            if p.rng.random() < 0.06 or sum(p.live.values()) > 0.95 * p.vram:
                p.drop(request[0])
                requests.remove(request)
        if not requests:
            p.drop(*(number for number in p.some(0.01) if number not in weights))


def pools(p: Program) -> None:
    """Private pools, as graphs have them: filled, used again, and given up once nothing in them lives."""
    home: dict[int, set[int]] = {}
    states: dict[int, list[int]] = {}  # of the random numbers, which each graph of torch 2.13 has
    last = 0
    while p.more:
        if len(home) < 3 or p.rng.random() < 0.1:
            last += 1
            home[last] = set()
        pool = p.rng.choice([0, *home])
        size = p.rng.choice((2_000, MIB, 7 * MIB, 24 * MIB))
        size *= p.rng.uniform(0.4, 1.4)
        if sum(p.live.values()) + size > 0.8 * p.vram:
            p.drop(*p.some(0.6))
        where = {"pool": pool, "stream": 1 + pool % 8}
        if pool % 2:
            where |= {"mempool": True}
            if not p.torch.startswith(
                "2.4."
            ):  # which takes a private pool on the default stream for a mistake
                where.pop("stream")
        elif pool and p.torch.startswith("2.13."):
            p.say("synchronize")  # as its capture_begin does
            for state in (10 * p.made + 11, 10 * p.made + 12):
                p.say("alloc", id=state, size=8, via="generator", **{"for": [pool, 1 + pool % 8]})
                states.setdefault(pool, []).append(state)
        number = p.get(size, via="tensor", **(where if pool else {}))
        if p.rng.random() < 0.1:
            p.say("record_stream", id=number, stream=p.rng.randint(0, 8))
        home.get(pool, set()).add(number)
        p.drop(*p.some(0.08))
        turn = p.rng.random()
        if turn < 0.09:
            p.say("empty_cache") if turn < 0.05 else p.say("events_hold", on=turn < 0.06)
        if len(home) > 3:
            gone = p.rng.choice(list(home))
            p.drop(*home.pop(gone))
            for state in sorted(states.pop(gone, ()), key=lambda one: (one // 10, -one)):
                p.say("free", id=state, via="generator")
            p.say("empty_cache", pool=gone)


KINDS: tuple[Callable[[Program], None], ...] = (
    *(borders, divisions, convnet, catches, chains, holes, ages, changes, serving, pools),
)


def settings(r: random.Random, whole: bool = True) -> list[str]:
    """One of each family of settings, its numbers drawn; ``whole``: with those that a running program must not change."""
    split = f"max_split_size_mb:{r.choice((20, 21, 35, 64, 200, 1000))}"
    gc = f"garbage_collection_threshold:{r.choice((0.05, 0.4, 0.75, 0.99))}"
    parts = f"roundup_power2_divisions:{1 << r.randint(0, 6)}"
    keys = sorted(r.sample(range(0, 12), r.randint(1, 4)))
    each = [f"{1 << key}:{1 << r.randint(0, 5)}" for key in keys] + [f">:{1 << r.randint(0, 4)}"]
    table = f"roundup_power2_divisions:[{','.join(each)}]"
    large = f"large_segment_size_mb:{2 * r.randint(6, 60)}"
    grows = "expandable_segments:True"
    found = ["", gc, parts, table, large, f"{gc},{table}", f"{large},{parts}"]
    found += ["pinned_use_background_threads:True", f" {parts} , {gc}"]
    if whole:
        found += [split, f"{split},{gc}", f"{split},max_non_split_rounding_mb:{r.randint(1, 90)}"]
        found += [
            grows,
            f"{grows},{split}",
            f"{grows},{gc}",
            f"{grows},{table}",
            f"{grows},{large}",
        ]
        found += [f"per_process_memory_fraction:{r.uniform(0.3, 1):.2f},{gc}"]
        found += ["throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.6"]
        found += [f"{split},{table},{gc},release_lock_on_cudamalloc:True", r.choice(ODD)]
    return found


def fresh(count: int, seed: int, torch: str = "") -> Iterator[tuple[dict, list[dict]]]:
    """``count`` jobs for a release, the kinds in turn."""
    for number in range(count):
        r = random.Random(f"programs/{seed}/{number}")
        kind = KINDS[number % len(KINDS)]
        conf = r.choice(settings(r))
        if kind is holes and r.random() < 0.6 and "expandable" not in conf:
            conf = ",".join(filter(None, ("expandable_segments:True", conf)))
        if number % 4 == 1 and "segments:True" in conf and torch.startswith("2.15."):
            conf += f",expandable_segments_reserve:{RESERVES[number // 4 % len(RESERVES)]}"
        vram = r.choice((64, 200, 512, 1024, 6 << 10, 24 << 10, 80 << 10, 192 << 10)) * MIB
        program = Program(r, conf, vram, torch)
        kind(program)
        job = {"name": f"p{number:04d}_{kind.__name__}", "conf": conf, "vram": vram}
        fraction = r.choice((None, None, None, 1.0, round(r.uniform(0.2, 1), 3)))
        job |= {"fraction": fraction, "foreign": r.choice((0, 0, vram // 10))}
        job["policy"] = r.choice(("firstfit", "firstfit", "topdown", "monotonic"))
        yield job, program.ops
