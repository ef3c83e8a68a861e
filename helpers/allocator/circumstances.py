"""The torch, settings and card with which a trace was recorded: what the recording says, completed
by what can be inferred from it. And how well a replay under them agrees with it, address by
address.

The header of a trace is what its own file says about the recording. The record of a trace is a
file of JSON beside it, which the commands ``record`` and ``rehearse`` write.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from helpers.allocator.driver import Card
from helpers.allocator.outcome import EXPANDABLE, Outcome, ReplayError
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
"""For each order in which a release takes equal free blocks (order in helpers/settings/torch.json)
one release that has it, and all that do, in words.
"""
AMPLE_BYTES = 1 << 41
"""2 TiB, larger than any card: stands for one of unknown size."""


@dataclass(frozen=True)
class Circumstances:
    """Under what a trace was recorded. A field is "", 0 or None where the file does not say and it
    cannot be inferred.

    ``conf``: the settings. ``fraction``: of set_per_process_memory_fraction. ``policy``: the rule
    for addresses (driver.Card). ``notes``: sentences that say what was inferred, and from what.
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
    """What `record` or `rehearse` wrote beside a trace, or what a program that recorded itself did,
    without fields that are null. Empty where there is no such record, and for ``path`` None.
    """
    if path is None:  # a trace that was made here, and not read from a file
        return {}
    record = _object_in(_record_file(path))
    if not record:
        record = _record_of_itself(path)
    return {name: value for name, value in record.items() if value is not None}


def _record_file(trace: Path) -> Path:
    """Where `record` and `rehearse` write the record of a trace, by the trace's file."""
    return trace.with_suffix(".record") / "record.json"


def _record_of_itself(trace: Path) -> Fields:
    """What a program wrote beside its own snapshot, such as run.json beside run-oom.pickle
    (helpers.allocator.recording). Empty where there is no such file, or where it does not name
    this snapshot: then it is a file of another program's, with a name that fits by chance.
    """
    name, _, _ = trace.stem.rpartition("-")
    facts = _object_in(trace.with_name(f"{name}.json"))
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


def _object_in(path: Path) -> Fields:
    """The JSON object in a file; empty where the file is missing, or holds no JSON object."""
    try:
        content = json_of(path)
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return content


def add_to_record(trace: Path, **fields: object) -> None:
    """Add what was found out later to the record beside a trace, by the names of its fields. The
    record has to be there; a field that it has already is overwritten.
    """
    path = _record_file(trace)
    record = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps({**record, **fields}, indent=1, default=str)
    path.write_text(text, encoding="utf-8")


