"""Reads what AMD's tools print: rocm-smi, amd-smi, rocminfo (the HSA agents with their memory
pools), and ROCm's version files.

A tool's index of a GPU is neither the number of its DRM card nor its HIP index. rocm-smi's JSON has
every value as a string. amd-smi's JSON has two roots: a bare array (ROCm 6.x, distribution builds)
and ``{"gpu_data": [...]}`` (7.x); a value is ``{"value": n, "unit": "MB"}``, where MB is MiB, or
the text "N/A". On an APU its ``vram`` is only the firmware's carve-out. Its process list comes from
/proc/PID/fdinfo (ROCm/amdsmi src/amd_smi/fdinfo.cc): processes of other users (without root) and of
other PID namespaces are missing. Its Python package is not used: without its library, the import
raises KeyError and prints on stdout. rocminfo prints KB and means KiB (ROCm/rocminfo rocminfo.cc
divides by 1024); pool 1 of a GPU agent is what HIP reports as the device's total. All of them may
open /dev/kfd, so they run after sysfs was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from helpers.ground.shapes import Reading, not_available
from helpers.ground.units import pci_address
from helpers.look.bundle import Bundle, Row, Text, rows
from helpers.look.vendor_text import (
    count,
    find_json,
    find_object,
    size,
    stdout_of,
    why_nothing,
    word,
)

BUS = "rocm-smi --showbus --showproductname --showuniqueid --json"
MEMORY_JSON = "rocm-smi --showmeminfo all --json"
MEMORY = "rocm-smi --showmeminfo all"
LIST = "amd-smi list --json"
LIST_ALL = "amd-smi list -e --json"
STATIC = "amd-smi static --json"
USAGE = "amd-smi metric --mem-usage --json"
PROCESS = "amd-smi process --json"
ROCMINFO = "rocminfo"
POSTED = "rocm-smi --showmeminfo vram"
"""The shorter command that people post, and that only recorded boxes have."""
VERSION_FILES = "/opt/rocm*/.info/version*"
_LABELS = {
    "vram total memory (b)": "vram total",
    "vram total used memory (b)": "vram used",
    "gtt total memory (b)": "gtt total",
    "gtt total used memory (b)": "gtt used",
}
"""The names here of the figures that rocm-smi prints, by its labels in lower case."""
POOLS = tuple(_LABELS.values())
# "GPU[0] XCP[1] :" before the label, where XCP is a partition.
_CARD_LINE = re.compile(r"GPU\[([0-9]{1,4})\](?:\s+XCP\[[0-9]+\])?\s*:?")
_CARD_KEY = re.compile(r"card([0-9]{1,4})")

LONGEST_LINE = 400
"""Letters of a line of rocminfo that are read."""
_FIELD_LINE = re.compile(r" *([^:\n]{1,40}):+(.*)")
_AGENT_LINE = re.compile(r"\s*Agent [0-9]{1,4}\s*")
_POOL_LINE = re.compile(r"\s*Pool [0-9]{1,4}\s*")
_KINDS = {"CPU": "cpu", "GPU": "gpu", "DSP": "npu"}
HIDDEN_NAMES = ("N/A", "UNKNOWN")
"""What amd-smi prints for the name of another user's process, in capitals."""


@dataclass(frozen=True)
class SmiCard:
    """One card with a tool's index. ``pools`` has a reading in bytes for each of POOLS; ``hip`` is
    its HIP index, or empty.
    """

    index: int
    pci: Reading
    name: Reading
    pools: dict[str, Reading]
    hip: str = ""


@dataclass(frozen=True)
class SmiProcess:
    """A process on one card. ``name`` is empty if amd-smi does not show it to other users. ``vram``
    is 0 for a process that only opened the device (ROCm#4411).
    """

    pci: str
    pid: int
    name: str
    vram: Reading


class _PrintedAgent(NamedTuple):
    """An agent as rocminfo prints it: the values of its lines, and of those of each pool, by their
    names.
    """

    fields: dict[str, str]
    pools: list[dict[str, str]]


@dataclass(frozen=True)
class Agent:
    """One HSA agent. ``kind`` is cpu, gpu, npu, or empty if the output lacks the line.

    ``pci`` comes from the BDFID, whose 16 bits have no PCI domain: 0000 is assumed. ``integrated``
    is None for anything but a GPU, and for releases without the line "Memory Properties" (before
    ROCm/rocminfo 7e159e6, 2023-11). ``memory`` is its first global pool, which HIP reports as the
    device's total (ROCm/clr rocdevice.cpp).
    """

    kind: str
    name: Reading
    marketing_name: Reading
    pci: Reading
    integrated: bool | None
    memory: Reading


def rocm_versions(bundle: Bundle) -> tuple[Reading, ...]:
    """The releases of the box's ROCm installations, one for each version file, or why there are
    none. An installation by pip or conda has no such file.
    """
    versions = []
    for source in bundle.sources(VERSION_FILES):
        text = bundle.read(source)
        if text.ok and text.text.strip():
            versions.append(word(text.text, text))
    if not versions:
        why = "no ROCm tree with a version file"
        versions.append(not_available(why, "text", VERSION_FILES))
    return tuple(versions)


