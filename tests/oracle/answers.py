"""Asks the real allocator whether a what-if was right: its request stream, under the setting it names and the default ones.

    python -m tests.oracle.answers --torch 2.14.1 SNAPSHOT...

Each snapshot at 90, 75 and 50 % of its peak reserved bytes. Ends 1 where the real allocator and the model differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from helpers.allocator.capacity import prepared
from helpers.allocator.circumstances import circumstances
from helpers.allocator.driver import Card
from helpers.allocator.oracle_lines import op_lines
from helpers.allocator.replay import replay
from helpers.allocator.trace_file import read_trace
from helpers.allocator.whatif import whatif
from tests.oracle import compare, run

SHARES = (90, 75, 50)
GRANULE = 2 << 20


def questions(path: Path, torch: str) -> list[tuple[dict, list[dict], str]]:
    """(job, operations, what is asked) of one snapshot: what whatif named and the default settings, on each card."""
    trace = read_trace(path)
    known = circumstances(trace)
    peak = replay(trace, known.conf, Card(1 << 44), torch=known.torch).peak_reserved_bytes
    asked = []
    for share in SHARES:
        card = Card(-(-peak * share // 100 // GRANULE) * GRANULE)
        try:
            stream, _, _ = prepared(trace, card, anew=True)
            answer = whatif(stream, card, torch=torch)
        except ValueError as error:
            print(f"{path.stem} at {share} %: {error}")
            continue
        capacity = card.capacity_bytes
        needs = answer.needs_settings
        cards = [(answer.use, capacity), ("", capacity)]
        says = f"use {answer.use or 'default'}"
        if answer.needs_bytes:
            enough = capacity + answer.needs_bytes
            cards = [("", capacity), (needs, enough), (needs, enough - GRANULE)]
            says = f"needs {answer.needs_bytes:,} more"
        for number, (conf, size) in enumerate(dict.fromkeys(cards)):
            job = {"name": f"{path.stem}-{share}-{number}", "conf": conf, "vram": size}
            job |= {"fraction": None, "policy": "firstfit", "foreign": 0, "env": {}}
            asked.append((job, list(op_lines(stream)), f"{path.stem} at {share} %: {says}"))
    return asked


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("snapshot", nargs="+", type=Path)
    parser.add_argument("--torch", default="2.14.1")
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="oracle-"))
    folder.mkdir(parents=True, exist_ok=True)
    oracle = run.prepare(given.torch, folder.resolve(), sys.executable)
    asked = [one for path in given.snapshot for one in questions(path, given.torch)]
    differing = 0
    results = oracle.results([(job, ops) for job, ops, _ in asked], folder / "answers")
    for (job, ops, says), path in zip(asked, results, strict=True):
        real = compare.read(path)
        failed = sum(row.get("out") == "oom" for row in real)
        told = compare.first_difference(real, compare.model(job, ops, oracle.torch))
        differing += bool(told)
        print(
            f"{says}; {job['conf'] or 'default'} on {job['vram']:,}: the real allocator fails {failed} requests; "
            f"{told or 'every event as in the model'}",
            flush=True,
        )
    print(f"{len(asked)} questions, {differing} differing")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
