"""What a rehearsal takes for granted, a line each, and how much memory libraries may take beside
what it counts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from helpers.ground.units import MIB, show_bytes, times_in_words
from helpers.look.cards import CONTEXT_IN_WORDS, GpuCard
from helpers.rehearse.rehearsal import UNLIMITED, RehearsalLimits
from helpers.rehearse.reports import Reports, ValueRead, reads, unanswered
from helpers.rehearse.words import WORDS

SHOWN = 6
"""How many places of one kind are listed: the most frequent ones decide."""


def trust(
    reports: Reports,
    device: GpuCard,
    streams: int,
    limits: RehearsalLimits = UNLIMITED,
) -> list[str]:
    """What a rehearsal took for granted, a line each. First what depends on values of the card,
    last what no rehearsal counts. ``streams``: how many the trace has; 0: it was not read.
    """
    sentences = WORDS["says"]
    lines = _assumed_sizes(reports, limits)
    lines += [line for _, line in workspaces(reports, limits.cudnn_bytes)]
    bucket_bytes = max((report["bucket_bytes"] for report in reports), default=0)
    if bucket_bytes:
        size = show_bytes(bucket_bytes)
        lines.append(sentences["buckets_by_chance"].format(size=size))
    errors = dict.fromkeys(report["beside"] for report in reports)
    lines += [sentences["beside"].format(error=error) for error in errors if error]
    compiled = sum(report["compiled"] for report in reports)
    if compiled:
        sentence = sentences["compiled"]
        if limits.compiles:
            sentence = sentences["compiles"]
        lines.append(sentence.format(times=times_in_words(compiled)))
    lines += _values_read(reports)
    lines += _libraries_left_out(reports)
    for subject, count in _counts(reports, streams).items():
        if count:
            lines.append(sentences[subject].format(many=count))
    if not streams:
        lines.append(sentences["stopped"])
    if device.vendor == "rocm":
        lines += [f"a CUDA build stands in for ROCm: {line}" for line in WORDS["rocm"]]
    return [*lines, WORDS["outside"].format(context=CONTEXT_IN_WORDS)]


def _assumed_sizes(reports: Reports, limits: RehearsalLimits) -> list[str]:
    """Lines of the program where the size of a result was assumed, the most frequent first."""
    times: dict[tuple[str, str], int] = {}
    for row in reads(reports, sizes=True):
        key = (_place_of(row), row["op"].lstrip("_"))
        times[key] = times.get(key, 0) + row["times"]
    bound = WORDS["bounds"][limits.values]
    sentence = WORDS["says"]["sizes"]
    shown = list(times.items())[:SHOWN]
    return [
        sentence.format(place=place, op=operator, times=count, bound=bound)
        for (place, operator), count in shown
    ]


def _values_read(reports: Reports) -> list[str]:
    """Lines about values that the program read back and that were not computed: those whose effect
    is known, by the file of torch that reads them, then the others, by their places.
    """
    sentences = WORDS["says"]
    effects = WORDS["known"]
    lines: list[str] = []
    places: dict[str, None] = {}
    for row in reads(reports, sizes=False):
        place = _place_of(row)
        collective = row["collective"]
        if collective:
            received = sentences["received"]
            lines.append(received.format(collective=collective, place=place))
        elif row["inside"] in effects:
            lines.append(f"assumed: {effects[row['inside']]}")
        else:
            places[place] = None
    if places:
        shown = ", ".join(list(places)[:SHOWN])
        if len(places) > SHOWN:
            shown += " and elsewhere"
        lines.append(sentences["values"].format(places=shown))
    return list(dict.fromkeys(lines))


def _place_of(row: ValueRead) -> str:
    """The line of the program that read a value; a backward pass runs on a thread without one."""
    if not row["where"]:
        return "the backward pass"
    return str(row["where"])


def _libraries_left_out(reports: Reports) -> list[str]:
    """Lines about libraries of which the program called functions without a stand-in."""
    lines: list[str] = []
    for name in unanswered(reports):
        for start, says in WORDS["libraries"].items():
            if name.startswith(start) and says not in lines:
                lines.append(says)
    return lines


def _counts(reports: Reports, streams: int) -> dict[str, int]:
    """The number in each of these sentences ("says" in words.json); 0: it is not said."""
    totals = Counter[str]()  # of device.c, over all processes
    for report in reports:
        totals.update(report["counts"])
    counts = {
        "collectives": totals["collectives"],
        "managed": totals["managed"] // MIB,
        "streams": streams,
        "forks": sum(report["forks"] for report in reports),
        # Each report has the number of the whole rehearsal.
        "forked": max((report["forked"] for report in reports), default=0),
    }
    if streams == 1:  # the sentence is about work that several streams do at once
        counts["streams"] = 0
    return counts


def workspace_bytes(reports: Reports, cudnn_bytes: int) -> int:
    """How much higher the peak may be, since of what libraries take only a range is known."""
    return sum(most_bytes for most_bytes, _ in workspaces(reports, cudnn_bytes))


def workspaces(reports: Reports, cudnn_bytes: int) -> Iterator[tuple[int, str]]:
    """The most that each library may take beside what was counted for it, in bytes and as a line.

    ``cudnn_bytes``: what was counted for each call of cuDNN; above 0 the user said how much it
    takes, and no range is left.
    """
    for row in WORDS["workspaces"]:
        counts = [report["counts"].get(row["count"], 0) for report in reports]
        count = sum(counts)
        if row["times"]:  # the largest request of a process, and no number of calls
            count = max(counts, default=0)
        if not count:
            continue
        most_bytes = _most_bytes(row, count, cudnn_bytes)
        at_once_bytes = most_bytes
        if row["count"] == "cudnn":
            at_once_bytes = max(most_bytes, cudnn_at_once(reports, cudnn_bytes))
        extent = f"and may be up to {show_bytes(at_once_bytes)} more"
        if not most_bytes:
            extent = "as --cudnn-workspace says"
        least = show_bytes(cudnn_bytes)
        says = row["says"].format(many=count, least=least, range=extent)
        yield most_bytes, f"assumed: {says}"


def _most_bytes(row: Mapping[str, Any], count: int, cudnn_bytes: int) -> int:
    """The most that a library may take beside what was counted for it. ``row``: of "workspaces" in
    words.json; ``count``: its counter.
    """
    most_mib = int(row["most_mib"])
    cap = os.environ.get(row["cap"], "")  # the user's own limit
    if most_mib and cudnn_bytes:  # the user said how much each call takes
        return 0
    if most_mib and cap.isdigit():
        most_mib = int(cap)
    return most_mib * MIB + int(row["times"]) * count


def cudnn_at_once(reports: Reports, cudnn_bytes: int) -> int:
    """The most that one call of cuDNN may ask for where a card has so much; 0 where there was no
    call, or where the user said what each takes (``cudnn_bytes``).

    The program does not need it: where a plan of cuDNN does not get its workspace, torch takes one
    with a smaller workspace (ATen/native/cudnn/Conv_v8.cpp).
    """
    counts = [report["counts"] for report in reports if report["counts"].get("cudnn")]
    if not counts or cudnn_bytes:
        return 0
    (row,) = (row for row in WORDS["workspaces"] if row["count"] == "cudnn")
    most_bytes = _most_bytes(row, 1, cudnn_bytes)
    if os.environ.get(row["cap"], "").isdigit():
        return most_bytes
    # As large as what a convolution reads and writes: most plans copy that (see the row's source).
    copies: list[int] = [row.get("convolution_bytes", 0) for row in counts]
    return max(most_bytes, *copies)