def cards(bundle: Bundle) -> tuple[SmiCard, ...]:
    """The cards that rocm-smi lists with their pools, by index; empty if it lists none."""
    lines = bundle.read(MEMORY)
    answer = bundle.read(MEMORY_JSON)
    memory: dict[int, dict[str, Reading]] = {}
    # The best source last, since it replaces the values of those before it.
    for text in (bundle.read(POSTED), lines, answer):
        for index, pools in parse_memory(text).items():
            memory.setdefault(index, {}).update(pools)
    # A recorded box may have only the lines, which then say why there is nothing.
    if lines.text and not answer.text:
        answer = lines
    nothing = why_nothing(answer, "rocm-smi", "memory pools").missing(unit="bytes")
    no_pool = answer.refused("", "rocm-smi printed no such pool", "bytes")
    bus = bundle.read(BUS)
    named = _by_card(find_object(bus))
    listed = []
    for index in sorted(memory.keys() | named.keys()):
        # By release in capitals or not.
        fields = {key.lower(): value for key, value in named.get(index, {}).items()}
        name = fields.get("card series")
        if not name:
            name = fields.get("card model")
        pools = dict.fromkeys(POOLS, nothing)
        if index in memory:
            pools = {**dict.fromkeys(POOLS, no_pool), **memory[index]}
        card = SmiCard(
            index=index,
            pci=_address((bus, fields.get("pci bus"))),
            name=word(name, bus),
            pools=pools,
        )
        listed.append(card)
    return tuple(listed)


def _by_card(answer: Row) -> dict[int, Row]:
    """The objects "card0", "card1" and so on of rocm-smi's JSON, by their numbers."""
    objects = {}
    for key in answer:
        match = _CARD_KEY.fullmatch(key)
        if match:
            objects[int(match[1])] = answer.inner(key)
    return objects


def _address(*candidates: tuple[Text, object]) -> Reading:
    """The first PCI address among (text, value in it), or that there is none."""
    for text, value in candidates:
        address = pci_address(value)
        if address:
            return text.seen(address)
    first_text, _ = candidates[0]
    return first_text.refused("", "no PCI address reported")


def parse_memory(text: Text) -> dict[int, dict[str, Reading]]:
    """The pools of each card by its index, from the text or the JSON of ``--showmeminfo``. A pool
    that rocm-smi could not read is there as not available.
    """
    printed: list[tuple[int, str, object]] = []
    for index, fields in _by_card(find_object(text)).items():
        printed += [(index, label, value) for label, value in fields.items()]
    if not printed:
        printed += _memory_lines(stdout_of(text))
    memory: dict[int, dict[str, Reading]] = {}
    for index, label, value in printed:
        pool = _LABELS.get(" ".join(label.lower().split()))
        if pool:
            memory.setdefault(index, {})[pool] = size(value, text)
    return memory


def _memory_lines(words: str) -> Iterator[tuple[int, str, str]]:
    """(card, label, value) of each line, such as "GPU[0] : VRAM Total Memory (B): 17163091968"."""
    for line in map(str.strip, words.splitlines()):
        card = _CARD_LINE.match(line)
        if not card:
            continue
        label, colon, value = line[card.end() :].rpartition(":")
        if not colon:
            # rocm_smi.py, printLog: a pool that could not be read has neither colon nor value.
            label = value
            value = "N/A"
        yield int(card[1]), label, value


def gpus(bundle: Bundle) -> tuple[SmiCard, ...]:
    """The GPUs that amd-smi lists with their pools, by index; empty if it lists none."""
    list_text = bundle.read(LIST)
    static_text = bundle.read(STATIC)
    usage_text = bundle.read(USAGE)
    listed = _by_gpu(list_text)
    listed_with_hip = _by_gpu(bundle.read(LIST_ALL))
    statics = _by_gpu(static_text)
    usages = _by_gpu(usage_text)
    nothing = why_nothing(usage_text, "amd-smi", "memory usage").missing(unit="bytes")
    cards = []
    for index in sorted({*listed, *listed_with_hip, *statics, *usages}):
        named = {**listed.get(index, {}), **listed_with_hip.get(index, {})}
        static = statics.get(index, Row())
        usage = usages.get(index, Row()).inner("mem_usage")
        pools = dict.fromkeys(POOLS, nothing)
        if usage:
            for pool in POOLS:
                memory, figure = pool.split()
                pools[pool] = size(usage.get(f"{figure}_{memory}"), usage_text)
        hip = named.get("hip_id")
        if hip in (None, "N/A"):
            hip = ""
        card = SmiCard(
            index=index,
            pci=_address(
                (list_text, named.get("bdf")),
                (static_text, static.inner("bus").get("bdf")),
            ),
            name=word(static.inner("asic").get("market_name"), static_text),
            pools=pools,
            hip=str(hip),
        )
        cards.append(card)
    return tuple(cards)


