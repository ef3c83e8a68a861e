"""The verdict over the free memory of a box: which ways of counting run out, and which
chunk fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.ground.shapes import Cause, Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.units import show_bytes
from helpers.vpoc.free import Free
from helpers.vpoc.planner import NoRoomError, ProfileShape, plan, predicted_bytes
from helpers.vpoc.study import StrategyRow

COMMAND = "casebook vpoc FILE"
MODEL = "memory model of the strategies"


def best_strategy(free: Free) -> str:
    """The way of counting that takes the least memory: of those that run on a GPU, preallocated."""
    if free.gpu:
        return "preallocated"
    return "fused"


def verdict_on_chunks(
    shape: ProfileShape, free: Free, measured: Sequence[StrategyRow]
) -> Verdict:
    """The ways that do not fit this memory, the one to use, and its chunk; or, where not even its
    smallest chunk fits, that fewer sessions have to be counted at a time.

    ``measured``: rows of the study, which are evidence too; empty where it was not run.
    """
    one_hot = predicted_bytes("one_hot", shape, shape.trades)
    flat = predicted_bytes("flat", shape)
    hot_says = "one-hot over all trades at once, for that result"
    evidence = [
        _size("free", free.bytes, free.says, "what may be taken"),
        _size("result", shape.result_bytes, MODEL, "the profiles themselves"),
        _size("one-hot", one_hot, MODEL, hot_says),
        _size("flat", flat, MODEL, "an index for all trades at once"),
    ]
    for row in measured:
        if row.strategy in ("fused", "preallocated") and row.measured_bytes:
            says = f"{row.strategy}, its peak beyond the inputs in chunks as measured"
            name = f"measured-{row.strategy}"
            evidence.append(_size(name, row.measured_bytes, "measured here", says))
    missing = []
    if not measured:
        reading = "the strategies measured on this box"
        missing = [Missing(reading=reading, how='this notebook with box = "live"')]
    sizes = {"one-hot": one_hot, "one index for all trades": flat}
    too_large = [name for name, size in sizes.items() if size > free.bytes]
    strategy = best_strategy(free)
    try:
        chosen = plan(strategy, shape, free)
    except NoRoomError as error:
        title = "Not even one trade at a time fits"
        summary = str(error)
        step = "Count fewer sessions at a time: give the file in parts"
        too_large = ["the result"]
        missing = []
    else:
        peak = show_bytes(chosen.peak_bytes)
        title = f"Take {chosen.take}: {strategy} then needs {peak}"
        summary = f"{_head(too_large, free)}. Count with {chosen.says}."
        step = f"Count with {strategy}: {chosen.take}"
    cause: Cause = "other"
    if too_large:
        cause = "true-capacity"
    return Verdict(
        cause=cause,
        state="aside",
        title=title,
        confidence="likely",
        summary=summary,
        evidence=evidence,
        against=[_unequal(row) for row in measured if row.equal is False],
        missing=missing,
        next_step=NextStep(what=step, command=COMMAND),
    )


def _size(name: str, size: int, source: str, says: str) -> Evidence:
    """A size in bytes as evidence."""
    return Evidence(id=name, reading=seen(size, "bytes", source), says=says)


def _unequal(row: StrategyRow) -> Evidence:
    """Evidence against the verdict: a way whose counts differ."""
    reading = seen(row.strategy, "text", "measured here")
    says = "gives other counts than the fused pass"
    return Evidence(id=f"unequal-{row.strategy}", reading=reading, says=says)


def _head(too_large: Sequence[str], free: Free) -> str:
    """The first sentence of the summary: what does not fit."""
    if not too_large:
        return "Nothing tried here would fill this memory"
    words = f"{' and '.join(too_large)} would not fit {show_bytes(free.bytes)}"
    return words[0].upper() + words[1:]
