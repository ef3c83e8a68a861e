"""Changes of optimizers, so that they need less memory beside the weights."""

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
"""Optimizers of torch that take ``foreach`` (torch/optim, read at 2.13; Adafactor, which takes it
too, is left as it is).
"""
WITH_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Those that take ``fused``, too."""
WITH_STATES = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
"""Those that keep two states as large as the weights."""
TRAINERS = ("fit", "train")
"""Methods of trainers that make the steps themselves."""
KEPT_BY_ADAFACTOR = ("lr", "weight_decay", "params")
"""The keywords of those optimizers that torch.optim.Adafactor has, too."""


def optimizers(program: Program) -> Located[cst.Call]:
    """The calls that make an optimizer of torch."""
    for source, call in program.calls(*WITH_FOREACH):
        if re.match(r"(torch\.)?optim\.|[A-Z]", source.code(call.func)):
            yield source, call


def steps_one_by_one(program: Program) -> Changes:
    """Optimizers whose step makes no temporaries as large as all weights, unless the request that
    failed was not in a step. ``fused=True`` makes none; ``foreach=False``, for optimizers that have
    no ``fused``, makes those of one weight at a time.
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
    """Adafactor in place of Adam: it keeps a row and a column for each weight matrix, where Adam
    keeps two states as large as the matrix.
    """
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
