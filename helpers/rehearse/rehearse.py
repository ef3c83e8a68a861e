"""Would this program fit that card?

It is run unchanged under torch's real allocator, on a device that computes nothing.

The allocator sees the requests that it sees on a GPU with those properties, and raises its own
OutOfMemoryError at the card's size. The program's output, arguments, exit code and environment
stay its own; the recorder of `record` writes the trace.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from helpers.allocator import snapshot
from helpers.allocator.record import DEFAULT_EVENTS, INJECT, RecordError, Recording, record, under
from helpers.allocator.trace import TraceError
from helpers.ground.child import signal_name, watch
from helpers.ground.units import show_bytes
from helpers.look import files
from helpers.look.cards import GpuCard
from helpers.rehearse.build import NEEDS, WORDS, Torch, build

PROGRAMS = Path(__file__).resolve().parent / "under_torch"
SHOWN = 6
STOPPED = 143
TERM_S = 3.0  # the exit code of what SIGTERM ended; and how long it has to end then
DIED = "killed or crashed"  # the recorder's word (helpers/allocator/record.py)
Told = Sequence[Mapping[str, Any]]
"""What the witness of each process wrote (helpers/rehearse/under_torch/witness.py)."""


@dataclass(frozen=True)
class Limits:
    """Where a rehearsal ends by itself (0: nowhere): steps of an optimizer, seconds.

    ``values``: how many elements a result has whose size hangs on values that nobody computed:
    the least, half of all (typical), the most. ``gpus``: how many such cards the box has;
    collectives between them move nothing. ``cudnn_bytes``: of workspace for each call of cuDNN.
    """

    steps: int = 0
    seconds: float = 0.0
    values: str = "typical"
    gpus: int = 1
    cudnn_bytes: int = 0


UNLIMITED = Limits()


@dataclass(frozen=True)
class Oom:
    """The first out-of-memory: bytes asked for and free, the program's frames, and torch's
    words where it ended the program.
    """

    requested_bytes: int
    free_bytes: int
    frames: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal found.

    ``exit_code`` is the program's; the peaks, retries and ooms are those of torch's statistics.

    ``ooms`` counts those too that the program caught. ``trace`` is ready for replay and
    what-if; None: ``why_no_trace``. ``exact``: nothing allocated is known to hang on values
    that were not computed. ``trust`` says what it rests on. ``at_least``: a process of it died,
    so the peaks are those it had reached. ``stopped``: by which limit, after ``steps`` of an
    optimizer. ``whose``: whose fault it is where it failed: memory, the program or the
    rehearsal, and why, in one line. ``more_bytes``: how much higher the peak may be by
    workspaces of libraries, of which only a range is known.
    """

    device: GpuCard
    torch: str
    conf: str
    exit_code: int
    seconds: float
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    retries: int
    ooms: int
    oom: Oom | None
    trace: Path | None
    why_no_trace: str
    error: str
    exact: bool
    trust: tuple[str, ...]
    notes: tuple[str, ...]
    at_least: bool = False
    stopped: str = ""
    steps: int = 0
    whose: str = ""
    more_bytes: int = 0

    @property
    def label(self) -> str:
        """What every figure and trace of it is to be called."""
        return f"rehearsed on {self.device.words}, torch {self.torch}"

    @property
    def fits(self) -> bool:
        """It ended well and never ran out of memory, not even in a place that catches it."""
        return self.exit_code == 0 and self.ooms == 0

    @property
    def between(self) -> bool:
        """It fits with the least workspaces that its libraries may take, and not with the most."""
        room = self.device.total_bytes - self.device.held_bytes
        return self.fits and (self.peak_reserved_bytes or 0) + self.more_bytes > room

    @property
    def outcome(self) -> str:
        """fits, runs out, between the two, or what it ended with."""
        if self.between:
            return "between fits and runs out"
        other = "runs out" if self.ooms else f"ended with {self.exit_code}"
        return ("fits so far" if self.stopped else "fits") if self.fits else other


