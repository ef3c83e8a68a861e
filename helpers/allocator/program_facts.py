"""What the recording of a program shows of how it failed, for the judge: the refused request,
what grows, what other settings would have done, and what the repeats did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from helpers.allocator.call_sites import Requests, requests_of, site_of
from helpers.allocator.capacity import Runs, lower_bound
from helpers.allocator.circumstances import AMPLE_BYTES, circumstances, record_of, with_record
from helpers.allocator.edits.comparison import MOST_EVENTS
from helpers.allocator.exhaustion import exhaustion
from helpers.allocator.growers import (
    MOST_STEPS,
    Keeper,
    KeptGrower,
    RecordedGrowth,
    growth_of_recording,
    held_by,
    kept_at,
)
from helpers.allocator.kinds import asked_by_model, bytes_by_kind
from helpers.allocator.memory import NO_LIMIT
from helpers.allocator.recorded_processes import card_options, process_of_trace
from helpers.allocator.replay import choose
from helpers.allocator.requests import prepared
from helpers.allocator.stack_frames import CALLS, own_line
from helpers.allocator.starting_state import limit
from helpers.allocator.study import Study, study_of
from helpers.allocator.trace import Trace, start_bytes
from helpers.allocator.trace_file import read_trace
from helpers.ground.replays import WhatIf
from helpers.ground.shell import line, word
from helpers.ground.units import cut, plain
from helpers.judge.evidence import CaseEvidence
from helpers.judge.program_facts import (
    CardFacts,
    FirstChange,
    GrowerFacts,
    GrowthFacts,
    Holding,
    IdleCheckpointing,
    ProgramFacts,
    Refusal,
    Repeat,
    Replays,
)
from helpers.settings.in_force import MIN_BLOCK_BYTES, grid
from helpers.settings.releases import behaviour
from helpers.settings.table import CONF_NAMES
from helpers.settings.trouble import SettingsTrouble, settings_trouble

MOST_OF_A_CHANGE = 300
"""Characters of a change's title, which a record from elsewhere may have any number of."""
RESERVED = {"malloc": 1, "map": 1, "free": -1, "unmap": -1}
"""By how much of its size a driver's call changes what is reserved."""
FIRST_TRIED = ("", "expandable_segments:True")
"""Settings that a long trace is replayed under; a shorter one also under all that are usual."""
MOST_HOLDING = 5
MOST_CALLERS = 3
MORE_THAN_ITSELF = 1.25
"""Times its own bytes that a collection keeps at least where graphs keep the rest; blocks are
rounded up, and the running step has a few more.
"""


def evidence_from_trace(path: str | Path) -> CaseEvidence:
    """Evidence of a trace file, and of the record that lies beside it.

    Raises TraceError, one line, where it is none; runs no code of it.
    """
    path = Path(path)
    study = study_of(with_record(read_trace(path), path), path)
    return CaseEvidence(program=facts_of(study))