def _by_gpu(text: Text) -> dict[int, Row]:
    """The object of each GPU by its index, from either root of the JSON; objects of CPUs and NICs,
    which have no key ``gpu``, are left out.
    """
    answer = find_json(stdout_of(text))
    if isinstance(answer, Row):
        answer = answer.get("gpu_data")
    by_gpu = {}
    for row in rows(answer):
        number = row.number("gpu")
        if number is not None and number >= 0:
            by_gpu[number] = row
    return by_gpu


def processes(bundle: Bundle) -> tuple[SmiProcess, ...]:
    """The processes that amd-smi lists on every GPU; empty also if it printed no list."""
    addresses = {gpu.index: str(gpu.pci.value) for gpu in gpus(bundle) if gpu.pci.ok}
    return parse_processes(bundle.read(PROCESS), addresses)


def parse_processes(text: Text, addresses: dict[int, str]) -> tuple[SmiProcess, ...]:
    """The processes of ``amd-smi process --json``; ``addresses`` are the GPUs' PCI addresses by
    index.
    """
    listed = []
    for index, row in _by_gpu(text).items():
        for entry in rows(row.get("process_list")):
            info = entry.inner("process_info")
            pid = info.number("pid")
            if pid is None or pid <= 0:
                continue
            name = info.text("name")
            if name.upper() in HIDDEN_NAMES:
                name = ""
            vram = size(info.inner("memory_usage").get("vram_mem"), text, "B")
            listed.append(SmiProcess(addresses.get(index, ""), pid, name, vram))
    return tuple(listed)


def agents(bundle: Bundle) -> tuple[Agent, ...]:
    """The agents in rocminfo's order; empty if it lists none, and ``agent_count`` says why."""
    return parse_agents(bundle.read(ROCMINFO))


def agent_count(bundle: Bundle) -> Reading:
    """How many of rocminfo's agents are GPUs, or why it lists no agent at all, not even the CPU."""
    text = bundle.read(ROCMINFO)
    listed = parse_agents(text)
    if listed:
        return text.seen(sum(agent.kind == "gpu" for agent in listed), "count")
    return why_nothing(text, ROCMINFO, "HSA agent").missing(unit="count")


def parse_agents(text: Text) -> tuple[Agent, ...]:
    """The agents of rocminfo's output. In one that was cut off or filtered (``rocminfo | grep``)
    every "Pool Info" without the line "Agent 1" before it begins an agent of its own.
    """
    printed: list[_PrintedAgent] = []
    section = ""  # of the last agent: agent, pools or isas
    for line in stdout_of(text).splitlines():
        name = ""
        value = ""
        field = _FIELD_LINE.match(line[:LONGEST_LINE])
        if field:
            name = field[1].strip()
            value = field[2].strip()
        if _AGENT_LINE.fullmatch(line):
            printed.append(_PrintedAgent({}, []))
            section = "agent"
        elif name == "Pool Info":
            if section != "agent":
                printed.append(_PrintedAgent({}, []))
            section = "pools"
        elif name == "ISA Info":
            section = "isas"
        elif section == "pools" and _POOL_LINE.fullmatch(line):
            printed[-1].pools.append({})
        elif field and section == "agent" and name != "Cache Info":
            printed[-1].fields.setdefault(name, value)
        elif field and section == "pools" and printed[-1].pools:
            printed[-1].pools[-1].setdefault(name, value)
    return tuple(_agent(agent, text) for agent in printed)


def _agent(printed: _PrintedAgent, text: Text) -> Agent:
    fields = printed.fields
    kind = _KINDS.get(fields.get("Device Type", ""), "")
    integrated = None
    if kind == "gpu" and "Memory Properties" in fields:
        integrated = "APU" in fields["Memory Properties"]
    return Agent(
        kind=kind,
        name=word(fields.get("Name"), text),
        marketing_name=word(fields.get("Marketing Name"), text),
        pci=_address_of_agent(kind, count(fields.get("BDFID"), text), text),
        integrated=integrated,
        memory=_first_global_pool(printed.pools, text),
    )


def _address_of_agent(kind: str, bdf: Reading, text: Text) -> Reading:
    """The PCI address in a GPU's BDFID: 8 bits of bus, 5 of device, 3 of function. Other agents
    have none, and 0 or more than 16 bits is no address.
    """
    if not bdf.ok:
        return text.refused("", bdf.why)
    if kind == "gpu" and 0 < bdf.bytes < 1 << 16:
        bus = bdf.bytes >> 8
        device = bdf.bytes >> 3 & 0x1F
        function = bdf.bytes & 7
        return text.seen(f"0000:{bus:02x}:{device:02x}.{function}")
    return text.refused("", "rocminfo prints none")


def _first_global_pool(pools: list[dict[str, str]], text: Text) -> Reading:
    """The size of the first pool whose segment is global, or that has lost that line."""
    for pool in pools:
        segment = pool.get("Segment", "").partition("; FLAGS:")[0].strip()
        if segment in ("GLOBAL", ""):
            # "25149440(0x17fc000) KB", where KB means KiB.
            printed = re.sub(r"\(0x[0-9a-f]+\) ?KB.*", " KiB", pool.get("Size", ""))
            return size(printed, text)
    return text.refused("", "this agent has no global pool", "bytes")
