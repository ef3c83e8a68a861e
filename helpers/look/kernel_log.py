"""What the kernel logged about GPUs and memory: resets, hangs, faults, refused allocations,
kills, sizes at start-up.

The wordings are rows of helpers/look/messages.json, each with its source, across versions: "amdgpu:
" stands once, twice or not at all, "[drm]" may stand before it, and process names may hold
blanks, colons and brackets. Any line is cut at LINE_LIMIT characters first and every pattern is
bounded, so no text makes the reading slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.tables import data, lazy
from helpers.ground.units import GIB, KIB, MIB, pci_address
from helpers.look.bundle import Bundle, Text
from helpers.look.kernel_line import LINE_LIMIT, split_time
from helpers.look.wordings import Line, lines

EVENTS_LIMIT = 20_000
LOG_LIMIT = 10 << 20
"""Characters of one log."""
_FOLLOWING_LINES = 16
_KNOWN = data("look/kernel_log")
_STORMS = frozenset(_KNOWN["storms"].split())
_LOG_FILES = ("kmsg", "kern.log", "syslog", "messages", "kernel log")
# In "process information: process NAME pid N" the name is behind the second of the two.
_NAMES_PROCESS = lazy(
    r"(?i)(?:process information: )?process (?P<process>.{0,32}?) ?\bpid (?P<pid>[0-9]{1,9})"
)
_ANON_RSS = lazy(r"total-vm:([0-9]{1,15})kB, anon-rss:([0-9]{1,15})kB")
_KILLED = lazy(r"Killed process ([0-9]{1,9}) ")
_MEMCG = lazy(r"oom-kill:constraint=(\w{1,32}).{0,200}?oom_memcg=([^,]{1,400})")
_PCI = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
_SCALES = {"_kib": KIB, "_mib": MIB, "_gib": GIB}


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    ``when`` is seconds since boot (a number) or a wall clock time (text), as the log gives it;
    ``boot`` is 0 for the running boot, -1 for the one before. ``detail`` tells kinds apart further
    (gpu_reset: begin, mode1, resuming, succeeded, failed; xid: its number; ring_timeout: the
    ring). ``facts`` holds numbers and words of the line: sizes end in _bytes; a fault's address
    and status are hex text. A storm of one kind from one process is one event with ``count`` lines
    until ``until``. ``line`` counts in the captured text, from 1. ``pid`` is None where no process
    is named; it is the host's number, also in a container. ``row`` is the rule's id in the table
    of messages.
    """

    kind: str
    when: Reading
    boot: int
    pci: str
    pid: int | None
    process: str
    detail: str
    facts: dict[str, int | str]
    text: str
    source: str
    line: int
    count: int
    until: Reading
    row: str = ""

    @property
    def meaning(self) -> str:
        """What an Xid number stands for; empty for other kinds and rarer numbers."""
        if self.kind != "xid":
            return ""
        return xids().get(self.detail, "")


def xids() -> dict[str, str]:
    """What NVIDIA's Xid codes mean, those met most (helpers/look/xids.json, with its source)."""
    return dict(data("look/xids")["meaning"])


@lru_cache(1)
def _rules() -> dict[str, Line]:
    """The rows of the table of messages that are of the kernel's log, by id, the more telling
    first.

    Groups of a pattern named *_mib, *_gib and *_kib become *_bytes; others than detail, pid,
    process and pci are facts.
    """
    return {line.id: line for line in lines(log=True)}


def rule(row: str) -> Line:
    """The rule of an event by its ``row``. Raises KeyError for another name."""
    return _rules()[row]


def parse(
    text: str, source: str = "", item: str = "", boot: int = 0
) -> tuple[Event, ...]:
    """The events of one log text, in its order; EVENTS_LIMIT at most.

    Never raises; lines of other things are passed over.
    """
    log = _Log(source, item, boot)
    begin = _begin(text)
    first = 1 + text.count("\n", 0, begin)
    for number, line in enumerate(text[begin:].split("\n"), first):
        log.read(number, line[:LINE_LIMIT].rstrip("\r"))
    return tuple(_without_announcements(log.events))


def _begin(text: str) -> int:
    """Where reading begins: of a log that is longer than any capture keeps, the end is read,
    where what failed stands.
    """
    if len(text) <= LOG_LIMIT:
        return 0
    return text.find("\n", len(text) - LOG_LIMIT) + 1


