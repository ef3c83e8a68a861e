"""Is anything lost when training, or a tuning study, is killed? A kill before every write.

    python tests/kill_campaign.py [--study] [--kills N] [--json]

With --study it is the tuning study that is killed (kill_study.py), else training: torch is imported once, each life is a fork
that ends itself by a real SIGKILL just before a file is made, renamed or removed; without --kills every such boundary has its
kill. After each the whole state (parameters, optimizer, random generators, order of the data, every loss) must have the bits
of the undisturbed run; a step that was told as saved must never be lost. A kill leaves the page cache as it is: a power cut
is not tried here.
"""

from __future__ import annotations

import argparse
import json
import os
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


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("--kills", type=int, help="so many kills (default: one before every write)")
    instead = "kill a tuning study instead of a training"
    parser.add_argument("--study", action="store_true", help=instead)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    kills = kill_study.failpoint_kills if arguments.study else failpoint_kills
    found = kills(arguments.kills)
    if arguments.json:
        print(json.dumps(found))
    else:
        print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
