"""Records what the remedies of env/remedies.yaml ask of the allocator, once: env/traces/remedies, which notebook 05 replays.

    casebook rehearse --setup --cache FOLDER
    python tests/record_remedies.py --cache FOLDER [--only REMEDY ...]

Each workload that a remedy changes, and each control, is rehearsed on a card of 80 GiB that is not there, by torch's own
allocator with default settings; the requests are kept, in order, without stacks and times. Prints each arm's peak beside the
replay's: they have to be equal. Ends 1 where they are not.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from helpers.allocator.circumstances import with_record  # noqa: E402
from helpers.allocator.driver import Card  # noqa: E402 -- the checkout stands first on sys.path
from helpers.allocator.parquet_file import to_parquet  # noqa: E402
from helpers.allocator.replay import replay  # noqa: E402
from helpers.allocator.trace_file import read_trace  # noqa: E402
from helpers.look.cards import find_card  # noqa: E402
from helpers.rehearse import remedies, torches  # noqa: E402
from helpers.trials.catalogue import chosen  # noqa: E402
from helpers.trials.prediction import recorded_path  # noqa: E402

CARD = find_card("a100-80")


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--cache", required=True)
    given.add_argument("--only", nargs="*", default=[])
    arguments = given.parse_args()
    place = Path(arguments.cache).absolute()
    wrong = 0
    torches.cache_folder = lambda folder="": place
    wanted = remedies.arms([one for one in chosen(arguments.only) if not one.preset])
    for name, *both in remedies.rehearsed_arms(wanted, CARD):
        for arm, done in zip(wanted[name], both, strict=True):
            path = recorded_path(arm.workload)
            if not done.fits or done.trace is None:
                print(f"{name}: {arm.name}: {done.outcome}: {done.error}", flush=True)
                continue
            if not done.trace.exists():
                continue
            trace = with_record(read_trace(done.trace), done.trace)
            header = {"label": f"rehearsed on {CARD.name}, torch {done.torch}", "exact": done.exact}
            lean = replace(
                trace,
                time_ns=None,
                address=None,
                driver=(),
                frame=None,
                frames=(),
                names=(),
                header=header,
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            to_parquet(lean, path)
            peak = replay(
                read_trace(path), "", Card(CARD.total_bytes), torch="2.14.1"
            ).peak_reserved_bytes
            wrong += peak != done.peak_reserved_bytes
            figures = f"{done.peak_reserved_bytes:,} reserved, replayed {peak:,}"
            print(
                f"{path.name}: {len(trace):,} operations, {figures}, {path.stat().st_size:,} bytes",
                flush=True,
            )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
