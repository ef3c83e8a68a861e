"""Commands about allocation traces: record, replay, whatif."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from helpers.commands.use import ROOT, Verb, WrongUse, print_json


def register(verb: Verb) -> None:
    """record, replay and whatif."""
    record = verb(
        "record", _record, "run a program unchanged and keep what it asked of the allocator"
    )
    record.add_argument(
        "--out", default="", metavar="TRACE", help="the trace file (default: in outputs)"
    )
    record.add_argument(
        "--max-events",
        type=int,
        default=200_000,
        metavar="N",
        help="how many events to keep, the last ones",
    )
    record.add_argument(
        "--hang-after",
        type=float,
        default=0.0,
        metavar="S",
        help="keep stacks and a snapshot when no allocation and no output came for S seconds",
    )
    record.add_argument(
        "--cpu-profile",
        action="store_true",
        help="for a torch without a GPU: trace by its profiler",
    )
    record.add_argument(
        "--torch-python",
        default="",
        metavar="PATH",
        help="in place of a leading `python` of COMMAND",
    )
    record.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the program and its arguments",
    )
    replay = verb(
        "replay",
        _replay,
        "what the caching allocator does with a trace under other settings, to the byte",
    )
    _about_trace(replay)
    replay.add_argument(
        "--conf",
        default=None,
        metavar="STR",
        help="PYTORCH_CUDA_ALLOC_CONF (default: that of the recording)",
    )
    replay.add_argument(
        "--policy",
        default="",
        choices=("firstfit", "topdown", "monotonic", "recorded"),
        help="where the driver puts segments (default: as recorded, else the lowest free range)",
    )
    replay.add_argument(
        "--results",
        default="",
        metavar="OUT",
        help="write one JSON line an operation; - prints them",
    )
    replay.add_argument("--force", action="store_true", help="write over results that are there")
    replay.add_argument(
        "--engine", default="auto", choices=("auto", "compiled", "plain"), help=argparse.SUPPRESS
    )
    whatif = verb(
        "whatif",
        _whatif,
        "which setting avoids the out-of-memory, what each costs, or that none does",
    )
    _about_trace(whatif)
    whatif.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="STR",
        help="try this one too; may be given again",
    )
    whatif.add_argument(
        "--only", action="store_true", help="try only the default settings and what --conf names"
    )
    whatif.add_argument(
        "--smallest",
        action="store_true",
        help="the smallest card that is enough, setting by setting",
    )


def _about_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        help="a torch snapshot (.pickle), the oracle's lines (.jsonl, .xz) or a Parquet trace",
    )
    parser.add_argument(
        "--capacity",
        default="",
        metavar="SIZE",
        help="the card's memory, such as 20GiB; whatif takes several, with commas",
    )
    parser.add_argument("--held", default="", metavar="SIZE", help="what others hold of it")
    parser.add_argument(
        "--fraction", type=float, default=None, metavar="F", help="set_per_process_memory_fraction"
    )
    parser.add_argument(
        "--torch",
        default="",
        metavar="VER",
        help="the torch release (default: the recording's, else 2.14.1); whatif takes several, with commas",
    )
    parser.add_argument(
        "--build",
        default="",
        metavar="B",
        help="cuda or rocmX.Y (default: the recording's, else cuda)",
    )
    parser.add_argument(
        "--device",
        type=int,
        default=None,
        metavar="N",
        help="which device of a snapshot of several",
    )
    parser.add_argument(
        "--max-bytes", default="", metavar="SIZE", help="read larger trace files than 1 GiB"
    )


def _size(text: str, what: str) -> int:
    from helpers.look.reading import parse_size

    try:
        value = parse_size(text)
    except ValueError as error:
        raise WrongUse(f"--{what} {text!r}: {error}") from error
    return value


class _Subject:
    """The trace of a command with the card, version and settings it is to be replayed under."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from helpers.allocator.driver import Card
        from helpers.allocator.load import read
        from helpers.allocator.recorded import AMPLE_BYTES, circumstances, with_record
        from helpers.allocator.trace import TraceError
        from helpers.settings.releases import VersionError, behaviour
        from helpers.settings.text import SettingsError

        limit = (
            {"max_bytes": _size(arguments.max_bytes, "max-bytes")} if arguments.max_bytes else {}
        )
        try:
            self.trace = with_record(
                read(arguments.trace, device=arguments.device, **limit), Path(arguments.trace)
            )
            known = circumstances(self.trace)
            self.torch = arguments.torch or known.torch
            self.build = arguments.build or known.build
            behaviour(self.torch, self.build)
        except (TraceError, VersionError, SettingsError) as error:
            raise WrongUse(str(error)) from error
        except OSError as error:
            raise WrongUse(f"{arguments.trace}: {error.strerror}; expected a trace file") from error
        self.notes = [*self.trace.notes, *known.notes]
        capacity = (
            _size(arguments.capacity, "capacity") if arguments.capacity else known.capacity_bytes
        )
        if capacity <= 0 and hasattr(arguments, "only"):
            raise WrongUse(
                "--capacity: the trace does not say how large the card was; give it, such as --capacity 20GiB"
            )
        capacity = capacity if capacity > 0 else AMPLE_BYTES
        self.held_bytes = _size(arguments.held, "held") if arguments.held else known.held_bytes
        self.fraction = arguments.fraction if arguments.fraction is not None else known.fraction
        if self.fraction is not None and not 0 <= self.fraction <= 1:
            raise WrongUse(f"--fraction {self.fraction}: expected a number from 0 to 1")
        if known.start_bytes > capacity and not hasattr(arguments, "only"):
            raise WrongUse(
                f"--capacity {capacity} bytes: {known.start_bytes} bytes are reserved when the trace begins; "
                "expected at least as many"
            )
        conf = getattr(arguments, "conf", None)
        self.same_settings = conf is None
        self.conf = known.conf if conf is None or isinstance(conf, list) else conf
        policy = getattr(arguments, "policy", "") or (
            known.policy if self.same_settings else "firstfit"
        )
        self.card = Card(capacity, self.held_bytes, policy)


