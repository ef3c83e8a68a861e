"""Would this program fit that card?

It is run unchanged under torch's real allocator, on a device that computes nothing.

The allocator sees the requests that it sees on a GPU with those properties, and raises its own
OutOfMemoryError at the card's size. The program's arguments, exit code and environment stay its
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
    INJECT,
    RecordError,
    Recording,
    record,
    under,
)
from helpers.allocator.stack_frames import frame_text
from helpers.allocator.trace import TraceError
from helpers.ground.child import watch
from helpers.ground.units import MIB
from helpers.look.cards import GpuCard
from helpers.rehearse.build import build
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
from helpers.rehearse.torches import NEEDS, Torch, interpreter
from helpers.rehearse.trust import cudnn_at_once, trust, workspace_bytes
from helpers.rehearse.words import WORDS

PROGRAMS = Path(__file__).resolve().parent / "under_torch"
COMPILED = "compiled"
"""What torch.compile makes in a run, in the folder of its record: each run compiles anew, since the
peak of a run that compiles is another one.
"""
TERM_S = 3.0
"""How long a rehearsal has to end after SIGTERM."""
DIED = "killed or crashed"
"""How the recorder says that a process died (helpers/allocator/recorded_processes.py)."""
RESERVED_PEAK = "reserved_bytes.all.peak"
MOST_OF_ERROR = 400
NAMES_PYTHON = re.compile(r"python[0-9.]*|.*\.py")
"""A program that is Python itself, or a script that Python runs."""


def environment(
    torch: Torch,
    preload: Sequence[Path],
    device: GpuCard,
    folder: Path,
    conf: str | None,
    extra: Mapping[str, str] | None = None,
    limits: RehearsalLimits = UNLIMITED,
) -> dict[str, str]:
    """What the program's environment gets beside its own.

    Nothing outside of the rehearsed process changes.
    """
    torch_folder = "" if torch.is_users else str(torch.folder)
    paths = [str(INJECT), torch_folder, os.environ.get("PYTHONPATH", "")]
    libraries = [*map(str, preload), os.environ.get("LD_PRELOAD", "")]
    variables: dict[str, object] = {
        "LD_PRELOAD": " ".join(filter(None, libraries)),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(limits.gpus))),
        "FAKE_DEVICES": limits.gpus,
        "CASEBOOK_REHEARSE": folder,
        "CASEBOOK_PROGRAMS": PROGRAMS,
        "CASEBOOK_NEEDS": torch.folder / NEEDS,
        # Without these the order of dicts and of autocast's cache, by host address, changes
        # from run to run (see also _same_addresses).
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        **WORDS["constant"],
        **{name: getattr(device, field) for name, field in WORDS["card"].items()},
        "FAKE_PEAKS": folder,
        "FAKE_SM_SMEM": device.shared_kib << 10,
        "FAKE_L2": int(device.l2_mib * MIB),
        "FAKE_CUDNN_WS": limits.cudnn_bytes,
        "CASEBOOK_STEPS": limits.steps,
        "CASEBOOK_SECONDS": limits.seconds,
        "CASEBOOK_VALUES": limits.values,
        "TORCHDYNAMO_DISABLE": "1",
        "TRITON_LIBCUDA_PATH": preload[0].parent if preload else "",
    }
    if limits.world:
        variables |= _of_rank(limits)
    if extra is not None:
        variables |= extra
    if limits.compiles:
        variables |= _of_compiling(folder / COMPILED)
    if conf is not None:
        variables["PYTORCH_CUDA_ALLOC_CONF"] = conf
    return {name: str(value) for name, value in variables.items()}


def _of_compiling(folder: Path) -> dict[str, object]:
    """What lets torch.compile compile. What it chooses by the time that kernels take, which are left
    out here, must not come into the user's own caches.
    """
    return {
        "TORCHDYNAMO_DISABLE": "",
        "CASEBOOK_VALUES": "none",
        "TORCHINDUCTOR_CACHE_DIR": folder / "inductor",
        "TRITON_CACHE_DIR": folder / "triton",
    }


def _of_rank(limits: RehearsalLimits) -> dict[str, object]:
    """What torchrun puts into the environment of one rank, on a node of ``limits.gpus`` GPUs."""
    node, place_on_node = divmod(limits.rank, limits.gpus)
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": limits.rank,
        "LOCAL_RANK": place_on_node,
        "GROUP_RANK": node,
        "ROLE_RANK": limits.rank,
        "WORLD_SIZE": limits.world,
        "LOCAL_WORLD_SIZE": limits.gpus,
        "GROUP_WORLD_SIZE": -(-limits.world // limits.gpus),
        "ROLE_WORLD_SIZE": limits.world,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "OMP_NUM_THREADS": 1,
        "CASEBOOK_WORLD": limits.world,
        "CASEBOOK_HOLDS_BUCKETS": int(limits.holds_buckets),
    }


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
    """Run ``command`` on ``device`` and keep its trace at ``out`` (a .pickle; its records in a
    folder beside it).

    ``conf`` is PYTORCH_CUDA_ALLOC_CONF (None: the program's own), ``extra`` more environment,
    ``python`` the interpreter in place of the ``python`` that the command names; ``log`` takes
    the program's output, and its input is then the file it was given from the start, or
    nothing. ``working_folder``: where it runs, if not here; ``ends_after_s`` above 0: when
    SIGTERM ends it; ``max_events``: how long its trace may be; ``forks``: of what later runs of
    it are forked. Raises RecordError and NotReady.
    """
    argv, search = _located(command, python, torch)
    out = out.absolute()
    folder = out.with_suffix(".record")
    preload = build(torch, cache)
    variables = environment(torch, preload, device, folder, conf, extra, limits)
    variables["PATH"] = search
    prefix = []
    if log:
        prefix = ["sh", "-c", f'exec "$@" > "$0" 2>&1 < {_input_again()}', str(log)]
    prefix += [*_same_addresses(), "env"]
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
    if forks is not None and rehearsal.ooms:
        forks.learn(argv, variables, reports, _same_addresses())
    return rehearsal


def _located(
    command: Sequence[str], python: str, torch: Torch
) -> tuple[list[str], str]:
    """The command to run and the PATH to find it on. Raises RecordError where it is not there."""
    folders = [os.environ.get("PATH", os.defpath), str(torch.folder / "bin")]
    program = os.path.basename(command[0]) if command else ""
    if python and program and not NAMES_PYTHON.fullmatch(program):
        # A shell, or torchrun: what it starts by name is looked for beside that Python first, and
        # in what came with torch last.
        argv = list(command)
        folders.insert(0, os.path.dirname(shutil.which(python) or ""))
    else:
        argv = under(python, command)
    search = os.pathsep.join(folders)
    path = shutil.which(argv[0], path=search)
    if path is None:
        expected = "expected a program; give the command after --"
        raise RecordError(f"{argv[0]}: not found; {expected}")
    if os.path.dirname(path) == folders[-1]:
        # Its first line names the Python that installed torch.
        argv = [interpreter(command, python), path, *argv[1:]]
    return argv, search


def _input_again() -> str:
    """Where a program that may run several times reads: a file from its start, else nothing."""
    try:
        is_file = stat.S_ISREG(os.fstat(0).st_mode)
    except OSError:
        is_file = False  # closed
    return "/dev/stdin" if is_file else "/dev/null"


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
    first_error = errors[0] if errors else ""
    stopped = next((row["stopped"] for row in reports if row["stopped"]), "")
    exit_code = recording.exit_code
    if stopped and only_a_kernel_died(reports):
        exit_code = 0
    fault = whose_fault(recording, reports, torch.version) if exit_code else ""
    torches = filter(None, (row.get("torch") for row in recording.processes))
    releases = [about["version"] for about in torches]
    observed_ooms = sum(process["ooms"] for process in recording.processes)
    step_peaks = chain.from_iterable(report["step_peaks"] for report in reports)
    return Rehearsal(
        device=device,
        torch=releases[0] if releases else torch.version,
        conf=conf,
        exit_code=exit_code,
        seconds=recording.seconds,
        peak_allocated_bytes=peaks.allocated_bytes,
        peak_reserved_bytes=peaks.reserved_bytes,
        retries=peaks.retries,
        ooms=observed_ooms or ran_out_in_words(reports),
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
    """The highest counters of any process (None: unknown), and the allocations of all."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    retries: int
    at_least: bool
    allocations: int


def _peaks(recording: Recording) -> RunPeaks:
    """torch's own counters, and what the card saw of processes that died without a word."""
    cards = chain.from_iterable(
        process.get("devices") or () for process in recording.processes
    )
    counters = [card["stats"] for card in cards]
    highest: Mapping[str, int] = max(
        counters, key=lambda counted: counted[RESERVED_PEAK], default={}
    )
    counted_bytes = highest.get(RESERVED_PEAK, 0)
    seen_bytes, lost_bytes = _peaks_of_holders(recording)
    # What the card itself saw outlives the process: more than what its last word had is what
    # was reached at least.
    at_least = lost_bytes > 0 and lost_bytes >= counted_bytes
    allocated = highest.get("allocated_bytes.all.peak")
    reserved = highest.get(RESERVED_PEAK)
    if seen_bytes and not counted_bytes:
        # Without its cache the allocator counts nothing, and how a driver packs small requests
        # is not known.
        allocated = None
        reserved = None
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
    """The most bytes of a card that the card saw one process hold: of all processes, and of those
    that died without a word.
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
def _same_addresses() -> tuple[str, ...]:
    """The command that starts a program with the same host addresses each time.

    Empty where this machine does not allow that (containers may not).
    """
    allowed = (
        shutil.which("setarch")
        and watch(["setarch", "-R", "true"], 10.0).exit_code == 0
    )
    return ("setarch", "-R") if allowed else ()


@dataclass(frozen=True)
class TraceFacts:
    """What the trace itself says: the frames of its last out-of-memory, how many streams it has
    (0: not read), and whether the allocator's segments were expandable.
    """

    frames: tuple[str, ...] = ()
    streams: int = 1
    expandable: bool = False


def _first_oom(
    recording: Recording, reports: Reports, frames: tuple[str, ...]
) -> Oom | None:
    """The first out-of-memory; ``frames`` are those of the trace."""
    snapshots = chain.from_iterable(row["snapshots"] for row in recording.processes)
    ooms = [snapshot for snapshot in snapshots if snapshot["reason"] == "oom"]
    if not ooms:
        return None
    first = min(ooms, key=lambda snapshot: snapshot["at"])
    # Backward runs on a thread without Python frames; where the program ended by it, the
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
    """What the trace says.

    A program may switch the history off; the observer's figures remain. Whoever stopped a
    rehearsal does not wait for its trace to be read: then there are 0 streams.
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
            frames = content.frames[event.frame] if event.frame >= 0 else ()
            break
    return TraceFacts(
        frames=frames,
        streams=len(streams) or 1,  # none without a cache
        expandable=bool(content.settings.get("expandable_segments")),
    )