class _Log:
    """A log, read line by line.

    ``latest`` is the place among ``events`` of the latest one of each kind, by which a storm is
    known; a storm ends at ``milestone``, the place of the last boot or reset. ``opened`` are the
    events of which the next lines may say more, by PCI address: place and line. ``memory_group``
    is the control group that the kernel named before a kill.
    """

    def __init__(self, source: str, item: str, boot: int):
        self.source = source
        self.item = item
        self.boot = boot
        self.events: list[Event] = []
        self.latest: dict[tuple[object, ...], int] = {}
        self.opened: dict[str, tuple[int, int]] = {}
        self.milestone = 0
        self.memory_group = ""

    def read(self, number: int, line: str) -> None:
        when, message = split_time(line)
        if not message:
            return
        lower = message.lower()
        if "oom_memcg=" in lower:
            self.memory_group = ""
            match = _MEMCG.search(message)
            if match and match[1] == "CONSTRAINT_MEMCG":
                self.memory_group = match[2]
        event = self._event(number, when, message, lower)
        if event is None:
            self._follow(number, message, lower)
            return
        if event.kind == "oom_killer":
            if self.memory_group and event.detail == "cgroup":
                event = replace(
                    event, facts={**event.facts, "cgroup": self.memory_group}
                )
            self.memory_group = ""
        at = self._add(event)
        self.opened.pop(event.pci, None)
        if at >= 0 and event.kind in ("vm_fault", "ring_timeout", "oom_killer"):
            self.opened[event.pci] = (at, number)

    def _add(self, event: Event) -> int:
        """Adds an event, or counts it with the storm that it belongs to; its place, or -1."""
        # Which process a fault comes from is said in a later line; its PASID is already here.
        who = (event.pid, event.process, event.facts.get("pasid"))
        key = (event.kind, event.pci, event.detail, who)
        at = self.latest.get(key, -1)
        in_storm = event.kind in _STORMS or event.detail.endswith("soft recovered")
        if in_storm and at >= self.milestone:
            storm = self.events[at]
            self.events[at] = replace(storm, count=storm.count + 1, until=event.when)
        elif len(self.events) < EVENTS_LIMIT:
            at = len(self.events)
            self.events.append(event)
            self.latest[key] = at
            if event.kind in ("gpu_reset", "vram_lost", "boot"):
                self.milestone = at
        return at

    def _event(
        self, number: int, when: float | str | None, message: str, lower: str
    ) -> Event | None:
        for row in _rules().values():
            if row.literal not in lower:
                continue
            match = row.pattern.search(message)
            if match:
                return self._of_row(row, match, self._time(when), message, number)
        return None

    def _of_row(
        self, row: Line, match: re.Match[str], when: Reading, message: str, number: int
    ) -> Event:
        groups = {
            name: value
            for name, value in match.groupdict().items()
            if value is not None
        }
        pid = int(groups.pop("pid", "0")) or None
        process = groups.pop("process", "").strip()
        addresses = _PCI.findall(message)
        if row.kind == "pcie_aer":
            addresses.reverse()  # first the port that reports it, then the device
        address = groups.pop("pci", "".join(addresses[:1]))
        detail = _detail(row.kind, groups.pop("detail", row.detail), groups)
        facts = dict(_fact(name, value) for name, value in groups.items())
        if row.kind == "oom_killer":
            facts.update(_killed_bytes(message))
        return Event(
            kind=row.kind,
            when=when,
            boot=self.boot,
            pci=pci_address(address),
            pid=pid,
            process=process,
            detail=detail,
            facts=facts,
            text=message,
            source=self.source,
            line=number,
            count=1,
            until=when,
            row=row.id,
        )

    def _time(self, when: float | str | None) -> Reading:
        if when is None:
            return not_available(
                "the line carries no time", "count", self.source, self.item
            )
        unit = "text" if isinstance(when, str) else "count"
        return seen(when, unit, self.source, self.item)

    def _follow(self, number: int, message: str, lower: str) -> None:
        """Add to an open event what the lines after it say: the process, the address and status
        of a fault, the size of a kill.
        """
        if not self.opened:
            return
        address = pci_address("".join(_PCI.findall(message)[:1]))
        at, since = self.opened.get(address, (-1, 0))
        if at < 0 or number - since > _FOLLOWING_LINES:
            return
        event = self.events[at]
        if event.kind == "oom_killer":
            self.events[at] = _with_killed_bytes(event, message)
            return
        if event.pid is None and " pid " in lower:
            event = _with_process(event, message)
        if event.kind == "vm_fault" and re.search("fault|address|utcl2", lower):
            event = _with_fault(event, message)
        self.events[at] = event


def _fact(name: str, value: str) -> tuple[str, int | str]:
    """A fact of a line: a size in bytes, a number or words."""
    if re.fullmatch(r"-?[0-9]{1,20}", value) is None:
        return name, value
    scale = _SCALES.get(name[-4:])
    if scale is None:
        return name, int(value)
    return name[:-4] + "_bytes", int(value) * scale


