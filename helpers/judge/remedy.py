"""The one next step of a verdict, with this box's own numbers and names, and the ladder for memory that somebody holds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.judge.account import account
from helpers.judge.catalogue import Failure
from helpers.judge.evidence import CaseEvidence, Observation, texts, vendor_of
from helpers.look.reading import GIB, show_bytes
from helpers.shapes import NextStep, Verdict

POOLS = ("ttm-gtt-cap", "carveout-only", "hsa-pool-cap", "config-ineffective")
HELD = ("external-holder", "stale-holder", "driver-leak")
UNKNOWN = {
    "pid": "PID", "device": "N", "capacity": "SIZE", "unset": "unset NAME", "visible": "HIP_VISIBLE_DEVICES=N",
}  # fmt: skip
"""What stands in a command where the evidence has no such number or name; in a sentence its [part] is left out."""


@dataclass(frozen=True)
class Names:
    """The numbers and names of this box that a remedy may speak of."""

    values: tuple[tuple[str, str], ...]

    @staticmethod
    def of(evidence: CaseEvidence, found: Iterable[Observation]) -> Names:
        """What the evidence has of them."""
        got: dict[str, str] = {}
        _of_messages(evidence, got)
        _of_holders(evidence, got)
        for one in found:
            if one.name.startswith("ceiling-"):
                got.setdefault("binding", f"{one.reading.show()} ({one.says.rstrip('.')})")
            if one.name.startswith("setting-") and "=" in str(one.reading.value):
                got.setdefault("setting", str(one.reading.value))
                got.setdefault("unset", "unset " + str(one.reading.value).split("=")[0])
            if one.name in ("limit-binds", "limit-refused"):
                got.setdefault("limit", one.reading.show())
            if one.name.endswith("-refused") and one.name.split("-")[0] in (
                "host",
                "pinned",
                "shm",
                "cgroup",
                "commit",
            ):
                got.setdefault("side", f"{one.name.split('-')[0]}: {one.reading.show()}"[:160])
        if gfx := evidence.fact("gfx"):
            got["chip"] = gfx
        if any(one.name == "two-kinds-of-gpu" for one in found):
            got.update(_visible(evidence))
        return Names(tuple(got.items()))

    def fill(self, text: str) -> str:
        """The text with its placeholders filled in, without the [parts] whose number or name is not known."""
        given = dict(self.values)
        text = re.sub(
            r"\[([^\[\]]*\{([a-z]+)\}[^\[\]]*)\]", lambda m: m[1] if m[2] in given else "", text
        )
        known = {**UNKNOWN, **given}
        return re.sub(r"\{([a-z]+)\}", lambda match: known.get(match[1], match[0]), text)


def _visible(evidence: CaseEvidence) -> dict[str, str]:
    """The line that leaves a program the card, by the list of devices that was posted or captured."""
    from helpers.judge.obstacles import device_advice

    for _, _, text in texts(evidence):
        advice = device_advice(evidence.bundle, text)
        if advice is not None:
            return {"visible": advice.command}
    return {}


def _of_messages(evidence: CaseEvidence, got: dict[str, str]) -> None:
    for message in evidence.messages:
        if message.device is not None:
            got.setdefault("device", str(message.device))
        if message.capacity:
            got.setdefault("capacity", message.capacity.text.replace(" ", ""))
        if message.free:
            got.setdefault("free", f"{message.free.text} were free")
        if message.requested and message.capacity:
            a = account(message)
            room = (message.free.bytes if message.free else 0) + (
                max(0, a.stranded.bytes) if a.stranded else 0
            )
            lacks = message.requested.bytes - room
            if a.beyond_limit and message.allocated and a.limit:
                lacks = max(
                    lacks, message.allocated.bytes + message.requested.bytes - a.limit.bytes
                )
            if lacks > 0:
                got.setdefault("missing", f"at least {show_bytes(lacks)}")
            else:
                got.setdefault("missing", f"less than {show_bytes(message.requested.bytes)}")
        if message.tokens and message.fits_tokens:
            got.setdefault(
                "context", f"{message.tokens} tokens were asked for, {message.fits_tokens} fit"
            )
        elif message.requested and message.cache:
            got.setdefault(
                "context", f"{message.requested.text} are needed, {message.cache.text} are there"
            )
        for pid, size in account(message).others[:1]:
            if pid is not None:
                got.setdefault("holder", f"process {pid} with {size.text}")
                got.setdefault("pid", str(pid))


def _of_holders(evidence: CaseEvidence, got: dict[str, str]) -> None:
    from helpers.judge.posted import processes

    rows = [(row.bytes or 0, row.pid, row.name) for row in processes(evidence) if row.pid]
    if evidence.bundle is not None:
        from helpers.look.gpus import gpus

        for gpu in gpus(evidence.bundle):
            rows += [(int(h.memory.value or 0), h.pid, h.name) for h in gpu.holders if h.memory.ok]
    rows = [row for row in rows if row[0] > GIB // 4 or row[0] == 0]
    if rows:
        size, pid, name = max(rows)
        held = f" with {show_bytes(size)}" if size else ""
        name = "".join(sign for sign in name if sign.isprintable())  # no escapes for a terminal
        got.setdefault("holder", f"process {pid} {name}{held}".replace("  ", " "))
        got.setdefault("pid", str(pid))


def next_step(failure: Failure, names: Names, evidence: CaseEvidence) -> NextStep:
    """The one first choice: the line that removes an obstacle on this very box, else the catalogue's remedy, filled in."""
    if failure.cause in ("permission", "config-ineffective") and evidence.bundle is not None:
        from helpers.judge.obstacles import obstacles

        hides = failure.cause == "config-ineffective"
        for way in obstacles(evidence.bundle, vendor_of(evidence.messages)):
            if way.fix and (way.cause == "variable") == hides:
                return NextStep(
                    what=way.says[:1].upper() + way.says[1:],
                    command=way.fix,
                    precondition="read what it changes; it is printed here and never run",
                    blast_radius="the user's access rights, the container's start, or this shell's variables",
                )
    if evidence.bundle is not None and failure.cause in POOLS:
        from helpers.judge.ttm_plan import planned_step

        planned = planned_step(evidence.bundle, failure.cause)
        if planned is not None:
            return planned
    remedy = failure.remedy
    return NextStep(
        what=names.fill(remedy.what),
        command=names.fill(remedy.command),
        precondition=names.fill(remedy.precondition),
        blast_radius=remedy.harm,
    )


