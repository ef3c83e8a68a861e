"""What rocminfo says: the HSA agents with their memory pools, and whether /dev/kfd let it in.

It prints KB and means KiB (ROCm/rocminfo rocminfo.cc divides by 1024). Pool 1 of a GPU agent is what HIP reports as the
device's total. Its start opens /dev/kfd and sets up the runtime, so it runs after sysfs was read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .bundle import Bundle, Text
from .reading import Reading
from .vendor_text import count, size, stdout_of, why_nothing, word

SOURCE = "rocminfo"
COMMANDS: tuple[tuple[str, ...], ...] = ((SOURCE,),)

_LINE = re.compile(r" *([^:\n]{1,40}):+(.*)")
_KINDS = {"CPU": "cpu", "GPU": "gpu", "DSP": "npu"}


@dataclass(frozen=True)
class Agent:
    """One HSA agent: ``kind`` is cpu, gpu, npu or empty where the output was cut.

    ``pci`` comes from the 16-bit BDFID, which holds no PCI domain: 0000 is taken. ``integrated`` is None before the line
    "Memory Properties" existed (ROCm/rocminfo 7e159e6, 2023-11) and for what is no GPU. ``memory`` is its first global pool,
    which HIP makes the device's total (ROCm/clr rocdevice.cpp).
    """

    kind: str
    name: Reading
    marketing_name: Reading
    pci: Reading
    integrated: bool | None
    memory: Reading


@dataclass
class _Open:
    """An agent while its lines are read."""

    fields: dict[str, str] = field(default_factory=dict)
    pools: list[dict[str, str]] = field(default_factory=list)


def agents(bundle: Bundle) -> tuple[Agent, ...]:
    """The agents in rocminfo's order; empty when it told nothing (then ``agent_count`` says why)."""
    return parse_agents(bundle.read(SOURCE))


def agent_count(bundle: Bundle) -> Reading:
    """How many GPU agents there are (0 where only the CPU shows), or why rocminfo listed no agent at all."""
    text = bundle.read(SOURCE)
    found = parse_agents(text)
    if found:
        return text.seen(sum(agent.kind == "gpu" for agent in found), "count")
    return why_nothing(text, SOURCE, "HSA agent").reading("count")


def parse_agents(text: Text) -> tuple[Agent, ...]:
    """Agents of a text; of one that was cut or filtered (``rocminfo | grep``) what is left, an agent for each "Pool Info"."""
    found: list[_Open] = []
    section = ""
    for line in stdout_of(text).splitlines():
        match = _LINE.match(line[:400])
        name, value = (part.strip() for part in match.groups()) if match else ("", "")
        if re.fullmatch(r"\s*Agent [0-9]{1,4}\s*", line):
            found.append(_Open())
            section = "agent"
        elif name == "Pool Info":
            if not found or section != "agent":
                found.append(_Open())
            section = "pools"
        elif not found:
            continue
        elif section == "pools" and re.fullmatch(r"\s*Pool [0-9]{1,4}\s*", line):
            found[-1].pools.append({})
        elif name in ("ISA Info", "Cache Info"):
            section = "isas" if name == "ISA Info" else section
        elif section == "pools" and found[-1].pools:
            found[-1].pools[-1].setdefault(name, value)
        elif section == "agent" and name:
            found[-1].fields.setdefault(name, value)
    return tuple(_agent(opened, text) for opened in found)


def _agent(opened: _Open, text: Text) -> Agent:
    fields = opened.fields
    kind = _KINDS.get(fields.get("Device Type", ""), "")
    bdf = count(fields.get("BDFID"), text)
    pci = text.refused("", "rocminfo prints none" if bdf.ok else bdf.why)
    if kind == "gpu" and 0 < bdf.bytes < 1 << 16:
        pci = text.seen(f"0000:{bdf.bytes >> 8:02x}:{bdf.bytes >> 3 & 31:02x}.{bdf.bytes & 7}")
    properties = fields.get("Memory Properties") if kind == "gpu" else None
    return Agent(
        kind,
        word(fields.get("Name"), text),
        word(fields.get("Marketing Name"), text),
        pci,
        None if properties is None else "APU" in properties,
        _memory(opened, text),
    )


def _memory(opened: _Open, text: Text) -> Reading:
    for pool in opened.pools:
        if pool.get("Segment", "").partition("; FLAGS:")[0].strip() in ("GLOBAL", ""):
            kib = re.match(r"([0-9]{1,18})\(0x[0-9a-f]+\) ?KB", pool.get("Size", ""))
            return size(f"{kib.group(1)} KiB" if kib else pool.get("Size"), text)
    return text.refused("", "this agent has no global pool", "bytes")