def facts_of(study: Study, league: WhatIf | None = None) -> ProgramFacts:
    """The facts of a study's trace on its card.

    ``league``: the what-if of the study, where somebody has made it.
    """
    path = study.path
    record = record_of(path)
    recorded = growth_of_recording(study.trace, path)
    requests = requests_of(study.trace)
    refusal, operation = _recorded_refusal(study, requests)
    if refusal is None and study.card.capacity_bytes < AMPLE_BYTES:
        try:
            refusal, operation = _replayed_refusal(study)
        except ValueError:
            operation = len(study.trace)  # it cannot be replayed on that card
    allowed_bytes = _allowed(study)
    if refusal is not None:
        refusal = replace(refusal, allowed_bytes=allowed_bytes)
    live = requests.live
    processes = _rows_in(record, "processes")
    repeats = record.get("counterfactual") or {}
    expandable = _repeat(repeats.get("expandable"))
    capacity_bytes = study.card.capacity_bytes if study.card.capacity_bytes < AMPLE_BYTES else 0
    usable_bytes = max(0, capacity_bytes - study.card.held_bytes)
    if allowed_bytes:
        usable_bytes = min(usable_bytes, allowed_bytes)
    weights_bytes = _before_forward(requests, operation) if refusal else 0
    facts = ProgramFacts(
        source=f"recording of {path.name if path else study.name}",
        is_real=study.trace.recorded_by_gpu,
        exit_code=None if record.get("stopped") else record.get("exit_code"),
        recording_is_whole=not study.trace.ran_out,
        ooms=sum(row.get("ooms", 0) for row in processes),
        capacity_bytes=capacity_bytes,
        usable_bytes=usable_bytes,
        fraction=study.fraction if allowed_bytes else None,
        peak_allocated_bytes=int(live.max(initial=0)),
        peak_reserved_bytes=max(_reserved(study.trace)),
        allocated_at_end_bytes=int(live[-1]) if len(live) else 0,
        refusal=refusal,
        most_live_before_bytes=int(live[:operation].max(initial=0)),
        holding=_holding(requests, operation if refusal else requests.peak),
        asked_before_forward_bytes=weights_bytes,
        trained_bytes=_trained(requests, weights_bytes) if refusal else 0,
        growth=_growth(recorded, requests, operation if refusal else requests.fullest, refusal),
        runs_out_in_step=0 if refusal else _runs_out_in_step(study, recorded),
        more_to_come_bytes=_more_to_come(recorded, requests, operation, refusal),
        steps_as_full=_steps_as_full(recorded, requests, operation, refusal),
        cards=_cards(record),
        reached_first_step=recorded.reached_first_step,
        without_limit=_repeat(repeats.get("without_limit")),
        expandable=expandable if _is_on(expandable, study.card.capacity_bytes) else None,
        settings=_settings_trouble(study.trace, processes),
        idle_checkpointing=_idle_checkpointing(processes),
        conf_variable=behaviour(study.torch, study.build).conf_names[0],
        trace=word(str(path)) if path else "TRACE",
        command=line(_rows_in(record, "command")),
        card_options=_options_again(record, processes, capacity_bytes),
        first_change=_first_change(record),
    )
    if refusal is None:
        return facts
    return replace(facts, replays=_replays(study, league))


def _options_again(
    record: Mapping[str, Any], processes: Sequence[Mapping[str, Any]], capacity_bytes: int
) -> str:
    """The options of `rehearse` for the same card and, of a job, the same rank."""
    words = card_options(processes, capacity_bytes) if capacity_bytes else []
    limits = record.get("limits")
    if isinstance(limits, dict) and _size_in(limits, "world"):
        words += ["--world", str(_size_in(limits, "world"))]
        words += ["--ranks", str(_size_in(limits, "rank"))]
    return line(words)


def _allowed(study: Study) -> int:
    """What the program lets itself have of its card, in bytes; 0 where it sets no limit."""
    if study.card.capacity_bytes >= AMPLE_BYTES:
        return 0
    allowed = limit(study.fraction, study.card, behaviour(study.torch, study.build))
    return 0 if allowed == NO_LIMIT else max(0, allowed)


def _settings_trouble(
    trace: Trace, processes: Sequence[Mapping[str, Any]]
) -> SettingsTrouble | None:
    """What is wrong with the allocator's settings of the process whose trace it is."""
    conf = trace.header.get("conf")
    in_force = {} if conf is None else {CONF_NAMES[0]: conf}
    process = process_of_trace(processes)
    variables = process.get("allocator_variables")
    if not variables:
        return None
    trouble = settings_trouble(variables, in_force, process.get("torch") or {})
    ran = trouble is not None and trouble.fatal and len(trace) > 0
    return None if ran else trouble


