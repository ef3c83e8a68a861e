"""Runs one workload once under one preset, in a process of its own, within limits; the record says
how it ended.

The process is spawned, not forked, so that torch first sees the environment of the preset. Settings
of the person's own shell that act on GPU memory are left out of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from helpers.ground import umask
from helpers.ground.child import Ended, Group, ProcessMark, watch
from helpers.look.files import write_atomic
from helpers.settings.presets import Preset
from helpers.settings.table import VARIABLES
from helpers.trials.ending import ending_of, evidence_of
from helpers.trials.interpreter import stated_by_torch, torch_files
from helpers.trials.leftovers import driver_used_bytes, why_not_clean
from helpers.trials.listener import Listener
from helpers.trials.record import TrialError, TrialLimits, TrialRecord, TrialRefused
from helpers.trials.targets import CPU, Target, environment
from helpers.trials.workload import Workload, argv

CHOICE_OF_GPUS = set(
    "CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_DEVICE_ORDER "
    "NVIDIA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL HSA_OVERRIDE_GFX_VERSION".split()
)
"""Variables that say which GPU there is, without which the trial's own choice would mean
another.
"""
DROPPED = {
    row.name for row in VARIABLES.values() if row.read_by not in ("loader", "NCCL")
} - CHOICE_OF_GPUS
"""Settings of the person's own shell that a trial does not get. Those of the loader (LD_PRELOAD and
others) and of NCCL may be needed to run at all.
"""
STACK_CHARACTERS = 60_000
"""The end of the stacks that a record keeps: those of some hundred threads."""
DIGITS_TO_MS = len("20260131235959999")
PROGRAMS = Path(__file__).with_name("under_torch")
INHERITED_UMASK = -1  # subprocess.Popen leaves the umask as it is


def trial(prepared: PreparedTrial, out: Path) -> TrialRecord:
    """Run a trial, and write its record into the folder ``out``.

    An error of the workload is an outcome, not an exception. Raises TrialRefused if this box or its
    torch cannot run it, TrialError if ``out`` cannot be made.
    """
    target = prepared.target
    if target.refused:
        raise TrialRefused(f"GPU {target.pci}: {target.refused}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrialError(
            f"{out}: {error.strerror}; expected a folder to write to"
        ) from error
    record = prepared.run()
    path = out / f"{record.key}.json"
    try:
        write_atomic(path, record.model_dump_json(indent=1))
    except OSError as error:
        advice = "the trial was measured and is not kept; make room and run again"
        why = f"{path}: {error.strerror}; {advice}"
        return record.model_copy(update={"not_kept": why})
    return record


@dataclass(frozen=True)
class PreparedTrial:
    """All inputs of a trial. ``repeat`` tells repeats of the same trial apart."""

    workload: Workload
    preset: Preset
    python: str
    seed: int
    limits: TrialLimits
    repeat: int = 0
    target: Target = CPU

    def digest(self) -> str:
        """The SHA-256 of all inputs: two trials with one digest are the same trial.

        They are the command line with every parameter, the seed and the card; the settings of the
        preset, the limits, the release of torch, and the text of this project's programs.
        """
        origin, _ = torch_files(self.python)
        programs = [
            path.read_text(encoding="utf-8") for path in sorted(PROGRAMS.glob("*.py"))
        ]
        conditions = [
            argv(self.workload, self.python, self.seed, self.target),
            self.preset.name,
            dict(self.preset.environ),
            asdict(self.limits),
            self.repeat,
            stated_by_torch(origin),
            programs,
        ]
        text = json.dumps(conditions, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def run(self) -> TrialRecord:
        """Run it to its end and return its record. Raises TrialRefused."""
        group = Group(self.limits.host_bytes)
        started_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        before = driver_used_bytes(self.target.pci)
        kills_before = group.kills()
        listener = Listener(self.workload, self.limits, self.target)
        mark = ProcessMark()
        try:
            ended = self._watch(listener, group, mark)
        except BaseException:
            # An interrupt, too, must not leave processes or the cgroup behind.
            list(mark.swept())  # kills what it lists
            group.remove()
            raise
        finally:
            listener.stop()
        kills_after = group.kills()
        if "refused" in listener.events:
            group.remove()
            why = listener.events["refused"]["why"]
            raise TrialRefused(f"{self.workload.words}: {why}")
        left_behind = list(mark.swept())
        not_clean = "it is stuck in the kernel"
        if ended.how != "stuck":
            pids: list[int] = []
            if listener.sampler:
                pids = sorted(listener.sampler.pids)
            not_clean = why_not_clean(
                pids, before, self.target.pci, self.limits.clean_s
            )
            if not not_clean:
                not_clean = group.remove()  # why its cgroup cannot be removed, or empty
        killed = None
        if kills_before is not None and kills_after is not None:
            killed = kills_after - kills_before
        return self._record(
            ended,
            listener,
            killed,
            started_at=started_at,
            clean=not_clean,
            left_behind=left_behind,
            notes=list(self._notes(group)),
        )

    def _watch(self, listener: Listener, group: Group, mark: ProcessMark) -> Ended:
        """Start the process in its cgroup, and watch it to its end."""
        own_program = not self.workload.command  # of this project, not the user's
        its_umask = INHERITED_UMASK
        if not own_program:
            # its files belong to the user, with the user's own permissions
            its_umask = umask.users_umask
        # Unbuffered: each line of a user's command is heard as it is printed.
        settings = {**self.preset.environ, "PYTHONUNBUFFERED": "1", **mark.variables}
        return watch(
            argv(self.workload, self.python, self.seed, self.target),
            min(self.limits.start_s, self.limits.seconds),
            on_line=listener.take,
            on_start=listener.start,
            env=environment(self.target, DROPPED, settings, own_program=own_program),
            data_bytes=self.limits.host_bytes or 0,
            group=group.path,
            umask=its_umask,
        )

    def _record(
        self,
        ended: Ended,
        listener: Listener,
        killed: int | None,
        *,
        started_at: str,
        clean: str,
        left_behind: list[str],
        notes: list[str],
    ) -> TrialRecord:
        """The record, by how the process ended and by what the listener heard and sampled.

        ``killed`` is as of ``ending_of``; the others are fields of TrialRecord.
        """
        ending = ending_of(ended, listener, killed)
        figures: dict[str, Any] = {}
        for event in ("ready", "oom", "end"):
            figures |= listener.events.get(event, {})
        torch = str(figures.get("torch", ""))
        peak_rss = figures.get("peak_rss_bytes")
        start_rss = figures.get("start_rss_bytes")
        work_bytes = None
        if peak_rss and start_rss:
            work_bytes = peak_rss - start_rss
        device_bytes = None
        rss_anon_bytes = None
        stacks = ended.stacks
        if listener.sampler is not None:
            device_bytes = listener.sampler.device_bytes
            rss_anon_bytes = listener.sampler.rss_anon_bytes or None  # 0: never sampled
            stacks = "\n".join(filter(None, [listener.sampler.stacks, stacks]))
        # Only these stood still, so that their stacks say where.
        if ending.outcome not in ("hung", "stuck"):
            stacks = ""
        moment = re.sub(r"\D", "", started_at)[:DIGITS_TO_MS]
        return TrialRecord(
            key=f"{self.workload.name}-{self.preset.name}-{self.repeat}-{moment}",
            workload=self.workload.words,
            preset=self.preset.name,
            build=_build(torch),
            outcome=ending.outcome,
            peak_allocated_bytes=figures.get("peak_allocated_bytes"),
            peak_reserved_bytes=figures.get("peak_reserved_bytes"),
            driver_used_bytes=device_bytes,
            rss_anon_bytes=rss_anon_bytes,
            seconds=ended.seconds,
            steps=listener.steps,
            loss=listener.loss,
            message=ending.message,
            evidence=list(evidence_of(listener, ending, killed)),
            given=self.digest(),
            seed=self.seed,
            repeat=self.repeat,
            python=self.python,
            torch=torch,
            device=str(figures.get("gpu") or self.target.device),
            settings=dict(self.preset.environ),
            limits=asdict(self.limits),
            complete=ending.complete,
            exit_code=ended.exit_code,
            signal=ended.signal,
            work_bytes=work_bytes,
            step_s=listener.step_s,
            stacks=stacks[-STACK_CHARACTERS:],
            clean=clean,
            left_behind=left_behind,
            started_at=started_at,
            notes=notes,
        )

    def _notes(self, group: Group) -> Iterator[str]:
        """Lines that a reader of the record must know: limits that do not hold, unknown
        settings.
        """
        if self.limits.host_bytes is not None and not group.path and group.why:
            yield f"host memory is limited for each process, not for all: {group.why}"
        for name in self.preset.unknown:
            yield f"{name}: no table of settings knows it"


def _build(torch: str) -> str:
    """The build of a release of torch, by its local part: 2.14.1+cu130 is cuda, +rocm7.1 rocm, +cpu
    cpu; empty if it says nothing.
    """
    _, _, local = torch.partition("+")
    if local.startswith("cu"):
        return "cuda"
    for build in ("rocm", "cpu"):
        if local.startswith(build):
            return build
    return ""
