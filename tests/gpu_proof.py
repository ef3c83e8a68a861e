"""On a machine with a GPU: stress patterns, volume profiles and fixes for real, the model's answer beside, as one JSON record.

    make gpu-proof        or, where only torch, numpy and numba are at hand:   python tests/gpu_proof.py --python python3

Plain allocations only, within a limit (80 % of what is free unless --limit says less), each run in a child process. Needs no
Jupyter and no network. Ends 1 where a figure differs, 3 where there was no GPU to prove anything on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from proof_fixes import fixes_part  # noqa: E402 -- a program beside this one

from helpers.allocator.circumstances import (  # noqa: E402
    AMPLE_BYTES,
    agreement,
    circumstances,
)
from helpers.allocator.driver import Card  # noqa: E402 -- the checkout stands first on sys.path, whatever lies beside it
from helpers.allocator.outcome import ReplayError  # noqa: E402
from helpers.allocator.patterns import PATTERNS, generate  # noqa: E402
from helpers.allocator.replay import replay  # noqa: E402
from helpers.allocator.trace import Trace, TraceError  # noqa: E402
from helpers.allocator.trace_file import read_trace  # noqa: E402
from helpers.ground.units import parse_size  # noqa: E402
from helpers.trials.stress import StressResult, stress  # noqa: E402

SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8")
RUN_S = 40.0
SKIPPED = {"status": "skipped", "why": "the time is used up"}
PART_S = {"allocator": 330.0, "vpoc": 90.0, "fixes": 420.0}


def allocator_part(python: str, out: Path, limit_bytes: int | None, ends: float) -> dict:
    """Each pattern under each setting on the card, against the model, operation by operation; recorded snapshots too."""
    rows: list[dict] = []
    for conf in SETTINGS:
        for name in PATTERNS:
            if time.monotonic() > ends:
                rows.append({"pattern": name, "conf": conf, **SKIPPED})
                continue
            rows.append(_one(python, out, name, conf, limit_bytes))
            print(json.dumps(rows[-1]), flush=True)
            if rows[-1]["status"] == "not_available":
                return {"rows": rows, "status": "not_available", "why": rows[-1]["why"]}
    proved = [row for row in rows if "same" in row]
    same = all(row["same"] for row in proved)
    return {
        "rows": rows,
        "status": "failed" if not proved else "exact" if same else "differs",
        "compared": sum(row["compared"] for row in proved),
    }


def _one(python: str, out: Path, name: str, conf: str, limit_bytes: int | None) -> dict:
    made = generate(name)
    card = int(made.header["vram"])
    wanted = min(card, limit_bytes) if limit_bytes else card
    snapshot = out / f"{name}-{SETTINGS.index(conf)}.pickle"
    done = stress(python, made, wanted, RUN_S, conf=conf, snapshot=snapshot)
    names = ("status", "why", "torch", "build", "device", "limit_bytes", "ooms")
    row = {"pattern": name, "conf": conf, **{key: getattr(done, key) for key in names}}
    if done.status not in ("ok", "time"):
        return row
    return {**row, **compared(made, conf, done), **_snapshot(snapshot)}


def compared(made: Trace, conf: str, done: StressResult) -> dict:
    """The model on the same operations: outcome, allocated and reserved bytes after each of them."""
    model = done.replayed(made, conf)
    outs, allocated, reserved = (model.column(key) for key in ("out", "allocated", "reserved"))
    words = {0: "ok", 1: "oom", 2: "skipped"}
    differing = [
        i
        for i, how, *sizes in done.rows
        if how != "left_out"
        and (how, *sizes) != (words.get(int(outs[i])), int(allocated[i]), int(reserved[i]))
    ]
    stats = {
        "reserved_bytes.all.peak": model.figure("reserved_bytes", "peak"),
        "num_alloc_retries": model.counter("num_alloc_retries"),
        "num_ooms": model.counter("num_ooms"),
    }
    other = {
        key: [done.stats[key], value]
        for key, value in stats.items()
        if done.stats.get(key, value) != value
    }
    return {
        "compared": len(done.rows),
        "same": not differing and not other and bool(done.rows),
        "differing": len(differing),
        "first_differing": differing[:1],
        "stats_differing": other,
    }


def _snapshot(path: Path) -> dict:
    """The card's own snapshot read back and replayed under the same settings."""
    if not path.exists():
        return {"snapshot": "not written"}
    try:
        recorded = read_trace(path)
    except TraceError as error:
        return {"snapshot": str(error)}
    known = circumstances(recorded)
    card = Card(AMPLE_BYTES, policy="recorded")
    under = {"torch": known.torch, "build": known.build, "timeline": True}
    try:
        model = replay(recorded, known.conf, card, **under)
    except ReplayError as error:
        return {"snapshot": path.name, "snapshot_agreement": None, "snapshot_why": str(error)}
    check = agreement(recorded, model)
    return {"snapshot": path.name, "snapshot_agreement": check._asdict() if check else None}


