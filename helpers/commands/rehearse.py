"""The command rehearse: a program of the user's own on a card that is not there."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.commands.use import ROOT, Verb, WrongUse, open_named_box

if TYPE_CHECKING:
    from helpers.load.rehearse.build import Torch
    from helpers.load.rehearse.devices import Device
    from helpers.load.rehearse.rehearse import Rehearsal


def register(verb: Verb) -> None:
    """rehearse."""
    parser = verb(
        "rehearse",
        _rehearse,
        "run your program on a card that is not there: does it fit, and with which settings?",
    )
    add = parser.add_argument
    add(
        "--gpu",
        default="",
        metavar="NAME",
        help="the card, such as 4090 or a100-40; `--gpu list` names all",
    )
    add("--capacity", default="", metavar="SIZE", help="its memory, such as 20GiB")
    add(
        "--box",
        default="",
        metavar="B",
        help="the largest card of that box or bundle, and what others hold on it",
    )
    add(
        "--held",
        default="",
        metavar="SIZE",
        help="what the context and others hold, such as 500MiB",
    )
    add(
        "--conf",
        default=None,
        metavar="STR",
        help="PYTORCH_CUDA_ALLOC_CONF (default: the program's own)",
    )
    add(
        "--cudnn-workspace",
        default="0",
        metavar="SIZE",
        help="what each cuDNN call takes, unknown here (default: 0)",
    )
    add(
        "--torch",
        default="",
        metavar="VER",
        help="its release (default: your own CUDA torch, else 2.14.1)",
    )
    add(
        "--torch-python",
        default="",
        metavar="PATH",
        help="in place of a leading `python` of COMMAND",
    )
    add("--out", default="", metavar="TRACE", help="the trace file (default: in outputs)")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--find-capacity", action="store_true", help="the smallest card that it finishes on"
    )
    asked.add_argument(
        "--find-batch",
        default="",
        metavar="ARG",
        help="the largest value of an argument that fits: batch",
    )
    asked.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="PRESET",
        help="once for each preset of env/presets",
    )
    add("--setup", action="store_true", help="install what is missing without asking")
    add(
        "--remove",
        action="store_true",
        help="take away everything that was installed for rehearsals",
    )
    add(
        "--cache",
        default="",
        metavar="FOLDER",
        help="where that is (default: vram-casebook in XDG_CACHE_HOME)",
    )
    add(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the program and its arguments",
    )


def _rehearse(given: argparse.Namespace) -> int:
    from helpers.load.record import RecordError
    from helpers.load.rehearse import build
    from helpers.load.rehearse.devices import TABLE, DeviceError
    from helpers.load.rehearse.study import SearchError
    from helpers.settings.presets import PresetError
    from helpers.tell.tables import table

    place = build.cache(given.cache)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    try:
        if given.remove:
            print(f"{build.remove(place) >> 20} MiB removed from {place}")
        elif given.gpu == "list":
            print(
                table(
                    [
                        [
                            key,
                            one.name,
                            one.total_bytes >> 20,
                            one.capability / 10,
                            one.multiprocessors,
                            one.l2_mib,
                            one.blas_mib,
                            one.source,
                        ]
                        for key, one in TABLE.items()
                    ],
                    ["name", "card", "MiB", "capability", "SMs", "L2 MiB", "BLAS MiB", "source"],
                    widest=90,
                )
            )
        elif not command and not given.setup:
            raise WrongUse("rehearse: no command; expected: rehearse --gpu 4090 -- python train.py")
        else:
            return _answer(given, command, place, _torch(given, command or ["python"], place))
    except (DeviceError, build.NotReady, RecordError, SearchError, PresetError) as error:
        raise WrongUse(f"rehearse: {error}") from error
    return 0


def _torch(given: argparse.Namespace, command: list[str], place: Path) -> Torch:
    """The torch to rehearse under, installed where that was agreed to. Raises NotReady."""
    from helpers.load.box import torch_interpreter
    from helpers.load.record import under
    from helpers.load.rehearse import build

    build.tools()
    first = under(given.torch_python, command)[0]
    python = (
        first
        if os.path.basename(first).startswith("python") and shutil.which(first)
        else torch_interpreter()
    )
    found, where = build.find(python, given.torch, place)
    if found is None:
        line = (
            f"{python} has no CUDA build of torch {given.torch}".rstrip()
            + f"; a rehearsal needs one alone, {build.SIZE_WORDS}, in {place}"
        )
        if not given.setup and not (sys.stdin.isatty() and sys.stderr.isatty() and _agreed(line)):
            raise build.NotReady(f"{line}; run again with --setup (and --remove to take it away)")
        found = build.install(python, given.torch, where)
    build.build(found, place)
    return found


def _agreed(line: str) -> bool:
    print(f"casebook: {line}. Install it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _answer(given: argparse.Namespace, command: list[str], place: Path, torch: Torch) -> int:
    from helpers.load.rehearse import study as search
    from helpers.load.rehearse.devices import device
    from helpers.load.rehearse.rehearse import rehearse
    from helpers.look.reading import parse_size

    if not command:
        print(f"ready: torch {torch.version}; {place}")
        return 0
    ample = given.find_capacity and not (given.gpu or given.capacity or given.box)
    bundle = open_named_box(given.box) if given.box else None
    card = device(
        given.gpu, str(search.AMPLE_BYTES) if ample else given.capacity, given.held, bundle
    )
    try:
        workspace = parse_size(given.cudnn_workspace)
    except ValueError as error:
        raise WrongUse(f"--cudnn-workspace: {error}") from error
    run = partial(
        rehearse,
        torch=torch,
        cache=place,
        python=given.torch_python,
        cudnn_workspace_bytes=workspace,
    )
    if given.find_capacity or given.find_batch or given.against:
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            return _several(given, command, card, run, Path(folder))
    out = (
        Path(given.out)
        if given.out
        else ROOT / "outputs" / f"rehearsal-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    done = run(command, card, out, conf=given.conf)
    print(
        json.dumps(_shape(done), indent=1, default=str) if given.json else _lines(told(done)),
        file=sys.stderr,
    )
    return done.exit_code


def _several(
    given: argparse.Namespace,
    command: list[str],
    card: Device,
    run: Callable[..., Rehearsal],
    folder: Path,
) -> int:
    """A search, or presets side by side: the program's output is put aside, and stdout has the table."""
    from helpers.load.rehearse import study as search
    from helpers.look.reading import show_bytes
    from helpers.settings.presets import load
    from helpers.tell.tables import table

    made: list[Rehearsal] = []

    def one(words: list[str], on: Device, conf: str | None, extra: Any = None) -> Rehearsal:
        out = folder / f"run{len(made)}"
        made.append(run(words, on, out, conf=conf, extra=extra, log=out.with_suffix(".log")))
        return made[-1]

    end, code, argument = "", 0, given.find_batch
    if given.against:
        runs = search.against(
            lambda conf, extra: one(command, card, conf, extra),
            [load(name) for name in given.against],
        )
        names = [f"{name} {kept.conf}".strip() for name, kept in runs.items()]
    else:
        if argument:
            start = search.start_of(command, argument)
            found = search.find_batch(
                lambda value: one(search.with_argument(command, argument, value), card, given.conf),
                start,
            )
        else:
            found = search.find_capacity(
                lambda size: one(command, replace(card, total_bytes=size), given.conf),
                card.held_bytes,
            )

        def show(value: int) -> str:
            return (
                f"{argument} {value}"
                if argument
                else f"a card of {show_bytes(value)} ({value:,} bytes)"
            )

        names, code = [show(value) for value, _ in found.runs], int(found.best is None)
        end = f"{show(found.best)} finishes; " if found.best is not None else ""
        end += (
            f"{show(found.beyond)} runs out" if found.beyond is not None else "larger was not tried"
        )
    if given.json:
        print(
            json.dumps(
                {
                    "runs": {name: _shape(kept) for name, kept in zip(names, made, strict=True)},
                    "says": end,
                },
                indent=1,
                default=str,
            )
        )
        return code
    rows = [
        [
            name,
            "fits" if kept.fits else "runs out" if kept.ooms else f"ended with {kept.exit_code}",
            f"{kept.peak_reserved_bytes:,}",
            kept.retries,
            f"{kept.seconds:.1f}",
        ]
        for name, kept in zip(names, made, strict=True)
    ]
    print(table(rows, ["tried", "outcome", "peak reserved", "retries", "seconds"], widest=70))
    print(
        _lines(
            [
                *filter(None, [end]),
                f"measured by the real allocator, {made[-1].label}",
                *made[-1].trust,
            ]
        )
    )
    return code


