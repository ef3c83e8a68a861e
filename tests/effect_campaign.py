"""How often do the verdicts alarm where there is nothing, and miss what is there? Real trials on this box; it takes a while.

    python tests/effect_campaign.py [--out DIR] [--repeats N] [--comparisons N] [--planted N]

prints one JSON object: real comparisons of a workload with itself and how many gave an effect; the same of draws from the
recorded measurements; planted effects (half the memory, 1.5 x the time) and how many were found; the overhead of a trial.
What DIR has already is not run again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.load.box import torch_interpreter
from helpers.load.effect import compare, effect
from helpers.load.fixplan import Arm, Pair, plan, run
from helpers.load.remedies import arm_of
from helpers.load.trial import Limits
from helpers.load.workloads import workload
from helpers.settings.presets import Preset

WORK = {"requests": 400, "live_mib": 96, "steps": 12}
CONTROL = Arm("control", workload("churn", ballast_mib=96, **WORK), Preset("control", {}, {}), 3)
AGAIN = Arm("again", workload("churn", ballast_mib=96, **WORK), Preset("again", {}, {}), 3)
HALF = Arm(
    "half",
    workload("churn", requests=400, steps=12, live_mib=48, ballast_mib=36),
    Preset("half", {}, {}),
    3,
)
SLOW = Arm("slow", workload("churn", ballast_mib=96, slow=1.5, **WORK), Preset("slow", {}, {}), 3)
DRAWS = 2000


def resampled(control: Sequence[float], what: str, pairs: int, draws: int, seed: int) -> float:
    """The share of false alarms (less or more) when both arms are drawn from one recorded arm, ``draws`` times."""
    rng, alarms = random.Random(f"{what}/{seed}"), 0
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
    python, overhead, alike, noise = torch_interpreter(), [], [], {"memory": [], "time": []}
    found = {"half the memory": [], "1.5 x the time": []}

    def arms(pairs, seed):
        ran = run(
            plan(pairs, repeats=arguments.repeats, budget_s=1e9, seed=seed),
            python=python,
            out=out,
            limits=Limits(),
        )
        assert not ran.troubles and not ran.refused, (ran.troubles, ran.refused)
        overhead.extend(one.overhead_s for one in ran.records.values())
        return {
            arm.name: arm_of([ran.records[arm.name, at] for at in range(arguments.repeats)], "work")
            for pair in pairs
            for arm in (pair.control, pair.treated)
        }

    for number in range(arguments.comparisons):
        one = arms([Pair("alike", CONTROL, AGAIN)], number)
        alike.append(compare(one["control"], one["again"], answer="bitwise"))
        for what in noise:
            values = [value for arm in one.values() for value in arm.measured[what]]
            noise[what].extend(value / median(values) for value in values)
        print(
            f"alike {number}: {alike[-1].verdict}: {alike[-1].memory.words}; {alike[-1].time.words}",
            file=sys.stderr,
        )
    for number in range(arguments.planted):
        one = arms([Pair("half", CONTROL, HALF), Pair("slow", CONTROL, SLOW)], 1000 + number)
        for name, what, says in (("half", "memory", "less"), ("slow", "time", "more")):
            told = effect(what, one["control"].measured[what], one[name].measured[what])
            found["half the memory" if name == "half" else "1.5 x the time"].append(
                (told.says == says, round(told.ratio, 3))
            )
            print(f"planted {number}: {told.words}: {told.says}", file=sys.stderr)
    alarms = sum(
        one.memory.says in ("less", "more") or one.time.says in ("less", "more") for one in alike
    )
    print(
        json.dumps(
            {
                "alike": {
                    "comparisons": len(alike),
                    "pairs": arguments.repeats,
                    "alarms": alarms,
                    "verdicts": {
                        one: [each.verdict for each in alike].count(one)
                        for one in {each.verdict for each in alike}
                    },
                },
                "resampled": {
                    what: {
                        "draws": DRAWS,
                        "alarms": resampled(values, what, arguments.repeats, DRAWS, 1)
                        if values
                        else None,
                    }
                    for what, values in noise.items()
                },
                "planted": {
                    name: {
                        "found": sum(hit for hit, _ in rows),
                        "of": len(rows),
                        "ratios": [ratio for _, ratio in rows],
                    }
                    for name, rows in found.items()
                },
                "overhead_s": {
                    "median": median(overhead),
                    "most": max(overhead),
                    "trials": len(overhead),
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