def vpoc_part(python: str, out: Path, limit_bytes: int | None, ends: float) -> dict:
    """Volume profiles on the card: the same bits as the fused pass on the CPU, and the peak beside its closed form."""
    from tempfile import TemporaryDirectory

    import numpy as np

    from helpers.vpoc.counting import STRATEGIES, profiles
    from helpers.vpoc.measure import measure
    from helpers.vpoc.planner import predicted_bytes, shape_of
    from helpers.vpoc.store import write_store
    from helpers.vpoc.trades import generated

    rows: list[dict] = []
    with TemporaryDirectory(prefix="casebook-proof-") as folder:
        store = write_store(Path(folder, "store"), generated(1014, 20_000), 1000)
        want = profiles(store.trades, store.layout)
        shape = shape_of(store.trades, store.layout)
        for name in (name for name, way in STRATEGIES.items() if way.torch):
            if time.monotonic() > ends:
                rows.append({"strategy": name, **SKIPPED})
                continue
            how = {"device": "cuda:0", "counts": True, "repeats": 3, "torch_python": python}
            got = measure(name, store, **how, sessions=2 if name == "one_hot" else None)
            row = {"strategy": name, "status": got.status, "why": got.why, "seconds": got.best_s}
            sizes = {"peak_bytes": got.peak_bytes, "predicted_bytes": predicted_bytes(name, shape)}
            rows.append({**row, **sizes})
            if got.counts is not None:
                rows[-1]["same"] = bool(np.array_equal(got.counts, want[: len(got.counts)]))
            elif got.status == "not_available":
                return {"rows": rows, "status": "not_available", "why": got.why}
            print(json.dumps(rows[-1]), flush=True)
    proved = [row["same"] for row in rows if "same" in row]
    return {
        "rows": rows,
        "status": "failed" if not proved else "exact" if all(proved) else "differs",
        "compared": len(proved),
    }


PARTS: dict[str, Callable[[str, Path, int | None, float], dict]] = {
    "allocator": allocator_part,
    "vpoc": vpoc_part,
    "fixes": fixes_part,
}
"""What is proved; each part gets the torch's Python, the folder, the limit in bytes and the time by which to end."""


def main() -> int:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    whose = "the interpreter whose torch sees the GPU"
    parser.add_argument("--python", default=sys.executable, help=whose)
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu-proof")
    parser.add_argument("--limit", default="", help="hold at most this much of it, such as 20GiB")
    only = "only this one; may be given again"
    parser.add_argument("--part", action="append", choices=list(PARTS), help=only)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    limit = parse_size(given.limit) if given.limit else None
    began = time.monotonic()
    record: dict = {"schema_version": 1, "parts": {}}
    for name in given.part or PARTS:
        ends = time.monotonic() + PART_S[name]
        record["parts"][name] = PARTS[name](given.python, given.out, limit, ends)
        record["seconds"] = round(time.monotonic() - began, 1)
        (given.out / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    states = {part["status"] for part in record["parts"].values()}
    print(f"gpu-proof: {', '.join(sorted(states))}; {given.out / 'record.json'}")
    return 3 if states == {"not_available"} else int(not states <= {"exact", "measured"})


if __name__ == "__main__":
    sys.exit(main())
