"""What the kernel logged about GPUs and memory: resets, hangs, faults, refused allocations,
kills, sizes at start-up.

The log of this boot and the one before is cut down to what bears on GPUs and memory before it
is kept. journalctl is tried first, because only it has the boot before; then dmesg, then
/dev/kmsg, which needs no program. Without the right to read the log (kernel.dmesg_restrict, or
no membership of systemd-journal or adm) the item says not allowed.

The wordings are rows of helpers/look/messages.json, each with its source, across versions: "amdgpu:
" stands once, twice or not at all, "[drm]" may stand before it, and process names may hold
blanks, colons and brackets. Any line is cut at LINE_LIMIT characters first and every pattern is
bounded, so no text makes the reading slow.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.tables import data
from helpers.ground.units import GIB, KIB, MIB, pci_address
from helpers.look.wordings import Line, lines

from . import files, guard
from .bundle import Bundle, Text

LINE_LIMIT = 2048
EVENTS_LIMIT = 20_000
_FOLLOWING_LINES = 16
LOG_LIMIT = 10 << 20  # of one log, in characters
_KNOWN = data("look/kernel_log")
_LEVEL = re.compile(r"(?:<[0-9]{1,3}>|[a-z]{3,8} {1,3}:[a-z]{3,7} {0,3}: )")
_MONOTONIC = re.compile(r"\[ {0,8}([0-9]{1,10}\.[0-9]{1,9})\](?:\[ {0,6}[TC][0-9]{1,9}\])? ?")
_KMSG = re.compile(r"[0-9]{1,4},[0-9]{1,10},([0-9]{1,17}),[^;]{1,40};")
_WALL = tuple(map(re.compile, _KNOWN["wall clock"]))
_HOST = re.compile(r"(?:[^\s:]{1,64} )?kernel: ?")


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    ``when`` is seconds since boot (a number) or a wall clock time (text), as the log gives it.

    ``detail`` tells kinds apart further (gpu_reset: begin, mode1, resuming, succeeded, failed;
    xid: its number; ring_timeout: the ring). ``facts`` holds numbers and words of the line:
    sizes end in _bytes; a fault's address and status are hex text. A storm of one kind from one
    process is one event with ``count`` lines until ``until``. ``boot`` is 0 for the running
    boot,
    -1 for the one before. ``line`` counts in the captured text, from 1. ``pid`` is None where
      no process is named; it is the
    host's number, also in a container. ``row`` is the rule's id in the table of messages.
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
        return xids().get(self.detail, "") if self.kind == "xid" else ""


def xids() -> dict[str, str]:
    """What NVIDIA's Xid codes mean, those met most (helpers/look/xids.json, with its source)."""
    meaning: dict[str, str] = data("look/xids")["meaning"]
    return meaning


@lru_cache(1)
def _rules() -> dict[str, Line]:
    """The rows of the table of messages that are of the kernel's log, by id, the more telling
    first.

    Groups of a pattern named *_mib, *_gib and *_kib become *_bytes; others than detail, pid,
    process and pci are facts.
    """
    return {line.id: line for line in lines(True)}


def rule(row: str) -> Line:
    """The rule of an event by its ``row``. Raises KeyError for another name."""
    return _rules()[row]


_LOG_FILES = ("kmsg", "kern.log", "syslog", "messages", "kernel log")
_STORMS = frozenset(_KNOWN["storms"].split())
# In "process information: process NAME pid N" the name is behind the second of the two.
_NAMES_PROCESS = re.compile(
    r"(?i)(?:process information: )?process (?P<process>.{0,32}?) ?\bpid (?P<pid>[0-9]{1,9})"
)
_ANON_RSS = re.compile(r"total-vm:([0-9]{1,15})kB, anon-rss:([0-9]{1,15})kB")
_KILLED = re.compile(r"Killed process ([0-9]{1,9}) ")
_MEMCG = re.compile(r"oom-kill:constraint=(\w{1,32}).{0,200}?oom_memcg=([^,]{1,400})")
_PCI = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)


