"""Trials that take no time, in the kernel of a notebook that is killed in the third of them."""

import os
import signal
from pathlib import Path

from trial_records import record

from helpers.ground.workbook_process import TRIALS_HERE
from helpers.trials import fixplan
from helpers.trials.fixplan import Arm, Pair, plan
from helpers.trials.record import read_trials
from helpers.trials.workload import workload


def said(log, words):
    """Write a line into the log that a test reads."""
    with open(log, "a") as file:
        print(words, file=file)
    return words


def tried(log, repeats=3):
    """Make the trials of one remedy, each a line of the log; the third start kills this process."""
    out = Path(os.environ[TRIALS_HERE])
    out.mkdir(exist_ok=True)

    def stand_in(prepared, out):
        words = prepared.workload.words
        repeat = prepared.repeat
        said(log, f"trial {words}, repeat {repeat}")
        if Path(log).read_text().count("trial") == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        made = record(words, repeat, given=prepared.digest())
        (out / f"{words}-{repeat}.json").write_text(made.model_dump_json())
        return made

    fixplan.trial = stand_in
    pair = Pair("a", Arm("base", workload("churn")), Arm("a", workload("churn", prime=8)))
    made = plan([pair], repeats=repeats, budget_s=999, seed=9)
    return fixplan.run(made, python="python", out=out, finished=read_trials(out))
