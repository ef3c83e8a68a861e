"""What a recording says of its own circumstances, and how well a replay under the same ones
agrees with it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from helpers.allocator.driver import CALLS, FREE, MALLOC, MAP, UNMAP, Card
from helpers.allocator.engine import replay
from helpers.allocator.outcome import Outcome, ReplayError
from helpers.allocator.trace import Op, Trace, start_bytes
from helpers.look.files import whole

NEWEST_CHECKED = "2.14.1"
CANDIDATES = {NEWEST_CHECKED: "2.13 and later", "2.11.0": "2.2 to 2.11", "2.12.1": "2.12"}
"""One release, and which it stands for, for each order in which equal free blocks are taken
(helpers/settings/torch.json).
"""
AMPLE_BYTES = 1 << 41


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
    start_bytes: int
    notes: tuple[str, ...]


class Agreement(NamedTuple):
    """A same-settings replay against the recording: counts of what was compared and of what was
    equal.

    ``by_offset``: so many of the allocations lie in expandable ranges and are compared by their
    offset in them, since where a range begins is the driver's choice.
    """

    allocations: int
    same_address: int
    by_offset: int
    segment_calls: int
    same_segment_calls: int
    reserved_bytes: int
    recorded_reserved_bytes: int | None

    @property
    def exact(self) -> bool:
        """Every address, every segment call and the reserved bytes at the end are those of the
        recording.
        """
        return (
            self.allocations == self.same_address
            and self.segment_calls == self.same_segment_calls
            and self.recorded_reserved_bytes in (None, self.reserved_bytes)
        )


def with_record(trace: Trace, path: Path) -> Trace:
    """The trace with what `record` wrote beside a snapshot: the torch, its build, the card's
    size and the fraction.
    """
    try:
        record = path.with_suffix(".record") / "record.json"
        report = json.loads(whole(record))
        process = next(process for process in report["processes"] if process.get("devices"))
        torch = process["torch"]
        device = process["devices"][int(trace.header.get("device") or 0)]
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return trace  # no such record, or none of a GPU: the trace alone speaks
    hip = torch.get("hip")
    head = {
        "torch": torch.get("version"),
        "vram": device.get("total_bytes"),
        "fraction": device.get("fraction"),
        "build": "rocm" + ".".join(str(hip).split(".")[:2]) if hip else None,
    }
    own = {key: value for key, value in trace.header.items() if value is not None}
    known = {key: value for key, value in head.items() if value is not None}
    notes = (*trace.notes, report["rehearsed"]) if report.get("rehearsed") else trace.notes
    notes += tuple(line for line in map(str, report.get("trust") or ()) if "values" in line)
    return replace(trace, header={**trace.header, **known, **own}, notes=notes)


def circumstances(trace: Trace) -> Circumstances:
    """What the header says, completed by what the recording shows."""
    head = trace.header
    notes = []
    known = trace.address is not None and bool((trace.address >= 0).any())
    conf = str(head.get("conf") or "")
    torch = str(head.get("torch") or "")
    rocm = "rocm" + torch.split("+rocm")[1] if "+rocm" in torch else ""
    if not torch:
        torch = NEWEST_CHECKED
        if known:
            torch, why = _infer_torch(trace, conf)
            notes.append(why)
        elif head.get("label") not in ("generated", None):
            notes.append(f"the recording does not name its torch: {torch} is taken")
    return Circumstances(
        conf=conf,
        torch=torch,
        build=str(head.get("build") or rocm or "cuda"),
        capacity_bytes=int(head.get("vram") or 0),
        held_bytes=int(head.get("foreign") or 0),
        fraction=head.get("fraction"),
        policy="recorded" if known else str(head.get("policy") or "firstfit"),
        start_bytes=start_bytes(trace.start),
        notes=tuple(notes),
    )


def _infer_torch(trace: Trace, conf: str) -> tuple[str, str]:
    """The candidate whose replay gives the most recorded addresses, and that in words."""
    checks = {}
    head = trace.header
    card = Card(head.get("vram") or AMPLE_BYTES, head.get("foreign") or 0, "recorded")
    how: dict[str, Any] = {"fraction": head.get("fraction"), "timeline": True}
    for torch in CANDIDATES:
        try:
            outcome = replay(trace, conf, card, torch=torch, **how)
        except ReplayError:
            continue  # where the program lowers max_split_size_mb, another order may meet a segment in parts: it is not the one
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
        f"the recording does not name its torch: the block order of {CANDIDATES[best]} gives {check.same_address} of "
        f"{check.allocations} recorded addresses and is taken ({best})"
    )


def agreement(trace: Trace, outcome: Outcome) -> Agreement | None:
    """How a same-settings replay with a timeline compares with the recording; None where that
    has no addresses.
    """
    if trace.address is None or outcome.timeline is None or outcome.calls is None:
        return None
    stop = outcome.events
    compared = (trace.op[:stop] == Op.ALLOC) & (trace.address[:stop] >= 0)
    recorded, kind, ordinal, offset, address = (
        trace.address[:stop][compared],
        *(outcome.column(name)[compared] for name in ("kind", "ordinal", "offset", "address")),
    )
    same = address == recorded
    for one in np.unique(ordinal[kind == 1]):
        mine = (kind == 1) & (ordinal == one)
        begins, often = np.unique((recorded - offset)[mine], return_counts=True)
        same[mine] = (recorded - offset)[mine] == begins[often.argmax()]
    calls = [call for call in trace.driver if call.event < stop and call.action != "oom"]
    asked = Counter((call.event, call.action, call.size) for call in calls)
    # Bytes of each cudaMalloc segment by its ordinal: those of the start come first.
    sizes = dict(enumerate(one.size for one in trace.start if not one.expandable))
    modelled: Counter[tuple[int, str, int]] = Counter()
    for event, call, ordinal, _, size in outcome.calls.tolist():
        if call == MALLOC:
            sizes[ordinal] = size
        if call in (MALLOC, FREE, MAP, UNMAP):
            size_bytes = sizes.get(ordinal, 0) if call == FREE else size
            modelled[event, CALLS[call], size_bytes] += 1
    return Agreement(
        allocations=int(compared.sum()),
        same_address=int(same.sum()),
        by_offset=int((kind == 1).sum()),
        segment_calls=max(asked.total(), modelled.total()),
        same_segment_calls=(asked & modelled).total(),
        reserved_bytes=outcome.figure("reserved_bytes"),
        recorded_reserved_bytes=trace.header.get("final_reserved_bytes"),
    )