def split_time(line: str) -> tuple[float | str | None, str]:
    """The time of a line and its message: seconds since boot, a wall clock time as text, or
    None where it carries none.

    Takes dmesg in all its forms (plain, -T in any language, -x, --time-format iso, with
    callers), journalctl's short forms with or without a host name, syslog and raw /dev/kmsg.
    Seconds since boot are preferred where both are there.
    """
    level = _LEVEL.match(line)
    rest = line[level.end() :] if level else line
    raw = _KMSG.match(rest)
    if raw:
        return int(raw.group(1)) / 1e6, rest[raw.end() :].strip()
    when: float | str | None = None
    match = next(filter(None, (form.match(rest) for form in _WALL)), None)
    if match:
        when = match.group(1)
        rest = rest[match.end() :]
    for form in (_MONOTONIC, _HOST, _MONOTONIC):
        match = form.match(rest)
        if match:
            rest = rest[match.end() :]
            when = float(match.group(1)) if form is _MONOTONIC else when
    return when, rest.strip()


def parse(text: str, source: str = "", item: str = "", boot: int = 0) -> tuple[Event, ...]:
    """The events of one log text, in its order; EVENTS_LIMIT at most.

    Never raises; lines of other things are passed over.
    """
    found: list[Event] = []
    latest: dict[tuple[object, ...], int] = {}
    opened: dict[str, tuple[int, int]] = {}
    milestone = 0
    memcg = ""
    begin = _begin(text)
    for number, raw in enumerate(text[begin:].split("\n"), 1 + text.count("\n", 0, begin)):
        when, message = split_time(raw[:LINE_LIMIT].rstrip("\r"))
        if not message:
            continue
        lower = message.lower()
        if "oom_memcg=" in lower:
            match = _MEMCG.search(message)
            memcg = match.group(2) if match and match.group(1) == "CONSTRAINT_MEMCG" else ""
        event = _event(message, lower, _when(when, source, item), boot, source, number)
        if event is None:
            if opened:
                _follow(found, opened, message, lower, number)
            continue
        if event.kind == "oom_killer":
            if memcg and event.detail == "cgroup":
                event = replace(event, facts={**event.facts, "cgroup": memcg})
            memcg = ""
        # Which process a fault comes from is said in a later line; its PASID is already here.
        who = (event.pid, event.process, event.facts.get("pasid"))
        key = (event.kind, event.pci, event.detail, who)
        at = latest.get(key, -1)
        if at >= milestone and (event.kind in _STORMS or event.detail.endswith("soft recovered")):
            found[at] = replace(found[at], count=found[at].count + 1, until=event.when)
        elif len(found) < EVENTS_LIMIT:
            at = len(found)
            found.append(event)
            latest[key] = at
            if event.kind in ("gpu_reset", "vram_lost", "boot"):
                milestone = at
        opened.pop(event.pci, None)
        if at >= 0 and event.kind in ("vm_fault", "ring_timeout", "oom_killer"):
            opened[event.pci] = (at, number)
    return tuple(_without_announcements(found))


def _begin(text: str) -> int:
    """Where reading begins: of a log that is longer than any capture keeps, the end is read,
    where what failed stands.
    """
    return text.find("\n", len(text) - LOG_LIMIT) + 1 if len(text) > LOG_LIMIT else 0


def _without_announcements(found: list[Event]) -> list[Event]:
    """Without the lines in which the kernel looks for or names a victim, where the line that it
    was killed follows.
    """
    kept: list[Event] = []
    killed: set[int | None] = set()
    answered = False
    for event in reversed(found):
        if event.kind == "oom_killer":
            killed.add(event.pid)
            answered = True
        elif event.kind == "oom_constraint":
            answered = True
            if event.pid in killed:
                continue
        elif event.kind == "oom_invoked":
            done = answered
            answered = False
            if done:
                continue
        kept.append(event)
    return kept[::-1]


def _when(when: float | str | None, source: str, item: str) -> Reading:
    if when is None:
        return not_available("the line carries no time", "count", source, item)
    return seen(when, "text" if isinstance(when, str) else "count", source, item)


