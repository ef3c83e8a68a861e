"""What the recording of a program shows of how it failed, for the judge: the refused request,
what grows, what other settings would have done, and what the repeats did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.allocator.call_sites import Requests, requests_of
from helpers.allocator.capacity import Runs, least_capacity, prepared
from helpers.allocator.circumstances import record_of, with_record
from helpers.allocator.edits.comparison import CONFS, MOST_EVENTS
from helpers.allocator.failure_facts import (
    growth_facts,
    more_to_come,
    recorded_refusal,
    replayed_refusal,
    reserved_bytes,
    runs_out_in_step,
    steps_as_full,
)
from helpers.allocator.growers import growth_of_recording
from helpers.allocator.kinds import asked_by_model, bytes_by_kind
from helpers.allocator.recorded_processes import Fields, card_options, process_of_trace
from helpers.allocator.records import NO_LIMIT
from helpers.allocator.replay import chosen_engine
from helpers.allocator.stack_frames import CALLS
from helpers.allocator.study import Study, study_of
from helpers.allocator.tables import allowed_bytes
from helpers.allocator.trace import Trace
from helpers.allocator.trace_file import read_trace
from helpers.ground.replays import WhatIf
from helpers.ground.shell import line, word
from helpers.ground.units import cut, plain
from helpers.judge.evidence import CaseEvidence
from helpers.judge.program_facts import (
    CardFacts,
    FirstChange,
    Holding,
    IdleCheckpointing,
    ProgramFacts,
    Repeat,
    Replays,
)
from helpers.settings.in_force import grid
from helpers.settings.releases import behaviour
from helpers.settings.table import CONF_NAMES
from helpers.settings.trouble import SettingsTrouble, settings_trouble

MOST_OF_A_CHANGE = 300
"""Characters of a change's title, which a record from elsewhere may have any number of."""

MOST_HOLDING = 5


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
    refusal, operation = recorded_refusal(study, requests)
    if refusal is None and study.capacity_bytes:
        try:
            refusal, operation = replayed_refusal(study)
        except ValueError:
            operation = len(study.trace)  # it cannot be replayed on that card
    limit_bytes = _limit_bytes(study)
    if refusal is not None:
        refusal = replace(refusal, allowed_bytes=limit_bytes)
    live = requests.live
    processes = _rows_in(record, "processes")
    repeats = record.get("counterfactual", {})
    expandable = _repeat(repeats.get("expandable"))
    if expandable and expandable.capacity_bytes != study.card.capacity_bytes:
        expandable = None  # on another card it answers another question
    usable_bytes = max(0, study.capacity_bytes - study.card.held_bytes)
    if limit_bytes:
        usable_bytes = min(usable_bytes, limit_bytes)
    facts = ProgramFacts(
        source=f"recording of {path.name if path else study.name}",
        is_real=study.trace.recorded_by_gpu,
        exit_code=None if record.get("stopped") else record.get("exit_code"),
        recording_is_whole=not study.trace.ran_out,
        ooms=sum(row.get("ooms", 0) for row in processes),
        capacity_bytes=study.capacity_bytes,
        usable_bytes=usable_bytes,
        fraction=study.fraction if limit_bytes else None,
        peak_allocated_bytes=int(live.max(initial=0)),
        peak_reserved_bytes=max(reserved_bytes(study.trace)),
        allocated_at_end_bytes=int(requests.live_before[-1]),
        refusal=refusal,
        most_live_before_bytes=int(live[:operation].max(initial=0)),
        holding=_holding(requests, operation if refusal else requests.peak),
        growth=growth_facts(
            recorded, requests, operation if refusal else requests.fullest, refusal
        ),
        more_to_come_bytes=more_to_come(recorded, requests, operation, refusal),
        steps_as_full=steps_as_full(recorded, requests, operation, refusal),
        cards=_cards(record),
        reached_first_step=recorded.reached_first_step,
        without_limit=_repeat(repeats.get("without_limit")),
        expandable=expandable,
        settings=_settings_trouble(study.trace, processes),
        idle_checkpointing=_idle_checkpointing(processes),
        conf_variable=behaviour(study.torch, study.build).conf_names[0],
        trace=word(str(path)) if path else "TRACE",
        command=line(_rows_in(record, "command")),
        card_options=_options_again(record, processes, study.capacity_bytes),
        first_change=_first_change(record),
    )
    if refusal is None:
        return replace(facts, runs_out_in_step=runs_out_in_step(study, recorded))
    weights_bytes = _before_forward(requests, operation)
    return replace(
        facts,
        asked_before_forward_bytes=weights_bytes,
        trained_bytes=_trained(requests, weights_bytes),
        replays=_replays(study, league),
    )


def _options_again(
    record: Fields,
    processes: Sequence[Fields],
    capacity_bytes: int,
) -> str:
    """The options of `rehearse` for the same card and, of a job, the same rank."""
    words = card_options(processes, capacity_bytes) if capacity_bytes else []
    limits = record.get("limits")
    if isinstance(limits, dict) and limits.get("world"):
        rank = _size_in(limits, "rank")
        words += ["--world", str(limits["world"]), "--ranks", str(rank)]
    return line(words)


