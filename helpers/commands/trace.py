"""Commands about allocation traces: replay, whatif, leaks, shrink."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from helpers.commands.use import WrongUse, say, waits_for
from helpers.ground.contract import as_dict
from helpers.ground.places import OUTPUTS

if TYPE_CHECKING:
    from helpers.allocator.outcome import Outcome
    from helpers.commands.trace_subject import Subject
    from helpers.ground.replays import WhatIf

SHARED = """
trace: a torch snapshot (.pickle), the oracle's lines (.jsonl, .xz) or a Parquet trace
--capacity SIZE: the card's memory, such as 20GiB
--gpu NAME: the card by its name, such as 4090, in place of --capacity
--held SIZE: what others hold of it
--fraction F <float>: set_per_process_memory_fraction
--torch VER: the torch release (default: the recording's, else 2.14.1)
--build B: cuda or rocmX.Y (default: the recording's, else cuda)
--device N <int>: which device of a snapshot of several
--max-bytes SIZE: read larger trace files than 1 GiB
"""


def replay(arguments: argparse.Namespace) -> int:
    """What the caching allocator does with a trace under other settings, to the byte.

    --conf STR = None: PYTORCH_CUDA_ALLOC_CONF (default: that of the recording)
    --policy NAME: where the driver puts segments: firstfit, topdown, monotonic or recorded (default: as recorded, else the
        lowest free range)
    --results OUT: write one JSON line an operation; - prints them
    --parquet OUT: write the trace itself as a small Parquet file, which replays the same and which DuckDB reads
    --force: write over what is there
    --engine {auto,compiled,plain} = auto: hidden
    Example: replay run.pickle --conf expandable_segments:True
    """
    from helpers.allocator.agreement import agreement
    from helpers.allocator.engine import replay
    from helpers.allocator.parquet_file import to_parquet
    from helpers.allocator.views import replays
    from helpers.allocator.whatif import row_of
    from helpers.commands.trace_subject import Subject
    from helpers.settings.text import parse

    subject = Subject(arguments)
    to_terminal = arguments.results == "-"
    results = arguments.results if not to_terminal else ""
    for path in filter(None, (results, arguments.parquet)):
        if Path(path).exists() and not arguments.force:
            raise WrongUse(f"{path}: is there already; expected a new file, or --force")
    if arguments.parquet:
        to_parquet(subject.trace, arguments.parquet)
    outcome = replay(
        subject.trace,
        subject.conf,
        subject.card,
        torch=subject.torch,
        build=subject.build,
        fraction=subject.fraction,
        timeline=bool(arguments.results) or subject.trace.address is not None,
        engine=arguments.engine,
    )
    if to_terminal:
        _write_results(subject, outcome, sys.stdout)
        return 0
    if results:
        with open(results, "w", encoding="utf-8") as file:
            _write_results(subject, outcome, file)
    check = agreement(subject.trace, outcome) if subject.same_settings else None
    settings = parse(subject.conf, subject.rules)
    row = row_of(settings, [outcome], subject.rules, subject.fraction)
    row = replace(row, proved_on=subject.rules.proved_on)
    answer = as_dict(row)
    if check:
        answer["agreement"] = check._asdict()
    answer["notes"] = subject.notes
    text = replays.replay_text(outcome, row, subject.card, check, subject.notes)
    return say(arguments, answer, text)


def _write_results(subject: Subject, outcome: Outcome, file: TextIO) -> None:
    """One JSON line an operation, as the oracle writes them, behind a line of circumstances."""
    from helpers.allocator.oracle_lines import op_lines
    from helpers.allocator.outcome import lines

    job = {
        "conf": subject.conf,
        "vram": subject.card.capacity_bytes,
        "fraction": subject.fraction,
        "policy": subject.card.policy,
        "foreign": subject.card.held_bytes,
    }
    head = {"job": job, "torch": subject.torch, "model": True}
    for row in [head, *lines(op_lines(subject.trace), outcome)]:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")


def whatif(arguments: argparse.Namespace) -> int:
    """Which setting avoids the out-of-memory, what each costs, or that none does.

    --capacity SIZE: the card's memory, such as 20GiB; several with commas
    --torch VER: the torch release (default: the recording's, else 2.14.1); several with commas
    --conf STR ...: try this one too; may be given again
    --only: try only the default settings and what --conf names
    --smallest: the smallest card that is enough, setting by setting
    --edit CHANGE ...: a line of the program changed, such as "train.py:82 / 8", or checkpoint or drop in place
        of / 8; may be given again
    Example: whatif run.pickle --capacity 20GiB
    """
    from helpers.allocator.views import edits, replays
    from helpers.commands.trace_subject import Subject

    capacities = arguments.capacity.split(",")
    releases = arguments.torch.split(",")
    arguments.capacity = capacities[0]
    arguments.torch = releases[0]
    subject = Subject(arguments)
    if arguments.edit:
        return _edited(arguments, subject)
    answers = [
        _league(arguments, subject, release, capacity)
        for release, capacity in itertools.product(releases, capacities)
    ]
    if len(answers) == 1:
        answer = answers[0]
        card = replace(subject.card, capacity_bytes=answer.capacity_bytes)
        subject.notes += edits.unranked(subject.trace, answer)
        lines = edits.least(subject.trace, card, answer, subject.fraction)
        answers = [replace(answer, lines=lines)]
    if arguments.smallest:
        sizes = _smallest(subject, answers[0])
        return say(arguments, sizes, replays.smallest_table(sizes))
    rows = [as_dict(replace(answer, notes=subject.notes)) for answer in answers]
    if len(answers) > 1:
        return say(arguments, rows, replays.sweep_table(answers), subject.remarks)
    texts: list[Any] = [replays.league(answers[0])]
    if answers[0].lines:
        texts += ["", edits.lines(answers[0].lines, edits.failed(subject.trace))]
    return say(arguments, rows[0], *texts, subject.remarks)


def _league(arguments: argparse.Namespace, subject: Subject, release: str, capacity: str) -> WhatIf:
    """The what-if on one release and card."""
    from helpers.allocator.whatif import whatif
    from helpers.commands.trace_subject import release_of, size_of

    torch = release_of(release, subject.torch)
    card = subject.card
    if capacity:
        card = replace(card, capacity_bytes=size_of(capacity, "capacity"))
    with waits_for(f"settings on torch {torch}", quiet=arguments.json) as progress:
        return whatif(
            subject.trace,
            card,
            confs=_confs(arguments, torch, subject.build),
            torch=torch,
            build=subject.build,
            fraction=subject.fraction,
            progress=progress,
        )


def _confs(arguments: argparse.Namespace, torch: str, build: str) -> list[str] | None:
    """The settings to try; None leaves it to the what-if."""
    from helpers.settings.releases import behaviour
    from helpers.settings.text import grid

    if not (arguments.conf or arguments.only):
        return None
    usual: list[str] = []
    if not arguments.only:
        usual = list(grid(behaviour(torch, build)))
    return list(dict.fromkeys(["", *usual, *arguments.conf]))


def _edited(arguments: argparse.Namespace, subject: Subject) -> int:
    """What edits of the program's own lines make of it."""
    from helpers.allocator.edits.edit import parse
    from helpers.allocator.views import edits

    study = edits.study(
        subject.trace,
        [parse(text) for text in arguments.edit],
        subject.card,
        torch=subject.torch,
        build=subject.build,
        fraction=subject.fraction,
    )
    answer = {**edits.as_dict(study), "notes": subject.notes}
    return say(arguments, answer, edits.table(study), subject.remarks)


def _smallest(subject: Subject, answer: WhatIf) -> dict[str, int]:
    """Setting to the bytes of the smallest card that is enough: the default, the one to use, and those asked for."""
    from helpers.allocator.capacity import Runs, prepared, smallest

    stream, _, _ = prepared(subject.trace, subject.card, anew=True)
    runs = Runs(stream, subject.card, subject.torch, subject.build, subject.fraction)
    others = [row.settings for row in answer.rows if not row.flags][:8]
    confs = ["", answer.use or answer.needs_settings, *others]
    return {conf: smallest(runs, conf) for conf in dict.fromkeys(confs)}


def leaks(arguments: argparse.Namespace) -> int:
    """What grows from step to step, whose line keeps it, and at which step it runs out.

    --conf STR = None: the settings to run out under (default: those of the recording)
    Example: leaks run.pickle --capacity 20GiB
    """
    from helpers.allocator.views.growth import growth_json, growth_table, until
    from helpers.commands.trace_subject import Subject

    subject = Subject(arguments)
    growth, runs_out, capacity_bytes = until(
        subject.trace,
        subject.card,
        subject.conf,
        torch=subject.torch,
        build=subject.build,
        fraction=subject.fraction,
    )
    answer = growth_json(growth, runs_out, capacity_bytes)
    answer["notes"] = subject.notes
    table = growth_table(growth, runs_out, capacity_bytes)
    return say(arguments, answer, table, subject.remarks)


def shrink(arguments: argparse.Namespace) -> int:
    """The fewest requests that still fail in the same way, as a trace and as a program of at most 40 lines.

    --conf STR = None: PYTORCH_CUDA_ALLOC_CONF (default: that of the recording)
    --smaller-card: let the card be smaller too, where its layout is what fails: fewer requests fill it
    --seconds S <float> = 240: end the search after so long
    --out NAME: writes NAME.parquet and NAME.py (default: in outputs)
    --force: write over what is there
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
    for path in files.values():
        if path.exists() and not arguments.force:
            raise WrongUse(f"{path}: is there already; expected a new name, or --force")
    shrunk = shrink(
        subject.trace,
        subject.card,
        conf=subject.conf,
        torch=subject.torch,
        build=subject.build,
        fraction=subject.fraction,
        smaller_card=arguments.smaller_card,
        seconds=arguments.seconds,
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
    written = [f"written: {path}" for path in files.values()]
    return say(arguments, answer, shrunk_table(shrunk), subject.remarks, *written)


VERBS = (replay, whatif, leaks, shrink)
