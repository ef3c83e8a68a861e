"""How far is a rehearsal to be trusted? What it took for granted, a line each, from what its processes told of themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.load.rehearse.devices import Device

Told = Sequence[Mapping[str, Any]]
SHOWN = 6
WORDS = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))


def trust(told: Told, device: Device, streams: int, cudnn_workspace_bytes: int = 0) -> list[str]:
    """The lines, what hangs on device values first. ``told``: the witness of each process; ``streams`` of the trace."""
    lines = [
        f"NOT TO BE TRUSTED from {_place(row)} on: the size of what {row['op'].lstrip('_')} gives there hangs on computed "
        f"values, which are taken as zero ({row['times']} times)"
        for row in _reads(told, True)[:SHOWN]
    ]
    plain = _reads(told, False)
    known = WORDS["known"]
    lines += dict.fromkeys(
        f"assumed: {known[row['inside']]}" for row in plain if row["inside"] in known
    )
    other = [row for row in plain if row["inside"] not in known]
    if other:
        places = "; ".join(
            f"{_place(row)} ({row['op'].lstrip('_')}, {row['times']} times)"
            for row in other[:SHOWN]
        )
        lines.append(
            "values were read back and are not those of a real run; harmless where they are only shown, wrong where "
            f"they decide what is allocated: {places}{'; and others' if len(other) > SHOWN else ''}"
        )
    errors = " ".join(f"{row['error']} {row['message']}" for row in told)
    called = sorted({name for row in told for name in row["missing"]} - {*WORDS["harmless"]})
    libraries = WORDS["libraries"].items()
    missing = dict.fromkeys(
        says for name in called for start, says in libraries if name.startswith(start)
    )
    missing.update((says, None) for words, says in WORDS["ends"].items() if words in errors)
    lines += [f"not rehearsed: {says}" for says in missing]
    if cudnn := sum(row["counts"].get("cudnn", 0) for row in told):
        lines.append(
            f"assumed: each of {cudnn:,} cuDNN calls needs {cudnn_workspace_bytes:,} bytes of workspace; a real card "
            "needs what cuDNN's heuristics choose, often tens of MiB (--cudnn-workspace)"
        )
    if streams > 1:
        lines.append(
            f"assumed: work on the {streams} streams is done at once; on a card that runs behind, blocks shared "
            "between streams come back later and the peak may be higher"
        )
    if forks := sum(row["forks"] for row in told):
        lines.append(
            f"{forks} processes were forked; workers that load data need no GPU, what else they ask is not in this"
        )
    if (using := sum(bool(row["counts"].get("launches")) for row in told)) > 1:
        lines.append(
            f"{using} processes used the GPU and each had the card to itself; on a real one they share it"
        )
    stands_in = [
        f"a CUDA build stands in for ROCm: {line}"
        for line in WORDS["rocm"]
        if device.vendor == "rocm"
    ]
    return [*lines, *stands_in, WORDS["outside"]]


def exact(told: Told) -> bool:
    """Whether nothing that the program allocated is known to hang on values that were not computed."""
    return not _reads(told, True)


def _reads(told: Told, sizes: bool) -> list[Mapping[str, Any]]:
    found = [row for process in told for row in process["reads"] if row["sizes"] is sizes]
    return sorted(found, key=lambda row: -row["times"])


def _place(row: Mapping[str, Any]) -> str:
    return row["where"] or "the backward pass"
