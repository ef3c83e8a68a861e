"""Commands about allocation traces: replay, whatif, leaks, shrink."""

from __future__ import annotations

import itertools
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

from helpers.allocator.circumstances import AMPLE_BYTES, agreement, with_record
from helpers.allocator.edits.comparison import compare_edits, lines_that_save
from helpers.allocator.edits.edit import parse
from helpers.allocator.growers import growth_of_recording
from helpers.allocator.oracle_lines import op_lines
from helpers.allocator.oracle_results import lines
from helpers.allocator.outcome import Outcome
from helpers.allocator.parquet_file import to_parquet
from helpers.allocator.shrinking import shrink as shrinking
from helpers.allocator.study import Study, study_of
from helpers.allocator.trace import MAX_FILE_BYTES, Trace, start_bytes
from helpers.allocator.trace_file import read_trace
from helpers.allocator.views import edits, replays, trace_verdict
from helpers.allocator.views.growth import growth_json, growth_table, runs_out_on
from helpers.allocator.views.reproducer import NoProgramError, program, shrunk_table
from helpers.commands.signs import waits_for
from helpers.commands.use import WrongUse, say
from helpers.ground.contract import as_dict
from helpers.ground.places import OUTPUTS
from helpers.ground.replays import WhatIf
from helpers.ground.shapes import Verdict
from helpers.ground.units import parse_capacity, parse_size
from helpers.look.cards import find_card
from helpers.settings.in_force import grid
from helpers.settings.releases import behaviour, named_release

LISTED_SETTINGS = 8
"""How many other settings `whatif --smallest` searches: each search replays the trace many times.
"""


def replay(arguments: Namespace) -> int:
    """Replay a trace under other settings, to the byte.

    <trace>
    --conf STR = None: PYTORCH_CUDA_ALLOC_CONF (default: that of the recording)
    --policy NAME: where the driver puts segments: firstfit, topdown, monotonic or recorded
        (default: as recorded, else the lowest free range)
    --results OUT: write one JSON line for each operation; - prints them
    --parquet OUT: write the trace as a small Parquet file, which replays the same and opens in
        DuckDB
    --force: replace files that are there
    --engine {auto,compiled,plain} = auto: hidden
    Example: replay run.pickle --conf expandable_segments:True
    """
    subject = Subject(arguments)
    study = subject.study
    results = arguments.results
    if results == "-":  # standard output
        _refuse_to_overwrite(arguments, [arguments.parquet])
    else:
        _refuse_to_overwrite(arguments, [results, arguments.parquet])
    if arguments.parquet:
        to_parquet(study.trace, arguments.parquet)
    # The addresses of a replay are needed for each result, and to compare with recorded ones.
    timeline = bool(results) or study.trace.address is not None
    outcome = study.replay(timeline=timeline, engine=arguments.engine)
    if results == "-":
        _write_results(study, outcome, sys.stdout)
        return 0
    if results:
        with open(results, "w", encoding="utf-8") as file:
            _write_results(study, outcome, file)
    check = None
    if subject.same_settings:
        check = agreement(study.trace, outcome)
    row = study.row(outcome)
    answer = as_dict(row)
    if check:
        answer["agreement"] = check._asdict()
    answer["notes"] = subject.notes
    text = replays.replay_text(outcome, row, study.card, check, subject.notes)
    return say(arguments, answer, text)


def _refuse_to_overwrite(arguments: Namespace, paths: Sequence[str | Path]) -> None:
    """Raises WrongUse where one of these files exists already, without --force; empty: no file."""
    for path in paths:
        if path and Path(path).exists() and not arguments.force:
            raise WrongUse(f"{path}: exists already; expected a new name, or --force")


def _write_results(study: Study, outcome: Outcome, file: TextIO) -> None:
    """Write what was replayed as one JSON line, and then one line for each operation.

    The form is that of the lines of torch's own allocator (tests/oracle), so that both compare.
    """
    job = {
        "conf": study.conf,
        "vram": study.card.capacity_bytes,
        "fraction": study.fraction,
        "policy": study.card.policy,
        "foreign": study.card.held_bytes,
    }
    head = {"job": job, "torch": study.torch, "model": True}
    for row in [head, *lines(op_lines(study.trace), outcome)]:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")


def whatif(arguments: Namespace) -> int:
    """Find the setting that saves a run, or how many bytes are missing and which lines to change.

    <trace>
    --capacity SIZE: the card's memory, such as 20GiB; separate several with commas
    --torch VER: the torch release (default: the recording's, else 2.14.1); separate several with
        commas
    --conf STR ...: try this setting, too; can be repeated
    --only: try only the default settings and those of --conf
    --smallest: find the smallest card that is enough, for each setting
    --edit CHANGE ...: replay with a line changed, such as "train.py:82 / 8"; checkpoint or drop
        instead of / 8; can be repeated
    Example: whatif run.pickle --capacity 20GiB
    """
    capacities = arguments.capacity.split(",")
    releases = arguments.torch.split(",")
    arguments.capacity = capacities[0]
    arguments.torch = releases[0]
    subject = Subject(arguments)
    if arguments.edit:
        return _edited(arguments, subject)
    studies = [
        _on_other(subject.study, release, capacity)
        for release, capacity in itertools.product(releases, capacities)
    ]
    answers = [_league(arguments, study) for study in studies]
    if arguments.smallest:
        sizes = _smallest_cards(studies[0], answers[0])
        return say(arguments, sizes, replays.smallest_table(sizes))
    if len(answers) > 1:
        rows = [as_dict(replace(answer, notes=subject.notes)) for answer in answers]
        return say(arguments, rows, replays.sweep_table(answers), subject.remarks)
    return _settings_of_one_study(arguments, subject, studies[0], answers[0])