def _idle_checkpointing(processes: Sequence[Mapping[str, Any]]) -> IdleCheckpointing | None:
    """The checkpointing that had no effect in the process whose trace it is."""
    kept = process_of_trace(processes).get("idle_checkpointing")
    if not isinstance(kept, dict) or not kept.get("model"):
        return None
    return IdleCheckpointing(str(kept["model"]), str(kept.get("where") or ""))


def _recorded_refusal(study: Study, requests: Requests) -> tuple[Refusal | None, int]:
    """The last refusal that was recorded, and its operation; None on another card than that of
    the recording.
    """
    trace = study.trace
    recorded_bytes = circumstances(trace).capacity_bytes
    refused = [at for at, call in enumerate(trace.driver) if call.action == "oom"]
    is_another_card = recorded_bytes not in (0, study.card.capacity_bytes)
    if not refused or is_another_card:
        return None, len(trace)
    call = trace.driver[refused[-1]]
    return (
        Refusal(
            request_bytes=call.size,
            device_free_bytes=call.address,
            allocated_bytes=int(requests.live[call.event]) if len(trace) else 0,
            reserved_bytes=_reserved(trace)[refused[-1]],
            where=_line_of(trace, call.event),
            callers=_callers(trace, call.event),
        ),
        call.event,
    )


def _replayed_refusal(study: Study) -> tuple[Refusal | None, int]:
    """The first refusal in the replay on the study's card, and its operation."""
    stream, origin, _ = prepared(study.trace, study.card)
    replayed = replace(study, trace=stream)
    first = replayed.replay().first_oom
    if first is None:
        return None, len(study.trace)
    before = replayed.replay(stop=first)
    reserved = before.figure("reserved_bytes")
    operation = int(origin[first])
    return (
        Refusal(
            request_bytes=int(stream.size[first]),
            device_free_bytes=study.card.capacity_bytes - study.card.held_bytes - reserved,
            allocated_bytes=before.figure("allocated_bytes"),
            reserved_bytes=reserved,
            where=_line_of(study.trace, operation),
            callers=_callers(study.trace, operation),
            fails_in_replay=True,
        ),
        max(operation, 0),
    )


def _line_of(trace: Trace, operation: int) -> str:
    """The program's own line of an operation, or the innermost line of Python that it has."""
    site = site_of(_stack_of(trace, operation))
    return site.name if site.line else ""


def _callers(trace: Trace, operation: int) -> tuple[str, ...]:
    """The program's own lines that led to that of an operation, the nearest first."""
    lines = [frame for frame in _stack_of(trace, operation) if own_line(frame)]
    return tuple(lines[1 : MOST_CALLERS + 1])


def _stack_of(trace: Trace, operation: int) -> tuple[str, ...]:
    """The stack of an operation, innermost frame first; empty where it was not recorded."""
    if trace.frame is None or not 0 <= operation < len(trace):
        return ()
    stack = int(trace.frame[operation])
    return trace.frames[stack] if stack >= 0 else ()


def _reserved(trace: Trace) -> list[int]:
    """What is reserved before each of the driver's calls of a recording, and after the last."""
    changes = (RESERVED.get(call.action, 0) * call.size for call in trace.driver)
    return list(accumulate(changes, initial=start_bytes(trace.start)))


def _holding(requests: Requests, operation: int) -> tuple[Holding, ...]:
    """The program's own lines that hold most after an operation."""
    held_bytes = requests.by_site(requests.alive(operation))
    largest = np.argsort(-held_bytes).tolist()
    rows = [
        Holding(requests.sites[at].name, int(held_bytes[at]))
        for at in largest
        if requests.sites[at].own
    ]
    return tuple(row for row in rows if row.bytes)[:MOST_HOLDING]


def _before_forward(requests: Requests, operation: int) -> int:
    """The bytes, live after an operation, that were asked for before any module's forward pass;
    where none is recorded, those that the code of a model asked for.
    """
    frames = requests.trace.frames
    runs_a_module = np.array([any(map(CALLS.match, stack)) for stack in frames], bool)
    has_stack = np.flatnonzero(requests.stack >= 0)
    in_forward = has_stack[runs_a_module[requests.stack[has_stack]]]
    before = asked_by_model(requests)
    if len(in_forward):
        before = requests.at < requests.at[in_forward].min()
    return int(requests.size[before & requests.alive(operation)].sum())


