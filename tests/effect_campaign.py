"""How often do the verdicts alarm where there is nothing, and miss what is there? Real trials on this box; it takes a while.

    python tests/effect_campaign.py [--out DIR] [--repeats N] [--comparisons N] [--planted N]

prints one JSON object: real comparisons of a workload with itself and how many gave an effect; the same of draws from the
recorded measurements; planted effects (half the memory, 1.5 x the time) and how many were found.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.settings.presets import Preset
from helpers.trials.effect import did_it_help, effect
from helpers.trials.fixplan import Arm, Pair, plan, run
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.measurement import results_of
from helpers.trials.record import TrialLimits
from helpers.trials.workload import workload

WORK = {"requests": 400, "live_mib": 192, "steps": 12}


def arm(name: str, **changes: float) -> Arm:
    return Arm(name, workload("churn", **{**WORK, **changes}), Preset(name, {}, {}), 3)


CONTROL = arm("control")
AGAIN = arm("again")
HALF = arm("half", live_mib=84)
SLOW = arm("slow", requests=600)
PLANTED = {
    "half": ("half the memory", "memory", "less"),
    "slow": ("1.5 x the time", "time", "more"),
}
DRAWS = 2000


def resampled(control: Sequence[float], what: str, pairs: int, draws: int, seed: int) -> float:
    """The share of false alarms (less or more) when both arms are drawn from one recorded arm, ``draws`` times."""
    rng = random.Random(f"{what}/{seed}")
    alarms = 0
    for _ in range(draws):
        arms = [[rng.choice(control) for _ in range(pairs)] for _ in range(2)]
        alarms += effect(what, *arms).says in ("less", "more")
    return alarms / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--comparisons", type=int, default=20)
    parser.add_argument("--planted", type=int, default=10)
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp(prefix="casebook-effects-"))
    alike = []
    noise = {"memory": [], "time": []}
    found = {name: [] for name, _, _ in PLANTED.values()}
    how = {"python": torch_interpreter(), "out": out, "limits": TrialLimits()}

    def arms(pairs, seed):
        ran = run(plan(pairs, repeats=arguments.repeats, budget_s=1e9, seed=seed), **how)
        assert not ran.troubles and not ran.refused, (ran.troubles, ran.refused)
        kept = {}
        for pair in pairs:
            for one, records in zip((pair.control, pair.treated), ran.arms(pair), strict=True):
                kept[one.name] = results_of(records)
        return kept

    for number in range(arguments.comparisons):
        one = arms([Pair("alike", CONTROL, AGAIN)], number)
        alike.append(did_it_help(one["control"], one["again"], answer="bitwise"))
        for what in noise:
            values = [value for arm in one.values() for value in getattr(arm, what)]
            noise[what].extend(value / median(values) for value in values)
        told = alike[-1]
        words = f"{told.verdict}: {told.memory.words}; {told.time.words}"
        print(f"alike {number}: {words}", file=sys.stderr)
    for number in range(arguments.planted):
        one = arms([Pair("half", CONTROL, HALF), Pair("slow", CONTROL, SLOW)], 1000 + number)
        for name, (planted, what, says) in PLANTED.items():
            told = effect(what, getattr(one["control"], what), getattr(one[name], what))
            found[planted].append((told.says == says, round(told.ratio, 3)))
            print(f"planted {number}: {told.words}: {told.says}", file=sys.stderr)
    said = [{one.memory.says, one.time.says} for one in alike]
    verdicts = Counter(one.verdict for one in alike)
    of = {"comparisons": len(alike), "pairs": arguments.repeats, "verdicts": dict(verdicts)}
    drawn = {
        what: resampled(values, what, arguments.repeats, DRAWS, 1) if values else None
        for what, values in noise.items()
    }
    hits = {
        name: {
            "found": sum(hit for hit, _ in rows),
            "of": len(rows),
            "ratios": [r for _, r in rows],
        }
        for name, rows in found.items()
    }
    record = {
        "alike": {**of, "alarms": sum(bool(one & {"less", "more"}) for one in said)},
        "resampled": {what: {"draws": DRAWS, "alarms": share} for what, share in drawn.items()},
        "planted": hits,
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