def _smallest_cards(study: Study, answer: WhatIf) -> dict[str, int]:
    """The bytes of the smallest card, by setting: of the defaults, of the setting to use, and of
    the first LISTED_SETTINGS others.
    """
    best = answer.use
    if not best:
        best = answer.needs_settings
    without_flags = [row.settings for row in answer.rows if not row.flags]
    return study.smallest_cards(["", best, *without_flags[:LISTED_SETTINGS]])


def _settings_of_one_study(
    arguments: Namespace, subject: Subject, study: Study, answer: WhatIf
) -> int:
    """Print the settings that were tried, their verdict, and the lines to change. The exit code."""
    tried_usual_settings = not arguments.conf and not arguments.only
    if tried_usual_settings:
        verdict = trace_verdict.verdict(study, answer)
    else:
        verdict = trace_verdict.verdict(study)
    lines, why_none = lines_that_save(study, answer, verdict)
    subject.notes += why_none
    answer = replace(answer, lines=lines, notes=subject.notes, verdict=verdict)
    answer = replace(answer, use=replays.setting_to_use(answer))
    league = replays.league(answer, path=arguments.trace)
    texts: list[object] = [*_lead(verdict), league]
    if lines:
        texts += ["", edits.lines(lines, subject.study.trace.ran_out)]
    return say(arguments, as_dict(answer), *texts, subject.remarks)


def _lead(verdict: Verdict) -> list[str]:
    """The first lines about a trace: its verdict, and after a leak what to do about it."""
    lines = [f"{verdict.headline}."]
    if verdict.cause == "user-leak":
        lines.append(f"Next step: {verdict.next_step.what}.")
    return [*lines, ""]


def _on_other(study: Study, release: str, capacity: str) -> Study:
    """The study on another release and card; an empty name leaves that of the study."""
    card = study.card
    if capacity:
        card = replace(card, capacity_bytes=_capacity_named(capacity))
    torch = named_release(release)
    if not torch:
        torch = study.torch
    return replace(study, torch=torch, card=card)


def _league(arguments: Namespace, study: Study) -> WhatIf:
    """Replay a study under the default settings, the usual ones and those of --conf; with --only
    the usual ones are left out.
    """
    confs = None  # the usual ones
    if arguments.only:
        confs = ["", *arguments.conf]
    elif arguments.conf:
        usual = grid(behaviour(study.torch, study.build))
        confs = ["", *usual, *arguments.conf]
    work = f"settings on torch {study.torch}"
    with waits_for(work, quiet=arguments.json) as progress:
        return study.what_if(confs, progress)


def _edited(arguments: Namespace, subject: Subject) -> int:
    """Print how the trace replays with the program's lines changed as --edit says. The
    exit code.
    """
    comparison = compare_edits(subject.study, [parse(text) for text in arguments.edit])
    answer = {**comparison.as_dict(), "notes": subject.notes}
    return say(arguments, answer, edits.table(comparison), subject.remarks)


def leaks(arguments: Namespace) -> int:
    """Find memory that grows from step to step, the line that keeps it, and the step in which it
    runs out.

    <trace>
    --conf STR = None: the allocator settings (default: those of the recording)
    Example: leaks run.pickle --capacity 20GiB
    """
    subject = Subject(arguments)
    growth = growth_of_recording(subject.study.trace, subject.study.path)
    runs_out, capacity_bytes = runs_out_on(subject.study, growth)
    table = growth_table(growth, runs_out, capacity_bytes)
    verdict = trace_verdict.verdict(subject.study)
    answer = growth_json(growth, runs_out, capacity_bytes)
    answer |= {"verdict": as_dict(verdict), "notes": subject.notes}
    return say(arguments, answer, *_lead(verdict), table, subject.remarks)


