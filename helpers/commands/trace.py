"""Commands about allocation traces: replay, whatif, leaks, shrink."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.commands.use import WrongUse, print_json, say, show, waits_for
from helpers.ground.contract import as_dict
from helpers.ground.places import OUTPUTS

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


def _size(text: str, what: str) -> int:
    from helpers.ground.units import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise WrongUse(f"--{what} {text!r}: {error}") from error


def _release(named: str, usual: str) -> str:
    """The torch release that was named, or the usual one. Raises WrongUse for one that is not known: nobody has seen it."""
    from helpers.settings.releases import NEWEST
    from helpers.settings.rules import release

    if release(named) > NEWEST:
        newest = ".".join(map(str, NEWEST))
        raise WrongUse(f"--torch {named}: not a release known here; expected up to {newest}")
    return named or usual


class _Subject:
    """The trace of a command with the card, version and settings it is to be replayed under."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from helpers.allocator.circumstances import AMPLE_BYTES, circumstances, with_record
        from helpers.allocator.driver import Card
        from helpers.allocator.trace_file import read_trace
        from helpers.look.cards import find_card
        from helpers.settings.releases import behaviour

        most = arguments.max_bytes
        limit = {"max_bytes": _size(most, "max-bytes")} if most else {}
        trace = read_trace(arguments.trace, device=arguments.device, **limit)
        self.trace = with_record(trace, Path(arguments.trace))
        known = circumstances(self.trace)
        self.torch = _release(arguments.torch, known.torch)
        self.build = arguments.build or known.build
        self.rules = behaviour(self.torch, self.build)
        # What the circumstances note is how the release was inferred.
        self.notes = [*self.trace.notes, *(() if arguments.torch else known.notes)]
        capacity = known.capacity_bytes
        wants_card = arguments.verb not in ("replay", "leaks")
        if arguments.gpu:
            capacity = find_card(arguments.gpu).total_bytes
        if arguments.capacity:
            capacity = _size(arguments.capacity, "capacity")
        if capacity <= 0 and wants_card:
            why = "the trace does not say how large the card was"
            raise WrongUse(f"--capacity: {why}; give it, such as --capacity 20GiB")
        capacity = capacity if capacity > 0 else AMPLE_BYTES
        self.held_bytes = _size(arguments.held, "held") if arguments.held else known.held_bytes
        self.fraction = arguments.fraction if arguments.fraction is not None else known.fraction
        if self.fraction is not None and not 0 <= self.fraction <= 1:
            raise WrongUse(f"--fraction {self.fraction}: expected a number from 0 to 1")
        if known.start_bytes > capacity and not wants_card:
            seen = f"{known.start_bytes} bytes are reserved when the trace begins"
            raise WrongUse(f"--capacity {capacity} bytes: {seen}; expected at least as many")
        conf = getattr(arguments, "conf", None)
        self.same_settings = conf is None
        self.conf = known.conf if conf is None or isinstance(conf, list) else conf
        usual = known.policy if self.same_settings else "firstfit"
        policy = getattr(arguments, "policy", "") or usual
        self.card = Card(capacity, self.held_bytes, policy)
        self.how: dict[str, Any] = {"torch": self.torch, "build": self.build}
        self.how["fraction"] = self.fraction

    @property
    def remarks(self) -> str:
        """The notes, a line each."""
        return "\n".join("note: " + note for note in self.notes)


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
    from helpers.allocator import engine as allocator
    from helpers.allocator.agreement import agreement
    from helpers.allocator.oracle_lines import op_lines
    from helpers.allocator.outcome import lines
    from helpers.allocator.parquet_file import to_parquet
    from helpers.allocator.views import replays
    from helpers.allocator.whatif import row_of
    from helpers.settings.text import parse

    subject = _Subject(arguments)
    out = Path(arguments.results) if arguments.results and arguments.results != "-" else None
    for new in filter(None, (out, arguments.parquet)):
        if Path(new).exists() and not arguments.force:
            raise WrongUse(f"{new}: is there already; expected a new file, or --force")
    if arguments.parquet:
        to_parquet(subject.trace, arguments.parquet)
    wanted = bool(arguments.results) or subject.trace.address is not None
    how = {**subject.how, "timeline": wanted, "engine": arguments.engine}
    outcome = allocator.replay(subject.trace, subject.conf, subject.card, **how)
    if arguments.results:
        rows = lines(op_lines(subject.trace), outcome)
        card = subject.card
        job = {"conf": subject.conf, "vram": card.capacity_bytes, "fraction": subject.fraction}
        job.update(policy=card.policy, foreign=subject.held_bytes)
        head = {"job": job, "torch": subject.torch, "model": True}
        with open(out, "w", encoding="utf-8") if out else nullcontext(sys.stdout) as file:
            for row in [head, *rows]:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
        if out is None:
            return 0
    check = agreement(subject.trace, outcome) if subject.same_settings else None
    settings = parse(subject.conf, subject.rules)
    rules = subject.rules
    shape = row_of(settings, [outcome], rules, subject.fraction)
    shape = replace(shape, proved_on=rules.proved_on)
    agreed = {"agreement": check._asdict()} if check else {}
    told = {**as_dict(shape), **agreed, "notes": subject.notes}
    text = replays.replay_text(outcome, shape, subject.card, check, subject.notes)
    return say(arguments, told, text)


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
    from helpers.allocator import whatif
    from helpers.allocator.views import edits, replays

    capacities = arguments.capacity.split(",")
    releases = arguments.torch.split(",")
    arguments.capacity = capacities[0]
    arguments.torch = releases[0]
    subject = _Subject(arguments)
    if arguments.edit:
        return _changed(arguments, subject)
    answers = []
    for release, capacity in itertools.product(releases, capacities):
        torch = _release(release, subject.torch)
        card = subject.card
        if capacity:
            card = replace(card, capacity_bytes=_size(capacity, "capacity"))
        how = {**subject.how, "torch": torch, "confs": _tried(arguments, torch, subject.build)}
        with waits_for(f"settings on torch {torch}", quiet=arguments.json) as tick:
            answers.append(whatif.whatif(subject.trace, card, progress=tick, **how))
    if len(answers) == 1:
        of = (subject.trace, replace(subject.card, capacity_bytes=answers[0].capacity_bytes))
        subject.notes += edits.unranked(subject.trace, answers[0])
        answers = [replace(answers[0], lines=edits.least(*of, answers[0], subject.fraction))]
    smallest = _smallest(subject, answers[0]) if arguments.smallest else {}
    if arguments.json:
        found = [as_dict(replace(answer, notes=subject.notes)) for answer in answers]
        print_json(smallest or (found if len(found) > 1 else found[0]))
    elif smallest:
        show(replays.smallest_table(smallest))
    else:
        show(replays.league(answers[0]) if len(answers) == 1 else replays.sweep_table(answers))
        if answers[0].lines:
            show("", edits.lines(answers[0].lines, edits.failed(subject.trace)))
        show(subject.remarks)
    return 0


