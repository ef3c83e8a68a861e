"""What a rehearsal takes for granted, and how far it can be trusted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from helpers.ground.units import show_bytes, times_in_words
from helpers.look.cards import CONTEXT_IN_WORDS, GpuCard
from helpers.rehearse.rehearsal import UNLIMITED, RehearsalLimits, Told
from helpers.rehearse.words import WORDS

SHOWN = 6
Row = Mapping[str, Any]


def trust(
    told: Told, device: GpuCard, streams: int, limits: RehearsalLimits = UNLIMITED
) -> list[str]:
    """What it took for granted, a line each, what hangs on device values first.

    ``streams``: of the trace, 0: not read.
    """
    sentences = WORDS["says"]
    lines = _assumed_sizes(told, limits)
    lines += workspaces(told, limits.cudnn_bytes)[1]
    bucket_bytes = max((row.get("bucket_bytes", 0) for row in told), default=0)
    if bucket_bytes:
        lines.append(
            sentences["buckets_by_chance"].format(size=show_bytes(bucket_bytes))
        )
    failed = [
        sentences["beside"].format(error=row["beside"])
        for row in told
        if row.get("beside")
    ]
    lines += dict.fromkeys(failed)
    compiled = sum(row.get("compiled", 0) for row in told)
    if compiled:
        says = sentences["compiles" if limits.compiles else "compiled"]
        lines.append(says.format(times=times_in_words(compiled)))
    lines += _values_read(told)
    lines += _libraries_left_out(told)
    for subject, count in _counts(told, streams).items():
        if count:
            lines.append(sentences[subject].format(many=count))
    if not streams:
        lines.append(sentences["stopped"])
    if device.vendor == "rocm":
        lines += [f"a CUDA build stands in for ROCm: {line}" for line in WORDS["rocm"]]
    return [*lines, WORDS["outside"].format(context=CONTEXT_IN_WORDS)]


def _assumed_sizes(told: Told, limits: RehearsalLimits) -> list[str]:
    """Lines of the program where the size of a result was assumed, the most frequent first."""
    times: dict[tuple[str, str], int] = {}
    for row in reads(told, sizes=True):
        key = (place_of(row), row["op"].lstrip("_"))
        times[key] = times.get(key, 0) + row["times"]
    bound = WORDS["bounds"][limits.values]
    sentence = WORDS["says"]["sizes"]
    shown = list(times.items())[:SHOWN]
    return [
        sentence.format(place=place, op=operator, times=count, bound=bound)
        for (place, operator), count in shown
    ]


def _values_read(told: Told) -> list[str]:
    """Values that were read back and are not computed: those of known effect, then the others."""
    known = WORDS["known"]
    effects = {}
    places = {}
    for row in reads(told, sizes=False):
        if row.get("collective"):
            says = WORDS["says"]["received"]
            effects[says.format(collective=row["collective"], place=place_of(row))] = (
                True
            )
        elif row["inside"] in known:
            effects[f"assumed: {known[row['inside']]}"] = True
        else:
            places[place_of(row)] = True
    lines = list(effects)
    if places:
        shown = ", ".join(list(places)[:SHOWN])
        if len(places) > SHOWN:
            shown += " and elsewhere"
        lines.append(WORDS["says"]["values"].format(places=shown))
    return lines


def _libraries_left_out(told: Told) -> list[str]:
    lines = {}
    for name in unanswered(told):
        for start, says in WORDS["libraries"].items():
            if name.startswith(start):
                lines[says] = True
    return list(lines)


def _counts(told: Told, streams: int) -> dict[str, int]:
    """What happened how often, by the key of the sentence that says so; 0: nothing to say."""

    def total(name: str) -> int:
        return sum(row["counts"].get(name, 0) for row in told)

    return {
        "collectives": total("collectives"),
        "managed": total("managed") >> 20,
        "streams": streams if streams > 1 else 0,
        "forks": sum(row["forks"] for row in told),
        "forked": max(row.get("forked", 0) for row in told),
    }


def workspaces(told: Told, cudnn_bytes: int) -> tuple[int, list[str]]:
    """How much higher the peak may be by what libraries take of which only a range is known.

    Returns bytes, and a line each. ``cudnn_bytes``: what each call of cuDNN was
    given; above 0 the user said so, and it is no range.
    """
    more_bytes = 0
    lines = []
    for row in WORDS["workspaces"]:
        counts = [process["counts"].get(row["count"], 0) for process in told]
        count = max(counts, default=0) if row["times"] else sum(counts)
        if not count:
            continue
        most_bytes = _most_bytes(row, count, cudnn_bytes)
        more_bytes += most_bytes
        at_once_bytes = (
            cudnn_at_once(told, cudnn_bytes) if row["count"] == "cudnn" else 0
        )
        extent = f"and may be up to {show_bytes(max(most_bytes, at_once_bytes))} more"
        if not most_bytes:
            extent = "as --cudnn-workspace says"
        says = row["says"].format(
            many=count, least=show_bytes(cudnn_bytes), range=extent
        )
        lines.append(f"assumed: {says}")
    return more_bytes, lines


def _most_bytes(row: Row, count: int, cudnn_bytes: int) -> int:
    """The most that a library may take beside what it was given."""
    most_mib = row["most_mib"]
    cap = os.environ.get(row["cap"], "")
    if most_mib and cap.isdigit():
        most_mib = int(cap)
    if most_mib and cudnn_bytes:
        return 0
    return int(most_mib << 20) + row["times"] * count


def cudnn_at_once(told: Told, cudnn_bytes: int) -> int:
    """The most that one call of cuDNN may ask for where a card has it; 0 where there was none, or
    ``cudnn_bytes`` says it.

    A plan that does not get its workspace makes room for a smaller one (Conv_v8.cpp), so this is no
    need of the program.
    """
    row = next(row for row in WORDS["workspaces"] if row["count"] == "cudnn")
    counts = [process["counts"] for process in told if process["counts"].get("cudnn")]
    if not counts or cudnn_bytes:
        return 0
    most_bytes = _most_bytes(row, 1, cudnn_bytes)
    if os.environ.get(row["cap"], "").isdigit():
        return most_bytes
    return max(most_bytes, *(process.get("convolution_bytes", 0) for process in counts))


def exact(told: Told) -> bool:
    """Whether nothing that the program allocated is known to hang on values that were not
    computed.
    """
    return not reads(told, sizes=True)


def reads(told: Told, sizes: bool) -> list[Row]:
    """Reads of unknown values, the most frequent first: those that sizes hang on, or the others."""
    rows = [
        row for process in told for row in process["reads"] if row["sizes"] is sizes
    ]
    return sorted(rows, key=lambda row: -row["times"])


def place_of(row: Row) -> str:
    """The line of the program that a read stands in."""
    return str(row["where"] or "the backward pass")


def unanswered(told: Told) -> list[str]:
    """What was asked of the libraries and is not answered."""
    return sorted({name for row in told for name in row["missing"]})