def shrink(arguments: Namespace) -> int:
    """Reduce a trace to the fewest requests that still fail, also as a torch program of at most 40
    lines.

    <trace>
    --conf STR = None: PYTORCH_CUDA_ALLOC_CONF (default: that of the recording)
    --smaller-card: also try smaller cards, if the failure depends on the layout: fewer requests
        fill them
    --seconds S <float> = 240: end the search after S seconds (default: 240)
    --out NAME: write NAME.parquet and NAME.py (default: in the outputs folder of the checkout)
    --force: replace files that are there
    Example: shrink run.pickle --capacity 20GiB
    """
    subject = Subject(arguments)
    base = OUTPUTS / f"shrunk-{time.strftime('%Y%m%d-%H%M%S')}"
    if arguments.out:
        base = Path(arguments.out.removesuffix(".parquet").removesuffix(".py"))
    files = {kind: base.with_name(f"{base.name}.{kind}") for kind in ("parquet", "py")}
    _refuse_to_overwrite(arguments, list(files.values()))
    shrunk = shrinking.shrink(
        subject.study, smaller_card=arguments.smaller_card, seconds=arguments.seconds
    )
    base.parent.mkdir(parents=True, exist_ok=True)
    to_parquet(shrunk.trace, files["parquet"])
    try:
        files["py"].write_text(program(shrunk, files["py"].name), encoding="utf-8")
    except NoProgramError as error:
        subject.notes.append(str(error))
        files.pop("py")
    figures = {key: value for key, value in asdict(shrunk).items() if key != "trace"}
    answer = {
        "schema_version": 1,
        "kind": shrunk.failure.kind,
        "invariants": shrunk.failure.invariants,
        **figures,
        "files": {kind: str(path) for kind, path in files.items()},
        "notes": [*shrunk.notes, *subject.notes],
    }
    written = [f"written: {path.resolve()}" for path in files.values()]
    return say(arguments, answer, shrunk_table(shrunk), subject.remarks, *written)


def _size(text: str, option: str) -> int:
    """The bytes that an option names. Raises WrongUse where it is no size."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise WrongUse(f"--{option}: {error}") from error


def _capacity_named(text: str) -> int:
    """The bytes of the card that --capacity names. Raises WrongUse where it is none."""
    try:
        return parse_capacity(text)
    except ValueError as error:
        raise WrongUse(f"--capacity: {error}") from error


class Subject:
    """The trace of a command line, with the card, release and settings to replay it on.

    ``study`` holds all of that: what an option names, else what was recorded. ``same_settings``:
    the settings are those of the recording. ``notes``: what was missing or inferred, a line each.
    """

    def __init__(self, arguments: Namespace) -> None:
        conf = arguments.conf
        self.same_settings = conf is None
        if arguments.verb == "whatif":
            # its --conf is a list of settings to try beside the recorded ones
            conf = None
        held_bytes = None
        if arguments.held:
            held_bytes = _size(arguments.held, "held")
        study = study_of(
            _trace(arguments),
            Path(arguments.trace),
            held_bytes=held_bytes,
            policy=getattr(arguments, "policy", ""),  # an option of `replay` alone
            conf=conf,
            torch=named_release(arguments.torch),
            build=arguments.build,
        )
        self.notes = list(study.notes)
        card = replace(study.card, capacity_bytes=_capacity(arguments, study))
        self.study = replace(
            study, card=card, fraction=_fraction(arguments, study.fraction)
        )

    @property
    def remarks(self) -> str:
        """The notes, a line each."""
        return "\n".join(f"note: {note}" for note in self.notes)


def _trace(arguments: Namespace) -> Trace:
    """The trace that the command line names, with what its recording says about the
    circumstances.
    """
    max_bytes = MAX_FILE_BYTES
    if arguments.max_bytes:
        max_bytes = _size(arguments.max_bytes, "max-bytes")
    trace = read_trace(arguments.trace, device=arguments.device, max_bytes=max_bytes)
    return with_record(trace, Path(arguments.trace))


def _fraction(arguments: Namespace, recorded: float | None) -> float | None:
    """The share of the card that torch may use: of --fraction, else the recorded one
    (None: all).
    """
    fraction: float | None = arguments.fraction
    if fraction is None:
        fraction = recorded
    if fraction is not None and not 0 <= fraction <= 1:
        raise WrongUse(f"--fraction {fraction}: expected a number from 0 to 1")
    return fraction


def _capacity(arguments: Namespace, study: Study) -> int:
    """The card's bytes: as named, else as recorded, else AMPLE_BYTES where the verb needs no card.

    Raises WrongUse where the size is unknown but needed, or too small for the start of the trace.
    """
    # These two show what happened; the others ask whether it fits a card.
    needs_card = arguments.verb not in ("replay", "leaks")
    capacity = study.card.capacity_bytes
    is_known = 0 < capacity < AMPLE_BYTES  # AMPLE_BYTES: no size was recorded
    if arguments.gpu:
        capacity = find_card(arguments.gpu).total_bytes
        is_known = capacity > 0
    if arguments.capacity:
        capacity = _capacity_named(arguments.capacity)
        is_known = capacity > 0
    if needs_card and not is_known:
        why = "the trace does not say how large the card was"
        raise WrongUse(f"--capacity: {why}; give it, such as --capacity 20GiB")
    if capacity <= 0:
        capacity = AMPLE_BYTES
    reserved_bytes = start_bytes(study.trace.start)
    if reserved_bytes > capacity and not needs_card:
        seen = f"{reserved_bytes} bytes are reserved when the trace begins"
        raise WrongUse(
            f"--capacity {capacity} bytes: {seen}; expected at least as many"
        )
    return capacity
