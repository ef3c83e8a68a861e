"""Results of the real allocator that are kept with the project, in tests/golden/VERSION/NAME.jsonl.xz."""

from __future__ import annotations

import lzma
from pathlib import Path

from tests.oracle import jobs, programs, run

FOLDER = Path(__file__).resolve().parents[1] / "golden"


def made(torch: str) -> list[tuple[jobs.Job, list[dict]]]:
    """The jobs whose results are kept for a release: for 2.15 one of each program, one that asks for more than a range has, and
    some with ranges of a given size."""
    if torch[:4] != "2.15":
        return jobs.golden(torch)
    each = list(programs.fresh(23, 4711))
    reserves = [one for one in programs.fresh(130, 4712, torch) if "reserve" in one[0]["conf"]]
    return each[:10] + each[22:] + reserves[1:3]


def write(oracle: run.Oracle, folder: Path) -> None:
    """Makes the results of one release anew. ``folder`` is for the work."""
    out = FOLDER / oracle.name
    out.mkdir(parents=True, exist_ok=True)
    for path in out.glob("*.xz"):
        path.unlink()
    for path in oracle.results(made(oracle.name), folder):
        (out / f"{path.name}.xz").write_bytes(
            lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
        )
    sizes = [path.stat().st_size for path in out.glob("*.xz")]
    print(f"{out}: {len(sizes)} results, {sum(sizes):,} bytes", flush=True)
