"""What the kernel logged about GPUs and memory: resets, hangs, faults, refused allocations, kills, sizes at start-up.

The wording is that of the drivers' sources (amdgpu_device.c, amdgpu_job.c, amdgpu_cs.c, amdgpu_vm.c, amdgpu_ttm.c, gmc_v*.c,
kfd_device_queue_manager*.c; mm/oom_kill.c; drivers/pci/pcie/aer.c; kernel/params.c), across versions: "amdgpu: " stands once,
twice or not at all, "[drm]" may stand before it, and process names may hold blanks, colons and brackets. Any line is cut at
LINE_LIMIT characters first and every pattern is bounded, so no text makes the reading slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .bundle import Bundle, Text
from .kernel_tap import collect as collect  # capture knows readers, not how their sources are reached
from .kernel_tap import split_time
from .pci import address
from .reading import MIB, Reading, not_allowed, not_available, seen

FILES: tuple[str, ...] = ()
COMMANDS: tuple[tuple[str, ...], ...] = ()
LINE_LIMIT = 2048
EVENTS_LIMIT = 20_000
_FOLLOWING_LINES = 16
XIDS = {
    13: "graphics engine exception: most often the program's own fault", 31: "GPU memory page fault: an illegal address",
    43: "GPU stopped processing: the program's own fault", 45: "channels removed: clean-up after an earlier error or a kill",
    48: "double-bit ECC error", 61: "internal micro-controller warning", 62: "internal micro-controller halt",
    63: "memory page retired or row remapped", 64: "page retirement or row remapping failed",
    69: "graphics engine class error", 74: "NVLink error", 79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors", 94: "contained ECC error: only the named program is hit",
    95: "uncontained ECC error: every program on the GPU is hit", 119: "GSP firmware did not answer in time",
    120: "GSP firmware error",
}
"""NVIDIA's Xid codes (docs.nvidia.com/deploy/xid-errors), those met most."""


