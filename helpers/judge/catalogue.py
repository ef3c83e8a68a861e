"""The catalogue of known failures, read from failures.json: what must be seen, what speaks for and against it, what to do.

To add one, copy an entry of the file: its keys are explained in ``Failure``. A test walks every entry and every name in it. What
to do is filled in with this box's own numbers and names; for memory that somebody holds there is a ladder of steps (ladder.json).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from helpers.judge import form, table
from helpers.judge.evidence import CaseEvidence, Observation, texts, vendor_of
from helpers.judge.owner import POSSIBLE, Account, account
from helpers.judge.posted import processes
from helpers.shapes import CAUSES, Cause, NextStep
from helpers.units import GIB, show_bytes

KINDS = ("contrast", "symptom", "oddity")
BASES = ("plain", "hint")
POOLS = ("ttm-gtt-cap", "carveout-only", "hsa-pool-cap", "config-ineffective")
HOST_SIDES = ("host", "pinned", "shm", "cgroup", "commit")
UNKNOWN = {
    "pid": "PID",
    "device": "N",
    "capacity": "SIZE",
    "unset": "unset NAME",
    "visible": "HIP_VISIBLE_DEVICES=N",
}
"""What stands in a command where the evidence has no such number or name; in a sentence its [part] is left out."""


@dataclass(frozen=True)
class Remedy:
    """What to do: one command with placeholders in braces, what must hold before it, and what it may harm."""

    what: str
    command: str
    precondition: str
    harm: str


@dataclass(frozen=True)
class Failure:
    """One known failure.

    ``kind``: symptom (it is what fails), oddity (something odd that may stand beside another failure), contrast (fails with X,
    works without X). ``needs``: groups of observations, of each group one must be there. ``sufficient``: of these one alone
    makes it likely, since it is an exclusion by arithmetic or the program's own statement of the cause. ``proof``: of these
    one that is a proof makes it confirmed. ``strong`` and ``weak`` support it; ``refuted_by`` ends it where measured,
    ``strong_against`` and ``weak_against`` speak against it. ``base`` hint: even measured it is only a hint. ``decides`` is
    the reading that would decide: its name, what it is, and how it is taken; ``source`` where the mechanism can be read.
    """

    id: str
    cause: Cause
    title: str
    mechanism: str
    needs: tuple[tuple[str, ...], ...]
    decides: tuple[str, str, str]
    remedy: Remedy
    source: str
    kind: str = "symptom"
    base: str = "plain"
    sufficient: tuple[str, ...] = ()
    proof: tuple[str, ...] = ()
    strong: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    refuted_by: tuple[str, ...] = ()
    strong_against: tuple[str, ...] = ()
    weak_against: tuple[str, ...] = ()


@lru_cache(1)
def failures() -> tuple[Failure, ...]:
    """Every entry, in the order of the file, which decides nothing."""
    return tuple(_failure(row, table("failures")) for row in table("failures")["failures"])


def _failure(row: Mapping[str, Any], data: Mapping[str, Any]) -> Failure:
    known = {field.name for field in fields(Failure)}
    got: dict[str, Any] = dict(row)
    odd = sorted(set(got) - known)
    if odd:
        raise ValueError(f"failures.json, {row.get('id')}: unknown key {odd[0]}")
    got["decides"] = (row["decides"], *data["readings"][row["decides"]])
    got["remedy"] = Remedy(**data["remedies"][row["remedy"]])
    groups = data.get("groups", {})
    for key, value in got.items():
        if key == "needs":
            got[key] = tuple(_spread(group, groups) for group in value)
        elif isinstance(value, list):
            got[key] = _spread(value, groups)
    made = Failure(**got)
    if made.cause not in CAUSES or made.kind not in KINDS or made.base not in BASES:
        raise ValueError(f"failures.json, {made.id}: {made.cause}, {made.kind}, {made.base}")
    return made


def _spread(names: Any, groups: Mapping[str, Any]) -> tuple[str, ...]:
    """The names with each group (written in capitals) in its members."""
    return tuple(dict.fromkeys(one for name in names for one in groups.get(name, [name])))


def names_of(evidence: CaseEvidence, found: Iterable[Observation]) -> dict[str, str]:
    """The numbers and names of this box that a remedy may speak of; the first that gives a name counts."""
    got: dict[str, str] = {}
    rows = [*_of_messages(evidence), *_of_holders(evidence), *_of_observations(found)]
    rows.append(("chip", evidence.fact("gfx")))
    rows += [("server", match[0]) for match in form("server").finditer(evidence.error_text)]
    servers = table("diagnosis")["servers"]
    rows += [("server", one.program) for one in evidence.messages if one.program in servers]
    if any(one.name == "two-kinds-of-gpu" for one in found):
        from helpers.judge.box import visible_devices

        lines = (visible_devices(evidence.bundle, text) for _, _, text in texts(evidence))
        rows.append(("visible", next(filter(None, lines), "")))
    for name, words in rows:
        if words:
            got.setdefault(name, words)
    if any(one.name == "expandable-on" for one in found):
        got.pop("preset", None)
    return got


def fill(text: str, names: Mapping[str, str]) -> str:
    """The text with its placeholders filled in, without the [parts] whose number or name is not known."""
    part = r"\[([^\[\]]*\{([a-z]+)\}[^\[\]]*)\]"
    text = re.sub(part, lambda m: m[1] if m[2] in names else "", text)
    known = {**UNKNOWN, **names}
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
            yield (
                "missing",
                f"at least {show_bytes(lacks)} are missing" if lacks > 0 else _beside(a),
            )
            if m.program == "torch" and m.backend == "cuda" and a.fragmentation == POSSIBLE:
                yield "preset", "cuda-expandable"
        if m.tokens and m.fits_tokens:
            yield "context", f"{m.tokens} tokens were asked for, {m.fits_tokens} fit"
        elif m.requested and m.cache:
            yield "context", f"{m.requested.text} are needed, {m.cache.text} are there"
        for pid, size in a.others[:1]:
            if pid is not None:
                yield "holder", f"process {pid} with {size.text}"
                yield "pid", str(pid)


def _beside(a: Account) -> str:
    """A request that what is free and cached would have met, in numbers: what was missing is not known."""
    sizes = (("free", a.message.free), ("cached", a.stranded))
    parts = [f"{size.text} {name}" for name, size in sizes if size and size.bytes > 0]
    asked = a.message.requested
    return f"{asked.text} failed beside {' and '.join(parts)}" if asked and parts else ""


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


def next_step(failure: Failure, names: Mapping[str, str], evidence: CaseEvidence) -> NextStep:
    """The one first choice: the line that removes an obstacle on this very box, else the catalogue's remedy, filled in."""
    bundle = evidence.bundle
    if failure.cause in ("permission", "config-ineffective") and bundle is not None:
        from helpers.judge.box import obstacles

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

        if planned := planned_step(bundle, failure.cause):
            return planned
    remedy = failure.remedy
    what, before = fill(remedy.what, names), fill(remedy.precondition, names)
    return NextStep(what, to_fits(remedy.command, names), before, remedy.harm)


def to_fits(command: str, names: Mapping[str, str]) -> str:
    """A command filled in; that of a server's failure ends in what would have fitted."""
    ends = "" if "helpers fits" in command else table("diagnosis")["says"]["fits"]
    return fill(command + ends, names)
