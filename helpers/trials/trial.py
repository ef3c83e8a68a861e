"""What does one workload do under one preset?

Run once, in a process of its own, within limits; the record says how it ended.

The process is started anew (never forked off this one), its environment is made before torch is
imported, and the settings of the person's own shell that act on GPU memory are left out, so
that only the preset's act. A finished trial is not run again as long as what ran is the same:
the program's files, its torch, the driver.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from helpers.ground import child
from helpers.ground.child import (
    Ended,
    Group,
    Sampler,
    json_row,
    last_line,
    program,
    terminal,
    watch,
)
from helpers.ground.child.bounded import LAST_BYTES
from helpers.ground.child.sampler import SAMPLE_S
from helpers.ground.contract import one_line
from helpers.ground.shapes import Evidence, Outcome, Reading, not_available, seen
from helpers.judge.holders import SLACK_BYTES
from helpers.look import files
from helpers.look.files import whole, write_atomic
from helpers.look.message import of_device
from helpers.look.messages import read_message
from helpers.settings.presets import Preset
from helpers.settings.table import VARIABLES
from helpers.trials.targets import CPU, Target, environment, torch_files

DROPPED = {row.name for row in VARIABLES.values() if row.by not in ("loader", "NCCL")} - {
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION"),
}
HOST_OOM = re.compile(r"(numpy.*)?MemoryError|terminate called .*std::bad_alloc")
MESSAGE_CHARACTERS = 4000
STACK_CHARACTERS = 60_000
PROGRAMS = Path(__file__).resolve().parent / "under_torch"
SOURCES = (".py", ".pyx", ".sh", ".c", ".h", ".cpp", ".cu", ".hip")
NOT_SOURCES = ("__pycache__", "site-packages", "node_modules")
MOST_SOURCES = 2000
MOST_FOLDERS = 4000
HASHED_BYTES = 16 << 20


class TrialError(ValueError):
    """Nothing was measured: one line with what was seen, what was expected and what to do."""


class TrialRefused(TrialError):
    """This box or this torch cannot run the workload: no GPU where one is demanded, a package
    that is not installed.
    """


class RecordNotKept(TrialError):
    """It was measured, and the record could not be written; ``record`` has it."""

    def __init__(self, message: str, record: TrialRecord):
        super().__init__(message)
        self.record = record


@dataclass(frozen=True)
class Limits:
    """Seconds: of the whole trial, until its first word (``start_s``), and between two words of
    it (``silent_s``).

    ``host_bytes`` is the memory of each process, and of all together where a cgroup can be
    made; ``device_bytes`` what torch's allocator may take of the GPU. ``clean_s``: how long the
    box has to be clean again.
    """

    seconds: float = 120.0
    start_s: float = 90.0
    silent_s: float = 30.0
    host_bytes: int | None = None
    device_bytes: int | None = None
    clean_s: float = 10.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"limit {name} is {value!r}; expected a number above 0")


class Trial(BaseModel):
    """One workload under one preset in its own process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    workload: str
    preset: str
    build: str
    outcome: Outcome
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    driver_used_bytes: int | None
    rss_anon_bytes: int | None
    seconds: float
    steps: int
    loss: list[float] = []
    message: str = ""
    evidence: list[Evidence] = []