@dataclass(frozen=True)
class Event:
    """One thing that happened. ``when`` is seconds since boot (a number) or a wall clock time (text), as the log gives it.

    ``detail`` tells kinds apart further (gpu_reset: begin, mode1, resuming, succeeded, failed; xid: its number; ring_timeout:
    the ring). ``facts`` holds numbers and words of the line: sizes end in _bytes; a fault's address and status are hex text.
    A storm of one kind from one process is one event with ``count`` lines until ``until``. ``boot`` is 0 for the running boot,
    -1 for the one before. ``line`` counts in the captured text, from 1. ``pid`` is None where no process is named; it is the
    host's number, also in a container.
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

    @property
    def meaning(self) -> str:
        """What an Xid number stands for; empty for other kinds and rarer numbers."""
        return XIDS.get(int(self.detail), "") if self.kind == "xid" and self.detail.isdigit() else ""


def _rule(kind: str, literal: str, pattern: str, detail: str = "") -> tuple[str, str, re.Pattern[str], str]:
    return kind, literal, re.compile(pattern, re.IGNORECASE), detail


_FOR_PROCESS = r"(?:,? for process (?P<process>.{0,32}?) ?pid (?P<pid>[0-9]{1,9}))?"
# Kind, a word that must be in the line (lower case), pattern, detail where the pattern has no group of that name.
# Groups named *_mib and *_gib become *_bytes; other groups than detail, pid, process and pci become facts.
_RULES = (
    _rule("gpu_reset", "reset begin", r"GPU reset begin", "begin"),
    _rule("gpu_reset", "reset succeeded", r"GPU reset succeeded, trying to resume", "resuming"),
    _rule("gpu_reset", "reset(", r"GPU reset\([0-9]{1,9}\) (?P<detail>succeeded|failed)"),
    _rule("gpu_reset", "reset end", r"GPU reset end with ret = (?P<error>-?[1-9][0-9]{0,5})", "failed"),
    _rule("gpu_reset", "recovery failed", r"GPU recovery failed: (?P<error>-?[0-9]{1,6})", "failed"),
    _rule("gpu_reset", "recovery disabled", r"GPU recovery disabled", "disabled"),
    _rule("gpu_reset", " reset", r"\b(?P<detail>MODE1|MODE2|BACO) reset"),
    _rule("gpu_reset", "ring ", r"\bRing (?P<ring>\S{1,40}) reset (?P<detail>succeeded|failed|failure)"),
    _rule("vram_lost", "vram is lost", r"VRAM is lost"),
    _rule("ring_timeout", "timeout", r"\bring (?P<detail>[\w.]{1,40}) timeout(?P<recovered>, but soft recovered)?"),
    _rule("mes_hang", "mes", r"MES(?:\([0-9, ]{1,9}\))? failed to respon(?:d to|se) msg=(?P<detail>[\w=]{1,40})"),
    _rule("mes_hang", "unrecoverable state", r"MES might be in unrecoverable state", "unrecoverable"),
    _rule("mes_hang", "unrecoverable state", r"the cp might be in an unrecoverable state", "hardware scheduler"),
    _rule("vm_fault", "page fault", r"\[(?P<detail>(?:gfx|mm)hub\w{0,4})\].{0,12} page fault \(src_id:[0-9]{1,6} "
          r"ring:[0-9]{1,6} vmid:(?P<vmid>[0-9]{1,6}) pasid:(?P<pasid>[0-9]{1,9})" + _FOR_PROCESS),
    _rule("vm_fault", "gpu fault detected", r"GPU fault detected: [0-9]{1,4} 0x[0-9a-f]{1,16}" + _FOR_PROCESS),
    _rule("cs_enomem", "command submission", r"Not enough memory for command submission"),
    _rule("cs_enomem", "buffer list", r"Failed to process the buffer list -12"),
    _rule("kfd_enomem", "failed to create bo", r"Failed to create BO on domain (?P<detail>\w{1,16})\. ret -12"),
    _rule("kfd_enomem", "system memory limit", r"exceeds resident system memory limit", "system memory"),
    _rule("pin_failed", "failed to pin", r"Failed to pin framebuffer with error (?P<error>-[0-9]{1,4})", "framebuffer"),
    _rule("pin_failed", "pin failed", r"\b[0-9a-f]{8,16} pin failed", "buffer"),
    # The number behind the process's name is its thread's, the one behind the task's name its own (amdgpu_vm_fini).
    _rule("nonzero_when_fini", "non-zero when fini", r"VM memory stats(?: for proc (?P<process>.{0,32}?)(?:\("
          r"(?P<thread>[0-9]{1,9})\) task .{0,32}?\((?P<pid>[0-9]{1,9})\))?)? is non-zero when fini"),
    _rule("oom_killer", "kill", r"(?P<detail>Memory cgroup out of memory|Out of memory)[^:]{0,40}: Kill(?:ed)? process "
          r"(?P<pid>[0-9]{1,9}) \((?P<process>.{0,15})\)(?=[ ,]|$)"),
    _rule("page_allocation_failure", "page allocation failure", r"(?P<process>[^ ].{0,40}?): page allocation failure: "
          r"order:(?P<order>[0-9]{1,3})"),
    _rule("pcie_aer", "pcie bus error", r"PCIe Bus Error: severity=(?P<detail>[a-z][a-z ()-]{0,30}),"),
    _rule("pcie_aer", "aer: ", r"AER: (?:Multiple )?(?P<detail>(?:un)?correct(?:ed|able)(?: \([a-z-]{1,16}\))?) error"),
    _rule("pcie_atomics", "atomic", r"PCIE atomic ops is not supported|PCI rejects atomics"),
    _rule("xid", "xid", r"NVRM: Xid \((?P<pci>[0-9a-f:.PCI]{5,24})\): (?P<detail>[0-9]{1,4})(?:, pid='?"
          r"(?:(?P<pid>[0-9]{1,9})|[^,]{0,32}))?(?:, name='?(?P<process>[^,'<]{1,64}))?"),
    _rule("gtt_vs_ttm_mismatch", "gtt size has been set", r"GTT size has been set as (?P<gtt_bytes>[0-9]{1,19}) "
          r"but TTM size has been set as (?P<ttm_bytes>[0-9]{1,19})"),
    _rule("gttsize_deprecated", "gttsize", r"Configuring gttsize via module parameter is deprecated"),
    _rule("unknown_parameter", "unknown parameter", r"(?P<module>amdgpu|amdttm|amd_ttm|ttm|nvidia\w{0,16}): unknown parameter "
          r"'(?P<detail>[^']{1,64})' ignored"),
    _rule("vram_ready", "vram memory ready", r"\b(?P<size_mib>[0-9]{1,10})M of VRAM memory ready"),
    _rule("gtt_ready", "gtt memory ready", r"\b(?P<size_mib>[0-9]{1,10})M of GTT memory ready"),
    _rule("vm_size", "vm size is", r"vm size is (?P<size_gib>[0-9]{1,10}) GB"),
    _rule("hung_task", "blocked for more than", r"task (?P<process>.{1,32}?):(?P<pid>[0-9]{1,9}) blocked for more than "
          r"(?P<seconds>[0-9]{1,9}) seconds"),
    _rule("driver_version", "amdgpu version", r"amdgpu version: (?P<detail>\S{1,40})"),
    _rule("driver_version", "kernel module", r"NVIDIA UNIX (?:Open )?(?:Kernel Module for \w{1,10}|\w{1,10} Kernel Module) "
          r"{1,4}(?P<detail>[0-9]{2,4}\.[0-9.]{1,12})"),
    _rule("boot", "linux version", r"^Linux version (?P<detail>\S{1,100})"),
)
_STORMS = frozenset(("vm_fault", "cs_enomem", "kfd_enomem", "pin_failed", "nonzero_when_fini", "page_allocation_failure",
                     "pcie_aer", "xid", "mes_hang", "gpu_reset"))
_NAMES_PROCESS = re.compile(r"(?:process information: )?process (?P<process>.{0,32}?) ?\bpid (?P<pid>[0-9]{1,9})",
                            re.IGNORECASE)
_FOLLOWING = {
    "address": re.compile(r"(?:starting at address|PROTECTION_FAULT_ADDR) {0,4}(0x[0-9a-f]{1,16})", re.IGNORECASE),
    "status": re.compile(r"PROTECTION_FAULT_STATUS[: ] {0,4}(0x[0-9a-f]{1,16})", re.IGNORECASE),
    "client": re.compile(r"Faulty UTCL2 client ID: (\w{1,16} \(0x[0-9a-f]{1,8}\))", re.IGNORECASE),
}
_ANON_RSS = re.compile(r"total-vm:([0-9]{1,15})kB, anon-rss:([0-9]{1,15})kB")
_KILLED = re.compile(r"Killed process ([0-9]{1,9}) ")
_MEMCG = re.compile(r"oom-kill:constraint=(\w{1,32}).{0,200}?oom_memcg=([^,]{1,400})")
_PCI = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)


def parse(text: str, source: str = "", item: str = "", boot: int = 0) -> tuple[Event, ...]:
    """The events of one log text, in its order; EVENTS_LIMIT at most. Never raises; lines of other things are passed over."""
    found: list[Event] = []
    latest: dict[tuple[object, ...], int] = {}
    opened: dict[str, tuple[int, int]] = {}
    milestone = 0
    memcg = ""
    for number, raw in enumerate(text.split("\n"), 1):
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
            event = replace(event, facts={**event.facts, **({"cgroup": memcg} if memcg and event.detail == "cgroup" else {})})
            memcg = ""
        # Which process a fault comes from is said in a later line; its PASID is already here.
        key = (event.kind, event.pci, event.pid, event.process, event.detail, event.facts.get("pasid"))
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
    return tuple(found)


def _when(when: float | str | None, source: str, item: str) -> Reading:
    if when is None:
        return not_available("the line carries no time", "count", source, item)
    return seen(when, "text" if isinstance(when, str) else "count", source, item)


def _event(message: str, lower: str, when: Reading, boot: int, source: str, number: int) -> Event | None:
    hits = ((kind, pattern.search(message), detail) for kind, literal, pattern, detail in _RULES if literal in lower)
    kind, match, detail = next((hit for hit in hits if hit[1]), ("", None, ""))
    if match is None:
        return None
    got = {name: value for name, value in match.groupdict().items() if value is not None}
    pid = int(got.pop("pid", "0")) or None
    process = got.pop("process", "").strip()
    addresses = [got.pop("pci")] if "pci" in got else _PCI.findall(message)
    pci = address((addresses or [""])[-1 if kind == "pcie_aer" else 0])
    detail = _detail(kind, got.pop("detail", detail), got)
    facts: dict[str, int | str] = {}
    for name, value in got.items():
        scale = MIB if name.endswith("_mib") else MIB << 10 if name.endswith("_gib") else 1
        fact = name[:-4] + "_bytes" if scale > 1 else name
        facts[fact] = int(value) * scale if re.fullmatch(r"-?[0-9]{1,20}", value) else value
    facts.update(_killed_bytes(message) if kind == "oom_killer" else {})
    return Event(kind, when, boot, pci, pid, process, detail, facts, message, source, number, 1, when)


def _detail(kind: str, detail: str, got: dict[str, str]) -> str:
    if kind in ("gpu_reset", "pcie_aer"):
        detail = detail.lower().replace("failure", "failed").replace("correctable", "corrected")
    if kind == "gpu_reset" and "ring" in got:
        return f"ring {detail}"
    if kind == "ring_timeout" and got.pop("recovered", ""):
        return detail + " soft recovered"
    if kind == "oom_killer":
        return "cgroup" if "cgroup" in detail.lower() else "global"
    return f"{got.pop('module')}.{detail}" if kind == "unknown_parameter" else detail


def _killed_bytes(message: str) -> dict[str, int | str]:
    match = _ANON_RSS.search(message)
    return {"total_vm_bytes": int(match.group(1)) << 10, "anon_rss_bytes": int(match.group(2)) << 10} if match else {}


def _follow(found: list[Event], opened: dict[str, tuple[int, int]], message: str, lower: str, number: int) -> None:
    """Add to an open event what the lines after it say: the process, the address and status of a fault, the size of a kill."""
    pci = address((_PCI.findall(message) or [""])[0])
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
            event = replace(event, pid=int(match.group("pid")) or None, process=match.group("process").strip())
    if event.kind == "vm_fault" and ("fault" in lower or "address" in lower or "utcl2" in lower):
        for name, pattern in _FOLLOWING.items():
            match = pattern.search(message) if name not in event.facts else None
            if match:
                event = replace(event, facts={**event.facts, name: match.group(1)})
    found[at] = event


def _logs(bundle: Bundle) -> Iterator[tuple[Text, int]]:
    """Every source that is a kernel log, read or not, with its boot (-1 is the one before the running one)."""
    for item in bundle.items:
        words = item.source.split() or [""]
        name = item.source.rsplit("/", 1)[-1]
        if words[0] in ("journalctl", "dmesg") or name in ("kmsg", "kern.log", "syslog", "messages", "kernel log"):
            yield bundle.read(item.source), -1 if words[0] == "journalctl" and "-1" in words else 0


def events(bundle: Bundle) -> tuple[Event, ...]:
    """All that the kernel logged of note, the earlier boot first, from one source a boot: the first that has lines.

    Empty also where no log could be read; ``readable`` tells.
    """
    chosen: dict[int, Text] = {}
    for text, boot in _logs(bundle):
        if text.ok and text.text.strip():
            chosen.setdefault(boot, text)
    return tuple(event for boot, text in sorted(chosen.items()) for event in parse(text.text, text.source, text.item, boot))


def readable(bundle: Bundle) -> Reading:
    """Which source the running boot's log was read from, or why from none, so that no event seen does not mean no event."""
    tried = [text for text, boot in _logs(bundle) if boot == 0]
    best = sorted(tried, key=lambda text: (not text.ok, not text.text.strip(), text.status != "not_allowed"))
    if not best:
        return not_available("not captured", "text", "dmesg")
    make = not_allowed if best[0].status == "not_allowed" else not_available
    if best[0].ok:
        return seen(best[0].source, "text", best[0].source, best[0].item)
    return make(best[0].why or best[0].status.replace("_", " "), "text", best[0].source, best[0].item)