def _trained(requests: Requests, weights_bytes: int) -> int:
    """The bytes of gradients, which are no more than the weights, and of the optimizer's state."""
    kinds = bytes_by_kind(requests)
    return min(kinds["gradients"], weights_bytes) + kinds["optimizer state"]


def _growth(
    recorded: RecordedGrowth, requests: Requests, operation: int, refusal: Refusal | None
) -> GrowthFacts | None:
    """What grows over the steps of a program; None where too few of them are seen.

    ``requests``: of the recording itself; ``operation``: up to which it counts what was kept.
    """
    growth = recorded.growth
    if growth is None:
        return None
    rest_so_far_bytes, usual_rest_bytes = _rest_by_step(recorded, requests, operation, refusal)
    growers = []
    steps = 0
    for row in recorded.growers:
        kept_bytes, kept_in = kept_at(row.grower, growth, requests, operation)
        keeper = row.keeper
        in_collection = keeper is not None and keeper.length > 0
        with_graphs = keeper is not None and keeps_by_graphs(keeper, recorded.growers)
        steps = max(steps, kept_in)
        growers.append(
            GrowerFacts(
                line=row.line,
                asked_at=row.grower.site.name,
                bytes_per_step=round(row.grower.bytes_per_step),
                kept_bytes=kept_bytes,
                keeper=keeper.name if keeper else "",
                through_graph=keeper is not None and keeper.is_one_with_graph,
                with_graphs=with_graphs,
                tensors_alone=in_collection and not with_graphs,
                in_circle=keeper is not None and keeper.in_circle,
            )
        )
    return GrowthFacts(
        growers=tuple(growers),
        steps=steps if growers else len(growth.steps),
        rest_bytes=_rest_of_step(recorded, operation),
        rest_so_far_bytes=rest_so_far_bytes,
        usual_rest_bytes=usual_rest_bytes,
        may_be_one_step=recorded.may_be_one_step,
        is_later=recorded.is_later,
    )


def _rest_of_step(recorded: RecordedGrowth, operation: int) -> int:
    """What the training step of an operation has live at most from there on, without what the steps
    have kept; 0 where it was not recorded to its end.
    """
    growth = recorded.growth
    if growth is None or not recorded.is_longer or not growth.steps.trains:
        return 0
    begun = growth.steps_at(operation)
    if not 0 < begun < len(growth.steps):
        return 0
    requests = recorded.requests
    end = int(growth.steps.begins[begun])
    fullest = operation + int(requests.live[operation:end].argmax())
    kept = [kept_at(row.grower, growth, requests, fullest) for row in recorded.growers]
    return int(requests.live[fullest]) - sum(kept_bytes for kept_bytes, _ in kept)


def _rest_by_step(
    recorded: RecordedGrowth, requests: Requests, operation: int, refusal: Refusal | None
) -> tuple[int, int]:
    """What was live beside what is kept: with a refused request, and at most in a step before it.
    Both 0 where no step came before it.
    """
    growth = recorded.growth
    if growth is None or recorded.is_longer or refusal is None:
        return 0, 0
    begun = growth.steps_at(operation)
    if begun < 2 or operation >= len(requests.live):
        return 0, 0
    asked = np.zeros(len(requests.live), np.int64)
    for row in recorded.growers:
        held = held_by(row.grower, requests, operation)
        np.add.at(asked, requests.at[held], requests.size[held])
    rest = requests.live - np.cumsum(asked)
    first, running = growth.steps.begins[[0, begun - 1]]
    refused_bytes = 0 if refusal.fails_in_replay else refusal.request_bytes  # else it is recorded
    return int(rest[operation]) + refused_bytes, int(rest[first:running].max(initial=0))


