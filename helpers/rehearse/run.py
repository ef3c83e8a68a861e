"""Rehearses a program: runs it unchanged under torch's real allocator, on a simulated card that
computes nothing.

The allocator gets the same requests as on a real card with these properties, and raises its own
OutOfMemoryError where the card is full. The program's arguments, exit code and environment stay its
own; its output goes to `<recording>.record/output.txt`, and the recorder of `record` writes the
trace.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache as once
from itertools import chain
from pathlib import Path

from helpers.allocator import snapshot
from helpers.allocator.circumstances import add_to_record
from helpers.allocator.record import (
    DEFAULT_EVENTS,
    RecordError,
    Recording,
    record,
    under,
)
from helpers.allocator.stack_frames import frame_text
from helpers.allocator.trace import TraceError
from helpers.ground.child import watch
from helpers.look.cards import GpuCard
from helpers.rehearse.build import build
from helpers.rehearse.environment import COMPILED, environment
from helpers.rehearse.fault import (
    errors_in_words,
    only_a_kernel_died,
    ran_out_in_words,
    whose_fault,
)
from helpers.rehearse.forks import Forks
from helpers.rehearse.holders import holders_of, uses_of_cards
from helpers.rehearse.rehearsal import (
    STOPPED,
    UNLIMITED,
    Oom,
    Rehearsal,
    RehearsalLimits,
)
from helpers.rehearse.reports import Reports, is_exact, read_reports
from helpers.rehearse.torches import Torch, interpreter
from helpers.rehearse.trust import cudnn_at_once, trust, workspace_bytes

TERM_S = 3.0
"""Seconds that a rehearsal has to end after SIGTERM. Our choice: so long a user waits after Ctrl-C.
"""
SETARCH_S = 10.0
"""How long ``setarch true``, which ends at once, may take on a busy machine."""
DIED = "killed or crashed"
"""How the recorder says that a process died (helpers/allocator/recorded_processes.py)."""
RESERVED_PEAK = "reserved_bytes.all.peak"
"""The key of the reserved peak in torch.cuda.memory_stats()."""
MOST_OF_ERROR = 400
"""Characters of an error that are shown: about five lines of a terminal."""
NAMES_PYTHON = re.compile(r"python[0-9.]*|.*\.py")
"""A program that is Python itself, or a script that Python runs."""


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
    limits: RehearsalLimits = UNLIMITED,
    working_folder: Path | None = None,
    ends_after_s: float = 0.0,
    max_events: int = DEFAULT_EVENTS,
    forks: Forks | None = None,
) -> Rehearsal:
    """Run ``command`` on ``device`` and keep its trace at ``out`` (a .pickle; its record is a
    folder of that name with .record). Raises RecordError and NotReady.

    ``cache``: the folder of the card's libraries. ``conf``: PYTORCH_CUDA_ALLOC_CONF (None: the
    program's own); ``extra``: more environment; ``python``: the interpreter in place of the
    ``python`` that the command names. ``log`` takes the program's output; its input is then read
    from the start, as runs that follow need it. ``working_folder``: where it runs, if not here;
    ``ends_after_s``: when SIGTERM ends it (0: never); ``max_events``: how long its trace may be;
    ``forks``: of which later runs are forked.
    """
    argv, search = _located(command, python, torch)
    out = out.absolute()
    folder = out.with_suffix(".record")
    preload = build(torch, cache)
    variables = environment(torch, preload, device, folder, conf, extra, limits)
    variables["PATH"] = search
    prefix = []
    if log:
        # $0 is the log, and $@ the words that follow it.
        prefix = ["sh", "-c", f'exec "$@" > "$0" 2>&1 < {_input_again()}', str(log)]
    prefix += [*same_addresses(), "env"]
    if working_folder:
        prefix += ["-C", str(working_folder)]
        variables["PWD"] = str(working_folder)
    prefix += [f"{name}={value}" for name, value in variables.items()]
    if forks is not None:
        prefix += forks.before(argv, variables)
    recording = record(
        [*prefix, *argv],
        out,
        max_events=max_events,
        term_s=TERM_S,
        ends_after_s=ends_after_s,
    )
    shutil.rmtree(folder / COMPILED, ignore_errors=True)
    reports = read_reports(folder)
    conf_used = variables.get("PYTORCH_CUDA_ALLOC_CONF", "")
    rehearsal = _rehearsal(recording, reports, device, torch, conf_used, limits)
    add_to_record(
        out,
        # Without the environment, which is this machine's business.
        command=recording.command[len(prefix) :],
        rehearsed=rehearsal.label,
        stopped=rehearsal.stopped,
        trust=rehearsal.trust,
        device=asdict(rehearsal.device),
        devices=[asdict(use) for use in rehearsal.devices],
        limits=asdict(rehearsal.limits),
    )
    # Only a program that ran out of memory is run again.
    if forks is not None and rehearsal.ooms:
        forks.learn(argv, variables, reports, same_addresses())
    return rehearsal


def _located(
    command: Sequence[str], python: str, torch: Torch
) -> tuple[list[str], str]:
    """The command to run, and the PATH for it and for what it starts: last what came with torch,
    such as torchrun. Raises RecordError where the command is not on it.
    """
    folders = [os.environ.get("PATH", os.defpath), str(torch.folder / "bin")]
    program = os.path.basename("".join(command[:1]))
    if python and program and not NAMES_PYTHON.fullmatch(program):
        # A shell, or torchrun: it starts others by their names, first those beside that Python.
        argv = list(command)
        path_of_python = shutil.which(python)
        if path_of_python is not None:
            folders.insert(0, os.path.dirname(path_of_python))
    else:
        argv = under(python, command)
    search = os.pathsep.join(folders)
    path = shutil.which(argv[0], path=search)
    if path is None:
        expected = "expected a program; give the command after --"
        raise RecordError(f"{argv[0]}: not found; {expected}")
    if os.path.dirname(path) == folders[-1]:
        # The first line of such a script names the Python that installed torch: use another.
        argv = [interpreter(command, python), path, *argv[1:]]
    return argv, search


def _input_again() -> str:
    """From where a program that may run several times reads its input: where that is a file, from
    its start each time, since /dev/stdin opens it anew; else nothing.
    """
    try:
        is_file = stat.S_ISREG(os.fstat(0).st_mode)
    except OSError:
        is_file = False  # closed
    if is_file:
        return "/dev/stdin"
    return "/dev/null"


def _rehearsal(
    recording: Recording,
    reports: Reports,
    device: GpuCard,
    torch: Torch,
    conf: str,
    limits: RehearsalLimits,
) -> Rehearsal:
    """The rehearsal that a recording and the reports of its processes show."""
    peaks = _peaks(recording)
    trace = _read_trace(recording)
    errors = errors_in_words(reports)
    first_error = "".join(errors[:1])
    stopped = next((row["stopped"] for row in reports if row["stopped"]), "")
    exit_code = recording.exit_code
    if stopped and only_a_kernel_died(reports):
        exit_code = 0  # a limit ended the kernel well, and only the notebook complains
    fault = ""
    if exit_code:
        fault = whose_fault(recording, reports, torch.version)
    torches = filter(None, (row.get("torch") for row in recording.processes))
    releases = [about["version"] for about in torches]
    ooms = sum(process["ooms"] for process in recording.processes)
    if not ooms:  # where the recorder counted none, the last errors may still say so
        ooms = ran_out_in_words(reports)
    step_peaks = chain.from_iterable(report["step_peaks"] for report in reports)
    return Rehearsal(
        device=device,
        torch=next(iter(releases), torch.version),
        conf=conf,
        exit_code=exit_code,
        seconds=recording.seconds,
        peak_allocated_bytes=peaks.allocated_bytes,
        peak_reserved_bytes=peaks.reserved_bytes,
        retries=peaks.retries,
        ooms=ooms,
        oom=_first_oom(recording, reports, trace.frames),
        trace=recording.trace,
        why_no_trace=recording.why_no_trace,
        error=" ".join(first_error.split())[:MOST_OF_ERROR],
        exact=is_exact(reports),
        trust=tuple(trust(reports, device, trace.streams, limits)),
        notes=recording.notes,
        at_least=peaks.at_least,
        stopped=stopped,
        steps=max((report["steps"] for report in reports), default=0),
        step_peaks=tuple((step, peak) for step, peak in step_peaks),
        whose=fault,
        more_bytes=workspace_bytes(reports, limits.cudnn_bytes),
        at_once_bytes=cudnn_at_once(reports, limits.cudnn_bytes),
        allocations=peaks.allocations,
        expandable=trace.expandable,
        devices=uses_of_cards(recording.folder, limits.gpus),
        limits=limits,
        has_buckets=any(report["has_buckets"] for report in reports),
        compiled=sum(report["compiled"] for report in reports),
    )


@dataclass(frozen=True)
class RunPeaks:
    """The counters of the process with the highest reserved peak (None: unknown), and the number of
    allocations of all processes. ``at_least``: the peak may have been higher (see _peaks).
    """

    allocated_bytes: int | None
    reserved_bytes: int | None
    retries: int
    at_least: bool
    allocations: int


def _peaks(recording: Recording) -> RunPeaks:
    """The peaks by torch's own counters. Of a process that died before it could report them, the
    card still knows what it held: where that is more, the peak was at least so high.
    """
    # torch.cuda.memory_stats() of each process and card.
    counters: list[Mapping[str, int]] = []
    for process in recording.processes:
        counters += [card["stats"] for card in process.get("devices", ())]
    highest = max(counters, key=lambda counted: counted[RESERVED_PEAK], default={})
    counted_bytes = highest.get(RESERVED_PEAK, 0)
    seen_bytes, lost_bytes = _peaks_of_holders(recording)
    allocated = highest.get("allocated_bytes.all.peak")
    reserved = highest.get(RESERVED_PEAK)
    if seen_bytes and not counted_bytes:
        # Without its cache (PYTORCH_NO_CUDA_MEMORY_CACHING) the allocator counts nothing, and how
        # a driver packs small requests is not known.
        allocated = None
        reserved = None
    at_least = lost_bytes > 0 and lost_bytes >= counted_bytes
    if at_least:
        reserved = lost_bytes
    return RunPeaks(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        retries=highest.get("num_alloc_retries", 0),
        at_least=at_least,
        allocations=sum(row.get("allocation.all.allocated", 0) for row in counters),
    )


def _peaks_of_holders(recording: Recording) -> tuple[int, int]:
    """The most bytes of a card that any process held by the card's own count, and the most that one
    held which died before it could report its counters.
    """
    complete_pids = {
        process["pid"]
        for process in recording.processes
        if process["snapshots"] and process["ended"] != DIED
    }
    holders, _ = holders_of(recording.folder)
    peaks = {holder.pid: max(holder.peaks) for holder in holders}
    lost = [peak for pid, peak in peaks.items() if pid not in complete_pids]
    return max(peaks.values(), default=0), max(lost, default=0)


@once
def same_addresses() -> tuple[str, ...]:
    """The command that starts a program with the same host addresses each time: the order of
    autocast's cache depends on them. Empty where this machine does not allow it, as containers may.
    """
    command = ("setarch", "-R")
    if not shutil.which("setarch"):
        return ()
    if watch([*command, "true"], SETARCH_S).exit_code != 0:
        return ()
    return command


@dataclass(frozen=True)
class TraceFacts:
    """What the trace itself says. ``frames``: the stack of its last out-of-memory, the innermost
    first; ``streams``: how many of CUDA it has (0: it was not read); ``expandable``: whether the
    allocator's segments were.
    """

    frames: tuple[str, ...] = ()
    streams: int = 1
    expandable: bool = False


def _first_oom(
    recording: Recording, reports: Reports, frames: tuple[str, ...]
) -> Oom | None:
    """The first out-of-memory; None where there was none. ``frames``: those of the trace."""
    snapshots = chain.from_iterable(row["snapshots"] for row in recording.processes)
    ooms = [snapshot for snapshot in snapshots if snapshot["reason"] == "oom"]
    if not ooms:
        return None
    first = min(ooms, key=lambda snapshot: snapshot["at"])
    # A backward pass runs on a thread without Python frames. Where the error ended the program, its
    # traceback has the line that called.
    message = ""
    for report in reports:
        if report["error"] == "OutOfMemoryError":
            message = report["message"]
            if not frames:
                frames = tuple(filter(None, map(frame_text, report["frames"])))
            break
    return Oom(
        requested_bytes=first["size_bytes"],
        free_bytes=first["device_free_bytes"],
        frames=frames,
        message=message,
    )


def _read_trace(recording: Recording) -> TraceFacts:
    """What the trace says; one stream and no more where there is none. The trace of a rehearsal
    that SIGTERM ended is not read: whoever sent it does not want to wait.
    """
    if recording.exit_code == STOPPED:
        return TraceFacts(streams=0)
    if recording.trace is None:
        return TraceFacts()
    try:
        content = snapshot.load(recording.trace)
    except TraceError:
        return TraceFacts()
    streams = {event.stream for event in content.events if event.action == "alloc"}
    frames: tuple[str, ...] = ()
    for event in reversed(content.events):
        if event.action == "oom":
            if event.frame >= 0:  # else torch recorded no frames
                frames = content.frames[event.frame]
            break
    return TraceFacts(
        frames=frames,
        streams=max(1, len(streams)),  # no event has one where there is no cache
        expandable=bool(content.settings.get("expandable_segments")),
    )
