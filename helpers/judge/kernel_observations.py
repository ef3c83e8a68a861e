"""What the kernel's log of a box says of the program that failed.

A line counts only for its own process: one that names another, or is of another hour, changes
neither cause nor confidence. Where no text names a program, the log is what is asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from helpers.ground.shapes import seen
from helpers.judge.evidence import CaseEvidence
from helpers.judge.failing_program import FailingProgram, failing_program
from helpers.judge.message_observations import PROVING
from helpers.judge.observation import (
    LONGEST_QUOTE,
    Observation,
    make_observation,
    observation_name,
)
from helpers.look import kernel_log
from helpers.look.bundle import Bundle
from helpers.look.holders import is_outside
from helpers.look.kernel_log import Event
from helpers.look.machine import machine, memory_group, up_s
from helpers.look.wordings import meaning

RECENT_S = 600
"""How long before the capture the failure that somebody asks about can have happened: an estimate.
"""
DAY_S = 86_400
"""How far back the log of a machine is searched where no program is named."""


def kernel_observations(
    evidence: CaseEvidence, bundle: Bundle
) -> Iterator[Observation]:
    """One observation for each kind of line about the failing program since the last boot, with
    how often and how long ago. Of several Xids only the first counts: the others follow from it.
    """
    failing = failing_program(evidence)
    events = [
        event
        for event in kernel_log.events(bundle)
        if event.boot == 0 and _is_of(event, failing, bundle)
    ]
    kinds: dict[str, list[Event]] = {}
    for event in _without_later_xids(events):
        kinds.setdefault(event.row, []).append(event)
    for kind, events_of_kind in kinds.items():
        rule = kernel_log.rule(kind)
        name = observation_name(rule.side, rule.event)
        if name:
            proof = rule.event in PROVING
            yield _of_kind(name, events_of_kind, bundle, proof)
    kills = machine(bundle).cgroup_oom_kills
    if kills.bytes > 0 and (failing is None or failing.was_killed):
        # The counter has no times: beside a text it shows who may have killed, and proves nothing.
        killed = f"{kills.bytes} processes"
        if kills.bytes == 1:
            killed = "1 process"
        says = (
            f"The limit of the control group has killed {killed}; it does not say when"
        )
        proof = failing is None
        yield make_observation("killed", kills, "", "bundle", says, proof=proof)


def _of_kind(
    name: str, events: list[Event], bundle: Bundle, proof: bool
) -> Observation:
    """The last line of a kind, with how many there are and how old it is."""
    last = events[-1]
    times = sum(event.count for event in events)
    words = last.text[:LONGEST_QUOTE]
    if not words:
        words = last.kind
    reading = seen(words, "text", last.source)
    how_often = _how_often(times, _age_s(last, bundle))
    says = f"{meaning(last.row).rstrip('.')}. {how_often}"
    return make_observation(name, reading, "", "bundle", says, proof=proof)


def _how_often(times: int, age_s: float | None) -> str:
    """How many lines of a kind there are, and how old the last one is."""
    says = "The kernel log has one such line"
    if times > 1:
        says = f"The kernel log has {times} such lines"
    if age_s is None:
        return says
    if times > 1:
        return f"{says}, the last {int(age_s) // 60} min before this capture"
    return f"{says}, {int(age_s) // 60} min before this capture"


def _without_later_xids(events: Iterable[Event]) -> Iterator[Event]:
    """The events without each Xid that follows another one of its GPU."""
    with_xid: set[str] = set()
    for event in events:
        if event.kind == "xid":
            if event.pci in with_xid:
                continue
            with_xid.add(event.pci)
        yield event


def _is_of(event: Event, failing: FailingProgram | None, bundle: Bundle) -> bool:
    """Whether a line is about the failing program: by its number, its control group, or its name
    and time.

    A line that names no process is about the GPU, and counts where it is recent. Where no text
    names a program, every line of the last day counts.
    """
    age_s = _age_s(event, bundle)
    # The log is what is asked about: a line without a time counts, too.
    if failing is None:
        return age_s is None or age_s <= DAY_S
    if event.pid in failing.pids:
        return True
    group = memory_group(bundle)
    if group and str(event.facts.get("cgroup", "")).strip("/") == group:
        return True
    if age_s is None or age_s > RECENT_S:  # a name alone may be that of an earlier run
        return False
    if event.pid is None and not event.process:
        return True
    # Outside of its container a process has another number.
    has_another_number = failing.pids and event.pid and not is_outside(bundle)
    return not has_another_number and failing.has_name(event.process)


def _age_s(event: Event, bundle: Bundle) -> float | None:
    """How many seconds before the capture an event was; None where the log has no time since boot."""
    running_s = up_s(bundle)
    when = event.when.value
    if running_s is None or not isinstance(when, float):
        return None
    return running_s - when