def _replay(arguments: argparse.Namespace) -> int:
    from helpers.allocator.outcome import ReplayError, lines
    from helpers.allocator.recorded import agreement, op_lines
    from helpers.allocator.replay import replay
    from helpers.settings.text import SettingsError
    from helpers.tell import replays

    subject = _Subject(arguments)
    out = Path(arguments.results) if arguments.results and arguments.results != "-" else None
    if out is not None and out.exists() and not arguments.force:
        raise WrongUse(f"{out}: is there already; expected a new file, or --force")
    wanted = bool(arguments.results) or subject.trace.address is not None
    try:
        outcome = replay(
            subject.trace,
            subject.conf,
            subject.card,
            torch=subject.torch,
            build=subject.build,
            fraction=subject.fraction,
            timeline=wanted,
            engine=arguments.engine,
        )
    except (SettingsError, ReplayError, ImportError) as error:
        raise WrongUse(str(error)) from error
    if arguments.results:
        rows = lines(op_lines(subject.trace), outcome)
        head = {
            "job": {
                "conf": subject.conf,
                "vram": subject.card.capacity_bytes,
                "fraction": subject.fraction,
                "policy": subject.card.policy,
                "foreign": subject.held_bytes,
            },
            "torch": subject.torch,
            "model": True,
        }
        with open(out, "w", encoding="utf-8") if out else sys.stdout as file:
            for row in [head, *rows]:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
        if out is None:
            return 0
    check = agreement(subject.trace, outcome) if subject.same_settings else None
    shape = replays.replay_shape(outcome, subject.conf, subject.torch, subject.build)
    if arguments.json:
        print_json(
            {**shape, **({"agreement": check._asdict()} if check else {}), "notes": subject.notes}
        )
    else:
        print(replays.replay_text(outcome, shape, subject.card, check, subject.notes))
    return 0


def _whatif(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from helpers.allocator import whatif
    from helpers.allocator.trace import TraceError
    from helpers.settings.releases import VersionError
    from helpers.settings.text import SettingsError
    from helpers.tell import replays

    capacities, releases = arguments.capacity.split(","), arguments.torch.split(",")
    arguments.capacity, arguments.torch = capacities[0], releases[0]
    subject = _Subject(arguments)
    answers = []
    try:
        for release in releases:
            for capacity in capacities:
                torch = release or subject.torch
                card = (
                    replace(subject.card, capacity_bytes=_size(capacity, "capacity"))
                    if capacity
                    else subject.card
                )
                with replays.progress(f"settings on torch {torch}", quiet=arguments.json) as tick:
                    answers.append(
                        whatif.whatif(
                            subject.trace,
                            card,
                            torch=torch,
                            build=subject.build,
                            progress=tick,
                            confs=_tried(arguments, torch, subject.build),
                            fraction=subject.fraction,
                        )
                    )
        smallest = _smallest(subject, answers[0]) if arguments.smallest else {}
    except (SettingsError, TraceError, VersionError, ValueError) as error:
        raise WrongUse(str(error)) from error
    if arguments.json:
        shapes = [{**whatif.to_shapes(answer), "notes": subject.notes} for answer in answers]
        print_json(smallest or (shapes if len(shapes) > 1 else shapes[0]))
    elif smallest:
        print(replays.smallest_text(smallest))
    else:
        print(replays.league_text(answers[0]) if len(answers) == 1 else replays.sweep_text(answers))
        print("\n".join("note: " + note for note in subject.notes))
    return 0


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
    from helpers.allocator.capacity import Runs, smallest
    from helpers.allocator.start import prepared

    stream, _, _ = prepared(subject.trace, subject.card, anew=True)
    runs = Runs(stream, subject.card, subject.torch, subject.build, subject.fraction)
    named = [
        "",
        answer.use or answer.needs_settings,
        *[row.settings for row in answer.rows if not row.flags][:8],
    ]
    return {conf: smallest(runs, conf).capacity_bytes for conf in dict.fromkeys(named)}


def _record(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from helpers.load.record import RecordError, record

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise WrongUse("record: no command; expected: record [OPTIONS] -- python train.py")
    out = (
        Path(arguments.out)
        if arguments.out
        else ROOT / "outputs" / f"trace-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = record(
            command,
            out,
            max_events=arguments.max_events,
            hang_after_s=arguments.hang_after or None,
            cpu_profile=arguments.cpu_profile,
            python=arguments.torch_python,
        )
    except RecordError as error:
        raise WrongUse(str(error)) from error
    told = [
        *(f"casebook: {note}" for note in done.notes),
        f"casebook: {done.kind}: {done.trace}; next: python -m helpers whatif {done.trace} --capacity 20GiB"
        if done.trace
        else f"casebook: no trace: {done.why_no_trace}",
    ]
    print(
        "\n".join([json.dumps(asdict(done), default=str)] if arguments.json else told),
        file=sys.stderr,
    )
    return done.exit_code
