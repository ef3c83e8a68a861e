"""Under what a trace was recorded: what the recording says, completed by what it shows. And how
well a replay under that agrees with it, address by address.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from helpers.allocator.driver import Card
from helpers.allocator.outcome import Outcome, ReplayError
from helpers.allocator.recorded_processes import Fields, process_of_trace, redacted
from helpers.allocator.replay import replay
from helpers.allocator.trace import Op, Trace
from helpers.look.files import json_of

NEWEST_CHECKED = "2.14.1"
CANDIDATES = {
    NEWEST_CHECKED: "2.13 and later",
    "2.11.0": "2.2 to 2.11",
    "2.12.1": "2.12",
}
"""One release, and which it stands for, for each order in which equal free blocks are taken
(helpers/settings/torch.json).
"""
AMPLE_BYTES = 1 << 41
_EXPANDABLE = 1
"""The kind of a block that lies in an expandable range."""


@dataclass(frozen=True)
class Circumstances:
    """Under what a trace was recorded: None or 0 where the file does not say and it cannot be
    inferred.
    """

    conf: str
    torch: str
    build: str
    capacity_bytes: int
    held_bytes: int
    fraction: float | None
    policy: str
    notes: tuple[str, ...]


def record_of(path: Path | None) -> Fields:
    """What `record` or `rehearse` wrote beside a trace, or a program that recorded itself; empty
    where there is no such record.
    """
    if path is None:
        return {}
    record = _object_in(
        path.with_suffix(".record") / "record.json"
    ) or _record_of_itself(path)
    return {name: value for name, value in record.items() if value is not None}


def _record_of_itself(trace: Path) -> dict[str, Any]:
    """What a program wrote beside its own snapshot, such as run.json beside run-oom.pickle
    (helpers.allocator.recording).
    """
    facts = _object_in(trace.with_name(f"{trace.stem.rpartition('-')[0]}.json"))
    snapshots = facts.get("snapshots")
    argv = facts.get("argv")
    if not isinstance(snapshots, list) or not isinstance(argv, list):
        return {}
    files = [
        snapshot.get("file") for snapshot in snapshots if isinstance(snapshot, dict)
    ]
    if trace.name not in files:
        return {}
    command = redacted(list(map(str, argv)))
    return {"command": command, "processes": [{**facts, "argv": command}]}


def _object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    try:
        content = json_of(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def add_to_record(trace: Path, **fields: object) -> None:
    """Add what was found out later to the record beside a trace, by the names of its fields."""
    path = trace.with_suffix(".record") / "record.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps({**record, **fields}, indent=1, default=str), encoding="utf-8"
    )


def with_record(trace: Trace, path: Path) -> Trace:
    """The trace with what `record` wrote beside a snapshot: the torch, its build, the card's
    size and the fraction.
    """
    report = record_of(path)
    try:
        process = process_of_trace(report["processes"])
        torch = process["torch"]
        device = process["devices"][int(trace.header.get("device", 0))]
    except (ValueError, LookupError, TypeError, AttributeError):
        return trace  # no such record, or none of a GPU: the trace alone speaks
    recorded = {
        "torch": torch.get("version"),
        "vram": device.get("total_bytes"),
        "fraction": device.get("fraction"),
        "build": None,
    }
    if torch.get("hip"):
        recorded["build"] = "rocm" + ".".join(str(torch["hip"]).split(".")[:2])
    header = dict(trace.header)
    for key, value in recorded.items():
        if value is not None and header.get(key) is None:
            header[key] = value
    notes = list(trace.notes)
    if report.get("rehearsed"):
        notes.append(report["rehearsed"])
    notes += [str(line) for line in report.get("trust", ()) if "values" in str(line)]
    return replace(trace, header=header, notes=tuple(notes))


@lru_cache(2)  # a trace without a release is replayed under several to infer it
def circumstances(trace: Trace) -> Circumstances:
    """What the header says, completed by what the recording shows."""
    header = {name: value for name, value in trace.header.items() if value}
    notes = []
    has_addresses = trace.address is not None and bool((trace.address >= 0).any())
    conf = str(header.get("conf", ""))
    torch = str(header.get("torch", ""))
    build = str(header.get("build", "cuda"))
    if "+rocm" in torch and not header.get("build"):
        build = "rocm" + torch.split("+rocm")[1]
    if not torch and has_addresses:
        torch, how = _infer_torch(trace, conf)
        notes.append(how)
    elif not torch:
        torch = NEWEST_CHECKED
        if header.get("label") not in ("generated", None):
            notes.append(f"the recording does not name its torch: {torch} is taken")
    return Circumstances(
        conf=conf,
        torch=torch,
        build=build,
        capacity_bytes=int(header.get("vram", 0)),
        held_bytes=int(header.get("foreign", 0)),
        fraction=trace.header.get("fraction"),
        policy="recorded" if has_addresses else str(header.get("policy", "firstfit")),
        notes=tuple(notes),
    )


def _infer_torch(trace: Trace, conf: str) -> tuple[str, str]:
    """The candidate whose replay gives the most recorded addresses, and that in words."""
    header = {name: value for name, value in trace.header.items() if value}
    card = Card(header.get("vram", AMPLE_BYTES), header.get("foreign", 0), "recorded")
    checks: dict[str, Agreement] = {}
    for torch in CANDIDATES:
        try:
            outcome = replay(
                trace,
                conf,
                card,
                torch=torch,
                fraction=trace.header.get("fraction"),
                timeline=True,
            )
        except ReplayError:
            # Where the program lowers max_split_size_mb, another order may meet a segment in
            # parts: this is not the order.
            continue
        check = agreement(trace, outcome)
        assert check is not None, "a trace with addresses and a timeline"
        checks[torch] = check
        if check.exact:
            break
    if not checks:
        none = "the recording names no torch, and no block order replays it"
        return NEWEST_CHECKED, f"{none}: {NEWEST_CHECKED} is taken"
    best = max(checks, key=lambda torch: checks[torch].same_address)
    check = checks[best]
    return best, (
        f"the recording does not name its torch: the block order of {CANDIDATES[best]} gives "
        f"{check.same_address} of {check.allocations} recorded addresses and is taken ({best})"
    )


class Agreement(NamedTuple):
    """A same-settings replay against the recording: counts of what was compared and of what was
    equal.

    ``by_offset``: so many of the allocations lie in expandable ranges and are compared by their
    offset in them, since where a range begins is the driver's choice.
    """

    allocations: int
    same_address: int
    by_offset: int
    reserved_bytes: int
    recorded_reserved_bytes: int | None

    @property
    def exact(self) -> bool:
        """Every address and the reserved bytes at the end are those of the recording."""
        if self.recorded_reserved_bytes not in (None, self.reserved_bytes):
            return False
        return self.allocations == self.same_address


def agreement(trace: Trace, outcome: Outcome) -> Agreement | None:
    """How a same-settings replay with a timeline compares with the recording; None where that
    has no addresses.
    """
    if trace.address is None or outcome.timeline is None:
        return None
    stop = outcome.events
    compared = (trace.op[:stop] == Op.ALLOC) & (trace.address[:stop] >= 0)
    recorded = trace.address[:stop][compared]
    expandable = outcome.column("kind")[compared] == _EXPANDABLE
    ordinal = outcome.column("ordinal")[compared]
    range_begin = recorded - outcome.column("offset")[compared]
    same = outcome.column("address")[compared] == recorded
    for number in np.unique(ordinal[expandable]):
        in_range = expandable & (ordinal == number)
        # Where the recorded range began is what most of its allocations say.
        begins, counts = np.unique(range_begin[in_range], return_counts=True)
        same[in_range] = range_begin[in_range] == begins[counts.argmax()]
    return Agreement(
        allocations=int(compared.sum()),
        same_address=int(same.sum()),
        by_offset=int(expandable.sum()),
        reserved_bytes=outcome.figure("reserved_bytes"),
        recorded_reserved_bytes=trace.header.get("final_reserved_bytes"),
    )