def _event(
    message: str, lower: str, when: Reading, boot: int, source: str, number: int
) -> Event | None:
    hits = ((r, r.pattern.search(message)) for r in _rules().values() if r.literal in lower)
    line, match = next((hit for hit in hits if hit[1]), (None, None))
    if line is None or match is None:
        return None
    kind = line.kind
    detail = line.detail
    got = {name: value for name, value in match.groupdict().items() if value is not None}
    pid = int(got.pop("pid", "0")) or None
    process = got.pop("process", "").strip()
    addresses = [got.pop("pci")] if "pci" in got else _PCI.findall(message)
    pci = pci_address((addresses or [""])[-1 if kind == "pcie_aer" else 0])
    detail = _detail(kind, got.pop("detail", detail), got)
    facts: dict[str, int | str] = {}
    for name, value in got.items():
        scale = {"_kib": KIB, "_mib": MIB, "_gib": GIB}.get(name[-4:], 1)
        fact = name[:-4] + "_bytes" if scale > 1 else name
        facts[fact] = int(value) * scale if re.fullmatch(r"-?[0-9]{1,20}", value) else value
    facts.update(_killed_bytes(message) if kind == "oom_killer" else {})
    head = kind, when, boot, pci, pid, process, detail, facts
    return Event(*head, message, source, number, 1, when, line.id)


def _detail(kind: str, detail: str, got: dict[str, str]) -> str:
    if kind in ("gpu_reset", "pcie_aer"):
        detail = detail.lower().replace("failure", "failed").replace("correctable", "corrected")
    if kind == "gpu_reset" and "ring" in got:
        return f"ring {detail}"
    if kind == "ring_timeout" and got.pop("recovered", ""):
        return detail + " soft recovered"
    if kind == "oom_killer" or kind == "oom_constraint":
        return "cgroup" if "cg" in detail.lower() else "global"
    return f"{got.pop('module')}.{detail}" if kind == "unknown_parameter" else detail


def _killed_bytes(message: str) -> dict[str, int | str]:
    match = _ANON_RSS.search(message)
    if not match:
        return {}
    total, anon = (int(kib) << 10 for kib in match.groups())
    return {"total_vm_bytes": total, "anon_rss_bytes": anon}


def _follow(
    found: list[Event], opened: dict[str, tuple[int, int]], message: str, lower: str, number: int
) -> None:
    """Add to an open event what the lines after it say: the process, the address and status of
    a fault, the size of a kill.
    """
    pci = pci_address((_PCI.findall(message) or [""])[0])
    at, since = opened.get(pci, (-1, 0))
    if at < 0 or number - since > _FOLLOWING_LINES:
        return
    event = found[at]
    if event.kind == "oom_killer":
        match = _KILLED.search(message)
        if match and int(match.group(1)) == event.pid and "anon_rss_bytes" not in event.facts:
            found[at] = replace(event, facts={**event.facts, **_killed_bytes(message)})
        return
    if " pid " in lower and event.pid is None:
        match = _NAMES_PROCESS.search(message)
        if match:
            process = match.group("process").strip()
            event = replace(event, pid=int(match.group("pid")) or None, process=process)
    if event.kind == "vm_fault" and ("fault" in lower or "address" in lower or "utcl2" in lower):
        for name, pattern in _KNOWN["of a fault"].items():
            match = None if name in event.facts else re.search(pattern, message, re.IGNORECASE)
            if match:
                event = replace(event, facts={**event.facts, name: match.group(1)})
    found[at] = event


def _logs(bundle: Bundle) -> Iterator[tuple[Text, int]]:
    """Every source that is a kernel log, read or not, with its boot (-1 is the one before the
    running one).
    """
    for item in bundle.items:
        words = item.source.split() or [""]
        name = item.source.rsplit("/", 1)[-1]
        if words[0] in ("journalctl", "dmesg") or name in _LOG_FILES:
            yield bundle.read(item.source), -1 if words[0] == "journalctl" and "-1" in words else 0


def events(bundle: Bundle) -> tuple[Event, ...]:
    """All that the kernel logged of note, the earlier boot first, from one source a boot: the
    first that has lines.

    Empty also where no log could be read; ``readable`` tells.
    """
    return bundle.once("kernel log", lambda: _events(bundle))


def _chosen(bundle: Bundle) -> list[tuple[int, Text]]:
    chosen: dict[int, Text] = {}
    for text, boot in _logs(bundle):
        if text.ok and text.text.strip():
            chosen.setdefault(boot, text)
    return sorted(chosen.items())


def _events(bundle: Bundle) -> tuple[Event, ...]:
    logs = (parse(text.text, text.source, text.item, boot) for boot, text in _chosen(bundle))
    return tuple(event for log in logs for event in log)


def not_whole(bundle: Bundle) -> str:
    """Which logs were read from their end alone, a sentence each; empty where all were read whole."""
    said = []
    for text in (text for _, text in _chosen(bundle) if _begin(text.text)):
        read, whole = (
            len(one.encode("utf-8", "replace"))
            for one in (text.text[_begin(text.text) :], text.text)
        )
        said.append(
            f"The kernel log ({text.source}) was read from its end: {read} of {whole} bytes."
        )
    return " ".join(said)


