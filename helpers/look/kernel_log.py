"""Reads what the kernel logged about GPUs and memory: resets, hangs, faults, refused allocations,
killed processes, sizes at start-up.

The wordings are rows of helpers/look/messages.json, each with its source, for all versions:
"amdgpu: " occurs once, twice or not at all, "[drm]" may be before it, and process names may have
blanks, colons and brackets. A line is cut off at LINE_LIMIT first and every pattern is bounded, so
no text makes the reading slow.
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
"""Characters of one log that are read; a capture keeps at most as many (capture.py)."""
_FOLLOWING_LINES = 16
"""Lines after an event in which the kernel may say more about it; a fault of amdgpu has about ten.
"""
_KNOWN = data("look/kernel_log")
_STORMS = frozenset(_KNOWN["storms"].split())
"""Kinds of events that the kernel may log thousands of times for one cause."""
_LOG_FILES = ("kmsg", "kern.log", "syslog", "messages", "kernel log")
"""The names of files that are a kernel's log, whatever folder they are in."""
# In "process information: process NAME pid N" the name is behind the second "process".
_NAMES_PROCESS = lazy(
    r"(?i)(?:process information: )?process (?P<process>.{0,32}?) ?\bpid (?P<pid>[0-9]{1,9})"
)
_ANON_RSS = lazy(r"total-vm:([0-9]{1,15})kB, anon-rss:([0-9]{1,15})kB")
_KILLED = lazy(r"Killed process ([0-9]{1,9}) ")
_MEMCG = lazy(r"oom-kill:constraint=(\w{1,32}).{0,200}?oom_memcg=([^,]{1,400})")
_PCI = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
_SCALES = {"_kib": KIB, "_mib": MIB, "_gib": GIB}
"""The units of sizes, by the ends of the names of a pattern's groups."""


@dataclass(frozen=True)
class Event:
    """One event that the kernel logged.

    ``when`` is seconds since boot (a number) or a wall clock time (text), as the log has it;
    ``boot`` is 0 for the running boot, -1 for the one before. ``detail`` tells events of one kind
    apart (gpu_reset: begin, mode1, resuming, succeeded, failed; xid: its number; ring_timeout: the
    ring). ``facts`` are numbers and words of the line by their names: sizes, in bytes, end in
    _bytes; a fault's address and status are hexadecimal text. ``pid`` is None if no process is
    named; it is the host's number, also in a container. A storm, many equal events of one process,
    is one event with ``count`` lines, the last at ``until``. ``line`` is the number of its line in
    the captured text, from 1. ``row`` is the id of its row in messages.json.
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
        """What an Xid code means; empty for other kinds of events and for rare codes."""
        if self.kind != "xid":
            return ""
        return xids().get(self.detail, "")


def xids() -> dict[str, str]:
    """The meanings of NVIDIA's most frequent Xid codes (helpers/look/xids.json, with its source)."""
    return dict(data("look/xids")["meaning"])


@lru_cache(1)
def _rules() -> dict[str, Line]:
    """The rows of messages.json for the kernel's log by their ids, the most specific first.

    The groups detail, pid, process and pci of a pattern are fields of an Event; the others are
    facts, of which those named *_kib, *_mib and *_gib become *_bytes.
    """
    return {line.id: line for line in lines(log=True)}


def rule(row: str) -> Line:
    """The row of messages.json with that id. Raises KeyError if none of the kernel's has it."""
    return _rules()[row]


def parse(
    text: str, source: str = "", item: str = "", boot: int = 0
) -> tuple[Event, ...]:
    """The events of one log in its order, at most EVENTS_LIMIT; other lines are ignored. ``source``
    and ``item`` are those of the readings. Never raises.
    """
    log = _Log(source, item, boot)
    begin = _begin(text)
    first_number = 1 + text.count("\n", 0, begin)
    for number, line in enumerate(text[begin:].split("\n"), first_number):
        log.read(number, line[:LINE_LIMIT].rstrip("\r"))
    return tuple(_without_announcements(log.events))


def _begin(text: str) -> int:
    """Where reading begins: at the start, or, for a longer log than any capture keeps, LOG_LIMIT
    before the end, since the last events matter most.
    """
    if len(text) <= LOG_LIMIT:
        return 0
    return text.find("\n", len(text) - LOG_LIMIT) + 1