def _changed(arguments: argparse.Namespace, subject: _Subject) -> int:
    """What edits of the program's own lines make of it."""
    from helpers.allocator.edits.edit import parse
    from helpers.allocator.views import edits

    asked = [parse(text) for text in arguments.edit]
    study = edits.study(subject.trace, asked, subject.card, **subject.how)
    told = {**edits.as_dict(study), "notes": subject.notes}
    return say(arguments, told, edits.table(study), subject.remarks)


def leaks(arguments: argparse.Namespace) -> int:
    """What grows from step to step, whose line keeps it, and at which step it runs out.

    --conf STR = None: the settings to run out under (default: those of the recording)
    Example: leaks run.pickle --capacity 20GiB
    """
    from helpers.allocator.views.growth import growth_json, growth_table, until

    subject = _Subject(arguments)
    found = until(subject.trace, subject.card, subject.conf, **subject.how)
    told = {**growth_json(*found), "notes": subject.notes}
    return say(arguments, told, growth_table(*found), subject.remarks)


def _tried(arguments: argparse.Namespace, torch: str, build: str) -> list[str] | None:
    """The settings to try; None leaves it to the what-if."""
    from helpers.settings.releases import behaviour
    from helpers.settings.text import grid

    if not (arguments.conf or arguments.only):
        return None
    known = [] if arguments.only else list(grid(behaviour(torch, build)))
    return list(dict.fromkeys(["", *known, *arguments.conf]))


def _smallest(subject: _Subject, answer: Any) -> dict[str, int]:
    """Setting to the bytes of the smallest card that is enough: the default, the one to use, and those asked for."""
    from helpers.allocator.capacity import Runs, prepared, smallest

    stream, _, _ = prepared(subject.trace, subject.card, anew=True)
    runs = Runs(stream, subject.card, subject.torch, subject.build, subject.fraction)
    others = [row.settings for row in answer.rows if not row.flags][:8]
    named = ["", answer.use or answer.needs_settings, *others]
    return {conf: smallest(runs, conf) for conf in dict.fromkeys(named)}


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

    subject = _Subject(arguments)
    given = arguments.out or OUTPUTS / f"shrunk-{time.strftime('%Y%m%d-%H%M%S')}"
    out = Path(str(given).removesuffix(".parquet").removesuffix(".py"))
    files = {kind: out.with_name(f"{out.name}.{kind}") for kind in ("parquet", "py")}
    for new in files.values():
        if new.exists() and not arguments.force:
            raise WrongUse(f"{new}: is there already; expected a new name, or --force")
    how = {**subject.how, "smaller_card": arguments.smaller_card, "seconds": arguments.seconds}
    made = shrink(subject.trace, subject.card, conf=subject.conf, **how)
    notes = [*subject.notes]
    out.parent.mkdir(parents=True, exist_ok=True)
    to_parquet(made.trace, files["parquet"])
    try:
        files["py"].write_text(program(made, files["py"].name), encoding="utf-8")
    except NoProgramError as error:
        notes.append(str(error))
        files.pop("py")
    found = {"kind": made.failure.kind, "invariants": made.failure.invariants}
    found |= {key: value for key, value in asdict(made).items() if key != "trace"}
    written = {kind: str(path) for kind, path in files.items()}
    told = {"schema_version": 1, **found, "files": written, "notes": [*made.notes, *notes]}
    remarks = "\n".join("note: " + note for note in notes)
    lines = (f"written: {path}" for path in files.values())
    return say(arguments, told, shrunk_table(made), remarks, *lines)


VERBS = (replay, whatif, leaks, shrink)