def ladder(verdict: Verdict, evidence: CaseEvidence) -> tuple[NextStep, ...]:
    """The ladder for memory that somebody or nobody holds, mildest first, with preconditions. Empty for other causes."""
    open_causes = (
        {other.cause for other in verdict.alternatives[:1]}
        if verdict.cause == "cannot-tell"
        else set()
    )
    if verdict.cause not in HELD and not open_causes & set(HELD):
        return ()
    said = " ".join(text for _, _, text in texts(evidence))[:20_000]
    nvidia = bool(re.search(r"nvidia|cuda", said, re.IGNORECASE)) or (
        evidence.bundle is not None and evidence.bundle.read("/proc/driver/nvidia/version").ok
    )
    names = Names.of(evidence, ())
    steps = [
        _step("Stop the holder: SIGTERM, then give it 60 s", "kill -TERM {pid}",
              "its PID as the host sees it; it is yours",
              "its unsaved work; SIGKILL inside a GPU call can leave the memory behind"),
        _step("Restart the container the holder lives in, with an init that reaps",
              "docker restart CONTAINER   (later: docker run --init ...)",
              "the holder is in that container", "everything in the container"),
    ]  # fmt: skip
    steps += _NVIDIA if nvidia else _AMD
    steps.append(_step("Reboot; after a firmware wedge switch the power off", "sudo reboot",
                       "the steps above did not help", "the whole machine"))  # fmt: skip
    return tuple(
        NextStep(
            what=s.what,
            command=names.fill(s.command),
            precondition=s.precondition,
            blast_radius=s.blast_radius,
        )
        for s in steps
    )


def _step(what: str, command: str, precondition: str, harm: str) -> NextStep:
    return NextStep(what=what, command=command, precondition=precondition, blast_radius=harm)


_NVIDIA: list[NextStep] = [
    _step("Reset the GPU", "sudo nvidia-smi --gpu-reset -i {device}",
          "root, no process on it, not the display's GPU, no NVLink peers in use",
          "every context on the card; it may say 'not supported' on consumer cards"),
]  # fmt: skip
_AMD: list[NextStep] = [
    _step("Reset the GPU", "sudo rocm-smi --gpureset -d {device}",
          "root and /sys/kernel/debug/dri/N/amdgpu_gpu_recover; in a container, without debugfs or under lockdown it says "
          "'not supported on the given system', whatever the chip",
          "every context on the card, its desktop; VRAM is lost; a power cycle may follow"),
    _step("Unload and load the driver", "sudo modprobe -r amdgpu && sudo modprobe amdgpu",
          "headless, nothing has the device open",
          "the display; it has crashed machines, and does not clear dangling dma-buf references"),
]  # fmt: skip