def with_record(trace: Trace, path: Path) -> Trace:
    """The trace of a file, with what its record says and its own header does not: the torch, its
    build, the card's size and the memory fraction. What the header says itself stays.

    The record of a rehearsal adds notes: that it is one, and on which values its sizes depend.
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
    }
    if torch.get("hip"):
        # Such as 6.4.43482; a build is named by the first two.
        numbers = str(torch["hip"]).split(".")
        recorded["build"] = "rocm" + ".".join(numbers[:2])
    header = dict(trace.header)
    for key, value in recorded.items():
        if value is not None and header.get(key) is None:
            header[key] = value
    notes = list(trace.notes)
    if report.get("rehearsed"):
        notes.append(report["rehearsed"])
    trust = map(str, report.get("trust", ()))
    # A rehearsal lists what it takes for granted. Only the sentences about values that it did not
    # compute name something that can change sizes ("sizes" and "values" in rehearse/words.json).
    notes += [line for line in trust if "values" in line]
    return replace(trace, header=header, notes=tuple(notes))


@lru_cache(2)  # a trace without a release is replayed under several to infer it
def circumstances(trace: Trace) -> Circumstances:
    """What the header says, completed by what the recording shows.

    Where the header names no torch, the recorded addresses tell it (``_infer_torch``); without
    addresses NEWEST_CHECKED is taken.
    """
    header = {name: value for name, value in trace.header.items() if value}
    notes = []
    has_addresses = trace.address is not None and bool((trace.address >= 0).any())
    conf = str(header.get("conf", ""))
    torch = str(header.get("torch", ""))
    build = str(header.get("build", "cuda"))
    # A version such as 2.6.0+rocm6.2 names the build, too.
    _, rocm, rocm_version = torch.partition("+rocm")
    if rocm and not header.get("build"):
        build = f"rocm{rocm_version}"
    if not torch and has_addresses:
        torch, how = _infer_torch(trace, conf)
        notes.append(how)
    elif not torch:
        torch = NEWEST_CHECKED
        # A trace that patterns.generate made, or other code without giving it a label, was not
        # recorded, so nothing is missing.
        if header.get("label") not in ("generated", None):
            notes.append(f"the recording does not name its torch: {torch} is taken")
    policy = str(header.get("policy", "firstfit"))
    if has_addresses:
        policy = "recorded"
    return Circumstances(
        conf=conf,
        torch=torch,
        build=build,
        capacity_bytes=int(header.get("vram", 0)),
        held_bytes=int(header.get("foreign", 0)),
        fraction=trace.header.get("fraction"),
        policy=policy,
        notes=tuple(notes),
    )


def _infer_torch(trace: Trace, conf: str) -> tuple[str, str]:
    """Of CANDIDATES the release whose replay gives the most recorded addresses, and a sentence that
    says so. NEWEST_CHECKED, and a sentence, where none can replay the trace.
    """
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
            # The program lowers max_split_size_mb, and in this replay a segment that has to go
            # back was divided. In the recorded program it was not, so it has another order.
            continue
        check = agreement(trace, outcome)
        assert check is not None, "a trace with addresses and a timeline"
        checks[torch] = check
        if check.exact:  # another candidate cannot agree better
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
    """How a replay under the recorded settings agrees with the recording.

    ``allocations``: how many were compared; ``same_address``: how many of these have the recorded
    address. ``by_offset``: how many lie in expandable ranges; since the driver chooses where a
    range begins, these are compared by their offset in the range. ``reserved_bytes`` and
    ``recorded_reserved_bytes``: what is reserved at the end; the latter is None where the recording
    does not say.
    """

    allocations: int
    same_address: int
    by_offset: int
    reserved_bytes: int
    recorded_reserved_bytes: int | None

    @property
    def exact(self) -> bool:
        """Whether every address, and the reserved bytes at the end, are those of the recording."""
        if self.recorded_reserved_bytes not in (None, self.reserved_bytes):
            return False
        return self.allocations == self.same_address


def agreement(trace: Trace, outcome: Outcome) -> Agreement | None:
    """How a replay with a timeline, under the settings of the recording, compares with it; None
    where the recording has no addresses, or the replay has no timeline.
    """
    if trace.address is None or outcome.timeline is None:
        return None
    stop = outcome.events
    compared = (trace.op[:stop] == Op.ALLOC) & (trace.address[:stop] >= 0)
    recorded = trace.address[:stop][compared]
    expandable = outcome.column("kind")[compared] == EXPANDABLE
    ordinal = outcome.column("ordinal")[compared]
    # Where the recorded range begins, by the address and the replayed offset of each allocation.
    range_begin = recorded - outcome.column("offset")[compared]
    same = outcome.column("address")[compared] == recorded
    for number in np.unique(ordinal[expandable]):
        in_range = expandable & (ordinal == number)
        # It begins where most of its allocations say; the others lie at another offset.
        begins, counts = np.unique(range_begin[in_range], return_counts=True)
        same[in_range] = range_begin[in_range] == begins[counts.argmax()]
    return Agreement(
        allocations=int(compared.sum()),
        same_address=int(same.sum()),
        by_offset=int(expandable.sum()),
        reserved_bytes=outcome.figure("reserved_bytes"),
        recorded_reserved_bytes=trace.header.get("final_reserved_bytes"),
    )
