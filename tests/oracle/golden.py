"""Results of the real allocator that are kept with the project, in tests/golden/VERSION/NAME.jsonl.xz."""

from __future__ import annotations

import lzma
from pathlib import Path

from tests.oracle import jobs, run

FOLDER = Path(__file__).resolve().parents[1] / "golden"


def write(oracle: run.Oracle, folder: Path) -> None:
    """Makes the results of one release anew. ``folder`` is for the work."""
    out = FOLDER / oracle.torch
    out.mkdir(parents=True, exist_ok=True)
    for path in out.glob("*.xz"):
        path.unlink()
    for path in oracle.results(jobs.golden(oracle.torch), folder):
        (out / f"{path.name}.xz").write_bytes(
            lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
        )
    sizes = [path.stat().st_size for path in out.glob("*.xz")]
    print(f"{out}: {len(sizes)} results, {sum(sizes):,} bytes", flush=True)
