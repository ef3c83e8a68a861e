"""Commands that run a program of the user's own: record it as it is, or rehearse it on a card that
is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.commands.rehearse_bench import RehearsalBench
from helpers.commands.rehearse_search import as_shape, search_for_size
from helpers.commands.signs import print_lines, says_if_slow
from helpers.commands.use import WrongUse, say_other_sizes
from helpers.ground import shell
from helpers.ground.places import OUTPUTS, PROGRAM
from helpers.ground.units import plain, show_bytes
from helpers.look import files
from helpers.tell.verdict import brief

if TYPE_CHECKING:
    from helpers.allocator.record import Recording
    from helpers.ground.shapes import Verdict
    from helpers.look.cards import GpuCard
    from helpers.rehearse.counterfactual import Counterfactual
    from helpers.rehearse.rehearsal import Rehearsal, RehearsalLimits
    from helpers.rehearse.torches import Torch

NOTHING_COMPILED = "torch.compile was not called, so --compile changes nothing"
ANALYSED = "its recording is being analysed"
LAST_LINES = 20
"""Of the output of a program that failed by itself."""
MOST_RANKS = 1_000_000
SHARED = """
--out TRACE: the trace file (default: in outputs)
--force: replace an earlier recording of that name
--torch-python PATH: the Python to use for a leading `python` in COMMAND
command -- COMMAND: the program and its arguments
"""


def _program(arguments: argparse.Namespace) -> list[str]:
    """The command; raises where it, or the name for its trace, cannot be meant."""
    from helpers.trials.user_program import check_script

    words: list[str] = arguments.command
    command = words[1:] if words[:1] == ["--"] else words
    check_script(command)
    out = Path(arguments.out)
    if out.suffix not in ("", ".pickle"):
        written = out.with_suffix(".pickle")
        raise WrongUse(
            f"--out {out}: the trace is a memory snapshot, in a .pickle; give {written}"
        )
    return command


def _out(arguments: argparse.Namespace, kind: str) -> Path:
    """Where the trace goes, in a folder that exists."""
    from helpers.allocator.record import remove

    out = Path(arguments.out or OUTPUTS / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if arguments.force:
        remove(out)
    return out


def _judged(trace: Path, command: Sequence[str]) -> Verdict | None:
    """The verdict on a recording that was just made; None where it cannot be read.

    The change that ``fix`` would try first is the advice, and is kept beside the recording, so
    that every door to it gives the same.
    """
    from helpers.allocator.circumstances import add_to_record
    from helpers.allocator.program_facts import evidence_from_trace
    from helpers.allocator.trace import TraceError
    from helpers.fix.answer import first_change
    from helpers.judge.diagnosis import diagnose

    try:
        evidence = evidence_from_trace(trace)
    except TraceError:
        return None
    verdict = diagnose(evidence)
    change = first_change(command, evidence, verdict.label)
    if change is None or evidence.program is None:
        return verdict
    add_to_record(trace, first_change=asdict(change))
    program = replace(evidence.program, first_change=change)
    return diagnose(replace(evidence, program=program))


def record(arguments: argparse.Namespace) -> int:
    """Run your program unchanged and record every request it makes to torch's allocator.

    --max-events N <int> = 200000: keep the last N events (default: 200000)
    --hang-after S <float>: save stacks and a snapshot after S seconds without an allocation or
        output
    Example: record --out run.pickle -- python train.py
    """
    from helpers.allocator.record import record as record_program
    from helpers.trials.user_program import check_torch

    command = _program(arguments)
    if not command:
        raise WrongUse(
            "record: no command; expected: record [OPTIONS] -- python train.py"
        )
    # The stacks of a hang are worth having on the CPU, too.
    check_torch(command, arguments.torch_python, needs_gpu=not arguments.hang_after)
    recording = record_program(
        command,
        _out(arguments, "trace"),
        max_events=arguments.max_events,
        hang_after_s=arguments.hang_after or None,
        python=arguments.torch_python,
    )
    if arguments.json:
        print(json.dumps(asdict(recording), default=str), file=sys.stderr)
        return recording.exit_code
    ask = _deciding_rehearsal(recording, command, arguments.torch_python)
    print_lines(
        [note for note in recording.notes if note != recording.why_no_trace], sys.stderr
    )
    _print_end_of_recording(recording, command, ask)
    return recording.exit_code


def _deciding_rehearsal(recording: Recording, command: list[str], python: str) -> str:
    """The rehearsal that decides why a recorded program ran out of memory; empty where it did not
    or went on.

    A program on a real card is never repeated there.
    """
    from helpers.allocator.recorded_processes import card_options, redacted

    rows = [row for row in recording.processes if row["ooms"] and row["devices"]]
    if not rows or not recording.exit_code:
        return ""
    devices = rows[0]["devices"]
    fullest = max(devices, key=lambda device: device["stats"].get("num_ooms", 0))
    options = card_options(recording.processes, fullest["total_bytes"])
    words = [*PROGRAM.split(), "rehearse", *options]
    if python:
        words += ["--torch-python", python]
    words.append("--")
    for word, shown in zip(command, redacted(command), strict=True):
        words.append(shown if "***" in shown else word)
    return shell.line(words)


def _print_end_of_recording(recording: Recording, command: list[str], ask: str) -> None:
    """Why the recorded program failed, or that it did not, where its recording is, and ``ask``,
    the command that would decide, unless that is empty.
    """
    from helpers.rehearse.view import where_recorded

    trace = recording.trace
    if not trace:
        print_lines([f"nothing was recorded: {recording.why_no_trace}"], sys.stderr)
        return
    with says_if_slow(ANALYSED):
        verdict = _judged(trace, command)
    print(f"\n{PROGRAM}:", file=sys.stderr)
    if verdict:
        more = f"All evidence: {PROGRAM} diagnose {shell.word(str(trace))} --wide"
        print(brief(verdict, more), file=sys.stderr)
    print_lines([where_recorded(trace)], sys.stderr)
    if ask:
        print_lines(["to be sure of the cause, rehearse the program:"], sys.stderr)
        print(f"    {ask}", file=sys.stderr)


def rehearse(arguments: argparse.Namespace) -> int:
    """Run your program on a simulated card to see whether it fits, and if not, why.

    --conf STR = None: PYTORCH_CUDA_ALLOC_CONF (default: the program's own)
    --find-capacity: find the smallest card on which the program finishes
    --find-batch ARG: find the largest value of an argument with which it fits, such as batch
    --against-commit REF: compare the peak with that of the program at a commit; exit code 1 if it
        rose
    --allow SHARE = 1%: with --against-commit: how much the peak may rise
    --github: with --against-commit: write GitHub's summary of the job, and a note at each line
    --no-counterfactual: if the program runs out of memory, do not run it again without a limit and
        with expandable segments
    --setup: install what is missing, such as a CUDA build of torch beside your CPU build (0.6 to
        0.8 GB, once, no GPU needed); also without a COMMAND: casebook rehearse --setup
    --remove: delete everything that --setup installed
    --gpu NAME: the card, such as 4090 or a100-40; `--gpu list` lists all
    --wide: with `--gpu list`: show where the figures of each card come from
    --capacity SIZE: the card's memory, such as 20GiB, instead of --gpu
    --box B: rehearse on the largest card of this box or bundle, with the memory that is in use
        there and the box's allocator settings
    --gpus N <int> = 1: the number of such cards, for torchrun --nproc_per_node N
    --world N <int> = 0: rehearse ranks of a job of N processes, each without the others; give the
        program itself, without torchrun; --gpus is then the number of GPUs of a node
    --ranks LIST: with --world: which ranks, such as 0,7 (default: the first and the last)
    --steps N <int> = 0: end after N steps of an optimizer, with the verdict so far
    --seconds S <float>: end after S seconds, with the verdict so far
    --values {least,typical,most,between} = typical: the size of whatever depends on values that are
        not computed (typical: half of the bound; between: both ends)
    --compile: compile what the program gives to torch.compile, beside a run without it; this takes
        minutes, and needs a torch with Triton: --torch-python
    --held SIZE: memory that the GPU context and other processes use, such as 500MiB
    --torch VER: the release of torch (default: your own CUDA torch, else 2.14.1)
    --cudnn-workspace SIZE: memory that each cuDNN call uses, such as 512MiB (default: 0; the answer
        gives a range)
    --cache FOLDER: the folder of the files that rehearsals need (default: vram-casebook in
        XDG_CACHE_HOME)
    --model CONFIG: instead of a COMMAND: train the language model of this config.json with AdamW,
        under your own transformers and peft, with --train, --sequence and --batch; `--gpu all`
        lists the cards on which it fits
    --train {full,lora,qlora}: with --model: all weights, or adapters of rank 16 at all linear
        layers (qlora: of a model in 4 bits)
    --sequence N <int>: with --model: the tokens of a sequence
    --batch N <int>: with --model: the sequences of a step, of each rank
    --precision {bf16,mixed,fp32}: with --model: of weights and computing (mixed: weights in fp32,
        computed in bf16; default: mixed for full, else bf16)
    --checkpointing: with --model: compute activations again in the backward pass
    Example: rehearse --gpu 4090 -- python train.py
    """
    from helpers.commands.rehearse_model import answer_for_all_cards, training
    from helpers.rehearse import commits, torches
    from helpers.rehearse.view import cards_table

    _refuse_wrong_numbers(arguments)
    place = torches.cache_folder(arguments.cache)
    model = training(arguments)
    if model:
        arguments.command = model.command()
    command = _program(arguments)
    if arguments.remove:
        print(f"{show_bytes(torches.remove(place))} removed from {place}")
        return 0
    if arguments.gpu == "list":
        print(cards_table(arguments.wide).text(0))
        return 0
    if command:
        card = _card(arguments)  # a wrong name is said before anything is fetched
        if arguments.against_commit:
            commits.commit_of(arguments.against_commit)
        if model:
            model.check(torches.interpreter(command, arguments.torch_python))
        if arguments.gpu != "all":
            say_other_sizes(arguments)
        torch = _torch(arguments, command, place)
        bench = RehearsalBench(arguments, card, torch, place)
        if arguments.gpu != "all":
            return _answer(arguments, command, bench)
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            run = partial(_highest, arguments, command, bench, Path(folder))
            return answer_for_all_cards(arguments, run)
    if not arguments.setup:
        raise WrongUse(
            "rehearse: no command; expected: rehearse --gpu 4090 -- python train.py"
        )
    torch = _torch(arguments, ["python"], place)
    print(f"ready: torch {torch.version}; {place}")
    return 0


def _refuse_wrong_numbers(arguments: argparse.Namespace) -> None:
    """Raises WrongUse for numbers that cannot be, and for searches that exclude each other."""
    if not 1 <= arguments.gpus <= 16:
        expected = "expected 1 to 16, one a process of torchrun"
        raise WrongUse(f"rehearse: seen --gpus {arguments.gpus}; {expected}")
    steps = arguments.steps
    seconds = arguments.seconds or 0
    if min(steps, seconds) < 0:
        raise WrongUse(
            f"rehearse: --steps {steps}, --seconds {seconds}; expected 0 or more"
        )
    if arguments.find_capacity and arguments.find_batch:
        raise WrongUse("rehearse: seen --find-capacity and --find-batch; expected one")
    if arguments.compile and (_is_search(arguments) or arguments.world):
        others = "--world, --values between, --against-commit, --gpu all or a search"
        raise WrongUse(f"rehearse: --compile cannot be combined with {others}")
    _ranks(arguments)


def _is_search(arguments: argparse.Namespace) -> bool:
    """Whether several sizes, commits or values are rehearsed."""
    sizes = arguments.find_capacity or arguments.find_batch or arguments.gpu == "all"
    return bool(sizes or arguments.against_commit or arguments.values == "between")


def _ranks(arguments: argparse.Namespace) -> list[int]:
    """The ranks to rehearse; none without --world. Raises WrongUse for what cannot be."""
    from helpers.trials.user_program import LAUNCHERS

    world = arguments.world
    if arguments.ranks and not world:
        raise WrongUse(
            f"rehearse: seen --ranks {arguments.ranks} without --world; add --world N"
        )
    if not world:
        return []
    if not 1 <= world <= MOST_RANKS:
        raise WrongUse(
            f"rehearse: seen --world {world}; expected 1 to {MOST_RANKS:,} processes"
        )
    for option in ("find_batch", "find_capacity", "against_commit"):
        if getattr(arguments, option):
            name = option.replace("_", "-")
            raise WrongUse(
                f"rehearse: seen --world and --{name}; expected one of the two"
            )
    if arguments.values == "between":
        raise WrongUse(
            "rehearse: seen --world and --values between; give --values least or most"
        )
    words = [os.path.basename(word) for word in arguments.command[:4]]
    launchers = [
        word for word in words if word in (*LAUNCHERS, "torch.distributed.run")
    ]
    if launchers:
        expected = "expected the program itself, such as python train.py"
        raise WrongUse(
            f"rehearse --world: seen {launchers[0]} in the command; {expected}"
        )
    listed = arguments.ranks or f"0,{world - 1}"
    ranks = [int(word) if word.isdecimal() else -1 for word in listed.split(",")]
    if not all(0 <= rank < world for rank in ranks):
        expected = f"expected numbers from 0 to {world - 1}, such as 0,{world - 1}"
        raise WrongUse(f"rehearse: seen --ranks {listed}; {expected}")
    return sorted(set(ranks))


def _card(arguments: argparse.Namespace) -> GpuCard:
    from helpers.allocator.circumstances import AMPLE_BYTES
    from helpers.look.boxes import open_box
    from helpers.look.cards import find_card

    capacity = arguments.capacity
    if arguments.find_capacity and not (arguments.gpu or capacity or arguments.box):
        capacity = str(AMPLE_BYTES)
    bundle = open_box(arguments.box) if arguments.box else None
    if arguments.gpu == "all":  # which cards are meant is decided one by one
        return find_card("", str(AMPLE_BYTES), arguments.held, bundle)
    return find_card(arguments.gpu, capacity, arguments.held, bundle)


def _torch(arguments: argparse.Namespace, command: list[str], place: Path) -> Torch:
    """The torch to rehearse under, installed where that was agreed to. Raises NotReady."""
    from helpers.rehearse import build, torches
    from helpers.settings.rules import release

    build.tools()
    python = torches.interpreter(command, arguments.torch_python)
    if arguments.torch and not release(arguments.torch):
        raise WrongUse(
            f"--torch {arguments.torch!r}: expected a release such as 2.14.1"
        )
    torch, where = torches.find_torch(python, arguments.torch, place)
    if arguments.compile:
        _refuse_without_triton(torch, python)
    if torch is None:
        line = f"{python} has no CUDA build of torch {arguments.torch}".rstrip()
        line += f"; a rehearsal needs one alone, {torches.SIZE_WORDS}, in {place}"
        if not arguments.setup:
            again = "run this again with --setup (--remove deletes it)"
            raise torches.NotReady(f"{line}; {again}")
        torch = torches.install(python, arguments.torch, where)
    build.build(torch, place)
    return torch


def _refuse_without_triton(torch: Torch | None, python: str) -> None:
    """Raises WrongUse where nothing can be compiled; a torch that is installed here lies alone."""
    if torch is not None and (torch.folder / "triton").is_dir():
        return
    where = f"for {python}"
    if torch is not None:
        where = f"beside torch {torch.version} in {torch.folder}"
    expected = "expected --torch-python with a Python that has a CUDA build of torch and Triton"
    raise WrongUse(f"rehearse: --compile, and no Triton {where}; {expected}")


def _answer(
    arguments: argparse.Namespace, command: list[str], bench: RehearsalBench
) -> int:
    from helpers.ground.contract import as_dict
    from helpers.rehearse.rehearsal import STOPPED
    from helpers.rehearse.view import (
        answer,
        headline,
        may_not_fit,
        several,
        will_run_out,
    )

    if not arguments.json:
        print_lines(bench.settings.taken, sys.stderr)
    if arguments.against_commit:
        return _against_commit(arguments, command, bench)
    if arguments.find_capacity or arguments.find_batch:
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            return search_for_size(arguments, command, bench, Path(folder))
    out = _out(arguments, "rehearsal")
    runs = _runs(arguments, command, bench, out)
    rehearsal = runs[-1]
    out = _beside(out, rehearsal.limits, bench.limits)
    counterfactual = _counterfactual(arguments, command, bench, rehearsal, out)
    verdict = None
    if rehearsal.trace and rehearsal.exit_code != STOPPED:
        with says_if_slow(ANALYSED, quiet=arguments.json):
            verdict = _judged(rehearsal.trace, command)
    if arguments.json:
        shapes = [as_shape(run) for run in runs]
        shapes[-1] = {
            "says": headline(rehearsal, verdict),
            **shapes[-1],
            "fits": rehearsal.fits and not will_run_out(rehearsal, verdict),
            "may_not_fit": may_not_fit(rehearsal),
            "counterfactual": counterfactual.as_shape(),
            "verdict": as_dict(verdict) if verdict else None,
        }
        print(
            json.dumps(shapes if len(shapes) > 1 else shapes[0], indent=1, default=str)
        )
    else:
        beside = several(runs)
        missing = counterfactual.what_is_missing
        if missing and rehearsal.ooms and not arguments.no_counterfactual:
            beside.append(missing)
        run_next = _what_to_run_next(arguments, command)
        print(
            "\n".join(
                [*answer(rehearsal, verdict, run_next, beside), *_saved(rehearsal, out)]
            )
        )
    if rehearsal.too_much:
        return rehearsal.exit_code or 1
    return rehearsal.exit_code


def _saved(rehearsal: Rehearsal, out: Path) -> list[str]:
    """Where the recording and the program's output are; of a program that failed by itself, the
    last lines of that.
    """
    output = _output(out)
    lines = []
    if rehearsal.trace:
        lines.append(
            f"All evidence: {PROGRAM} diagnose {shell.word(str(rehearsal.trace))} --wide"
        )
    lines.append(f"The program's output: {output}")
    if rehearsal.failed_otherwise:
        text = plain(files.text("", str(output)), keep="\n\t")
        lines += ["", "The end of it:", *text.splitlines()[-LAST_LINES:]]
    return lines


def _output(out: Path) -> Path:
    """Where the output of a rehearsed program is kept: in the folder of its recording."""
    return out.absolute().with_suffix(".record") / "output.txt"


def _runs(
    arguments: argparse.Namespace, command: list[str], bench: RehearsalBench, out: Path
) -> list[Rehearsal]:
    """The program on the card, as often as was asked for. The last is the one that is compiled, a
    run that failed, or the one with the highest peak.
    """
    from helpers.allocator.record import remove
    from helpers.rehearse.rehearsal import STOPPED

    is_between = arguments.values == "between"
    runs: list[Rehearsal] = []
    for limits in _limits(arguments, bench):
        # Where nothing depends on values, the other end is the same.
        if runs and (runs[-1].exit_code == STOPPED or (is_between and runs[0].exact)):
            break
        if limits.compiles and not runs[0].compiled:
            print_lines([NOTHING_COMPILED], sys.stderr)
            break
        place = _beside(out, limits, bench.limits)
        output = _output(place)
        if arguments.force:
            remove(place)
        if not arguments.json:
            says = f"rehearsing on {bench.card.words}; the program's output goes to {output}"
            print_lines([says], sys.stderr)
        runs.append(bench.run(command, bench.card, place, limits=limits, log=output))
    return sorted(runs, key=_severity)


def _limits(
    arguments: argparse.Namespace, bench: RehearsalBench
) -> list[RehearsalLimits]:
    """What was asked for: each rank, both ends of what depends on values, without and with
    compiling, or one run.
    """
    ranks = _ranks(arguments)
    if ranks:
        return [
            replace(bench.limits, rank=rank, world=arguments.world) for rank in ranks
        ]
    if arguments.values == "between":
        return [bench.limits, replace(bench.limits, values="least")]
    if arguments.compile:
        return [bench.limits, replace(bench.limits, compiles=True)]
    return [bench.limits]


def _highest(
    arguments: argparse.Namespace,
    command: list[str],
    bench: RehearsalBench,
    folder: Path,
    card: GpuCard,
) -> Rehearsal:
    """On a card, a run that failed, else the one with the highest peak; what they print is put
    aside.
    """
    runs = []
    for limits in _limits(arguments, bench):
        out = _beside(
            folder / card.name.replace("/", "-") / "run", limits, bench.limits
        )
        out.parent.mkdir(exist_ok=True)
        log = out.with_suffix(".log")
        runs.append(bench.run(command, card, out, log=log, limits=limits))
    return max(runs, key=_severity)


def _severity(run: Rehearsal) -> tuple[bool, bool, int]:
    """What is compiled is what the program does on a GPU: it comes last."""
    return run.limits.compiles, run.exit_code != 0, run.peak_reserved_bytes or 0


def _beside(out: Path, limits: RehearsalLimits, of_bench: RehearsalLimits) -> Path:
    """The trace of a run: of a rank, compiled, or of the other end of what depends on values."""
    if limits == of_bench:
        return out
    name = limits.values
    if limits.world:
        name = f"rank{limits.rank}"
    elif limits.compiles:
        name = "compiled"
    return out.with_name(f"{out.stem}-{name}{out.suffix}")


def _what_to_run_next(
    arguments: argparse.Namespace, command: list[str]
) -> tuple[str, str]:
    """What a command does about a program that does not fit, and that command; of a model that was
    built here, there is no source to change.
    """
    if arguments.world:
        return "", ""
    card = _options(arguments, "gpu", "capacity", "box", "held")
    torch = _options(arguments, "torch", "torch-python")
    if not arguments.model:
        gpus = _options(arguments, "gpus") if arguments.gpus > 1 else []
        fix = shell.line([PROGRAM, "fix", *card, *gpus, *torch, "--", *command])
        return "To have this and other changes tried until one fits:", fix
    model = (
        _options(arguments, "model", "train", "sequence", "batch", "precision") + torch
    )
    if arguments.checkpointing:
        model.append("--checkpointing")
    if arguments.batch == 1:
        all_cards = shell.line([PROGRAM, "rehearse", "--gpu", "all", *model])
        return "To see the cards on which it fits:", all_cards
    largest = shell.line([PROGRAM, "rehearse", *card, *model, "--find-batch", "batch"])
    return "To find the largest batch that fits:", largest


def _options(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Options as they were given; those that were not are left out."""
    words = []
    for name in names:
        value = getattr(arguments, name.replace("-", "_"))
        if value:
            words += [f"--{name}", str(value)]
    return words


def _counterfactual(
    arguments: argparse.Namespace,
    command: list[str],
    bench: RehearsalBench,
    first: Rehearsal,
    out: Path,
) -> Counterfactual:
    """What became of the program without a limit and with expandable segments, where it ran out
    of memory; kept in the record of the first run.
    """
    from helpers.allocator.circumstances import add_to_record
    from helpers.rehearse import counterfactual

    record_folder = out.absolute().with_suffix(".record")
    why_not = counterfactual.why_no_repeats(first, Path.cwd())
    if arguments.no_counterfactual:
        why_not = "--no-counterfactual left it out"
    after = counterfactual.Counterfactual(why_not=why_not)
    if not why_not:
        repeats = counterfactual.Repeats(
            run=bench.run,
            command=command,
            first=first,
            record=record_folder,
            conf=bench.settings.conf,
            extra=bench.settings.extra,
        )
        if not arguments.json:
            print_lines([repeats.announcement()], sys.stderr)
        after = repeats.both()
    add_to_record(out, counterfactual=after.as_shape())
    return after


def _against_commit(
    arguments: argparse.Namespace, command: list[str], bench: RehearsalBench
) -> int:
    """The program at a commit and as it is now, both rehearsed and compared; what they print is
    put aside.
    """
    from helpers.allocator.record import under
    from helpers.commands.batch import peaks, share
    from helpers.rehearse import commits, github
    from helpers.trials.user_program import check_script

    allowed = share(arguments.allow)
    out = _out(arguments, "rehearsal")
    ref = arguments.against_commit
    words = under(arguments.torch_python, command)

    def run(words: list[str], trace: Path) -> Rehearsal:
        return bench.run(
            words, bench.card, trace, python="", log=trace.with_suffix(".log")
        )

    with commits.checked_out(ref, OUTPUTS) as (commit, folder):
        words_then = commits.as_it_was(words, folder)
        check_script(words_then, folder, f"at {ref} ({commit})")
        earlier_out = out.with_stem(f"{out.stem}-{commit}")
        before = commits.rehearsed(run, words_then, folder, earlier_out)
        after = commits.rehearsed(run, words, Path.cwd(), out)
        sources = (commits.sources(folder), commits.sources(Path.cwd()))
    names = (f"{ref} ({commit}): {before}", f"as it is now: {after}")
    tell = None
    if arguments.github:
        tell = partial(github.report, ref=ref, card_bytes=bench.card.total_bytes)
    return peaks((before, after), allowed, arguments.json, sources, names, tell)


VERBS = (record, rehearse)
