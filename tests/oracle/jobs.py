"""Which traces run under which settings: 36 configurations against twelve characters, seeded."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.oracle import characters
from tests.oracle.characters import GIB, MIB, Trace

CHARACTERS = [  # (name, how it writes, choices of device memory)
    ("uniform_small", characters.uniform_small, [64 * MIB, 256 * MIB, GIB]),
    ("pressure", characters.pressure, [256 * MIB, 640 * MIB, GIB, 10 * GIB]),
    ("llm", characters.llm, [512 * MIB, GIB, 8 * GIB]),
    ("fragment", characters.fragment, [256 * MIB, 700 * MIB, 2 * GIB]),
    ("decode", characters.decode, [64 * MIB, 256 * MIB, GIB]),
    ("boundary", characters.boundary, [512 * MIB, GIB, 4 * GIB]),
    ("vpoc", characters.vpoc, [64 * MIB, 160 * MIB, 512 * MIB]),
    ("shared_device", characters.shared_device, [512 * MIB, 2 * GIB]),
    ("hpo", characters.hpo, [128 * MIB, 512 * MIB, 2 * GIB]),
    ("streams", characters.streams, [256 * MIB, GIB]),
    ("growing", characters.growing, [256 * MIB, 512 * MIB, 4 * GIB]),
    ("mixed", characters.mixed, [256 * MIB, GIB, 3 * GIB]),
]
X = "expandable_segments:True"
LIST = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
# (settings, memory fraction, rule for addresses); None and firstfit are left out.
CONFIGURATIONS: list[tuple] = [
    ("",),
    ("max_split_size_mb:21",),
    ("max_split_size_mb:32",),
    ("max_split_size_mb:128",),
    ("max_split_size_mb:512",),
    ("garbage_collection_threshold:0.6", 0.95),
    ("garbage_collection_threshold:0.8", 0.9),
    ("garbage_collection_threshold:0.95", 0.99),
    ("garbage_collection_threshold:0.6",),
    ("garbage_collection_threshold:0.6", 1.0),
    ("roundup_power2_divisions:4",),
    ("roundup_power2_divisions:16",),
    ("roundup_power2_divisions:32",),
    (LIST,),
    ("roundup_power2_divisions:[1:8,4:4,64:2,>:1]",),
    (X,),
    (X + ",max_split_size_mb:32",),
    (X + ",garbage_collection_threshold:0.6", 0.9),
    (X + ",roundup_power2_divisions:16",),
    (X, 0.5),
    ("", 0.3),
    ("", 0.5),
    ("", 0.8),
    ("max_split_size_mb:32,garbage_collection_threshold:0.6", 0.8),
    ("max_split_size_mb:21,roundup_power2_divisions:4",),
    ("max_split_size_mb:128,garbage_collection_threshold:0.8," + LIST, 0.9),
    ("max_split_size_mb:32,max_non_split_rounding_mb:64",),
    ("max_split_size_mb:64,max_non_split_rounding_mb:20", 0.7),
    ("per_process_memory_fraction:0.5",),
    ("per_process_memory_fraction:0.7,garbage_collection_threshold:0.6",),
    ("large_segment_size_mb:64",),
    (X + ",large_segment_size_mb:64",),
    ("throw_on_cudamalloc_oom:True",),
    ("", None, "monotonic"),
    ("max_split_size_mb:32", 0.8, "topdown"),
    ("garbage_collection_threshold:0.7", 0.8, "monotonic"),
]
# What an old release is asked for the golden: the tie-break by address above all, and what every release knows.
OLD: list[tuple] = [
    ("mixed", ""),
    ("mixed", "", None, "topdown"),
    ("boundary", "", None, "topdown"),
    ("fragment", ""),
    ("pressure", ""),
    ("uniform_small", "", None, "topdown"),
    ("streams", ""),
    ("shared_device", "", None, "topdown"),
    ("llm", X),
    ("pressure", X, None, "topdown"),
    ("mixed", "garbage_collection_threshold:0.6", 0.8),
    ("boundary", "max_split_size_mb:32,garbage_collection_threshold:0.7", 0.8, "topdown"),
]
KINDS = {name: (write, memories) for name, write, memories in CHARACTERS}
Job = dict[str, object]


def make(
    kind: str,
    name: str,
    seed: str,
    lengths: tuple[int, int],
    conf: str,
    fraction: float | None = None,
    policy: str = "firstfit",
) -> tuple[Job, list[dict]]:
    """One job and its operations; the same for the same seed. ``lengths``: least and most operations, roughly."""
    write, memories = KINDS[kind]
    rng = random.Random(seed)
    vram = rng.choice(memories)
    trace = Trace(rng, rng.randint(*lengths))
    write(trace, rng, vram)
    how = {"fraction": fraction, "policy": policy, "foreign": 0}
    return {"name": name, "conf": conf, "vram": vram, **how}, trace.ops


def fresh(count: int, seed: int, events: int = 1000) -> list[tuple[Job, list[dict]]]:
    """``count`` jobs of about ``events`` operations; characters and configurations go round with different periods."""
    jobs = []
    for number in range(count):
        kind = CHARACTERS[number % len(CHARACTERS)][0]
        turn = number + number // len(CONFIGURATIONS)
        configuration = CONFIGURATIONS[turn % len(CONFIGURATIONS)]
        lengths = (events // 2, events * 3 // 2)
        name = f"{number:04d}_{kind}"
        jobs.append(make(kind, name, f"{seed}/{kind}/{number}", lengths, *configuration))
    return jobs


def golden(torch: str) -> list[tuple[Job, list[dict]]]:
    """The jobs whose results are kept with the project."""
    if torch == "2.14.1":
        return fresh(72, seed=23, events=560)
    made = [
        make(kind, f"{number:02d}_{kind}", f"31/{kind}/{number}", (300, 700), *configuration)
        for number, (kind, *configuration) in enumerate(OLD)
    ]
    if "+rocm" in torch:  # of AMD's build what is its own: the rest is as in the CUDA build
        made = [(job, ops) for job, ops in made if X in job["conf"] or "streams" in job["name"]]
    return made


def write(folder: Path, jobs: list[tuple[Job, list[dict]]]) -> list[Path]:
    """One file a job, NAME.jsonl: the job, then an operation a line."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for job, ops in jobs:
        files.append(folder / f"{job['name']}.jsonl")
        rows = (json.dumps(row, separators=(",", ":")) for row in ({"job": job}, *ops))
        files[-1].write_text("".join(row + "\n" for row in rows))
    return files
