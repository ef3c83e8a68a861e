"""What blows up and which chunk is right on a box: the verdict over its free memory."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.ground.shapes import Evidence, Missing, NextStep, Verdict, seen
from helpers.ground.units import show_bytes
from helpers.vpoc.free import Free
from helpers.vpoc.planner import NoRoomError, ProfileShape, plan, predicted_bytes
from helpers.vpoc.study import StrategyRow

COMMAND = "casebook vpoc FILE"
MODEL = "memory model of the strategies"


def best_strategy(free: Free) -> str:
    """The one to count with: that which takes least, on a GPU the one whose buffers are made once."""
    return "preallocated" if free.gpu else "fused"


def verdict_on_chunks(
    shape: ProfileShape, free: Free, measured: Sequence[StrategyRow]
) -> Verdict:
    """What blows up, what to use, and with which chunk; ``measured`` are rows of the study."""
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
    against = [
        Evidence(
            id=f"unequal-{row.strategy}",
            reading=seen(row.strategy, "text", "measured here"),
            says="gives other counts than the fused pass",
        )
        for row in measured
        if row.equal is False
    ]
    missing = []
    if not measured:
        title = "the strategies measured on this box"
        missing = [Missing(reading=title, how='this notebook with box = "live"')]
    large = {"one-hot": one_hot, "one index for all trades": flat}
    blows_up = [name for name, size in large.items() if size > free.bytes]
    strategy = best_strategy(free)
    try:
        chosen = plan(strategy, shape, free)
    except NoRoomError as error:
        title = "Not even one trade at a time fits"
        summary = str(error)
        step = "Count fewer sessions at a time: give the file in parts"
        blows_up = ["the result"]
        missing = []
    else:
        title = (
            f"Take {chosen.take}: {strategy} then needs {show_bytes(chosen.peak_bytes)}"
        )
        summary = f"{_head(blows_up, free)}. Count with {chosen.says}."
        step = f"Count with {strategy}: {chosen.take}"
    return Verdict(
        cause="true-capacity" if blows_up else "other",
        state="aside",
        title=title,
        confidence="likely",
        summary=summary,
        evidence=evidence,
        against=against,
        missing=missing,
        next_step=NextStep(what=step, command=COMMAND),
    )


def _size(name: str, size: int, source: str, says: str) -> Evidence:
    return Evidence(id=name, reading=seen(size, "bytes", source), says=says)


def _head(blows_up: Sequence[str], free: Free) -> str:
    if not blows_up:
        return "Nothing tried here would fill this memory"
    words = f"{' and '.join(blows_up)} would not fit {show_bytes(free.bytes)}"
    return words[0].upper() + words[1:]