def readable(bundle: Bundle) -> Reading:
    """Which source the running boot's log was read from, or why from none, so that no event
    seen does not mean no event.
    """
    tried = [text for text, boot in _logs(bundle) if boot == 0]
    best = sorted(tried, key=lambda t: (not t.ok, not t.text.strip(), t.status != "not_allowed"))
    if not best:
        return not_available("not captured", "text", "dmesg")
    return best[0].seen(best[0].source) if best[0].ok else best[0].missing("")


# -- where the log comes from

LIMIT_S = 15.0
JOURNAL = ("journalctl", "-k", "--no-pager", "--no-hostname", "-o", "short-monotonic", "-b")
_WORDS = [word.encode() for word in _KNOWN["kept"]]
# Priority and facility in one number: 0 to 7 is the kernel; sequence, microseconds.
_RECORD = re.compile(rb"[0-7],[^,;]*,([0-9]{1,17})(?:,[^;]*)?;([^\n]*)")
_REFUSED = re.compile(
    "(?i)insufficient permissions|permission denied|not permitted|not seeing messages from other"
)


PSTORE = (
    "/var/lib/systemd/pstore/*/dmesg*",
    "/var/lib/systemd/pstore/dmesg*",
    "/sys/fs/pstore/dmesg*",
)
"""Where a kernel that died leaves its log (Documentation/ABI/testing/pstore,
systemd-pstore.service(8)).
"""
LOGS = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
LAST_LINES = 20


def last_lines(boot_id: str, since_s: float, root: str = "") -> list[str]:
    """What the kernel of an earlier boot logged last, and before it where that was read; or why
    from nowhere.

    pstore counts where it was written after ``since_s`` (seconds since 1970); the journal is
    asked for that very boot; of a log file it is the boot before the latest.
    """
    refused = []
    for source, log, why in _earlier(boot_id.replace("-", ""), since_s, root):
        if log:
            said = (split_time(line[:LINE_LIMIT]) for line in log[-LAST_LINES:])
            timed = (f"[{when}] {text}" if when else text for when, text in said)
            return [f"from {source}:", *timed]
        refused.append(f"{source}: {why}")
    return [f"not available because {'; '.join(refused)}"]


def _earlier(boot: str, since_s: float, root: str) -> Iterator[tuple[str, list[str], str]]:
    """Each place that may hold an earlier boot's log: its name, the lines, and why there are none."""
    left = [one for pattern in PSTORE for one in files.find(root, pattern)]
    shut = [f"{one.source}: {one.why}" for one in left if one.status == "not_allowed"]
    dumps = [one.source for one in left if one.status == "ok" and _written_s(root, one) > since_s]
    for source in sorted(dumps, key=lambda name: ("Part1\n" not in files.text(root, name), name)):
        yield source, files.text(root, source).splitlines(), "cannot be read"
    yield "pstore", [], "; ".join(shut) or "the kernel left no log there since the run began"
    if not root and re.fullmatch("[0-9a-f]{32}", boot):
        ended = guard.run([*JOURNAL, boot, "-n", str(LAST_LINES)], LIMIT_S)
        said = ended.stdout.decode("utf-8", "replace").splitlines()
        why = ended.why or "".join(ended.stderr.strip().splitlines()[-1:])[:200]
        own = [line for line in said if not line.startswith("-- ")]
        yield "the journal", own, why or "it keeps nothing of that boot"
    for source in LOGS:
        content, _, why = files.read(root, source)
        said = (content or b"").decode("utf-8", "replace").splitlines()
        own = [line for line in said if " kernel: " in line]
        starts = [number for number, line in enumerate(own) if "Linux version " in line]
        why = why or "it holds no line of that boot"
        yield source, own[: starts[-1]] if starts else [], why


def _written_s(root: str, found: files.Found) -> float:
    try:
        return os.stat(root + found.source).st_mtime
    except OSError:
        return 0.0


