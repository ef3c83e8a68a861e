"""Commands about allocation traces: replay, whatif, leaks, shrink."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from helpers.commands.use import WrongUse, say, waits_for
from helpers.ground.contract import as_dict
from helpers.ground.places import OUTPUTS

if TYPE_CHECKING:
    from helpers.allocator.outcome import Outcome
    from helpers.allocator.study import Study
    from helpers.commands.trace_subject import Subject
    from helpers.ground.replays import WhatIf
    from helpers.ground.shapes import Verdict

SHARED = """
trace: a torch snapshot (.pickle), the oracle's lines (.jsonl, .xz) or a Parquet trace
--capacity SIZE: the card's memory, such as 20GiB
--gpu NAME: the card by its name, such as 4090, instead of --capacity
--held SIZE: memory of the card that other processes use
--fraction F <float>: set_per_process_memory_fraction
--torch VER: the torch release (default: the recording's, else 2.14.1)
--build B: cuda or rocmX.Y (default: the recording's, else cuda)
--device N <int>: the device, if the snapshot has several
--max-bytes SIZE: the largest trace file to read (default: 1 GiB)
"""


def replay(arguments: argparse.Namespace) -> int:
    """Replay a trace under other settings, to the byte.

    --conf STR = None: PYTORCH_CUDA_ALLOC_CONF (default: that of the recording)
    --policy NAME: where the driver puts segments: firstfit, topdown, monotonic or recorded
        (default: as recorded, else the
        lowest free range)
    --results OUT: write one JSON line for each operation; - prints them
    --parquet OUT: write the trace as a small Parquet file, which replays the same and opens in
        DuckDB
    --force: replace files that are there
    --engine {auto,compiled,plain} = auto: hidden
    Example: replay run.pickle --conf expandable_segments:True
    """
    from helpers.allocator.circumstances import agreement
    from helpers.allocator.parquet_file import to_parquet
    from helpers.allocator.views.replays import replay_text
    from helpers.commands.trace_subject import Subject

    subject = Subject(arguments)
    study = subject.study
    results = arguments.results
    _refuse_to_overwrite(
        arguments, [results if results != "-" else "", arguments.parquet]
    )
    if arguments.parquet:
        to_parquet(study.trace, arguments.parquet)
    timeline = bool(results) or study.trace.address is not None
    outcome = study.replay(timeline=timeline, engine=arguments.engine)
    if results == "-":
        _write_results(study, outcome, sys.stdout)
        return 0
    if results:
        with open(results, "w", encoding="utf-8") as file:
            _write_results(study, outcome, file)
    check = agreement(study.trace, outcome) if subject.same_settings else None
    row = study.row(outcome)
    answer = as_dict(row)
    if check:
        answer["agreement"] = check._asdict()
    answer["notes"] = subject.notes
    return say(
        arguments, answer, replay_text(outcome, row, study.card, check, subject.notes)
    )


def _refuse_to_overwrite(
    arguments: argparse.Namespace, paths: Sequence[str | Path]
) -> None:
    """Raises WrongUse where one of these files exists already, without --force."""
    for path in paths:
        if path and Path(path).exists() and not arguments.force:
            raise WrongUse(f"{path}: exists already; expected a new name, or --force")


def _write_results(study: Study, outcome: Outcome, file: TextIO) -> None:
    """One JSON line an operation, as the oracle writes them, behind a line of circumstances."""
    from helpers.allocator.oracle_lines import op_lines
    from helpers.allocator.oracle_results import lines

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


def whatif(arguments: argparse.Namespace) -> int:
    """Find the setting that saves a run, or how many bytes are missing and which lines to change.

    --capacity SIZE: the card's memory, such as 20GiB; separate several with commas
    --torch VER: the torch release (default: the recording's, else 2.14.1); separate several with
        commas
    --conf STR ...: try this setting, too; can be repeated
    --only: try only the default settings and those of --conf
    --smallest: find the smallest card that is enough, for each setting
    --edit CHANGE ...: replay with a line changed, such as "train.py:82 / 8"; checkpoint or drop
        instead of / 8;
        can be repeated
    Example: whatif run.pickle --capacity 20GiB
    """
    from helpers.allocator.edits.comparison import lines_that_save
    from helpers.allocator.views import edits, replays, trace_verdict
    from helpers.commands.trace_subject import Subject

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
        row = answers[0]
        others = [other.settings for other in row.rows if not other.flags][:8]
        sizes = studies[0].smallest_cards(["", row.use or row.needs_settings, *others])
        return say(arguments, sizes, replays.smallest_table(sizes))
    if len(answers) > 1:
        rows = [as_dict(replace(answer, notes=subject.notes)) for answer in answers]
        return say(arguments, rows, replays.sweep_table(answers), subject.remarks)
    tried_all = not (arguments.conf or arguments.only)
    verdict = trace_verdict.verdict(studies[0], answers[0] if tried_all else None)
    lines, why_none = lines_that_save(studies[0], answers[0], verdict)
    subject.notes += why_none
    answer = replace(answers[0], lines=lines, notes=subject.notes, verdict=verdict)
    answer = replace(answer, use=replays.setting_to_use(answer))
    path = arguments.trace
    texts: list[Any] = [*_lead(verdict), replays.league(answer, path=path)]
    if lines:
        texts += ["", edits.lines(lines, subject.study.trace.ran_out)]
    return say(arguments, as_dict(answer), *texts, subject.remarks)


def _lead(verdict: Verdict) -> list[str]:
    """What a view of a trace begins with: its verdict, and of a leak what to do about it."""
    lines = [f"{verdict.headline}."]
    if verdict.cause == "user-leak":
        lines.append(f"Next step: {verdict.next_step.what}.")
    return [*lines, ""]


def _on_other(study: Study, release: str, capacity: str) -> Study:
    """The study on another release and card, where they are named."""
    from helpers.commands.trace_subject import capacity_of, release_of

    card = study.card
    if capacity:
        card = replace(card, capacity_bytes=capacity_of(capacity))
    return replace(study, torch=release_of(release, study.torch), card=card)


def _league(arguments: argparse.Namespace, study: Study) -> WhatIf:
    """The what-if of a study; without settings named it tries the usual ones."""
    from helpers.settings.in_force import grid
    from helpers.settings.releases import behaviour

    confs = None
    if arguments.conf or arguments.only:
        usual = [] if arguments.only else grid(behaviour(study.torch, study.build))
        confs = list(dict.fromkeys(["", *usual, *arguments.conf]))
    with waits_for(
        f"settings on torch {study.torch}", quiet=arguments.json
    ) as progress:
        return study.what_if(confs, progress)


def _edited(arguments: argparse.Namespace, subject: Subject) -> int:
    """What edits of the program's own lines make of it."""
    from helpers.allocator.edits.comparison import compare_edits
    from helpers.allocator.edits.edit import parse
    from helpers.allocator.views import edits

    comparison = compare_edits(subject.study, [parse(text) for text in arguments.edit])
    answer = {**comparison.as_dict(), "notes": subject.notes}
    return say(arguments, answer, edits.table(comparison), subject.remarks)


def leaks(arguments: argparse.Namespace) -> int:
    """Find memory that grows from step to step, the line that keeps it, and the step in which it
    runs out.

    --conf STR = None: the allocator settings (default: those of the recording)
    Example: leaks run.pickle --capacity 20GiB
    """
    from helpers.allocator.growers import growth_of_recording
    from helpers.allocator.views import trace_verdict
    from helpers.allocator.views.growth import growth_json, growth_table, runs_out_on
    from helpers.commands.trace_subject import Subject

    subject = Subject(arguments)
    recorded = growth_of_recording(subject.study.trace, subject.study.path)
    runs_out, capacity_bytes = runs_out_on(subject.study, recorded)
    table = growth_table(recorded, runs_out, capacity_bytes)
    verdict = trace_verdict.verdict(subject.study)
    answer = growth_json(recorded, runs_out, capacity_bytes)
    answer |= {"verdict": as_dict(verdict), "notes": subject.notes}
    return say(arguments, answer, *_lead(verdict), table, subject.remarks)


def shrink(arguments: argparse.Namespace) -> int:
    """Reduce a trace to the fewest requests that still fail, also as a torch program of at most 40
    lines.

    --conf STR = None: PYTORCH_CUDA_ALLOC_CONF (default: that of the recording)
    --smaller-card: also try smaller cards, if the failure depends on the layout: fewer requests
        fill them
    --seconds S <float> = 240: end the search after S seconds (default: 240)
    --out NAME: write NAME.parquet and NAME.py (default: in the outputs folder of the
        checkout)
    --force: replace files that are there
    Example: shrink run.pickle --capacity 20GiB
    """
    from dataclasses import asdict

    from helpers.allocator.parquet_file import to_parquet
    from helpers.allocator.shrinking.shrink import shrink
    from helpers.allocator.views.reproducer import NoProgramError, program, shrunk_table
    from helpers.commands.trace_subject import Subject

    subject = Subject(arguments)
    out = arguments.out or OUTPUTS / f"shrunk-{time.strftime('%Y%m%d-%H%M%S')}"
    base = Path(str(out).removesuffix(".parquet").removesuffix(".py"))
    files = {kind: base.with_name(f"{base.name}.{kind}") for kind in ("parquet", "py")}
    _refuse_to_overwrite(arguments, list(files.values()))
    shrunk = shrink(
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


VERBS = (replay, whatif, leaks, shrink)
