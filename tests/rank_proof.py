"""Ranks of a job, each rehearsed without the others, held against true ranks on cards that are not there.

    python tests/rank_proof.py --world 2 --world 4        (make rank-proof)
    python tests/rank_proof.py --world 2 --way fsdp2      one way of sharing a model

For each way of tests/programs/rehearse/ranks.py: torchrun with all ranks, then the first and the last rank alone. Both peaks
that the program prints, in use and reserved, are compared. Needs torch 2.14.1, installed into the cache folder at the first
use. Ends 1 where a rank alone has another peak than its twin, or fails where that does not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests" / "programs" / "rehearse" / "ranks.py"
TORCH = "2.14.1"
WAYS = "ddp fsdp fsdp2 fsdp2_meta tensor pipeline context experts".split()
REFUSED = {"pipeline_bare": "requires dynamic shape inference"}
"""Ways that a rank alone cannot take, and what its error says."""
PEAKS = re.compile(r"peaks of rank (\d+): (\d+) (\d+)")
LINE = "{:<15}{:>6}{:>6}{:>15}{:>15}   {}"

Peaks = dict[int, tuple[int, int]]
"""In use and reserved, by rank."""


def rehearsed(
    folder: Path, world: int, options: list[str], command: list[str]
) -> tuple[Peaks, str]:
    """What the program printed of each rank, and what all of its runs wrote."""
    card = ["--gpu", "4090", "--gpus", str(world), "--torch", TORCH, "--setup"]
    out = ["--no-counterfactual", "--force", "--json", "--out", str(folder / "run.pickle")]
    argv = [sys.executable, "-m", "helpers", "rehearse", *card, *out, *options, "--", *command]
    subprocess.run(argv, cwd=ROOT, capture_output=True, check=False)
    written = "".join(path.read_text() for path in sorted(folder.glob("*.record/output.txt")))
    peaks = {int(rank): (int(used), int(held)) for rank, used, held in PEAKS.findall(written)}
    return peaks, written


def compare(way: str, world: int) -> list[tuple[str, bool]]:
    """A line for each rank, and whether it holds."""
    ranks = [0, world - 1]
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        launcher = ["torchrun", "--nproc_per_node", str(world), str(PROGRAM), way]
        true, _ = rehearsed(Path(folder), world, [], launcher)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        options = ["--world", str(world), "--ranks", ",".join(map(str, ranks))]
        alone, written = rehearsed(Path(folder), world, options, ["python", str(PROGRAM), way])
    if way in REFUSED:
        holds = not alone and REFUSED[way] in written
        says = "refused by name" if holds else "expected to be refused"
        return [(LINE.format(way, world, "", "", "", says), holds)]
    rows = []
    for rank in ranks:
        used, held = true.get(rank, (0, 0))
        used_alone, held_alone = alone.get(rank, (0, 0))
        off = f"{used_alone - used:+,} in use, {held_alone - held:+,} reserved"
        holds = rank in true and alone.get(rank) == true[rank]
        says = "equal" if holds else off
        rows.append((LINE.format(way, world, rank, f"{used:,}", f"{held:,}", says), holds))
    return rows


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    every = [*WAYS, *REFUSED]
    parser.add_argument("--world", action="append", type=int, help="default: 2 and 4")
    parser.add_argument("--way", action="append", choices=every, help="default: all")
    options = parser.parse_args()
    print(LINE.format("way", "world", "rank", "in use", "reserved", "alone"))
    failures = 0
    for world in options.world or [2, 4]:
        for way in options.way or every:
            for line, holds in compare(way, world):
                print(line, flush=True)
                failures += not holds
    print(f"rank-proof: {failures} ranks that differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