class _Log:
    """A log that is read line by line.

    ``events`` are those so far; others refer to them by index: ``latest`` is the last one of each
    kind and process, to which the next line of a storm belongs; ``milestone`` the last boot or
    reset, where a storm ends; ``opened`` has by PCI address the events about which the next lines
    may say more, each as (index, number of its line). ``memory_group`` is the control group that
    the kernel named before a kill.
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
        """Read the line with that number."""
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
        index = self._add(event)
        self.opened.pop(event.pci, None)
        has_more_lines = event.kind in ("vm_fault", "ring_timeout", "oom_killer")
        if index >= 0 and has_more_lines:
            self.opened[event.pci] = (index, number)

    def _add(self, event: Event) -> int:
        """Add an event, or count it with the storm to which it belongs. Returns the index of the
        event or of the storm; that of an older equal event, or -1, if EVENTS_LIMIT is reached.
        """
        # The process of a fault is named in a later line only; its address space id is in this one.
        process = (event.pid, event.process, event.facts.get("pasid"))
        key = (event.kind, event.pci, event.detail, process)
        index = self.latest.get(key, -1)
        may_be_storm = event.kind in _STORMS or event.detail.endswith("soft recovered")
        if may_be_storm and index >= self.milestone:
            storm = self.events[index]
            self.events[index] = replace(storm, count=storm.count + 1, until=event.when)
        elif len(self.events) < EVENTS_LIMIT:
            index = len(self.events)
            self.events.append(event)
            self.latest[key] = index
            if event.kind in ("gpu_reset", "vram_lost", "boot"):
                self.milestone = index
        return index

    def _event(
        self, number: int, when: float | str | None, message: str, lower: str
    ) -> Event | None:
        """The event of a message by the first row that matches it, or None. ``lower`` is the
        message in lower case.
        """
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
        """The event of a message that matches a row."""
        groups: dict[str, str] = {}
        for name, value in match.groupdict().items():
            if value is not None:
                groups[name] = value
        pid = _pid(groups.pop("pid", "0"))
        process = groups.pop("process", "").strip()
        addresses = _PCI.findall(message)
        if row.kind == "pcie_aer":
            addresses.reverse()  # the device is behind the port that reports its error
        address = groups.pop("pci", _first(addresses))
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
        unit = "count"
        if isinstance(when, str):
            unit = "text"
        return seen(when, unit, self.source, self.item)

    def _follow(self, number: int, message: str, lower: str) -> None:
        """Add to an open event of the same GPU, or to a kill, what a later line says about it: the
        process, the address and status of a fault, the size of a killed process.
        """
        if not self.opened:
            return
        address = pci_address(_first(_PCI.findall(message)))
        index, opened_at = self.opened.get(address, (-1, 0))
        if index < 0 or number - opened_at > _FOLLOWING_LINES:
            return
        event = self.events[index]
        if event.kind == "oom_killer":
            self.events[index] = _with_killed_bytes(event, message)
            return
        if event.pid is None and " pid " in lower:
            event = _with_process(event, message)
        # The lines of a fault: its address, its status register, the unit (UTCL2) that found it.
        if event.kind == "vm_fault" and re.search("fault|address|utcl2", lower):
            event = _with_fault(event, message)
        self.events[index] = event


def _first(addresses: list[str]) -> str:
    """The first of the addresses, or an empty text."""
    return next(iter(addresses), "")


def _pid(digits: str) -> int | None:
    """A process id; None for 0, which the kernel prints if it does not know the process."""
    pid = int(digits)
    if pid == 0:
        return None
    return pid


def _fact(name: str, value: str) -> tuple[str, int | str]:
    """The name and the value of a fact: a size in bytes, a number or words."""
    if re.fullmatch(r"-?[0-9]{1,20}", value) is None:
        return name, value
    for end, scale in _SCALES.items():
        if name.endswith(end):
            return name[: -len(end)] + "_bytes", int(value) * scale
    return name, int(value)


def _detail(kind: str, detail: str, groups: dict[str, str]) -> str:
    """The detail of an event, from that of its pattern or row, and from other groups, which it
    removes so that they do not become facts.
    """
    if kind in ("gpu_reset", "pcie_aer"):
        # The same word for what drivers and releases print with several.
        detail = detail.lower().replace("failure", "failed")
        detail = detail.replace("correctable", "corrected")
    if kind == "gpu_reset" and "ring" in groups:
        return f"ring {detail}"
    if kind == "ring_timeout" and groups.pop("recovered", ""):
        return f"{detail} soft recovered"
    if kind in ("oom_killer", "oom_constraint"):
        # "Memory cgroup out of memory", "CONSTRAINT_MEMCG" (mm/oom_kill.c).
        if "cg" in detail.lower():
            return "cgroup"
        return "global"
    if kind == "unknown_parameter":
        return f"{groups.pop('module')}.{detail}"
    return detail


def _killed_bytes(message: str) -> dict[str, int]:
    """The sizes of a killed process as facts, if the line has them."""
    match = _ANON_RSS.search(message)
    if not match:
        return {}
    return {
        "total_vm_bytes": int(match[1]) * KIB,
        "anon_rss_bytes": int(match[2]) * KIB,
    }


def _with_killed_bytes(event: Event, message: str) -> Event:
    """A kill with the sizes of the process, if this line has them; older kernels print two lines."""
    match = _KILLED.search(message)
    if not match or int(match[1]) != event.pid or "anon_rss_bytes" in event.facts:
        return event
    return replace(event, facts={**event.facts, **_killed_bytes(message)})


def _with_process(event: Event, message: str) -> Event:
    """An event with the process that this line names."""
    match = _NAMES_PROCESS.search(message)
    if not match:
        return event
    return replace(event, pid=_pid(match["pid"]), process=match["process"].strip())


def _with_fault(event: Event, message: str) -> Event:
    """A fault with the facts of this line, by the patterns of kernel_log.json."""
    facts = dict(event.facts)
    for name, pattern in _KNOWN["of a fault"].items():
        match = re.search(pattern, message, re.IGNORECASE)
        if match and name not in facts:
            facts[name] = match[1]
    return replace(event, facts=facts)


def _without_announcements(events: list[Event]) -> list[Event]:
    """The events without the lines that only announce a kill. The OOM killer prints that it was
    invoked, the constraint with the process that it chose, and at last that it killed that process:
    the last one of these that is there stays.
    """
    kept: list[Event] = []
    killed: set[int | None] = set()
    later_line_is_kept = False
    for event in reversed(events):
        is_announcement = False
        if event.kind == "oom_killer":
            killed.add(event.pid)
            later_line_is_kept = True
        elif event.kind == "oom_constraint":
            is_announcement = event.pid in killed
            later_line_is_kept = True
        elif event.kind == "oom_invoked":
            is_announcement = later_line_is_kept
            later_line_is_kept = False
        if not is_announcement:
            kept.append(event)
    return kept[::-1]


def events(bundle: Bundle) -> tuple[Event, ...]:
    """All events of a bundle's kernel logs, those of the earlier boot first. For each boot the
    first source with lines counts. Empty also if no log could be read, which ``readable`` says.
    """
    return bundle.once("kernel log", lambda: _events(bundle))


def _events(bundle: Bundle) -> tuple[Event, ...]:
    logged: list[Event] = []
    for boot, text in _logs_read(bundle):
        logged += parse(text.text, text.source, text.item, boot)
    return tuple(logged)


def _logs(bundle: Bundle) -> Iterator[tuple[Text, int]]:
    """(text, boot) of every source that is a kernel log, also of those that could not be read; boot
    -1 is the one before the running one.
    """
    for item in bundle.items:
        program, *arguments = item.source.split(" ")
        is_log_file = item.source.rsplit("/", 1)[-1] in _LOG_FILES
        if program == "journalctl" and "-1" in arguments:
            yield bundle.read(item.source), -1
        elif program in ("journalctl", "dmesg") or is_log_file:
            yield bundle.read(item.source), 0


def _logs_read(bundle: Bundle) -> list[tuple[int, Text]]:
    """(boot, text) for each boot with a log, the earlier boot first: its first source with lines."""
    logs: dict[int, Text] = {}
    for text, boot in _logs(bundle):
        if text.ok and text.text.strip():
            logs.setdefault(boot, text)
    return sorted(logs.items(), key=lambda log: log[0])


def not_whole(bundle: Bundle) -> str:
    """A sentence for each log of which only the end was read; empty if all were read whole."""
    sentences = []
    for _, text in _logs_read(bundle):
        end = text.text[_begin(text.text) :]
        if end != text.text:
            read_bytes = len(end.encode("utf-8", "replace"))
            all_bytes = len(text.text.encode("utf-8", "replace"))
            sentences.append(
                f"The kernel log ({text.source}) was read from its end: "
                f"{read_bytes} of {all_bytes} bytes."
            )
    return " ".join(sentences)


def readable(bundle: Bundle) -> Reading:
    """The source from which the running boot's log was read, or why it was read from none: then an
    empty list of events does not mean that nothing happened.
    """
    tried = [text for text, boot in _logs(bundle) if boot == 0]
    if not tried:
        return not_available("not captured", "text", "dmesg")
    best = min(tried, key=_how_bad)
    if not best.ok:
        return best.missing()
    return best.seen(best.source)


def _how_bad(log: Text) -> tuple[bool, bool, bool]:
    """A sort key (False sorts before True): logs with lines, then empty ones; of those that could
    not be read the refused ones first, since a person can do something about them.
    """
    return not log.ok, not log.text.strip(), log.status != "not_allowed"
