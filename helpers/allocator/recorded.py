"""What a recording says of its own circumstances, and how well a replay under the same ones agrees with it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from helpers.allocator.driver import CALLS, FREE, MALLOC, MAP, UNMAP, Card
from helpers.allocator.outcome import Outcome, ReplayError
from helpers.allocator.replay import replay
from helpers.allocator.trace import STREAM_STEP, Op, Trace

NEWEST_CHECKED = "2.14.1"
CANDIDATES = ("2.14.1", "2.11.0", "2.12.1")
"""One release for each order in which equal free blocks are taken (helpers/settings/torch.json)."""
AMPLE_BYTES = 1 << 41


@dataclass(frozen=True)
class Circumstances:
    """Under what a trace was recorded: None or 0 where the file does not say and it cannot be inferred."""

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
    """A same-settings replay against the recording: counts of what was compared and of what was equal."""

    allocations: int
    same_address: int
    segment_calls: int
    same_segment_calls: int
    reserved_bytes: int
    recorded_reserved_bytes: int | None

    @property
    def exact(self) -> bool:
        """Every address, every segment call and the reserved bytes at the end are those of the recording."""
        return (
            self.allocations == self.same_address
            and self.segment_calls == self.same_segment_calls
            and self.recorded_reserved_bytes in (None, self.reserved_bytes)
        )


def with_record(trace: Trace, path: Path) -> Trace:
    """The trace with what `record` wrote beside a snapshot: the torch, its build, the card's size and the fraction."""
    try:
        found = json.loads(
            path.with_suffix(".record").joinpath("record.json").read_text(encoding="utf-8")
        )
        process = next(process for process in found["processes"] if process.get("devices"))
        torch, device = process["torch"], process["devices"][int(trace.header.get("device") or 0)]
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return trace  # no such record, or none of a GPU: the trace alone speaks
    head = {
        "torch": torch.get("version"),
        "vram": device.get("total_bytes"),
        "fraction": device.get("fraction"),
        "build": "rocm" + ".".join(str(torch["hip"]).split(".")[:2]) if torch.get("hip") else None,
    }
    said = {key for key, value in trace.header.items() if value is not None}
    known = {key: value for key, value in head.items() if value is not None and key not in said}
    notes = (*trace.notes, found["rehearsed"]) if found.get("rehearsed") else trace.notes
    return replace(trace, header={**trace.header, **known}, notes=notes)


def circumstances(trace: Trace) -> Circumstances:
    """What the header says, completed by what the recording shows."""
    head, notes = trace.header, []
    known = trace.address is not None and bool((trace.address >= 0).any())
    torch = str(head.get("torch") or "")
    build = str(
        head.get("build") or ("rocm" + torch.split("+rocm")[1] if "+rocm" in torch else "cuda")
    )
    if not torch:
        torch = NEWEST_CHECKED
        if known:
            torch, why = _infer_torch(trace, str(head.get("conf") or ""))
            notes.append(why)
        elif head.get("label") not in ("generated", None):
            notes.append(f"the recording does not name its torch: {torch} is taken")
    capacity = int(head.get("vram") or 0)
    policy = "recorded" if known else str(head.get("policy") or "firstfit")
    return Circumstances(
        str(head.get("conf") or ""),
        torch,
        build,
        capacity,
        int(head.get("foreign") or 0),
        head.get("fraction"),
        policy,
        sum(segment.size for segment in trace.start),
        tuple(notes),
    )


def _infer_torch(trace: Trace, conf: str) -> tuple[str, str]:
    """The candidate whose replay gives the most recorded addresses, and that in words."""
    found = {}
    for torch in CANDIDATES:
        try:
            outcome = replay(
                trace, conf, Card(AMPLE_BYTES, policy="recorded"), torch=torch, timeline=True
            )
        except ReplayError:
            continue  # where the program lowers max_split_size_mb, another order may meet a segment in parts: it is not the one
        check = agreement(trace, outcome)
        assert check is not None, "a trace with addresses and a timeline"
        found[torch] = check
        if check.exact:
            break
    if not found:
        return (
            NEWEST_CHECKED,
            f"the recording names no torch, and no block order replays it: {NEWEST_CHECKED} is taken",
        )
    best = max(found, key=lambda torch: found[torch].same_address)
    check = found[best]
    order = {"2.11.0": "2.4 to 2.11", "2.12.1": "2.12", NEWEST_CHECKED: "2.13 and later"}[best]
    return best, (
        f"the recording does not name its torch: the block order of {order} gives {check.same_address} of "
        f"{check.allocations} recorded addresses and is taken ({best})"
    )


def agreement(trace: Trace, outcome: Outcome) -> Agreement | None:
    """How a same-settings replay with a timeline compares with the recording; None where that has no addresses."""
    if trace.address is None or outcome.timeline is None or outcome.calls is None:
        return None
    stop = outcome.events
    compared = (trace.op[:stop] == Op.ALLOC) & (trace.address[:stop] >= 0)
    same = outcome.column("address")[compared] == trace.address[:stop][compared]
    recorded = sorted(
        (call.event, call.action, call.size)
        for call in trace.driver
        if call.event < stop and call.action != "oom"
    )
    modelled, sizes = [], _freed_sizes(trace, outcome)
    for event, call, ordinal, _, size in outcome.calls.tolist():
        if call in (MALLOC, FREE, MAP, UNMAP):
            modelled.append((event, CALLS[call], sizes.get(ordinal, 0) if call == FREE else size))
    common = sum((Counter(recorded) & Counter(modelled)).values())
    return Agreement(
        int(compared.sum()),
        int(same.sum()),
        max(len(recorded), len(modelled)),
        common,
        outcome.figure("reserved_bytes"),
        trace.header.get("final_reserved_bytes"),
    )


def _freed_sizes(trace: Trace, outcome: Outcome) -> dict[int, int]:
    """Bytes of each segment by its ordinal: those of the start come first."""
    sizes = {
        i: segment.size for i, segment in enumerate(s for s in trace.start if not s.expandable)
    }
    assert outcome.calls is not None
    return sizes | {
        ordinal: size for _, call, ordinal, _, size in outcome.calls.tolist() if call == MALLOC
    }


def op_lines(trace: Trace) -> list[dict[str, Any]]:
    """The trace's operations as the oracle's lines; what the oracle has no word for keeps its own name."""
    lines = []
    columns = (trace.op, trace.id, trace.size, trace.stream)
    for op, ident, size, stream in zip(*(column.tolist() for column in columns), strict=True):
        kind = Op(op)
        line: dict[str, Any] = {"op": kind.name.lower()}
        if kind in (Op.ALLOC, Op.FREE, Op.FREE_REQUESTED, Op.FREE_COMPLETED, Op.RECORD_STREAM):
            line["id"] = ident
        if kind == Op.ALLOC:
            line["size"] = size
        if stream or kind == Op.RECORD_STREAM:
            line["stream"] = stream // STREAM_STEP if stream % STREAM_STEP == 0 else stream
        if kind in (Op.SET_FRACTION, Op.SET_CONF):
            line["fraction" if kind == Op.SET_FRACTION else "conf"] = trace.values[size]
        extra = {Op.FOREIGN: "bytes", Op.FAIL_NEXT: "count", Op.EVENTS_HOLD: "on"}.get(kind)
        if extra:
            line[extra] = bool(size) if extra == "on" else size
        lines.append(line)
    return lines