def environment(
    torch: Torch,
    preload: Sequence[Path],
    device: GpuCard,
    folder: Path,
    conf: str | None,
    extra: Mapping[str, str] | None = None,
    limits: Limits = UNLIMITED,
) -> dict[str, str]:
    """What the program's environment gets beside its own; nothing outside of the rehearsed
    process changes.
    """
    own = "" if torch.own else str(torch.folder)
    paths = [str(INJECT), own, os.environ.get("PYTHONPATH", "")]
    libraries = [*map(str, preload), os.environ.get("LD_PRELOAD", "")]
    found = {
        "LD_PRELOAD": " ".join(filter(None, libraries)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(limits.gpus))),
        "FAKE_DEVICES": str(limits.gpus),
        "CASEBOOK_REHEARSE": str(folder),
        "CASEBOOK_PROGRAMS": str(PROGRAMS),
        "CASEBOOK_NEEDS": str(torch.folder / NEEDS),
        # Without these the order of dicts and of autocast's cache, by host address, changes
        # from run to run (see also _still).
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        **WORDS["constant"],
        **{name: str(getattr(device, field)) for name, field in WORDS["card"].items()},
        "FAKE_PEAKS": str(folder),
        "FAKE_SM_SMEM": str(device.shared_kib << 10),
        "FAKE_L2": str(device.l2_mib << 20),
        "FAKE_CUDNN_WS": str(limits.cudnn_bytes),
        "CASEBOOK_STEPS": str(limits.steps),
        "CASEBOOK_SECONDS": str(limits.seconds),
        "CASEBOOK_VALUES": limits.values,
        "TRITON_LIBCUDA_PATH": str(preload[0].parent) if preload else "",
        **(extra or {}),
    }
    return {**found, "PYTORCH_CUDA_ALLOC_CONF": conf} if conf is not None else found


def rehearse(
    command: Sequence[str],
    device: GpuCard,
    out: Path,
    *,
    torch: Torch,
    cache: Path,
    conf: str | None = None,
    extra: Mapping[str, str] | None = None,
    python: str = "",
    log: Path | None = None,
    limits: Limits = UNLIMITED,
) -> Rehearsal:
    """Run ``command`` on ``device`` and keep its trace at ``out`` (a .pickle; its records in a
    folder beside it).

    ``conf`` is PYTORCH_CUDA_ALLOC_CONF (None: the program's own), ``extra`` more environment,
    ``python`` the interpreter in place of the ``python`` that the command names; ``log`` takes
    the program's output. Raises RecordError and NotReady.
    """
    own = bool(python) and not re.fullmatch(r"python[0-9.]*|.*\.py", os.path.basename(command[0]))
    argv = list(command) if own else under(python, command)
    # A shell, or torchrun: what it starts by name is looked for beside that Python first, and
    # in what came with torch last.
    beside = [os.path.dirname(shutil.which(python) or "")] if own else []
    there = os.environ.get("PATH", os.defpath)
    search = os.pathsep.join([*beside, there, str(torch.folder / "bin")])
    if not shutil.which(argv[0], path=search):
        raise RecordError(f"{argv[0]}: not found; expected a program; give the command after --")
    out = out.absolute()
    folder = out.with_suffix(".record")
    given = environment(torch, build(torch, cache), device, folder, conf, extra, limits)
    given["PATH"] = search
    before = ["sh", "-c", 'exec "$@" > "$0" 2>&1', str(log)] if log else []
    before += [*_still(), "env", *(f"{name}={value}" for name, value in given.items())]
    done = record([*before, *argv], out, max_events=DEFAULT_EVENTS, term_s=TERM_S)
    told = [json.loads(path.read_text()) for path in sorted(folder.glob("rehearsal_*.told"))]
    forked = len([*folder.glob("*.forked")])  # some end without a word of their own
    for row in told:
        row["missing"] = files.text("", f"{folder}/{row['pid']}.missing").split()
        row["forked"] = forked
    conf = given.get("PYTORCH_CUDA_ALLOC_CONF", "")
    found = _found(done, told, device, torch, conf, limits)
    path = folder / "record.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    # The command as it was given: the environment before it is this machine's business.
    kept.update(command=kept["command"][len(before) :], rehearsed=found.label, trust=found.trust)
    kept.update(device=asdict(device))
    path.write_text(json.dumps(kept, indent=1, default=str), encoding="utf-8")
    return found


