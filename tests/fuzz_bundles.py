"""Mutates recorded boxes and diagnoses each: ``python tests/fuzz_bundles.py N [SEED]``. Prints counts; exit 1 on any crash."""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.ground.contract import to_json  # noqa: E402
from helpers.judge.diagnosis import diagnose  # noqa: E402
from helpers.judge.evidence import evidence_from_bundle  # noqa: E402
from helpers.judge.next_step import recovery  # noqa: E402
from helpers.look.boxes import open_box, recorded_names  # noqa: E402
from helpers.look.bundle import Bundle, BundleWriter  # noqa: E402

ODD = [b"", b"\x00\xff\xfe", b"null\n", b"1,5 GiB", "١٢".encode()]
ODD += b"nan -1 99999999999999999999999999 [drm] {} [] N/A".split()


def mutated(box: Bundle, dice: random.Random) -> Bundle:
    """The box with one to six of its items dropped, cut, spliced, swapped or refused."""
    writer = BundleWriter(box.box, box.kind, "0", "")
    items = list(box.items)
    hit = set(dice.sample(range(len(items)), min(len(items), dice.randint(1, 6))))
    for number, item in enumerate(items):
        raw = box.contents.get(item.path, b"") if item.path else None
        status = item.status
        why = item.why
        if number in hit:
            what = dice.randrange(7)
            data = bytearray(raw or b"")
            if what == 0:
                continue
            if what == 1 and data:
                data = data[: dice.randrange(len(data))]
            elif what == 2:
                for _ in range(dice.randint(1, 12)):
                    if data:
                        data[dice.randrange(len(data))] = dice.randrange(256)
            elif what == 3:
                at = dice.randrange(len(data) + 1)
                data[at:at] = dice.choice(ODD)
            elif what == 4:
                data = bytearray(dice.choice(ODD))
            elif what == 5:
                other = dice.choice(items)
                data = bytearray(box.contents.get(other.path, b"") if other.path else b"")
            else:
                status = "not_allowed"
                why = "permission denied"
                data = bytearray()
            raw = None if status != "ok" else bytes(data)
        writer.add(item.kind, item.source, raw, status=status, why=why)
    return writer.bundle()


def main(count: int, seed: int) -> int:
    dice = random.Random(seed)
    boxes = [open_box(name) for name in recorded_names()]
    causes: Counter[str] = Counter()
    crashes = 0
    slowest = 0.0
    started = time.perf_counter()
    for number in range(count):
        try:
            bundle = mutated(dice.choice(boxes), dice)
            before = time.perf_counter()
            evidence = evidence_from_bundle(bundle)
            verdict = diagnose(evidence)
            recovery(verdict, evidence)
            to_json(verdict)
            slowest = max(slowest, time.perf_counter() - before)
            causes[f"{verdict.cause} ({verdict.confidence})"] += 1
        except Exception:  # noqa: BLE001 - a fuzzer reports every kind of crash
            crashes += 1
            if crashes <= 5:
                print(f"mutation {number}, seed {seed}")
                traceback.print_exc()
    seconds = f"slowest {1000 * slowest:.0f} ms, {time.perf_counter() - started:.0f} s in all"
    print(f"{count} mutated bundles, {crashes} crashes, {seconds}")
    for cause, times in causes.most_common():
        print(f"  {times:>6}  {cause}")
    return 1 if crashes else 0


if __name__ == "__main__":
    given = list(map(int, sys.argv[1:3]))
    sys.exit(main(*given, *(1000, 0)[len(given) :]))
