"""A night of invented runs for the tests of pages, comparisons and histories: many boxes, several nodes, every state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import nbformat
from tell_boxes import VERDICT, probe

from helpers.batch.shapes import Run

NOTEBOOKS = (
    *("01_hardware_probe", "02_allocator_stress", "03_ttm_gtt_analysis", "04_vpoc_chunking"),
    "06_training_paths",
)
BOXES = ("strix-halo", "rx7900xt-container", "mi300x-8", "h200", "cpu-only", "laptop")
DIED = {"cause": "the kernel was killed by SIGKILL; the kernel log says out of memory"}
DIED |= {"signal": "SIGKILL", "failing_cell": 7, "strikes": 1}
DIED |= {"last_words": "amdgpu: bo 0x7f21 pinned\nGPU memory access fault by GPU node-1"}
DIED |= {"files": ["kernel.stderr", "stacks.txt", "notebook.ipynb"]}
LATE = {"cause": "passed the limit of 120 s of cell 5", "files": ["stacks.txt"], "strikes": 1}
LATE |= {"last_words": 'Thread 0x7f (most recent call first):\n  File "train.py", line 41 in step'}
STUCK = {"cause": "SIGKILL does not end python (4711)", "quarantined": "gpu 0000:03:00.0"}
STUCK |= {"gate": "process 4711 holds 12.40 GiB of it", "strikes": 1}
ENDS: tuple[tuple[str, int, dict[str, Any]], ...] = (  # state, how often, what its record says
    ("answered", 70, {}),
    ("failed", 6, {"cause": "KeyError: 'gtt', cell 4", "failing_cell": 4}),
    ("died", 6, DIED),
    ("timed_out", 4, LATE),
    ("stuck", 2, STUCK),
    ("rebooted", 1, {"cause": "started under another boot", "strikes": 1}),
    ("node_lost", 1, {"cause": "its node is silent", "strikes": 1}),
    ("skipped", 6, {"cause": "quarantine: gpu 0000:03:00.0", "stopped_by": "quarantine"}),
    ("planned", 4, {}),
)


def night(
    folder: Path, count: int, seed: int = 8, verdict: Any = VERDICT, notebooks: bool = False
) -> Path:
    """A batch of ``count`` records in ``folder``, the same for the same seed."""
    chance = random.Random(seed)
    for number in range(count):
        name = NOTEBOOKS[number % len(NOTEBOOKS)]
        state, _, about = chance.choices(ENDS, [weight for _, weight, _ in ENDS])[0]
        ran = state not in ("skipped", "planned")
        run = Run(
            run_id=f"{number:04d}-{name}-{number * 7919 % 65521:08x}",
            batch_id=folder.name,
            box=chance.choice(BOXES),
            notebook=f"{name}.ipynb",
            parameters={"steps": number % 7},
            state=state,
            node=f"node-{number % 3}",
            seconds=round(chance.uniform(2, 90), 2) if ran else None,
            tool_version="0.2.0",
            plan_sha256="cd" * 32,
            started_at="2026-11-21T03:00:00Z" if ran else "",
            ended_at="2026-11-21T03:01:00Z" if ran else "",
            attempt=2 if number % 29 == 3 and ran else 1,
            cells={"completed": 7} if ran else {},
            verdict=verdict if state == "answered" else None,
            **about,
        )
        here = folder / run.run_id
        here.mkdir(parents=True)
        (here / "run.json").write_text(run.model_dump_json())
        if run.attempt > 1:
            (here / "earlier" / "1").mkdir(parents=True)
            before = run.model_copy(
                update={"attempt": 1, "state": "died", "cause": "its batch ended", "verdict": None}
            )
            (here / "earlier" / "1" / "run.json").write_text(before.model_dump_json())
        if notebooks and state == "answered":
            nbformat.write(probe(), here / "notebook.ipynb")
    return folder
