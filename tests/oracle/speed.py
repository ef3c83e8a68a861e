"""Events a second of the real allocator under a tight Python loop: what a replay by the model is compared with."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from pathlib import Path

from tests.oracle import build, run

EVENTS = 200_000
VRAM = 8 << 30


def trace(events: int = EVENTS, seed: int = 5) -> list[int]:
    """A mixed trace as whole numbers: n > 0 allocates n bytes, n <= 0 frees the block of allocation -n, counted from 0."""
    rng = random.Random(seed)
    out: list[int] = []
    live: list[int] = []
    made = 0
    while len(out) < events:
        if live and (len(live) >= 400 or rng.random() < 0.48):
            out.append(-live.pop(rng.randrange(len(live))))
        else:
            out.append(int(512 * 2 ** rng.uniform(0, 14)))
            live.append(made)
            made += 1
    return out


def operations(numbers: list[int]) -> list[dict]:
    """The same trace in the oracle's operations, for the model."""
    made = iter(range(len(numbers)))
    return [
        {"op": "alloc", "id": next(made), "size": n} if n > 0 else {"op": "free", "id": -n}
        for n in numbers
    ]


# The child's own program: standard library and torch. The best of five passes; each leaves nothing allocated and a full cache.
_LOOP = """
import ctypes, json, sys, time
import torch
ops = json.load(open(sys.argv[1]))
torch.cuda.init()
ctypes.CDLL(None).fake_cuda_log_on(0)
allocate, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
def once():
    blocks = []
    put = blocks.append
    began = time.perf_counter()
    for n in ops:
        if n > 0:
            put(allocate(n, 0))
        else:
            delete(blocks[-n])
            blocks[-n] = 0
    seconds = time.perf_counter() - began
    for block in blocks:
        if block:
            delete(block)
    return seconds
def empty():
    began = time.perf_counter()
    blocks = []
    put = blocks.append
    for n in ops:
        if n > 0:
            put(n)
        else:
            blocks[-n] = 0
    return time.perf_counter() - began
seconds, loop = min(once() for _ in range(5)), min(empty() for _ in range(5))
print(json.dumps({"torch": torch.__version__, "events": len(ops), "seconds": seconds, "events_per_s": len(ops) / seconds,
                  "empty_loop_s": loop}))
"""


def line(oracle: run.Oracle) -> str:
    """JSON: torch, events, seconds, events_per_s, empty_loop_s (the Python loop alone). Raises NotRun."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ops.json")
        file.write_text(json.dumps(trace()))
        done = subprocess.run(
            [oracle.python, "-c", _LOOP, str(file)],
            env={**oracle.env, "FAKE_VRAM_BYTES": str(VRAM)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise build.NotRun(
            f"the loop ended with {done.returncode}: {words[-1] if words else 'nothing was printed'}"
        )
    return done.stdout.strip()