def _runs_out_in_step(study: Study, recorded: RecordedGrowth) -> int:
    """The step in which a program that was ended while it grew would fill the study's card; 0 where
    it does not grow, has no card, or would not fill it in as many steps as programs run.
    """
    growth = recorded.growth
    if growth is None or not recorded.is_leak or study.card.capacity_bytes >= AMPLE_BYTES:
        return 0
    try:
        runs_out = exhaustion(recorded.requests, growth, study)
    except ValueError:
        return 0  # it cannot be replayed on that card
    if runs_out is None or runs_out.step > MOST_STEPS:
        return 0
    return runs_out.step


def keeps_by_graphs(keeper: Keeper, growers: Sequence[KeptGrower]) -> bool:
    """Whether the graphs of a collection's tensors keep memory, and not the tensors alone."""
    if not keeper.with_graph or not keeper.length:
        return False
    held_bytes = sum(row.held_bytes for row in growers if row.keeper == keeper)
    own_bytes = max(keeper.own_bytes, MIN_BLOCK_BYTES * keeper.length)
    return held_bytes > MORE_THAN_ITSELF * own_bytes


def _steps_as_full(
    recorded: RecordedGrowth, requests: Requests, operation: int, refusal: Refusal | None
) -> int:
    """In how many steps before a refused request as much was live as would be with it."""
    if recorded.growth is None or recorded.is_longer or refusal is None:
        return 0
    needed = refusal.allocated_bytes + refusal.request_bytes
    begins = [begin for begin in recorded.growth.steps.begins.tolist() if begin < operation]
    ends = [*begins[1:], operation] if begins else []  # refused before its first step
    peaks = [
        int(requests.live[begin:end].max(initial=0))
        for begin, end in zip(begins, ends, strict=True)
    ]
    return sum(peak >= needed for peak in peaks)


def _more_to_come(
    recorded: RecordedGrowth, requests: Requests, operation: int, refusal: Refusal | None
) -> int:
    """By how much what was freed again rose behind the same request in earlier steps, up to their
    ends; where no steps are seen, until the same stack asked anew. The least of those that asked
    for no more than the refused request; 0 where there is none.
    """
    trace = requests.trace
    if refusal is None or trace.frame is None or not 0 <= operation < len(trace):
        return 0
    stack = int(trace.frame[operation])
    asked = requests.at[(requests.stack == stack) & (requests.at < operation)]
    if stack < 0 or not len(asked):
        return 0
    begins = np.append(asked, operation)
    if recorded.growth is not None and not recorded.is_longer:
        begins = recorded.growth.steps.begins
    step = np.searchsorted(begins, asked, "right")
    running = int(np.searchsorted(begins, operation, "right"))
    place = int((step == running).sum())
    live = _freed_until(requests, operation)
    rises = []
    for number in range(1, running):
        alike = asked[step == number][place:]
        if len(alike) and trace.size[alike[0]] <= refusal.request_bytes:
            behind = live[alike[0] : begins[number]]
            rises.append(int(behind.max() - behind[0]))
    return min(rises, default=0)


def _freed_until(requests: Requests, operation: int) -> np.ndarray:
    """The live bytes, after each operation, of what is freed until this one."""
    freed = (requests.until <= operation) & (requests.at >= 0)
    change = np.zeros(len(requests.trace) + 1, np.int64)
    np.add.at(change, requests.at[freed], requests.size[freed])
    np.add.at(change, requests.until[freed], -requests.size[freed])
    return np.cumsum(change)


