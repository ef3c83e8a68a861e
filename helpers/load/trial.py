"""What does one workload do under one preset? Run once, in a process of its own, within limits; the record says how it ended.

The process is started anew (never forked off this one), its environment is made before torch is imported, and the settings of
the person's own shell that act on GPU memory are left out, so that only the preset's act. A finished trial is not run again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from helpers.load.child import LAST_BYTES, Ended, watch
from helpers.load.limits import Group, Limits, Sampler, driver_used, launched, leftovers
from helpers.load.targets import Target
from helpers.load.trial_record import RecordNotKept, TrialError, TrialRecord, TrialRefused, read, trial_key
from helpers.load.workloads import Workload, argv
from helpers.look.files import write_atomic
from helpers.look.messages import of_device, read_message
from helpers.look.reading import Reading, not_available, seen
from helpers.settings.presets import Preset
from helpers.settings.table import VARIABLES
from helpers.shapes import Evidence, Outcome

ROOT = Path(__file__).resolve().parents[2]
CPU = Target()
DROPPED = {row.name for row in VARIABLES.values() if row.by not in ("loader", "NCCL")}
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
           "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION")
MESSAGE_CHARACTERS, STACK_CHARACTERS = 4000, 60_000


def trial(workload: Workload, preset: Preset, *, python: str, seed: int, limits: Limits, out: Path, repeat: int = 0,
          target: Target = CPU) -> TrialRecord:
    """Run it, or read the record of it that ``out`` has. Raises TrialRefused, RecordNotKept, TrialError.

    An error of the workload is an outcome, not an exception. ``repeat`` tells repeats of one trial apart.
    """
    key = trial_key(workload, preset, python, seed, limits, repeat, target)
    path = out / f"{key}.json"
    if path.exists():
        return read(path)
    if target.refused:
        raise TrialRefused(f"GPU {target.pci}: {target.refused}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrialError(f"{out}: {error.strerror}; expected a folder to write to") from error
    record = _Run(workload, preset, python, seed, limits, repeat, target).record(key)
    try:
        write_atomic(path, record.model_dump_json(indent=1))
    except OSError as error:
        raise RecordNotKept(f"{path}: {error.strerror}; the trial was measured and is not kept; make room and run again",
                            record) from error
    return record


def environment(preset: Preset, target: Target, environ: Mapping[str, str]) -> dict[str, str]:
    """The trial's environment: this one without settings that act on memory, the preset's, and the GPU to see."""
    found = {name: value for name, value in environ.items() if name not in DROPPED or name in VISIBLE}
    found |= preset.environ
    if target.visible_variable:
        found[target.visible_variable] = target.visible_value
        if target.visible_variable == "CUDA_VISIBLE_DEVICES":
            found.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    path = os.pathsep.join([str(ROOT), *filter(None, [environ.get("PYTHONPATH")])])
    return {**found, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class _Run:
    """One trial while it runs: what it tells line by line, and until when it may be silent."""

    def __init__(self, workload: Workload, preset: Preset, python: str, seed: int, limits: Limits, repeat: int, target: Target):
        self.workload, self.preset, self.python, self.seed = workload, preset, python, seed
        self.limits, self.repeat, self.target = limits, repeat, target
        self.told: dict[str, dict[str, Any]] = {}
        self.loss: list[float] = []
        self.step_s: list[float] = []
        self.tail = ""
        self.sampler: Sampler | None = None
        self.began = self.heard = time.monotonic()
        self.ready: float | None = None

    def take(self, line: str) -> float | None:
        """A line of its stdout; the seconds that it has from now on."""
        now = time.monotonic()
        event = self._event(line)
        if self.sampler is None and event.get("event") == "pid":
            self.sampler = Sampler(int(event["pid"]), self.target.pci, 0.0)
            start_s = self.limits.start_s if self.limits.silent_s is not None else self.limits.seconds
            self._allow(now, start_s)
            self.sampler.start()
            return self._left(now, start_s)
        self.tail = (self.tail + line + "\n")[-LAST_BYTES:]
        if self.workload.command:
            if not self._marked(line, now):
                return None
        elif event:
            self.told[event["event"]] = event
            if event["event"] == "step":
                self.loss.append(float(event["loss"]))
                self.step_s.append(float(event["seconds"]))
        self.heard = now
        self.ready = self.ready or now
        silent = self.limits.silent_s if self.limits.silent_s is not None else self.limits.seconds
        self._allow(now, silent)
        return self._left(now, silent)

    def _event(self, line: str) -> dict[str, Any]:
        try:
            event = json.loads(line) if line.startswith("{") else {}
        except ValueError:
            return {}
        return event if isinstance(event, dict) and isinstance(event.get("event"), str) else {}

    def _marked(self, line: str, now: float) -> bool:
        marked = re.search(self.workload.step, line) if self.workload.step else None
        if marked:
            if self.ready:
                self.step_s.append(now - self.heard)
            number = next((text for text in marked.groups() if text), "")
            try:
                self.loss.append(float(number))
            except ValueError:
                self.loss.append(float("nan"))
        return marked is not None or not self.workload.step

    def _left(self, now: float, silent_s: float) -> float:
        return max(0.0, min(silent_s, self.began + self.limits.seconds - now))

    def _allow(self, now: float, silent_s: float) -> None:
        # The stacks are taken a little before the end, while the process still waits where it waits.
        if self.sampler is not None:
            left = self._left(now, silent_s)
            self.sampler.stacks, self.sampler.deadline = "", now + left - min(2.0, left / 4)

    def record(self, key: str) -> TrialRecord:
        limits, group = self.limits, Group(self.limits.host_bytes)
        before, kills = driver_used(self.target.pci), group.kills()
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        command = argv(self.workload, self.python, self.seed, self.target, limits.device_bytes)
        try:
            ended = watch(launched(command, limits, group), min(limits.start_s, limits.seconds), on_line=self.take,
                          env=environment(self.preset, self.target, os.environ))
        except BaseException:  # also an interrupt: the group must not stay
            group.remove()
            raise
        finally:
            if self.sampler is not None:
                self.sampler.stop()
            killed = group.kills() - kills
            seen_pids = sorted(self.sampler.pids) if self.sampler else []
        if "refused" in self.told:
            group.remove()
            raise TrialRefused(f"{self.workload.words}: {self.told['refused']['why']}")
        clean = "it is stuck in the kernel"
        if ended.how != "stuck":
            clean = leftovers(seen_pids, before, self.target.pci, limits.clean_s) or group.remove()
        outcome, message, complete = self._outcome(ended, killed)
        told = {**self.told.get("ready", {}), **self.told.get("oom", {}), **self.told.get("end", {})}
        rss, start = told.get("peak_rss_bytes"), told.get("start_rss_bytes")
        sampler = self.sampler
        notes = []
        if limits.host_bytes is not None and not group.path:
            notes.append(f"host memory is limited for each process, not for all: {group.why}")
        notes += [f"{name}: no table of settings knows it" for name in self.preset.unknown]
        if limits.device_bytes and self.workload.command:
            notes.append("the device memory of a command of your own is not limited: set a fraction in the preset")
        overhead = round(time.monotonic() - self.began - told["alive_s"], 3) if "alive_s" in told else None
        stacks = "\n".join(filter(None, [sampler.stacks if sampler else "", ended.stacks]))[-STACK_CHARACTERS:]
        return TrialRecord(
            workload=self.workload.words, preset=self.preset.name, build=_build(str(told.get("torch", ""))), outcome=outcome,
            peak_allocated_bytes=told.get("peak_allocated_bytes"), peak_reserved_bytes=told.get("peak_reserved_bytes"),
            driver_used_bytes=int(sampler.driver.value or 0) if sampler and sampler.driver.ok else None,
            rss_anon_bytes=sampler.rss_anon_bytes if sampler and sampler.rss_anon_bytes else None,
            seconds=ended.seconds, steps=max(len(self.step_s), len(self.loss)), loss=[x for x in self.loss if x == x],
            message=message, evidence=self._evidence(ended, outcome, message, killed), key=key, seed=self.seed,
            repeat=self.repeat, python=self.python, torch=str(told.get("torch", "")),
            device=str(told.get("gpu") or self.target.device),
            settings=dict(self.preset.environ), limits=asdict(limits), complete=complete, exit_code=ended.exit_code,
            signal=ended.signal, work_bytes=rss - start if rss and start else None,
            rss_file_bytes=sampler.rss_file_bytes if sampler and sampler.rss_file_bytes else None, work_s=told.get("work_s"),
            step_s=self.step_s, started_s=round(self.ready - self.began, 3) if self.ready else None,
            stacks=stacks if outcome in ("hung", "stuck") else "", overhead_s=overhead, clean=clean,
            left_pids=list(ended.left_pids), started_at=at, notes=notes)

    def _outcome(self, ended: Ended, killed: int) -> tuple[Outcome, str, bool]:
        """How it ended, in words too, and whether it came to its end."""
        words = f"{self.tail}\n{ended.last_words}"
        last = (ended.last_words.splitlines() or self.tail.splitlines() or ["it said nothing"])[-1][:300]
        if ended.how == "stuck":
            return "stuck", f"it waits in the kernel and outlived SIGKILL: {ended.stacks.partition(chr(10))[0]}", False
        if "oom" in self.told:
            return "oom", str(self.told["oom"]["message"])[:MESSAGE_CHARACTERS], False
        if ended.how == "timed_out":
            if self.limits.silent_s is None:
                return "ok", f"stopped at its limit of {self.limits.seconds:g} s; progress was not watched", False
            allowed = self.limits.silent_s if self.ready else self.limits.start_s
            if self.ready and self.heard + allowed > self.began + self.limits.seconds:
                return "ok", f"stopped at its limit of {self.limits.seconds:g} s while it made progress: slow, not hung", False
            return "hung", f"no word for {min(allowed, self.limits.seconds):g} s, after {len(self.step_s)} steps", False
        finished = "end" in self.told or bool(self.workload.command)
        if ended.how == "exited" and ended.exit_code == 0 and finished:
            return "ok", "", True
        if killed > 0 and (ended.signal == "SIGKILL" or ended.exit_code):
            return "host_oom", f"the kernel's OOM killer ended {killed} of its processes", False
        found = [one for one in read_message(words).messages if of_device(one) and one.event.startswith("refused")]
        if found:
            start = max(0, words.find("out of memory") - 400) if "out of memory" in words else 0
            return "oom", (found[-1].words or words[start:])[:MESSAGE_CHARACTERS], False
        if re.match(r"(MemoryError|numpy.*MemoryError|terminate called .*std::bad_alloc)", last) or "std::bad_alloc" in words:
            return "oom", last, False
        how = f"ended by {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
        return "crashed", f"{how}: {last}", False

    def _evidence(self, ended: Ended, outcome: str, message: str, killed: int) -> list[Evidence]:
        used = self.sampler.driver if self.sampler else not_available("it never started", "bytes", "sysfs")
        found = [Evidence(id="driver_used", reading=used, says="the most that the driver counted as used on the card")]
        if outcome == "oom":
            for one in read_message(message).messages[:1]:
                size = one.requested.bytes if one.requested else None
                reading = seen(size, "bytes", "the message") if size is not None else not_available(
                    "the message names no size", "bytes", "the message")
                says = f"{one.program or 'it'} asked for that much and failed"
                found.append(Evidence(id="oom_message", reading=reading, says=says))
        if killed:
            found.append(Evidence(id="oom_kill", reading=seen(killed, "count", "oom_kill of the kernel"),
                                  says="processes ended by the kernel's OOM killer during the trial"))
        if outcome == "crashed":
            found.append(Evidence(id="last_words", reading=_text(ended.last_words[-2000:]), says="the end of its stderr"))
        return found


def _text(words: str) -> Reading:
    return seen(words, "text", "stderr") if words else not_available("it wrote nothing", "text", "stderr")


def _build(torch: str) -> str:
    local = torch.partition("+")[2]
    return next((build for build, start in (("rocm", "rocm"), ("cpu", "cpu"), ("cuda", "cu")) if local.startswith(start)), "")
