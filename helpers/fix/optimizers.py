"""Optimizers that need less beside the weights."""

from __future__ import annotations

import re

import libcst as cst

from helpers.fix.change import ANOTHER_RATE, Change, Changes, Results
from helpers.fix.program import Located, Program
from helpers.fix.regions import calls_that_failed
from helpers.fix.source import called, keyword

WITH_FOREACH = (
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "SGD",
    "RMSprop",
    "ASGD",
    "Rprop",
)
WITH_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
WITH_STATES = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
TRAINERS = ("fit", "train")
KEPT_BY_ADAFACTOR = ("lr", "weight_decay", "params")


def optimizers(program: Program) -> Located[cst.Call]:
    """The calls that make an optimizer of torch."""
    for source, call in program.calls(*WITH_FOREACH):
        if re.match(r"(torch\.)?optim\.|[A-Z]", source.code(call.func)):
            yield source, call


def steps_one_by_one(program: Program) -> Changes:
    """A step without temporaries as large as all weights, where a step failed: fused=True, which
    has none; for optimizers without it foreach=False, which has those of one weight.
    """
    failed = next(calls_that_failed(program), None)
    if failed is not None:
        source, statement = failed
        if not source.calls("step", *TRAINERS, below=statement):
            return
    for source, call in optimizers(program):
        if keyword(call, "foreach") or keyword(call, "fused"):
            continue
        how = "one tensor at a time"
        why = "the same arithmetic, tensor by tensor"
        costs = "the optimizer step takes longer"
        edit = source.with_argument(call, "foreach", "False")
        if called(call) in WITH_FUSED:
            how = "in one GPU kernel"
            why = "the same arithmetic, without its intermediate results"
            costs = "nothing; it is faster"
            edit = source.with_argument(call, "fused", "True")
        yield Change(
            title=f"Update the weights {how} ({source.place(call)})",
            results=Results.ROUNDED,
            why=why,
            costs=costs,
            edits=(edit,),
        )


def smaller_states(program: Program) -> Changes:
    """Adafactor in place of Adam: factors of the second moments in place of two whole states."""
    for source, call in optimizers(program):
        if called(call) not in WITH_STATES:
            continue
        kept = []
        dropped = []
        for argument in call.args:
            if argument.keyword is None or argument.keyword.value in KEPT_BY_ADAFACTOR:
                kept.append(source.code(argument).rstrip(" ,"))
            else:
                dropped.append(argument.keyword.value)
        costs = ANOTHER_RATE
        if dropped:
            costs = f"Adafactor has no {' and no '.join(dropped)}; {costs}"
        yield Change(
            title=f"Use Adafactor instead of {called(call)} ({source.place(call)})",
            results=Results.OTHER,
            why="another optimizer trains differently",
            costs=costs,
            edits=(source.replaced(call, f"torch.optim.Adafactor({', '.join(kept)})"),),
        )