class TrialRecord(Trial):
    """A trial with what it was given and all that was seen.

    ``complete``: false where it did not come to its end; with the outcome ok it was stopped at
    its time limit while it made progress. ``work_bytes``: the peak of resident memory above
    that after the imports; ``rss_anon_bytes`` and ``rss_file_bytes`` are sampled from outside,
    the former over all of its processes. ``step_s`` has one entry a step, for a built-in
    workload without the time that other programs had the core. ``started_s``: from the start to
    the first word of the work, imports of torch included. ``overhead_s``: what starting,
    watching and cleaning up cost beyond the life of the program. ``clean``: why the box is not
    clean after it, or empty.
    """

    key: str
    seed: int
    repeat: int = 0
    python: str = ""
    torch: str = ""
    device: str = "cpu"
    settings: dict[str, str] = {}
    limits: dict[str, float | int | None] = {}
    complete: bool = True
    exit_code: int | None = None
    signal: str = ""
    work_bytes: int | None = None
    rss_file_bytes: int | None = None
    work_s: float | None = None
    step_s: list[float] = []
    started_s: float | None = None
    overhead_s: float | None = None
    stacks: str = ""
    clean: str = ""
    left_pids: list[int] = []
    started_at: str = ""
    notes: list[str] = []

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step, the median without the first; None where too few steps were told."""
        return median(self.step_s[1:]) if len(self.step_s) > 2 else None


def trial(
    workload: Workload,
    preset: Preset,
    *,
    python: str,
    seed: int,
    limits: Limits,
    out: Path,
    repeat: int = 0,
    target: Target = CPU,
) -> TrialRecord:
    """Run it, or read the record of it that ``out`` has.

    Raises TrialRefused, RecordNotKept, TrialError.

    An error of the workload is an outcome, not an exception. ``repeat`` tells repeats of one
    trial apart.
    """
    run = _Run(workload, preset, python, seed, limits, repeat, target)
    key = run.key
    path = out / f"{key}.json"
    if path.exists():
        return read(path)
    if target.refused:
        raise TrialRefused(f"GPU {target.pci}: {target.refused}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrialError(f"{out}: {error.strerror}; expected a folder to write to") from error
    record = run.record(key)
    try:
        write_atomic(path, record.model_dump_json(indent=1))
    except OSError as error:
        kept = "the trial was measured and is not kept; make room and run again"
        raise RecordNotKept(f"{path}: {error.strerror}; {kept}", record) from error
    return record


def read(path: Path) -> TrialRecord:
    """A record from its file. Raises TrialError in one line."""
    try:
        return TrialRecord.model_validate_json(whole(path))
    except ValidationError as error:
        expected = "expected the record of a trial; remove it to run it again"
        raise TrialError(f"{one_line(error, path.name)}; {expected}") from error
    except OSError as error:
        again = "remove it to run the trial again"
        raise TrialError(f"{path.name}: cannot be read ({error}); {again}") from error


# What the key of a record is made from.


def what_runs(workload: Workload, python: str, target: Target) -> list[str]:
    """What a trial's program is made of beyond its command line: contents of its files, its
    torch, and a GPU's driver.

    Of a command of the user's these are the files that it names and the sources in their
    folders, in the current one and on PYTHONPATH, as far as MOST_SOURCES goes. Another content
    is another trial.
    """
    found = []
    if workload.command:
        python = shutil.which(workload.command[0]) or python
        words = (part for word in workload.command for part in (word, word.partition("=")[2]))
        named = [Path(word) for word in words if os.path.isfile(word)]
        near = {Path.cwd(), *(path.parent.resolve() for path in named if path.suffix in SOURCES)}
        near |= {Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p}
        found += [_content(Path(python)), *map(_content, named)]
        for folder in sorted(near):
            found += [f"{path.relative_to(folder)} {_content(path)}" for path in _sources(folder)]
    else:
        found += [_content(path) for path in sorted(PROGRAMS.glob("*.py"))]
    if not workload.command or Path(python).name.startswith("python"):
        origin, tag = torch_files(python)
        found += [tag, origin, _content(Path(origin).with_name("version.py")) if origin else ""]
    if target.pci != CPU.pci:
        modules = [Path(f"/sys/module/{name}/version") for name in ("amdgpu", "nvidia")]
        found += [os.uname().release, *map(_content, modules)]
    return found


def _content(path: Path) -> str:
    """What tells this content of a file from another: a digest; of a large one size and time.

    Empty: no such file.
    """
    try:
        about = path.stat()
        if about.st_size > HASHED_BYTES:
            return f"{about.st_size} {about.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _sources(folder: Path) -> Iterator[Path]:
    """Source files below a folder, in order; not those of hidden folders and of installed
    packages.
    """
    files = folders = 0
    for place, inside, names in os.walk(folder):
        folders += 1
        if folders > MOST_FOLDERS:
            return
        own = (name for name in inside if name[0] != "." and name not in NOT_SOURCES)
        inside[:] = sorted(name for name in own if not Path(place, name, "pyvenv.cfg").exists())
        for name in sorted(names):
            if name.endswith(SOURCES):
                files += 1
                if files > MOST_SOURCES:
                    return
                yield Path(place, name)


# What the driver counts, and what is left of a trial.


def driver_used(pci: str, root: str = "") -> Reading:
    """Memory that the driver counts as used on a card, VRAM and GTT together, read in sysfs:
    outside of any process.
    """
    source = f"/sys/bus/pci/devices/{pci}/mem_info_{{vram,gtt}}_used"
    if pci in ("", CPU.pci):
        return not_available("this trial ran on the CPU", "bytes", source)
    sizes: dict[str, int] = {}
    for pool in ("vram", "gtt"):
        text = files.text(str(root), f"/sys/bus/pci/devices/{pci}/mem_info_{pool}_used")
        sizes |= {pool: int(text)} if text.isdigit() else {}
    if "vram" not in sizes:
        return not_available("this driver has no such file in sysfs", "bytes", source)
    return seen(sum(sizes.values()), "bytes", source)


def _driver_bytes(pci: str) -> int | None:
    used = driver_used(pci).value
    return None if used is None else int(used)


def leftovers(pids: Sequence[int], before: int | None, pci: str, clean_s: float) -> str:
    """Why the box is not clean after a trial, or empty: its processes live on, or the driver
    still counts its memory.

    Shared memory that its processes left (torch names it torch_PID_...) is removed.
    """
    until = time.monotonic() + clean_s
    while True:
        alive = [pid for pid in pids if child.process_of(pid).running]
        now = _driver_bytes(pci)
        held = 0 if now is None or before is None else now - before
        if not alive and held <= SLACK_BYTES:
            break
        if time.monotonic() >= until:
            if alive:
                return f"processes {', '.join(map(str, alive))} live on"
            more = f"{held} bytes more as used than before the trial"
            return f"the driver counts {more}, and no process of it is left"
        time.sleep(SAMPLE_S)
    for pid in pids:
        for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
            path.unlink(missing_ok=True)
    return ""


@dataclass
class _Run:
    """One trial while it runs: what it tells line by line, and until when it may be silent."""

    workload: Workload
    preset: Preset
    python: str
    seed: int
    limits: Limits
    repeat: int
    target: Target
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    loss: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    steps: int = 0
    tail: str = ""
    sampler: Sampler | None = None
    ready: float | None = None
    began: float = 0.0
    heard: float = 0.0

    @property
    def key(self) -> str:
        """What names its record: another digest for another content of anything that it is given."""
        workload = self.workload
        preset = self.preset
        given: list[Any] = [workload.name, sorted(workload.given.items()), workload.command]
        given += [sorted(preset.environ.items()), self.python, self.seed, asdict(self.limits)]
        given += [self.repeat, self.target.pci, what_runs(workload, self.python, self.target)]
        digest = hashlib.sha256(json.dumps(given).encode("utf-8", "surrogatepass")).hexdigest()
        return f"{workload.name}-{preset.name}-{digest[:16]}"

    def _started(self, pid: int) -> None:
        self.sampler = Sampler(pid, 0.0, lambda: _driver_bytes(self.target.pci))
        self._allow(time.monotonic(), self.limits.start_s)
        self.sampler.start()

    def take(self, line: str) -> float | None:
        """A line of its stdout; the seconds that it has from now on."""
        now = time.monotonic()
        self.tail = (self.tail + line + "\n")[-LAST_BYTES:]
        if step := self.workload.step:
            if not (marked := re.search(step, line)):
                return None
            self.steps += 1
            self.step_s += [now - self.heard] if self.ready else []
            with suppress(ValueError):
                self.loss.append(float(next(filter(None, marked.groups()), "")))
        elif not self.workload.command and "event" in (told := json_row(line)):
            self.told[str(told["event"])] = told
            if told["event"] == "step":
                self.steps += 1
                self.loss.append(float(told["loss"]))
                self.step_s.append(float(told["seconds"]))
        self.heard = now
        self.ready = self.ready or now
        return self._allow(now, self.limits.silent_s)

    def _allow(self, now: float, silent_s: float) -> float:
        """The seconds that it may be silent now.

        The stacks are taken a little before, while it still waits where it waits.
        """
        left = max(0.0, min(silent_s, self.began + self.limits.seconds - now))
        if self.sampler is not None:
            self.sampler.stacks = ""
            self.sampler.deadline = now + left - min(2.0, left / 4)
        return left

    def record(self, key: str) -> TrialRecord:
        """Run it to its end, and what came of it."""
        limits = self.limits
        group = Group(self.limits.host_bytes)
        self.began = self.heard = time.monotonic()
        before = _driver_bytes(self.target.pci)
        kills = group.kills()
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        command = argv(self.workload, self.python, self.seed, self.target, limits.device_bytes)
        more = {**self.preset.environ, "PYTHONUNBUFFERED": "1"}
        env = environment(self.target, DROPPED, more, own=not self.workload.command)
        how: dict[str, Any] = {"on_line": self.take, "on_start": self._started, "env": env}
        how |= {"data_bytes": limits.host_bytes or 0, "group": group.path}
        how["umask"] = terminal.users_umask if self.workload.command else -1
        try:
            ended = watch(command, min(limits.start_s, limits.seconds), **how)
        except BaseException:  # also an interrupt: the group must not stay
            group.remove()
            raise
        finally:
            if self.sampler is not None:
                self.sampler.stop()
        after = group.kills()
        pids = sorted(self.sampler.pids) if self.sampler else []
        if "refused" in self.told:
            group.remove()
            raise TrialRefused(f"{self.workload.words}: {self.told['refused']['why']}")
        clean = "it is stuck in the kernel"
        if ended.how != "stuck":
            clean = leftovers(pids, before, self.target.pci, limits.clean_s) or group.remove()
        notes = list(self._notes("" if group.path else group.why))
        killed = None if kills is None or after is None else after - kills
        known = {"key": key, "started_at": at, "clean": clean, "notes": notes}
        return self._record(ended, killed, known)

    def _record(self, ended: Ended, killed: int | None, known: Mapping[str, Any]) -> TrialRecord:
        outcome, message, complete = self._outcome(ended, killed)
        events = (self.told.get(event, {}) for event in ("ready", "oom", "end"))
        told: dict[str, Any] = {key: value for event in events for key, value in event.items()}
        rss = told.get("peak_rss_bytes")
        start = told.get("start_rss_bytes")
        sampler = self.sampler
        torch = str(told.get("torch", ""))
        overhead_s = None
        if "alive_s" in told:
            overhead_s = round(time.monotonic() - self.began - told["alive_s"], 3)
        stacks = filter(None, [sampler.stacks if sampler else "", ended.stacks])
        names = ("peak_allocated_bytes", "peak_reserved_bytes", "work_s")
        figures: dict[str, Any] = {name: told.get(name) for name in names}
        sampled = {name: getattr(sampler, name, 0) for name in ("rss_anon_bytes", "rss_file_bytes")}
        figures |= {name: size or None for name, size in sampled.items()}
        own = {name: getattr(self, name) for name in ("steps", "loss", "step_s", "seed", "repeat")}
        return TrialRecord(
            **{**known, **figures, **own, "complete": complete, "overhead_s": overhead_s},
            workload=self.workload.words,
            preset=self.preset.name,
            build=_build(torch),
            outcome=outcome,
            driver_used_bytes=sampler.device_bytes if sampler else None,
            seconds=ended.seconds,
            message=message,
            evidence=list(self._evidence(ended, outcome, message, killed)),
            python=self.python,
            torch=torch,
            device=str(told.get("gpu") or self.target.device),
            settings=dict(self.preset.environ),
            limits=asdict(self.limits),
            exit_code=ended.exit_code,
            signal=ended.signal,
            work_bytes=rss - start if rss and start else None,
            started_s=round(self.ready - self.began, 3) if self.ready else None,
            stacks="\n".join(stacks)[-STACK_CHARACTERS:] if outcome in ("hung", "stuck") else "",
            left_pids=list(ended.left_pids),
        )

    def _notes(self, no_group: str) -> Iterable[str]:
        if self.limits.host_bytes is not None and no_group:
            yield f"host memory is limited for each process, not for all: {no_group}"
        for name in self.preset.unknown:
            yield f"{name}: no table of settings knows it"
        if self.limits.device_bytes and self.workload.command:
            yield "the device memory of a command of your own is not limited: set a fraction in the preset"

    def _outcome(self, ended: Ended, killed: int | None) -> tuple[Outcome, str, bool]:
        """How it ended, in words too, and whether it came to its end."""
        if ended.how == "stuck":
            where = ended.stacks.partition("\n")[0]
            return "stuck", f"it waits in the kernel and outlived SIGKILL: {where}", False
        if "oom" in self.told:
            return "oom", str(self.told["oom"]["message"])[:MESSAGE_CHARACTERS], False
        if ended.how == "timed_out":
            return (*self._late(), False)
        finished = "end" in self.told or bool(self.workload.command)
        if ended.how == "exited" and ended.exit_code == 0 and finished:
            return "ok", "", True
        if killed and (ended.signal == "SIGKILL" or ended.exit_code):
            return "host_oom", f"the kernel's OOM killer ended {killed} of its processes", False
        if message := _ran_out(f"{self.tail}\n{ended.last_words}"):
            return "oom", message, False
        last = last_line(ended.last_words or self.tail)
        if HOST_OOM.match(last) or "std::bad_alloc" in ended.last_words + self.tail:
            return "oom", last, False
        how = f"ended by {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
        if ended.signal == "SIGKILL" and killed is None:
            how += " (by the kernel's OOM killer or not: no counter of its kills can be read for this group alone)"
        return "crashed", f"{how}: {last}", False

    def _late(self) -> tuple[Outcome, str]:
        """What a trial is that was stopped: slow where it made progress, else hung."""
        limits = self.limits
        ready = self.ready is not None
        if ready and self.heard + limits.silent_s > self.began + limits.seconds:
            stopped = f"stopped at its limit of {limits.seconds:g} s"
            return "ok", f"{stopped} while it made progress: slow, not hung"
        silent_s = min(limits.silent_s if ready else limits.start_s, limits.seconds)
        return "hung", f"no word for {silent_s:g} s, after {len(self.step_s)} steps"

    def _evidence(
        self, ended: Ended, outcome: str, message: str, killed: int | None
    ) -> Iterator[Evidence]:
        used = not_available("it never started", "bytes", "sysfs")
        if self.sampler:
            used = driver_used(self.target.pci)
            most = self.sampler.device_bytes
            used = used if most is None else seen(most, "bytes", used.source)
        says = "the most that the driver counted as used on the card"
        yield Evidence(id="driver_used", reading=used, says=says)
        for one in read_message(message).messages[:1] if outcome == "oom" else ():
            size = not_available("the message names no size", "bytes", "the message")
            if one.requested and one.requested.bytes is not None:
                size = seen(one.requested.bytes, "bytes", "the message")
            says = f"{one.program or 'it'} asked for that much and failed"
            yield Evidence(id="oom_message", reading=size, says=says)
        if killed:
            says = "processes ended by the kernel's OOM killer during the trial"
            count = seen(killed, "count", "oom_kill of the cgroup")
            yield Evidence(id="oom_kill", reading=count, says=says)
        if outcome == "crashed":
            words = ended.last_words
            text = not_available("it wrote nothing", "text", "stderr")
            text = seen(words[-2000:], "text", "stderr") if words else text
            yield Evidence(id="last_words", reading=text, says="the end of its stderr")


def _ran_out(words: str) -> str:
    """The message of a GPU out of memory that a program ended with, or empty."""
    said = read_message(words).messages
    refused = [one for one in said if of_device(one) and one.event.startswith("refused")]
    if not refused:
        return ""
    start = max(0, words.find("out of memory") - 400)
    return (refused[-1].words or words[start:])[:MESSAGE_CHARACTERS]


def _build(torch: str) -> str:
    """cuda, rocm or cpu by the local part of a release, such as 2.14.1+cu130; empty where that
    does not say.
    """
    local = torch.partition("+")[2]
    starts = {"rocm": "rocm", "cpu": "cpu", "cu": "cuda"}
    return next((build for start, build in starts.items() if local.startswith(start)), "")


# What is tried: a built-in workload by its name, in a variant, or the user's own command line.

PROGRAM = "helpers.trials.under_torch.workloads"


class WorkloadError(ValueError):
    """No such workload or parameter: one line with what was seen, what was expected and what to
    do.
    """


@dataclass(frozen=True)
class BuiltIn:
    """A workload of helpers/trials/under_torch.

    ``measure``: whose memory is compared, the process's (``work``) or its session's.

    ``seconds``: of a trial, about. ``ballast_mib`` and ``slow`` (a factor) plant a known effect
    in any of them.
    """

    name: str
    shows: str
    seconds: float
    parameters: Mapping[str, int | float | str]
    measure: str


def _built_in() -> dict[str, BuiltIn]:
    found = json.loads(Path(__file__).with_name("workloads.json").read_text(encoding="utf-8"))
    rows = found["workloads"]
    keeping = found["keeping"]
    for row in rows:
        row["parameters"] |= {**(keeping if row.pop("keeping", False) else {}), **found["planted"]}
    return {row["name"]: BuiltIn(**row) for row in rows}


BUILT_IN = _built_in()
SECONDS = {name: one.seconds for name, one in BUILT_IN.items()}


@dataclass(frozen=True)
class Workload:
    """One thing to run: ``command`` of the user, or a built-in with what differs from its
    ``parameters``.

    ``step`` is a regular expression for the lines of stdout that mark a step; a group in it is
    the step's loss. ``measure``: work or session, as in BuiltIn.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    step: str = ""
    measure: str = "session"

    @property
    def given(self) -> dict[str, Any]:
        """Every parameter of a built-in, with what is changed of it."""
        own = BUILT_IN[self.name].parameters if self.name in BUILT_IN else {}
        return {**own, **self.parameters}

    @property
    def words(self) -> str:
        """The workload in one line."""
        if self.command:
            return shlex.join(self.command)
        changed = (f"{name}={value}" for name, value in sorted(self.parameters.items()))
        return " ".join([self.name, *changed])


