"""Rehearsals held against themselves and the model: each kind of training, twice over, out of memory at 70 %, replayed exactly.

    python tests/rehearse_proof.py --torch 2.14.1 --torch 2.6.0        (make rehearse-proof)
    python tests/rehearse_proof.py --torch 2.14.1 --expandable         (two programs, one of them on several streams)

Each row: two runs on an ample card with the same events, one on 70 % of its peak that ends in torch's own OutOfMemoryError, and
the replay of all three under the model of the allocator, address by address. Installs each torch alone (0.6 to 0.8 GB to
download) and takes it away. Ends 1 where a row does not hold, 3 where a release could not be had.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from helpers.allocator import snapshot  # noqa: E402 -- the checkout stands first on sys.path, whatever lies beside it
from helpers.allocator.circumstances import (  # noqa: E402
    AMPLE_BYTES,
    agreement,
    circumstances,
    with_record,
)
from helpers.allocator.driver import Card  # noqa: E402
from helpers.allocator.outcome import ReplayError  # noqa: E402
from helpers.allocator.replay import replay  # noqa: E402
from helpers.allocator.trace_file import read_trace  # noqa: E402
from helpers.look.cards import find_card  # noqa: E402
from helpers.rehearse import Rehearsal, build, rehearse, torches  # noqa: E402

PROGRAM = ROOT / "tests" / "programs" / "rehearse" / "steps.py"
MODELS = ("mlp", "transformer", "convnet", "lstm")
PRECISIONS = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("sgd", "adamw", "adamw-fused", "adamw-loop")
FEATURES = ("none", "checkpoint", "streams", "expandable", "graphs")
EXPANDABLE = ("transformer", "fp32", "adamw", "expandable"), ("mlp", "bf16", "adamw", "streams")
SHARE = 0.7
GRANULE = 2 << 20


def rows() -> list[tuple[str, str, str, str]]:
    """Every model under every precision and optimizer, the features dealt round so that each model has each; mixed."""
    kinds = itertools.product(MODELS, PRECISIONS, OPTIMIZERS)
    made = [(*one, FEATURES[number % len(FEATURES)]) for number, one in enumerate(kinds)]
    random.Random(10).shuffle(made)
    return made


def events(path: Path) -> list[tuple]:
    return [
        (one.action, one.address, one.size, one.stream, one.pool)
        for one in snapshot.load(path).events
    ]


def exact(done: Rehearsal) -> tuple[str, str]:
    """What differs where the model replays a rehearsal on its card and settings (empty: nothing), and how much was compared."""
    assert done.trace is not None
    recorded = with_record(read_trace(done.trace), done.trace)
    known = circumstances(recorded)
    card = Card(known.capacity_bytes or AMPLE_BYTES, policy="recorded")
    under = {"torch": known.torch, "build": known.build, "timeline": True}
    try:
        outcome = replay(recorded, known.conf, card, **under)
    except ReplayError as error:
        return f"not replayed: {error}", ""
    check = agreement(recorded, outcome)
    if check is None:
        return "replay: nothing to compare", ""
    compared = f"{check.same_address}/{check.allocations} addresses, {check.by_offset} by offset"
    if not check.exact:
        return f"replay: {check}", compared
    differs = f"replay: {outcome.ooms} out of memory, recorded {done.ooms}"
    return differs if bool(outcome.ooms) != bool(done.ooms) else "", compared


def one(
    row: tuple[str, str, str, str],
    torch: torches.Torch,
    python: str,
    place: Path,
    work: Path,
    conf: str = "",
) -> dict:
    """What came of a row; ``wrong`` is empty where it holds."""
    named = zip(("--model", "--precision", "--optimizer", "--feature"), row, strict=True)
    command = [python, str(PROGRAM), *itertools.chain(*named)]
    conf = "expandable_segments:True" if row[3] == "expandable" else conf
    name = "-".join(row)
    run = partial(rehearse, command, torch=torch, cache=place, conf=conf)

    def on(size: str, at: int) -> Rehearsal:
        out = work / f"{name}-{at}"
        return run(find_card("", size), out, log=out.with_name(f"{out.name}.log"))

    first, again = on("1TiB", 1), on("1TiB", 2)
    names = ("model", "precision", "optimizer", "feature")
    told = {**dict(zip(names, row, strict=True)), "torch": first.torch}
    told["peak_bytes"] = first.peak_reserved_bytes
    if not (first.fits and again.fits and first.trace and again.trace):
        why = first.error or first.why_no_trace or again.error
        return {**told, "events": 0, "wrong": f"did not finish: {why}"}
    seen = events(first.trace)
    same = seen == events(again.trace) and first.peak_reserved_bytes == again.peak_reserved_bytes
    wrong = [] if same else ["not the same twice"]
    small = on(str(int(first.peak_reserved_bytes * SHARE) // GRANULE * GRANULE), 3)
    ran_out = small.ooms and small.exit_code == 1 and small.error.startswith("OutOfMemoryError")
    if not (ran_out and small.trace):
        end = f"{small.exit_code}, {small.ooms} out of memory, {small.error[:60]}"
        wrong.append(f"at {SHARE:.0%}: ended with {end}")
    replays = {}
    for what, done in (("ample", first), ("small", small)):
        why, replays[what] = exact(done) if done.trace else ("", "")
        wrong += [f"{what}: {why}"] if why else []
    told |= {"exact": first.exact, "replays": replays}
    return {**told, "events": len(seen), "wrong": "; ".join(wrong)}


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    release = "a release with a CUDA wheel; may be given again"
    add("--torch", action="append", metavar="VERSION", help=release)
    add("--python", default=sys.executable, help="the Python that installs and runs torch")
    add("--cache", type=Path, help="where torch is, or is put and stays; else a folder that goes")
    add("--only", default="", help="rows with this word alone")
    two = "two programs with expandable segments, one on several streams, and what was compared"
    add("--expandable", action="store_true", help=two)
    add("--jobs", type=int, default=2)
    add("--out", type=Path, default=ROOT / "outputs" / "rehearse-proof.json")
    given = parser.parse_args()
    place = given.cache or Path(tempfile.mkdtemp(prefix="rehearse-proof-"))
    found = []
    missing = False
    began = time.monotonic()
    for version in given.torch or ["2.14.1", "2.6.0"]:
        try:
            build.tools()
            torch, where = torches.find_torch(given.python, version, place)
            torch = torch or torches.install(given.python, version, where)
            build.build(torch, place)
        except torches.NotReady as error:
            missing = True
            print(f"torch {version} not run because {error}", flush=True)
            continue
        every = EXPANDABLE if given.expandable else rows()
        chosen = [row for row in every if not given.only or given.only in row]
        conf = "expandable_segments:True" if given.expandable else ""
        scratch = tempfile.TemporaryDirectory(prefix="rehearse-proof-work-")
        with scratch as work, ThreadPoolExecutor(given.jobs) as pool:
            place_of = {"torch": torch, "python": given.python, "place": place}
            place_of |= {"work": Path(work), "conf": conf}
            for told in pool.map(partial(one, **place_of), chosen):
                found.append(told)
                names = "{torch:<14}{model:<12}{precision:<6}{optimizer:<12}{feature:<11}"
                size = f"{told['events']:>7,} events{told['peak_bytes'] >> 20:>7} MiB"
                print(names.format(**told), size, "", told["wrong"] or "holds", flush=True)
                for what, compared in told.get("replays", {}).items() if given.expandable else ():
                    print(f"    {what}: {compared}", flush=True)
        if not given.cache:
            shutil.rmtree(where, ignore_errors=True)
    if not given.cache:
        shutil.rmtree(place, ignore_errors=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    seconds = round(time.monotonic() - began, 1)
    given.out.write_text(
        json.dumps({"schema_version": 1, "seconds": seconds, "rows": found}, indent=1) + "\n"
    )
    bad = sum(bool(row["wrong"]) for row in found)
    print(f"rehearse-proof: {len(found)} rows, {bad} that do not hold, {seconds} s; {given.out}")
    return 1 if bad else 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