def _found(
    done: Recording, told: Told, device: GpuCard, torch: Torch, conf: str, limits: Limits
) -> Rehearsal:
    """The rehearsal that a recording and its witnesses tell of."""
    cards = [card["stats"] for row in done.processes for card in row.get("devices") or ()]
    highest = "reserved_bytes.all.peak"
    stats: Mapping[str, Any] = max(cards, key=lambda one: one[highest], default={})
    # What the card itself saw outlives the process: more than what its last word had is what
    # was reached at least.
    ended = {row["pid"] for row in done.processes if row["snapshots"] and row["ended"] != DIED}
    known = stats.get(highest) or 0
    allocated = stats.get("allocated_bytes.all.peak")
    files = done.folder.glob("*.peaks")
    peaks = {int(path.stem): max(array("Q", path.read_bytes()), default=0) for path in files}
    seen = max((peak for pid, peak in peaks.items() if pid not in ended), default=0)
    # Without its cache the allocator counts nothing, and how a driver packs small requests is
    # not known.
    counted = known or not any(peaks.values())
    at_least = seen > 0 and seen >= known
    reserved = max(seen, known) if at_least else stats.get(highest) if counted else None
    stopped = next((row["stopped"] for row in told if row.get("stopped")), "")
    versions = [row["torch"]["version"] for row in done.processes if row.get("torch")]
    errors = [f"{row['error']}: {row['message']}" for row in _own_errors(told)]
    oom, streams = _first_oom(done, told)
    return Rehearsal(
        device=device,
        torch=versions[0] if versions else torch.version,
        conf=conf,
        exit_code=done.exit_code,
        seconds=done.seconds,
        peak_allocated_bytes=allocated if counted and (known or not at_least) else None,
        peak_reserved_bytes=reserved,
        retries=stats.get("num_alloc_retries", 0),
        ooms=sum(row["ooms"] for row in done.processes)
        or sum(bool(re.search(WORDS["ends"][0]["seen"], error)) for error in errors),
        oom=oom,
        trace=done.trace,
        why_no_trace=done.why_no_trace,
        error=" ".join(errors[0].split())[:400] if errors else "",
        exact=exact(told),
        trust=tuple(trust(told, device, streams, limits)),
        notes=done.notes,
        at_least=at_least,
        stopped=stopped,
        steps=max((row.get("steps", 0) for row in told), default=0),
        whose=whose(done, told) if done.exit_code else "",
        more_bytes=workspaces(told, limits.cudnn_bytes)[0],
    )


def _own_errors(told: Told) -> list[Mapping[str, Any]]:
    """Who raised; a launcher tells of others' errors alone."""
    found = [row for row in told if row["error"]]
    return [row for row in found if row["error"] != "ChildFailedError"] or found


def whose(done: Recording, told: Told) -> str:
    """Whose fault it is that a rehearsal failed, and why: memory, the program or the rehearsal,
    in one line.
    """
    errors = " ".join(f"{row['error']}: {row['message']}" for row in _own_errors(told))
    called = _unanswered(told)
    key = "other" if exact(told) else "sizes"
    named = [one for one in called if one in errors]
    name = done.signal or signal_name(done.exit_code - 128) if 128 < done.exit_code < 193 else ""
    if not errors:
        key = "crash" if name else "unanswered" if called else "exit"
    seen = (row for row in WORDS["ends"] if re.search(row["seen"], errors or name))
    found = WORDS["named"] if named else next(seen, WORDS[key])
    known = {"signal": name, "code": done.exit_code, "names": ", ".join((named or called)[:3])}
    return f"{found['whose']}: {found['says'].format(**known)}"


def _unanswered(told: Told) -> list[str]:
    """What was asked of the libraries and is not answered."""
    return sorted({name for row in told for name in row["missing"]})


@once
def _still() -> tuple[str, ...]:
    """What starts a program with the same host addresses each time, where this machine allows
    it (containers may not).
    """
    allowed = shutil.which("setarch") and watch(["setarch", "-R", "true"], 10.0).exit_code == 0
    return ("setarch", "-R") if allowed else ()


def _first_oom(done: Recording, told: Told) -> tuple[Oom | None, int]:
    """The first out-of-memory, and how many streams the trace has (0: not read)."""
    frames: tuple[str, ...] = ()
    streams = int(done.exit_code != STOPPED)
    # A program may switch the history off; the observer's figures remain. Whoever stopped it
    # does not wait for it to be read.
    with contextlib.suppress(TraceError):
        if done.trace is not None and streams:
            seen = snapshot.load(done.trace)
            used = {event.stream for event in seen.events if event.action == "alloc"}
            streams = len(used) or 1  # none without a cache
            last = next((event for event in reversed(seen.events) if event.action == "oom"), None)
            frames = seen.frames[last.frame] if last is not None and last.frame >= 0 else ()
    kept = [one for row in done.processes for one in row["snapshots"] if one["reason"] == "oom"]
    if not kept:
        return None, streams
    first = min(kept, key=lambda one: one["at"])
    # Backward runs on a thread without Python frames; where the program ended by it, the
    # traceback has the line that called.
    end = next((row for row in told if row["error"] == "OutOfMemoryError"), None)
    frames = frames or tuple(end["frames"] if end else ())
    message = end["message"] if end else ""
    return Oom(first["size_bytes"], first["device_free_bytes"], frames, message), streams


