"""The one next step of a verdict, with this box's own numbers and names, and the ladder for memory that somebody holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from helpers.judge import table
from helpers.judge.account import account
from helpers.judge.catalogue import Failure
from helpers.judge.evidence import CaseEvidence, Observation, texts, vendor_of
from helpers.judge.posted import processes
from helpers.look.reading import GIB, show_bytes
from helpers.shapes import NextStep, Verdict

POOLS = ("ttm-gtt-cap", "carveout-only", "hsa-pool-cap", "config-ineffective")
HELD = ("external-holder", "stale-holder", "driver-leak")
HOST_SIDES = ("host", "pinned", "shm", "cgroup", "commit")
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
        """What the evidence has of them; the first that gives a name counts."""
        got: dict[str, str] = {}
        rows = [*_of_messages(evidence), *_of_holders(evidence), *_of_observations(found)]
        rows.append(("chip", evidence.fact("gfx")))
        if any(one.name == "two-kinds-of-gpu" for one in found):
            from helpers.judge.obstacles import visible_devices

            lines = (visible_devices(evidence.bundle, text) for _, _, text in texts(evidence))
            rows.append(("visible", next(filter(None, lines), "")))
        for name, words in rows:
            if words:
                got.setdefault(name, words)
        return Names(tuple(got.items()))

    def fill(self, text: str) -> str:
        """The text with its placeholders filled in, without the [parts] whose number or name is not known."""
        given = dict(self.values)
        text = re.sub(
            r"\[([^\[\]]*\{([a-z]+)\}[^\[\]]*)\]", lambda m: m[1] if m[2] in given else "", text
        )
        known = {**UNKNOWN, **given}
        return re.sub(r"\{([a-z]+)\}", lambda match: known.get(match[1], match[0]), text)


def _of_observations(found: Iterable[Observation]) -> Iterator[tuple[str, str]]:
    for one in found:
        words, kind = one.reading.show(), one.name.split("-")[0]
        if kind == "ceiling":
            yield "binding", f"{words} ({one.says.rstrip('.')})"
        if kind == "setting" and "=" in str(one.reading.value):
            yield "setting", str(one.reading.value)
            yield "unset", "unset " + str(one.reading.value).split("=")[0]
        if one.name in ("limit-binds", "limit-refused"):
            yield "limit", words
        if one.name.endswith("-refused") and kind in HOST_SIDES:
            yield "side", f"{kind}: {words}"[:160]


def _of_messages(evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    for m in evidence.messages:
        a = account(m)
        yield "device", "" if m.device is None else str(m.device)
        if m.capacity:
            yield "capacity", m.capacity.text.replace(" ", "")
        if m.free:
            yield "free", f"{m.free.text} were free"
        if m.requested and m.capacity:
            room = (m.free.bytes if m.free else 0) + max(0, a.stranded.bytes if a.stranded else 0)
            lacks = m.requested.bytes - room
            if a.beyond_limit and m.allocated and a.limit:
                lacks = max(lacks, m.allocated.bytes + m.requested.bytes - a.limit.bytes)
            least, most = show_bytes(lacks), show_bytes(m.requested.bytes)
            yield "missing", f"at least {least}" if lacks > 0 else f"less than {most}"
        if m.tokens and m.fits_tokens:
            yield "context", f"{m.tokens} tokens were asked for, {m.fits_tokens} fit"
        elif m.requested and m.cache:
            yield "context", f"{m.requested.text} are needed, {m.cache.text} are there"
        for pid, size in a.others[:1]:
            if pid is not None:
                yield "holder", f"process {pid} with {size.text}"
                yield "pid", str(pid)


def _of_holders(evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    """The process that holds most, as a tool or the captured box lists it; one below 256 MiB is none."""
    rows = [(row.bytes or 0, row.pid, row.name) for row in processes(evidence) if row.pid]
    if evidence.bundle is not None:
        from helpers.look.gpus import gpus  # only a captured box needs every layer's reader

        found = [h for gpu in gpus(evidence.bundle) for h in gpu.holders if h.memory.ok]
        rows += [(h.memory.bytes, h.pid, h.name) for h in found]
    rows = [row for row in rows if row[0] > GIB // 4 or row[0] == 0]
    if rows:
        size, pid, name = max(rows)
        held = f" with {show_bytes(size)}" if size else ""
        name = "".join(sign for sign in name if sign.isprintable())  # no escapes for a terminal
        yield "holder", f"process {pid} {name}{held}".replace("  ", " ")
        yield "pid", str(pid)


def next_step(failure: Failure, names: Names, evidence: CaseEvidence) -> NextStep:
    """The one first choice: the line that removes an obstacle on this very box, else the catalogue's remedy, filled in."""
    bundle = evidence.bundle
    if failure.cause in ("permission", "config-ineffective") and bundle is not None:
        from helpers.judge.obstacles import obstacles

        hides = failure.cause == "config-ineffective"
        for way in obstacles(bundle, vendor_of(evidence.messages)):
            if way.fix and (way.cause == "variable") == hides:
                return NextStep(
                    what=way.says[:1].upper() + way.says[1:],
                    command=way.fix,
                    precondition="read what it changes; it is printed here and never run",
                    blast_radius="the user's access rights, the container's start, or this shell's variables",
                )
    if bundle is not None and failure.cause in POOLS:
        from helpers.judge.ttm_plan import planned_step

        planned = planned_step(bundle, failure.cause)
        if planned is not None:
            return planned
    remedy = failure.remedy
    what, before = names.fill(remedy.what), names.fill(remedy.precondition)
    return NextStep(what, names.fill(remedy.command), before, remedy.harm)


def ladder(verdict: Verdict, evidence: CaseEvidence) -> tuple[NextStep, ...]:
    """The ladder for memory that somebody or nobody holds, mildest first, with preconditions. Empty for other causes.

    The steps are data: ladder.json.
    """
    causes = {verdict.cause}
    if verdict.cause == "cannot-tell":
        causes = {other.cause for other in verdict.alternatives[:1]}
    if not causes & set(HELD):
        return ()
    said = " ".join(text for _, _, text in texts(evidence))[:20_000]
    driver = evidence.bundle.read("/proc/driver/nvidia/version") if evidence.bundle else None
    nvidia = re.search(r"nvidia|cuda", said, re.IGNORECASE) or (driver is not None and driver.ok)
    names, steps = Names.of(evidence, ()), []
    for row in table("ladder"):
        vendor, step = row["vendor"], {key: row[key] for key in row if key != "vendor"}
        if vendor in ("", "NVIDIA" if nvidia else "AMD"):
            steps.append(NextStep(**{**step, "command": names.fill(step["command"])}))
    return tuple(steps)
