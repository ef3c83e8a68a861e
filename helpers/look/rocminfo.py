"""What rocminfo says: the HSA agents with their memory pools, and whether /dev/kfd let it in.

It prints KB and means KiB (ROCm/rocminfo rocminfo.cc divides by 1024). Pool 1 of a GPU agent is what HIP reports as the
device's total. Its start opens /dev/kfd and sets up the runtime, so it runs after sysfs was read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .bundle import Bundle, Text
from .reading import NOT_ALLOWED, NOT_AVAILABLE, Reading, not_available, seen
from .vendor_text import Failure, count, size, stdout_of, why_nothing, word

COMMANDS: tuple[tuple[str, ...], ...] = (("rocminfo",),)
FILES: tuple[str, ...] = ()
SOURCE = "rocminfo"

_FAILURES = (
    ("Unable to open /dev/kfd read-write: Permission denied", NOT_ALLOWED),
    ("Unable to open /dev/kfd read-write: Operation not permitted", NOT_ALLOWED),
    ("is not member of", NOT_ALLOWED), ("ROCk module is NOT", NOT_AVAILABLE), ("Unable to open /dev/kfd", NOT_AVAILABLE),
    ("is member of", NOT_AVAILABLE), ("Failed to get", NOT_AVAILABLE), ("Failed to find pwd entry", NOT_AVAILABLE),
    ("hsa api call failure", NOT_AVAILABLE), ("Call returned", NOT_AVAILABLE), ("HSA_STATUS_ERROR", NOT_AVAILABLE),
    ("error while loading shared libraries", NOT_AVAILABLE),
)
_LINE = re.compile(r"( *)([^:\n]{1,40}):+(.*)")
_KINDS = {"CPU": "cpu", "GPU": "gpu", "DSP": "npu"}


@dataclass(frozen=True)
class HsaPool:
    """One memory pool of an agent. ``segment`` is GLOBAL, GROUP, ...; ``flags`` such as "COARSE GRAINED"."""

    number: int
    segment: str
    flags: tuple[str, ...]
    size: Reading
    allocatable: bool | None


@dataclass(frozen=True)
class Agent:
    """One HSA agent: ``kind`` is cpu, gpu, npu or empty where the output was cut.

    ``pci`` comes from the 16-bit BDFID, which holds no PCI domain: 0000 is taken. ``integrated`` is None before the line
    "Memory Properties" existed (ROCm/rocminfo 7e159e6, 2023-11) and for what is no GPU.
    """

    number: int
    kind: str
    name: Reading
    marketing_name: Reading
    uuid: Reading
    node: Reading
    pci: Reading
    compute_units: Reading
    integrated: bool | None
    isas: tuple[str, ...]
    pools: tuple[HsaPool, ...]

    @property
    def memory(self) -> Reading:
        """Size of the first global pool, which HIP makes the device's total (ROCm/clr rocdevice.cpp)."""
        first = next((pool for pool in self.pools if pool.segment in ("GLOBAL", "")), None)
        return first.size if first else not_available("this agent has no global pool", "bytes", SOURCE)


@dataclass(frozen=True)
class HsaSystem:
    """What rocminfo prints above the agents. ``module`` is the amdgpu release; an inbox driver and WSL have none."""

    runtime: Reading
    module: Reading
    xnack: Reading
    dmabuf: Reading
    vmm: Reading
    wsl: bool


@dataclass
class _Open:
    """An agent while its lines are read."""

    number: int
    fields: dict[str, str] = field(default_factory=dict)
    isas: list[str] = field(default_factory=list)
    pools: list[dict[str, str]] = field(default_factory=list)


def agents(bundle: Bundle) -> tuple[Agent, ...]:
    """The agents in rocminfo's order; empty when it told nothing (then ``agent_count`` says why)."""
    return parse_agents(bundle.read(SOURCE))


def agent_count(bundle: Bundle) -> Reading:
    """How many GPU agents there are (0 where only the CPU shows), or why rocminfo listed no agent at all."""
    text = bundle.read(SOURCE)
    found = parse_agents(text)
    if found:
        return seen(sum(agent.kind == "gpu" for agent in found), "count", SOURCE, text.item)
    return why_nothing(text, _FAILURES, "HSA agent").reading("count", SOURCE, text.item)


def system(bundle: Bundle) -> HsaSystem:
    """Runtime version, XNACK and the like, each with its reason where it is not printed."""
    return parse_system(bundle.read(SOURCE))


