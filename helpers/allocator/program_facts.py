"""The facts of a recorded program for the judge: the refused request, what grows, the recorded
requests under other settings, and the repeats of the program.

A *record* is the record.json beside a trace (record.py, or a rehearsal's): it may be from
elsewhere, so each field of it may be missing.
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
    Refusal,
    Repeat,
    Replays,
)
from helpers.settings.in_force import grid
from helpers.settings.releases import behaviour
from helpers.settings.table import CONF_NAMES
from helpers.settings.trouble import SettingsTrouble, settings_trouble

MOST_OF_A_CHANGE = 300
"""Characters kept of a change's title and of its costs: ours are one sentence each, and a record
from elsewhere may have any number.
"""

MOST_HOLDING = 5
"""Lines named as holding memory: the judge's evidence names the largest and a few to compare."""


def evidence_from_trace(path: str | Path) -> CaseEvidence:
    """Evidence from a trace file and the record beside it.

    Raises TraceError, one line, where the file is no trace; runs no code of it.
    """
    path = Path(path)
    study = study_of(with_record(read_trace(path), path), path)
    return CaseEvidence(program=facts_of(study))


def facts_of(study: Study, league: WhatIf | None = None) -> ProgramFacts:
    """The facts of a study's trace on its card.

    ``league``: the what-if of the study, where it was made already.
    """
    path = study.path
    record = record_of(path)
    recorded = growth_of_recording(study.trace, path)
    requests = requests_of(study.trace)
    limit_bytes = _limit_bytes(study)
    refusal, operation = _refusal(study, requests, limit_bytes)
    # The operations after which the largest lines, and up to which growth, are counted.
    holding_at = requests.peak
    growth_until = requests.fullest
    if refusal is not None:
        # what held memory at the failure counts, not at some later peak
        holding_at = operation
        growth_until = operation
    live = requests.live
    processes = _rows_in(record, "processes")
    # The repeats of a rehearsed program: with expandable segments, and without a memory limit.
    repeats = record.get("counterfactual", {})
    expandable = _repeat(repeats.get("expandable"))
    if expandable and expandable.capacity_bytes != study.card.capacity_bytes:
        expandable = None  # on another card it answers another question
    usable_bytes = max(0, study.capacity_bytes - study.card.held_bytes)
    if limit_bytes:
        usable_bytes = min(usable_bytes, limit_bytes)
    exit_code = record.get("exit_code")
    if record.get("stopped"):
        exit_code = None  # the rehearsal ended the program: its code says nothing
    facts = ProgramFacts(
        source=f"recording of {path.name if path else study.name}",
        is_real=study.trace.recorded_by_gpu,
        exit_code=exit_code,
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
        holding=_holding(requests, holding_at),
        growth=growth_facts(recorded, requests, growth_until, refusal),
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
    if refusal is None:  # it did not run out here: in which later step would it?
        return replace(facts, runs_out_in_step=runs_out_in_step(study, recorded))
    replays = _replays(study) if league is None else _league_replays(league)
    weights_bytes = _before_forward(requests, operation)
    return replace(
        facts,
        asked_before_forward_bytes=weights_bytes,
        trained_bytes=_trained(requests, weights_bytes),
        replays=replays,
    )


def _refusal(
    study: Study, requests: Requests, limit_bytes: int
) -> tuple[Refusal | None, int]:
    """The first refused request and its operation: the one that was refused while it was recorded,
    else the one that a replay on the study's card refuses. None and the length of the trace where
    all requests are met, and where the card is not known or the trace cannot be replayed on it.
    ``limit_bytes``: the program's own limit, as ``_limit_bytes`` says.
    """
    refusal, operation = recorded_refusal(study, requests)
    if refusal is None and study.capacity_bytes:
        try:
            refusal, operation = replayed_refusal(study)
        except ValueError:  # it cannot be replayed on that card
            return None, len(study.trace)
    if refusal is not None:
        refusal = replace(refusal, allowed_bytes=limit_bytes)
    return refusal, operation


def _options_again(
    record: Fields,
    processes: Sequence[Fields],
    capacity_bytes: int,
) -> str:
    """The options with which `rehearse` runs the program again for the same card and, where the
    record is of one rank of a job, for the same rank; "" for none. ``capacity_bytes``: of the card,
    0 where that is not known.
    """
    words = []
    if capacity_bytes:
        words = card_options(processes, capacity_bytes)
    limits = record.get("limits")
    if isinstance(limits, dict) and limits.get("world"):
        rank = _size_in(limits, "rank")
        words += ["--world", str(limits["world"]), "--ranks", str(rank)]
    return line(words)


def _limit_bytes(study: Study) -> int:
    """The bytes of the card to which set_per_process_memory_fraction limits the program; 0 for no
    limit, and where the card's size is not known.
    """
    rules = behaviour(study.torch, study.build)
    allowed = allowed_bytes(study.fraction, study.card, rules)
    if not study.capacity_bytes or allowed == NO_LIMIT:
        return 0
    return max(0, allowed)


def _settings_trouble(
    trace: Trace, processes: Sequence[Fields]
) -> SettingsTrouble | None:
    """What is wrong with the allocator's settings of the process that made the trace; None for
    nothing, and where its variables were not recorded.
    """
    process = process_of_trace(processes)
    variables = process.get("allocator_variables")
    if not variables:
        return None
    in_force = {}  # the settings as torch itself reported them, by the name of the variable
    conf = trace.header.get("conf")
    if conf is not None:
        in_force = {CONF_NAMES[0]: conf}
    trouble = settings_trouble(variables, in_force, process.get("torch", {}))
    if trouble is not None and trouble.fatal and len(trace):
        return None  # torch did not stop at it: memory was asked for
    return trouble


def _idle_checkpointing(
    processes: Sequence[Fields],
) -> IdleCheckpointing | None:
    """The checkpointing that had no effect in the process that made the trace; None where there was
    none (under_torch/idle_checkpointing.py).
    """
    fact = process_of_trace(processes).get("idle_checkpointing")
    if not isinstance(fact, dict) or not fact.get("model"):
        return None
    return IdleCheckpointing(str(fact["model"]), str(fact.get("where", "")))


def _holding(requests: Requests, operation: int) -> tuple[Holding, ...]:
    """The program's own lines that hold most after an operation, the largest first, at most
    MOST_HOLDING.
    """
    held_bytes = requests.by_site(requests.alive(operation))
    largest = requests.largest_lines(held_bytes)[:MOST_HOLDING]
    return tuple(
        Holding(requests.sites[number].name, int(held_bytes[number]))
        for number in largest
        if held_bytes[number]
    )


def _before_forward(requests: Requests, operation: int) -> int:
    """The bytes of a model's weights, as far as a trace shows them: bytes that are live after an
    operation and were asked for before the first forward pass of any module. Where no forward pass
    was recorded, live bytes that the code of a model asked for (kinds.asked_by_model).
    """
    in_forward = requests.with_stack(lambda frames: any(map(CALLS.match, frames)))
    before = asked_by_model(requests)
    if in_forward.any():
        before = requests.at < requests.at[in_forward].min()
    return int(requests.size[before & requests.alive(operation)].sum())


def _trained(requests: Requests, weights_bytes: int) -> int:
    """Bytes of gradients and of the optimizer's state at the peak. Gradients count at most
    ``weights_bytes``, since there are no more of them than weights.
    """
    kinds = bytes_by_kind(requests)
    return min(kinds["gradients"], weights_bytes) + kinds["optimizer state"]


def _cards(record: Fields) -> tuple[CardFacts, ...]:
    """What the processes of a program need of each card, in the order of the cards' indices: the
    sum that a rehearsal's record has for the card, else the highest peak of any one process.
    """
    stats = _stats_by_card(record)
    # A rehearsal's record has the card's use by all processes together (rehearse.holders.CardUse).
    together = {use["index"]: use for use in _rows_in(record, "devices")}
    cards = []
    for index in sorted({*stats, *together}):
        needed_bytes = 0
        unused_bytes = 0
        for row in stats.get(index, ()):
            needed_bytes = max(needed_bytes, row.get("reserved_bytes.all.peak", 0))
            unused_bytes += row.get("reserved_bytes.all.current", 0)
            unused_bytes -= row.get("allocated_bytes.all.current", 0)
        users = int(needed_bytes > 0)  # without a sum the figure is of one process
        use = together.get(index)
        if use:
            needed_bytes = use["sum_bytes"]
            users = len(use["peak_bytes"])
            if use.get("in_step"):
                # All peaks may come at once, and what a rank keeps cached was in use then.
                unused_bytes = 0
        cards.append(CardFacts(index, users, needed_bytes, unused_bytes))
    return tuple(cards)


def _stats_by_card(record: Fields) -> dict[int, list[Mapping[str, int]]]:
    """For each card, by its index, torch.cuda.memory_stats of each process that used it."""
    stats: dict[int, list[Mapping[str, int]]] = {}
    for process in _rows_in(record, "processes"):
        for device in _rows_in(process, "devices"):
            stats.setdefault(device.get("index", 0), []).append(device.get("stats", {}))
    return stats


def _repeat(fields: Fields | None) -> Repeat | None:
    """A repeat from its object in a record; None where it has none."""
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
    """The change of the program's sources that the record advises to try first; None where it
    advises none.
    """
    change = record.get("first_change")
    if not isinstance(change, dict):
        return None
    title = cut(plain(change.get("title", "")), MOST_OF_A_CHANGE)
    costs = cut(plain(change.get("costs", "")), MOST_OF_A_CHANGE)
    if not title:
        return None
    return FirstChange(title, costs)


def _rows_in(fields: Fields, name: str) -> Sequence[Any]:
    """A list of a record; empty where the record does not have it."""
    rows = fields.get(name)
    if rows is None:
        return ()
    return tuple(rows)


def _size_in(fields: Fields, name: str) -> int:
    """A size of a record; 0 where the record does not have it, or has null for it."""
    size = fields.get(name)
    if size is None:
        return 0
    return int(size)


def _league_replays(league: WhatIf) -> Replays:
    """The recorded requests under other settings, from a what-if that was made already: the
    settings that pass and their peak, or the bytes that are missing under all of them.
    """
    if league.needs_bytes:
        return Replays(passes_with=None, needs_bytes=league.needs_bytes)
    passing = {row.settings: row for row in league.rows if row.passes}
    # Those of CONFS come first, as in _replays, even where another reserves less.
    use = next((conf for conf in CONFS if conf in passing), league.use)
    return Replays(use, peak_bytes=passing[use].peak_reserved_high_bytes)


def _replays(study: Study) -> Replays | None:
    """The recorded requests under other settings, replayed until they pass under one. Its
    ``passes_with`` is None where they pass under no setting. The answer is None where they cannot
    be replayed.
    """
    capacity_bytes = study.card.capacity_bytes
    tried = list(CONFS)
    if len(study.trace) <= MOST_EVENTS:
        # a longer trace takes too long for all settings
        tried += grid(behaviour(study.torch, study.build))
    try:
        stream, _, _ = prepared(study.trace, study.card)
        least_bytes, _ = least_capacity(stream, study.card)
        if least_bytes > capacity_bytes:  # no setting can pass
            return Replays(passes_with=None)
        engine = chosen_engine("auto", len(stream) * len(tried))
        runs = Runs(
            stream, study.card, study.torch, study.build, study.fraction, engine
        )
        for conf in dict.fromkeys(tried):
            if runs.passes(conf, capacity_bytes):
                outcomes = runs.replays(conf, capacity_bytes)
                peak_bytes = max(outcome.peak_reserved_bytes for outcome in outcomes)
                return Replays(conf, peak_bytes=peak_bytes)
        return Replays(passes_with=None)
    except ValueError:
        return None