def _limit_bytes(study: Study) -> int:
    """What the program lets itself have of its card, in bytes; 0 where it sets no limit."""
    rules = behaviour(study.torch, study.build)
    allowed = allowed_bytes(study.fraction, study.card, rules)
    if not study.capacity_bytes or allowed == NO_LIMIT:
        return 0
    return max(0, allowed)


def _settings_trouble(
    trace: Trace, processes: Sequence[Fields]
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


def _idle_checkpointing(
    processes: Sequence[Fields],
) -> IdleCheckpointing | None:
    """The checkpointing that had no effect in the process whose trace it is."""
    kept = process_of_trace(processes).get("idle_checkpointing")
    if not isinstance(kept, dict) or not kept.get("model"):
        return None
    return IdleCheckpointing(str(kept["model"]), str(kept.get("where") or ""))


def _holding(requests: Requests, operation: int) -> tuple[Holding, ...]:
    """The program's own lines that hold most after an operation."""
    held_bytes = requests.by_site(requests.alive(operation))
    largest = requests.largest_lines(held_bytes)[:MOST_HOLDING]
    return tuple(
        Holding(requests.sites[number].name, int(held_bytes[number]))
        for number in largest
        if held_bytes[number]
    )


def _before_forward(requests: Requests, operation: int) -> int:
    """The bytes, live after an operation, that were asked for before any module's forward pass;
    where none is recorded, those that the code of a model asked for.
    """
    in_forward = requests.with_stack(lambda frames: any(map(CALLS.match, frames)))
    before = asked_by_model(requests)
    if in_forward.any():
        before = requests.at < requests.at[in_forward].min()
    return int(requests.size[before & requests.alive(operation)].sum())


def _trained(requests: Requests, weights_bytes: int) -> int:
    """The bytes of gradients, which are no more than the weights, and of the optimizer's state."""
    kinds = bytes_by_kind(requests)
    return min(kinds["gradients"], weights_bytes) + kinds["optimizer state"]


def _cards(record: Fields) -> tuple[CardFacts, ...]:
    """What the processes of a program need of each card: in a rehearsal as they met there, else
    each card's highest peak of any process.
    """
    stats: dict[int, list[Mapping[str, int]]] = {}
    for process in _rows_in(record, "processes"):
        for device in _rows_in(process, "devices"):
            stats.setdefault(device.get("index", 0), []).append(device.get("stats", {}))
    together = {use["index"]: use for use in _rows_in(record, "devices")}
    cards = []
    for index in sorted({*stats, *together}):
        needed = 0
        unused = 0
        for row in stats.get(index, ()):
            needed = max(needed, row.get("reserved_bytes.all.peak", 0))
            unused += row.get("reserved_bytes.all.current", 0)
            unused -= row.get("allocated_bytes.all.current", 0)
        users = min(1, needed)
        use = together.get(index)
        if use:
            needed = use["sum_bytes"]
            users = len(use["peak_bytes"])
            if use.get("in_step"):
                unused = 0  # what a rank keeps cached at its end was used at the peaks
        cards.append(CardFacts(index, users, needed, unused))
    return tuple(cards)


def _repeat(fields: Fields | None) -> Repeat | None:
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


def _first_change(record: Fields) -> FirstChange | None:
    """The change of the program's sources that was found where it was recorded."""
    change = record.get("first_change")
    if not isinstance(change, dict):
        return None
    words = [
        cut(plain(change.get(name, "")), MOST_OF_A_CHANGE)
        for name in ("title", "costs")
    ]
    return FirstChange(*words) if words[0] else None


def _rows_in(fields: Fields, name: str) -> Sequence[Any]:
    """A list of a record; empty where it is not there."""
    rows = fields.get(name)
    if rows is None:
        return ()
    return tuple(rows)


def _size_in(fields: Fields, name: str) -> int:
    """A size of a record; 0 where it is not there or was not known."""
    size = fields.get(name)
    if size is None:
        return 0
    return int(size)


def _replays(study: Study, league: WhatIf | None) -> Replays | None:
    """What other settings make of the recorded requests; None where they cannot be replayed."""
    capacity_bytes = study.card.capacity_bytes
    if league is not None:
        if league.needs_bytes:
            return Replays(None, league.needs_bytes)
        passing = {row.settings: row for row in league.rows if row.passes}
        use = next((conf for conf in CONFS if conf in passing), league.use)
        return Replays(use, peak_bytes=passing[use].peak_reserved_high_bytes)
    tried = list(CONFS)
    if len(study.trace) <= MOST_EVENTS:
        tried += grid(behaviour(study.torch, study.build))
    try:
        stream, _, _ = prepared(study.trace, study.card)
        least_bytes, _ = least_capacity(stream, study.card)
        if least_bytes > capacity_bytes:
            return Replays(None)
        engine = chosen_engine("auto", len(stream) * len(tried))
        runs = Runs(
            stream, study.card, study.torch, study.build, study.fraction, engine
        )
        for conf in dict.fromkeys(tried):
            if runs.passes(conf, capacity_bytes):
                outcomes = runs.replays(conf, capacity_bytes)
                peak_bytes = max(outcome.peak_reserved_bytes for outcome in outcomes)
                return Replays(conf, peak_bytes=peak_bytes)
        return Replays(None)
    except ValueError:
        return None