def _cards(record: Mapping[str, Any]) -> tuple[CardFacts, ...]:
    """What the processes of a program need of each card: in a rehearsal as they met there, else
    each card's highest peak of any process.
    """
    stats: dict[int, list[Mapping[str, int]]] = {}
    for process in _rows_in(record, "processes"):
        for device in _rows_in(process, "devices"):
            stats.setdefault(device.get("index", 0), []).append(device.get("stats", {}))
    together = {use["index"]: use for use in _rows_in(record, "devices")}
    for index in together:
        stats.setdefault(index, [])
    cards = []
    for index, processes in sorted(stats.items()):
        peaks = [row.get("reserved_bytes.all.peak", 0) for row in processes]
        unused = sum(
            row.get("reserved_bytes.all.current", 0) - row.get("allocated_bytes.all.current", 0)
            for row in processes
        )
        use = together.get(index)
        needed = max(peaks, default=0)
        users = min(1, needed)
        if use:
            needed = use["sum_bytes"]
            users = len(use["peak_bytes"])
        if use and use.get("in_step"):
            unused = 0  # what a rank keeps cached at its end was not unused at the peaks
        cards.append(CardFacts(index, users, needed, unused))
    return tuple(cards)


def _repeat(fields: Mapping[str, Any] | None) -> Repeat | None:
    """A repeat as a record tells of it."""
    if not fields:
        return None
    return Repeat(
        capacity_bytes=_size_in(fields, "capacity_bytes"),
        conf=str(fields.get("conf", "")),
        fits=bool(fields.get("fits")),
        stopped=str(fields.get("stopped", "")),
        peak_allocated_bytes=_size_in(fields, "peak_allocated_bytes"),
        peak_reserved_bytes=_size_in(fields, "peak_reserved_bytes"),
        whole_step_bytes=_size_in(fields, "whole_step_bytes"),
    )


def _first_change(record: Mapping[str, Any]) -> FirstChange | None:
    """The change of the program's sources that was found where it was recorded."""
    change = record.get("first_change")
    if not isinstance(change, dict):
        return None
    words = [cut(plain(change.get(name, "")), MOST_OF_A_CHANGE) for name in ("title", "costs")]
    return FirstChange(*words) if words[0] else None


def _rows_in(fields: Mapping[str, Any], name: str) -> Sequence[Any]:
    """A list of a record; empty where it is not there."""
    rows = fields.get(name)
    if rows is None:
        return ()
    return tuple(rows)


def _size_in(fields: Mapping[str, Any], name: str) -> int:
    """A size of a record; 0 where it is not there or was not known."""
    size = fields.get(name)
    if size is None:
        return 0
    return int(size)


def _is_on(repeat: Repeat | None, capacity_bytes: int) -> bool:
    """Whether a repeat ran on a card of that size: on another it answers another question."""
    return repeat is not None and repeat.capacity_bytes == capacity_bytes


def _replays(study: Study, league: WhatIf | None) -> Replays | None:
    """What other settings make of the recorded requests; None where they cannot be replayed."""
    if league is not None:
        if league.needs_bytes:
            return Replays(None, league.needs_bytes)
        passing = {row.settings: row for row in league.rows if row.passes}
        use = next((conf for conf in FIRST_TRIED if conf in passing), league.use)
        return Replays(use, peak_bytes=passing[use].peak_reserved_high_bytes)
    tried: tuple[str, ...] = FIRST_TRIED
    if len(study.trace) <= MOST_EVENTS:
        tried += grid(behaviour(study.torch, study.build))
    try:
        stream, _, _ = prepared(study.trace, study.card)
        least_bytes, _ = lower_bound(stream, study.card)
        if least_bytes > study.card.capacity_bytes:
            return Replays(None)
        engine = choose("auto", len(stream) * len(tried))
        runs = Runs(stream, study.card, study.torch, study.build, study.fraction, engine)
        for conf in dict.fromkeys(tried):
            if runs.passes(conf, study.card.capacity_bytes):
                replays = [
                    runs.replay(conf, study.card.capacity_bytes, policy) for policy in runs.policies
                ]
                return Replays(conf, peak_bytes=max(row.peak_reserved_bytes for row in replays))
        return Replays(None)
    except ValueError:
        return None
