"""Commands that run a program of the user's own: record it as it is, or rehearse it on a card that is not there."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.commands.use import OUTPUTS, PROGRAM, WrongUse

if TYPE_CHECKING:
    from helpers.look.cards import GpuCard
    from helpers.rehearse.build import Torch
    from helpers.rehearse.rehearse import Rehearsal

    Run = partial[Rehearsal]
Given = argparse.Namespace

SHARED = """
--out TRACE: the trace file (default: in outputs)
--force: in place of an earlier recording of that name
--torch-python PATH: in place of a leading `python` of COMMAND
command -- COMMAND: the program and its arguments
"""


def _program(given: Given) -> list[str]:
    return given.command[1:] if given.command[:1] == ["--"] else given.command


def _out(given: Given, kind: str) -> Path:
    """Where the trace goes; its folder is there."""
    from helpers.allocator.record import remove

    out = Path(given.out or OUTPUTS / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if given.force:
        remove(out)
    return out


def _tell(lines: list[str], file: Any) -> None:
    for line in filter(None, lines):
        print(f"{PROGRAM}: {line}", file=file)


def record(given: Given) -> int:
    """Run a program unchanged and keep what it asked of the allocator.

    --max-events N <int> = 200000: how many events to keep, the last ones
    --hang-after S <float>: keep stacks and a snapshot when no allocation and no output came for S seconds
    Example: record --out run.pickle -- python train.py
    """
    from helpers.allocator import record

    command = _program(given)
    if not command:
        raise WrongUse("record: no command; expected: record [OPTIONS] -- python train.py")
    done = record.record(
        command,
        _out(given, "trace"),
        max_events=given.max_events,
        hang_after_s=given.hang_after or None,
        python=given.torch_python,
    )
    ask = f"next: python3 -m helpers whatif {done.trace} --capacity 20GiB"
    if more := _grows(done.trace):
        ask = f"{more}; next: python3 -m helpers leaks {done.trace} --capacity 20GiB"
    end = f"{done.kind}: {done.trace}; {ask}" if done.trace else f"no trace: {done.why_no_trace}"
    if given.json:
        print(json.dumps(asdict(done), default=str), file=sys.stderr)
    else:
        _tell([*done.notes, end], sys.stderr)
    return done.exit_code


def _grows(trace: Path | None) -> str:
    """What grows in a trace that was just recorded, in words; empty where nothing does or it cannot be read."""
    from helpers.allocator.growth import grows
    from helpers.allocator.load import read
    from helpers.allocator.trace import TraceError

    try:
        return grows(read(trace)) if trace else ""
    except TraceError:
        return ""


def rehearse(given: Given) -> int:
    """Run your program on a card that is not there: does it fit, and with which settings?

    --conf STR = None: PYTORCH_CUDA_ALLOC_CONF (default: the program's own)
    --find-capacity: the smallest card that it finishes on
    --find-batch ARG: the largest value of an argument that fits: batch
    --against PRESET +: once for each preset of env/presets
    --against-commit REF: the program as it is beside the same at a commit: what moved at the peak; exit 1 where it rose
    --allow SHARE = 1%: with --against-commit: by how much the peak may rise
    --setup: install what is missing without asking
    --remove: take away everything that was installed for rehearsals
    --gpu NAME: the card, such as 4090 or a100-40; `--gpu list` names all
    --capacity SIZE: its memory, such as 20GiB
    --box B: the largest card of that box or bundle, what others hold on it, and its allocator's settings
    --gpus N <int> = 1: so many such cards, for torchrun --nproc_per_node N
    --steps N <int> = 0: end after N steps of an optimizer, with the verdict so far
    --seconds S <float>: end after S seconds, with the verdict so far
    --values {least,typical,most,between} = typical: how large what hangs on values is (typical: half; between: both ends)
    --held SIZE: what the context and others hold, such as 500MiB
    --torch VER: its release (default: your own CUDA torch, else 2.14.1)
    --cudnn-workspace SIZE: what each cuDNN call takes, such as 512MiB (default: 0, and a range is said)
    --cache FOLDER: where that is (default: vram-casebook in XDG_CACHE_HOME)
    Example: rehearse --gpu 4090 -- python train.py
    """
    from helpers.rehearse import build

    place = build.cache(given.cache)
    command = _program(given)
    gpus = given.gpus
    steps = given.steps
    seconds = given.seconds or 0
    if not 1 <= gpus <= 16:
        raise WrongUse(f"rehearse: seen --gpus {gpus}; expected 1 to 16, one a process of torchrun")
    if min(steps, seconds) < 0:
        raise WrongUse(f"rehearse: --steps {steps}, --seconds {seconds}; expected 0 or more")
    if sum(map(bool, (given.find_capacity, given.find_batch, given.against))) > 1:
        several = "--find-capacity, --find-batch and --against"
        raise WrongUse(f"rehearse: seen several of {several}; expected one")
    if given.remove:
        print(f"{build.remove(place) >> 20} MiB removed from {place}")
    elif given.gpu == "list":
        print(_cards())
    elif not command and not given.setup:
        raise WrongUse("rehearse: no command; expected: rehearse --gpu 4090 -- python train.py")
    else:
        card = _card(given) if command else None  # a wrong name is said before anything is fetched
        torch = _torch(given, command or ["python"], place)
        if card:
            return _answer(given, command, place, torch, card)
        print(f"ready: torch {torch.version}; {place}")
    return 0


def _card(given: Given) -> GpuCard:
    from helpers.look.bundle import open_box
    from helpers.look.cards import find_card
    from helpers.rehearse.study import AMPLE_BYTES

    ample = given.find_capacity and not (given.gpu or given.capacity or given.box)
    bundle = open_box(given.box) if given.box else None
    return find_card(given.gpu, str(AMPLE_BYTES) if ample else given.capacity, given.held, bundle)


def _settings(given: Given) -> tuple[str | None, dict[str, str], list[str]]:
    """The allocator's settings: as given, else as the box had them (None: the program's own); what else of its environment
    decides what is allocated; and what was taken over, a line each."""
    from helpers.look.access import variables
    from helpers.look.bundle import open_box
    from helpers.rehearse.build import WORDS
    from helpers.settings.table import CONF_NAMES

    if not given.box:
        return given.conf, {}, []
    there = variables(open_box(given.box))
    had = {variable.name: variable.value for variable in there}
    extra = {name: had[name] for name in WORDS["decides"] if had.get(name)}
    name = next((name for name in CONF_NAMES if had.get(name)), "")
    conf = (had.get(name) or None) if given.conf is None else given.conf
    taken = {**({name: had[name]} if name and given.conf is None else {}), **extra}
    return conf, extra, [f"as on the box: {key}={value}" for key, value in taken.items()]


def _cards() -> str:
    from helpers.look.cards import cards
    from helpers.tell.shown import Shown

    header = ["name", "card", "MiB", "capability", "SMs", "L2 MiB", "BLAS MiB", "source"]
    named = "name total_bytes capability multiprocessors l2_mib blas_mib source".split()
    rows = [[key, *(getattr(card, one) for one in named)] for key, card in cards().items()]
    shown = [[*row[:2], row[2] >> 20, row[3] / 10, *row[4:]] for row in rows]
    return Shown("", header, shown, widest=90).text(0)


def _torch(given: Given, command: list[str], place: Path) -> Torch:
    """The torch to rehearse under, installed where that was agreed to. Raises NotReady."""
    from helpers.rehearse import build

    build.tools()
    python = build.interpreter(command, given.torch_python)
    found, where = build.find(python, given.torch, place)
    if found is None:
        line = f"{python} has no CUDA build of torch {given.torch}".rstrip()
        line += f"; a rehearsal needs one alone, {build.SIZE_WORDS}, in {place}"
        agreed = given.setup
        if not agreed and sys.stdin.isatty() and sys.stderr.isatty():
            print(f"{PROGRAM}: {line}. Install it? [y/N] ", end="", file=sys.stderr, flush=True)
            agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
        if not agreed:
            again = "run again with --setup (and --remove to take it away)"
            raise build.NotReady(f"{line}; {again}")
        found = build.install(python, given.torch, where)
    build.build(found, place)
    return found


def _answer(given: Given, command: list[str], place: Path, torch: Torch, card: GpuCard) -> int:
    from helpers.ground.units import parse_size
    from helpers.rehearse.rehearse import STOPPED, Limits, rehearse

    workspace = parse_size(given.cudnn_workspace or "0")
    ends = ["least", "most"] if given.values == "between" else [given.values]
    limits = [Limits(given.steps, given.seconds or 0.0, end, given.gpus, workspace) for end in ends]
    conf, extra, as_there = _settings(given)
    run = partial(rehearse, torch=torch, cache=place, python=given.torch_python, conf=conf)
    run = partial(run, limits=limits[-1], extra=extra)
    if not given.json:
        _tell(as_there, sys.stderr)
    if given.against_commit:
        return _commits(given, command, card, run)
    if given.find_capacity or given.find_batch or given.against:
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            return _several(given, command, card, run, Path(folder))
    out = _out(given, "rehearsal")
    both = [done := run(command, card, out)]
    if given.values == "between" and not done.exact and done.exit_code != STOPPED:
        least = out.with_name(f"{out.stem}-least{out.suffix}")
        both.insert(0, run(command, card, least, limits=limits[0]))
    if given.json:
        shapes = [_shape(one) for one in both]
        shape = shapes if shapes[1:] else shapes[0]
        print(json.dumps(shape, indent=1, default=str), file=sys.stderr)
    else:
        _tell([*between(both), *told(done)], sys.stderr)
    return done.exit_code


def between(both: list[Rehearsal]) -> list[str]:
    """The two ends of what hangs on values, in one line; none where there is one rehearsal."""
    from helpers.ground.units import show_bytes

    ends = [f"{show_bytes(one.peak_reserved_bytes or 0)} ({one.outcome})" for one in both]
    line = f"what hangs on values: peak reserved between {' and '.join(ends)}"
    return [f"{line}; the run below has the most"] if len(both) > 1 else []


def _commits(given: Given, command: list[str], card: GpuCard, run: Run) -> int:
    """The program at a commit and as it is now, both rehearsed and compared; what they print is put aside."""
    from helpers.allocator.record import under
    from helpers.commands.batch import peaks, share
    from helpers.rehearse import commits

    allowed = share(given.allow)
    out = _out(given, "rehearsal")
    ref = given.against_commit
    words = under(given.torch_python, command)

    def one(words: list[str], at: Path) -> Rehearsal:
        return run(words, card, at, python="", log=at.with_suffix(".log"))

    with commits.checked_out(ref, OUTPUTS) as (commit, folder):
        before = commits.rehearsed(one, words, folder, out.with_stem(f"{out.stem}-{commit}"))
        after = commits.rehearsed(one, words, Path.cwd(), out)
        both = commits.sources(folder), commits.sources(Path.cwd())
    names = f"{ref} ({commit}): {before}", f"as it is now: {after}"
    return peaks((before, after), allowed, given.json, both, names)


def _several(given: Given, command: list[str], card: GpuCard, run: Run, folder: Path) -> int:
    """A search, or presets side by side: the program's output is put aside, and stdout has the table."""
    from helpers.ground.units import show_bytes
    from helpers.rehearse import study
    from helpers.rehearse.rehearse import STOPPED
    from helpers.settings.presets import load
    from helpers.tell.shown import Shown

    made: list[Rehearsal] = []
    asked: list[int] = []

    def one(words: list[str], on: GpuCard, **settings: Any) -> Rehearsal:
        out = folder / f"run{len(made)}"
        made.append(run(words, on, out, log=out.with_suffix(".log"), **settings))
        return made[-1]

    def tried(value: int) -> Rehearsal:
        asked.append(value)
        if argument:
            return one(study.with_argument(command, argument, value), card)
        return one(command, replace(card, total_bytes=value))

    def show(value: int) -> str:
        size = f"a card of {show_bytes(value)} ({value:,} bytes)"
        return f"{argument} {value}" if argument else size

    end = ""
    code = 0
    argument = given.find_batch
    if given.against:
        presets = {name: study.settings_of(load(name)) for name in given.against}
        runs = {"no preset": one(command, card)}
        for name, (conf, extra) in presets.items():  # what a preset does not set stays
            if made[-1].exit_code == STOPPED:
                break
            own = {"extra": {**run.keywords["extra"], **extra}, **({"conf": conf} if conf else {})}
            runs[name] = one(command, card, **own)
        names = [f"{name} {kept.conf}".strip() for name, kept in runs.items()]
    else:
        start = study.start_of(command, argument) if argument else 0
        search = (study.find_batch, start) if argument else (study.find_capacity, card.held_bytes)
        try:
            found = search[0](tried, search[1])
            code = int(found.best is None)
            beyond = f"{show(found.beyond)} runs out" if found.beyond else "larger was not tried"
            end = beyond if found.best is None else f"{show(found.best)} finishes; {beyond}"
        except study.SearchError:
            if made[-1].exit_code != STOPPED:
                raise
        names = [show(value) for value in asked]
    if made[-1].exit_code == STOPPED:
        end = "ended by SIGTERM: what follows was not tried"
        code = STOPPED
    if given.json:
        shapes = dict(zip(names, map(_shape, made), strict=True))
        print(json.dumps({"runs": shapes, "says": end}, indent=1, default=str))
        return code
    sizes = [kept.peak_reserved_bytes for kept in made]
    peaks = ["unknown" if size is None else f"{size:,}" for size in sizes]
    rows = [
        [name, kept.outcome, peak, kept.retries, f"{kept.seconds:.1f}"]
        for name, kept, peak in zip(names, made, peaks, strict=True)
    ]
    heads = ["tried", "outcome", "peak reserved", "retries", "seconds"]
    print(Shown("", heads, rows, widest=70).text(0))
    _tell([end, f"measured by the real allocator, {made[-1].label}", *made[-1].trust], sys.stdout)
    return code