def _detail(kind: str, detail: str, groups: dict[str, str]) -> str:
    """What tells events of one kind apart; what is popped from ``groups`` becomes no fact."""
    if kind in ("gpu_reset", "pcie_aer"):
        detail = (
            detail.lower()
            .replace("failure", "failed")
            .replace("correctable", "corrected")
        )
    if kind == "gpu_reset" and "ring" in groups:
        return f"ring {detail}"
    if kind == "ring_timeout" and groups.pop("recovered", ""):
        return f"{detail} soft recovered"
    if kind in ("oom_killer", "oom_constraint"):
        return "cgroup" if "cg" in detail.lower() else "global"
    if kind == "unknown_parameter":
        return f"{groups.pop('module')}.{detail}"
    return detail


def _killed_bytes(message: str) -> dict[str, int]:
    match = _ANON_RSS.search(message)
    if not match:
        return {}
    return {
        "total_vm_bytes": int(match[1]) * KIB,
        "anon_rss_bytes": int(match[2]) * KIB,
    }


def _with_killed_bytes(event: Event, message: str) -> Event:
    match = _KILLED.search(message)
    if not match or int(match[1]) != event.pid or "anon_rss_bytes" in event.facts:
        return event
    return replace(event, facts={**event.facts, **_killed_bytes(message)})


def _with_process(event: Event, message: str) -> Event:
    match = _NAMES_PROCESS.search(message)
    if not match:
        return event
    return replace(
        event, pid=int(match["pid"]) or None, process=match["process"].strip()
    )


def _with_fault(event: Event, message: str) -> Event:
    facts = dict(event.facts)
    for name, pattern in _KNOWN["of a fault"].items():
        match = re.search(pattern, message, re.IGNORECASE)
        if match and name not in facts:
            facts[name] = match[1]
    return replace(event, facts=facts)


def _without_announcements(events: list[Event]) -> list[Event]:
    """Without the lines in which the kernel looks for or names a victim, where the line that it
    was killed follows.
    """
    kept: list[Event] = []
    killed: set[int | None] = set()
    answered = False
    for event in reversed(events):
        is_announcement = False
        if event.kind == "oom_killer":
            killed.add(event.pid)
            answered = True
        elif event.kind == "oom_constraint":
            is_announcement = event.pid in killed
            answered = True
        elif event.kind == "oom_invoked":
            is_announcement = answered
            answered = False
        if not is_announcement:
            kept.append(event)
    return kept[::-1]


def events(bundle: Bundle) -> tuple[Event, ...]:
    """All that the kernel logged of note, the earlier boot first, from one source a boot: the
    first that has lines.

    Empty also where no log could be read; ``readable`` tells.
    """
    return bundle.once("kernel log", lambda: _events(bundle))


def _events(bundle: Bundle) -> tuple[Event, ...]:
    logged: list[Event] = []
    for boot, text in _logs_read(bundle):
        logged += parse(text.text, text.source, text.item, boot)
    return tuple(logged)


def _logs(bundle: Bundle) -> Iterator[tuple[Text, int]]:
    """Every source that is a kernel log, read or not, with its boot (-1 is the one before the
    running one).
    """
    for item in bundle.items:
        program, *arguments = item.source.split(" ")
        is_file_of_it = item.source.rsplit("/", 1)[-1] in _LOG_FILES
        if program == "journalctl" and "-1" in arguments:
            yield bundle.read(item.source), -1
        elif program in ("journalctl", "dmesg") or is_file_of_it:
            yield bundle.read(item.source), 0


def _logs_read(bundle: Bundle) -> list[tuple[int, Text]]:
    """The log of each boot, the earlier first: the first source that has lines."""
    logs: dict[int, Text] = {}
    for text, boot in _logs(bundle):
        if text.ok and text.text.strip():
            logs.setdefault(boot, text)
    return sorted(logs.items(), key=lambda log: log[0])


def not_whole(bundle: Bundle) -> str:
    """Which logs were read from their end alone, a sentence each; "" where all were read whole."""
    sentences = []
    for _, text in _logs_read(bundle):
        end = text.text[_begin(text.text) :]
        if end != text.text:
            read = len(end.encode("utf-8", "replace"))
            everything = len(text.text.encode("utf-8", "replace"))
            sentences.append(
                f"The kernel log ({text.source}) was read from its end: "
                f"{read} of {everything} bytes."
            )
    return " ".join(sentences)


def readable(bundle: Bundle) -> Reading:
    """Which source the running boot's log was read from, or why from none, so that no event
    seen does not mean no event.
    """
    tried = [text for text, boot in _logs(bundle) if boot == 0]
    if not tried:
        return not_available("not captured", "text", "dmesg")
    best = min(
        tried,
        key=lambda text: (
            not text.ok,
            not text.text.strip(),
            text.status != "not_allowed",
        ),
    )
    if not best.ok:
        return best.missing()
    return best.seen(best.source)