# What a rehearsal takes for granted.


def trust(told: Told, device: GpuCard, streams: int, limits: Limits = UNLIMITED) -> list[str]:
    """What it took for granted, a line each, what hangs on device values first.

    ``streams``: of the trace, 0: not read.
    """
    sentences = WORDS["says"]
    known = WORDS["known"]
    bound = WORDS["bounds"][limits.values]
    by_place: dict[str, dict[str, Any]] = {}
    for row in map(_place, _reads(told, True)):
        kept = by_place.setdefault(f"{row['place']} {row['op']}", {**row, "times": 0})
        kept["times"] += row["times"]
    lines = [sentences["sizes"].format(**row, bound=bound) for row in [*by_place.values()][:SHOWN]]
    lines += workspaces(told, limits.cudnn_bytes)[1]
    failed = (row["beside"] for row in told if row.get("beside"))
    lines += dict.fromkeys(sentences["beside"].format(error=error) for error in failed)
    compiled = sum(row.get("compiled", 0) for row in told)
    lines += [sentences["compiled"].format(many=compiled)] if compiled else []
    plain = _reads(told, False)
    effects = [known[row["inside"]] for row in plain if row["inside"] in known]
    lines += dict.fromkeys(f"assumed: {effect}" for effect in effects)
    other = [_place(row) for row in plain if row["inside"] not in known]
    if other:
        names = ["{place} ({op}, {times} times)".format(**row) for row in other[:SHOWN]]
        places = "; ".join(names) + "; and others" * (len(other) > SHOWN)
        lines.append(sentences["values"].format(places=places))
    called = _unanswered(told)
    libraries = WORDS["libraries"].items()
    missing = [says for name in called for start, says in libraries if name.startswith(start)]
    lines += dict.fromkeys(missing)
    using = sum(bool(row["counts"].get("launches")) for row in told)
    both = "collectives", "managed"
    counts = {what: sum(row["counts"].get(what, 0) for row in told) for what in both}
    counts["managed"] >>= 20
    forks = sum(row["forks"] for row in told)
    counts |= {"streams": streams * (streams > 1), "forks": forks, "several": using * (using > 1)}
    counts["forked"] = max(row.get("forked", 0) for row in told)
    lines += [sentences[what].format(many=many) for what, many in counts.items() if many]
    lines += [] if streams else [sentences["stopped"]]
    rocm = WORDS["rocm"] if device.vendor == "rocm" else ()
    lines += [f"a CUDA build stands in for ROCm: {line}" for line in rocm]
    return [*lines, WORDS["outside"]]


def workspaces(told: Told, cudnn_bytes: int) -> tuple[int, list[str]]:
    """How much higher the peak may be by what libraries take of which only a range is known,
    and a line each with its source.

    ``cudnn_bytes``: what each call of cuDNN was given; above 0 that was said by whoever asked,
    and is no range.
    """
    more = 0
    lines = []
    for row in WORDS["workspaces"]:
        seen = [process["counts"].get(row["count"], 0) for process in told]
        many = max(seen, default=0) if row["times"] else sum(seen)
        cap = os.environ.get(row["cap"], "")
        most = (int(cap) if cap.isdigit() and row["most_mib"] else row["most_mib"]) << 20
        most = 0 if cudnn_bytes and most else most + row["times"] * many
        if many:
            more += most
            words = f"{show_bytes(most)} more at the most" if most else "as --cudnn-workspace says"
            known = {"many": many, "least": show_bytes(cudnn_bytes), "range": words}
            lines.append(f"assumed: {row['says'].format(**known)} ({row['source']})")
    return more, lines


def exact(told: Told) -> bool:
    """Whether nothing that the program allocated is known to hang on values that were not
    computed.
    """
    return not _reads(told, True)


def _reads(told: Told, sizes: bool) -> list[Mapping[str, Any]]:
    found = [row for process in told for row in process["reads"] if row["sizes"] is sizes]
    return sorted(found, key=lambda row: -row["times"])


def _place(row: Mapping[str, Any]) -> dict[str, Any]:
    """A read in the words of WORDS: where it stands, by which operation, and how often."""
    place = row["where"] or "the backward pass"
    op = row["op"].lstrip("_")
    return {"place": place, "op": op, "times": row["times"]}
