"""Is anything lost when training, or a tuning study, is killed? Kills at every write boundary, and of whole processes.

    python tests/kill_campaign.py [--study] [--kills N] [--processes N] [--json]

With --study it is the tuning study that is killed (kill_study.py), else training:

Two campaigns, counted apart. By failpoints: torch is imported once, each life is a fork that ends itself by a real SIGKILL just
before a file is made, renamed or removed; without --kills every such boundary has its kill. By chance: whole processes, killed
from outside at random moments, each started anew from what is there. After each the whole state (parameters, optimizer, random
generators, order of the data, every loss) must have the bits of the undisturbed run; a step that was told as saved must never
be lost. A kill leaves the page cache as it is: a power cut is not tried here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import kill_study  # noqa: E402 -- a program beside this one

SPEC: dict[str, Any] = {
    "device": "cpu",
    "seed": 7,
    "vocab": 16,
    "width": 8,
    "layers": 1,
    "heads": 1,
    "length": 8,
    "batch": 100,
    "dropout": 0.1,
    "steps": 5,
}
"""Batches of 100 of 256 samples: the order of the data is drawn anew before steps 3 and 5."""


def life(folder: Path, told: int, at: int) -> None:
    """One process's life: go on from the newest checkpoint to the end, or to the ``at``-th write (0: none); tell every saved
    step, the number of writes and the digest."""
    from helpers.trials.under_torch import checkpoint
    from helpers.trials.under_torch.transformer import Run

    failpoint = kill_study.Failpoint(folder, at)
    failpoint.install()
    run = Run(SPEC)
    newest = checkpoint.load(folder)
    if newest:
        run.restore(newest[1])
    os.write(told, f"resumed {newest[0] if newest else 0}\n".encode())
    while len(run.losses) < SPEC["steps"]:
        step = len(run.losses) + 1
        run.step()
        os.write(told, f"stepped {step}\n".encode())
        checkpoint.save(folder, step, run.state())
        os.write(told, f"saved {step}\n".encode())
    os.write(told, f"writes {len(failpoint.names)}\ndigest {run.digest()}\n".encode())


def forked(folder: str, at: int) -> list[tuple[str, str]]:
    """A life in a fork: what it told. It may end before its kill, where little was left to do."""
    told, _ = kill_study.in_a_fork(lambda out: life(Path(folder), out, at))
    return [(line.split()[0], line.split()[1]) for line in told.splitlines()]


def last(words: list[tuple[str, str]], kind: str) -> int:
    return max((int(value) for word, value in words if word == kind), default=0)


def failpoint_kills(kills: int | None = None) -> dict[str, Any]:
    """Kills spread over the writes (None: one before each); one in seven is killed again as it recovers."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = forked(folder, 0)
    writes = last(undisturbed, "writes")
    count = kills or writes
    chosen = [1 + number * writes // count for number in range(count)]
    found = dict.fromkeys(("kills", "runs", "identical", "lost", "redone_steps"), 0)
    began = time.monotonic()
    for number, at in enumerate(chosen):
        with tempfile.TemporaryDirectory() as folder:
            lives = [forked(folder, at)]
            if number % 7 == 6:
                lives.append(forked(folder, 2))
            lives.append(forked(folder, 0))
        steps = sum(word == "stepped" for words in lives for word, _ in words)
        pairs = zip(lives, lives[1:], strict=False)
        found["runs"] += 1
        found["kills"] += sum(words[-1][0] != "digest" for words in lives)
        found["identical"] += lives[-1][-1] == undisturbed[-1]
        found["lost"] += sum(last(b, "resumed") < last(a, "saved") for a, b in pairs)
        found["redone_steps"] += steps - SPEC["steps"]
    of = {"boundaries": writes, "boundaries_killed_at": len(set(chosen))}
    return {**found, **of, "seconds": round(time.monotonic() - began, 1)}


def process_kills(kills: int = 20, steps: int = 400, seed: int = 1) -> dict[str, Any]:
    """One training killed from outside ``kills`` times, one in five while it starts, and finished; against one undisturbed."""
    from helpers.ground.child import json_row, program
    from helpers.trials.targets import environment
    from helpers.trials.training import ENVIRONMENT, PROGRAM, START_S

    rng = random.Random(seed)
    began = time.monotonic()
    found: dict[str, Any] = {"kills": 0, "kills_while_starting": 0, "lost": 0}

    def start(folder: str) -> subprocess.Popen[str]:
        run = {"steps": steps, "path": "resume", "name": "run", "folder": folder, "limit_s": 600}
        argv = program(sys.executable, PROGRAM, json.dumps({**SPEC, **run}))
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        env = environment(more=ENVIRONMENT)
        return subprocess.Popen(argv, env=env, start_new_session=True, **pipes)

    def lived(
        process: subprocess.Popen[str], kill_after_s: float | None, at_once: bool
    ) -> list[dict[str, Any]]:
        """What one life told. It is killed so long after its start (``at_once``), or after torch is there."""
        lines: list[dict[str, Any]] = []
        assert process.stdout is not None
        if kill_after_s is not None and at_once:
            time.sleep(kill_after_s)
            os.killpg(process.pid, signal.SIGKILL)
        for text in process.stdout:
            line = json_row(text)  # empty: the line that the kill cut
            lines += [line] if line else []
            if line.get("event") == "ready" and kill_after_s is not None and not at_once:
                # The pipe holds what is told meanwhile: 64 KiB, far more than a life tells.
                time.sleep(kill_after_s)
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(START_S)
        return lines

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        undisturbed = lived(start(other), None, False)[-1]
        told: list[int] = []
        while True:
            starting = found["kills"] < kills and found["kills"] % 5 == 4
            within_s = 3.0 if starting else undisturbed["seconds"] * 1.5 / kills
            kill = rng.uniform(0.0, within_s) if found["kills"] < kills else None
            lines = lived(start(folder), kill, starting)
            resumed = max((line["step"] for line in lines if line["event"] == "resumed"), default=0)
            # Killed before it could say where it goes on from, a life shows nothing.
            found["lost"] += any(
                line["event"] in ("resumed", "step") for line in lines
            ) and resumed < max(told, default=0)
            told += [line["step"] for line in lines if line["event"] == "step"]
            end = next((line for line in lines if line["event"] == "end"), None)
            if end is not None:
                break
            found["kills"] += 1
            found["kills_while_starting"] += starting
    found.update(
        identical=end["digest"] == undisturbed["digest"],
        steps=steps,
        told_twice=len(told) - len(set(told)),
    )
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    every = "kills at failpoints (default: one at every boundary)"
    parser.add_argument("--kills", type=int, help=every)
    parser.add_argument("--processes", type=int, default=20, help="kills of whole processes")
    instead = "kill a tuning study instead of a training"
    parser.add_argument("--study", action="store_true", help=instead)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    whose = kill_study if arguments.study else sys.modules[__name__]
    found = {"failpoints": whose.failpoint_kills(arguments.kills)}
    if arguments.processes:
        found["processes"] = whose.process_kills(arguments.processes)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        words = (f"{key.replace('_', ' ')} {value}" for key, value in figures.items())
        print(f"{name}: {', '.join(words)}")


if __name__ == "__main__":
    main()