def _shape(done: Rehearsal) -> dict[str, Any]:
    return {**asdict(done), "label": done.label, "fits": done.fits}


def told(done: Rehearsal) -> list[str]:
    """A rehearsal in lines: the outcome, the first out-of-memory and how it reads, the trace, and how far to trust all that."""
    from helpers.ground.units import show_bytes
    from helpers.judge.diagnosis import diagnose
    from helpers.tell.message import gathered

    other = f"ended with {done.exit_code}, not for want of memory"
    retries = "unknown" if done.peak_reserved_bytes is None or done.at_least else done.retries
    outcome = done.outcome if done.fits else "does not fit" if done.ooms else other
    if done.between:
        outcome += f": {show_bytes(done.more_bytes)} more are needed where workspaces take the most"
    if done.stopped:
        outcome += f": ended by {done.stopped} after {done.steps} steps"
    outcome += "" if done.exact else ", as far as that can be told: see what is not to be trusted"
    least = "at least " if done.at_least else ""
    known = done.peak_allocated_bytes
    allocated = least * (known is not None) + show_bytes(known)
    lines = [
        f"{done.label}: {outcome}; peak allocated {allocated}, reserved "
        f"{least}{show_bytes(done.peak_reserved_bytes)}, {retries} retries, {done.ooms} times out of memory, "
        f"{done.seconds:.1f} s"
    ]
    lines += [f"whose fault: {done.whose}"] if done.whose else []
    if done.oom:
        asked = show_bytes(done.oom.requested_bytes)
        free = show_bytes(done.oom.free_bytes)
        frames = " < ".join(done.oom.frames[:6]) or "no Python frame"
        lines.append(f"first out of memory: {asked} asked of the card, {free} free; {frames}")
        caught = "the program caught it, so its words are not here"
        words = done.oom.message and diagnose(gathered(done.oom.message, "")[0]).headline
        lines.append(f"read as: {words}" if words else caught)
    elif done.error:
        it = "it ended by" if done.exit_code else "it ended well, but one of its processes ended by"
        lines.append(f"{it} {done.error}")
    ask = f"next: python3 -m helpers whatif {done.trace}"
    lines.append(f"trace: {done.trace}; {ask}" if done.trace else f"no trace: {done.why_no_trace}")
    first, *rest = lines
    more = [one for one in done.notes if done.trace or one not in done.why_no_trace]
    return [first, *done.trust[:-1], *rest, *more, *done.trust[-1:]]


VERBS = (record, rehearse)