def workload(name: str, **parameters: Any) -> Workload:
    """The built-in of that name with these parameters in place of its own. Raises WorkloadError."""
    if name not in BUILT_IN:
        names = ", ".join(BUILT_IN)
        raise WorkloadError(f"workload {name!r}: expected one of {names}, or -- and a command")
    known = BUILT_IN[name]
    for key, value in parameters.items():
        if key not in known.parameters:
            names = ", ".join(known.parameters)
            raise WorkloadError(f"{name}: parameter {key!r} is not known; expected one of {names}")
        own = known.parameters[key]
        if not _fits(value, own):
            raise WorkloadError(f"{name}: {key} is {value!r}; expected something like {own!r}")
    changed = {key: value for key, value in parameters.items() if value != known.parameters[key]}
    return Workload(name, changed, measure=known.measure)


def _fits(value: Any, own: int | float | str) -> bool:
    """Whether a value may stand for one of a parameter's own kind: a text, or a number of 0 or
    more.
    """
    if isinstance(own, str) or isinstance(value, (str, bool)):
        return isinstance(own, str) and isinstance(value, str)
    return value >= 0 and (isinstance(own, float) or isinstance(value, int))


def command(argv: Sequence[str], step: str = "") -> Workload:
    """The user's own command.

    Raises WorkloadError where there is none, or where ``step`` is no regular expression.
    """
    if not argv:
        raise WorkloadError("no command; expected one after --, such as: -- python train.py")
    try:
        re.compile(step)
    except re.error as error:
        such = "expected a regular expression such as 'loss=([0-9.]+)'"
        raise WorkloadError(f"step marker {step!r}: {error}; {such}") from error
    return Workload("command", command=tuple(argv), step=step)


def argv(
    wanted: Workload, python: str, seed: int, target: Target, device_bytes: int | None
) -> list[str]:
    """The command line that runs it. A command of the user runs as it stands."""
    if wanted.command:
        return list(wanted.command)
    pci = "" if target.pci == "cpu" else target.pci
    spec = {"workload": wanted.name, "parameters": wanted.given, "seed": seed}
    spec |= {"device": target.device, "pci": pci, "several": target.several}
    spec |= {"threads": 1, "device_bytes": device_bytes}
    return program(python, PROGRAM, json.dumps(spec))