def _lines(lines: list[str]) -> str:
    return "\n".join(f"casebook: {line}" for line in lines)


def _shape(done: Rehearsal) -> dict[str, Any]:
    return {**asdict(done), "label": done.label, "fits": done.fits}


def told(done: Rehearsal) -> list[str]:
    """A rehearsal in lines: the outcome, the first out-of-memory and how it reads, the trace, and how far to trust all that."""
    from helpers.judge.diagnosis import diagnose
    from helpers.look.reading import show_bytes
    from helpers.tell.message import gathered
    from helpers.tell.verdict import headline

    outcome = (
        "fits"
        if done.fits
        else "does not fit"
        if done.ooms
        else f"ended with {done.exit_code}, not for want of memory"
    )
    outcome += "" if done.exact else ", as far as that can be told: see what is not to be trusted"
    lines = [
        f"{done.label}: {outcome}; peak allocated {show_bytes(done.peak_allocated_bytes)}, reserved "
        f"{show_bytes(done.peak_reserved_bytes)}, {done.retries} retries, {done.ooms} times out of memory, "
        f"{done.seconds:.1f} s"
    ]
    if done.oom:
        lines.append(
            f"first out of memory: {show_bytes(done.oom.requested_bytes)} asked of the card, "
            f"{show_bytes(done.oom.free_bytes)} free; {' < '.join(done.oom.frames[:6]) or 'no Python frame'}"
        )
        lines.append(
            f"read as: {headline(diagnose(gathered(done.oom.message, '')[0]))}"
            if done.oom.message
            else "the program caught it, so its words are not here"
        )
    elif done.error:
        lines.append(f"it ended by {done.error}")
    lines.append(
        f"trace: {done.trace}; next: python -m helpers whatif {done.trace}"
        if done.trace
        else f"no trace: {done.why_no_trace}"
    )
    return [*lines, *done.notes, *done.trust]