class Sieve:
    """Keeps the lines that matter out of a stream, ``limit_bytes`` of them: a quarter from its
    start, the rest from its end.

    A line is cut at LINE_LIMIT, so that a line of any length costs no memory.
    """

    def __init__(self, limit_bytes: int):
        self._head_left = limit_bytes // 4
        self._tail_left = limit_bytes - limit_bytes // 4
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._line = bytearray()
        self.lines = self.left_out = 0

    def feed(self, data: bytes) -> None:
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._grow(part)
            self._end()
        self._grow(rest)

    def _grow(self, part: bytes) -> None:
        if len(self._line) < LINE_LIMIT:
            self._line += part[: LINE_LIMIT - len(self._line)]

    def _end(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        # journalctl's own remarks begin with two dashes.
        if not line or line.startswith(b"-- "):
            return
        self.lines += 1
        low = line.lower()
        if not any(word in low for word in _WORDS):
            return
        if not self._tail and len(line) < self._head_left:
            self._head_left -= len(line) + 1
            self._head.append(line)
            return
        self._tail.append(line)
        self._tail_left -= len(line) + 1
        while self._tail_left < 0 and self._tail:
            self._tail_left += len(self._tail.popleft()) + 1
            self.left_out += 1

    def text(self) -> bytes:
        """What was kept, with a line that says where lines were left out."""
        self._end()
        gap = [b"--- %d lines left out ---" % self.left_out] if self.left_out else []
        return b"".join(line + b"\n" for line in [*self._head, *gap, *self._tail])


def collect(limit_bytes: int) -> list[tuple[str, bytes | None, str, str]]:
    """The running kernel's log, ``limit_bytes`` at most: source, text or None, status and why
    of each place that was tried.

    Never raises for what is refused.
    """
    tried = [_command(" ".join((*JOURNAL, boot)), limit_bytes // 2) for boot in ("0", "-1")]
    if not tried[0][1]:
        tried.append(_command("dmesg", limit_bytes // 2))
        if not tried[-1][1]:
            tried.append(_kmsg("/dev/kmsg", limit_bytes // 2))
    return tried


def _command(source: str, limit_bytes: int) -> tuple[str, bytes | None, str, str]:
    sieve = Sieve(limit_bytes)
    ended = guard.run(source.split(), LIMIT_S, feed=sieve.feed)
    if ended.status in ("not_available", "not_allowed"):
        return source, None, ended.status, ended.why
    return _kept(source, sieve, ended.stderr, ended.why if ended.status == "timeout" else "")


def _kept(source: str, sieve: Sieve, words: str, cut: str) -> tuple[str, bytes | None, str, str]:
    kept = sieve.text()
    if sieve.lines == 0:
        # journalctl leaves with 0 and nothing but a hint when it may not read the system's journal.
        status = "not_allowed" if _REFUSED.search(words) else "not_available"
        last = "".join(words.strip().splitlines()[-1:])
        return source, None, status, cut or last[:200] or "no lines"
    left_out = f"{sieve.left_out} lines left out of its middle" if sieve.left_out else ""
    cut = "; ".join(filter(None, (cut, left_out)))
    return source, kept, "truncated" if cut else "ok", cut


def _kmsg(source: str, limit_bytes: int) -> tuple[str, bytes | None, str, str]:
    sieve = Sieve(limit_bytes)
    try:
        for record in kmsg_records(source, LIMIT_S):
            sieve.feed(kmsg_line(record))
    except OSError as error:
        return (source, None, *files.fault(error))
    return _kept(source, sieve, "", "")


def kmsg_records(path: str, limit_s: float) -> Iterator[bytes]:
    """The records of /dev/kmsg, or of a copy of it, for so long at most and without waiting for
    new ones. Raises OSError.

    Source: Documentation/ABI/testing/dev-kmsg.
    """
    until = time.monotonic() + limit_s
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while time.monotonic() < until:
            try:
                data = os.read(log, 1 << 13)  # one record of the device; more of a copy of it
            except BrokenPipeError:
                continue  # overwritten while we read: the next read goes on behind it
            except BlockingIOError:
                return  # the end of the log
            if not data:
                return
            yield from data.split(b"\n")
    finally:
        os.close(log)


def kmsg_line(record: bytes) -> bytes:
    """A record of /dev/kmsg ("6,339,5140900,-;text") as dmesg prints it; empty for one that is
    not the kernel's own.
    """
    kernel = _RECORD.match(record)
    if not kernel:
        return b""
    seconds, micro = divmod(int(kernel.group(1)), 1000000)
    return b"[%5d.%06d] %s\n" % (seconds, micro, kernel.group(2))