def parse_system(text: Text) -> HsaSystem:
    """``system`` of a text."""
    words = stdout_of(text)
    head = {name.strip(): value.strip() for _, name, value in map(_split, words[:4000].splitlines())}
    began = head.keys() & {"Runtime Version", "Mwaitx", "Machine Model"}
    failure = None if began else why_nothing(text, _FAILURES, "HSA agent")

    def told(name: str) -> Reading:
        if failure:
            return failure.reading("text", text.source, text.item)
        return word(head.get(name), text.source, text.item)

    module = re.search(r"ROCk module (?:version (\S+) )?is loaded", words)
    # Under WSL rocminfo leaves the Uuid line of a GPU out (rocminfo.cc, DisplayAgentInfo).
    wsl = "WSL environment detected" in words or any(a.kind == "gpu" and not a.uuid.ok for a in parse_agents(text))
    if module:
        loaded = seen(module.group(1) or "loaded", "text", text.source, text.item)
    else:
        why = "under WSL there is no amdgpu module" if wsl else "no line about the module"
        loaded = (failure or Failure(NOT_AVAILABLE, why)).reading("text", text.source, text.item)
    return HsaSystem(told("Runtime Version"), loaded, told("XNACK enabled"), told("DMAbuf Support"), told("VMM Support"), wsl)


def parse_agents(text: Text) -> tuple[Agent, ...]:
    """Agents of a text; of one that was cut or filtered (``rocminfo | grep``) what is left, an agent for each "Pool Info"."""
    found: list[_Open] = []
    section = ""
    for line in stdout_of(text).splitlines():
        begins = re.fullmatch(r"\s*Agent ([0-9]{1,4})\s*", line)
        if begins:
            found.append(_Open(int(begins.group(1))))
            section = "agent"
            continue
        pool = re.fullmatch(r"\s*Pool ([0-9]{1,4})\s*", line)
        _, name, value = _split(line)
        name, value = name.strip(), value.strip()
        if name == "Pool Info":
            if not found or section != "agent":
                found.append(_Open(0))
            section = "pools"
        elif not found:
            continue
        elif pool and section == "pools":
            found[-1].pools.append({"number": pool.group(1)})
        elif name in ("ISA Info", "Cache Info"):
            section = "isas" if name == "ISA Info" else section
        elif section == "pools" and found[-1].pools:
            found[-1].pools[-1].setdefault(name, value)
        elif section == "isas" and name == "Name":
            found[-1].isas.append(value)
        elif section == "agent" and name:
            found[-1].fields.setdefault(name, value)
    return tuple(_agent(opened, text) for opened in found)


def _split(line: str) -> tuple[str, str, str]:
    match = _LINE.match(line[:400])
    return (match.group(1), match.group(2), match.group(3)) if match else ("", "", "")


def _agent(opened: _Open, text: Text) -> Agent:
    at = text.source, text.item
    fields = opened.fields
    kind = _KINDS.get(fields.get("Device Type", ""), "")
    bdf = count(fields.get("BDFID"), *at)
    pci = not_available("rocminfo prints none" if bdf.ok else bdf.why, "text", *at)
    if bdf.ok and kind == "gpu" and 0 < int(bdf.value or 0) < 1 << 16:
        number = int(bdf.value or 0)
        pci = seen(f"0000:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}", "text", *at)
    return Agent(
        opened.number, kind, word(fields.get("Name"), *at), word(fields.get("Marketing Name"), *at),
        word(fields.get("Uuid"), *at), count(fields.get("Node"), *at), pci, count(fields.get("Compute Unit"), *at),
        "APU" in fields["Memory Properties"] if kind == "gpu" and "Memory Properties" in fields else None,
        tuple(opened.isas), tuple(_pool(pool, text) for pool in opened.pools))


def _pool(fields: dict[str, str], text: Text) -> HsaPool:
    segment, _, flags = fields.get("Segment", "").partition("; FLAGS:")
    kib = re.match(r"([0-9]{1,18})\(0x[0-9a-f]+\) ?KB", fields.get("Size", ""))
    return HsaPool(
        int(fields["number"]), segment.strip(), tuple(flag.strip() for flag in flags.split(",") if flag.strip()),
        size(f"{kib.group(1)} KiB" if kib else fields.get("Size"), text.source, text.item),
        {"TRUE": True, "FALSE": False}.get(fields.get("Allocatable", "")))
